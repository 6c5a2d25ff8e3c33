"""An ordinary PyTorch module, trained by FedGen; its weights come back to it.

Needs the extra `torch`.
"""

import tempfile
from pathlib import Path

import jax
import torch
from torch import nn

import fedgen
from fedgen.algorithms.fedavg import Parts
from fedgen.runs.checkpoint import load_tree

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 7 * 7, 32), nn.ReLU(), nn.Dropout(0.2),
    nn.Linear(32, 10),
)  # fmt: skip
model = fedgen.from_torch(net, sample=(1, 28, 28))
with tempfile.TemporaryDirectory() as folder:
    run = Path(folder, "run")
    summary = fedgen.simulate("fedavg", data="mnist", model=model, rounds=20, eval_every=20, lr=0.1, out=run)
    trained = load_tree(run / "models/fedavg-seed0.safetensors", Parts(*jax.eval_shape(model.init, jax.random.key(0))))
net.load_state_dict({name: torch.as_tensor(a) for name, a in model.state_dict(*trained).items()})
print(summary["results"][0]["accuracy"])
