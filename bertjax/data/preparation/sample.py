"""The text that a tokenizer trains on: a sample of the training documents, drawn in one pass."""

import hashlib
import heapq
import itertools
from collections.abc import Callable, Iterator

from bertjax.data.text.sentences import split

# A store is shared by runs of all seeds, so its sample is keyed by a name and by content alone.
KEY = b"bertjax/sample"
# A stretch ends at the first line end after so many characters, and in a line without end at the last space before.
STRETCH = 4096
LONGEST_STRETCH = 16 * STRETCH


class Sample:
    """Draws stretches of whole lines, at most `characters` in all but one at least.

    Each stretch draws a priority from its document's content, and the lowest that fit stay. So copies of a document are
    in or out together, and only the first of them takes room.
    """

    def __init__(self, characters: int):
        """An empty sample."""
        self._characters = characters
        self._size = 0
        self._limit = 1 << 64
        self._heap: list[tuple[int, int, int, str]] = []  # -priority, document, index of the stretch, text
        self._priorities: set[int] = set()

    def add(self, document: int, digest: bytes, text: str) -> None:
        """Offers a document: its place in the corpus, the digest of its content, and its text."""
        for index, (start, stop) in enumerate(_stretches(text)):
            hashed = hashlib.blake2b(digest + index.to_bytes(8, "little"), digest_size=8, key=KEY).digest()
            priority = int.from_bytes(hashed, "little")
            if priority >= self._limit or priority in self._priorities:
                continue
            heapq.heappush(self._heap, (-priority, document, index, text[start:stop]))
            self._priorities.add(priority)
            self._size += stop - start
            while self._size > self._characters and len(self._heap) > 1:
                negative, _, _, evicted = heapq.heappop(self._heap)
                self._limit = -negative
                self._priorities.remove(self._limit)
                self._size -= len(evicted)

    def sentences(self, splitter: str, is_dropped: Callable[[int], bool] = lambda document: False) -> list[str]:
        """The sentences of the sample in the order of the corpus, without documents that were dropped after all."""
        stretches = sorted(entry[1:] for entry in self._heap if not is_dropped(entry[1]))
        # Stretches of one document that adjoin are joined again, so that a cut between them leaves no trace.
        runs = itertools.groupby(enumerate(stretches), key=lambda entry: (entry[1][0], entry[1][1] - entry[0]))
        texts = ("".join(text for _, (_, _, text) in run) for _, run in runs)
        return [sentence for text in texts for sentence in split(text, splitter)]


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Starts and stops of runs of whole lines, together all of `text`."""
    start = 0
    while start < len(text):
        stop = text.find("\n", start + STRETCH, start + LONGEST_STRETCH) + 1
        if not stop and len(text) > start + LONGEST_STRETCH:
            stop = text.rfind(" ", start + STRETCH, start + LONGEST_STRETCH) + 1 or start + LONGEST_STRETCH
        stop = stop or len(text)
        yield start, stop
        start = stop
