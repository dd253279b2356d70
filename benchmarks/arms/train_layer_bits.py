"""Train with the bits of each layer that `bertjax analyze --parts=curvature` has chosen (Q-BERT).

    python -m benchmarks.arms.train_layer_bits REPORT FLAG...

REPORT is the folder of the analysis, of one model on one file. The flags are those of bertjax.train.
"""

import json
import sys
from pathlib import Path

from bertjax.analysis.results import NUMBERS
from bertjax.cli import train
from bertjax.runtime import command_line


def flag_of(report: Path) -> str:
    """Return the flag of the bits in an analysis of one model on one file."""
    [by_file] = json.loads((report / NUMBERS).read_text())["parts"]["curvature"].values()
    [curvature] = by_file.values()
    return f"--config.quantization.layer_bits={curvature['layer_bits']}"


def main(argv: list[str]) -> int:
    """The command line."""
    report, *flags = argv
    return train.main([*flags, flag_of(Path(report))])


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(lambda: main(sys.argv[1:])))
