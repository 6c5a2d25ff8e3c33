"""A client in a separate process: it has the configurations, its own data and the broadcasts, and nothing else."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import read_toml, resolve
from fedgen.core.client import train_client
from fedgen.core.recipe import Shard
from fedgen.core.streams import stream
from fedgen.data.dataset import Dataset
from fedgen.runs.checkpoint import load_tree, save_tree
from fedgen.runs.task import federation_of, task_of


def train(folder: Path, user: int) -> None:
    config = resolve(read_toml(folder / "config.toml"), own={"dataset"})
    (name,) = config.algorithms
    own = np.load(folder / f"user{user}.npz")
    data = Dataset("blobs", own["x"], own["y"], own["x"][:0], own["y"][:0], 4)
    task = task_of(config, None, data, proxy_samples=1)
    algorithm, federation = build(ALGORITHMS[name], task, federation_of(config), config.of(name))
    seed = jax.random.key(config.seed)
    key = stream(seed, "model")
    like = jax.eval_shape(lambda k: algorithm.broadcast(algorithm.server_init(k), jnp.int32(0)), key)
    broadcast = load_tree(folder / "broadcast.safetensors", like)
    size = len(own["y"])
    counts = np.bincount(own["y"], minlength=task.classes)
    shard = Shard(*map(jnp.asarray, (own["x"], own["y"], np.arange(size), 0, size, counts)))
    trained = jax.jit(
        lambda b, c: train_client(
            algorithm, task, federation, b, c, shard, jnp.int32(0), jnp.int32(user), seed, largest=size
        )
    )(broadcast, algorithm.client_init(key))
    save_tree(folder / f"upload{user}.safetensors", trained.upload, {})


for folder, users in json.loads(sys.argv[1]).items():
    for user in users:
        train(Path(folder), user)
