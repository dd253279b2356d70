"""Detect documents in a token store that a wrong encoding or leftover markup has spoiled."""

import dataclasses
import re
from collections.abc import Iterator

import numpy as np

from bertjax.data.store import TokenStore
from bertjax.runtime.errors import printable

# Checked documents, and checked tokens in each.
_DOCUMENTS, _TOKENS = 400, 400
_BEGINNING = 60
_EXAMPLES = 3  # of each kind
# A document is spoiled above these numbers per thousand characters: misread sequences, U+FFFD, tags.
_SEQUENCES, _REPLACED, _TAGS = 3, 1, 5
# A document is also spoiled above this share of Latin-1 letters with accents.
_MOST_LATIN = 0.4
# The report warns above this share of spoiled documents.
MOST_SPOILED = 0.02
# UTF-8 bytes that were read as Latin-1 characters: a lead byte and the right number of continuation bytes.
_UTF8 = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_MARKUP = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]{0,14}(?:\s[^<>]{0,200})?/?\s*>|&(?:[a-zA-Z]{2,8}|#\d{1,6});")
_LATIN_1 = re.compile(r"[\u00a1-\u00ff]")


@dataclasses.dataclass(frozen=True)
class Damage:
    """One kind of damage in some documents.

    Attributes:
      what: description for the report.
      remedy: remedy for the report.
      share: fraction of checked documents that have it.
      examples: spoiled passages, cut short.
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
    """Return damage in a store's documents by kind, most frequent first."""
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
    """Return a warning for each kind of damage that exceeds `MOST_SPOILED`."""
    return [
        f"warning: {damage.share:.0%} of the documents {damage.what}: {printable(damage.examples[0])!r}; "
        f"{damage.remedy}"
        for damage in damages(store)
        if damage.share > MOST_SPOILED
    ]


def documents(store: TokenStore, number: int, tokens: int = _TOKENS) -> Iterator[str]:
    """Decode the beginnings of up to `number` training documents, spread over the whole split."""
    split, tokenizer = store.split("train"), store.tokenizer
    total = len(split.documents) - 1
    # `unique`, because a float just below an integer is truncated to the document before.
    for document in np.unique(np.linspace(0, total - 1, min(number, total)).astype(np.int64)):
        start, stop = (int(split.sentences[split.documents[document + end]]) for end in (0, 1))
        yield tokenizer.decode(split.tokens[start : min(stop, start + tokens)])


def _found(text: str) -> dict[str, str]:
    """Return the first spoiled passage by kind of damage."""
    thousands, found = max(1, len(text)) / 1000, {}
    # One byte per character, so a position in the bytes is also the position in the text.
    as_bytes = b"".join(map(_byte_of, text))
    sequences = list(_UTF8.finditer(as_bytes))
    replaced = text.count("\ufffd")
    latin = len(_LATIN_1.findall(text))
    # At least two: in a short text a single one, which may be meant, exceeds any rate.
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
    """Return the byte that Windows-1252 or Latin-1 reads as this character; `?` for ASCII and any other."""
    if character < "\u0080":
        return b"?"
    try:
        # Windows-1252 first: it has letters and signs where Latin-1 has control characters, and misread text has those.
        return character.encode("cp1252")
    except UnicodeEncodeError:
        return character.encode("latin-1", "replace")


def _passage(text: str, start: int) -> str:
    return " ".join(text[max(0, start - _BEGINNING // 3) : start + _BEGINNING].split())
