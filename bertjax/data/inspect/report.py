"""Token store report for the terminal: contents, costs, filters, warnings and readable rows; lengths as a picture."""

import collections
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.data.inspect import damage, vocabulary
from bertjax.data.inspect.characters import load as load_characters
from bertjax.data.pipeline import Feed
from bertjax.data.preparation import cleaning
from bertjax.data.preparation.cleaning import READ, read_dropped
from bertjax.data.store import SPLITS, Split, TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_config import ONLY_FOR
from bertjax.runtime.errors import printable

MOST_UNK = 0.01
# The report warns above these shares of characters that the tokenizer removes, and of documents that one filter drops.
MOST_REMOVED = 0.001
MOST_DROPPED = 0.1
# Histograms of document and sentence lengths, in the folder of the store.
LENGTHS = "lengths.png"
COUNTED_AT_ONCE = 1 << 20
BINS_AN_OCTAVE = 4

_COLUMNS = ("documents", "sentences", "tokens", "tokens/word", "[UNK]")
_HEADER = "{:16}{:>12}{:>12}{:>15}{:>13}{:>9}"
_LINE = "{:16}{:12,}{:12,}{:15,}{:13.2f}{:9.3%}"


def report(store: TokenStore) -> str:
    """Return the report: contents, excluded documents, longest documents, vocabulary, size and warnings."""
    manifest = store.manifest
    lines: list[str] = [_HEADER.format("", *_COLUMNS)]
    for name in SPLITS:
        lines.append(_line(name, manifest["splits"][name]))
        if len(manifest["counts"][name]) > 1:
            lines += [_line(f"  {source}", counts) for source, counts in manifest["counts"][name].items()]
    if share := manifest["spec"].get("share"):
        lines.append(f"share: {share:.3%} of the training documents (data.share)")
    lines += [f"duplicates dropped: {_counts(manifest['duplicates'])}", f"skipped: {_counts(manifest['skipped'])}"]
    lines += cleaning.ledger_lines(manifest["ledger"])
    lines += cleaning_lines(manifest.get("cleaning", {}))
    longest = (f"{name_of(source, name, manifest)} {tokens:,}" for tokens, source, name in manifest["longest"])
    lines.append(f"longest documents: {', '.join(longest)}")
    counts_V = store.unigram_counts("train")
    lines += _pieces(store, counts_V)
    text = sum(counts["bytes"] for counts in manifest["splits"].values())
    size = sum(file["bytes"] for file in manifest["files"].values())
    lines.append(f"{size / 1e6:,.1f} MB, {size / text:.2f} times the text, in {store.path}; see {LENGTHS} there")
    return "\n".join(lines + warnings(store, counts_V))


def _line(name: str, counts: dict[str, int]) -> str:
    tokens = max(1, counts["tokens"])
    shares = counts["tokens"] / max(1, counts["words"]), counts["unk"] / tokens
    return _LINE.format(name, counts["documents"], counts["sentences"], counts["tokens"], *shares)


def name_of(source: str, document: str, manifest: dict) -> str:
    """Return a document's readable name, with its source if there are several."""
    return f"{source}/{document}" if len(manifest["duplicates"]) > 1 else document


def _pieces(store: TokenStore, counts_V: np.ndarray) -> list[str]:
    """Return report lines on vocabulary size, byte pieces, and characters without a piece."""
    tokenizer = store.tokenizer
    lines = vocabulary.lines(store, counts_V)
    if tokenizer.byte_ids:
        share = counts_V[sorted(tokenizer.byte_ids)].sum() / max(1, counts_V.sum())
        lines.append(f"byte pieces: {share:.3%} of the training tokens")
    trained = store.manifest["spec"].get("tokenizer")
    # A string is the fingerprint of an existing tokenizer, on which the flag for `keep` would have no effect.
    can_keep = isinstance(trained, dict) and trained.get("kind") in ONLY_FOR["keep"]
    return lines + load_characters(Path(store.path)).lines(can_keep)


