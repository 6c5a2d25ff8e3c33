"""Without Flower there is nothing to test here."""

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def within_a_task() -> None:
    """Flower's messages can only be made within one of its tasks."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
