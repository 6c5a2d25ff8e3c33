"""What an algorithm is: pure functions for the client, the wire and the server.

The simulator and a real federation run the same ten functions. Only what `broadcast` returns goes down
the wire and only the first result of `local_finish` goes up: a client function never sees the server's
state, and a server function never sees a client's state or its data.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
from annotated_types import Ge

from fedgen.core.settings import Federation as Federation

Array = jax.Array
Tree = Any  # a JAX pytree of arrays
Scalar = Any  # a float, or a traced one: float hyper-parameters are arguments of the compiled program
Count = Annotated[int, Ge(1)]  # an integer hyper-parameter that must be at least 1
Share = Literal["all", "predictor", "nothing"]


class Params(NamedTuple):
    """A classifier's parameters, split where partial sharing cuts; an absent part is None."""

    extractor: Tree
    predictor: Tree


class Model(NamedTuple):
    """A classifier as an extractor x -> z and a predictor z -> logits.

    `init(key)` gives `(Params, statistics)`; the statistics are the extractor's BatchNorm running
    values (an empty tuple where there are none). `extract(extractor, statistics, x, train)` gives
    `(z, statistics)`; `predict(predictor, z)` gives the logits.
    """

    init: Callable[[Array], tuple[Params, Tree]]
    extract: Callable[[Tree, Tree, Array, bool], tuple[Array, Tree]]
    predict: Callable[[Tree, Array], Array]


class Task(NamedTuple):
    """What is to be learned: the model, and the form of the data it sees."""

    model: Model
    classes: int
    sample: jax.ShapeDtypeStruct  # one sample, as stored
    prepare: Callable[[Array], Array]  # stored samples -> what the model takes
    proxy_samples: int = 0  # unlabelled samples the server itself holds

    def latent_size(self) -> int:
        """The length of z."""

        def z(key: Array) -> Array:
            params, statistics = self.model.init(key)
            x = self.prepare(jax.numpy.zeros((2, *self.sample.shape), self.sample.dtype))
            return self.model.extract(params.extractor, statistics, x, False)[0]

        return int(jax.eval_shape(z, jax.random.key(0)).shape[-1])


class Batch(NamedTuple):
    """A mini-batch, ready for the model."""

    x: Array  # [batch, ...]
    y: Array  # [batch]


class Clock(NamedTuple):
    """When a local step happens, and the randomness it may use."""

    round: Array
    step: Array
    key: Array
    ahead: Tree = None  # what the algorithm's `ahead` made for this step, if it was asked to


class Round(NamedTuple):
    """What the server knows when it updates, apart from the uploads."""

    number: Array  # 0 in the first round
    cohort: Array  # [active] user numbers, in the order of the uploads
    key: Array
    proxy: Callable[[Array, int], Array]  # (key, n) -> n unlabelled samples of the server's own
    # (f, items) -> f of each item, one after the other; a simulation divides the items over its devices
    each: Callable[[Callable[[Tree], Tree], Tree], Tree] = jax.lax.map


class Algorithm(NamedTuple):
    """One federated learning algorithm; `S`, `C`, `B`, `U` are pytrees of its own choice.

    Uploads reach `server_update` stacked along a leading client axis. `local_loss` carries `memo` from
    step to step (BatchNorm statistics, label counts); only `params` are differentiated.
    """

    server_init: Callable[[Array], Tree]  # key -> S
    client_init: Callable[[Array], Tree]  # key -> C, the same key for all: users start alike
    broadcast: Callable[[Tree, Array], Tree]  # S, round -> B, down the wire
    local_start: Callable[[Tree, Tree], tuple[Tree, Tree]]  # B, C -> params, memo
    local_loss: Callable[[Tree, Tree, Batch, Tree, Tree, Clock], tuple[Array, Tree]]  # params, memo, batch, B, C, clock
    local_finish: Callable[[Tree, Tree, Tree, Tree, Array], tuple[Tree, Tree]]  # params, memo, B, C, samples -> U, C
    server_update: Callable[[Tree, Tree, Round], tuple[Tree, dict[str, Array]]]  # S, stacked U -> S, metrics
    predict_global: Callable[[Tree, Array], Array] | None  # S, x -> logits
    predict_local: Callable[[Tree, Tree, Array], Array] | None  # B, C, x -> logits
    # B, labels of the batch, clock -> what `local_loss` needs that does not depend on the parameters, so that it can
    # be drawn and computed for all local steps at once. Where `clock.ahead` is None, `local_loss` does it itself.
    ahead: Callable[[Tree, Array, Clock], Tree] | None = None
    check_upload: Callable[[Tree], dict[str, Array]] | None = None  # U -> what no honest user sends, and whether it did
    # B, C, x -> logits: what a user predicts with right after a broadcast, also where that is the global model
    predict_received: Callable[[Tree, Tree, Array], Array] | None = None