def warnings(store: TokenStore, counts_V: np.ndarray) -> list[str]:
    """Return warnings about empty sources, strict filters, lost text, long words, and damaged text.

    Args:
      counts_V: occurrences per token in the training split.
    """
    manifest, characters = store.manifest, load_characters(Path(store.path))
    lines = [*empty_sources(manifest), *filter_warnings(manifest, MOST_DROPPED)]
    remedy = (
        "train a tokenizer on this text"
        if isinstance(manifest["spec"].get("tokenizer"), str)
        else (
            "raise data.tokenizer.character_coverage"
            + " or set data.tokenizer.byte_fallback" * (not store.tokenizer.longest_word)
        )
    )
    lost = characters.warnings(MOST_UNK, MOST_REMOVED, remedy)
    for name, by_source in manifest["counts"].items():
        for source, counts in by_source.items():
            where = name if len(by_source) == 1 else f"{name} {source}"
            # Warnings about lost characters name the cause, and this one would only repeat them.
            if counts["unk"] > MOST_UNK * counts["tokens"] and not lost:
                share = counts["unk"] / counts["tokens"]
                lines.append(f"warning: {share:.1%} of the tokens of {where} are [UNK]; {remedy}")
    return lines + lost + vocabulary.warnings(store, counts_V) + damage.warnings(store)


def draw_lengths(splits: dict[str, Split], folder: Path) -> None:
    """Plot length histograms in tokens, with logarithmic bins, into `folder`."""
    # `Figure` instead of pyplot: it needs no display, and keeps no figure open.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4))
    draw_histograms(figure.subplots(1, 2), splits)
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    figure.savefig(folder / LENGTHS, dpi=120)


def draw_histograms(panels: Iterable[Any], splits: dict[str, Split], colors: Sequence[str] = ("C0", "C1")) -> None:
    """Plot the lengths of documents and of sentences into two panels of matplotlib, each split in its color."""
    for axes, what in zip(panels, ("document", "sentence"), strict=True):
        for color, (name, split) in zip(colors, splits.items()):
            edges, counts = histogram(split, what)
            axes.stairs(counts, edges, label=name, color=color, fill=name == "train", alpha=0.7)
        axes.set(yscale="log", xlabel=f"tokens in a {what}", ylabel=f"{what}s")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()  # drawing one tick takes as long as a whole histogram
        axes.legend()


