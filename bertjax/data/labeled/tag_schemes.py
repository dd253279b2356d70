"""Schemes by which tags of words mark entities: IOB1, IOB2, IOBES, BILOU and BMES, in the spellings that files have.

A tag is the place of its word in an entity, and the type of the entity: `B-PER`, `B_PER`, `PER-B`, `PER_B`, or only `B`
if there is one type. The places are those of IOBES (`B`egin, `I`nside, `E`nd, `S`ingle) under several names: `L`ast and
`U`nit of BILOU (Ratinov & Roth, 2009), `M`iddle of BMES, `W`hole of BMEWO.
"""

import re
from collections.abc import Callable, Iterable

OUTSIDE = "O"
_PLACES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I", "W": "S"}
_LETTERS = "".join(_PLACES)
# The place and the type of a tag, in the order of their popularity.
_SPELLINGS = (
    re.compile(rf"(?P<place>[{_LETTERS}])[-_](?P<type>.+)", re.IGNORECASE),
    re.compile(rf"(?P<type>.+)[-_](?P<place>[{_LETTERS}])", re.IGNORECASE),
    re.compile(rf"(?P<place>[{_LETTERS}])(?P<type>)", re.IGNORECASE),
)

Canonical = Callable[[str], str]


def canonical_of(tags: Iterable[str]) -> Canonical | None:
    """Return the function from a tag to its spelling in IOBES, such as `U_PER` to `S-PER`, or None.

    Args:
      tags: all tags of a file or of a model. They are in a scheme if all but `O` are spelled in one way, and an entity
        can start. Parts of speech are not in a scheme, although some of them are single letters.
    """
    tags = [tag for tag in tags if tag.upper() != OUTSIDE]
    for spelling in _SPELLINGS:
        matches = [spelling.fullmatch(tag) for tag in tags]
        if tags and all(matches) and {_PLACES[match["place"].upper()] for match in matches} & set("BIS"):
            if spelling is _SPELLINGS[-1] and not {"b", "i", "m", "e", "l"} & {tag.lower() for tag in tags}:
                continue
            return lambda tag, spelling=spelling: _canonical(tag, spelling)
    return None


def _canonical(tag: str, spelling: re.Pattern) -> str:
    match = spelling.fullmatch(tag)
    return f"{_PLACES[match['place'].upper()]}-{match['type']}" if match else OUTSIDE
