# %% [markdown]
# # Privacy and robustness
#
# Data stays with its user, but what a user sends still says something about it; and a user can send anything. This page
# adds noise against the first and a bound and robust averages against the second, and shows what each costs.

# %% [markdown]
# ## What is sent
#
# FedGen's users send label counts beside their model. These show directly who has which classes. Partial sharing sends
# fewer parameters; it reveals less, not nothing.
#
# ## Noise, and what it promises
#
# With `dp_clip` and `dp_noise` each user shortens its update to a norm and adds Gaussian noise before sending. The
# summary has the (ε, δ) of the user that was asked most often: how much anyone, the server included, can learn about
# whether that user's whole data was there. (The extra `privacy` has the accountant.)

# %% alt="Accuracy over ε: 87 percent without noise, 84 with little of it, 75 at the smallest ε."
import matplotlib.pyplot as plt

import fedgen

# Keeps compiled programs: the runs below differ in numbers, not in their program.
fedgen.use_machine_well()
common = {
    "model": "mlp",
    "options": {"model.hidden": 32, "model.latent": 16},
    "alpha": 1.0,
    "users": 20,
    "active": 10,
    "rounds": 15,
    "eval_every": 15,
    "lr": 0.1,
    "progress": False,
}
rows = []
for noise in (0.0, 0.05, 0.2):
    private = {"dp_clip": 0.5, "dp_noise": noise} if noise else {}
    (row,) = fedgen.simulate("fedavg", **common, **private)["results"]
    epsilon = row["privacy"]["epsilon"] if noise else float("inf")
    rows.append((noise, epsilon, row["accuracy"]))
    print(f"noise {noise:4}: ε {epsilon:8.0f}, accuracy {row['accuracy']:.1f} %")

figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(
    [epsilon for _, epsilon, _ in rows[1:]],
    [score for *_, score in rows[1:]],
    "o-",
    color="#17594a",
)
axes.axhline(rows[0][2], color="#a8480c", linestyle="--", label="no noise")
axes.set(
    xscale="log", xlabel="ε (δ = 1e-5), smaller is more private", ylabel="accuracy, %"
)
axes.legend()
plt.show()

# %% [markdown]
# Such an ε is far too large to promise much: protecting *all* data of one of twenty users in a whole model costs more
# than the model is worth. Thousands of users, a shared predictor only, or fewer rounds change that;
# [what it costs](../federation.md#privacy) has measurements of a shared predictor.
#
# ## A user that attacks
#
# The attacker below sends the reverse of what it learned, five times as long. An algorithm sees users by their uploads
# only, so an attack is a small wrapper: here users 0 to 2 of ten.

# %%
import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import fedavg


def attacked(task, federation, *, attackers: int = 3):
    """FedAvg whose first users send their updates reversed and five times as long."""
    base = fedavg(task, federation)

    def server_update(server, uploads, round):
        bad = round.cohort < attackers  # [active]

        def reversed_(sent, start):
            worse = start - 5 * (sent - start)
            return jnp.where(bad.reshape(-1, *[1] * (sent.ndim - 1)), worse, sent)

        params = jax.tree.map(reversed_, uploads.params, server.params)
        return base.server_update(server, uploads._replace(params=params), round)

    return base._replace(server_update=server_update)


fedgen.ALGORITHMS["attacked"] = attacked

# %% [markdown]
# By default an update that is longer than twice the median of its round is shortened to that (`max_update`). Against
# more than one attacker in ten there are robust averages (`aggregation`). A run that diverged is drawn as 0.

# %% alt="Bars of the accuracy under attack: none without a defence, a quarter with the default bound, nearly all with Multi-Krum."
defences = {
    "no defence": {"max_update": 0},
    "default bound": {},
    "multi-krum": {"aggregation": "multi-krum", "trim": 0.3},
}
(honest,) = fedgen.simulate("fedavg", **common | {"users": 10})["results"]
scores = {"nobody attacks": honest["accuracy"]}
for name, settings in defences.items():
    (row,) = fedgen.simulate("attacked", **common | {"users": 10}, **settings)[
        "results"
    ]
    scores[name] = row["accuracy"] if row["accuracy"] is not None else 0.0

figure, axes = plt.subplots(figsize=(7, 2.6))
bars = axes.barh(
    list(scores)[::-1], list(scores.values())[::-1], color=["#17594a"] * 3 + ["#777777"]
)
axes.bar_label(bars, fmt="%.1f", padding=3)
axes.set(
    xlabel="test accuracy after 15 rounds, %",
    xlim=(0, 105),
    title="Three of ten users attack",
)
plt.show()

# %% [markdown]
# ## Next
#
# [Attacks, and what they cost](../attacks.md) measures more attacks, against every defence. What a federation does with
# impossible messages, and which threats remain, is in [federation](../federation.md#when-sites-misbehave) and
# [security](../develop/security.md).
