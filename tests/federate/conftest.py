"""What all tests of federations need."""

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def within_a_task() -> None:
    """Flower's messages can only be made within one of its tasks."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
