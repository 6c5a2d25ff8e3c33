"""Two small runs that the tests of this folder use, each made once."""

import pytest

import fedgen
from use_runs import small_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedgen.Result:
    """FedGen and FedAvg with two seeds; all is shared."""
    return small_run(tmp_path_factory.mktemp("whole") / "run", "fedgen", "fedavg", seeds=2, lr=0.1)


@pytest.fixture(scope="session")
def partial(tmp_path_factory: pytest.TempPathFactory) -> fedgen.Result:
    """FedGen and FedAvg with partial sharing: each user has its own extractor."""
    return small_run(tmp_path_factory.mktemp("partial") / "run", "fedgen", "fedavg", share="predictor", lr=0.1)
