"""A client in a process of its own: it has the configuration, its own data and the broadcast, and nothing else."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import read_toml, resolve
from fedgen.core.client import Shard, train_client
from fedgen.core.contract import Federation, Task
from fedgen.core.streams import stream
from fedgen.models import MODELS
from fedgen.simulate.checkpoint import load_tree, save_tree
from fedgen.simulate.setup import normalise

folder, users = Path(sys.argv[1]), json.loads(sys.argv[2])
config = resolve(read_toml(folder / "config.toml"), own={"dataset"})
name = config.algorithms[0]
seed = jax.random.key(config.seed)
for user in users:
    own = np.load(folder / f"user{user}.npz")
    sample = own["x"].shape[1:]
    task = Task(
        MODELS[config.model](sample, 4, **config.of("model")), 4, jax.ShapeDtypeStruct(sample, np.uint8), normalise, 1
    )
    federation = Federation(config.users, config.local_steps, config.batch_size, config.share, config.lr)
    algorithm, federation = build(ALGORITHMS[name], task, federation, config.of(name))
    key = stream(seed, "model")
    like = jax.eval_shape(lambda k: algorithm.broadcast(algorithm.server_init(k), jnp.int32(0)), key)  # noqa: B023
    broadcast = load_tree(folder / "broadcast.safetensors", like)
    rows = jnp.arange(len(own["y"]))
    shard = Shard(jnp.asarray(own["x"]), jnp.asarray(own["y"]), rows, jnp.int32(0), jnp.int32(len(rows)))
    trained = train_client(
        algorithm, task, federation, broadcast, algorithm.client_init(key), shard, jnp.int32(0), jnp.int32(user), seed
    )
    save_tree(folder / f"upload{user}.safetensors", trained.upload, {})
