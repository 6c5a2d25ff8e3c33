"""A CSV file of your own: a column of labels, one of natural users, and numbers.

The same from the command line:

    fedgen run --dataset measurements.csv --label species --user station --model mlp --users 6 --active 4
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

import fedgen

# Three species, measured at six stations, each of which sees mostly one of them.
rng = np.random.default_rng(0)
species, mean = ["gentoo", "adelie", "chinstrap"], np.array([[4.7, 1.5, 2.2], [3.9, 1.8, 1.9], [4.9, 1.8, 2.0]])
path = Path(tempfile.mkdtemp()) / "measurements.csv"
with path.open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["bill length", "bill depth", "flipper", "station", "species"])
    for row in range(900):
        station = row % 6
        kind = station % 3 if rng.random() < 0.7 else rng.integers(3)
        table.writerow([*rng.normal(mean[kind], 0.15).round(3), f"station {station}", species[kind]])

summary = fedgen.simulate(
    ["fedgen", "fedavg"],
    data=str(path),
    label="species",
    user="station",  # each station is a user; without it the rows are divided among as many users as you like
    model="mlp",
    users=6,
    active=4,
    rounds=30,
    lr=0.1,
)
print(summary["class_names"])
print({row["algorithm"]: row["accuracy"] for row in summary["results"]})
