"""`fedgen.simulate` in a process that has set JAX up otherwise, and with arguments of a wrong kind."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedgen
from helpers import SMALL, blobs, small_data

SETTINGS = {key: value for key, value in SMALL.items() if "." not in key and key not in ("dataset", "model")}

CODE = """
import sys
import jax
sys.path.insert(0, sys.argv[1])
jax.config.update("jax_enable_x64", sys.argv[2] == "64")
import fedgen
from helpers import SMALL, small_data
settings = {key: value for key, value in SMALL.items() if "." not in key and key != "dataset"}
options = {key: value for key, value in SMALL.items() if "." in key}
summary = fedgen.simulate("fedgen", data=small_data(), options=options, **settings)
print(summary["results"][0]["curve"], jax.numpy.zeros(()).dtype)
"""


def test_double_precision_changes_nothing() -> None:
    place = str(Path(__file__).parent)
    said = []
    for bits in ("32", "64"):
        command = [sys.executable, "-c", CODE, place, bits]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split(" float"))
    assert said[0][0] == said[1][0]
    assert [bits.strip() for _, bits in said] == ["32", "64"], "and the caller's setting is as it was"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"data": (*blobs(60), *blobs(20))}, r"data is a tuple; .* fedgen.from_arrays\(x_train, y_train"),
        ({"data": blobs(60)[0]}, r"data is a ndarray; .* from_arrays"),
        ({"data": Path("absent.npz")}, r"absent\.npz"),
        ({"data": small_data(), "model": "cnnn"}, "cnnn"),
        ({"data": small_data(), "model": object}, r"model is a type; give a name, or a fedgen\.Model"),
    ],
)
def test_arguments_of_a_wrong_kind_are_a_sentence(argument: dict, message: str) -> None:
    with pytest.raises(fedgen.FedgenError, match=message):
        fedgen.simulate("fedavg", **argument, **SETTINGS)
