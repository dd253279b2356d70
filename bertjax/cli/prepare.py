"""Prepare a corpus: train or take a tokenizer and write a token store, which all runs with these settings share.

examples:
  python -m bertjax prepare --config=configs/tiny.py
  python -m bertjax prepare --config=configs/tiny.py --config.data.corpus=embedded:ko
  python -m bertjax prepare --config=configs/tiny.py --config.data.corpus='books/*.txt.gz' --config.data.splitter=line
  python -m bertjax prepare --config=configs/tiny.py --config.data.tokenizer.vocab_size=16000 --verify
  python -m bertjax prepare --config=configs/tiny.py --show=3
  python -m bertjax prepare --config=configs/tiny.py --config.data.corpus=books --config.data.workers=8
  python -m bertjax prepare --config=configs/tiny.py --config.data.corpus=web --config.data.on_bad_document=skip
  python -m bertjax prepare --config=configs/tiny.py --config.data.corpus=web --config.data.near_duplicates.drop=True \\
      --config.data.filters.quality.kind=gopher_quality --show-dropped=5
  python -m bertjax prepare --config=configs/tiny.py --config.data.corpus=gs://bucket/web --runner=DataflowRunner \\
      --config.data.store=gs://bucket/stores --temp_location=gs://bucket/temp --project=my-project --region=us-west4

The same command continues a preparation that was killed. --config.data.store may be a URL (gs://bucket/stores).
"""

from collections.abc import Sequence
from pathlib import Path

from bertjax.config import config_file
from bertjax.data.inspect import report
from bertjax.data.inspect.report import show_dropped
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.prepare import LOCAL, Runner, prepare
from bertjax.data.store import TokenStore
from bertjax.runtime import storage
from bertjax.runtime.command_line import ArgumentParser, command, positive
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.results.report import plan_line, reading_warnings, sources_line


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser("prepare", __doc__)
    parser.add_flags(
        {
            "--show=N": "also print the first N training rows as text, with masks and labels",
            "--show-dropped=N": "also print up to N documents for each reason to drop them",
        },
        type=positive,
    )
    parser.add_flags({"--verify": "also compare the hash of every file of the store"}, action="store_true")
    parser.add_flags(
        {
            "--runner=NAME": "local (default), or a runner of Apache Beam, such as FnApiRunner or DataflowRunner, "
            "which gets all flags that are not listed here"
        },
        default="local",
    )
    parser.add_flags(
        {
            "--keep-shards=FOLDER": "keep encoded text in this folder, and encode nothing that an earlier preparation "
            "kept there"
        }
    )
    config_file.add_flags(parser)
    args, overrides, others = config_file.parse_known(parser, argv)
    runner = _runner(args.runner, others, args.keep_shards, parser)
    loaded = config_file.load(args.config, overrides)
    store = prepare(loaded.data, runner)
    if args.verify:
        TokenStore.open(store.path, verify=True)
        print("verified  every file has the hash that was recorded when it was written")
    if args.show_dropped is not None:
        print(show_dropped(store.path, args.show_dropped))
    feeds = Feeds(loaded, store)
    if len(loaded.data.sources) > 1:
        _print_shares(feeds)
    if args.show is not None:
        _show(feeds, args.show)
    print(f"next      {command('report', store.origin or str(store.path))}")
    return 0


def _runner(name: str, flags: list[str], kept: str, parser: ArgumentParser) -> Runner:
    """Return a runner.

    Args:
      flags: the flags that only a runner of Beam knows.
      kept: folder of kept shards; empty to keep none.
      parser: the parser, for the nearest flag.

    Raises:
      UserError: there is no such runner or flag, Apache Beam is not installed, or the folder cannot be written.
    """
    if name == "local":
        # Only Beam's runners have flags of their own; here an unknown flag is a typo.
        config_file.refuse(flags, parser)
        return Local(_writable(kept)) if kept else LOCAL
    if kept:
        raise UserError(f"--keep-shards={kept} has no effect with --runner={name}, which has a work folder; remove it")
    # Imported here, because Apache Beam is optional.
    from bertjax.data.preparation.beam import Beam

    return Beam(name, flags)


def _writable(kept: str) -> Path:
    """Make the folder of kept shards, and return it.

    Raises:
      UserError: it is a URL, or it cannot be written.
    """
    if storage.is_remote(kept):
        raise UserError(f"--keep-shards={kept} is a URL, and shards are kept on this machine only; name a local folder")
    folder = Path(kept).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Try it: permission bits do not show a full disk or a read-only mount.
        storage.write_bytes(folder / "writable", b"")
    except OSError as error:
        raise storage.user_error(error, f"cannot write --keep-shards={kept}", "name another folder") from error
    return folder


def _print_shares(feeds: Feeds) -> None:
    """Print the share of each source in the rows of each task.

    Raises:
      UserError: a source has too few rows for its weight.
    """
    for (task, seq_len), feed in feeds.train.items():
        label = f"{feeds.config.qualified(task, '')}{seq_len} tokens"
        print(sources_line(feeds.source_shares(feed), label), flush=True)


def _show(feeds: Feeds, count: int) -> None:
    feed = feeds.feed("train", feeds.config.stages[0].seq_len)
    picture = feed.plans[0].path / "packing.png"
    report.draw_packing(feed, picture)
    print(report.show(feed, feeds.store.tokenizer, count))
    lines = [plan_line(feed, feeds.config.task_name), *reading_warnings(feed, feeds.config.task_name)]
    print("\n" + "\n".join(lines) + f"\npicture  {picture}")
