"""Page sections about a token store: contents, lengths, scripts, pieces, dropped documents."""

import collections
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.drawing import Figure
from bertjax.analysis.page import Section, Table
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
    caption = (
        f"What training and evaluation read. Above {MOST_TOKENS_A_WORD} tokens per word, the vocabulary does not fit a "
        "source well. In a script without spaces, characters count as words."
    )
    headings = ("split", "documents", "sentences", "tokens", "tokens per word", "[UNK]", "MB of text")
    longest = tuple(
        (name_of(source, document, manifest), f"{tokens:,}") for tokens, source, document in manifest["longest"]
    )
    of_longest = "The longest documents. A book or a log file among pages is easily seen here."
    tables = Table(caption, headings, tuple(rows)), Table(of_longest, ("document", "tokens"), longest)
    return Section("contents", "Contents", tuple(paragraphs), tables)


def _text(store: TokenStore) -> Section:
    """Return documents as text, and passages that a wrong encoding or leftover markup has spoiled."""
    documents = damage.documents(store, _SHOWN, tokens=_BEGINNING)
    samples = tuple((str(number), _beginning(text)) for number, text in enumerate(documents, start=1))
    caption = "Beginnings of training documents, read back from their tokens. The model learns what is wrong here, too."
    found = damage.damages(store)
    rows = tuple((each.what, f"{each.share:.1%}", " ⏎ ".join(each.examples), each.remedy) for each in found)
    of_damage = "Damaged text among the documents that were looked at, with a passage of a few of them."
    tables = (
        Table(caption, ("document", "its beginning"), samples),
        Table(of_damage, ("documents that", "share", "passages", "remedy"), rows),
    )
    return Section("text", "Text", blocks=tables)


def _beginning(text: str) -> str:
    return " ".join(text.split())[:_BEGINNING]


def _lengths(store: TokenStore) -> Section:
    splits = {name: store.split(name) for name in SPLITS}
    with drawing.style():
        figure, panels = drawing.panels(2, width=3.6)
        draw_histograms(panels, splits, drawing.COLORS)
    middle = {what: _median(splits["train"], what) for what in ("document", "sentence")}
    caption = (
        "Lengths in tokens, four bins an octave, both axes logarithmic. Documents shorter than a row are packed "
        f"together; longer ones are cut. Half of the training documents have at most about {middle['document']:,.0f} "
        f"tokens, and half of the sentences at most about {middle['sentence']:,.0f}."
    )
    alternative = f"Histograms; medians {middle['document']:,.0f} and {middle['sentence']:,.0f} tokens."
    return Section("lengths", "Lengths", blocks=(Figure("store-lengths", caption, alternative, lambda: figure),))


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
    rows = tuple(
        (source, *(f"{of_source.get(name, 0.0):.2%}" for name in names)) for source, of_source in shares.items()
    )
    caption = (
        "Shares of the letters of the training documents, without those that became bytes or [UNK]. A filter of the "
        "kind scripts drops documents in a script that nobody expected."
    )
    return Section("scripts", "Scripts", blocks=(Table(caption, ("source", *names), rows),))


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
    with drawing.style():
        figure, [axes] = drawing.panels(1, width=3.6)
        # Pieces that never occur are drawn at 0.5, since a logarithmic axis has no 0.
        axes.loglog(np.arange(1, 1 + len(ranked)), np.maximum(ranked, 0.5), color=drawing.COLORS[0])
        axes.set(xlabel="rank of the piece", ylabel="times in the training text")
    rare = int(np.count_nonzero(ranked < FREQUENT))
    caption = (
        "How often each piece of the vocabulary occurs, the most frequent one first; a line that falls evenly is "
        f"Zipf's law. {rare:,} of {len(ranked):,} pieces occur fewer than {FREQUENT} times, too rarely to be learned "
        f"well (Gowda & May, 2020, arXiv 2004.02334). This size: {vocabulary.advice(store, counts_V)}."
    )
    alternative = f"{rare:,} pieces occur fewer than {FREQUENT} times."
    blocks = [Figure("store-pieces", caption, alternative, lambda: figure), _sizes(store, counts_V)]
    found = characters.load(store.path)
    share = sum(found.missing.values()) / max(1, found.total)
    of_sample = f"of {found.distinct:,} in the sample"
    removed = f"Characters that the tokenizer removes, {len(found.removed):,} {of_sample}."
    missing = (
        f"Characters without a piece become {found.becomes}: {len(found.missing):,} {of_sample} that the tokenizer was "
        f"trained on, {share:.3%} of its text. These are the most frequent ones; data.tokenizer.keep forces characters "
        "into the vocabulary."
    )
    for caption, times in ((removed, found.removed), (missing, found.missing)):
        most = itertools.islice(times.items(), _MOST_CHARACTERS)
        rows = tuple((character, f"U+{ord(character):04X}", f"{number:,}") for character, number in most)
        blocks.append(Table(caption, ("character", "code point", "times in the sample"), rows))
    return Section("pieces", "Pieces", blocks=tuple(blocks))


