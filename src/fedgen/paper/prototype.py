"""The paper's prototype: three users with disjoint points in the plane, one round, the generator in input space.

It shows what is distilled (section "Knowledge Distillation for Inductive Bias"; the table is in the supplement).
The model is all predictor, its extractor the identity, so that FedGen's latent vectors are points themselves.
The paper does not say what its points are. Ours: five labels, each a Gaussian around a corner of a regular pentagon;
user 1 holds all labels, users 2 and 3 lack one each, as the published accuracies (97.1, 81.3, 81.2) suggest.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.wrap import With
from fedgen.core.client import train_client
from fedgen.core.contract import Algorithm, Array, Federation, Model, Params, Round, Task, Tree
from fedgen.core.losses import infer
from fedgen.core.recipe import Shard
from fedgen.core.streams import stream
from fedgen.core.trees import stack
from fedgen.errors import FedgenError
from fedgen.grid.store import rounded
from fedgen.models import layers
from fedgen.models.generator import Generator, draw_noise, generate

PUBLISHED = {
    "before": [97.1, 81.3, 81.2],
    "after": [98.6, 98.3, 98.2],
    "average": 93.2,
    "oracle": 98.4,
    "note": "the caption of the paper's figure has 81.2 to 98.4 for one user, and 98.6 for the oracle",
}

# The points.
HOLDERS = ((0, 1, 2), (0, 1, 2), (0, 1), (0, 1, 2), (0, 2))  # of each label: who divide its samples
USERS, LABELS = 3, len(HOLDERS)
RADIUS, SPREAD = 2.0, 0.5  # of the pentagon; of a label's points along each axis
TRAIN_PER_LABEL, TEST_PER_LABEL = 200, 2000

# The training. FedGen's other settings are its defaults.
HIDDEN = 32  # units in each of the classifier's two hidden layers
FEDERATION = Federation(users=USERS, local_steps=500, lr=0.1)
NOISE_SIZE = 32
SHOWN_STEPS = (0, 50, 150, 250)  # of the generator, as in the paper's figure; users learn from the last
STEPS_PER_UPDATE = 50
LATER_STEPS = 500  # beyond the paper: where the samples go from there


class Way(NamedTuple):
    """How the generator is trained."""

    generator_lr: float
    eta: float  # weight of the diversity loss


# So that the samples lie where the data do after 250 steps.
CHOSEN = Way(1e-3, 0.1)
# The paper's rate and the weight 1; then one change at a time around the chosen way.
OTHER_WAYS = (Way(1e-4, 1.0), Way(1e-3, 1.0), Way(1e-3, 0.0))

NOTES = (
    "The paper does not say what its points, network and rates are; ours are plain choices, not fitted to its numbers.",
    "A user goes on from its own model. The control, which the paper lacks, makes the same further steps on the same"
    " batches without the generator; `control_from_average` does so from the averaged model, as FedAvg would.",
    "The generator's rate and diversity weight were chosen with seeds 100 to 102; `ways` has other choices. At the"
    " paper's rate of 1e-4 and the weight 1 the points have hardly left the start after 250 steps.",
    "The points pass through the data and do not come to rest there: cross-entropy and diversity both gain from moving"
    f" outwards, as the stage after {LATER_STEPS} steps shows.",
    "`recognised` is the percentage of generated points that the oracle takes for the label they stand for; `distance`"
    " is that of their mean from the data's, `spread` their standard deviation (the data's: "
    f"{SPREAD:g}), both averaged over labels.",
)

# What is kept of the first seed for the pictures.
EXTENT, WIDE_EXTENT = 3.75, 8.0  # half the side of the square that is shown
GRID = 60
POINTS_PER_USER, SAMPLES_PER_LABEL = 100, 40
MEASURED_PER_LABEL = 400  # generated samples
_short = partial(rounded, digits=3)


class Points(NamedTuple):
    """All users' training samples, one user after the other, and the test samples of all labels."""

    x: np.ndarray  # [sample, 2]
    y: np.ndarray
    offset: np.ndarray  # [user]
    size: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def shard(self, user: int | None) -> Shard:
        """What one user holds; None: what all hold together."""
        all_rows = np.arange(len(self.y))
        offset, size = (0, len(self.y)) if user is None else (int(self.offset[user]), int(self.size[user]))
        # Integers of numpy, whose types JAX takes as they are, so that all shards go through one program.
        counts = np.bincount(self.y[offset : offset + size], minlength=LABELS).astype(np.int32)
        arrays = self.x, self.y, all_rows, np.int32(offset), np.int32(size), counts
        return Shard(*map(jnp.asarray, arrays))


