"""Probing tasks: labels of words or texts from a labeled file, trees from CoNLL-U, and word senses.

Word senses: each occurrence takes the sense of its nearest neighbor, by cosine, among the word's other occurrences
(Wiedemann et al., 2019, arXiv 1909.10430; Coenen et al., 2019, arXiv 1906.02715, use the nearest sense mean). The
baseline predicts the word's most frequent sense. Layer 0, the embeddings, encodes a word's position but not its
sentence.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from bertjax.analysis.probing.structural_probe import Sentence, tree_distances
from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.labeled import labels, tables, tagged_files
from bertjax.data.labeled.base import WHERE, LabeledFormat, Record, check_texts
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError, cut_text

# Tag of punctuation in Universal Dependencies.
PUNCTUATION = "PUNCT"
# State of a word or text: its first token, or the mean over its tokens.
POOLINGS = FIRST, MEAN = "first", "mean"
# Held-out share of the records when --heldout names no file.
_HELDOUT = 1 / 3


class Units(NamedTuple):
    """Words or texts whose states a probe reads.

    Attributes:
      ragged: their examples.
      unit_of: int64 [n], the unit of each token, -1 for none: a word's first piece, or all tokens of a text.
      labels: int32 [units], their classes.
      types: the words; empty for texts, which do not repeat.
    """

    ragged: Ragged
    unit_of: np.ndarray
    labels: np.ndarray
    types: list[str]


@dataclasses.dataclass(frozen=True, eq=False)
class LabeledTask:
    """A labeled file to probe.

    Attributes:
      name: name on the page.
      format: its format.
      classes: the labels, by class number.
      train: training records for the probes, in random order.
      heldout: records that score the probes; records with labels unseen in training are left out.
      has_trees: whether records are CoNLL-U sentences with `heads` and `upos`.
      pooling: one of `POOLINGS`; if empty, `first` for words and `mean` for texts.
      without_trees: why a CoNLL-U file has no trees; otherwise empty.
    """

    name: str
    format: LabeledFormat
    classes: tuple[str, ...]
    train: list[Record]
    heldout: list[Record]
    has_trees: bool = False
    without_trees: str = ""
    pooling: str = ""

    @property
    def reads_cls(self) -> bool:
        """Whether a text is represented by its [CLS]."""
        return self.pooling == FIRST and not isinstance(self.format, Tagged)


def labeled_task(
    name: str, format: LabeledFormat, examples: int, seed: int, heldout: str = "", pooling: str = ""
) -> LabeledTask:
    """Read a task.

    Args:
      name: its name.
      format: its format, with the file as `heldout`.
      examples: maximum records per file, drawn at random; 0 for all.
      seed: seed for this draw and the order of training records.
      heldout: second file, which scores the probes; if empty, a third of the first file does.
      pooling: see `LabeledTask`.

    Raises:
      UserError: a file cannot be read, or has fewer than two classes.
    """

    files = [format.read(path) for path in (format.heldout, heldout) if path]
    without_trees, has_trees = "", all(map(is_conllu, filter(None, (format.heldout, heldout))))
    if has_trees:
        try:
            files = [_with_heads(records, path) for records, path in zip(files, (format.heldout, heldout))]
        # A damaged tree costs the structural probe only; tags can still be probed.
        except UserError as error:
            without_trees, has_trees = str(error), False
    train, *others = (_drawn(records, examples, seed) for records in files)
    count = round(_HELDOUT * len(train))
    scored, train = (others[0], train) if others else (train[:count], train[count:])
    classes = labels.ordered(format.class_counts(train))
    if len(classes) < 2:
        raise UserError(f"{format.heldout} has {len(classes)} classes to probe; give a file with two or more")
    known = [record for record in scored if set(format.class_counts([record])) <= set(classes)]
    if not known:
        raise UserError(f"{heldout or format.heldout} has no record to score probes on; give a longer file")
    return LabeledTask(name, format, classes, train, known, has_trees, without_trees, pooling)


def units_of(task: LabeledTask, records: list[Record], tokenizer: Tokenizer, longest: int) -> Units:
    """Return the words of tagged records, or the texts of others.

    Args:
      task: the task.
      records: its `train` or `heldout`.
      tokenizer: the model's tokenizer.
      longest: maximum tokens per example; longer sentences are split into windows, longer texts are cut.
    """
    examples = task.format.encode(records, tokenizer, longest, task.classes)
    ragged = examples.ragged
    if isinstance(task.format, Tagged):
        is_unit = ragged.token_labels["word"] >= 0
        unit_of = np.where(is_unit, np.cumsum(is_unit) - 1, -1)
        if task.pooling == MEAN:
            unit_of = _with_continuations(unit_of, ragged, Vocabulary.of(tokenizer))
        types = list(itertools.chain.from_iterable(record["words"] for record in records))
        return Units(ragged, unit_of, ragged.token_labels["tag"][is_unit], types)
    unit_of = ragged.token_examples
    if task.reads_cls:
        unit_of = np.where(ragged.token_index == ragged.cls_index[unit_of], unit_of, -1)
    return Units(ragged, unit_of, ragged.labels["label"].astype(np.int32), [])


def _with_continuations(unit_of: np.ndarray, ragged: Ragged, vocabulary: Vocabulary) -> np.ndarray:
    """Extend each word's unit to all its pieces."""
    continues = vocabulary.continues_word[ragged.tokens] & ~ragged.special & (unit_of < 0)
    # Running maximum over the indices of tokens that start something: each piece finds the token that it continues.
    first = np.maximum.accumulate(np.where(continues, 0, np.arange(len(unit_of))))
    return np.where(continues, unit_of[first], unit_of)


