"""FedDFusion's server against the same distillation written in PyTorch, on a network with BatchNorm."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from tiny import SAMPLE, TASK, assert_like, round_of, some_model, tensor, torch_model
from torch.nn import functional as F  # noqa: N812 (its usual name)

from fedgen.algorithms.fedavg import Parts, Upload
from fedgen.algorithms.feddfusion import feddfusion
from fedgen.core.contract import Federation
from fedgen.core.streams import stream
from fedgen.core.trees import stack

STEPS, BATCH, RATE = 6, 16, 0.05
USERS = [some_model(1), some_model(2), some_model(3)]


def proxy(key: jax.Array, samples: int) -> jax.Array:
    return 2 * jax.random.normal(key, (samples, SAMPLE))


ROUND = round_of(0, 3, proxy)


# The FedGen paper's settings, and those that Lin et al. describe or could mean.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"distill_schedule": "cosine", "student": "evaluation"},
    {"teacher": "probabilities"},
    {"distill_optimizer": "sgd", "student": "evaluation", "teacher": "probabilities"},
]


@pytest.fixture(scope="module", params=OPTIONS, ids=lambda options: "-".join(options.values()) or "default")
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture(scope="module")
def ours(options: dict[str, Any]) -> tuple[Parts, dict[str, Any]]:
    """The server after a round: it held another model, and the users sent theirs."""
    algorithm = feddfusion(TASK, Federation(users=3), steps=STEPS, batch=BATCH, distill_lr=RATE, **options)
    uploads = stack([Upload(params, statistics, None) for params, statistics in USERS])
    return jax.jit(lambda server: algorithm.server_update(server, uploads, ROUND))(Parts(*some_model(9)))


@pytest.fixture(scope="module")
def theirs(options: dict[str, Any]) -> tuple[torch.nn.Sequential, float]:
    """The student, and its mean loss."""
    teachers = [torch_model(*user).eval() for user in USERS]  # each with its own running statistics
    student = torch_model(*jax.tree.map(lambda *a: np.mean(a, axis=0), *USERS))
    student.train(options.get("student") != "evaluation")
    kind = torch.optim.SGD if options.get("distill_optimizer") == "sgd" else torch.optim.Adam
    optimizer = kind(student.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) if "distill_schedule" in options else None
    losses = []
    for key in jax.random.split(stream(ROUND.key, "distil"), STEPS):
        x = tensor(proxy(key, BATCH))
        with torch.no_grad():
            answers = [teacher(x) for teacher in teachers]
            target = F.softmax(sum(answers) / len(USERS), 1)
            if options.get("teacher") == "probabilities":
                target = sum(F.softmax(answer, 1) for answer in answers) / len(USERS)
        optimizer.zero_grad()
        loss = F.kl_div(F.log_softmax(student(x), 1), target, reduction="batchmean")
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return student, float(np.mean(losses))


def test_the_student_is_torchs(ours: tuple, theirs: tuple) -> None:
    """It starts from the average of the users' models and learns KL(ensemble || student) by Adam."""
    (extractor, predictor), (first, norm, _, last) = ours[0].params, theirs[0]
    assert_like(extractor["weight"], first.weight.T)
    assert_like(extractor["norm"]["scale"], norm.weight)
    assert_like(extractor["norm"]["shift"], norm.bias)
    assert_like(predictor["weight"], last.weight.T)
    assert_like(predictor["bias"], last.bias)
    assert float(ours[1]["distillation_loss"]) == pytest.approx(theirs[1], rel=1e-3)


def test_the_students_statistics_are_those_of_its_distillation(ours: tuple, theirs: tuple) -> None:
    """They go on from the average of the users' statistics, through the proxy's mini-batches."""
    norm = theirs[0][1]
    assert_like(ours[0].statistics["mean"], norm.running_mean)
    assert_like(ours[0].statistics["variance"], norm.running_var)
