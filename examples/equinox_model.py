"""An Equinox network with BatchNorm, trained by FedGen. Needs `pip install equinox`."""

import equinox as eqx
import jax

import fedgen


def network(key):
    first, second, last = jax.random.split(key, 3)
    norm = eqx.nn.BatchNorm(64, axis_name="batch", momentum=0.9, mode="batch")
    hidden = [eqx.nn.Linear(784, 64, key=first), norm, eqx.nn.Lambda(jax.nn.relu), eqx.nn.Linear(64, 16, key=second)]
    return eqx.nn.Sequential([eqx.nn.Lambda(jax.numpy.ravel), *hidden, eqx.nn.Linear(16, 10, key=last)])


model = fedgen.from_equinox(network, sample=(28, 28, 1))
print(fedgen.simulate("fedgen", model=model, rounds=20)["results"][0]["accuracy"])
