"""The tokenizer's training text: a bounded sample from the training documents, drawn in one pass."""

import io
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from etils import epath

from bertjax.data.config import DataConfig
from bertjax.data.preparation.duplicates import PACKED_KEY
from bertjax.data.preparation.steps import sample_priority
from bertjax.data.sources.base import open_file
from bertjax.data.text.ngrams import are_among
from bertjax.data.text.sentences import split

# A stretch ends at the first line end after `STRETCH` characters. Within a longer line it ends at the last space before
# `LONGEST_STRETCH`.
STRETCH = 4096
LONGEST_STRETCH = 16 * STRETCH
# Above every priority, which has 64 bits.
NO_LIMIT = 1 << 64
# A stretch in a piece's file; the same in memory, with its piece and the offset of its text.
STORED = np.dtype([("priority", "<u8"), ("key", PACKED_KEY), ("index", "<u8"), ("characters", "<u8"), ("bytes", "<u8")])
_PLACED = np.dtype([*STORED.descr, ("piece", "<u8"), ("start", "<u8")])
_HEADER = np.dtype([("stretches", "<u8"), ("limit", "<u8")])


class Stretch(NamedTuple):
    """Consecutive lines in a document: priority, document key, index within the document, text."""

    priority: int
    key: Any
    index: int
    text: str


class Sample:
    """A bottom-k sample: every stretch has a hash as its priority, and the lowest that fit are kept.

    The hash depends only on the document's content, so the sample depends neither on document order nor on where the
    corpus is cut. Copies of a document have equal priorities, and only the first is kept.

    Args:
      characters: maximum size; at least one stretch is kept.

    Attributes:
      limit: stretches fit only below this priority; exact after `stretches`.
    """

    def __init__(self, characters: int):
        self._characters = characters
        self.limit = NO_LIMIT
        self._offered: list[Stretch] = []
        self._size = 0

    def add(self, key: Any, digest: bytes, text: str) -> None:
        """Offer a document's stretches.

        Args:
          key: sort key; keys sort in corpus order.
          digest: content hash from `steps.digest`.
        """
        if len(text) <= STRETCH:  # true for most documents in most corpora
            priority = sample_priority(digest, 0)
            if priority < self.limit:
                self._offer(Stretch(priority, key, 0, text))
            return
        for index, (start, stop) in enumerate(_stretches(text)):
            priority = sample_priority(digest, index)
            if priority < self.limit:
                self._offer(Stretch(priority, key, index, text[start:stop]))

    def stretches(self) -> list[Stretch]:
        """Return the stretches, lowest priority first."""
        self._prune()
        return self._offered

    def _offer(self, stretch: Stretch) -> None:
        self._offered.append(stretch)
        self._size += len(stretch.text)
        # Sorted only when the sample has doubled, which is faster than a heap but needs twice the memory.
        if self._size > 2 * self._characters:
            self._prune()

    def _prune(self) -> None:
        """Keep the lowest priorities that fit, without copies."""
        kept, self._size = [], 0
        # Stable, so the first of several copies stays in front.
        for stretch in sorted(self._offered, key=operator.itemgetter(0)):
            if kept and stretch.priority == kept[-1].priority:
                continue
            if kept and self._size + len(stretch.text) > self._characters:
                self.limit = stretch.priority
                break
            kept.append(stretch)
            self._size += len(stretch.text)
        self._offered = kept

    def sentences(self, splitter: str) -> list[str]:
        """Return the drawn sentences in corpus order."""
        stretches = sorted(self.stretches(), key=lambda stretch: (stretch.key, stretch.index))
        places, texts = [stretch[1:3] for stretch in stretches], [stretch.text for stretch in stretches]
        return [sentence for text in _joined(places, texts) for sentence in split(text, splitter)]


def save(sample: Sample, path: Path) -> None:
    """Write a piece's sample for `merged`: a header, a table with its stretches, and their texts in that order.

    Args:
      sample: its keys are `steps.Key`.
    """
    stretches = sample.stretches()
    texts = [stretch.text.encode() for stretch in stretches]
    table = np.zeros(len(texts), STORED)
    table["priority"] = np.fromiter((stretch.priority for stretch in stretches), np.uint64, len(texts))
    table["key"] = np.array([stretch.key.packed() for stretch in stretches], PACKED_KEY)
    table["index"] = [stretch.index for stretch in stretches]
    table["characters"] = [len(stretch.text) for stretch in stretches]
    table["bytes"] = list(map(len, texts))
    with open(path, "wb") as file:
        # NO_LIMIT itself does not fit into 64 bits.
        file.write(np.array((len(table), min(sample.limit, NO_LIMIT - 1)), _HEADER).tobytes() + table.tobytes())
        file.writelines(texts)


