"""How many times its floor a step takes that was measured on a TPU elsewhere.

    python -m benchmarks.compile_calibration --out=compile_calibration.jsonl

GPT-speedrun-TPU (github.com/honglu2875/GPT-speedrun-TPU, docs/KERNELS.md, "Measured TPU v4 snapshots") publishes the
time of a whole training step of GPT-2 small on four v4 chips: 12 layers x 768, a tied vocabulary of 50,304, 32 rows x
1,024 tokens, bfloat16, medians of ten synchronized steps. No step of bertjax has been measured on a TPU, and this is
the nearest measurement. `bertjax compile` compiles the same step here, without dropout or recomputation and with all
weights on every chip. A factor is the published time over the floor; `bertjax.forecast.calibration` has both.

| cell | published | attention there | attention here |
|---|---|---|---|
| dense | 93.196 ms | all scores in memory | `plain`, left to right |
| kernel | 75.191 ms | its own FlashAttention | `fused`, which has no left-to-right mask: both directions |

The cell `kernel` predicts every token from both sides, so that its products are those of the left-to-right step; the
kernel there skips the scores that the mask hides, 2% of the step's FLOPs. In both cells bertjax's head has a further
product of 768 x 768 before that with the vocabulary, 1.5% of the head.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import resumable
from bertjax.cli.compile import run
from bertjax.config import config as configuration
from bertjax.config.config import Config
from bertjax.forecast import report
from bertjax.runtime import platform
from bertjax.runtime.command_line import exit_code_of

TOPOLOGY = "v4-8"
# cell -> published seconds of a step
PUBLISHED = {"dense": 93.196e-3, "kernel": 75.191e-3}
_CELLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("plain", "left_to_right", {"kind": "causal"}),
    "kernel": ("fused", "bidirectional", {"kind": "mlm", "masking": {"rate": 0.999}}),  # K = T
}


def cell_config(cell: str) -> Config:
    """Return the configuration of the published step."""
    attention, direction, objective = _CELLS[cell]
    model = {
        "preset": "base",
        "vocab_size": 50_304,
        "max_positions": 1024,
        "direction": direction,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    task = {"objective": objective, "examples": {"kind": "full_sentences"}, "row_examples": 1}
    return configuration.from_dict(
        {
            "model": model,
            "tasks": {objective["kind"]: task},
            "stages": [{"seq_len": 1024, "batch": 32}],
            "runtime": {"attention": attention, "remat": "none", "strategy": "replicated"},
        }
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_calibration", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="file of lines, one a cell; finished cells are kept")
    args = parser.parse_args(argv)
    platform.configure("cpu")
    done = {line["cell"] for line in resumable.finished(args.out)}
    for cell in (cell for cell in PUBLISHED if cell not in done):
        [forecast] = run(cell_config(cell), TOPOLOGY)
        print(report.as_text(forecast))
        published = {"published_seconds": PUBLISHED[cell], "factor": PUBLISHED[cell] / forecast.counts.floor.seconds}
        resumable.append(args.out, {"cell": cell} | published | report.as_dict(forecast))
    for line in resumable.finished(args.out):
        print(f"{line['cell']}: {line['published_seconds'] * 1e3:g} ms, {line['factor']:.3f} times the floor")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
