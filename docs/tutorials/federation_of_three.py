# %% [markdown]
# # A federation of three sites
#
# From a simulation to the real thing: a server and three sites as separate processes, each with its own folder and
# data, over TLS with registered keys. Here all of them run on one machine, over the loopback interface; the last section
# says what changes on four. (The extra `flower`: `pip install '.[flower]'`.)

# %% [markdown]
# ## The simulation
#
# First the experiment as a simulation. Three users, who are the three sites later.

# %%
import fedgen

settings = {
    "alpha": 0.5,
    "rounds": 3,
    "eval_every": 1,
    "model": "mlp",
    "lr": 0.1,
    "seed": 7,
}
options = {"model.hidden": 16, "model.latent": 8}
simulated = fedgen.simulate(
    "fedavg", users=3, active=3, options=options, progress=False, **settings
)
print(simulated)

# %% [markdown]
# ## The federation
#
# `fedgen federate demo` makes a certificate authority and keys, writes a folder for the server and for each site with
# this site's samples and nothing else, starts every process, runs, and stops them. Then it compares the server's state
# after each round with the simulator's.

# %%
import subprocess
import sys

command = """
    federate demo --algorithm fedavg --sites 3 --rounds 3 --tls --seed 7 --out three
    --alpha 0.5 --lr 0.1 --model mlp --set model.hidden=16 --set model.latent=8
"""
arguments = [sys.executable, "-m", "fedgen", *command.split()]
done = subprocess.run(
    arguments, capture_output=True, text=True, timeout=240, check=False
)
assert done.returncode == 0, done.stderr
compared = done.stdout[done.stdout.index("Federation and simulator") :]
print(compared[: compared.index("Run folder")])

# %% [markdown]
# The differences are those of rounding, or none: simulator and sites draw the same cohorts and mini-batches, and run the
# same functions. What was simulated is what will be deployed.
#
# ## What each of them has

# %%
from pathlib import Path

for place in ("server", "sites/site-0"):
    print(place, sorted(path.name for path in Path("three", place).iterdir()))

# %% [markdown]
# A site's log has a line for each thing that it was asked, and for what it sent; nothing else left its folder. (The
# server has such a log, too.)

# %%
import json

events = [
    json.loads(line)
    for line in Path("three/sites/site-0/log.jsonl").read_text().splitlines()
]
for event in events[:8]:
    print({key: value for key, value in event.items() if key != "time"})

# %% [markdown]
# ## The outcome
#
# The server's run folder is like a simulation's: load it, draw it, predict with it.

# %% alt="Test accuracy over three rounds: the federation's points lie on the simulation's line."
import matplotlib.pyplot as plt

run = fedgen.load("three/server/runs/run")
figure, axes = plt.subplots(figsize=(6, 3))
for name, records, style in (
    ("simulation", simulated.metrics, "-"),
    ("federation", run.metrics, "o"),
):
    axes.plot(
        [r["round"] for r in records],
        [r["accuracy"] for r in records],
        style,
        label=name,
        color="#17594a",
    )
axes.set(xlabel="round", ylabel="test accuracy, %", xticks=[1, 2, 3])
axes.legend()
plt.show()
print(
    run.model().predict(fedgen.DATASETS["mnist"]().x_test[:10]),
    "of",
    fedgen.DATASETS["mnist"]().y_test[:10],
)

# %% [markdown]
# ## On four machines
#
# `fedgen federate init` writes the same folders for real sites, whose data is already there:
#
# ```
# fedgen federate init federation --site north --site south --site west --host fed.example.org \
#   --classes 10 --sample 28,28,1
# ```
#
# The server runs `server/superlink.sh`, `server/register.sh` once, and `server/run.sh`; each site gets its folder over a
# trusted channel, puts its data where `site.toml` says, checks everything with `fedgen federate doctor .` and runs
# `./start.sh`. Each step, and what happens when a site fails or misbehaves: [federation](../federation.md).
