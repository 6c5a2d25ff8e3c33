"""Three sites with nothing in common but the labels: other data, other networks, other frameworks.

Under partial sharing only predictors, label counts and FedGen's generator travel, so sites must agree on the latent
size and on nothing else. Here one site has grey 8x8 images and a PyTorch network, one has colour 12x12 images and a
Flax network (both in examples/site_networks), and one has vectors of 20 numbers and FedGen's own `mlp`. They run as
separate processes on this machine, as in `fedgen federate demo`:

    pip install '.[flower,torch,flax]'
    python examples/different_extractors.py FOLDER [ROUNDS]
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedgen.config import resolve
from fedgen.demo.demo import follow, start_all
from fedgen.federate.deploy.folders import write_site
from fedgen.federate.deploy.init import begin
from fedgen.federate.deploy.processes import free_port, processes_of
from fedgen.federate.schema import ServerSettings, SiteSettings, TaskSettings

CLASSES, LATENT = 4, 16
SITES: dict[str, dict[str, Any]] = {
    "grey": {"sample": (8, 8, 1), "model": "torch_network:build", "model_options": {"latent": LATENT}},
    "colour": {"sample": (12, 12, 3), "model": "flax_network:build", "model_options": {"latent": LATENT}},
    "vectors": {"sample": (20,), "model": "mlp", "model_options": {"hidden": 32, "latent": LATENT}},
}
NETWORKS = Path(__file__).parent / "site_networks"


def samples(shape: tuple[int, ...], count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and samples in which each label has its own pattern."""
    patterns = np.random.default_rng(len(shape)).normal(size=(CLASSES, *shape))
    labels = rng.integers(0, CLASSES, count)
    return (patterns[labels] + rng.normal(0, 1.5, (count, *shape))).astype(np.float32), labels


def on_event(event: dict[str, Any]) -> None:
    """Print what sites send and how well they do."""
    if event["event"] == "trained":
        print(f"{event['at']} sent {event['sent']} bytes in round {event['round'] + 1}")
    if event["event"] == "evaluated":
        score = event["score"]
        print(f"{event['at']} recognises {100 * score['correct'] / score['total']:.1f} % after round {event['round']}")


def main(root: Path, rounds: int) -> None:
    settings = {
        "algorithms": ["fedgen"], "share": "predictor", "users": 3, "active": 3, "rounds": rounds, "lr": 0.05,
        "eval_every": rounds, "dataset": "of-the-sites", "model": "mlp", "model.latent": LATENT,
    }  # fmt: skip
    # The configured model's predictor is the one that all share; the server uses nothing else of it, since the shape
    # of a sample is each site's own.
    task = TaskSettings(classes=CLASSES, sample=(8, 8, 1), dtype="float32")
    server = ServerSettings(sites=tuple(SITES), poll=0.2, join_timeout=600.0)
    port = free_port()
    config = resolve(settings, own={"dataset"})
    folders = begin(
        root, config, task, server, host="127.0.0.1", port=port, bind="127.0.0.1", superlink_port=free_port()
    )
    rng = np.random.default_rng(0)
    for number, (name, own) in enumerate(SITES.items()):
        (x_train, y_train), (x_test, y_test) = (samples(own["sample"], count, rng) for count in (400, 200))
        np.savez(folders.site(name) / "data.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        write_site(folders, SiteSettings(name=name, number=number, data="data.npz", **own))
        module = own["model"].partition(":")[0] + ".py"
        if (NETWORKS / module).exists():  # a site has its own network's file, and nobody else needs it
            shutil.copy(NETWORKS / module, folders.site(name))
    with processes_of(folders, port) as processes:
        start_all(processes, list(SITES), tls=True, say=on_event)
        processes.submit("run")
        follow(processes, list(SITES), server.round_timeout, on_event)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
