"""Write variants of texts without labels: words that a masked LM replaces, and n-grams.

Train a student on them with examples.unlabeled (docs/guides/compression.md).

examples:
  words that a model fills in:  python -m bertjax augment train.tsv --to=more.jsonl --text=sentence --model=my/bert
  pairs, without a model:       python -m bertjax augment train.tsv --to=more.jsonl --text=sentence1 --pair=sentence2
"""

import json
from pathlib import Path

from bertjax.config.opening import SavedModel
from bertjax.data.text.augmentation import MASK, Augmentation
from bertjax.inference.fill import Refill
from bertjax.inference.predictor import Predictor
from bertjax.inference.records import read_file
from bertjax.runtime import command_line, platform
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError, say
from bertjax.runtime.storage import write_text

CANDIDATES = 15


def run(
    source: str,
    target: str,
    fields: tuple[str, ...],
    augmentation: Augmentation,
    model: str = "",
    candidates: int = CANDIDATES,
) -> tuple[int, int]:
    """Write variants of a file's texts as .jsonl, without labels and without duplicates.

    Args:
      source: a table with these fields, or a file with one text per line.
      target: the .jsonl file, which must not exist.
      fields: text columns: one, or two for pairs.
      augmentation: how variants are drawn.
      model: a model with a masked-LM head that fills [MASK]; required unless `augmentation.mask` is 0.
      candidates: how many of the most likely pieces to draw from.

    Returns:
      (records read, variants written).

    Raises:
      UserError: a file cannot be read, the target exists, its folder does not exist, no model fills [MASK], or nothing
        is left to write.
    """
    if augmentation.mask and not model:
        raise UserError(f"--mask={augmentation.mask} needs a masked LM that fills [MASK]; add --model, or --mask=0")
    if not target.endswith(".jsonl"):
        raise UserError(f"--to={target} is written as JSON lines; name a file that ends in .jsonl")
    path = Path(target).expanduser()
    if path.exists():
        raise UserError(f"--to={target} exists; name another file, or remove it")
    if not path.parent.is_dir():
        raise UserError(f"--to={target} is in a folder that does not exist; make {path.parent} first")
    records = read_file(source, fields)
    variants = augmentation.variants([[record[field] for field in fields] for record in records])
    # Tang et al. (2019, arXiv 1903.12136) leave [MASK] in the text, Jiao et al. (2020, arXiv 1909.10351) fill it.
    if model:
        variants = _filled(variants, model, augmentation, candidates)
    lines = [json.dumps(dict(zip(fields, variant)), ensure_ascii=False) for variant in variants]
    # Different draws may give the same variant; a set would also change the order.
    lines = list(dict.fromkeys(lines))
    if not lines:
        raise UserError(f"{source} has no text that changes; raise --copies, --mask or --ngrams")
    write_text(path, "".join(f"{line}\n" for line in lines))
    return len(records), len(lines)


def _filled(variants: list[list[str]], model: str, augmentation: Augmentation, candidates: int) -> list[list[str]]:
    """Return the variants with a word for every [MASK]."""
    places = [(row, column) for row, texts in enumerate(variants) for column, text in enumerate(texts) if MASK in text]
    predictor = Predictor(SavedModel(model).export)
    pipeline = predictor.pipeline(Refill, top=candidates, augmentation=augmentation)
    # After the pipeline is built: a model without a masked-LM head is refused in any case.
    if not places:
        return variants
    texts = [{"text": variants[row][column], "number": index} for index, (row, column) in enumerate(places)]
    for (row, column), filled in zip(places, predictor.predictions(predictor.request(pipeline, texts)), strict=True):
        variants[row][column] = filled["filled"]
    return variants


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("augment", __doc__)
    parser.add_argument("file", help="a table (.tsv, .csv, .jsonl, .json) with the column of --text, or lines of text")
    parser.add_flags({"--to=FILE": "the .jsonl file to write"}, required=True)
    parser.add_flags({"--text": "column of the text (default: %(default)s)"}, default="text")
    parser.add_flags(
        {
            "--pair": "column of the second text of pairs",
            "--model": "export or run with a masked-LM head, which fills [MASK]",
        }
    )
    parser.add_flags({"--copies": "variants of each record (default: %(default)s)"}, type=int, default=20)
    parser.add_flags({"--mask": "share of words that change (default: %(default)s)"}, type=float, default=0.1)
    parser.add_flags({"--ngrams": "share of n-grams (default: %(default)s)"}, type=float, default=0.25)
    parser.add_flags({"--longest-ngram": "most words of an n-gram (default: %(default)s)"}, type=int, default=5)
    of_candidates = {"--candidates": "words to draw from (default: %(default)s)"}
    parser.add_flags(of_candidates, type=command_line.positive, default=CANDIDATES)
    parser.add_flags({"--seed": "seed of all draws (default: %(default)s)"}, type=int, default=0)
    command_line.add_platform_flag(parser)
    args = parser.parse_args(argv)
    augmentation = Augmentation(args.copies, args.mask, args.ngrams, args.longest_ngram, args.seed)
    platform.configure(args.platform)
    fields = (args.text, args.pair) if args.pair else (args.text,)
    read, written = run(args.file, args.to, fields, augmentation, args.model, args.candidates)
    say(f"{read:,} records gave {written:,} variants in {args.to}")
    flags = ("--config=configs/finetune/distill.py:logits", f"--config.tasks.classify.examples.unlabeled={args.to}")
    say(f"next  {command('train', *flags, '...')}")
    return 0
