"""Page sections about a token store: contents, lengths, scripts, pieces, dropped documents."""

import collections
import itertools

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.page import Section, Table, table
from bertjax.data.filters.rules import kind_of
from bertjax.data.inspect import characters, damage, vocabulary
from bertjax.data.inspect.report import draw_histograms, histogram, name_of, warnings
from bertjax.data.inspect.vocabulary import FREQUENT, MOST_TOKENS_A_WORD
from bertjax.data.preparation.cleaning import read_dropped
from bertjax.data.store import COUNTED_AT_ONCE, SPLITS, Split, TokenStore

_MOST_SCRIPTS = 8
_MOST_CHARACTERS = 20
_EXAMPLES = 3
_BEGINNING = 160
_SHOWN = 6
_NO_LETTERS = ("SPACE", "SYMBOL", "OTHER")


def sections_of(store: TokenStore) -> list[Section]:
    """Return the sections about a store.

    Raises:
      UserError: a file of the store is damaged.
    """
    return [_contents(store), _text(store), _lengths(store), _scripts(store), _pieces(store), _left_out(store)]


def _contents(store: TokenStore) -> Section:
    manifest, rows = store.manifest, []
    for split in SPLITS:
        by_source = manifest["counts"][split]
        sources = [(f"{split}: {source}", counts) for source, counts in by_source.items()] if len(by_source) > 1 else []
        for label, counts in ((split, manifest["splits"][split]), *sources):
            numbers = (f"{counts[name]:,}" for name in ("documents", "sentences", "tokens"))
            fertility, unk = counts["tokens"] / max(1, counts["words"]), counts["unk"] / max(1, counts["tokens"])
            rows.append((label, *numbers, f"{fertility:.2f}", f"{unk:.3%}", f"{counts['bytes'] / 1e6:,.1f}"))
    spec = manifest["spec"]
    corpora = ", ".join(f"`{name}`" for name in manifest["duplicates"])
    paragraphs = [
        f"Sources: {corpora}. Sentences are split by the rule `{spec['splitter']}`, and the vocabulary has "
        f"{store.tokenizer.vocab_size:,} pieces.",
        *(f"{text[0].upper()}{text[1:]}." for text in warnings(store, store.unigram_counts("train"))),
    ]
    headings = ("split", "documents", "sentences", "tokens", "tokens per word", "[UNK]", "MB of text")
    longest = ((name_of(source, document, manifest), f"{tokens:,}") for tokens, source, document in manifest["longest"])
    tables = (
        table("store/contents", headings, rows, most=MOST_TOKENS_A_WORD),
        table("store/longest", ("document", "tokens"), longest),
    )
    return Section("contents", "Contents", tuple(paragraphs), tables)


def _text(store: TokenStore) -> Section:
    """Return documents as text, and passages that a wrong encoding or leftover markup has spoiled."""
    documents = damage.documents(store, _SHOWN, tokens=_BEGINNING)
    samples = ((str(number), _beginning(text)) for number, text in enumerate(documents, start=1))
    damages = damage.damages(store)
    rows = ((each.what, f"{each.share:.1%}", " ⏎ ".join(each.examples), each.remedy) for each in damages)
    tables = (
        table("store/text", ("document", "its beginning"), samples),
        table("store/damage", ("documents that", "share", "passages", "remedy"), rows),
    )
    return Section("text", "Text", blocks=tables)


def _beginning(text: str) -> str:
    return " ".join(text.split())[:_BEGINNING]


def _lengths(store: TokenStore) -> Section:
    splits = {name: store.split(name) for name in SPLITS}

    def draw():
        figure, panels = drawing.panels(2, width=3.6)
        draw_histograms(panels, splits, drawing.COLORS)
        return figure

    medians = {what: _median(splits["train"], what) for what in ("document", "sentence")}
    chart = drawing.Chart("Histograms of lengths.", draw)
    return Section("lengths", "Lengths", blocks=(drawing.figure("store/store-lengths", chart, **medians),))


def _median(split: Split, what: str) -> float:
    """Return the upper edge of the histogram bin that contains the median length."""
    edges, counts = histogram(split, what)
    return float(edges[1:][np.searchsorted(np.cumsum(counts), counts.sum() / 2)])


def _scripts(store: TokenStore) -> Section:
    tokenizer, hidden = store.tokenizer, store.tokenizer.special_ids | store.tokenizer.byte_ids
    pieces = ("" if i in hidden else tokenizer.decode([i]) for i in range(tokenizer.vocab_size))
    kinds = [collections.Counter(map(kind_of, piece)) for piece in pieces]
    shares: dict[str, dict[str, float]] = {}
    # Letters are counted per piece and multiplied by the piece's frequency: no text is read again.
    for source in store.manifest["counts"]["train"]:
        letters: collections.Counter[str] = collections.Counter()
        for count, kind in zip(_counts(store.split("train", source), len(kinds)).tolist(), kinds):
            letters.update({name: count * number for name, number in kind.items() if name not in _NO_LETTERS})
        total = max(1, sum(letters.values()))
        shares[source] = {name: number / total for name, number in letters.most_common() if number}
    ranked = collections.Counter()
    for of_source in shares.values():
        ranked.update(of_source)
    names = [name for name, _ in ranked.most_common(_MOST_SCRIPTS)]
    rows = ((source, *(f"{of_source.get(name, 0.0):.2%}" for name in names)) for source, of_source in shares.items())
    return Section("scripts", "Scripts", blocks=(table("store/scripts", ("source", *names), rows),))


