"""The settings of `fedgen.simulate`, with their types, for editors and type checkers.

Made from the declarations (`python -m fedgen.cli.typed_settings`), which have their defaults; a test compares them.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class Settings(TypedDict, total=False):
    """All that decides the result of a run."""

    preset: str
    """where settings that are not given come from: paper, reference or tuned (see `fedgen list`)."""

    seeds: int
    """how many repetitions, each with its own partition."""

    seed: int
    """the seed of all draws; repetitions have the following ones."""

    at_once: int
    """how many users a device trains at once (0: one on a CPU, on a GPU what its memory holds); 20 make a network of a
    few thousand parameters twice as fast on a CPU (docs/performance.md)."""

    dataset: str
    """the data: a name of `fedgen list`, module:function, or the path of your own: an .npz, CSV or Parquet file, a
    folder of those, of idx files, or with images in a folder for each class."""

    label: str
    """the column of a table (CSV, Parquet) that has the labels."""

    user: str
    """the column of a table that has the natural user of each sample; partition is then natural."""

    channels: Literal["auto", "last", "first"]
    """where the channels of your own arrays are: last, as in [height, width, channel], or first; auto: last, but what
    looks like first is refused."""

    max_value: int
    """the stored value of white in your own images or arrays of 8 or 16 bits, as 4095 for 12 of them (0: 255, or of 16
    bits the largest value of as many bits as the training samples use)."""

    data_dir: str
    """where the dataset's files are, if neither in $FEDGEN_DATA nor where `fedgen data download` puts them."""

    user_file: str
    """a text or .npy file with the user of each training sample, for the partition natural."""

    partition: str
    """how the data is divided among the users (see `fedgen list`)."""

    partition_file: str
    """a .json or .npz file with the partition; where it does not exist, it is written."""

    alpha: float
    """Dirichlet parameter of the partition: the smaller, the more different the users."""

    train_fraction: float
    """the fraction of the training set that users get."""

    class_limit: bool
    """as in the authors' code, no class has more samples than a user's fair share of all (docs/data.md)."""

    proxy_limit: int
    """the maximum number of unlabelled samples at the server."""

    users: int
    """how many users (in a federation: sites) there are."""

    rounds: int
    """communication rounds."""

    share: Literal["all", "predictor", "extractor"]
    """what is shared: all; predictor (feature extractors stay with the users); or extractor (predictors do)."""

    active: int
    """how many users train in a round."""

    local_steps: int
    """mini-batches a user trains on in a round."""

    local_epochs: int
    """passes over a user's data in a round, in place of local_steps (0: local_steps counts)."""

    batch_size: int
    """samples of a mini-batch."""

    lr: float
    """the users' learning rate."""

    lr_schedule: Literal["exponential", "constant", "cosine", "steps"]
    """how the rate changes over the rounds: exponential (times lr_decay after each), constant, cosine (down to lr_final
    of it in the last), or steps (times lr_decay at each of lr_milestones)."""

    lr_decay: float
    """the factor of the rate after each round, or at each milestone (see lr_schedule)."""

    lr_final: float
    """the fraction of lr that lr_schedule cosine reaches in the last round."""

    lr_milestones: Sequence[int]
    """a round after which lr_schedule steps multiplies the rate by lr_decay."""

    lr_warmup: int
    """rounds in which the rate first rises from 0 in equal steps."""

    optimizer: Literal["sgd", "adam", "adamw"]
    """the users' optimiser: sgd, adam or adamw."""

    momentum: float
    """momentum of sgd."""

    nesterov: bool
    """whether sgd's momentum is Nesterov's."""

    weight_decay: float
    """weight decay of the users' training (sgd, adam: added to the gradient; adamw: decoupled)."""

    clip_gradient: float
    """maximum norm of a mini-batch's gradient; larger ones are scaled down (0: no limit); 1 where robust aggregation is
    asked for and this is not said."""

    optimizer_state: Literal["fresh", "kept"]
    """whether a user's optimiser starts fresh in each round, or its state (momentum, Adam's moments) is kept."""

    precision: Literal["float32", "tf32", "bfloat16"]
    """arithmetic of the network's products: float32, tf32 or bfloat16 (faster on a GPU; parameters, statistics and
    losses stay float32)."""

    convolutions: Literal["auto", "patches", "xla"]
    """how convolutions are computed: patches (as matrix products), xla, or auto: what is usually faster on the device,
    or for long runs what is measured to be."""

    augment: Sequence[Literal["shift", "flip", "crop"]]
    """how images are changed at random in training: shift (moved by up to an eighth of their side), flip (mirrored left
    to right, every second one) or crop (a part of at least three quarters of their side, enlarged)."""

    weighting: Literal["uniform", "samples"]
    """the users' weights in averages: uniform, or by how many samples they have."""

    statistics: Literal["averaged", "local"]
    """running statistics of BatchNorm: averaged by the server, or local, kept by the users."""

    aggregation: Literal["mean", "median", "trimmed", "centred-clip", "multi-krum"]
    """how the server combines the users' parameters: mean, median, trimmed (a trimmed mean), centred-clip (centred
    clipping) or multi-krum."""

    trim: float
    """the fraction of the largest and of the smallest values that aggregation trimmed leaves out, and of the users that
    multi-krum leaves out."""

    centre_radius: float
    """the radius of centred-clip, as a multiple of the median distance of users from the centre."""

    centre_steps: int
    """iterations of centred-clip in a round."""

    max_update: float
    """maximum norm of an update, as a multiple of the median norm of the round's updates; larger ones are scaled down
    by the server (0: no limit)."""

    max_against: float
    """how far an update may go against the mean of the others, as a multiple of how far any of them goes along or
    against the mean of the rest; with aggregation mean the server scales those down that go further (0, or max_update
    0: no limit)."""

    clip: float
    """maximum norm of an update; larger ones are scaled down by the server (0: no limit)."""

    ema: float
    """predict with a running mean of the server's models: the weight of the earlier ones (0: with the last model)."""

    dp_clip: float
    """differential privacy: maximum norm of an update; larger ones are scaled down by the user."""

    dp_noise: float
    """differential privacy: deviation of the noise on updates, in multiples of dp_clip (0: none)."""

    dp_count_noise: float
    """differential privacy: deviation of the noise on label counts, in multiples of the samples drawn in a round."""

    dp_delta: float
    """differential privacy: the delta for which epsilon is reported."""

    finetune_steps: int
    """mini-batches on which each user trains the received model before its own model is evaluated (0: none)."""

    finetune_lr: float
    """the learning rate of finetune_steps (0: lr, without its schedule)."""

    eval_every: int
    """rounds between evaluations."""

    evaluate_on: Literal["test", "validation"]
    """what models are tested on: test, or validation: samples of the training set that no user holds."""

    validation: int
    """how many samples are kept for validation (0: as many as are left, but at most 5000)."""

    score: Literal["accuracy", "authors", "seen", "matching"]
    """the headline number: accuracy, authors, seen or matching (docs/data.md, Test sets)."""

    headline: Literal["auto", "global", "users"]
    """whose accuracy is reported: the global model's, the users' own models', or auto: as the algorithm intends."""

    score_users: int
    """the maximum number of users whose own models are evaluated."""

    patience: int
    """end an algorithm's run after so many evaluations without a better score; needs evaluate_on validation (0:
    never)."""

    keep_best: bool
    """keep the model of the best evaluation beside the last one, as patience does; needs evaluate_on validation."""
