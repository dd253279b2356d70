"""Make the reference curve of a configuration from finished runs of several seeds.

    for seed in 0 1 2; do python -m bertjax.train --config=configs/tiny.py --config.seed=$seed; done
    python benchmarks/reference_curve.py tiny runs/tiny-seed=0 runs/tiny-seed=1 runs/tiny-seed=2

Writes `bertjax/training/results/references/tiny.json`. `curves.png` shows it in gray behind every run of that
configuration.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from bertjax.training.results.curves import REFERENCES
from bertjax.training.run.workdir import Workdir, read_jsonl

METRICS = ("mlm_loss", "mlm_accuracy")
# Number of logged steps that each point of the curve averages, since the loss of one batch is noisy.
WINDOW = 5


def curve(workdir: Path, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps and the training metric; each point is the mean of `WINDOW` logged steps."""
    records = read_jsonl(Workdir.at(workdir).metrics)
    count = len(records) // WINDOW * WINDOW
    steps = np.array([record["step"] for record in records[:count]], float)
    values = np.array([record[f"train/{metric}"] for record in records[:count]], float)
    return steps.reshape(-1, WINDOW).mean(axis=1), values.reshape(-1, WINDOW).mean(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of the configuration: tiny, or tiny-chars for tiny.py:chars")
    parser.add_argument("workdirs", nargs="+", type=Path)
    args = parser.parse_args()
    reference = {"seeds": len(args.workdirs)}
    for metric in METRICS:
        steps, values = zip(*(curve(workdir, metric) for workdir in args.workdirs), strict=True)
        reference[metric] = {
            "step": steps[0].tolist(),
            "mean": np.mean(values, axis=0).round(4).tolist(),
            "low": np.min(values, axis=0).round(4).tolist(),
            "high": np.max(values, axis=0).round(4).tolist(),
        }
    path = REFERENCES / f"{args.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(reference) + "\n")
    print(path)


if __name__ == "__main__":
    main()
