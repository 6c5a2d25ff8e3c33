"""`fedgen.simulate` where JAX is set up otherwise, and with arguments of a wrong kind."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import fedgen
from helpers import SMALL, blobs, small_data

OPTIONS = {key: value for key, value in SMALL.items() if "." in key}
SETTINGS = {key: value for key, value in SMALL.items() if "." not in key and key not in ("dataset", "model")}


def test_double_precision_changes_nothing() -> None:
    def curve() -> list:
        arguments = {"data": small_data(), "model": "mlp", "options": OPTIONS, **SETTINGS, "rounds": 1}
        return fedgen.simulate("fedgen", **arguments)["results"][0]["curve"]

    plain = curve()
    with jax.enable_x64(True):
        assert curve() == plain
        assert jnp.zeros(()).dtype == jnp.float64, "the caller's setting is as it was"


def test_tuned_values_for_other_data_or_numbers_of_steps_are_warned_of() -> None:
    settings = {**SETTINGS, "preset": "tuned", "local_steps": 1, "callbacks": 5}  # which ends it before the run
    with (
        pytest.warns(UserWarning, match="feddyn had no search on blobs: what was chosen on mnist is taken"),
        pytest.warns(UserWarning, match="feddyn: the values were chosen for 20 local steps, and with 1 may learn"),
        pytest.raises(fedgen.FedgenError, match="callbacks"),
    ):
        fedgen.simulate("feddyn", data=small_data(), model="mlp", **settings)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"data": (*blobs(60), *blobs(20))}, r"data is a tuple; .* fedgen.from_arrays\(x_train, y_train"),
        ({"data": blobs(60)[0]}, r"data is a ndarray; .*from_arrays"),
        ({"data": Path("absent.npz")}, r"absent\.npz"),
        ({"data": small_data(), "model": "cnnn"}, "cnnn"),
        ({"data": small_data(), "model": "mlp", "callbacks": 5}, "callbacks is a function of an evaluation.s record"),
        ({"data": small_data(), "model": object}, r"as the class object; give the network, object\(\.\.\.\)"),
        ({"data": small_data(), "model": 5}, r"a model is given as a int; it must be a fedgen\.Model"),
    ],
)
def test_arguments_of_a_wrong_kind_are_a_sentence(argument: dict, message: str) -> None:
    with pytest.raises(fedgen.FedgenError, match=message):
        fedgen.simulate("fedavg", **argument, **SETTINGS)