def centres() -> np.ndarray:
    """The middle of each label's points, [label, 2]."""
    angle = np.pi / 2 + 2 * np.pi * np.arange(LABELS) / LABELS
    return RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def draw_points(key: Array) -> Points:
    """A seed's data; each training sample has one owner."""

    def draw(purpose: str, per_label: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(LABELS), per_label)
        noise = np.asarray(jax.random.normal(stream(key, purpose), (len(y), 2)))
        return (centres()[y] + SPREAD * noise).astype(np.float32), y

    x, y = draw("points", TRAIN_PER_LABEL)
    owner = np.concatenate([np.resize(holders, TRAIN_PER_LABEL) for holders in HOLDERS])
    by_owner = np.argsort(owner, kind="stable")
    size = np.bincount(owner, minlength=USERS)
    return Points(x[by_owner], y[by_owner], np.cumsum(size) - size, size, *draw("test points", TEST_PER_LABEL))


def plane_model() -> Model:
    """A small network on points of the plane, all of it predictor: z is the point itself."""
    widths = (2, HIDDEN, HIDDEN, LABELS)

    def init(key: Array) -> tuple[Params, Tree]:
        keys = jax.random.split(key, len(widths) - 1)
        sizes = zip(keys, widths, widths[1:], strict=False)
        return Params((), [layers.linear_init(k, fan_in, fan_out) for k, fan_in, fan_out in sizes]), ()

    def predict(predictor: Tree, z: Array) -> Array:
        for layer in predictor[:-1]:
            z = jax.nn.relu(layers.linear(layer, z))
        return layers.linear(predictor[-1], z)

    return Model(init, lambda extractor, statistics, x, train: (x, statistics), predict)


TASK = Task(plane_model(), LABELS, jax.ShapeDtypeStruct((2,), jnp.float32), lambda x: x)


def algorithm_of(**options: Any) -> Algorithm:
    """FedGen on the plane."""
    return build(ALGORITHMS["fedgen"], TASK, FEDERATION, {"noise_size": NOISE_SIZE, **options})[0]