def sentences_of(records: Sequence[Record]) -> list[Sentence]:
    """Return trees whose words are the units of `units_of`."""
    lengths = [len(record["words"]) for record in records]
    starts = np.cumsum([0, *lengths[:-1]])
    return [
        Sentence(int(start), tree_distances(record["heads"]), np.array(record["upos"]) != PUNCTUATION)
        for start, record in zip(starts, records, strict=True)
    ]


def is_conllu(path: str) -> bool:
    """Return whether a file is CoNLL-U, judged by name."""
    return tables.kind_of(path) == tagged_files.CONLLU


def _with_heads(records: list[Record], path: str) -> list[Record]:
    """Add the trees of their file to CoNLL-U sentences."""
    trees = tagged_files.read_conllu(path, _tree)
    return [record | tree for record, tree in zip(records, trees, strict=True)]


def _tree(words: list[dict[str, Any]], where: str) -> Record:
    """Return {`heads`, `upos`}. A head is a word number, counted from 1, or 0 for the only root.

    Raises:
      UserError: the heads do not form a tree.
    """
    heads = [int(values["head"]) if values["head"].isdecimal() else -1 for values in words]
    if not _is_tree(heads):
        raise UserError(f"{where} starts a sentence whose heads are no tree with one root; correct the column head")
    return {"heads": heads, "upos": [values["upos"] for values in words]}


def _is_tree(heads: list[int]) -> bool:
    """Return whether every word reaches the only root."""
    if heads.count(0) != 1 or not all(0 <= head <= len(heads) for head in heads):
        return False
    # Walk down from the root, level by level; words in a cycle are never reached.
    reached = {0}
    while below := {word for word, head in enumerate(heads, 1) if head in reached} - reached:
        reached |= below
    return len(reached) == len(heads) + 1


def _drawn(records: list[Record], examples: int, seed: int) -> list[Record]:
    """Return at most `examples` records in random order; all if it is 0."""
    order = np.random.default_rng(seed).permutation(len(records))
    return [records[index] for index in order[: examples or None]]


SENSE_COLUMNS = ("word", "sense", "sentence")


def read_senses(path: str) -> list[Record]:
    """Return the records {`word`, `sense`, `sentence`} of a table with these columns.

    Raises:
      UserError: the file is not such a table, a field is blank, a sentence lacks its word, or no word has two senses.
    """
    records = tables.read(path, SENSE_COLUMNS)
    for record in records:
        check_texts(record, SENSE_COLUMNS)
        _place(record)
    senses: dict[str, set[str]] = {}
    for record in records:
        senses.setdefault(_word_of(record), set()).add(record["sense"])
    if max(map(len, senses.values())) < 2:
        raise UserError(f"{path} has no word with two senses; give sentences of a second sense")
    return records


def is_senses(path: str) -> bool:
    """Return whether a table's header, or its first object, has the three columns."""
    if not {".tsv", ".csv", ".jsonl"} & set(PurePath(path).suffixes):
        return False
    try:
        tables.read(path, SENSE_COLUMNS, on_bad=lambda error: None)
    except UserError:
        return False
    return True


def encode_senses(records: Sequence[Record], tokenizer: Tokenizer, longest: int) -> tuple[Ragged, np.ndarray]:
    """Return one example per sentence, and the index of its word's first piece among all tokens; int64 [M].

    If a word occurs several times in its sentence, the first occurrence counts. Long sentences are cut around the word.

    Args:
      records: result of `read_senses`.
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


def score_senses(states: np.ndarray, records: Sequence[Record]) -> tuple[np.ndarray, float]:
    """Return the fraction of occurrences whose nearest neighbor has the same sense, float64 [L], and the baseline.

    Only words with at least two senses count, and only occurrences whose sense occurs at least twice.

    Args:
      states: float [M, L, D], states of the records' words.
      records: their words and senses.
    """
    keys = np.array([_word_of(record) for record in records])
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


def _word_of(record: Record) -> str:
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
