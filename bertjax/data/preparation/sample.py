"""The text that a tokenizer trains on: a sample of the training documents, drawn in one pass."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from bertjax.data.preparation.steps import sample_priority
from bertjax.data.text.sentences import split

# A stretch ends at the first line end after this many characters, or in a line without an end at the last space before.
STRETCH = 4096
LONGEST_STRETCH = 16 * STRETCH


class Sample:
    """A sample of stretches of whole lines.

    A stretch gets a priority from the content of its document, and the lowest priorities that fit are kept. Copies
    of a document have equal priorities: all are drawn or none, and only one is stored.

    Args:
      characters: largest size of the sample; at least one stretch is kept.
    """

    def __init__(self, characters: int):
        self._characters = characters
        self._size = 0
        self._limit = 1 << 64
        self._heap: list[tuple[int, Any, int, str]] = []  # -priority, key, index of the stretch, text
        self._priorities: set[int] = set()

    def add(self, key: Any, digest: bytes, text: str) -> None:
        """Add the stretches of a document whose priority is low enough.

        Args:
          key: sort key; keys are in corpus order.
          digest: content hash from `steps.digest`.
        """
        for index, (start, stop) in enumerate(_stretches(text)):
            priority = sample_priority(digest, index)
            if priority >= self._limit or priority in self._priorities:
                continue
            heapq.heappush(self._heap, (-priority, key, index, text[start:stop]))
            self._priorities.add(priority)
            self._size += stop - start
            while self._size > self._characters and len(self._heap) > 1:
                negative, _, _, evicted = heapq.heappop(self._heap)
                self._limit = -negative
                self._priorities.remove(self._limit)
                self._size -= len(evicted)

    def sentences(self, splitter: str, is_duplicate: Callable[[Any], bool] = lambda key: False) -> list[str]:
        """Return the sentences of the sample in the order of the corpus, without those of duplicates.

        Args:
          is_duplicate: whether the document with this key is dropped.
        """
        stretches = sorted(entry[1:] for entry in self._heap if not is_duplicate(entry[1]))
        # Adjacent stretches of a document are joined, so a cut between them leaves no trace.
        runs = itertools.groupby(enumerate(stretches), key=lambda entry: (entry[1][0], entry[1][1] - entry[0]))
        texts = ("".join(text for _, (_, _, text) in run) for _, run in runs)
        return [sentence for text in texts for sentence in split(text, splitter)]


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and stop of consecutive runs of whole lines that make up all of `text`."""
    start = 0
    while start < len(text):
        stop = text.find("\n", start + STRETCH, start + LONGEST_STRETCH) + 1
        if not stop and len(text) > start + LONGEST_STRETCH:
            stop = text.rfind(" ", start + STRETCH, start + LONGEST_STRETCH) + 1 or start + LONGEST_STRETCH
        stop = stop or len(text)
        yield start, stop
        start = stop
