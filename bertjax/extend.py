"""python -m bertjax.extend: an export with new words in its vocabulary, or with more positions."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from bertjax import cli, export
from bertjax.cli import command
from bertjax.data import sources
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import digest
from bertjax.data.tokenizer import new_pieces
from bertjax.data.tokenizer.new_pieces import Extension
from bertjax.errors import UserError
from bertjax.hardware import platform
from bertjax.interop import huggingface
from bertjax.models import resize, vocabulary
from bertjax.opening import SavedModel, split_name

# Words are counted in so much text at most, drawn from all over the corpus.
SAMPLE_CHARACTERS = 50_000_000
COUNT = 1000
PIECES = "new_pieces.txt"
_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Summary:
    """What became of a model.

    Attributes:
      target: the export that was written.
      vocab_size: ids before and now.
      max_positions: before and now.
      notes: what there is to say of the new pieces, a line each.
    """

    target: Path
    vocab_size: tuple[int, int]
    max_positions: tuple[int, int]
    notes: tuple[str, ...]


def run(
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    pieces: str = "",
    corpus: str = "",
    text_field: str = "text",
    count: int = COUNT,
    max_positions: int = 0,
) -> Summary:
    """Writes an export that goes on from `source` with a larger vocabulary or longer examples.

    Old ids and rows stay as they are. A new piece begins with the mean of the rows of the pieces that it was made of, a
    new position as a copy of an old one, in order and over again.

    Args:
      source: an export, a workdir `RUN` or `RUN@STEP`.
      target: a folder that is empty or not there yet.
      pieces: a text file with a new piece a line.
      corpus: instead, a corpus as in `data.corpus` whose frequent words become pieces.
      text_field: of that corpus.
      count: how many of its words.
      max_positions: tokens of the longest example; 0 leaves them.

    Raises:
      UserError: nothing to do, see `new_pieces` and `sources.parts`, or not more positions than there are.
    """
    path, target = Path(split_name(source)[0]), Path(os.path.expanduser(os.fspath(target)))
    if not (pieces or corpus or max_positions):
        raise UserError("there is nothing to do; give --pieces, --corpus or --max-positions")
    if pieces and corpus:
        raise UserError(f"--pieces={pieces} and --corpus={corpus} are both given; leave one of them out")
    if count < 1:
        raise UserError(f"--new-pieces={count} must be at least 1")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"--to={target} is there already and not empty; name another folder, or remove it")
    if huggingface.is_checkpoint(path) and not (path / export.MANIFEST).exists():
        raise UserError(
            f"{path} is a folder of transformers; {command('convert', f'--from={path}', '--to=EXPORT')} first"
        )
    found = SavedModel(source).export
    before, notes = found.encoder, []
    if max_positions:
        found = _with_positions(found, max_positions)
    if pieces or corpus:
        extended, notes = _extension(found, pieces, corpus, text_field, count)
        found = _with_pieces(found, extended)
        target.mkdir(parents=True, exist_ok=True)
        (target / PIECES).write_text("".join(f"{piece}\n" for piece in extended.pieces), encoding="utf-8")
    if found.numbers:  # they were measured before
        found = found._replace(numbers={"before_extension": found.numbers})
    export.write(target, found)
    return Summary(
        target,
        (before.vocab_size, found.encoder.vocab_size),
        (before.max_positions, found.encoder.max_positions),
        tuple(notes),
    )


def _with_positions(found: export.Export, max_positions: int) -> export.Export:
    before = found.encoder.max_positions
    if max_positions <= before:
        raise UserError(f"--max-positions={max_positions} is not more than the {before} that there are; name more")
    params = resize.add_positions(found.params, found.encoder, max_positions)
    return _with_settings(found, max_positions=max_positions)._replace(params=params)


def _extension(
    found: export.Export, pieces: str, corpus: str, text_field: str, count: int
) -> tuple[Extension, list[str]]:
    """The tokenizer with its new pieces, and what there is to say of them."""
    tokenizer, notes = new_pieces.wordpiece(found.tokenizer), []
    if pieces:
        extended = new_pieces.extend(tokenizer, new_pieces.read(pieces))
    else:
        counts = new_pieces.count_words(_sample(corpus, text_field), tokenizer)
        extended = new_pieces.extend(tokenizer, new_pieces.mine(counts, tokenizer, count))
        before, now = (new_pieces.tokens(counts, each) for each in (tokenizer, extended.tokenizer))
        notes.append(f"the {counts.total():,} words counted were {before:,} tokens, and are {now:,}")
    if extended.known:
        notes.append(f"in the vocabulary already, or named twice: {extended.known:,}")
    if unknown := sum(parts == (tokenizer.unk_id,) for parts in extended.parts):
        notes.append(f"[UNK] before, whose row they begin with: {unknown:,} of the new pieces")
    if lacking := extended.no_continuation:
        shown = " ".join(lacking[:_NAMED]) + " ..." * (len(lacking) > _NAMED)
        notes.append(
            f"characters without a ## piece of their own: {len(lacking):,} ({shown}); "
            "a longer word that begins with a new piece and goes on with one of them becomes [UNK]"
        )
    return extended, notes


def _sample(corpus: str, text_field: str) -> list[str]:
    sample = Sample(SAMPLE_CHARACTERS)
    for number, document in enumerate(sources.documents(corpus, text_field)):
        sample.add(number, digest(document.text), document.text)
    return sample.sentences("line")


def _with_pieces(found: export.Export, extended: Extension) -> export.Export:
    params = resize.add_pieces(found.params, found.encoder, extended.parts)
    vocab_size = extended.tokenizer.vocab_size
    found = _with_settings(found, vocab_size=vocab_size)
    return found._replace(params=vocabulary.pad(params, found.encoder), tokenizer=extended.tokenizer)


def _with_settings(found: export.Export, **settings: int) -> export.Export:
    """The export with other sizes of its encoder, in its configuration, too."""
    model = found.settings["model"] | settings
    return found._replace(
        settings=found.settings | {"model": model}, encoder=dataclasses.replace(found.encoder, **settings)
    )


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m bertjax.extend",
        description="Writes an export with new words in its WordPiece vocabulary, or with more positions, to go on\n"
        "pretraining from. Old ids stay, and texts without the new words are encoded as before.",
        epilog="examples:\n"
        "  words of your own:   python -m bertjax.extend models/bert --to=models/bio --pieces=words.txt\n"
        "  frequent words:      python -m bertjax.extend models/bert --to=models/bio --corpus=my/papers "
        "--new-pieces=1000\n"
        "  longer examples:     python -m bertjax.extend models/bert --to=models/long --max-positions=1024\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", help="an export, a workdir (its newest checkpoint), or WORKDIR@STEP")
    parser.add_argument("--to", dest="target", required=True, metavar="DIR", help="the export to write, not there yet")
    parser.add_argument("--pieces", default="", metavar="FILE", help="new pieces, one a line")
    parser.add_argument("--corpus", default="", help="take frequent words of this corpus that are several pieces now")
    parser.add_argument("--text-field", default="text", help="the field that holds a document (default: %(default)s)")
    parser.add_argument("--new-pieces", type=int, metavar="N", help=f"so many of them (default: {COUNT:,})")
    parser.add_argument("--max-positions", type=int, default=0, metavar="N", help="rows of the position table")
    args = parser.parse_args(argv)
    if args.new_pieces is not None and not args.corpus:
        raise UserError(f"--new-pieces={args.new_pieces} takes words of a corpus; name it with --corpus")
    platform.configure_logging()
    platform.configure("cpu")  # checkpoints are read through JAX, and nothing is computed
    summary = run(
        args.model,
        args.target,
        pieces=args.pieces,
        corpus=args.corpus,
        text_field=args.text_field,
        count=COUNT if args.new_pieces is None else args.new_pieces,
        max_positions=args.max_positions,
    )
    print(_told(summary))
    return 0


def _told(summary: Summary) -> str:
    lines = list(summary.notes)
    for name, (before, now) in (("ids", summary.vocab_size), ("positions", summary.max_positions)):
        lines.append(f"{name:<12}  {before:,} -> {now:,}" if now != before else f"{name:<12}  {before:,}, as before")
    flags = (f"--config=configs/adapt.py:{summary.target}", "--config.data.corpus=CORPUS")
    return "\n".join([*lines, f"{'export':<12}  {summary.target}", f"{'next':<12}  {command('train', *flags)}"])


if __name__ == "__main__":
    sys.exit(cli.exit_code_of(main))
