"""A table of numbers: which machines will need repair, learned across three plants whose machines differ.

Each row has a plant, so the plants are the users. Needs `pip install equinox`.
"""

import equinox as eqx
import numpy as np

import fedgen

COLUMNS = ["hours", "temperature", "vibration", "load", "age"]
rng = np.random.default_rng(0)


def machines(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of measurements, whether the machine needed repair, and its plant."""
    plant = rng.integers(0, 3, count)
    hours, age = rng.gamma(2, 1500, count), rng.integers(0, 15, count)
    temperature = 60 + 8 * plant + 6 * rng.normal(size=count)  # plants are not equally warm,
    load = rng.beta(2, 2 + plant, count)  # nor equally busy
    vibration = 0.5 + 2 * load + 0.1 * age + 0.3 * rng.normal(size=count)
    strain = (hours / 3000 - 1) + (vibration - 2) + np.maximum(temperature - 75, 0) / 5 + 0.5 * rng.normal(size=count)
    table = np.column_stack([hours, temperature, vibration, load, age])
    return table, (strain > 0.5).astype(int), plant


table, repair, plant = machines(4000)
mean, spread = table.mean(axis=0), table.std(axis=0)  # columns of one size: hours would drown the others
x = ((table - mean) / spread).astype(np.float32)
data = fedgen.from_arrays(x[:3000], repair[:3000], x[3000:], repair[3000:], name="machines", user_train=plant[:3000])


def network(key):
    return eqx.nn.MLP(len(COLUMNS), 2, width_size=32, depth=2, key=key)


model = fedgen.from_equinox(network, sample=(len(COLUMNS),))
settings = {"partition": "natural", "users": 3, "active": 3, "train_fraction": 1.0, "rounds": 40, "lr": 0.1}
summary = fedgen.simulate("fedavg", data=data, model=model, **settings)
print(round(summary["results"][0]["accuracy"], 1))
