"""What cannot fit into memory is refused from its shapes, and what shows only on the way is a sentence, too."""

import jax
import jax.numpy as jnp
import pytest

from fedgen.errors import FedgenError
from fedgen.simulator import memory
from fedgen.simulator.memory import device_memory, machine_memory, memory_told
from helpers import small_setup

# The small MLP: 64 inputs, 12 and 6 hidden ones, 4 classes; float32.
MODEL = 4 * (64 * 12 + 12 + 12 * 6 + 6 + 6 * 4 + 4)
# FedAvg with 3 active users: the server's model, 3 messages, a user's model and its gradient.
STATES = MODEL * (1 + 3 + 2)
BATCHES = 3 * 8 * (4 + 4) + 8 * 64 * 4  # rows and labels of 3 mini-batches of 8, and the samples of one


def test_the_least_memory_is_that_of_the_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_memory", lambda: STATES + BATCHES)
    setup = small_setup("fedavg")
    monkeypatch.setattr(memory, "device_memory", lambda: STATES + BATCHES - 1)
    with pytest.raises(FedgenError, match=r"a model of 886 parameters, 6 users and 3 of them active"):
        setup.check_size()
    monkeypatch.setattr(memory, "device_memory", lambda: 0)  # not known
    setup.check_size()


def test_what_users_keep_counts_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_memory", lambda: STATES + BATCHES + 6 * MODEL - 1)
    with pytest.raises(FedgenError, match="ditto cannot fit"):
        small_setup("ditto")  # each user keeps a model
    small_setup("fedavg")


def test_epochs_have_as_many_mini_batches_as_the_largest_user(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = small_setup("fedavg", local_epochs=2)
    steps = 2 * -(-setup.largest // 8)
    monkeypatch.setattr(memory, "device_memory", lambda: STATES + steps * 8 * 8 + 8 * 64 * 4)
    setup.check_size()
    monkeypatch.setattr(memory, "device_memory", lambda: STATES + steps * 8 * 8 + 8 * 64 * 4 - 1)
    with pytest.raises(FedgenError, match="cannot fit"):
        setup.check_size()


def test_the_machine_has_memory_and_a_container_may_have_less(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine_memory()
    assert 2**28 < whole < 2**50
    assert device_memory() > 0
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CONTAINER_LIMITS", (str(tmp_path / "absent"), str(limit)))
    for text, expected in (("max\n", machine_memory()), ("1000000\n", 1_000_000)):
        limit.write_text(text)
        assert machine_memory() == expected


def test_an_exhausted_device_is_a_sentence_and_other_errors_stay() -> None:
    with pytest.raises(FedgenError, match=r"does not fit into memory .* smaller model or batch_size"), memory_told():
        jax.block_until_ready(jax.jit(lambda: jnp.zeros(10**16, jnp.uint8))())
    with pytest.raises(FedgenError, match="does not fit into memory"), memory_told():
        raise MemoryError
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"), memory_told():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