def _sizes(store: TokenStore, counts_V: np.ndarray) -> Table:
    """Return what smaller vocabularies would cost."""
    counts = store.manifest["splits"]["train"]
    rows = tuple(
        (
            f"{row.size:,}",
            f"{row.tokens / max(1, counts['words']):.2f}",
            f"{counts['bytes'] / max(1, row.tokens):.2f}",
            f"{row.rare:,} ({row.rare / row.size:.0%})",
        )
        for row in vocabulary.rows(store, counts_V)
    )
    caption = (
        "The vocabulary, last, beside smaller ones that have its first pieces. Fewer pieces make more tokens a word; "
        "more pieces are rarer, and each costs a row of the embedding."
    )
    return Table(caption, ("pieces", "tokens per word", "bytes per token", f"fewer than {FREQUENT} times"), rows)


def _left_out(store: TokenStore) -> Section:
    manifest, cleaning = store.manifest, store.manifest.get("cleaning", {})
    columns = {"duplicates": manifest["duplicates"], "skipped": manifest["skipped"]}
    if "near_duplicates" in cleaning:
        columns["near-duplicates"] = cleaning["near_duplicates"]
    for source, by_rule in cleaning.get("dropped", {}).items():
        for rule, reasons in by_rule.items():
            columns.setdefault(f"dropped by {rule}", {})[source] = sum(reasons.values())
    rows = tuple(
        (source, *(f"{column.get(source, 0):,}" for column in columns.values())) for source in manifest["duplicates"]
    )
    caption = (
        "Documents that were read and are not in the store. A duplicate has the text of an earlier document. A bad "
        "document is skipped if data.on_bad_document=skip."
    )
    blocks = [Table(caption, ("source", *columns), rows)]
    if cleaning:
        blocks += [_reasons(store), _clusters(cleaning)]
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
    rows = [
        (rule, reason, f"{number:,}", " ⏎ ".join(examples[rule, reason]))
        for (rule, reason), number in numbers.most_common()
    ]
    caption = (
        "Why filters dropped documents, the most frequent reason first. Read the examples: a rule made for English "
        "web pages drops good text of other kinds. The file cleaning.jsonl.gz in the store lists every document."
    )
    return Table(caption, ("filter", "reason", "documents", "examples"), tuple(rows))


def _clusters(cleaning: Mapping[str, Sequence]) -> Table:
    rows = tuple(
        (document, f"{size:,}", _beginning(beginning)) for size, document, beginning in cleaning.get("largest", ())
    )
    caption = (
        f"The largest of {cleaning.get('clusters', 0):,} clusters of near-duplicates, found by MinHash (Broder, 1997). "
        "One document of each stays: a held-out one, or else the longest."
    )
    return Table(caption, ("document that stays", "documents", "its beginning"), rows)
