"""Random streams do not touch each other."""

import jax
import numpy as np

from fedgen.core.streams import stream


def test_streams_differ_by_purpose_and_by_every_index() -> None:
    key = jax.random.key(0)
    keys = [stream(key, "a"), stream(key, "b"), stream(key, "a", 0), stream(key, "a", 1), stream(key, "a", 1, 0)]
    keys.append(stream(jax.random.key(1), "a"))
    assert len({tuple(np.asarray(jax.random.key_data(k))) for k in keys}) == len(keys)


def test_a_stream_is_a_function_of_its_arguments_alone() -> None:
    first = stream(jax.random.key(5), "batches", 3, 7)
    stream(jax.random.key(5), "something new", 1)
    again = stream(jax.random.key(5), "batches", 3, 7)
    np.testing.assert_array_equal(jax.random.key_data(first), jax.random.key_data(again))
