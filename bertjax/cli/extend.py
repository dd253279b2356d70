"""Write an export with new words, a second vocabulary or more positions, to continue pretraining from.

The vocabulary is one of WordPiece. Old ids do not change. Without a second vocabulary, texts without the new words are
encoded as before.

examples:
  words of your own:   python -m bertjax extend models/bert --to=models/bio --pieces=words.txt
  frequent words:      python -m bertjax extend models/bert --to=models/bio --corpus=my/papers --new-pieces=1000
  a student's pieces:  python -m bertjax extend models/bert --to=models/mixed --mix=small/tokenizer
  longer examples:     python -m bertjax extend models/bert --to=models/long --max-positions=1024
"""

import dataclasses
import os

from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.data import sources, tokenizer
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import digest
from bertjax.data.tokenizer import resizing
from bertjax.data.tokenizer.resizing import Extension
from bertjax.models import vocabulary
from bertjax.runtime import command_line, platform, storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError, printable, say

# Words are counted in a sample of the corpus, at most this large.
SAMPLE_CHARACTERS = 50_000_000
COUNT = 1000
SHARE = 0.5
PIECES = "new_pieces.txt"
_NAMED = 8


def run(
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    pieces: str = "",
    corpus: str = "",
    text_field: str = "text",
    count: int = COUNT,
    mix: str = "",
    share: float = SHARE,
    max_positions: int = 0,
) -> list[str]:
    """Write an export that continues `source` with a larger vocabulary or more positions.

    Old ids and rows do not change. A new piece starts with the mean row of the pieces that it replaces. New positions
    repeat the old ones in order.

    Args:
      source: an export folder, a workdir `RUN` or `RUN@STEP`.
      target: an empty or new folder.
      pieces: a text file with one new piece per line.
      corpus: instead of `pieces`, a corpus as in `data.corpus`; its frequent words become pieces.
      text_field: the field, column or feature of that corpus with the text.
      count: number of words to take from that corpus.
      mix: instead of `pieces`, a student's tokenizer, as in `data.tokenizer.model`.
      share: probability that a word is split by the tokenizer `mix`.
      max_positions: maximum tokens per example; 0 keeps the present value.

    Returns:
      Lines to print: remarks on the new pieces, the sizes before and after, and what to do next.

    Raises:
      UserError: nothing to do, bad pieces or a bad corpus, or no more positions than before.
    """
    target = command_line.new_target(target)
    if not (pieces or corpus or mix or max_positions):
        raise UserError("nothing to extend; give --pieces, --corpus, --mix or --max-positions")
    given = [f"--{name}={value}" for name, value in (("pieces", pieces), ("corpus", corpus), ("mix", mix)) if value]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other; give one of them")
    model = SavedModel(source).export
    before, notes = model.encoder, []
    if max_positions:
        if max_positions <= before.max_positions:
            raise UserError(
                f"--max-positions={max_positions} does not exceed the present {before.max_positions}; give a larger "
                "number"
            )
        params = vocabulary.add_positions(model.params, before, max_positions)
        encoder = dataclasses.replace(before, max_positions=max_positions)
        model = export.with_encoder(model, encoder, params)
    if given:
        extended, notes = _mixed(model, mix, share) if mix else _extension(model, pieces, corpus, text_field, count)
        params = vocabulary.add_pieces(model.params, model.encoder, extended.parts)
        encoder = dataclasses.replace(model.encoder, vocab_size=extended.tokenizer.vocab_size)
        # The padding follows from the new vocabulary size.
        model = export.with_encoder(model, encoder, vocabulary.pad(params, encoder))
        model = model._replace(tokenizer=extended.tokenizer)
    if model.numbers:  # scores of the old model must not pass for scores of the new one
        model = model._replace(numbers={"before_extension": model.numbers})
    with storage.whole_folder(target) as draft:
        export.write(draft, model)
        if given:
            (draft / PIECES).write_text("".join(f"{piece}\n" for piece in extended.pieces), encoding="utf-8")
    lines = list(map(printable, notes))
    for name, field in (("ids", "vocab_size"), ("positions", "max_positions")):
        old, new = getattr(before, field), getattr(model.encoder, field)
        lines.append(f"{name:<12}  {old:,} -> {new:,}" if new != old else f"{name:<12}  {old:,}, as before")
    next_step = command("train", f"--config=configs/adapt.py:{target}", "--config.data.corpus=CORPUS")
    return [*lines, f"{'export':<12}  {target}", f"{'next':<12}  {next_step}"]


