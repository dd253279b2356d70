"""Compare runs side by side: the settings in which they differ, their results, costs and curves in one picture.

examples:
  two runs at equal cost:            python -m bertjax compare runs/tiny runs/tiny-layers=6 --x=flops
  metrics of your choice:            python -m bertjax compare runs/* --metric=mlm_accuracy
  all combinations of a sweep:       python -m bertjax compare runs/sizes --x=flops --log=xy
  seeds, as mean and band:           python -m bertjax compare runs/a/MRPC runs/b/MRPC
  with names, for a paper:           python -m bertjax compare MLM=runs/a ours=runs/b --out=fig.pdf --table=tab.csv
  seeds in several folders:          python -m bertjax compare A=runs/a-1 A=runs/a-2 B=runs/b-1 B=runs/b-2
"""

from collections.abc import Sequence

from etils import epath

from bertjax.comparison import curves, tables
from bertjax.comparison.numbers import effects_of, numbers_of
from bertjax.comparison.runs import differences_of, open_entries
from bertjax.comparison.tables import Comparison
from bertjax.runtime import command_line
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError, json_text, say


def run(
    paths: Sequence[str],
    *,
    x: str = "steps",
    metrics: Sequence[str] = (),
    out: epath.PathLike = "compare.png",
    table: str = "",
    smooth: int = 1,
    log: str = "",
) -> Comparison:
    """Compare runs, finished or not, and draw their curves. Code that a run names is never imported.

    Args:
      paths: workdirs, or folders of runs with `--seeds` or `--sweep`, each also as `NAME=PATH`; the first is the
        reference.
      x: quantity on the x axis: `steps`, `tokens`, `flops` or `seconds`.
      metrics: metrics to draw and to write, such as `mlm_loss`, or `TASK/mlm_loss` for a mixture; by default all are
        written, and the losses that two runs share are drawn.
      out: figure to write, .png, .svg or .pdf.
      table: table of numbers to write, .csv; empty for none.
      smooth, log: see `bertjax.comparison.curves.draw`.

    Raises:
      UserError: a path is not a run or is damaged, or an axis or metric is unknown; nothing was written.
    """
    # Check everything before writing: a typo in the second of two outputs must not leave only the first one.
    target, table_path = epath.Path(out).expanduser(), epath.Path(table).expanduser() if table else None
    for flag, path, suffixes in (("out", target, curves.FORMATS), ("table", table_path, (".csv",))):
        if path and path.suffix not in suffixes:
            raise UserError(f"--{flag}={path} must end in {', '.join(suffixes)}")
    entries = open_entries([str(path) for path in paths])
    axis, drawn = curves.check_axis(entries, x), curves.choose_metrics(entries, metrics)
    numbers = [numbers_of(entry) for entry in entries]
    laws = {metric: law for metric in drawn if axis == "flops" and (law := curves.law_of(entries, metric))}
    comparison = Comparison(entries, differences_of(entries), numbers, effects_of(entries, numbers), laws)
    measured = {name for of_entry in numbers for name in of_entry.measured}
    if table_path and not measured:
        raise UserError(f"--table={table} would be empty: no run has an evaluation yet; let one reach its first")
    if table_path and metrics and not measured & {*metrics}:
        known = ", ".join(sorted(measured))
        raise UserError(f"--table={table} would be empty: {metrics[0]} is not a held-out metric; those are {known}")
    curves.draw(entries, drawn, axis, target, smooth, log)
    if table_path:
        tables.write(table_path, comparison, metrics)
    return comparison


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("compare", __doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="workdirs, or folders of runs with --seeds or --sweep; NAME=RUN gives one a name in all tables and the "
        "figure, and several runs of one NAME are its seeds",
    )
    parser.add_flags(
        {"--metric=NAME": "metric to draw and to write; may be repeated (default: losses, and all to write)"},
        action="append",
        default=[],
    )
    parser.add_flags(
        {
            "--x": f"quantity of the x axis: {', '.join(curves.AXES)} (default: %(default)s)",
            "--out": "figure to write, .png, .svg or .pdf (default: %(default)s)",
            "--table=FILE": "also write the numbers, unrounded, as .csv",
        }
    )
    parser.set_defaults(x="steps", out="compare.png")
    parser.add_flags({"--log": "axes with a logarithmic scale"}, choices=("x", "y", "xy"), default="")
    parser.add_flags(
        {"--smooth=N": "average training curves over N logged points (default: %(default)s)"},
        type=command_line.positive,
        default=1,
    )
    parser.add_flags({"--json": "print differences and numbers as JSON instead of tables"}, action="store_true")
    args = parser.parse_args(argv)
    options = {"out": args.out, "table": args.table, "smooth": args.smooth, "log": args.log}
    comparison = run(args.runs, x=args.x, metrics=args.metric, **options)
    if args.json:
        say(json_text(tables.as_dict(comparison) | {"curves": args.out}, indent=2))
        return 0
    tables.print_comparison(comparison)
    flags = [f"--x={'flops' if args.x == 'steps' else 'steps'}", *(f"--metric={name}" for name in args.metric)]
    say(f"curves    {args.out}\nnext      {command('compare', *args.runs, *flags, f'--out={args.out}')}")
    return 0
