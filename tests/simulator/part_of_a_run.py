"""A small run as one of several processes, or alone; `--help` says how."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("algorithm", help="a registered one, or `summing`: passes over the users' data, and epochs")
parser.add_argument("devices", type=int)
parser.add_argument("--hosts", help="I/N@ADDRESS:PORT")
parser.add_argument("--seeds", type=int, default=1, help="more than one are computed at once, as on a GPU")
parser.add_argument("--interrupt", action="store_true", help="after one round")
given = parser.parse_args()
jax.config.update("jax_num_cpu_devices", given.devices)

from fedgen.compiled import use_whole_entries  # noqa: E402
from fedgen.simulator.devices import join_hosts  # noqa: E402

use_whole_entries()

if given.hosts:
    join_hosts(given.hosts)

from fedgen.algorithms import ALGORITHMS  # noqa: E402
from fedgen.runs.folder import FollowedFolder, RunFolder  # noqa: E402
from fedgen.runs.watch import Watch  # noqa: E402
from fedgen.simulator.setup import prepare  # noqa: E402
from fedgen.simulator.sharding import is_first_host, wait_for_all  # noqa: E402
from helpers import small_config, small_data, summing  # noqa: E402

runner = import_module("fedgen.simulator.run")
runner._batched = lambda: given.seeds > 1


class Impatient(Watch):
    def stop_requested(self) -> bool:
        return given.interrupt


ALGORITHMS["summing"] = summing
epochs = int(given.algorithm == "summing")
# Partial sharing, so that users have states of their own; seven users are no multiple of two or four.
share = "predictor" if given.algorithm != "summing" else "all"
rounds = 3 if given.seeds == 1 else 2
config = small_config(
    given.algorithm, share=share, users=7, active=5, rounds=rounds, seeds=given.seeds, local_epochs=epochs
)
setup = prepare(config, small_data())
if is_first_host() and not given.folder.exists():
    RunFolder.create(given.folder, config)
wait_for_all("the folder")
try:
    runner.run(setup, folder=(RunFolder if is_first_host() else FollowedFolder)(given.folder), watch=Impatient())
except runner.Interrupted:
    print("interrupted", flush=True)
else:
    held = {shard.data.shape[0] for shard in setup.data.x.addressable_shards}
    print(f"holds {min(held)} to {max(held)} of {len(small_data().y_train)} samples", flush=True)
