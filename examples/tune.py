"""Choose hyper-parameters on held-out training images: how the preset `tuned` was made (docs/tuning.md).

    python examples/tune.py results.json

For each algorithm the clients' learning rate, and for FedGen also w and beta, on MNIST at the paper's other
settings. Scores are on a validation split of the training images that no user holds; the test set plays no
part, and the partitions (seeds 100 to 102) are not those of the reported results.
"""

import itertools
import json
import sys
from pathlib import Path

import fedgen

RATES = (0.01, 0.03, 0.1, 0.3)
W = (0.1, 1.0, 10.0)
BETA = (0.0, 0.1, 1.0, 10.0)
SEEDS, FIRST_SEED = 3, 100


def candidates(algorithm: str) -> list[dict[str, float]]:
    if algorithm != "fedgen":
        return [{f"{algorithm}.lr": lr} for lr in RATES]
    return [{"fedgen.lr": lr, "fedgen.w": w, "fedgen.beta": b} for lr, w, b in itertools.product(RATES, W, BETA)]


def main(path: Path, rounds: int = 200) -> None:
    fedgen.use_machine_well()
    rows = []
    for algorithm in fedgen.ALGORITHMS:
        for options in candidates(algorithm):
            summary = fedgen.simulate(
                algorithm, options=options, evaluate_on="validation", seeds=SEEDS, seed=FIRST_SEED, rounds=rounds
            )
            (row,) = summary["table"]
            rows.append({"algorithm": algorithm, "options": options, "mean": row["mean"], "std": row["std"]})
            print(rows[-1], flush=True)
            path.write_text(json.dumps(rows, indent=1) + "\n")
    for algorithm in fedgen.ALGORITHMS:
        tried = [row for row in rows if row["algorithm"] == algorithm and row["mean"] is not None]
        print("best:", max(tried, key=lambda row: row["mean"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
