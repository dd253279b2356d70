"""python -m bertjax.compare: in what runs differ, what they came to, and their curves in one picture."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from etils import epath

from bertjax import cli
from bertjax.cli import command
from bertjax.comparison import curves
from bertjax.comparison.numbers import Numbers, numbers_of
from bertjax.comparison.report import as_dict, print_comparison
from bertjax.comparison.runs import Entry, open_entries
from bertjax.comparison.settings import Differences, differences_of
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a call of `run` found.

    Attributes:
      entries: the runs, in the order in which they were named.
      differences: settings in which they differ.
      numbers: of each entry.
      picture: the PNG that was written.
    """

    entries: list[Entry]
    differences: Differences
    numbers: list[Numbers]
    picture: epath.Path


def run(
    paths: Sequence[str], *, x: str = "steps", metrics: Sequence[str] = (), out: epath.PathLike = "compare.png"
) -> Comparison:
    """Compares runs, finished or not, and draws their curves.

    Args:
      paths: workdirs, and folders of runs with `--seeds`; two at least.
      x: the x axis, `steps`, `tokens`, `flops` or `seconds`.
      metrics: to draw, such as `mlm_loss`, or `TASK/mlm_loss` of a mixture; by default the losses that two share.
      out: the PNG to write.

    Raises:
      UserError: something that is no run or is damaged, or an axis or metric that is not there; nothing was written.
    """
    target = epath.Path(out).expanduser()
    if target.suffix != ".png":
        raise UserError(f"--out={out} must end in .png, which is what is written")
    entries = open_entries([str(path) for path in paths])
    axis, drawn = curves.check_axis(entries, x), curves.choose_metrics(entries, metrics)
    comparison = Comparison(entries, differences_of(entries), [numbers_of(entry) for entry in entries], target)
    curves.draw(entries, drawn, axis, target)
    return comparison


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m bertjax.compare",
        description="Says in what runs differ and what they came to, side by side, and draws their curves.",
        epilog="examples:\n"
        "  two runs at equal cost:            python -m bertjax.compare runs/tiny runs/tiny-layers=6 --x=flops\n"
        "  metrics of your choice:            python -m bertjax.compare runs/* --metric=mlm_accuracy\n"
        "  seeds, as mean and band:           python -m bertjax.compare runs/a/MRPC runs/b/MRPC",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a workdir, or the folder of a run with --seeds")
    parser.add_argument("--x", default="steps", help=f"the x axis: {', '.join(curves.AXES)} (default: %(default)s)")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="draw this one, once or more (default: the losses)",
    )
    parser.add_argument("--out", default="compare.png", help="the picture to write (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print differences and numbers as JSON instead of tables")
    args = parser.parse_args(argv)
    found = run(args.runs, x=args.x, metrics=args.metric, out=args.out)
    parts = (found.entries, found.differences, found.numbers)
    if args.json:
        print(json.dumps(as_dict(*parts) | {"curves": str(found.picture)}, indent=2, ensure_ascii=False))
        return 0
    print_comparison(*parts)
    flags = [f"--x={'flops' if args.x == 'steps' else 'steps'}", *(f"--metric={name}" for name in args.metric)]
    print(f"curves    {found.picture}\nnext      {command('compare', *args.runs, *flags, f'--out={args.out}')}")
    return 0


if __name__ == "__main__":
    sys.exit(cli.exit_code_of(main))
