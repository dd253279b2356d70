"""Vocabulary size: what smaller vocabularies would cost, the size that fits the corpus, and advice."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from bertjax.data.store import TokenStore
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer.sentencepiece import WORD_START
from bertjax.data.tokenizer.unigram import ByteFallbackTokenizer

# Gowda & May 2020 (arXiv 2004.02334), section 6: 95% of the types should occur at least 100 times.
FREQUENT = 100
SHARE_FREQUENT = 0.95
# A vocabulary this many times larger or smaller than the fitting size is worth changing.
MOST_TIMES = 2
# Above this many tokens per word, words are cut into too many parts.
MOST_TOKENS_A_WORD = 3
# A source with this many times the usual tokens per word is text that the tokenizer was not trained on.
MOST_TIMES_LONGER = 1.5
# Above this share of [UNK], piece frequencies reveal little about the text.
MOST_UNKNOWN = 0.1
# Divisors of the vocabulary size in the table: a quarter and a half.
_SMALLER = (4, 2)
_LONGEST_PIECE = 32
_WORDPIECE, _BYTE_LEVEL = "##", "\u0120"


@dataclasses.dataclass(frozen=True)
class Row:
    """One vocabulary size in the table.

    Attributes:
      size: pieces, including special symbols and bytes.
      tokens: tokens in the training text.
      rare: pieces that occur fewer than `FREQUENT` times.
    """

    size: int
    tokens: int
    rare: int


def suggested_types(counts: np.ndarray) -> int:
    """Estimate how many learned pieces fit the corpus.

    Gowda & May 2020 recommend the largest vocabulary in which at least 95% of all types occur at least 100 times. It is
    estimated from one tokenization. If the vocabulary violates the rule, the frequent pieces set the bound. Otherwise
    Zipf's law, fitted to the rarer half, gives the rank at which pieces occur 100 times.

    Args:
      counts: occurrences per learned piece, int64 [types].
    """
    ranked = np.sort(counts)[::-1]
    frequent = int(np.count_nonzero(ranked >= FREQUENT))
    if frequent < SHARE_FREQUENT * len(ranked):
        return int(frequent / SHARE_FREQUENT)
    half = len(ranked) // 2  # the most frequent pieces deviate from the law
    ranks = np.log(np.arange(half + 1, len(ranked) + 1))
    slope, intercept = np.polyfit(ranks, np.log(np.maximum(ranked[half:], 1)), 1)
    # The rarer half does not fall, so there is nothing to extrapolate. Rounding may leave a slope just below 0.
    if slope > -1e-9:
        return len(ranked)
    return max(len(ranked), int(np.exp((np.log(FREQUENT) - intercept) / slope) / SHARE_FREQUENT))


def suggested(store: TokenStore, counts_V: np.ndarray) -> int:
    """Return the vocabulary size that fits the corpus.

    Args:
      counts_V: occurrences per token in the training split.
    """
    # Special symbols and bytes are in every vocabulary, whatever the corpus.
    not_learned = store.tokenizer.special_ids | store.tokenizer.byte_ids
    return suggested_types(np.delete(counts_V, sorted(not_learned))) + len(not_learned)


def rows(store: TokenStore, counts_V: np.ndarray) -> list[Row]:
    """Return a row for the store's vocabulary and for smaller ones, which keep all single characters.

    Trained tokenizers order ids by learning order or by probability, so a smaller vocabulary keeps the first learned
    pieces. Each removed piece is respelled with the fewest remaining ones. This is a few percent off: words with
    several pieces could be cut elsewhere, and a unigram model would choose other pieces too.
    """
    tokenizer = store.tokenizer
    forms, learned = _forms(tokenizer)
    hidden = tokenizer.special_ids | tokenizer.byte_ids
    fixed = len(hidden), int(counts_V[sorted(hidden)].sum())
    sizes = [tokenizer.vocab_size // times for times in _SMALLER]
    # No vocabulary can be smaller: special symbols, bytes and single characters always stay.
    least = tokenizer.vocab_size - len(learned)
    table = [_smaller(forms, counts_V, learned[size - least :], fixed) for size in sizes if size > least]
    return [*table, Row(tokenizer.vocab_size, int(counts_V.sum()), _rare(counts_V[list(forms)]))]


def _forms(tokenizer: Tokenizer) -> tuple[dict[int, str], list[int]]:
    """Return the spelling by piece id, see `_form`, and the ids of pieces with several characters."""
    hidden = tokenizer.special_ids | tokenizer.byte_ids
    kind = _kind(tokenizer)  # not guessed from the pieces: Markdown has pieces like ####, and Maltese has the letter Ġ
    is_wordpiece = kind == "WordPiece"
    forms = {i: _form(piece, kind) for i, piece in _pieces(tokenizer, kind).items() if i not in hidden}
    # WordPiece needs each character at the start of a word and within one.
    return forms, [i for i, form in forms.items() if len(form.removeprefix(WORD_START * is_wordpiece)) > 1]


def _kind(tokenizer: Tokenizer) -> str:
    """Return `WordPiece`, `BPE` (byte-level) or `Unigram`, which stands for all with SentencePiece's spelling."""
    is_json = tokenizer.MODEL_FILE.endswith(".json")
    is_fallback = isinstance(tokenizer, ByteFallbackTokenizer)
    return cast(Any, tokenizer).description["model"]["type"] if is_json and not is_fallback else "Unigram"


