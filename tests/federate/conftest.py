"""What all tests of federations need."""

import pytest
from flwr.supercore.task_identity import TaskIdentity
from gate_fixture import gate, keys  # noqa: F401 (fixtures)

from fedgen.federate.server import replies


@pytest.fixture(autouse=True)
def within_a_task() -> None:
    """Flower's messages can only be made within one of its tasks."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture(autouse=True)
def replies_that_are_there_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rounds of federations in this process must not depend on when the system lets a thread run."""
    monkeypatch.setattr(replies, "_PATIENCE", 600.0)
