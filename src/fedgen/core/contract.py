"""What an algorithm is: pure functions for the client, the wire and the server.

The simulator and a real federation run the same functions. Only what `broadcast` returns goes down the wire and only
the first result of `local_finish` goes up: a client function never sees the server's state, and a server function
never sees a client's state or its data.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from annotated_types import Ge, Gt, Le, Lt

from fedgen.core.settings import Federation as Federation
from fedgen.core.settings import Headline

Array = jax.Array
Tree = Any  # a JAX pytree of arrays
Scalar = Any  # a float, or a traced one: float hyper-parameters are arguments of the compiled program
Above0 = Annotated[Scalar, Gt(0)]  # a float hyper-parameter without which nothing is defined, or nothing happens
Below1 = Annotated[Scalar, Ge(0), Lt(1)]  # one as a momentum
UpTo1 = Annotated[Scalar, Ge(0), Le(1)]  # one that is a fraction
Count = Annotated[int, Ge(1)]  # an integer hyper-parameter that must be at least 1
Share = Literal["all", "predictor", "extractor", "nothing"]
Metrics = dict[str, Array]  # named numbers that the server reports of a round


class Params(NamedTuple):
    """A classifier's parameters, split where partial sharing cuts; an absent part is None."""

    extractor: Tree
    predictor: Tree


class Model(NamedTuple):
    """A classifier as an extractor x -> z and a predictor z -> logits.

    `init(key)` gives `(Params, statistics)`; the statistics are the extractor's BatchNorm running
    values (an empty tuple where there are none). `extract(extractor, statistics, x, train)` of x [batch, *sample] gives
    `(z, statistics)` with z [batch, latent]; `predict(predictor, z)` gives the logits [batch, class]. A network that
    draws at random in training (dropout) says so with `random`: its `extract(..., train, key=None)` gets another key
    for each step. `state_dict(params, statistics)` gives parameters and statistics under the names that the network's
    own framework knows, as NumPy arrays, or as tensors where that is PyTorch; None where there is no such framework.
    `framework` is that framework: torch, flax, equinox. `never_negative` names those of the statistics that no training
    makes negative, such as variances, by their paths: `("['norm0']['variance']",)`. A federation refuses an upload in
    which one of them is.
    """

    init: Callable[[Array], tuple[Params, Tree]]
    extract: Callable[..., tuple[Array, Tree]]
    predict: Callable[[Tree, Array], Array]
    random: bool = False
    state_dict: Callable[[Params, Tree], dict[str, Any]] | None = None
    framework: str = ""
    never_negative: tuple[str, ...] = ()

    def extract_in_training(self, extractor: Tree, statistics: Tree, x: Array, key: Array | None) -> tuple[Array, Tree]:
        """`extract` in training mode, with the key where the network uses one.

        Args:
            extractor: The extractor's parameters.
            statistics: Of BatchNorm.
            x: [batch, *sample].
            key: What the network draws with.

        Returns:
            z [batch, latent] and the new statistics.
        """
        if self.random:
            return self.extract(extractor, statistics, x, True, key)
        return self.extract(extractor, statistics, x, True)


class Task(NamedTuple):
    """What is to be learned: the model, and the form of the data it sees."""

    model: Model
    classes: int  # how many labels there are: 0 to this minus one
    sample: jax.ShapeDtypeStruct  # one sample, as stored
    prepare: Callable[[Array], Array]  # samples as stored [batch, ...] -> x, as the model takes them [batch, ...]
    proxy_samples: int = 0  # unlabelled samples the server itself holds

    def latent_size(self) -> int:
        """The length of z.

        Returns:
            How many numbers the extractor gives for a sample.
        """

        def z(key: Array) -> Array:
            params, statistics = self.model.init(key)
            x = self.prepare(jax.numpy.zeros((2, *self.sample.shape), self.sample.dtype))
            return self.model.extract(params.extractor, statistics, x, False)[0]

        return int(jax.eval_shape(z, jax.random.key(0)).shape[-1])