def _pieces(tokenizer: Tokenizer, kind: str) -> dict[int, str]:
    """Return the pieces by id; byte-level BPE spells its bytes as letters."""
    if kind == "BPE":
        return {i: piece for piece, i in cast(Any, tokenizer).description["model"]["vocab"].items()}
    return {i: tokenizer.piece(i) for i in range(tokenizer.vocab_size)}


def _form(piece: str, kind: str) -> str:
    """Return a piece in SentencePiece's spelling: U+2581 at a word's start, nothing within a word."""
    if kind == "WordPiece":
        return piece.removeprefix(_WORDPIECE) if piece.startswith(_WORDPIECE) else WORD_START + piece
    return piece.replace(_BYTE_LEVEL, WORD_START) if kind == "BPE" else piece


def _smaller(forms: dict[int, str], counts_V: np.ndarray, removed: Sequence[int], fixed: tuple[int, int]) -> Row:
    """Return the row for a vocabulary without the pieces `removed`.

    Args:
      fixed: how many special and byte pieces there are, and how often they occur.
    """
    without = set(removed)
    counts = {form: int(counts_V[i]) for i, form in forms.items() if i not in without}
    others = fixed[1]
    for i in removed:
        # `counts` has only pieces that stay, so the order of removal has no effect.
        spelled, unknown = _fewest(forms[i], counts)
        others += int(counts_V[i]) * unknown
        for part in spelled:
            counts[part] += int(counts_V[i])
    return Row(fixed[0] + len(counts), others + sum(counts.values()), _rare(np.array(list(counts.values()))))


def _fewest(form: str, known: dict[str, int]) -> tuple[list[str], int]:
    """Spell a piece with the fewest known pieces, by dynamic programming over its prefixes.

    Returns:
      The pieces, and how many bytes are in characters that no known piece covers.
    """
    best: list[tuple[int, int]] = [(0, 0)]  # (number of pieces up to here, start of the last one)
    for stop in range(1, len(form) + 1):
        starts = range(max(0, stop - _LONGEST_PIECE), stop)
        options = [(best[start][0] + 1, start) for start in starts if form[start:stop] in known]
        # If no known piece ends here, the character becomes bytes, each of them a token. Start -1 marks that.
        best.append(min(options, default=(best[-1][0] + len(form[stop - 1].encode()), -1)))
    spelled, unknown, stop = [], 0, len(form)
    while stop:
        start = best[stop][1]
        if start < 0:
            unknown += len(form[stop - 1].encode())
            stop -= 1
        else:
            spelled.append(form[start:stop])
            stop = start
    return spelled, unknown


