"""Characters that a tokenizer loses: they become bytes or [UNK], or are removed."""

import collections
import dataclasses
import functools
import itertools
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertjax.data.text import unicode
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import storage
from bertjax.runtime.errors import printable

NAME = "characters.json"
_LISTED = 30
# Sentences per counted block.
_BLOCK = 1 << 12
# About how many characters are searched for [UNK], in sentences from the whole sample.
_LOOKED_AT = 1 << 18


@dataclasses.dataclass(frozen=True)
class Characters:
    """Character statistics for the tokenizer's training sample.

    Attributes:
      total: character count without white space.
      distinct: how many different characters there are.
      missing: {character without a piece: count}, most frequent first.
      becomes: what they become, `bytes` or `[UNK]`.
      removed: {character without any token: count}, most frequent first.
      unknown: fraction of characters that became [UNK]; in WordPiece, a whole word does.
      too_long: fraction of characters in words that exceed the tokenizer's limit; included in `unknown`.
      longest_word: the tokenizer's limit in characters per word, 0 for none.
    """

    total: int
    distinct: int
    missing: dict[str, int]
    becomes: str
    removed: dict[str, int]
    unknown: float
    too_long: float
    longest_word: int

    def save(self, folder: Path) -> None:
        storage.write_text(folder / NAME, json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1))

    def lines(self, can_keep: bool) -> list[str]:
        """Return lines for the terminal.

        Args:
          can_keep: whether the tokenizer is trained with `keep`, so that the lines end with the flag for it.
        """
        lines = []
        if not self.missing and not self.removed and not self.unknown:
            lines.append(f"characters: every one of the {self.distinct:,} has a piece")
        if self.missing:
            lines.append(f"characters: {self._listed(self.missing)} become {self.becomes}{self._counted(self.missing)}")
            # The flag is copied from a terminal, so it has only printable characters.
            shown = "".join(filter(str.isprintable, list(self.missing)[:_LISTED]))
            some = f"to keep these: {shlex.quote(f'--config.data.tokenizer.keep={shown}')}; " if shown else ""
            if can_keep:
                lines.append(f"  {some}to keep all: --config.data.tokenizer.character_coverage=1")
        if self.removed:
            removed = f"{self._listed(self.removed)} are removed by the tokenizer{self._counted(self.removed)}"
            lines.append(f"characters: {removed}")
        if self.unknown:
            # A character may have a piece and still be lost: with a word that is too long, or only inside words.
            why = "with the rest of their words" if self.missing else "although each of them alone has a piece"
            line = f"characters: {self.unknown:.3%} of the text became [UNK], {why}"
            if self.too_long:
                line += f"; {self.too_long:.3%} is in words of more than {self.longest_word} characters"
            lines.append(line)
        return lines

    def _listed(self, characters: dict[str, int]) -> str:
        return f"{len(characters):,} of {self.distinct:,}"

    def _counted(self, characters: dict[str, int]) -> str:
        listed = [f"{_name(character)} {characters[character]:,}" for character in list(characters)[:_LISTED]]
        more = len(characters) - len(listed)
        share = sum(characters.values()) / self.total
        return f", {share:.3%} of the text: {', '.join(listed)}{f', and {more:,} more in {NAME}' if more else ''}"

    def warnings(self, most_unknown: float, most_removed: float, remedy: str) -> list[str]:
        """Return warnings about lost text.

        Args:
          most_unknown: largest fraction of [UNK] without a warning.
          most_removed: largest fraction of removed characters without a warning.
          remedy: remedy for characters without a piece.
        """
        lines = []
        if self.unknown > most_unknown:
            # Long words are the main cause, and no larger vocabulary cures it.
            if 2 * self.too_long > self.unknown:
                longest = f"words of more than {self.longest_word} characters are [UNK] for WordPiece"
                remedy = f"{longest}, and text without spaces has such words; choose data.tokenizer.kind=unigram"
            lines.append(f"warning: {self.unknown:.1%} of the characters of the training text became [UNK]; {remedy}")
        if (share := sum(self.removed.values()) / max(1, self.total)) > most_removed:
            has_marks = any(unicode.is_mark(character) for character in self.removed)
            what = "characters" + ", marks and joiners that belong to letters" * has_marks
            remedy = "leave out data.tokenizer.lowercase, or choose data.tokenizer.kind=unigram"
            lines.append(f"warning: the tokenizer removes {share:.1%} of the {what}; {remedy}")
        return lines


