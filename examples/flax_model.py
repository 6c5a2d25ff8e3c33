"""A Flax network with BatchNorm and dropout, trained by FedGen. Needs `pip install flax`."""

import flax.linen as nn

import fedgen


class Network(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(64)(x.reshape(len(x), -1))
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(16)(x)))
        return nn.Dense(10, name="head")(x)


model = fedgen.from_flax(Network(), "head", sample=(28, 28, 1))
print(fedgen.simulate("fedgen", model=model, rounds=20)["results"][0]["accuracy"])
