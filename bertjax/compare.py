"""python -m bertjax.compare: list the settings and results in which runs differ, and draw their curves."""

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
    """The result of a call of `run`.

    Attributes:
      entries: the runs, in the order of the arguments.
      differences: settings in which the runs differ.
      numbers: results and costs of each run.
      picture: path of the PNG that was written.
    """

    entries: list[Entry]
    differences: Differences
    numbers: list[Numbers]
    picture: epath.Path


def run(
    paths: Sequence[str],
    *,
    x: str = "steps",
    metrics: Sequence[str] = (),
    out: epath.PathLike = "compare.png",
    trust_code: bool = False,
) -> Comparison:
    """Compare runs, finished or not, and draw their curves.

    Args:
      paths: at least two workdirs, or folders of runs with `--seeds`.
      x: quantity of the x axis: `steps`, `tokens`, `flops` or `seconds`.
      metrics: names of the metrics to draw, such as `mlm_loss`, or `TASK/mlm_loss` for a mixture; by default the losses
        that two runs share.
      out: path of the PNG to write.
      trust_code: whether modules that a run names as `module:Class` are imported, which runs their code.

    Raises:
      UserError: a path is not a run or is damaged, or there is no such axis or metric; nothing was written.
    """
    target = epath.Path(out).expanduser()
    if target.suffix != ".png":
        raise UserError(f"--out={out} must end in .png")
    entries = open_entries([str(path) for path in paths], trust_code)
    axis, drawn = curves.check_axis(entries, x), curves.choose_metrics(entries, metrics)
    comparison = Comparison(entries, differences_of(entries), [numbers_of(entry) for entry in entries], target)
    curves.draw(entries, drawn, axis, target)
    return comparison


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m bertjax.compare",
        description="Compare runs side by side: the settings in which they differ, their results and costs, and their\n"
        "curves in one picture.",
        epilog="examples:\n"
        "  two runs at equal cost:            python -m bertjax.compare runs/tiny runs/tiny-layers=6 --x=flops\n"
        "  metrics of your choice:            python -m bertjax.compare runs/* --metric=mlm_accuracy\n"
        "  seeds, as mean and band:           python -m bertjax.compare runs/a/MRPC runs/b/MRPC",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="two or more workdirs, or folders of runs with --seeds")
    parser.add_argument(
        "--x", default="steps", help=f"quantity of the x axis: {', '.join(curves.AXES)} (default: %(default)s)"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="metric to draw; may be repeated (default: the losses)",
    )
    parser.add_argument("--out", default="compare.png", help="picture to write (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print differences and numbers as JSON instead of tables")
    cli.add_trust_flag(parser)
    args = parser.parse_args(argv)
    comparison = run(args.runs, x=args.x, metrics=args.metric, out=args.out, trust_code=args.trust_code)
    parts = (comparison.entries, comparison.differences, comparison.numbers)
    if args.json:
        print(json.dumps(as_dict(*parts) | {"curves": str(comparison.picture)}, indent=2, ensure_ascii=False))
        return 0
    print_comparison(*parts)
    flags = [f"--x={'flops' if args.x == 'steps' else 'steps'}", *(f"--metric={name}" for name in args.metric)]
    print(f"curves    {comparison.picture}\nnext      {command('compare', *args.runs, *flags, f'--out={args.out}')}")
    return 0


if __name__ == "__main__":
    sys.exit(cli.exit_code_of(main))