def characters_of(sentences: Sequence[str], tokenizer: Tokenizer) -> Characters:
    """Count characters in sentences, and find the ones that have no piece or are removed by the tokenizer.

    A character is missing if one of its tokens is [UNK] or holds only a part of it, which decodes to U+FFFD.
    """
    seen = {character: count for character, count in _counts(sentences).most_common() if not character.isspace()}
    missing, removed = {}, {}

    @functools.cache
    def is_lost(token_id: int) -> bool:
        return token_id == tokenizer.unk_id or "\ufffd" in tokenizer.decode([token_id])

    for (character, count), ids in zip(seen.items(), tokenizer.encode(list(seen)), strict=True):
        # U+FFFD itself decodes to U+FFFD without being lost.
        if any(map(is_lost, ids)) and character != "\ufffd":
            missing[character] = count
        elif not tokenizer.decode(ids).strip():
            removed[character] = count
    if missing and tokenizer.byte_ids:
        # Byte-level BPE may encode a lone character as bytes, although in text it is part of a longer piece.
        lost, looked_at = _in_parts(sentences, tokenizer, is_lost, seen)
        missing = {each: count for each, count in missing.items() if 2 * lost[each] > looked_at[each]}
    becomes, total = "bytes" if tokenizer.byte_ids else "[UNK]", sum(seen.values())
    unknown, too_long = _unknown(sentences, tokenizer, total)
    return Characters(total, len(seen), missing, becomes, removed, unknown, too_long, tokenizer.longest_word)


def _in_parts(
    sentences: Sequence[str], tokenizer: Tokenizer, is_lost: Callable[[int], bool], seen: dict[str, int]
) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Count characters in some sentences: characters that are cut across tokens, and all characters.

    Each starts at one in both counters, so a character that these sentences do not have counts as lost.
    """
    lost, looked_at = collections.Counter(dict.fromkeys(seen, 1)), collections.Counter(seen.keys())
    part = list(sentences[:: 1 + sum(seen.values()) // _LOOKED_AT])
    for text, (ids, spans) in zip(part, tokenizer.encode_with_offsets(part), strict=True):
        looked_at.update(text)
        cut = {place for i, span in zip(ids, spans.tolist()) if is_lost(i) for place in range(*span)}
        lost.update(text[place] for place in cut)
    return lost, looked_at


def _unknown(sentences: Sequence[str], tokenizer: Tokenizer, total: int) -> tuple[float, float]:
    """Return the fraction of characters that became [UNK], and the fraction in words beyond the tokenizer's limit.

    From a large sample only every n-th sentence is read.
    """
    if tokenizer.byte_ids:
        # With byte pieces, nothing becomes [UNK].
        return 0.0, 0.0
    step = 1 + total // _LOOKED_AT  # offsets are slow, and a share needs no more
    unknown = too_long = looked_at = 0
    limit = tokenizer.longest_word
    # A cheap test for long words, because few texts have long runs without white space. Normalization can make a run
    # three times as long: uncased BERT takes Hangul syllables apart into letters.
    too_long_run = re.compile(rf"\S{{{limit // 3 + 1},}}")
    for first in range(0, len(sentences), step * _BLOCK):
        block = list(sentences[first : first + step * _BLOCK : step])
        looked_at += sum(len(sentence) - sentence.count(" ") for sentence in block)
        # Only these sentences are encoded a second time, with the slow offsets.
        with_unknown = [text for text, ids in zip(block, tokenizer.encode(block)) if tokenizer.unk_id in ids]
        for text, (ids, spans) in zip(with_unknown, tokenizer.encode_with_offsets(with_unknown), strict=True):
            lost = spans[np.array(ids) == tokenizer.unk_id].tolist()
            unknown += sum(stop - start - text.count(" ", start, stop) for start, stop in lost)
        for text in with_unknown:
            if limit and too_long_run.search(text):
                too_long += sum(len(word) for word in cast(Any, tokenizer).words(text) if len(word) > limit)
    # Words are counted as normalized, the rest as written, so the part is bounded by the whole.
    return unknown / max(1, looked_at), min(unknown, too_long) / max(1, looked_at)


def _name(character: str) -> str:
    """Return a character, or its code point if it is not visible by itself."""
    is_visible = character.isprintable() and not unicode.is_mark(character)
    return printable(character) if is_visible else f"U+{ord(character):04X}"


def _counts(sentences: Sequence[str]) -> collections.Counter[str]:
    """Count characters, ordered by first occurrence, ten times as fast as `Counter.update`."""
    counts: collections.Counter[str] = collections.Counter()
    remaining = iter(sentences)
    while block := list(itertools.islice(remaining, _BLOCK)):
        text = "".join(block)
        # UTF-32 has one number per character, so one `bincount` counts a whole block.
        numbers = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
        characters = list(map(chr, np.flatnonzero(numbers).tolist()))
        # New characters enter by first occurrence, because `most_common` keeps the order of equally frequent ones.
        counts.update(dict.fromkeys(sorted(set(characters) - counts.keys(), key=text.index), 0))
        counts.update({character: int(numbers[ord(character)]) for character in characters})
    return counts


def load(folder: Path) -> Characters:
    """Read the file that `Characters.save` wrote."""
    return Characters(**json.loads((folder / NAME).read_text(encoding="utf-8")))