class Batch(NamedTuple):
    """A mini-batch, ready for the model.

    The last mini-batch of an epoch may have fewer samples than the others. It is then filled up by repeating its own
    samples, with weight 0: `mean` and `one_hot` leave them out. (BatchNorm does see them.)
    """

    x: Array  # [batch, ...]
    y: Array  # [batch]
    weight: Array | None = None  # [batch] 1.0 for a sample, 0.0 for a repeated one; None: none is repeated
    key: Array | None = None  # what the network itself draws with on this mini-batch (see `Model.random`)

    def mean(self, values: Array) -> Array:
        """The mean of one value for each sample.

        Args:
            values: [batch].

        Returns:
            [] without samples that are repeated.
        """
        if self.weight is None:
            return jnp.mean(values)
        return jnp.sum(self.weight * values) / jnp.maximum(jnp.sum(self.weight), 1.0)

    def one_hot(self, classes: int, dtype: Any = jnp.float32) -> Array:
        """The labels as vectors; summed over the batch they count the labels.

        Args:
            classes: How many labels there are.
            dtype: Of the result.

        Returns:
            [batch, label] 1 at each sample's label, 0 elsewhere and for samples that are repeated.
        """
        chosen = jax.nn.one_hot(self.y, classes, dtype=dtype)
        return chosen if self.weight is None else chosen * self.weight.astype(dtype)[:, None]


class Local(NamedTuple):
    """What a client function may use in a round."""

    received: Tree  # B, what the server broadcast
    client: Tree  # C, what the user kept from its last round
    round: Array  # [] 0 in the first round
    rate: Array  # [] the learning rate of this round
    samples: Array  # [] how many samples the user holds
    counts: Array  # [label] how many of each label
    steps: Array  # [] how many mini-batches it trains on in this round
    start: Tree = None  # the parameters before the first step; None in `local_start`
    before: Tree = None  # what the algorithm's `before` added up over the user's data
    after: Tree = None  # what its `after` added up; in `local_finish`


class Step(NamedTuple):
    """A local step: its number, the randomness it may use, and what was computed ahead for it."""

    number: Array  # [] 0 for a round's first mini-batch
    key: Array  # [] a random key of this user, round and step
    ahead: Tree = None  # what the algorithm's `ahead` gave for this step


class Loss(NamedTuple):
    """A mini-batch's loss, and what its computation leaves behind."""

    value: Array  # [] what is differentiated
    memo: Tree  # carried to the next step: BatchNorm statistics, label counts ...
    z: Array  # [batch, latent] and
    logits: Array  # [batch, class], of the user's own model, for whoever adds a term


class Round(NamedTuple):
    """What the server knows when it updates, apart from the uploads."""

    number: Array  # [] 0 in the first round
    cohort: Array  # [active] user numbers, in the order of the uploads
    key: Array  # [] the server's random key of this round
    proxy: Callable[[Array, int], Array]  # (key, n) -> x [n, ...] of the server's unlabelled samples, prepared
    # (f, items) -> f of each item, one after the other; a simulation divides the items over its devices
    each: Callable[[Callable[[Tree], Tree], Tree], Tree] = jax.lax.map


class Needs(NamedTuple):
    """What an algorithm asks for beyond sums of uploads, and of its users' honesty; `fedgen list` shows it."""

    proxy: bool = False  # unlabelled samples that the server holds
    whole_uploads: bool = False  # users upload their whole model, whatever `share` says
    individual_uploads: bool = False  # the server looks at each upload, so secure aggregation does not fit
    accumulates: bool = False  # the server adds up what moves it over the rounds: one user's small pushes, too


Pass = Callable[[Tree, Tree, Batch, Local], Tree]  # params, memo, some of the user's data, local -> sums


