# %% [markdown]
# # Your own data
#
# Three ways in: arrays, a table in a file, and users that the data itself names. Nothing is unpickled, and nothing is
# filled in or encoded behind your back: what cannot be used is refused with a sentence.

# %% [markdown]
# ## Arrays
#
# `fedgen.from_arrays` takes training and test samples with labels. Bytes are images and are scaled; floating-point
# numbers are taken as they are; labels are numbers from 0 or words. Here: noisy stripes of three kinds.

# %% alt="Three noisy images of eight by eight pixels: horizontal, vertical and diagonal stripes."
import matplotlib.pyplot as plt
import numpy as np

import fedgen


def stripes(samples, seed):
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:8, :8]
    patterns = 200 * np.stack(
        [rows // 2 % 2, columns // 2 % 2, (rows + columns) // 2 % 2]
    )
    labels = rng.integers(0, 3, samples)
    noisy = patterns[labels] + rng.normal(0, 60, (samples, 8, 8))
    return np.clip(noisy, 0, 255).astype(np.uint8)[..., None], labels


names = ["horizontal", "vertical", "diagonal"]
data = fedgen.from_arrays(
    *stripes(600, 0), *stripes(150, 1), name="stripes", class_names=names
)
print(data)

figure, many = plt.subplots(1, 3, figsize=(6, 2))
for axes, kind in zip(many, range(3), strict=True):
    axes.imshow(data.x_train[data.y_train == kind][0][..., 0], cmap="gray")
    axes.set_title(names[kind])
    axes.axis("off")
plt.show()

# %%
small = {"model.hidden": 16, "model.latent": 8}
result = fedgen.simulate(
    "fedavg",
    data=data,
    model="mlp",
    users=6,
    active=3,
    rounds=20,
    lr=0.1,
    progress=False,
    options=small | {"partition.min_samples": 4},
)
print(result)
print([names[label] for label in result.model().predict(stripes(5, 2)[0])])

# %% [markdown]
# ## A table, and users that it names
#
# A CSV file with a line of column names. `label` names the column of labels, `user` the one that says who a row belongs
# to: each station is then a user. Columns are not scaled, so bring them to similar ranges first.

# %%
import csv

rng = np.random.default_rng(0)
species, mean = (
    ["gentoo", "adelie", "chinstrap"],
    np.array([[4.7, 1.5, 2.2], [3.9, 1.8, 1.9], [4.9, 1.8, 2.0]]),
)
with open("measurements.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["bill length", "bill depth", "flipper", "station", "species"])
    for row in range(900):
        station = row % 6
        kind = station % 3 if rng.random() < 0.7 else rng.integers(3)
        table.writerow(
            [
                *rng.normal(mean[kind], 0.15).round(3),
                f"station {station}",
                species[kind],
            ]
        )
print(*open("measurements.csv").read().splitlines()[:4], sep="\n")

# %%
result = fedgen.simulate(
    ["fedavg", "ditto"],
    data="measurements.csv",
    label="species",
    user="station",
    model="mlp",
    users=6,
    active=4,
    rounds=30,
    eval_every=3,
    lr=0.1,
    options=small,
    score="matching",
    out="runs/penguins",
    progress=False,
)
result.to_pandas("results")[
    ["algorithm", "accuracy", "accuracy_users", "accuracy_matching"]
].round(1)

# %% [markdown]
# Ditto gives each station a model of its own; `accuracy_matching` weights each station's species as the station sees
# them. The run folder has kept everything, also what the columns are called:

# %% alt="Accuracy on each station's own mix of species, over thirty rounds, for FedAvg and Ditto."
run = fedgen.load("runs/penguins")
print(run, run.class_names)
result

# %% [markdown]
# ## What is refused
#
# A missing value has no honest default, so it is not given one:

# %%
with open("measurements.csv", "a") as file:
    file.write("4.1,,2.0,station 1,adelie\n")
try:
    fedgen.simulate(
        "fedavg",
        data="measurements.csv",
        label="species",
        user="station",
        model="mlp",
        users=6,
        active=4,
    )
except fedgen.FedgenError as error:
    print(error)

# %% [markdown]
# ## Next
#
# [All formats](../data.md): Parquet, folders of images, what Hugging Face's `datasets` saves, idx and npz files, text as
# token numbers; and the ways to divide data among users.
