"""Augmentation against plain NumPy with the same draws; it changes training where it should, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedgen
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import wrap
from fedgen.core.augment import augmented
from fedgen.core.client import train_client
from fedgen.core.contract import Federation, Task
from fedgen.core.recipe import Shard
from fedgen.errors import FedgenError
from helpers import built, play, same_bits, small_setup

KEY = jax.random.key(3)


def by_hand(x: np.ndarray, kinds: tuple[str, ...], draws: np.ndarray) -> np.ndarray:
    """The same, a pixel at a time."""
    out = np.empty_like(x)
    height, width = x.shape[1:3]
    for sample, (mirror, down, right, part, top, left) in enumerate(draws.T):
        length = 0.75 + 0.25 * part if "crop" in kinds else 1.0
        for i in range(height):
            for j in range(width):
                column = width - 1 - j if "flip" in kinds and mirror < 0.5 else j
                place = []
                for at, side, shift, start in ((i, height, down, top), (column, width, right, left)):
                    where = start * (1 - length) * (side - 1) + length * at
                    if "shift" in kinds:
                        most = max(side // 8, 1)
                        where += int(shift * (2 * most + 1)) - most
                    place.append(min(max(where, 0), side - 1))
                (r, c), (low, left_of) = place, (int(place[0]), int(place[1]))
                high, right_of = min(low + 1, height - 1), min(left_of + 1, width - 1)
                upper = (1 - (c - left_of)) * x[sample, low, left_of] + (c - left_of) * x[sample, low, right_of]
                lower = (1 - (c - left_of)) * x[sample, high, left_of] + (c - left_of) * x[sample, high, right_of]
                out[sample, i, j] = (1 - (r - low)) * upper + (r - low) * lower
    return out


@pytest.mark.parametrize(
    "kinds", [("shift",), ("flip",), ("crop",), ("flip", "shift"), ("shift", "flip", "crop")], ids="+".join
)
@pytest.mark.parametrize("shape", [(17, 16, 3), (9, 24)])
def test_like_numpy(kinds: tuple[str, ...], shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(12, *shape)).astype(np.float32)
    got = np.asarray(jax.jit(lambda x, key: augmented(x, Federation(augment=kinds), key))(x, KEY))
    draws = np.asarray(jax.random.uniform(KEY, (6, 12)), np.float64)
    exact = "crop" not in kinds
    np.testing.assert_allclose(got, by_hand(x, kinds, draws), atol=0 if exact else 2e-5, rtol=0)
    assert not np.array_equal(got, x)


def test_every_shift_and_both_sides_occur() -> None:
    x = np.broadcast_to(np.arange(16, dtype=np.float32), (400, 16, 16))
    shifted = np.asarray(augmented(jnp.asarray(x), Federation(augment=("shift",)), KEY))
    assert set(shifted[:, 5, 8] - 8) == {-2, -1, 0, 1, 2}
    mirrored = np.asarray(augmented(jnp.asarray(x), Federation(augment=("flip",)), KEY))
    assert 150 < np.sum(mirrored[:, 0, 0] == 15) < 250


def test_what_is_no_image_is_refused() -> None:
    x, y = np.zeros((40, 5), np.float32), np.arange(40) % 2
    data, settings = fedgen.from_arrays(x, y, x, y), {"model": "mlp", "users": 2, "active": 1, "partition": "iid"}
    with pytest.raises(FedgenError, match=r"augment flip is for images .* of shape \(5,\); leave it out"):
        fedgen.simulate("fedavg", data=data, augment=["flip"], **settings)
    with pytest.raises(FedgenError, match=r"augment must be a list, as \['flip'\], not 'flip'"):
        fedgen.simulate("fedavg", augment="flip")
    with pytest.raises(FedgenError, match="augment must be 'shift', 'flip' or 'crop', not 'rotate'"):
        fedgen.simulate("fedavg", augment=["rotate"])


@pytest.mark.slow
def test_training_sees_augmented_batches_once_and_the_same_in_ahead() -> None:
    """A user's loss and what was computed ahead for it see one augmented batch; passes over all data see no such."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    whole: list[np.ndarray] = []

    def ahead(batch, local, step):  # type: ignore[no-untyped-def]
        return batch.x

    def local_loss(loss, params, batch, local, step):  # type: ignore[no-untyped-def]
        jax.debug.callback(lambda a, b: seen.append((np.array(a), np.array(b))), batch.x, step.ahead)
        return loss

    def before(params, memo, batch, local):  # type: ignore[no-untyped-def]
        jax.debug.callback(lambda a: whole.append(np.array(a)), batch.x)
        return jnp.sum(batch.x)

    setup, _ = built("fedavg")
    federation = Federation(users=1, local_steps=2, batch_size=4, augment=("shift", "flip"))
    algorithm = wrap(fedavg(setup.task, federation), ahead=ahead, local_loss=local_loss, before=before)
    x = np.random.default_rng(1).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
    shard = Shard(*map(jnp.asarray, (x, np.arange(6) % 4, np.arange(6), 0, 6, np.array([2, 2, 1, 1]))))
    task: Task = setup.task
    server = algorithm.server_init(KEY)
    trained = train_client(
        algorithm, task, federation, algorithm.broadcast(server, jnp.int32(0)), algorithm.client_init(KEY), shard,
        jnp.int32(0), jnp.int32(0), KEY, largest=6,
    )  # fmt: skip
    jax.block_until_ready(trained)
    jax.effects_barrier()
    plain = np.asarray(task.prepare(jnp.asarray(x)))
    assert len(seen) >= 2
    for used, ahead_of in seen:
        np.testing.assert_allclose(used, ahead_of, atol=1e-6)  # computed in two places, each rounded as it is compiled
    untouched = sum(any(np.allclose(image, one, atol=1e-6) for one in plain) for used, _ in seen for image in used)
    assert untouched < sum(len(used) for used, _ in seen), "most are shifted or mirrored"
    levels = [{np.round(127.5 * (image + 1)).astype(int).tobytes() for image in images} for images in (whole[0], plain)]
    assert levels[0] == levels[1], "a pass over all data sees it as it is"


def test_it_changes_training_and_nothing_else_does() -> None:
    plain, none, flipped = (
        play(small_setup("fedavg", **settings), 1).server
        for settings in ({}, {"augment": []}, {"augment": ["flip", "crop"]})
    )
    assert same_bits(plain, none)
    assert not same_bits(plain, flipped)