def merged(characters: int, paths: Sequence[epath.Path], dropped: np.ndarray) -> list[str]:
    """Return the corpus sample as texts in corpus order, without dropped documents.

    Only drawn texts are read. They are the first ones in each file.

    Args:
      characters: maximum size; the limit for each piece was at least as large.
      paths: files that `save` has written, in corpus order.
      dropped: packed keys of dropped documents, sorted.
    """
    drawn, limit = np.zeros(0, _PLACED), NO_LIMIT - 1
    for piece, path in enumerate(paths):
        with open_file(path) as file:
            header = _header(file)
            table = np.frombuffer(file.read(STORED.itemsize * int(header["stretches"])), STORED)
        placed = np.zeros(len(table), _PLACED)
        for name in STORED.names:
            placed[name] = table[name]
        placed["piece"], placed["start"] = piece, np.cumsum(table["bytes"]) - table["bytes"]
        # A priority that did not fit into a piece's sample does not fit into the corpus sample, and no higher one does.
        limit = min(limit, int(header["limit"]))
        drawn = np.concatenate([drawn, placed])
        drawn, limit = _lowest(drawn[drawn["priority"] < np.uint64(limit)], characters, limit)
    # After drawing, because each piece drew without knowing the duplicates. The sample may end below its limit.
    drawn = drawn[~are_among(drawn["key"], dropped)]
    drawn = drawn[np.lexsort([drawn["index"], drawn["key"]])]
    texts = [""] * len(drawn)
    for piece in np.unique(drawn["piece"]).tolist():
        rows = np.flatnonzero(drawn["piece"] == piece)
        starts = drawn["start"][rows]
        stops = starts + drawn["bytes"][rows]
        with open_file(paths[piece]) as file:
            file.seek(STORED.itemsize * int(_header(file)["stretches"]), io.SEEK_CUR)
            content = file.read(int(stops.max()))
        for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
            texts[row] = str(content[start:stop], "utf-8")
    return _joined(list(zip(drawn["key"].tolist(), drawn["index"].tolist(), strict=True)), texts)


def _header(file: IO[bytes]) -> np.ndarray:
    return np.frombuffer(file.read(_HEADER.itemsize), _HEADER)[0]


def _lowest(stretches: np.ndarray, characters: int, limit: int) -> tuple[np.ndarray, int]:
    """Select as `Sample` does: the lowest priorities that fit, without copies. Return them and the new limit."""
    stretches = stretches[
        np.argsort(stretches["priority"], kind="stable")
    ]  # the first of several copies stays in front
    is_first = np.ones(len(stretches), bool)
    is_first[1:] = stretches["priority"][1:] != stretches["priority"][:-1]
    stretches = stretches[is_first]
    # At least one, as in `Sample`, even if a single stretch is longer than the sample.
    fitting = max(1, np.count_nonzero(np.cumsum(stretches["characters"]) <= characters))
    if fitting < len(stretches):
        limit = int(stretches["priority"][fitting])
    return stretches[:fitting], limit


def _joined(places: Sequence[tuple[Any, int]], texts: Sequence[str]) -> list[str]:
    """Join stretches that are adjacent in a document, so that a cut between them leaves no trace.

    Args:
      places: key and index per stretch, sorted.
      texts: text per stretch.
    """
    # Positions and indices of adjacent stretches grow together, so their difference is constant within a run.
    runs = itertools.groupby(range(len(places)), key=lambda at: (places[at][0], places[at][1] - at))
    return ["".join(texts[at] for at in run) for _, run in runs]


def shares_of(config: DataConfig, sizes: Mapping[str, int]) -> dict[str, float] | None:
    """Return each source's share in the sample; None if sources are drawn by size.

    The vocabulary is learned from the mixture that the model will read. Multilingual BERT smoothed language sizes for
    the vocabulary as for the rows (google-research/bert, multilingual.md).

    Args:
      sizes: characters per source.
    """
    sources = config.named_sources
    if config.tokenizer.model or not is_stated(config):
        return None
    draws = {
        name: source.token_share or source.weight * sizes[name] ** config.smoothing
        for name, source in sources.items()
        if sizes[name]
    }
    total = sum(draws.values())
    return {name: draw / total for name, draw in draws.items()}


def is_stated(config: DataConfig) -> bool:
    """Return whether weights, smoothing or token shares set how often sources are drawn."""
    sources = config.named_sources.values()
    is_weighted = len({(source.weight, source.token_share) for source in sources}) > 1
    return len(sources) > 1 and (is_weighted or config.smoothing < 1 or any(source.token_share for source in sources))


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Cut all of `text` into stretches; yield the start and stop of each."""
    start = 0
    while start < len(text):
        # `find` and `rfind` return -1 without a hit, so 0 stands for "not found" after adding 1.
        stop = text.find("\n", start + STRETCH, start + LONGEST_STRETCH) + 1
        if not stop and len(text) > start + LONGEST_STRETCH:
            stop = text.rfind(" ", start + STRETCH, start + LONGEST_STRETCH) + 1 or start + LONGEST_STRETCH
        stop = stop or len(text)
        yield start, stop
        start = stop
