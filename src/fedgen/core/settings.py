"""The settings that an algorithm sees, each declared once.

`fedgen.config.RunConfig` adds those of data, evaluation and repetition. The options of the command, the commented
configuration of a federation and the table in the docs are all made from these declarations.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

Positive = Annotated[int, Field(ge=1, strict=True)]
WholeNumber = Annotated[int, Field(ge=0, strict=True)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

Headline = Literal["global", "users"]  # whose accuracy an algorithm is judged by
# The groups in which settings are shown, in this order.
PANELS = ("Run", "Data", "Federation", "Local training", "Server", "Privacy", "Evaluation")


def setting(default: Any, panel: str, description: str, *, per_algorithm: bool = False) -> Any:
    """A setting with its default, its group and its help; `per_algorithm` where one algorithm may have another value.

    Floats that may differ between algorithms are arguments of the compiled program (`fedgen.runs.options`).
    """
    assert panel in PANELS, panel
    extra: JsonDict = {"panel": panel, "per_algorithm": per_algorithm}
    return Field(default=default, description=description, json_schema_extra=extra)


class Federation(BaseModel):
    """Who takes part and how a client trains: what all algorithms of a run have in common.

    Within a compiled program the floats among them may be traced values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    users: Positive = setting(20, "Federation", "how many users (in a federation: sites) there are")
    rounds: Positive = setting(200, "Federation", "communication rounds")
    share: Literal["all", "predictor", "extractor"] = setting(
        "all",
        "Federation",
        "what is shared: all; predictor (feature extractors stay with the users); or extractor (predictors do)",
    )

    local_steps: Positive = setting(20, "Local training", "mini-batches a user trains on in a round")
    local_epochs: Annotated[int, Field(ge=0, le=1000, strict=True)] = setting(
        0, "Local training", "passes over a user's data in a round, in place of local_steps (0: local_steps counts)"
    )
    batch_size: Positive = setting(32, "Local training", "samples of a mini-batch")
    lr: Rate = setting(0.01, "Local training", "the users' learning rate", per_algorithm=True)
    lr_schedule: Literal["exponential", "constant", "cosine", "steps"] = setting(
        "exponential",
        "Local training",
        "how the rate changes over the rounds: exponential (times lr_decay after each), constant, cosine (down to"
        " lr_final of it in the last), or steps (times lr_decay at each of lr_milestones)",
        per_algorithm=True,
    )
    lr_decay: Rate = setting(
        1.0,
        "Local training",
        "the factor of the rate after each round, or at each milestone (see lr_schedule)",
        per_algorithm=True,
    )
    lr_final: NotNegative = setting(
        0.0,
        "Local training",
        "the fraction of lr that lr_schedule cosine reaches in the last round",
        per_algorithm=True,
    )
    lr_milestones: tuple[Positive, ...] = setting(
        (),
        "Local training",
        "a round after which lr_schedule steps multiplies the rate by lr_decay",
        per_algorithm=True,
    )
    lr_warmup: WholeNumber = setting(
        0, "Local training", "rounds in which the rate first rises from 0 in equal steps", per_algorithm=True
    )
    optimizer: Literal["sgd", "adam", "adamw"] = setting(
        "sgd", "Local training", "the users' optimiser: sgd, adam or adamw", per_algorithm=True
    )
    momentum: Fraction = setting(0.0, "Local training", "momentum of sgd", per_algorithm=True)
    nesterov: bool = setting(False, "Local training", "whether sgd's momentum is Nesterov's", per_algorithm=True)
    weight_decay: NotNegative = setting(
        0.0,
        "Local training",
        "weight decay of the users' training (sgd, adam: added to the gradient; adamw: decoupled)",
        per_algorithm=True,
    )
    clip_gradient: NotNegative = setting(
        0.0,
        "Local training",
        "maximum norm of a mini-batch's gradient; larger ones are scaled down (0: no limit); 1 where robust aggregation"
        " is asked for and this is not said",
        per_algorithm=True,
    )
    optimizer_state: Literal["fresh", "kept"] = setting(
        "fresh",
        "Local training",
        "whether a user's optimiser starts fresh in each round, or its state (momentum, Adam's moments) is kept",
        per_algorithm=True,
    )
    precision: Literal["float32", "tf32", "bfloat16"] = setting(
        "float32",
        "Local training",
        "arithmetic of the network's products: float32, tf32 or bfloat16 (faster on a GPU; parameters, statistics and"
        " losses stay float32)",
    )
    convolutions: Literal["auto", "patches", "xla"] = setting(
        "auto",
        "Local training",
        "how convolutions are computed: patches (as matrix products), xla, or auto: what is usually faster on the"
        " device, or for long runs what is measured to be",
    )

    augment: tuple[Literal["shift", "flip", "crop"], ...] = setting(
        (),
        "Local training",
        "how images are changed at random in training: shift (moved by up to an eighth of their side), flip (mirrored"
        " left to right, every second one) or crop (a part of at least three quarters of their side, enlarged)",
        per_algorithm=True,
    )

    weighting: Literal["uniform", "samples"] = setting(
        "uniform",
        "Server",
        "the users' weights in averages: uniform, or by how many samples they have",
        per_algorithm=True,
    )
    statistics: Literal["averaged", "local"] = setting(
        "averaged",
        "Server",
        "running statistics of BatchNorm: averaged by the server, or local, kept by the users",
        per_algorithm=True,
    )
    aggregation: Literal["mean", "median", "trimmed", "centred-clip", "multi-krum"] = setting(
        "mean",
        "Server",
        "how the server combines the users' parameters: mean, median, trimmed (a trimmed mean), centred-clip (centred"
        " clipping) or multi-krum",
    )
    trim: Annotated[float, Field(ge=0, lt=0.5)] = setting(
        0.2,
        "Server",
        "the fraction of the largest and of the smallest values that aggregation trimmed leaves out, and of the users"
        " that multi-krum leaves out",
    )
    centre_radius: Rate = setting(
        1.0, "Server", "the radius of centred-clip, as a multiple of the median distance of users from the centre"
    )
    centre_steps: Positive = setting(3, "Server", "iterations of centred-clip in a round")
    max_update: NotNegative = setting(
        2.0,
        "Server",
        "maximum norm of an update, as a multiple of the median norm of the round's updates; larger ones are scaled"
        " down by the server (0: no limit)",
    )
    max_against: NotNegative = setting(
        2.0,
        "Server",
        "how far an update may go against the mean of the others, as a multiple of how far any of them goes along or"
        " against the mean of the rest; with aggregation mean the server scales those down that go further (0, or"
        " max_update 0: no limit)",
    )
    clip: NotNegative = setting(
        0.0, "Server", "maximum norm of an update; larger ones are scaled down by the server (0: no limit)"
    )
    ema: Fraction = setting(
        0.0,
        "Server",
        "predict with a running mean of the server's models: the weight of the earlier ones (0: with the last model)",
        per_algorithm=True,
    )

    dp_clip: NotNegative = setting(
        0.0, "Privacy", "differential privacy: maximum norm of an update; larger ones are scaled down by the user"
    )
    dp_noise: NotNegative = setting(
        0.0,
        "Privacy",
        "differential privacy: deviation of the noise on updates, in multiples of dp_clip (0: none)",
    )
    dp_count_noise: NotNegative = setting(
        0.0,
        "Privacy",
        "differential privacy: deviation of the noise on label counts, in multiples of the samples drawn in a round",
    )

    finetune_steps: WholeNumber = setting(
        0,
        "Evaluation",
        "mini-batches on which each user trains the received model before its own model is evaluated (0: none)",
        per_algorithm=True,
    )
    finetune_lr: NotNegative = setting(
        0.0, "Evaluation", "the learning rate of finetune_steps (0: lr, without its schedule)", per_algorithm=True
    )

    def with_values(self, **values: Any) -> "Federation":
        """The same with other values, which may be traced."""
        return self.model_copy(update=values)
