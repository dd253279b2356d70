"""python -m bertjax.report: write the page of a training run."""

import argparse
import sys

from etils import epath

from bertjax import cli, storage
from bertjax.analysis import run_report
from bertjax.analysis.page.page import page
from bertjax.cli import command
from bertjax.errors import UserError
from bertjax.hardware import platform

NAME = "report.html"


def run(path: epath.PathLike, out: epath.PathLike = "", trust_code: bool = False) -> epath.Path:
    """Write the page of a run, finished or not, and return its path.

    Args:
      path: the workdir.
      out: the HTML file; `report.html` in the workdir by default.
      trust_code: whether modules that the run names as `module:Class` are imported, which runs their code.

    Raises:
      UserError: the path is not a run, or is damaged, or has logged nothing; nothing was written.
      StorageError: the page cannot be written.
    """
    target = epath.Path(out or epath.Path(path).expanduser() / NAME).expanduser()
    if target.suffix != ".html":
        raise UserError(f"--out={out} must end in .html")
    name = str(path).rstrip("/")
    html = page(f"Training run {name}", run_report.sections_of(name, trust_code))
    storage.retry(lambda: target.parent.mkdir(parents=True, exist_ok=True), target)
    storage.retry(lambda: storage.write_text(target, html), target)
    return target


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m bertjax.report",
        description="Write the page of a training run: curves over the reference, guesses for the same masked\n"
        "sentences over time, rows of data, throughput and goodput, settings that differ from the defaults,\n"
        "environment. It is one HTML file that opens without a network. The run may still be going on.",
        epilog="examples:\n"
        "  a run:                     python -m bertjax.report runs/tiny\n"
        "  a run in a bucket:         python -m bertjax.report gs://BUCKET/run-1 --out=run-1.html\n\n"
        "exit codes: 0 written; 2 bad input; 75 storage is unavailable",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="workdir of a run")
    parser.add_argument("--out", default="", help=f"the page to write (default: {NAME} in the workdir)")
    cli.add_trust_flag(parser)
    args = parser.parse_args(argv)
    platform.configure("cpu")  # an accelerator belongs to the run, which may be going on
    target = run(args.run, args.out, args.trust_code)
    print(f"page      {target}\nnext      {command('analyze', args.run)}")
    return 0


if __name__ == "__main__":
    sys.exit(cli.exit_code_of(main))
