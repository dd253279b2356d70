"""Entity tagging schemes: IOB1, IOB2, IOBES, BILOU and BMES, in all common spellings.

A tag combines a word's position in an entity with the entity type: `B-PER`, `B_PER`, `PER-B`, `PER_B`, or only `B` if
there is one type. Every scheme maps to the positions in IOBES (`B`egin, `I`nside, `E`nd, `S`ingle): BILOU writes `L`ast
and `U`nit (Ratinov & Roth, 2009), BMES writes `M`iddle, and BMEWO writes `W`hole.
"""

import re
from collections.abc import Callable, Iterable, Sequence

OUTSIDE = "O"
_PLACES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I", "W": "S"}
_LETTERS = "".join(_PLACES)
# Position and type, most popular spelling first.
_SPELLINGS = (
    re.compile(rf"(?P<place>[{_LETTERS}])[-_](?P<type>.+)", re.IGNORECASE),
    re.compile(rf"(?P<type>.+)[-_](?P<place>[{_LETTERS}])", re.IGNORECASE),
    re.compile(rf"(?P<place>[{_LETTERS}])(?P<type>)", re.IGNORECASE),
)

Canonical = Callable[[str], str]


def canonical_of(tags: Iterable[str]) -> Canonical | None:
    """Return a function that rewrites tags to IOBES, such as `U_PER` to `S-PER`; None if there is no scheme.

    Args:
      tags: all tags in a file or a model. They follow a scheme if all except `O` have one spelling and some tag can
        start an entity. Part-of-speech tags do not, although some are single letters.
    """
    tags = [tag for tag in tags if tag.upper() != OUTSIDE]
    for spelling in _SPELLINGS:
        matches = [spelling.fullmatch(tag) for tag in tags]
        if tags and all(matches) and {_PLACES[match["place"].upper()] for match in matches} & set("BIS"):
            # Single letters may be parts of speech, or mark upper and lower case (U, L). Entities begin with B or I.
            if spelling is _SPELLINGS[-1] and not {"b", "i"} & {tag.lower() for tag in tags}:
                continue
            return lambda tag, spelling=spelling: _canonical(tag, spelling)
    return None


def misfits(tags: Iterable[str]) -> list[str]:
    """Return the tags that are spelled unlike most others, which follow a scheme: a typo, or another sign than `O`."""
    tags = sorted({tag for tag in tags if tag.upper() != OUTSIDE})
    for spelling in _SPELLINGS[:2]:
        fitting = [tag for tag in tags if spelling.fullmatch(tag)]
        if 2 * len(fitting) >= len(tags) and canonical_of(fitting):
            return [tag for tag in tags if tag not in fitting]
    return []


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (type, first word, last word) for each entity in a sentence; `tags` are in IOB or IOBES."""
    found, before = [], OUTSIDE
    for word, tag in enumerate(tags):
        if tag != OUTSIDE:
            if _starts(before, tag):
                found.append((tag[2:], word, word))
            else:  # the last entity goes on
                kind, first, _ = found[-1]
                found[-1] = (kind, first, word)
        before = tag
    return set(found)


def _starts(before: str, tag: str) -> bool:
    """Return whether a tag other than O starts a new entity, given the tag before it."""
    # A change of type also starts one, which covers IOB1, where B appears only between entities of one type.
    return before == OUTSIDE or before[0] in "ES" or tag[0] in "BS" or before[2:] != tag[2:]


def _canonical(tag: str, spelling: re.Pattern) -> str:
    match = spelling.fullmatch(tag)
    return f"{_PLACES[match['place'].upper()]}-{match['type']}" if match else OUTSIDE
