# %% [markdown]
# # A fair sweep
#
# Most gains in the literature shrink when the baseline gets the same care as the new method. A fair comparison tries as
# many settings of each, chooses by samples that are neither trained nor tested on, and looks at the test set once, with
# seeds that nothing was chosen by. `fedgen.sweep` does exactly this.

# %% [markdown]
# ## One call
#
# `over` has values to try, or ranges to draw from. `lr` is for all algorithms, `fedprox.mu` for that one alone. Each gets
# `trials` configurations and the same two seeds.

# %%
import fedgen

found = fedgen.sweep(
    ["fedavg", "fedprox"],
    over={"lr": "0.01..0.5:log", "fedprox.mu": [0.01, 0.1]},
    trials=5,
    seeds=2,
    final_seeds=3,
    rounds=12,
    model="mlp",
    options={"model.hidden": 32, "model.latent": 16},
    local_steps=10,
    alpha=0.1,
)
found

# %% [markdown]
# The table has the best configuration of each algorithm by the held-out samples, its score there, and below what to
# mind: where the best value lies at the end of what was tried, the range was too small.
#
# ## Every configuration

# %%
import pandas

table = pandas.DataFrame(found.table)
table.round(3)

# %% alt="Accuracy on held-out samples over the learning rate, for FedAvg and FedProx: both are best near 0.06 and fall steeply above 0.1."
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(7, 3.2))
for name, marker, colour in (("fedavg", "o", "#17594a"), ("fedprox", "^", "#a8480c")):
    rows = table[table.algorithm == name].sort_values("lr")
    axes.errorbar(
        rows.lr,
        rows["mean"],
        rows["std"],
        marker=marker,
        color=colour,
        label=name,
        capsize=3,
    )
axes.set(
    xscale="log",
    xlabel="learning rate",
    ylabel="held-out accuracy, %",
    title="The response to the learning rate",
)
axes.legend()
plt.show()

# %% [markdown]
# One number for each method would hide this picture. The difference between rates is far larger than that between the
# methods: whoever compares methods at one rate compares rates.
#
# ## The verdict
#
# The best of each, trained with three other seeds and tested on the test set. `diff_to_fedavg` is paired by seed; a
# difference whose interval includes zero is none that these seeds can show.

# %%
pandas.DataFrame(found.final)[
    ["algorithm", "mean", "std", "diff_to_fedavg", "diff_ci95"]
].round(2)

# %% [markdown]
# ## Next
#
# `fedgen sweep` from the shell also writes a report page and `best.toml` for `fedgen run --config`; it resumes, and
# `--method halving` needs an eighth of the rounds: [sweeps](../sweep.md).