class Algorithm(NamedTuple):
    """One federated learning algorithm: nine required functions, and optional fields with defaults.

    `S`, `C`, `B`, `U` are pytrees that the algorithm chooses: the server's state, a client's state between rounds, the
    broadcast and the upload. Where an array has the same name in `B` and `U`, the upload is the broadcast's value plus
    an update, which may be bounded and made private; other arrays of `U` are no updates. `params` is what is trained,
    `memo` what else a user carries from step to step. Uploads reach `server_update` stacked, each array with a leading
    client axis: [active, ...].

    In round r the cohort gets `broadcast(S, r)`. After round r the state is evaluated with `broadcast(S, r + 1)`, what
    the next round would begin with: simulator and federation alike.

    Examples:
        A complete algorithm in a few lines, one that trains a single number towards the users' mean label:

        >>> import jax, jax.numpy as jnp
        >>> from fedgen.core.client import Shard, train_client
        >>> from fedgen.core.contract import Algorithm, Federation, Model, Loss, Params, Task
        >>> def local_loss(params, memo, batch, local, step):
        ...     z = jnp.broadcast_to(params, (len(batch.y), 1))
        ...     return Loss(batch.mean((z[:, 0] - batch.y) ** 2), memo, z, z)
        >>> mean_label = Algorithm(
        ...     server_init=lambda key: jnp.zeros(()),
        ...     client_init=lambda key: (),
        ...     broadcast=lambda server, round: server,
        ...     local_start=lambda local: (local.received, ()),
        ...     local_loss=local_loss,
        ...     local_finish=lambda params, memo, local: (params, local.client),
        ...     server_update=lambda server, uploads, round: (jnp.mean(uploads), {}),
        ...     predict_global=lambda server, x: jnp.broadcast_to(server, (len(x), 1)),
        ...     predict_local=None,
        ... )
        >>> x, y = jnp.zeros((8, 1)), jnp.array([1, 1, 1, 1, 3, 3, 3, 3])
        >>> shard = Shard(x, y, jnp.arange(8), jnp.int32(0), jnp.int32(8), jnp.array([0, 4, 0, 4]))
        >>> task = Task(Model(None, None, None), 4, jax.ShapeDtypeStruct((1,), jnp.float32), lambda x: x)
        >>> federation = Federation(users=1, local_epochs=50, batch_size=4, lr=0.1)
        >>> trained = train_client(
        ...     mean_label, task, federation, mean_label.server_init(None), (), shard, 0, 0, jax.random.key(0),
        ...     largest=8,
        ... )
        >>> bool(abs(trained.upload - 2) < 0.5)
        True
    """

    server_init: Callable[[Array], Tree]  # key -> S
    client_init: Callable[[Array], Tree]  # key -> C, the same key for all: users start alike
    broadcast: Callable[[Tree, Array], Tree]  # S, round -> B, down the wire
    local_start: Callable[[Local], tuple[Tree, Tree]]  # local -> params, memo
    local_loss: Callable[[Tree, Tree, Batch, Local, Step], Loss]  # params, memo, batch, local, step -> objective
    local_finish: Callable[[Tree, Tree, Local], tuple[Tree, Tree]]  # params, memo, local -> U, C
    server_update: Callable[[Tree, Tree, Round], tuple[Tree, Metrics]]  # S, stacked U, round -> S, metrics
    predict_global: Callable[[Tree, Array], Array] | None  # S, x [batch, ...] -> logits [batch, class]
    # B, C, x [batch, ...] -> logits [batch, class]: what a user predicts with right after a broadcast; None where it
    # cannot by itself
    predict_local: Callable[[Tree, Tree, Array], Array] | None

    personal: bool = False  # whether that is another model for each user, so that users are evaluated one by one
    headline: Headline | None = None  # whose accuracy it is judged by; None: the global model's where there is one
    needs: Needs = Needs()
    # batch, local, step -> what `local_loss` needs that does not depend on the parameters (a generator's samples, what
    # a frozen teacher says of the batch): computed for all local steps at once, and found in `step.ahead`. This
    # batch has no key: draw with `step.key`
    ahead: Callable[[Batch, Local, Step], Tree] | None = None
    # gradient, params, local, step -> the gradient that the optimiser gets; the reported loss stays what it is
    local_gradient: Callable[[Tree, Tree, Local, Step], Tree] | None = None
    # rate -> the users' optimiser, where it is not the one that the settings say (for parts of the tree, say)
    optimizer: Callable[[Array], optax.GradientTransformation] | None = None
    before: Pass | None = None  # sums over all of the user's data, with the parameters before local training
    after: Pass | None = None  # likewise, with those after it
    # U, key -> the upload with noise that the algorithm itself asks for; at a real site the key is a secret
    add_noise: Callable[[Tree, Array], Tree] | None = None
    # U -> what no honest user sends, and whether it did: {reason: [] boolean}
    check_upload: Callable[[Tree], dict[str, Array]] | None = None
    # S after a round, the state that the server would predict with (that S, or the running mean of them: `ema`), round
    # -> the state that it does predict with (with a predictor that was fitted again, say); users never receive it
    calibrate: Callable[[Tree, Tree, Round], Tree] | None = None

    def headline_of(self, wanted: str = "auto") -> Headline:
        """Whose accuracy counts.

        Args:
            wanted: The setting `headline`.

        Returns:
            What is wanted; with `auto` what the algorithm says, or else the global model if there is one.
        """
        if wanted in ("global", "users"):
            return "global" if wanted == "global" else "users"
        return self.headline or ("users" if self.predict_global is None else "global")
