"""A small run as one of several processes, or alone: `part_of_a_run.py FOLDER ALGORITHM DEVICES [I/N@ADDRESS:PORT]`."""

import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))
folder, algorithm, devices, *place = sys.argv[1:]
jax.config.update("jax_num_cpu_devices", int(devices))

from fedgen.simulate.devices import join_hosts  # noqa: E402

if place:
    join_hosts(place[0])

from fedgen.simulate.folder import FollowedFolder, RunFolder  # noqa: E402
from fedgen.simulate.run import run  # noqa: E402
from fedgen.simulate.setup import prepare  # noqa: E402
from fedgen.simulate.spread import is_first_host, wait_for_all  # noqa: E402
from helpers import small_config, small_data  # noqa: E402

# Partial sharing, so that users have states of their own; seven users are no multiple of two or four.
share = "predictor" if algorithm == "fedgen" else "all"
config = small_config(algorithm, share=share, users=7, active=5, rounds=2)
setup = prepare(config, small_data())
if is_first_host():
    RunFolder.create(Path(folder), config)
wait_for_all("the folder")
run(setup, folder=RunFolder(Path(folder)) if is_first_host() else FollowedFolder(Path(folder)))
held = {shard.data.shape[0] for shard in setup.data.x.addressable_shards}
print(f"holds {min(held)} to {max(held)} of {len(small_data().y_train)} samples", flush=True)
