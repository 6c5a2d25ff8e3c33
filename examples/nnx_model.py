"""A Flax nnx network that starts anew with each seed, trained by FedGen. Needs `pip install flax`."""

from flax import nnx

import fedgen


def network(key):
    rngs = nnx.Rngs(key)
    hidden = [nnx.Linear(784, 64, rngs=rngs), nnx.BatchNorm(64, rngs=rngs), nnx.relu, nnx.Linear(64, 16, rngs=rngs)]
    return nnx.Sequential(lambda x: x.reshape(len(x), -1), *hidden, nnx.relu, nnx.Linear(16, 10, rngs=rngs))


print(fedgen.simulate("fedgen", model=network, rounds=20)["results"][0]["accuracy"])
