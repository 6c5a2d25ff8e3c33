"""An ordinary PyTorch module, trained by FedGen; its weights come back to it.

Needs the extra `torch`.
"""

from torch import nn

import fedgen

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 7 * 7, 32), nn.ReLU(), nn.Dropout(0.2),
    nn.Linear(32, 10),
)  # fmt: skip
model = fedgen.from_torch(net, sample=(1, 28, 28))
result = fedgen.simulate("fedavg", data="mnist", model=model, rounds=10, eval_every=10, lr=0.1)
net.load_state_dict(model.state_dict(*result.model().network))
print(result["results"][0]["accuracy"])