class Programs:
    """The compiled steps of the experiment, the same for all seeds."""

    def __init__(self) -> None:
        self.start = _compiled(_start)
        self.train_alone = _compiled(_training(algorithm_of(w=0.0)))
        self.train_with_generator = _compiled(_training(algorithm_of()))
        self._update = _compiled(_update)
        self._infer = _compiled(lambda params, x: infer(TASK.model, params, (), x))
        self._generate = _compiled(_generate)

    def generator_course(self, server: Tree, uploads: Tree, key: Array, way: Way, last: int) -> list[Tree]:
        """The server at the shown steps of the generator's training, up to the last one that is wanted.

        A server update is some steps that go on where the one before ended, so the shown stages are those of
        one training. Each of them makes the same average of the same uploads.
        """
        course = [server]
        for chunk in range(last // STEPS_PER_UPDATE):
            course.append(self._update(course[-1], uploads, key, chunk, way))
        return [course[steps // STEPS_PER_UPDATE] for steps in (*SHOWN_STEPS, LATER_STEPS) if steps <= last]

    def logits(self, params: Params, x: np.ndarray) -> np.ndarray:
        """What a model says of points, [sample, label]."""
        return np.asarray(self._infer(params, x))

    def samples(self, server: Tree, key: Array) -> np.ndarray:
        """Points of the generator, the same number of each label, [label, sample, 2]."""
        return np.asarray(self._generate(server.own.generator, key))


@cache
def compiled_programs() -> Programs:
    """The programs, compiled once in a process."""
    return Programs()


def _compiled(function: Callable[..., Tree]) -> Callable[..., Tree]:
    def exactly(*arguments: Any) -> Tree:
        with jax.default_matmul_precision("highest"):  # float32 means float32, also on a GPU
            return function(*arguments)

    return jax.jit(exactly)


def _start(key: Array) -> Tree:
    server = algorithm_of().server_init(key)
    # Without JAX's "weak" types, so that this state goes through the same program as a trained one.
    return jax.tree.map(lambda a: a.astype(a.dtype), server)


def _training(algorithm: Algorithm) -> Callable[..., Tree]:
    """A round of one user: (server, its data, round, user, key) -> what it uploads."""

    def train(server: Tree, shard: Shard, round: int, user: int, key: Array) -> Tree:
        received, client = algorithm.broadcast(server, jnp.asarray(round)), algorithm.client_init(key)
        trained = train_client(
            algorithm,
            TASK,
            FEDERATION,
            received,
            client,
            shard,
            jnp.asarray(round),
            jnp.asarray(user),
            key,
            largest=len(shard.rows),
        )
        return trained.upload

    return train


def _no_proxy(key: Array, samples: int) -> Array:
    raise NotImplementedError("FedGen's server holds no samples")


def _update(server: Tree, uploads: Tree, key: Array, chunk: int, way: Way) -> Tree:
    algorithm = algorithm_of(generator_steps=STEPS_PER_UPDATE, **way._asdict())
    context = Round(jnp.zeros((), jnp.int32), jnp.arange(USERS), stream(key, "server", chunk), _no_proxy)
    return algorithm.server_update(server, uploads, context)[0]


def _generate(generator: Generator, key: Array) -> Array:
    y = jnp.repeat(jnp.arange(LABELS), MEASURED_PER_LABEL)
    noise = draw_noise(stream(key, "shown"), (len(y), NOISE_SIZE), "normal")
    return generate(generator, noise, y, LABELS, False)[0].reshape(LABELS, MEASURED_PER_LABEL, 2)


def _percent_right(logits: np.ndarray, y: np.ndarray) -> float:
    return float(100 * np.mean(np.argmax(logits, axis=-1) == y))


class Seed(NamedTuple):
    """What one seed leaves: numbers, and the models and samples that the pictures show."""

    points: Points
    accuracy: dict[str, Any]
    generator: list[dict[str, float]]
    ways: list[dict[str, Any]]
    models: dict[str, list[Params]]
    samples: list[np.ndarray]  # at each shown step: [label, sample, 2]


def run_seed(programs: Programs, seed: int, quick: bool) -> Seed:
    """One repetition: own data, own start."""
    key = jax.random.key(seed)
    points = draw_points(key)
    start = programs.start(stream(key, "model"))
    everyone = USERS  # the oracle's number among the users, for its random streams

    def go_on(train: Callable[..., Tree], server: Tree, params: Params, user: int | None) -> Params:
        """A further round of a user that received this generator and continues from this model."""
        received = With(server.base._replace(params=params), server.own)
        return train(received, points.shard(user), 1, everyone if user is None else user, key).base.params

    first = [programs.train_alone(start, points.shard(user), 0, user, key) for user in range(USERS)]
    uploads = stack(first)
    before = [upload.base.params for upload in first]
    course = programs.generator_course(start, uploads, key, CHOSEN, SHOWN_STEPS[-1] if quick else LATER_STEPS)
    server = course[len(SHOWN_STEPS) - 1]
    average = server.base.params

    def after(server: Tree) -> list[Params]:
        return [go_on(programs.train_with_generator, server, before[user], user) for user in range(USERS)]

    oracle = programs.train_alone(start, points.shard(None), 0, everyone, key).base.params
    models = {
        "before": before,
        "after": after(server),
        # The controls: as many further steps without the generator, from one's own model and from the average.
        "control": [go_on(programs.train_alone, server, before[user], user) for user in range(USERS)],
        "control_from_average": [go_on(programs.train_alone, server, average, user) for user in range(USERS)],
        "average": [average],
        "oracle": [go_on(programs.train_alone, server, oracle, None)],
    }

    def accuracies(params: Sequence[Params]) -> list[float]:
        return [_percent_right(programs.logits(p, points.x_test), points.y_test) for p in params]

    accuracy: dict[str, Any] = {name: accuracies(params) for name, params in models.items()}
    accuracy |= {name: accuracy[name][0] for name in ("average", "oracle")}
    logits = np.mean([programs.logits(params, points.x_test) for params in before], axis=0)
    accuracy["ensemble"] = _percent_right(logits, points.y_test)

    samples = [programs.samples(s, key) for s in course]
    oracle = models["oracle"][0]
    ways = []
    for way in () if quick else OTHER_WAYS:
        other = programs.generator_course(start, uploads, key, way, SHOWN_STEPS[-1])[-1]
        fit = _fit(programs, oracle, programs.samples(other, key))
        ways.append({"after": accuracies(after(other)), **fit})
    return Seed(points, accuracy, [_fit(programs, oracle, drawn) for drawn in samples], ways, models, samples)


def _fit(programs: Programs, oracle: Params, drawn: np.ndarray) -> dict[str, float]:
    """How well generated points [label, sample, 2] match the data of their labels."""
    y = np.repeat(np.arange(LABELS), drawn.shape[1])
    return {
        "recognised": _percent_right(programs.logits(oracle, drawn.reshape(-1, 2)), y),
        "distance": float(np.mean(np.linalg.norm(np.mean(drawn, axis=1) - centres(), axis=1))),
        "spread": float(np.mean(np.std(drawn, axis=1))),
    }


def prototype(*, seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """The experiment over some seeds; `quick` leaves out the other ways and the longer training of the generator.

    Accuracies are in percent on fresh samples of all labels. The result can be written as JSON.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise FedgenError(f"the prototype needs one seed or more, each once, not {list(seeds)}")
    programs = compiled_programs()
    runs = [run_seed(programs, seed, quick) for seed in seeds]
    steps = [*SHOWN_STEPS, LATER_STEPS][: len(runs[0].generator)]
    ways = OTHER_WAYS[: len(runs[0].ways)]
    return {
        "quick": quick,
        "seeds": list(seeds),
        "settings": _settings(runs[0].points),
        "published": PUBLISHED,
        "notes": list(NOTES),
        "accuracy": _over_seeds([run.accuracy for run in runs]),
        "gain_over": _over_seeds([_gains(run.accuracy) for run in runs]),
        "generator": [{"steps": s, **_over_seeds([run.generator[i] for run in runs])} for i, s in enumerate(steps)],
        "ways": [{**way._asdict(), **_over_seeds([run.ways[i] for run in runs])} for i, way in enumerate(ways)],
        "per_seed": [{"seed": s, **_short(run.accuracy)} for s, run in zip(seeds, runs, strict=True)],
        "pictures": _pictures(programs, seeds[0], runs[0]),
    }


def _gains(accuracy: Mapping[str, Any]) -> dict[str, float]:
    """What the users' mean accuracy after distillation has over that before it, and over the controls."""
    others = ("before", "control", "control_from_average")
    return {other: float(np.mean(accuracy["after"]) - np.mean(accuracy[other])) for other in others}


def _over_seeds(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of each entry (of each user, where it is a list)."""
    several = len(values) > 1
    stacked = {key: np.array([v[key] for v in values]) for key in values[0]}
    return {
        key: _short({"mean": a.mean(axis=0).tolist(), "std": a.std(axis=0, ddof=1).tolist() if several else None})
        for key, a in stacked.items()
    }


def _settings(points: Points) -> dict[str, Any]:
    return {
        "data": f"{LABELS} labels, each a Gaussian (standard deviation {SPREAD:g}) around a corner of a regular"
        f" pentagon (radius {RADIUS:g}); {TRAIN_PER_LABEL} training and {TEST_PER_LABEL} test samples of each",
        "labels_of_users": [[y for y in range(LABELS) if user in HOLDERS[y]] for user in range(USERS)],
        "samples_of_users": points.size.tolist(),
        "model": f"2-{HIDDEN}-{HIDDEN}-{LABELS}, ReLU; all of it predictor",
        "local": f"{FEDERATION.local_steps} steps of SGD before and after, batches of {FEDERATION.batch_size},"
        f" rate {FEDERATION.lr:g}; the oracle as many in all",
        "generator": f"{NOISE_SIZE}-256-2, {SHOWN_STEPS[-1]} Adam steps, rate {CHOSEN.generator_lr:g},"
        f" diversity weight {CHOSEN.eta:g}",
    }


def _pictures(programs: Programs, seed: int, run: Seed) -> dict[str, Any]:
    """What the figures show of one seed: points, the regions of every model, generated samples."""

    def regions(params: Params, extent: float) -> list[str]:
        """The predicted label at the middle of each square: rows of digits, the lowest row first."""
        middle = (np.arange(GRID, dtype=np.float32) + 0.5) * (2 * extent / GRID) - extent
        at = np.stack(np.meshgrid(middle, middle), axis=-1).reshape(-1, 2)
        predicted = np.argmax(programs.logits(params, at), axis=-1).reshape(GRID, GRID)
        return ["".join(map(str, row)) for row in predicted]

    def points_of(user: int) -> dict[str, Any]:
        rows = run.points.offset[user] + np.linspace(0, run.points.size[user] - 1, POINTS_PER_USER).astype(int)
        return {"x": _short(run.points.x[rows].tolist()), "y": run.points.y[rows].tolist()}

    steps = (*SHOWN_STEPS, LATER_STEPS)
    shown_labels = np.repeat(np.arange(LABELS), SAMPLES_PER_LABEL).tolist()
    shown = [drawn[:, :SAMPLES_PER_LABEL].reshape(-1, 2).tolist() for drawn in run.samples]
    kept = ("before", "after", "average", "oracle")
    return {
        "seed": seed,
        "accuracy": _short({name: run.accuracy[name] for name in kept}),
        "extent": [-EXTENT, EXTENT, -EXTENT, EXTENT],
        "wide_extent": [-WIDE_EXTENT, WIDE_EXTENT, -WIDE_EXTENT, WIDE_EXTENT],
        "users": [points_of(user) for user in range(USERS)],
        "regions": {name: [regions(params, EXTENT) for params in run.models[name]] for name in kept},
        "wide_regions": {"oracle": [regions(run.models["oracle"][0], WIDE_EXTENT)]},
        "samples": [
            {"steps": s, "x": _short(x), "y": shown_labels, "recognised": round(fit["recognised"], 2)}
            for s, x, fit in zip(steps, shown, run.generator, strict=False)
        ],
    }