def _counts(split: Split, vocab_size: int) -> np.ndarray:
    """Return token counts in the documents of a split; int64 [V]."""
    first, last = (int(split.sentences[split.documents[end]]) for end in (0, -1))
    counts_V = np.zeros(vocab_size, np.int64)
    # In blocks: `bincount` converts its input to int64, which would not fit in memory for a large store.
    for start in range(first, last, COUNTED_AT_ONCE):
        counts_V += np.bincount(split.tokens[start : min(start + COUNTED_AT_ONCE, last)], minlength=vocab_size)
    return counts_V


def _pieces(store: TokenStore) -> Section:
    tokenizer, counts_V = store.tokenizer, store.unigram_counts("train")
    learned = np.delete(counts_V, sorted(tokenizer.special_ids | tokenizer.byte_ids))
    ranked = np.sort(learned)[::-1]
    # Pieces that never occur are drawn at 0.5, since a logarithmic axis has no 0.
    lines = {"pieces": (np.arange(1, 1 + len(ranked)), np.maximum(ranked, 0.5))}
    chart = drawing.curves(lines, "rank of the piece", "times in the training text", scale="log", markers=False)
    values = {"rare": int(np.count_nonzero(ranked < FREQUENT)), "pieces": len(ranked), "frequent": FREQUENT}
    figure = drawing.figure("store/store-pieces", chart, advice=vocabulary.advice(store, counts_V), **values)
    found = characters.load(store.path)
    values = {"removed": len(found.removed), "missing": len(found.missing), "distinct": found.distinct}
    values |= {"becomes": found.becomes, "share": sum(found.missing.values()) / max(1, found.total)}
    blocks = [figure, _sizes(store, counts_V)]
    for name, times in (("store/removed", found.removed), ("store/missing", found.missing)):
        most = itertools.islice(times.items(), _MOST_CHARACTERS)
        rows = ((character, f"U+{ord(character):04X}", f"{number:,}") for character, number in most)
        blocks.append(table(name, ("character", "code point", "times in the sample"), rows, **values))
    return Section("pieces", "Pieces", blocks=tuple(blocks))


def _sizes(store: TokenStore, counts_V: np.ndarray) -> Table:
    """Return what smaller vocabularies would cost."""
    counts = store.manifest["splits"]["train"]
    rows = (
        (
            f"{row.size:,}",
            f"{row.tokens / max(1, counts['words']):.2f}",
            f"{counts['bytes'] / max(1, row.tokens):.2f}",
            f"{row.rare:,} ({row.rare / row.size:.0%})",
        )
        for row in vocabulary.rows(store, counts_V)
    )
    headings = ("pieces", "tokens per word", "bytes per token", f"fewer than {FREQUENT} times")
    return table("store/sizes", headings, rows)


def _left_out(store: TokenStore) -> Section:
    manifest, cleaning = store.manifest, store.manifest.get("cleaning", {})
    columns = {"duplicates": manifest["duplicates"], "skipped": manifest["skipped"]}
    if "near_duplicates" in cleaning:
        columns["near-duplicates"] = cleaning["near_duplicates"]
    for source, by_rule in cleaning.get("dropped", {}).items():
        for rule, reasons in by_rule.items():
            columns.setdefault(f"dropped by {rule}", {})[source] = sum(reasons.values())
    rows = (
        (source, *(f"{column.get(source, 0):,}" for column in columns.values())) for source in columns["duplicates"]
    )
    blocks = [table("store/left-out", ("source", *columns), rows)]
    if cleaning:
        blocks.append(_reasons(store))
        largest = (
            (document, f"{size:,}", _beginning(beginning)) for size, document, beginning in cleaning.get("largest", ())
        )
        headings, clusters = ("document that stays", "documents", "its beginning"), cleaning.get("clusters", 0)
        blocks.append(table("store/clusters", headings, largest, clusters=clusters))
    return Section("left-out", "What was left out", blocks=tuple(blocks))


def _reasons(store: TokenStore) -> Table:
    """Return a table with the reasons for which filters dropped documents, and examples of each."""
    numbers: collections.Counter[tuple[str, str]] = collections.Counter()
    examples: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for line in read_dropped(store.path):
        if "kept" in line or "text" not in line:
            continue  # a duplicate
        reason = line["rule"], line["reason"]
        numbers[reason] += 1
        if len(examples[reason]) < _EXAMPLES:
            examples[reason].append(_beginning(line["text"]))
    rows = (
        (rule, reason, f"{number:,}", " ⏎ ".join(examples[rule, reason]))
        for (rule, reason), number in numbers.most_common()
    )
    return table("store/reasons", ("filter", "reason", "documents", "examples"), rows)
