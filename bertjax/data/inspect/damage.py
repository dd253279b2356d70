"""Text that a wrong encoding or leftover markup has spoiled, found in documents of a token store."""

import dataclasses
import re
from collections.abc import Iterator

import numpy as np

from bertjax.data.store import TokenStore
from bertjax.errors import printable

# Documents that are looked at, and how many tokens of each.
_DOCUMENTS, _TOKENS = 400, 400
_BEGINNING = 60
_EXAMPLES = 3  # of each kind
# A document is spoiled above these numbers a thousand characters, and the report warns above this share of them.
_SEQUENCES, _REPLACED, _TAGS = 3, 1, 5
_MOST_LATIN = 0.4
MOST_SPOILED = 0.02
# What UTF-8 looks like when each byte is read as a character of Latin-1: a lead byte and as many continuing bytes.
_UTF8 = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_MARKUP = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]{0,14}(?:\s[^<>]{0,200})?/?\s*>|&(?:[a-zA-Z]{2,8}|#\d{1,6});")
_LATIN_1 = re.compile(r"[\u00a1-\u00ff]")


@dataclasses.dataclass(frozen=True)
class Damage:
    """What is wrong with some documents.

    Attributes:
      what: the damage, for people.
      remedy: what to do about it.
      share: share of the documents that were looked at.
      examples: beginnings of spoiled passages.
    """

    what: str
    remedy: str
    share: float
    examples: tuple[str, ...]


_KINDS = {
    "mojibake": (
        "look like text of one encoding that was read in another, such as UTF-8 as Latin-1",
        "write the files again in UTF-8, or drop such documents with data.filters",
    ),
    "markup": ("hold tags or entities of HTML or XML", "take the text out of the markup before bertjax reads it"),
}


def damages(store: TokenStore) -> list[Damage]:
    """Return the kinds of damage that are in documents of a store, the most frequent one first."""
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    number = 0
    for text in documents(store, _DOCUMENTS):
        number += 1
        for kind, passage in _found(text).items():
            found[kind].append(passage)
    result = [
        Damage(*_KINDS[kind], len(passages) / number, tuple(passages[:_EXAMPLES]))
        for kind, passages in found.items()
        if passages
    ]
    return sorted(result, key=lambda damage: -damage.share)


def warnings(store: TokenStore) -> list[str]:
    """Return a warning for each kind of damage in more than a few documents."""
    return [
        f"warning: {damage.share:.0%} of the documents {damage.what}: {printable(damage.examples[0])!r}; "
        f"{damage.remedy}"
        for damage in damages(store)
        if damage.share > MOST_SPOILED
    ]


def documents(store: TokenStore, number: int, tokens: int = _TOKENS) -> Iterator[str]:
    """Yield the beginnings of up to `number` training documents from the whole split, read back from their tokens."""
    split, tokenizer = store.split("train"), store.tokenizer
    total = len(split.documents) - 1
    for document in np.unique(np.linspace(0, total - 1, min(number, total)).astype(np.int64)):
        start, stop = (int(split.sentences[split.documents[document + end]]) for end in (0, 1))
        yield tokenizer.decode(split.tokens[start : min(stop, start + tokens)])


def _found(text: str) -> dict[str, str]:
    """Return the damage of a text, each kind with its first passage."""
    thousands, found = max(1, len(text)) / 1000, {}
    as_bytes = b"".join(map(_byte_of, text))
    sequences = list(_UTF8.finditer(as_bytes))
    replaced = text.count("\ufffd")
    latin = len(_LATIN_1.findall(text))
    if len(sequences) > _SEQUENCES * thousands and len(sequences) >= 2:
        found["mojibake"] = _passage(text, sequences[0].start())
    elif replaced > _REPLACED * thousands and replaced >= 2:
        found["mojibake"] = _passage(text, text.index("\ufffd"))
    elif latin > max(20, _MOST_LATIN * (len(text) - text.count(" "))):  # no language has so many of these
        found["mojibake"] = _passage(text, 0)
    tags = list(_MARKUP.finditer(text))
    if len(tags) > _TAGS * thousands and len(tags) >= 2:
        found["markup"] = _passage(text, tags[0].start())
    return found


def _byte_of(character: str) -> bytes:
    """Return the byte that was read as this character, in Windows-1252 or Latin-1; `?` for any other."""
    if character < "\u0080":
        return b"?"
    try:
        return character.encode("cp1252")
    except UnicodeEncodeError:
        return character.encode("latin-1", "replace")


def _passage(text: str, start: int) -> str:
    return " ".join(text[max(0, start - _BEGINNING // 3) : start + _BEGINNING].split())