def _extension(
    model: export.Export, pieces: str, corpus: str, text_field: str, count: int
) -> tuple[Extension, list[str]]:
    """Return the tokenizer with new pieces, and remarks on them."""
    first, notes = resizing.wordpiece(model.tokenizer), []
    if pieces:
        extended = resizing.extend(first, resizing.read(pieces))
    else:
        sample = Sample(SAMPLE_CHARACTERS)
        for number, document in enumerate(sources.documents(corpus, text_field)):
            sample.add(number, digest(document.text), document.text)
        counts = resizing.count_words(sample.sentences("line"), first)
        extended = resizing.extend(first, resizing.mine(counts, first, count))
        before, now = (resizing.tokens(counts, version) for version in (first, extended.tokenizer))
        notes.append(f"the {counts.total():,} words counted were {before:,} tokens and are {now:,} now")
    if extended.known:
        notes.append(f"skipped, in the vocabulary already or listed twice: {extended.known:,}")
    if unknown := sum(parts == (first.unk_id,) for parts in extended.parts):
        notes.append(f"new pieces that were [UNK] before and start with its row: {unknown:,}")
    if lacking := extended.no_continuation:
        listed = " ".join(lacking[:_NAMED]) + " ..." * (len(lacking) > _NAMED)
        notes.append(
            f"characters without a ## piece: {len(lacking):,} ({listed}); a longer word that starts with a new piece "
            "and continues with one of them becomes [UNK]"
        )
    return extended, notes


def _mixed(model: export.Export, mix: str, share: float) -> tuple[Extension, list[str]]:
    """Return the tokenizer with a second vocabulary, and a remark on it."""
    first, second = (resizing.wordpiece(each) for each in (model.tokenizer, tokenizer.from_model(mix)))
    extended = resizing.mix(first, second, share)
    shared = f"{extended.known:,} of the {second.vocab_size:,} pieces of {mix} were in the vocabulary"
    return extended, [f"{shared}; a word is split by {mix} with probability {share}"]


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = command_line.ArgumentParser("extend", __doc__)
    command_line.add_model_and_target(parser)
    parser.add_flags(
        {
            "--pieces=FILE": "text file with one new piece per line",
            "--corpus": "add frequent words of this corpus that are split now",
            "--text-field": "field of that corpus that holds a document (default: %(default)s)",
            "--mix=TOKENIZER": "add the WordPiece vocabulary of a student",
        }
    )
    parser.set_defaults(text_field="text")
    parser.add_flags({"--new-pieces=N": f"number of words to add (default: {COUNT:,})"}, type=command_line.positive)
    parser.add_flags({"--share=P": f"share of words split by --mix (default: {SHARE})"}, type=float)
    parser.add_flags({"--max-positions=N": "new number of rows of the position table"}, type=int, default=0)
    args = parser.parse_args(argv)
    # These defaults are None, to tell a flag that has no effect from one that was not given.
    if args.new_pieces is not None and not args.corpus:
        raise UserError(f"--new-pieces={args.new_pieces} counts words of a corpus; name it with --corpus")
    if args.share is not None and not args.mix:
        raise UserError(f"--share={args.share} is that of a second vocabulary; name its tokenizer with --mix")
    platform.configure("cpu")  # JAX only reads checkpoints here
    lines = run(
        args.model,
        args.target,
        pieces=args.pieces,
        corpus=args.corpus,
        text_field=args.text_field,
        count=COUNT if args.new_pieces is None else args.new_pieces,
        mix=args.mix,
        share=SHARE if args.share is None else args.share,
        max_positions=args.max_positions,
    )
    say("\n".join(lines))
    return 0
