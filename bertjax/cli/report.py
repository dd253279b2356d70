"""Write the page of a training run or of a token store, one HTML file that opens without a network.

Of a run, which may still be going on: curves over the reference, guesses for the same masked sentences over time, rows
of data, throughput and goodput, settings that differ from the defaults, environment. Of a token store: contents,
lengths, scripts, pieces, what was left out.

examples:
  a run:                     python -m bertjax report runs/tiny
  a run in a bucket:         python -m bertjax report gs://BUCKET/run-1 --out=run-1.html
  a token store:             python -m bertjax report ~/.cache/bertjax/stores/en-0123456789ab

exit codes: 0 written; 2 bad input; 75 storage is unavailable
"""

from etils import epath

from bertjax.analysis import run_report, store_report
from bertjax.analysis.page import page
from bertjax.data.store import TokenStore, is_token_store
from bertjax.runtime import command_line, platform, storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError, say
from bertjax.training.run.workdir import Workdir

NAME = "report.html"


def run(path: epath.PathLike, out: epath.PathLike = "", trust_code: bool = False) -> epath.Path:
    """Write the page and return its path.

    Args:
      path: workdir of a run, finished or not, folder of the runs of `examples.folds`, or a token store folder.
      out: the HTML file; by default `report.html` in the workdir, or STORE.html beside the store, which never changes.
      trust_code: import the modules that the run names as `module:Class`, which runs their code.

    Raises:
      UserError: the path is neither, or is damaged, or is a run without logs; nothing was written.
      StorageError: the page cannot be written.
    """
    name = str(path).rstrip("/")
    source = Workdir.at(name).root
    is_store = is_token_store(source)
    beside = source.parent / f"{source.name}.html" if is_store else source / NAME
    target = epath.Path(out).expanduser() if out else beside
    if target.suffix != ".html":
        raise UserError(f"--out={out} must end in .html")
    if is_store:
        store = TokenStore.open(source)
        html = page(f"Token store {source.name}", store_report.sections_of(store))
    # `data.store` is the parent of all stores, so this is an easy mistake.
    elif stores := [each for each in storage.names_in(source) if is_token_store(source / each)]:
        raise UserError(f"{name!r} is a folder of token stores; name one of them, such as {name}/{stores[0]}")
    else:
        html = page(f"Training run {name}", run_report.sections_of(name, trust_code))
    storage.retry(lambda: target.parent.mkdir(parents=True, exist_ok=True), target)
    storage.retry(lambda: storage.write_text(target, html), target)
    return target


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("report", __doc__)
    parser.add_argument("run", metavar="RUN", help="workdir of a run or of folds, or folder of a token store")
    parser.add_flags({"--out": f"the page to write (default: {NAME} in the workdir, STORE.html)"})
    command_line.add_trust_flag(parser)
    args = parser.parse_args(argv)
    platform.configure("cpu")  # an accelerator belongs to the run, which may be going on
    target = run(args.run, args.out, args.trust_code)
    say(f"page      {target}")
    if storage.exists(Workdir.at(args.run).config):  # a run, and not a store or the folder of folds
        say(f"next      {command('analyze', args.run)}")
    return 0
