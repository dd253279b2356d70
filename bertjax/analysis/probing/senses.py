"""Word senses: whether a word's nearest occurrence has the same sense.

Each occurrence takes the sense of its nearest neighbor, by cosine, among the word's other occurrences (Wiedemann et
al., 2019, arXiv 1909.10430; Coenen et al., 2019, arXiv 1906.02715, use the nearest sense mean). The baseline predicts
the word's most frequent sense. Layer 0, the embeddings, encodes a word's position but not its sentence.
"""

import re
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.labeled import tables
from bertjax.data.labeled.base import WHERE, Record, check_texts
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError, cut_text

COLUMNS = ("word", "sense", "sentence")


def read(path: str) -> list[Record]:
    """Return the records {`word`, `sense`, `sentence`} of a table with these columns.

    Raises:
      UserError: the file is not such a table, a field is blank, a sentence lacks its word, or no word has two senses.
    """
    records = tables.read(path, COLUMNS)
    for record in records:
        check_texts(record, COLUMNS)
        _place(record)
    senses: dict[str, set[str]] = {}
    for record in records:
        senses.setdefault(_key(record), set()).add(record["sense"])
    if max(map(len, senses.values())) < 2:
        raise UserError(f"{path} has no word with two senses; give sentences of a second sense")
    return records


def is_senses(path: str) -> bool:
    """Return whether a table's header, or its first object, has the three columns."""
    if not {".tsv", ".csv", ".jsonl"} & set(PurePath(path).suffixes):
        return False
    try:
        tables.read(path, COLUMNS, on_bad=lambda error: None)
    except UserError:
        return False
    return True


def encode(records: Sequence[Record], tokenizer: Tokenizer, longest: int) -> tuple[Ragged, np.ndarray]:
    """Return one example per sentence, and the index of its word's first piece among all tokens; int64 [M].

    If a word occurs several times in its sentence, the first occurrence counts. Long sentences are cut around the word.

    Args:
      records: result of `read`.
      tokenizer: the model's tokenizer.
      longest: maximum tokens per example.
    """
    places = [_place(record) for record in records]
    texts = [record["sentence"] for record in records]
    # The word is encoded separately, so that its first piece is known in every tokenizer.
    before, word, after = (
        tokenizer.encode_inside(
            [text[part].strip() for text, part in zip(texts, parts, strict=True)],
            [_follows_space(text, part.start) for text, part in zip(texts, parts, strict=True)],
        )
        for parts in zip(*((slice(0, place.start), place, slice(place.stop, None)) for place in places))
    )
    # No space precedes the first word of a text, see `Tagged.encode`.
    starts = tokenizer.encode([text[: place.start].strip() or text[place] for text, place in zip(texts, places)])
    encoded, firsts = [], []
    for text, place, start, left, middle, right in zip(texts, places, starts, before, word, after, strict=True):
        left, middle = (start, middle) if text[: place.start].strip() else (left, start)
        middle = middle or [tokenizer.unk_id]
        room = max(longest - 2 - len(middle), 0)
        # Half of the free places go to the left, and more if the right side needs fewer.
        kept_left = min(len(left), max(room // 2, room - len(right)))
        left = left[len(left) - kept_left :]
        encoded.append([*left, *middle, *right][: longest - 2])
        firsts.append(kept_left)
    ragged = add_special_tokens(encoded, None, Vocabulary.of(tokenizer), {})
    return ragged, ragged.offsets[:-1] + ragged.text_index + np.array(firsts)


def score(states: np.ndarray, records: Sequence[Record]) -> tuple[np.ndarray, float]:
    """Return the fraction of occurrences whose nearest neighbor has the same sense, float64 [L], and the baseline.

    Only words with at least two senses count, and only occurrences whose sense occurs at least twice.

    Args:
      states: float [M, L, D], states of the records' words.
      records: their words and senses.
    """
    keys = np.array([_key(record) for record in records])
    senses = np.array([record["sense"] for record in records])
    correct, frequent, total = np.zeros(states.shape[1]), 0, 0
    for key in np.unique(keys):
        members = np.flatnonzero(keys == key)
        names, of = np.unique(senses[members], return_inverse=True)
        counts = np.bincount(of)
        scored = counts[of] > 1
        if len(names) < 2 or not scored.any():
            continue
        vectors = np.moveaxis(np.asarray(states[members], np.float64), 1, 0)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
        cosines = vectors @ np.swapaxes(vectors, 1, 2)
        # An occurrence must not be its own nearest neighbor.
        cosines[:, np.arange(len(members)), np.arange(len(members))] = -np.inf
        correct += np.sum((of[np.argmax(cosines, axis=-1)] == of)[:, scored], axis=1)
        frequent += int(counts.max())
        total += int(scored.sum())
    if not total:
        return np.full(states.shape[1], np.nan), float("nan")
    return correct / total, frequent / total


def _follows_space(text: str, start: int) -> bool:
    """Return whether a part of a text starts after a space, or with one, or with the text."""
    return start == 0 or text[start - 1].isspace() or text[start : start + 1].isspace()


def _key(record: Record) -> str:
    return record["word"].strip().casefold()


def _place(record: Record) -> slice:
    """Return the characters of the word in its sentence, as a slice.

    Raises:
      UserError: the sentence does not contain the word.
    """
    word = record["word"].strip()
    # First as a whole word. Some languages attach endings or particles to a word, so any substring is second.
    for pattern in (rf"(?<!\w){re.escape(word)}(?!\w)", re.escape(word)):
        if match := re.search(pattern, record["sentence"], re.IGNORECASE):
            return slice(*match.span())
    raise UserError(
        f"{record[WHERE]} has a sentence without its word: {cut_text(word, 40)!r} is not in "
        f"{cut_text(record['sentence'], 60)!r}; correct either of them"
    )
