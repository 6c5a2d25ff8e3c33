"""A trained model that predicts: the global one, or a user's own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Array, Params, Task, Tree
from fedgen.core.losses import infer
from fedgen.core.settings import Federation
from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError
from fedgen.runs.task import federation_of
from fedgen.runs.trained import Trained, completed, needed_of_users
from fedgen.use.inputs import samples_of, some_samples

CHUNK = 256  # samples of one forward pass
_TRIED = 3  # samples by which a network is recognised


class Network(NamedTuple):
    """The one network that a model is."""

    params: Params
    statistics: Tree


class Whose(NamedTuple):
    """Which model of a run this is."""

    algorithm: str
    seed: int
    user: int | None = None  # None: the global model
    best: bool = False  # of the best evaluation, not of the last round

    def __str__(self) -> str:
        """As part of a file's name."""
        user = "" if self.user is None else f"-user{self.user}"
        return f"{self.algorithm.replace(':', '@')}-seed{self.seed}{user}{'-best' if self.best else ''}"


class Classifier:
    """A trained model. Normalisation is part of it.

    What its functions take as `x`: an array [sample, ...] as the run's data was (images as bytes), a single sample, or
    images (paths or PIL images).

    Attributes:
        whose: The algorithm, seed and user that it is of.
        round: After how many rounds.
        form: Shape, type and scaling of samples, and the classes' names.
    """

    def __init__(self, whose: Whose, config: RunConfig, task: Task, form: DataForm, trained: Trained) -> None:
        self.whose, self.config, self.task, self.form, self.round = whose, config, task, form, trained.round
        self._state = _state(config, whose, task, trained)
        self._logits = self._compiled(lambda x: self.logits_of(task.prepare(x)))
        self._features: Callable[[Array], Array] | None = None
        self._network: Network | None = None

    def __repr__(self) -> str:
        """What it is, in a line."""
        who = "global model" if self.whose.user is None else f"model of user {self.whose.user}"
        best = ", the best by validation" if self.whose.best else ""
        rounds = f"{self.round} round{'s' * (self.round != 1)}"
        return (
            f"<{who} of {self.whose.algorithm}, seed {self.whose.seed}, after {rounds}{best}:"
            f" {self.form.dtype} {self.form.sample} -> {len(self.form.class_names)} classes>"
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; their numbers where they have none."""
        return self.form.class_names

    def logits_of(self, x: Array) -> Array:
        """The logits of normalised samples: a function that JAX can transform, compile and export.

        Args:
            x: [sample, ...] as the network takes it, float32 for images.

        Returns:
            Logits [sample, class].
        """
        return _predict(built(self.config, self.whose.algorithm, self.task), self._state, x)

    def logits(self, x: Any) -> NDArray[np.float32]:
        """The logits.

        Args:
            x: Samples, in one of the forms above.

        Returns:
            Logits [sample, class].
        """
        return self._over(self._logits, x)

    def predict_proba(self, x: Any) -> NDArray[np.float32]:
        """The probability of each class.

        Args:
            x: Samples, in one of the forms above.

        Returns:
            Probabilities [sample, class]; those of a sample add up to 1.
        """
        return np.asarray(jax.nn.softmax(self.logits(x), axis=-1))

    def predict(self, x: Any) -> NDArray[np.int64]:
        """The most probable label of each sample.

        Args:
            x: Samples, in one of the forms above.

        Returns:
            Labels [sample], as numbers; `class_names` has their names.
        """
        return np.argmax(self.logits(x), axis=-1)

    def features(self, x: Any) -> NDArray[np.float32]:
        """The latent vector z of each sample, which the last layer classifies.

        Args:
            x: Samples, in one of the forms above.

        Returns:
            z [sample, latent].
        """
        if self._features is None:
            (params, statistics), extract = self.network, self.task.model.extract
            prepare = self.task.prepare
            self._features = self._compiled(lambda x: extract(params.extractor, statistics, prepare(x), False)[0])
        return self._over(self._features, x)

    @property
    def network(self) -> Network:
        """Its parameters and statistics; an ensemble has several networks and gets a sentence."""
        if self._network is None:
            self._network = _network(self.config, self.whose, self.task, self.form, self._state)
        return self._network

    def _compiled(self, f: Callable[[Array], Array]) -> Callable[[Array], Array]:
        def precise(x: Array) -> Array:
            with jax.default_matmul_precision("highest"):  # as in the run's own evaluations
                return f(x)

        return jax.jit(precise)

    def _over(self, f: Callable[[Array], Array], x: Any) -> NDArray[np.float32]:
        """`f` of all samples, some at a time, so that one program serves any number of them."""
        samples = samples_of(x, self.form)
        if not len(samples):
            raise FedgenError("there are no samples to predict")
        size = CHUNK if len(samples) >= CHUNK else 1 << (len(samples) - 1).bit_length()
        parts = []
        for start in range(0, len(samples), size):
            part = samples[start : start + size]
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
            parts.append(np.asarray(f(jnp.asarray(filled)))[: len(part)])
        return np.concatenate(parts)


class _State(NamedTuple):
    """What a prediction is made from; a user's own parts are None in the global model."""

    server: Tree
    received: Tree
    client: Tree


def built(config: RunConfig, algorithm: str, task: Task) -> Algorithm:
    """The algorithm of a run, for its predictions."""
    return _built(config, algorithm, task)[0]


def _built(config: RunConfig, algorithm: str, task: Task) -> tuple[Algorithm, Federation]:
    return build(ALGORITHMS.find(algorithm), task, federation_of(config), config.of(algorithm))


def _state(config: RunConfig, whose: Whose, task: Task, trained: Trained) -> _State:
    name, user, users = whose.algorithm, whose.user, config.users
    algorithm, federation = _built(config, name, task)
    if user is None:
        if algorithm.predict_global is None:
            raise FedgenError(
                f"{name} has no global model with these settings; name a user: --user 0, or user=0 in Python"
            )
        return _State(trained.server, None, None)
    if algorithm.predict_local is None:
        raise FedgenError(f"the users of {name} do not predict by themselves; leave out the user, for the global model")
    if federation.finetune_steps and needed_of_users(algorithm, task) is None:
        raise FedgenError(
            f"the users of {name} have models of their own only by fine-tuning (finetune_steps) before evaluations,"
            " which is not kept; leave out the user, for the global model that they start from"
        )
    if not 0 <= user < users:
        raise FedgenError(f"there is no user {user}; the run has users 0 to {users - 1}")
    form = jax.eval_shape(algorithm.client_init, jax.random.key(0))
    kept = jax.tree.map(lambda a: a[user], trained.users)
    nothing = jax.tree.map(lambda a: None, form)
    received = algorithm.broadcast(trained.server, jnp.int32(trained.round))
    return _State(None, received, completed(nothing if trained.users is None else kept, form))


def _predict(algorithm: Algorithm, state: _State, x: Array) -> Array:
    if state.server is not None:
        assert algorithm.predict_global is not None
        return algorithm.predict_global(state.server, x)
    assert algorithm.predict_local is not None
    return algorithm.predict_local(state.received, state.client, x)


def _network(config: RunConfig, whose: Whose, task: Task, form: DataForm, state: _State) -> Network:
    """The network in an algorithm's state: what its prediction passes to the model's functions is noted."""
    model = task.model
    noted: list[Network] = []
    extractors: list[tuple[Tree, Tree]] = []

    def extract(extractor: Tree, statistics: Tree, x: Array, train: bool, *more: Any) -> tuple[Array, Tree]:
        extractors.append((extractor, statistics))
        return model.extract(extractor, statistics, x, train, *more)

    def predict(predictor: Tree, z: Array) -> Array:
        if extractors:
            extractor, statistics = extractors[-1]
            noted.append(Network(Params(extractor, predictor), statistics))
        return model.predict(predictor, z)

    watched = task._replace(model=model._replace(extract=extract, predict=predict))
    algorithm = built(config, whose.algorithm, watched)
    extractors.clear()
    noted.clear()
    x = task.prepare(jnp.asarray(some_samples(form, _TRIED)))
    logits = _predict(algorithm, state, x)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(noted))
    if len(noted) == 1 and not traced:
        network: Network = jax.tree.map(np.asarray, noted[0])
        found = infer(model, network.params, network.statistics, x)
        scale = np.max(np.abs(logits), initial=1.0, where=np.isfinite(logits))
        if np.allclose(found, logits, rtol=1e-4, atol=1e-5 * scale, equal_nan=True):
            return network
    raise FedgenError(
        f"{whose.algorithm} does not predict with one network, so there are no features or weights of one"
    )
