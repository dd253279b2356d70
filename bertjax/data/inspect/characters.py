"""Characters that a tokenizer has no piece for: they become bytes or [UNK]."""

import collections
import dataclasses
import itertools
import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bertjax import storage
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import printable

NAME = "characters.json"
_LISTED = 30
# Sentences that are counted at a time.
_BLOCK = 1 << 12


@dataclasses.dataclass(frozen=True)
class Characters:
    """The characters of the sample that a tokenizer trains on.

    Attributes:
      total: number of characters, white space not counted.
      distinct: number of distinct ones.
      missing: {character without a piece: its number}, most frequent first.
      becomes: `bytes` or `[UNK]`.
    """

    total: int
    distinct: int
    missing: dict[str, int]
    becomes: str

    def save(self, folder: Path) -> None:
        storage.write_text(folder / NAME, json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1))

    def lines(self) -> list[str]:
        """Return lines for the terminal, with the flag that keeps the characters."""
        if not self.missing:
            return [f"characters: every one of the {self.distinct:,} has a piece"]
        count, listed = sum(self.missing.values()), list(self.missing)[:_LISTED]
        counts = ", ".join(f"{printable(character)} {self.missing[character]:,}" for character in listed)
        more = len(self.missing) - len(listed)
        flag = shlex.quote(f"--config.data.tokenizer.keep={''.join(filter(str.isprintable, listed))}")
        return [
            f"characters: {len(self.missing):,} of {self.distinct:,} become {self.becomes}, {count / self.total:.3%} "
            f"of the text: {counts}{f', and {more:,} more in {NAME}' if more else ''}",
            f"  to keep these: {flag}; to keep all: --config.data.tokenizer.character_coverage=1",
        ]


def characters_of(sentences: Iterable[str], tokenizer: Tokenizer) -> Characters:
    """Count the characters of sentences, and which of them a tokenizer has no piece for.

    A single byte is the piece of an ASCII character, so only longer characters become bytes.
    """
    seen = {character: count for character, count in _counts(sentences).most_common() if not character.isspace()}
    missing, bytes_or_unk = {}, tokenizer.byte_ids | {tokenizer.unk_id}
    for (character, count), ids in zip(seen.items(), tokenizer.encode(list(seen)), strict=True):
        if not bytes_or_unk.isdisjoint(ids) and (tokenizer.unk_id in ids or len(character.encode()) > 1):
            missing[character] = count
    return Characters(sum(seen.values()), len(seen), missing, "bytes" if tokenizer.byte_ids else "[UNK]")


def _counts(sentences: Iterable[str]) -> collections.Counter[str]:
    """Count characters, in the order in which they are first seen; ten times as fast as `Counter.update`."""
    counts: collections.Counter[str] = collections.Counter()
    remaining = iter(sentences)
    while block := list(itertools.islice(remaining, _BLOCK)):
        text = "".join(block)
        numbers = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
        characters = list(map(chr, np.flatnonzero(numbers).tolist()))
        counts.update(dict.fromkeys(sorted(set(characters) - counts.keys(), key=text.index), 0))
        counts.update({character: int(numbers[ord(character)]) for character in characters})
    return counts


def load(folder: Path) -> Characters | None:
    """Read what `Characters.save` wrote; None in a store of an earlier version, which has no such file."""
    path = folder / NAME
    return Characters(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
