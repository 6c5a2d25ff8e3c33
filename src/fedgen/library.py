"""The simulator as one function call, for use from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.config import resolve
from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder
from fedgen.simulator.run import run
from fedgen.simulator.setup import prepare


def simulate(
    algorithms: str | Sequence[str] = "fedgen",
    *,
    data: Dataset | str | Path | None = None,
    model: Any = None,
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Run algorithms and give their summary (the content of a run folder's summary.json).

    `settings` are those of the command line (`rounds=50`, `preset="reference"` ...), `options` those of one
    algorithm, the partition or the model (`{"fedgen.beta": 1.0}`). `data` and `model` bring one's own arrays
    (`fedgen.from_arrays`) and network (`fedgen.Model`, or a module of Flax, Equinox or PyTorch), or name them as the
    command does (`data="mnist"`, `model="mlp"`, `model="my.module:function"`). With `out`, a run folder is written
    there.
    """
    layer = {"algorithms": [algorithms] if isinstance(algorithms, str) else list(algorithms), **settings}
    own = set()
    if isinstance(data, str | Path):
        layer["dataset"], data = str(data), None
    elif data is not None:
        if not isinstance(data, Dataset):
            raise FedgenError(
                f"data is a {type(data).__name__}; give a name, a path, or what fedgen.from_arrays makes of arrays:"
                " fedgen.from_arrays(x_train, y_train, x_test, y_test)"
            )
        layer["dataset"] = data.name
        own.add("dataset")
    if isinstance(model, str):
        layer["model"], model = model, None
    elif model is not None:
        layer["model"] = "own"
        own.add("model")
    config = resolve(layer, options or {}, own=own)
    setup = prepare(config, data, model)
    if out is None:
        return run(setup)
    with RunFolder.create(Path(out), config) as folder:
        return run(setup, folder=folder)
