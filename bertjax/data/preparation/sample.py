"""The tokenizer's training text: a bounded sample of the training documents, drawn in one pass."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bertjax.data.config import DataConfig
from bertjax.data.preparation.steps import sample_priority
from bertjax.data.text.sentences import split
from bertjax.errors import UserError

# A stretch ends at the first line end after `STRETCH` characters. Within a longer line it ends at the last space before
# `LONGEST_STRETCH`.
STRETCH = 4096
LONGEST_STRETCH = 16 * STRETCH
NO_LIMIT = 1 << 64


class Stretch(NamedTuple):
    """Consecutive lines of a document: priority, document key, index within the document, text."""

    priority: int
    key: Any
    index: int
    text: str


class Sample:
    """A bottom-k sample: every stretch has a hash as its priority, and the lowest that fit are kept.

    The hash depends only on the document's content, so the sample depends neither on the order of documents nor on cuts
    of the corpus. Copies of a document have equal priorities, and only one of them is stored.

    Args:
      characters: maximum size; at least one stretch is kept.

    Attributes:
      limit: a stretch is drawn if its priority is below this.
    """

    def __init__(self, characters: int):
        self.limit = NO_LIMIT
        self._characters = characters
        self._size = 0
        self._heap: list[tuple[int, Any, int, str]] = []  # -priority, key, index of the stretch, text
        self._sizes: dict[int, int] = {}  # characters by priority

    def add(self, key: Any, digest: bytes, text: str) -> None:
        """Offer the stretches of a document.

        Args:
          key: sort key; keys sort in corpus order.
          digest: content hash from `steps.digest`.
        """
        for index, (start, stop) in enumerate(_stretches(text)):
            priority = sample_priority(digest, index)
            if priority < self.limit and priority not in self._sizes:
                self._push(Stretch(priority, key, index, text[start:stop]))

    def stretches(self) -> list[Stretch]:
        """Return the stretches, lowest priority first."""
        return [Stretch(-negative, *rest) for negative, *rest in sorted(self._heap, reverse=True)]

    def _push(self, stretch: Stretch) -> None:
        priority, key, index, text = stretch
        heapq.heappush(self._heap, (-priority, key, index, text))
        self._sizes[priority] = len(text)
        self._size += len(text)
        while self._size > self._characters and len(self._heap) > 1:
            self._pop()

    def _pop(self) -> None:
        negative, _, _, text = heapq.heappop(self._heap)
        self.limit = -negative
        del self._sizes[self.limit]
        self._size -= len(text)

    @classmethod
    def merged(cls, characters: int, samples: Iterable[tuple[Iterable[Stretch], int]]) -> "Sample":
        """Combine samples of the pieces of a corpus, each drawn with at least `characters`.

        From each piece, stretches are read only up to the first one that cannot be drawn.

        Args:
          samples: `stretches()` and `limit` of each piece, in corpus order.

        Raises:
          UserError: it cannot be known, because copies of a document have different lengths.
        """
        sample, lowest, has_unequal_copies = cls(characters), NO_LIMIT, False
        for stretches, limit in samples:
            lowest = min(lowest, limit)
            for stretch in itertools.takewhile(lambda stretch: stretch.priority < sample.limit, stretches):
                size = sample._sizes.get(stretch.priority)
                has_unequal_copies |= size not in (None, len(stretch.text))
                if size is None:
                    sample._push(stretch)
        # What a part leaves out does not fit into the corpus either, if the copies there take the same space.
        if lowest < NO_LIMIT and lowest <= sample.limit:
            if has_unequal_copies:
                raise UserError(
                    "the tokenizer's sample cannot be drawn by parts: documents are equal in NFC and have different "
                    "lengths; write the corpus in NFC, or prepare with --runner=local"
                )
            while sample._heap and -sample._heap[0][0] >= lowest:
                sample._pop()
            sample.limit = lowest
        return sample

    def sentences(self, splitter: str, is_duplicate: Callable[[Any], bool] = lambda key: False) -> list[str]:
        """Return the sentences of all `texts`."""
        return [sentence for text in self.texts(is_duplicate) for sentence in split(text, splitter)]

    def texts(self, is_duplicate: Callable[[Any], bool] = lambda key: False) -> list[str]:
        """Return the drawn texts in corpus order, without duplicates.

        Args:
          is_duplicate: whether the document with this key is dropped.
        """
        stretches = sorted(entry[1:] for entry in self._heap if not is_duplicate(entry[1]))
        # Adjacent stretches of a document are joined, so that a cut between them leaves no trace. Their positions and
        # indices grow together, so the difference is constant within a run.
        runs = itertools.groupby(enumerate(stretches), key=lambda entry: (entry[1][0], entry[1][1] - entry[0]))
        return ["".join(text for _, (_, _, text) in run) for _, run in runs]


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
