"""What a token store holds, in a few lines, and the vocabulary size that its corpus would carry."""

import numpy as np

from bertjax.data.store import SPLITS, TokenStore

# Gowda & May 2020 (arXiv 2004.02334), section 6: 95% of the types shall occur at least 100 times.
FREQUENT = 100
SHARE_FREQUENT = 0.95


def suggested_types(counts: np.ndarray) -> int:
    """How many learned pieces the corpus would carry by the rule of Gowda & May 2020: the largest vocabulary in which
    at least 95% of the types occur at least 100 times.

    Estimated from one tokenization. Where the vocabulary breaks the rule, the pieces that are frequent enough bound it;
    where it keeps the rule, Zipf's law through its rarer half says at which rank a piece would occur 100 times.

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
    """Lines for the terminal: documents, sentences, tokens, words, [UNK], bytes, path and a vocabulary size."""
    tokenizer, splits = store.tokenizer, store.manifest["splits"]
    lines = [f"{'':10}{'documents':>12}{'sentences':>12}{'tokens':>14}{'tokens/word':>13}{'[UNK]':>9}"]
    for name in SPLITS:
        counts = splits[name]
        fertility, unknown = counts["tokens"] / counts["words"], counts["unk"] / counts["tokens"]
        sizes = f"{counts['documents']:12,}{counts['sentences']:12,}{counts['tokens']:14,}"
        lines.append(f"{name:10}{sizes}{fertility:13.2f}{unknown:9.3%}")
    not_learned = tokenizer.special_ids | tokenizer.byte_ids
    counts = np.delete(store.unigram_counts("train"), sorted(not_learned))
    suggested = suggested_types(counts) + len(not_learned)
    lines.append(
        f"vocabulary {tokenizer.vocab_size:,}; this corpus would carry about {suggested:,} "
        f"({SHARE_FREQUENT:.0%} of the pieces occurring {FREQUENT} times)"
    )
    size = sum(file["bytes"] for file in store.manifest["files"].values())
    lines.append(f"{size / 1e6:,.1f} MB in {store.path}")
    return "\n".join(lines)
