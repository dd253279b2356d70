"""The contents of a token store in a few lines, and a vocabulary size that fits its corpus."""

from pathlib import Path

import numpy as np

from bertjax.data.inspect import cleaning, lengths
from bertjax.data.inspect.characters import load as load_characters
from bertjax.data.preparation import ledger
from bertjax.data.store import SPLITS, TokenStore

# Gowda & May 2020 (arXiv 2004.02334), section 6: 95% of the types should occur at least 100 times.
FREQUENT = 100
SHARE_FREQUENT = 0.95

# A vocabulary this many times larger or smaller than what fits is worth changing.
MOST_TIMES = 2
MOST_UNK = 0.01
MOST_TOKENS_A_WORD = 3

_COLUMNS = ("documents", "sentences", "tokens", "tokens/word", "[UNK]")
_HEADER = "{:16}{:>12}{:>12}{:>15}{:>13}{:>9}"
_LINE = "{:16}{:12,}{:12,}{:15,}{:13.2f}{:9.3%}"


def suggested_types(counts: np.ndarray) -> int:
    """Return the number of learned pieces that fits the corpus by the rule of Gowda & May 2020: the largest vocabulary
    in which at least 95% of the types occur at least 100 times.

    It is estimated from one tokenization. If the vocabulary violates the rule, the number of pieces that are frequent
    enough is the bound. Otherwise Zipf's law, fitted to the rarer half, gives the rank of pieces that occur 100 times.

    Args:
      counts: occurrences of each learned piece, int64 [types].
    """
    ranked = np.sort(counts)[::-1]
    frequent = int(np.count_nonzero(ranked >= FREQUENT))
    if frequent < SHARE_FREQUENT * len(ranked):
        return int(frequent / SHARE_FREQUENT)
    half = len(ranked) // 2
    ranks = np.log(np.arange(half + 1, len(ranked) + 1))
    slope, intercept = np.polyfit(ranks, np.log(np.maximum(ranked[half:], 1)), 1)
    if slope >= 0:
        return len(ranked)
    return max(len(ranked), int(np.exp((np.log(FREQUENT) - intercept) / slope) / SHARE_FREQUENT))


def report(store: TokenStore) -> str:
    """Return lines for the terminal: contents, documents that were left out, the longest documents, and warnings."""
    manifest = store.manifest
    lines = [_HEADER.format("", *_COLUMNS)]
    for name in SPLITS:
        lines.append(_line(name, manifest["splits"][name]))
        if len(manifest["counts"][name]) > 1:
            lines += [_line(f"  {source}", counts) for source, counts in manifest["counts"][name].items()]
    if share := manifest["spec"].get("share"):
        lines.append(f"share: {share:.3%} of the training documents (data.share)")
    for what, by_source in (("duplicates dropped", manifest["duplicates"]), ("skipped", manifest["skipped"])):
        details = ", ".join(f"{source} {number:,}" for source, number in by_source.items())
        lines.append(f"{what}: {sum(by_source.values()):,} documents" + (f" ({details})" if len(by_source) > 1 else ""))
    lines += ledger.lines(manifest.get("ledger", {}))
    lines += cleaning.lines(manifest.get("cleaning", {}))
    lines.append(
        "longest documents: "
        + ", ".join(f"{name_of(source, name, manifest)} {tokens:,}" for tokens, source, name in manifest["longest"])
    )
    lines += _pieces(store)
    text = sum(counts["bytes"] for counts in manifest["splits"].values())
    size = sum(file["bytes"] for file in manifest["files"].values())
    lines.append(f"{size / 1e6:,.1f} MB, {size / text:.2f} times the text, in {store.path}; see {lengths.NAME} there")
    return "\n".join(lines + warnings(manifest))


def _line(name: str, counts: dict[str, int]) -> str:
    tokens = max(1, counts["tokens"])
    shares = counts["tokens"] / max(1, counts["words"]), counts["unk"] / tokens
    return _LINE.format(name, counts["documents"], counts["sentences"], counts["tokens"], *shares)


def name_of(source: str, document: str, manifest: dict) -> str:
    """Return the name of a document for people, with its source if there are several."""
    return f"{source}/{document}" if len(manifest["duplicates"]) > 1 else document


def _pieces(store: TokenStore) -> list[str]:
    """Return lines about the vocabulary, byte pieces, and characters without a piece."""
    tokenizer, counts_V = store.tokenizer, store.unigram_counts("train")
    lines = [f"vocabulary {tokenizer.vocab_size:,}; {suggestion(store, counts_V)}"]
    if tokenizer.byte_ids:
        share = counts_V[sorted(tokenizer.byte_ids)].sum() / max(1, counts_V.sum())
        lines.append(f"byte pieces: {share:.3%} of the training tokens")
    characters = load_characters(Path(store.path))
    return lines + (characters.lines() if characters else [])


def suggestion(store: TokenStore, counts_V: np.ndarray) -> str:
    """Return the vocabulary size that fits the corpus, and what to do about it.

    Args:
      counts_V: occurrences of each token in the training split.
    """
    tokenizer = store.tokenizer
    not_learned = tokenizer.special_ids | tokenizer.byte_ids
    suggested = suggested_types(np.delete(counts_V, sorted(not_learned))) + len(not_learned)
    return (
        f"about {suggested:,} would fit this corpus ({SHARE_FREQUENT:.0%} of the pieces occur at least {FREQUENT} "
        f"times): {_advice(tokenizer.vocab_size, suggested)}"
    )


def _advice(size: int, suggested: int) -> str:
    """Return what to do about a vocabulary size."""
    if size > MOST_TIMES * suggested:
        return (
            "keep the size if more text of this kind will follow; else compare a run with "
            f"--config.data.tokenizer.vocab_size={suggested}"
        )
    if MOST_TIMES * size < suggested:
        return f"a larger one makes texts shorter, up to --config.data.tokenizer.vocab_size={suggested}"
    return "keep it"


def warnings(manifest: dict) -> list[str]:
    """Return warnings about a source without documents, and about a tokenizer that does not fit its text."""
    warnings = [
        f"warning: no training document of {source} is left; --show-dropped=5 prints why, for each filter"
        for source, counts in manifest["counts"]["train"].items()
        if not counts["documents"]
    ]
    for name, by_source in manifest["counts"].items():
        for source, counts in by_source.items():
            where = name if len(by_source) == 1 else f"{name} {source}"
            if counts["unk"] > MOST_UNK * counts["tokens"]:
                share = counts["unk"] / counts["tokens"]
                remedy = "raise data.tokenizer.character_coverage or set data.tokenizer.byte_fallback"
                warnings.append(f"warning: {share:.1%} of the tokens of {where} are [UNK]; {remedy}")
            if counts["tokens"] > MOST_TOKENS_A_WORD * counts["words"]:
                fertility = counts["tokens"] / counts["words"]
                remedy = "raise data.tokenizer.vocab_size, or train a tokenizer on text of this kind"
                warnings.append(f"warning: {where} takes {fertility:.1f} tokens a word; {remedy}")
    return warnings
