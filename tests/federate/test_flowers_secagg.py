"""Why Flower's secure aggregation is not offered (docs/federation.md, Privacy): what its protocol does in this version.

If one of these fails after an update of Flower, the reason that it tests is gone.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.primitives.asymmetric import generate_key_pairs

UPDATES = {node: np.random.default_rng(node).normal(size=50) for node in (100, 101, 102, 103, 104)}


class Sites:
    """A grid whose sites send their updates through Flower's own modifier; one is gone from some stage on."""

    def __init__(self, lost: int, stage: str) -> None:
        self._lost, self._stage, self._gone = lost, stage, False
        self._apps = {node: _app(update) for node, update in UPDATES.items()}
        self._contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in UPDATES}
        self.errors: list[str] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self._answer(number, message) for number, message in enumerate(messages)]

    def _answer(self, number: int, message: Message) -> Message:
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = f"message-{number}"
        message.content = recorddict_from_proto(recorddict_to_proto(message.content))
        self._gone |= message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE] == self._stage
        if self._gone and node == self._lost:
            return Message(Error(3, "not there"), reply_to=message)
        try:
            return self._apps[node](message, self._contexts[node])
        except Exception as error:
            self.errors.append(repr(error))
            return Message(Error(2, str(error)), reply_to=message)


def _app(update: np.ndarray) -> ClientApp:
    app = ClientApp(mods=[secaggplus_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trained = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), 1, {})
        return Message(compat.fitres_to_recorddict(trained, False), reply_to=message)

    return app


class Strategy:
    """The two functions of Flower's older strategies that the protocol calls."""

    mean: np.ndarray | None = None

    def configure_fit(self, *_: Any) -> list[Any]:
        return [(SimpleNamespace(node_id=node), FitIns(ndarrays_to_parameters([]), {})) for node in UPDATES]

    def aggregate_fit(self, number: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def mean_without(lost: int = 0, stage: str = "") -> tuple[np.ndarray | None, list[str]]:
    """The mean that Flower's protocol gives, if any, and the sites' errors."""
    context, strategy, sites = Context(1, 1, {}, RecordDict(), {}), Strategy(), Sites(lost, stage)
    context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    context.state[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(ndarrays_to_parameters([]), True)
    legacy = LegacyContext(context, None, strategy, SimpleClientManager())  # type: ignore[arg-type]
    SecAggPlusWorkflow(1.0, 0.5, max_weight=1.0)(sites, legacy)  # type: ignore[arg-type]
    return strategy.mean, sites.errors


def test_the_masks_between_two_sites_come_from_28_bits() -> None:
    """Text of 7 bits a character is folded into one number of 32 bits, which seeds a Mersenne Twister."""
    keys = [generate_key_pairs() for _ in range(12)]
    for n, (private, _) in enumerate(keys):
        for _, public in keys[:n]:
            shared = generate_shared_key(private, public)
            seed = int(np.bitwise_xor.reduce(np.frombuffer(shared, "<u4")))
            assert seed & 0x80808080 == 0
            (mask,) = pseudo_rand_gen(shared, 2**32, [(5,)])
            assert np.array_equal(mask, np.random.RandomState(seed).randint(0, 2**32, 5, np.uint32))


def test_a_site_may_be_lost_when_it_should_train_and_not_before() -> None:
    everybody, rest = (np.mean([u for n, u in UPDATES.items() if n != lost], axis=0) for lost in (0, 102))
    mean, errors = mean_without()
    np.testing.assert_allclose(mean, everybody, atol=1e-5)
    mean, errors = mean_without(102, Stage.COLLECT_MASKED_VECTORS)
    np.testing.assert_allclose(mean, rest, atol=1e-5)
    assert not errors
    for stage in (Stage.SETUP, Stage.SHARE_KEYS):
        mean, errors = mean_without(102, stage)
        assert mean is None
        assert errors == ["KeyError(102)"] * 4
