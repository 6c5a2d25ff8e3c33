"""Train, then use what was trained: predict, look at features, sample the generator, evaluate, export."""

import tempfile
from pathlib import Path

import numpy as np

import fedgen
from fedgen.use.evaluation import evaluate, labelled
from fedgen.use.export import EXPORTS


def stripes(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images of 8x8 bytes with horizontal, vertical or diagonal stripes."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:8, :8]
    patterns = 200 * np.stack([rows // 2 % 2, columns // 2 % 2, (rows + columns) // 2 % 2])
    labels = rng.integers(0, 3, samples)
    noisy = patterns[labels] + rng.normal(0, 60, (samples, 8, 8))
    return np.clip(noisy, 0, 255).astype(np.uint8)[..., None], labels


def main(out: Path, rounds: int = 20) -> float:
    names = ["horizontal", "vertical", "diagonal"]
    data = fedgen.from_arrays(*stripes(600, 0), *stripes(150, 1), name="stripes", class_names=names)
    settings = {"users": 6, "active": 3, "rounds": rounds, "eval_every": 2, "alpha": 0.5, "lr": 0.1}
    options = {"model.hidden": 16, "model.latent": 8, "partition.min_samples": 4, "fedgen.generator_steps": 5}

    def look(record: dict) -> bool:
        print(f"{record['algorithm']}, round {record['round']}: {record['accuracy']:.1f} %")
        return record["accuracy"] > 99.5  # good enough: stop here

    fedgen.simulate(["fedgen", "fedavg"], data=data, model="mlp", options=options, out=out, callbacks=look, **settings)

    run = fedgen.load(out)
    model = run.model("fedgen", seed=0)
    print(model)
    images, labels = stripes(5, 2)
    print("true:     ", [run.class_names[y] for y in labels])
    print("predicted:", [run.class_names[y] for y in model.predict(images)])
    print("certainty:", model.predict_proba(images).max(axis=1).round(3))
    print("features: ", model.features(images).shape)

    # What the generator makes of a label, the model's last layer should recognise (after more rounds than these few).
    made = run.generator("fedgen", seed=0).sample([0, 1, 2])
    last = model.network.params.predictor
    print("generated:", np.argmax(made.features @ last["weight"] + last["bias"], axis=1), "of labels", made.labels)

    scores = evaluate(model, labelled(run, data))
    print(f"accuracy {scores.accuracy:.1f} %, AUC {scores.auc:.3f}, ECE {scores.ece:.1f} %")
    for path in EXPORTS["torch"](model, out / "export"):
        print("exported", path.name)
    return scores.accuracy


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "run")
