# %% [markdown]
# # Your own PyTorch network
#
# You have an `nn.Module` and want to know how it trains when the data is spread over many users. It is taken as it is,
# trains in JAX, and its weights come back to it. (The extra `torch`: `pip install '.[torch]'`. For modules of Flax and
# Equinox see [networks](../networks.md).)

# %% [markdown]
# ## The module
#
# Ordinary PyTorch: channels first, BatchNorm, dropout.

# %%
import torch
from torch import nn

import fedgen

net = nn.Sequential(
    nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
    nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
    nn.Flatten(), nn.Linear(8 * 7 * 7, 32), nn.ReLU(), nn.Dropout(0.2),
    nn.Linear(32, 10),
)  # fmt: skip

# %% [markdown]
# ## As a model
#
# `from_torch` exports the module once, with the shape of one sample as the module takes it. Everything before the last
# `nn.Linear` is the extractor; that layer is the predictor, where partial sharing cuts (`predictor="name"` cuts
# elsewhere). Before anything is trained, both compute the same:

# %%
import jax
import jax.numpy as jnp
import numpy as np

model = fedgen.from_torch(net, sample=(1, 28, 28))
params, statistics = model.init(jax.random.key(0))
# Images are stored with channels last.
x = np.random.default_rng(0).normal(size=(4, 28, 28, 1)).astype(np.float32)
z, _ = model.extract(params.extractor, statistics, jnp.asarray(x), False)
ours = model.predict(params.predictor, z)
net.eval()
with torch.no_grad():
    theirs = net(torch.as_tensor(x).permute(0, 3, 1, 2)).numpy()
print(
    "z:",
    z.shape,
    " logits:",
    ours.shape,
    " largest difference:",
    float(np.abs(ours - theirs).max()),
)

# %% [markdown]
# ## Training
#
# A module starts with the weights it has. To start each seed differently, give a function that makes a module instead.

# %% alt="Test accuracy of the PyTorch network over fifteen rounds, rising above eighty percent."
result = fedgen.simulate(
    "fedavg",
    data="mnist",
    model=model,
    alpha=0.5,
    rounds=15,
    eval_every=3,
    active=5,
    lr=0.1,
    progress=False,
)
result

# %% [markdown]
# ## And back
#
# `state_dict` has the trained weights by the names that PyTorch knows.

# %%
net.load_state_dict(model.state_dict(*result.model().network))

mnist = fedgen.DATASETS["mnist"]()
# As the run scales bytes.
images = torch.as_tensor(mnist.x_test[:1000]).permute(0, 3, 1, 2).float() / 127.5 - 1
with torch.no_grad():
    labels = net(images).argmax(1).numpy()
print(
    "PyTorch says:",
    labels[:10],
    " accuracy:",
    100 * float((labels == mnist.y_test[:1000]).mean()),
)
print("we say:      ", result.model().predict(mnist.x_test[:10]))

# %% [markdown]
# ## Next
#
# The command takes the same as `--model my_module:build`, a function that returns the module. The sites of a
# [federation](../federation.md#sites-that-differ) may even have networks of different frameworks.