def histogram(split: Split, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a length histogram in tokens, computed in constant memory.

    Args:
      what: `document` or `sentence`.

    Returns:
      Bin edges, four bins per octave, float64 [bins+1], and counts, int64 [bins].
    """
    octaves = 1 + max(1, len(split.tokens)).bit_length()
    # Shifted by half a bin, so the lengths 1, 2, 4, ... are in the middle of a bin and not on its edge.
    edges = 2 ** (np.arange(octaves * BINS_AN_OCTAVE + 1) / BINS_AN_OCTAVE - 0.5 / BINS_AN_OCTAVE)
    counts = np.zeros(len(edges) - 1, np.int64)
    starts = split.documents if what == "document" else split.sentences
    for first in range(0, len(starts) - 1, COUNTED_AT_ONCE):
        bounds = np.asarray(starts[first : first + COUNTED_AT_ONCE + 1])
        if what == "document":
            # Document offsets count sentences; these tell at which token each sentence starts.
            bounds = split.sentences[bounds]
        counts += np.histogram(np.diff(bounds), edges)[0]
    used = np.flatnonzero(counts)
    first, stop = used[0], used[-1] + 1
    return edges[first : stop + 1], counts[first:stop]


CLUSTERS_LISTED = 3
BEGINNING = 80


def cleaning_lines(cleaning: dict[str, Any]) -> list[str]:
    """Return the counts in a store's manifest by filter, reason and source; empty if nothing was cleaned."""
    if not cleaning:
        return []
    result = []
    by_reason: dict[tuple[str, str], dict[str, int]] = collections.defaultdict(dict)
    for source, by_rule in cleaning["dropped"].items():
        for rule, reasons in by_rule.items():
            for reason, number in reasons.items():
                by_reason[rule, reason][source] = number
    # By filter, then the most frequent reason first; the reason breaks ties, so the report is always the same.
    ranked = sorted(by_reason.items(), key=lambda entry: (entry[0][0], -sum(entry[1].values()), entry[0][1]))
    for (rule, reason), by_source in ranked:
        result.append(f"dropped by {rule}: {_counts(by_source)}, {printable(reason)}")
    changed: dict[str, dict[str, list[int]]] = collections.defaultdict(dict)
    for source, by_rule in cleaning["changed"].items():
        for rule, numbers in by_rule.items():
            changed[rule][source] = numbers
    for rule, by_source in sorted(changed.items()):
        changes = sum(number for _, number in by_source.values())
        documents = _counts({source: number for source, (number, _) in by_source.items()})
        result.append(f"changed by {rule}: {documents}, {changes:,} changes")
    if "clusters" in cleaning:
        result.append(f"near-duplicates dropped: {_counts(cleaning['near_duplicates'])}")
        result.append(f"clusters of near-duplicates: {cleaning['clusters']:,}")
        for size, document, beginning in cleaning["largest"][:CLUSTERS_LISTED]:
            start = " ".join(beginning.split())[:BEGINNING]
            result.append(f"  {size:,} documents, {printable(document)} stays: {printable(start)}")
    return result


def empty_sources(manifest: dict[str, Any]) -> list[str]:
    """Return a warning for each source without a training document."""
    return [
        f"warning: no training document of {source} is left; --show-dropped=5 prints why, for each filter"
        for source, counts in manifest["counts"]["train"].items()
        if not counts["documents"]
    ]


def filter_warnings(manifest: dict[str, Any], most: float) -> list[str]:
    """Return a warning for each filter that drops too many documents in a source.

    Args:
      manifest: the store's manifest.
      most: largest fraction of a source's documents without a warning.
    """
    lines = []
    for source, by_rule in manifest.get("cleaning", {}).get("dropped", {}).items():
        read, _ = manifest["ledger"][source][READ]
        of = f" of {source}" if len(manifest["duplicates"]) > 1 else ""
        for rule, reasons in by_rule.items():
            if (number := sum(reasons.values())) > most * read:
                lines.append(
                    f"warning: the filter {rule} drops {number / read:.0%} of the documents{of} ({number:,} of "
                    f"{read:,}); read some with --show-dropped=5: a rule made for other text drops good documents"
                )
    return lines


def show_dropped(folder: Path, number: int) -> str:
    """Return up to `number` dropped documents for each reason, as text.

    Raises:
      UserError: the store was made without filters and near-duplicates.
    """
    shown: collections.Counter[tuple[str, str]] = collections.Counter()
    result = collections.defaultdict(list)
    for line in read_dropped(folder):
        reason = line["rule"], line["reason"]
        # Counted beyond `number` too, because the heading has the total.
        shown[reason] += 1
        if shown[reason] <= number:
            detail = f": {' '.join(line['text'].split())}" if "text" in line else ""
            detail += f", {line['kept_source']}/{line['kept']} stays" if "kept" in line else ""
            result[reason].append(printable(f"  {line['source']}/{line['id']}{detail}"))
    if not shown:
        return "no document was dropped"
    return "\n".join(
        f"{rule}, {printable(reason)}: {_counts({'': shown[rule, reason]})}\n" + "\n".join(documents)
        for (rule, reason), documents in sorted(result.items())
    )


def _counts(by_source: dict[str, int]) -> str:
    """Return a total, with the counts by source if there are several: `3 documents (a 1, b 2)`."""
    total = sum(by_source.values())
    details = ", ".join(f"{source} {number:,}" for source, number in by_source.items())
    return f"{total:,} document{'s' * (total != 1)}" + (f" ({details})" if len(by_source) > 1 else "")


LEGEND = (
    "[MASK]‹was› or other‹was›: the model must guess what was there; ‹=› was left as it is; below, the pieces before "
    "masking"
)
_SEGMENTS = "AB"
_DRAWN_ROWS = 1_000_000


def show(feed: Feed, tokenizer: Tokenizer, count: int) -> str:
    """Return the first `count` training rows as text. Each segment is shown as text and as pieces."""
    batch = feed.batch(np.arange(count))
    originals_BT, predicted_BT = originals_of(batch)
    lines = [LEGEND]
    for row in range(count):
        examples_T = batch["examples_BT"][row]
        ids_N = batch["example_ids_BN"][row]
        lines.append(
            f"\nrow {row}: {np.count_nonzero(examples_T)} of {len(examples_T)} positions hold tokens, "
            f"{np.count_nonzero(ids_N >= 0)} example(s), {np.count_nonzero(predicted_BT[row])} tokens to predict"
        )
        for slot in np.flatnonzero(ids_N >= 0):
            names = sorted(name for name in batch if name.endswith("_labels_BN"))
            labels = [f"{name.removesuffix('_labels_BN')}={batch[name][row, slot]}" for name in names]
            lines.append("  " + ", ".join([f"example {ids_N[slot]}", *labels]))
            for segment, name in enumerate(_SEGMENTS):
                here = (examples_T == slot + 1) & (batch["segments_BT"][row] == segment)
                if here.any():
                    tokens = (batch["tokens_BT"][row, here], originals_BT[row, here], predicted_BT[row, here])
                    pieces = " ".join(map(tokenizer.piece, originals_BT[row, here]))
                    lines.append(f"    {name}  {printable(_spell(tokenizer, *tokens))}")
                    lines.append(f"       {printable(pieces)}")
    return "\n".join(lines)


def originals_of(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens before masking, int32 [B, T], and whether any loss term predicts them, bool [B, T]."""
    originals_BT, predicted_BT = batch["tokens_BT"].copy(), np.zeros(batch["tokens_BT"].shape, bool)
    for name in batch:
        term = name.removesuffix("_positions_BK")
        # SpanBERT also gathers span boundaries, positions without a prediction.
        if term != name and f"{term}_labels_BK" in batch:
            rows, places = np.nonzero(batch[f"{term}_weights_BK"] > 0)
            columns = batch[name][rows, places]
            originals_BT[rows, columns] = batch[f"{term}_labels_BK"][rows, places]
            predicted_BT[rows, columns] = True
    return originals_BT, predicted_BT


def _spell(tokenizer: Tokenizer, tokens: np.ndarray, originals: np.ndarray, predicted: np.ndarray) -> str:
    """Return one segment as text. Adjacent unpredicted tokens are decoded together."""
    spelled = []
    for hidden, run in itertools.groupby(range(len(tokens)), key=lambda at: bool(predicted[at])):
        run = list(run)
        # One by one, predicted tokens can show their originals. The others stay together, because byte pieces alone are
        # not characters.
        parts = [[at] for at in run] if hidden else [run]
        for part in parts:
            text = tokenizer.decode(tokens[part], keep_special=True)
            if hidden:
                [at] = part
                kept = tokens[at] == originals[at]
                text += "‹=›" if kept else f"‹{tokenizer.decode(originals[part], keep_special=True)}›"
            spelled.append(text if not spelled or _follows(tokenizer, originals, part[0]) else " " + text)
    return "".join(spelled)


def _follows(tokenizer: Tokenizer, tokens: np.ndarray, at: int) -> bool:
    """Return whether token `at` > 0 follows the previous one without a space."""
    pair = tokens[at - 1 : at + 1].tolist()
    if pair[1] in tokenizer.continuation_ids:
        return True
    # Punctuation starts a word but needs no space before it.
    is_text = tokenizer.special_ids.isdisjoint(pair)
    return is_text and tokenizer.decode(pair) == "".join(tokenizer.decode([token]) for token in pair)


def draw_packing(feed: Feed, target: Path) -> None:
    """Plot three histograms: example lengths, tokens per row, and examples per row."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    plan = feed.plans[0]
    # Every n-th row of a large plan, with n rounded up.
    rows_RN = plan.rows_RN[:: -(-plan.counts.rows // _DRAWN_ROWS)]
    filled_RN = rows_RN >= 0
    # An empty slot, -1, reads the last example, and `where` replaces that length by 0.
    lengths_RN = np.where(filled_RN, plan.examples.lengths()[rows_RN], 0)
    figure = Figure(figsize=(15, 4), layout="constrained")
    # Edges between the integers, so every length has a bin of its own.
    edges = np.arange(0.5, feed.seq_len + 1)
    panels = (
        (lengths_RN[filled_RN], edges, "tokens in an example", "examples"),
        (lengths_RN.sum(axis=1), edges, f"tokens in a row of {feed.seq_len}", "rows"),
        (filled_RN.sum(axis=1), np.arange(0.5, plan.counts.slots + 1), "examples in a row", "rows"),
    )
    for axes, (values, bins, x_label, y_label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        axes.hist(values, bins=bins)
        axes.set(xlabel=x_label, ylabel=y_label, yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.suptitle(f"{plan.counts.real_share(feed.seq_len):.1%} of the positions hold tokens")
    figure.savefig(target, dpi=120)
