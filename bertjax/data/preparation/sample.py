"""The tokenizer's training text: a bounded sample of the training documents, drawn in one pass."""

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.data.config import DataConfig
from bertjax.data.preparation.steps import sample_priority
from bertjax.data.text.sentences import split

# A stretch ends at the first line end after `STRETCH` characters. Within a longer line it ends at the last space before
# `LONGEST_STRETCH`.
STRETCH = 4096
LONGEST_STRETCH = 16 * STRETCH
NO_LIMIT = 1 << 64


# Returns whether the document with each key is dropped.
AreDropped = Callable[[Sequence[Any]], Iterable[bool]]


def none_is_dropped(keys: Sequence[Any]) -> Iterable[bool]:
    """Return False for each key."""
    return itertools.repeat(False, len(keys))


class Stretch(NamedTuple):
    """Consecutive lines of a document: priority, document key, index within the document, text."""

    priority: int
    key: Any
    index: int
    text: str


class Sample:
    """A bottom-k sample: every stretch has a hash as its priority, and the lowest that fit are kept.

    The hash depends only on the document's content, so the sample depends neither on the order of documents nor on cuts
    of the corpus. Copies of a document have equal priorities, and only the first of them is kept.

    Args:
      characters: maximum size; at least one stretch is kept.
    """

    def __init__(self, characters: int):
        self._characters = characters
        self._limit = NO_LIMIT  # no stretch with this priority or a higher one fits
        self._offered: list[Stretch] = []
        self._size = 0

    def add(self, key: Any, digest: bytes, text: str) -> None:
        """Offer the stretches of a document.

        Args:
          key: sort key; keys sort in corpus order.
          digest: content hash from `steps.digest`.
        """
        if len(text) <= STRETCH:  # most documents of most corpora
            priority = sample_priority(digest, 0)
            if priority < self._limit:
                self._offer(Stretch(priority, key, 0, text))
            return
        for index, (start, stop) in enumerate(_stretches(text)):
            priority = sample_priority(digest, index)
            if priority < self._limit:
                self._offer(Stretch(priority, key, index, text[start:stop]))

    def stretches(self) -> list[Stretch]:
        """Return the stretches, lowest priority first."""
        self._prune()
        return self._offered

    def _offer(self, stretch: Stretch) -> None:
        self._offered.append(stretch)
        self._size += len(stretch.text)
        # Sorting what is kept only when as much has been added again is faster than a heap, and has twice its memory.
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
                self._limit = stretch.priority
                break
            kept.append(stretch)
            self._size += len(stretch.text)
        self._offered = kept

    @classmethod
    def merged(cls, characters: int, samples: Iterable[Iterable[Stretch]]) -> "Sample":
        """Combine samples of the pieces of a corpus, each drawn with at least `characters`.

        From each piece, stretches are read only up to the first one that cannot be drawn.

        Args:
          samples: `stretches()` of each piece, in corpus order.
        """
        sample = cls(characters)
        for stretches in samples:
            for stretch in stretches:
                if stretch.priority >= sample._limit:
                    break
                sample._offer(stretch)
            sample._prune()
        return sample

    def sentences(self, splitter: str, are_dropped: AreDropped = none_is_dropped) -> list[str]:
        """Return the sentences of all `texts`."""
        return [sentence for text in self.texts(are_dropped) for sentence in split(text, splitter)]

    def texts(self, are_dropped: AreDropped = none_is_dropped) -> list[str]:
        """Return the drawn texts in corpus order, without duplicates.

        Args:
          are_dropped: returns whether the document with each key is dropped.
        """
        stretches = sorted(self.stretches(), key=lambda stretch: stretch[1:3])
        dropped = are_dropped([stretch.key for stretch in stretches])
        stretches = [stretch for stretch, is_dropped in zip(stretches, dropped, strict=True) if not is_dropped]
        # Adjacent stretches of a document are joined, so that a cut between them leaves no trace. Their positions and
        # indices grow together, so the difference is constant within a run.
        runs = itertools.groupby(enumerate(stretches), key=lambda entry: (entry[1].key, entry[1].index - entry[0]))
        return ["".join(stretch.text for _, stretch in run) for _, run in runs]


def shares_of(config: DataConfig, sizes: Mapping[str, int]) -> dict[str, float] | None:
    """Return each source's share of the sample; None if sources are drawn by size.

    The vocabulary is learned from the mixture that the model will read. Multilingual BERT smoothed language sizes for
    the vocabulary as for the rows (google-research/bert, multilingual.md).

    Args:
      sizes: characters of each source.
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
    """Yield start and stop of consecutive stretches that cover all of `text`."""
    start = 0
    while start < len(text):
        stop = text.find("\n", start + STRETCH, start + LONGEST_STRETCH) + 1
        if not stop and len(text) > start + LONGEST_STRETCH:
            stop = text.rfind(" ", start + STRETCH, start + LONGEST_STRETCH) + 1 or start + LONGEST_STRETCH
        stop = stop or len(text)
        yield start, stop
        start = stop
