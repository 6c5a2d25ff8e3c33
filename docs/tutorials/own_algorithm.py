# %% [markdown]
# # Your own algorithm
#
# SCAFFOLD (Karimireddy et al. 2020) from an empty file: state at the server, state at the users, a message in each
# direction and a changed gradient. It is the most that an algorithm can need, and takes some thirty lines.

# %% [markdown]
# ## The idea
#
# A user's own gradient pulls its model away from the others'. SCAFFOLD estimates both pulls: c_k is the mean gradient of
# user k, c that of all users. Each local step goes along `g − c_k + c` in place of `g`. After K steps of size η from x
# to y_k, the user has a new estimate for free: `c_k − c + (x − y_k) / (K η)`. It sends the change; the server adds the
# mean change, times the share of users that took part.
#
# ## What FedAvg already does
#
# Averaging, partial sharing, BatchNorm statistics and bounds on updates are FedAvg's. `wrap` takes FedAvg and adds to
# it. What an algorithm keeps or sends beside FedAvg's part is its *own*: `local.received.own`, `local.client.own`.

# %%
from typing import NamedTuple

import jax
import jax.numpy as jnp

import fedgen
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import With, wrap


class Control(NamedTuple):
    # c at the server and in a broadcast, c_k at a user; in an upload c + the change of c_k
    control: fedgen.Params


def my_scaffold(task, federation):
    """FedAvg with control variates."""

    def zeros(key):  # both c and every c_k begin at 0, in the shape of the parameters
        return Control(jax.tree.map(jnp.zeros_like, task.model.init(key)[0]))

    def local_gradient(gradient, params, local, step):
        c, c_k = local.received.own.control, local.client.own.control
        return jax.tree.map(lambda g, c, c_k: g - c_k + c, gradient, c, c_k)

    def local_finish(params, memo, local):
        c, c_k = local.received.own.control, local.client.own.control
        way = local.steps * local.rate  # K eta
        # The mean gradient on the way, which is c plus the change of c_k.
        mean = jax.tree.map(lambda x, y: (x - y) / way, local.start, params)
        new = jax.tree.map(lambda c_k, c, m: c_k - c + m, c_k, c, mean)
        return Control(mean), Control(new)  # what is sent, and what is kept

    def server_update(server, average, uploads, round):
        part = len(round.cohort) / federation.users
        # Uploads have a leading axis, with one entry for each active user.
        mean = jax.tree.map(lambda a: jnp.mean(a, axis=0), uploads.own)
        c = jax.tree.map(lambda c, m: c + part * (m - c), server.own, mean)
        return With(average, c), {}  # FedAvg's new state with ours, no further metrics

    return wrap(
        fedavg(task, federation),
        server_init=zeros,
        client_init=zeros,
        broadcast=lambda own, round: own,
        local_gradient=local_gradient,
        local_finish=local_finish,
        server_update=server_update,
    )


fedgen.ALGORITHMS["my-scaffold"] = my_scaffold

# %% [markdown]
# That is all. The functions are pure and see only what their side may see: the type of `local` has no way to the
# server's state, and the server gets nothing but uploads.
#
# ## Is it right?
#
# The package has SCAFFOLD, too. On the same users, with the same draws, both must agree. (`max_update=0` switches off
# the bound on the length of updates, which the built-in one applies to control variates as well.)

# %% alt="Test accuracy of FedAvg, the built-in SCAFFOLD and ours over 24 rounds; the two SCAFFOLDs lie on one line."
result = fedgen.simulate(
    ["fedavg", "scaffold", "my-scaffold"],
    model="mlp",
    options={"model.hidden": 32, "model.latent": 16},
    alpha=0.1,
    users=10,
    active=5,
    rounds=24,
    eval_every=2,
    lr=0.05,
    max_update=0,
    progress=False,
)
images = fedgen.DATASETS["mnist"]().x_test[:100]
theirs, ours = (
    result.model(name).logits(images) for name in ("scaffold", "my-scaffold")
)
print("largest difference of logits:", float(abs(theirs - ours).max()))
result

# %%
assert float(abs(theirs - ours).max()) < 1e-3  # this page is run whenever it is built

# %% [markdown]
# ## As a file of its own
#
# Saved as `mine.py`, it needs no registration: `fedgen run --algorithm mine:my_scaffold`. Keyword-only arguments with
# defaults would be its options (`--set mine:my_scaffold.name=value`). The same file runs in a
# [federation](../federation.md).
#
# The built-in [scaffold.py](../../src/fedgen/algorithms/scaffold.py) adds what a finished algorithm has: partial
# sharing, robust aggregation of the control variates, and a rate of 0. [Write an algorithm](../new-algorithm.md) lists
# everything that an algorithm can change, [the contract](../reference/contract.md) every argument with its shape.
