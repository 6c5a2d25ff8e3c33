"""The small FedGen run on a single CPU device, in a process of its own."""

import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))
jax.config.update("jax_num_cpu_devices", 1)

from fedgen.simulate.folder import RunFolder  # noqa: E402
from fedgen.simulate.run import run  # noqa: E402
from fedgen.simulate.setup import prepare  # noqa: E402
from helpers import small_config, small_data  # noqa: E402

config = small_config("fedgen", active=5)
run(prepare(config, small_data()), folder=RunFolder.create(Path(sys.argv[1]), config))