def _rare(counts: np.ndarray) -> int:
    return int(np.count_nonzero(counts < FREQUENT))


def lines(store: TokenStore, counts_V: np.ndarray) -> list[str]:
    """Return the advice and the size table for the terminal."""
    counts, table = store.manifest["splits"]["train"], rows(store, counts_V)
    header = f"  {'vocabulary':>12}{'tokens/word':>13}{'bytes/token':>13}{f'pieces < {FREQUENT} times':>22}"
    result = [f"vocabulary {store.tokenizer.vocab_size:,}: {advice(store, counts_V)}"]
    if len(table) < 2:
        return result
    result.append(header)
    for row in table:
        of_word, of_token = row.tokens / max(1, counts["words"]), counts["bytes"] / max(1, row.tokens)
        mark = " <- this store" if row is table[-1] else ""
        rare = f"{row.rare:,} ({row.rare / row.size:.0%})"
        result.append(f"  {row.size:12,}{of_word:13.2f}{of_token:13.2f}{rare:>22}{mark}")
    return result


def advice(store: TokenStore, counts_V: np.ndarray) -> str:
    """Return advice on the vocabulary size. It uses the same estimate as `warnings`, so the two never disagree."""
    size, fitting = store.tokenizer.vocab_size, suggested(store, counts_V)
    counts = store.manifest["splits"]["train"]
    # Pieces of text that became [UNK] are not counted, so their frequencies would ask for a tiny vocabulary.
    if (unknown := counts["unk"] / max(1, counts["tokens"])) > MOST_UNKNOWN:
        return f"its size cannot be judged while {unknown:.0%} of the tokens are [UNK]; see the warning"
    rule = f"{SHARE_FREQUENT:.0%} of the pieces of about {fitting:,} would occur at least {FREQUENT} times"
    # No setting changes the size of an existing tokenizer, so the flags also ask for a new one.
    is_existing = isinstance(store.manifest["spec"].get("tokenizer"), str)
    flags = "--config.data.tokenizer.model= " * is_existing + f"--config.data.tokenizer.vocab_size={fitting}"
    least = size - len(_forms(store.tokenizer)[1])
    if size > MOST_TIMES * fitting:
        keep = "keep it if more text of this kind will follow"
        if fitting <= least:  # a vocabulary of that size could not be trained
            alone = f"but characters, bytes and special symbols alone take {least:,}"
            return f"large for this corpus, {rule}, {alone}; {keep}"
        return f"large for this corpus, {rule}; {keep}, else compare the bits per byte of a run with {flags}"
    if MOST_TIMES * size < fitting:
        return f"the corpus has room for more, {rule}: up to {flags}"
    return f"keep it, {rule}"


def warnings(store: TokenStore, counts_V: np.ndarray) -> list[str]:
    """Return warnings about sources with many tokens per word, each with a remedy that the corpus size allows."""
    counts = store.manifest["counts"]
    total = store.manifest["splits"]["train"]
    usual, result = total["tokens"] / max(1, total["words"]), []
    has_room = MOST_TIMES * store.tokenizer.vocab_size < suggested(store, counts_V)
    for name, by_source in counts.items():
        for source, of in by_source.items():
            fertility = of["tokens"] / max(1, of["words"])
            where = name if len(by_source) == 1 else f"{name} {source}"
            if fertility <= MOST_TOKENS_A_WORD or not of["words"]:
                continue
            if fertility > MOST_TIMES_LONGER * usual:
                remedy = f"all training text takes {usual:.1f}, so this is text of another kind, or damaged; look at it"
            elif has_room:
                remedy = "raise data.tokenizer.vocab_size, as the line of the vocabulary says"
            else:
                continue  # a corpus of this size supports no larger vocabulary
            result.append(f"warning: {where} takes {fertility:.1f} tokens a word; {remedy}")
    return result
