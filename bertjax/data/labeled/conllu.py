"""CoNLL-U files, as used by Universal Dependencies (universaldependencies.org/format.html; Nivre et al. 2020)."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bertjax.data.labeled.base import WHERE, Record, not_empty
from bertjax.data.sources.base import OnBad, decoded, read_each, stop
from bertjax.data.sources.lines import numbered_lines
from bertjax.runtime.errors import UserError

SUFFIX = ".conllu"
COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
FEATURE = "feats."
# Marks an absent value.
ABSENT = "_"
# Ids of words (1), multiword tokens (1-2) and empty nodes (1.1).
NUMBER = re.compile(r"\d+([-.]\d+)?")
# CoNLL-U has no column for entities, so their tags go into this field in `misc`.
_ENTITY = "NER"


def check(field: str) -> None:
    """Raise UserError unless `field` is `upos`, `xpos` or `feats.NAME`."""
    if field not in ("upos", "xpos") and not (field.startswith(FEATURE) and field != FEATURE):
        raise UserError(f"examples.conllu={field!r} is not a tag of CoNLL-U; choose upos, xpos or such as feats.Case")


def read(path: str, columns_of: Callable[[list[dict[str, Any]], str], Record], on_bad: OnBad = stop) -> list[Record]:
    """Read sentences as {`words`} with the location of their first line.

    Words are syntactic words, which carry the tags: multiword tokens (`1-2`) and empty nodes (`1.1`) are skipped.

    Args:
      path: a .conllu file, plain, .gz, .zst or .xz.
      columns_of: returns further fields of a record, such as `{"tags": [...]}`, given its words as {column: value} and
        its location.
      on_bad: called with each bad sentence's error; if it returns, the sentence is dropped.

    Raises:
      UserError: the file cannot be read, or no sentence is left.
    """

    def record_of(lines: list[tuple[int, bytes]]) -> Record:
        where = f"{path}:{lines[0][0]}"
        words = [values for number, line in lines if (values := _word(line, f"{path}:{number}"))]
        # Without words there are only comments.
        further = columns_of(words, where) if words else {}
        return {"words": [values["form"] for values in words]} | further | {WHERE: where}

    groups = itertools.groupby(numbered_lines(path), key=lambda line: bool(line[1].strip()))
    records = read_each((list(lines) for is_filled, lines in groups if is_filled), record_of, on_bad)
    return not_empty((record for record in records if record["words"]), path, "sentences of CoNLL-U that can be used")


def read_tags(path: str, field: str, on_bad: OnBad) -> list[Record]:
    """Read sentences as {`words`, `tags`}.

    Args:
      path, on_bad: see `read`.
      field: the tag, see `check`; words that lack it get the tag `_`.

    Raises:
      UserError: see `read`; or no word has the feature.
    """

    def tag_of(values: dict[str, Any]) -> str:
        name = field.removeprefix(FEATURE)
        return (values["feats"].get(name) if field != name else values[field]) or ABSENT

    records = read(path, lambda words, where: {"tags": list(map(tag_of, words))}, on_bad)
    if all(tag == ABSENT for record in records for tag in record["tags"]):
        raise UserError(f"{path} has no word with examples.conllu={field}; choose upos, xpos or another feature")
    return records


def with_tags(path: str, field: str, tags: Iterable[str]) -> Iterator[str]:
    """Yield a file's lines with the given tags, one per word.

    Args:
      path: a CoNLL-U file.
      field: the column to replace (`upos` or `xpos`) or the feature to set; empty for entity tags, which are written as
        `NER=TAG` in the last column.
      tags: tags in word order; `_` leaves a feature unset.
    """
    tags = iter(tags)
    for number, line in numbered_lines(path):
        if not line.strip() or _word(line, f"{path}:{number}") is None:
            yield decoded(line, f"{path}:{number}")
            continue
        columns, tag = decoded(line, f"{path}:{number}").split("\t"), next(tags)
        if field in COLUMNS:
            columns[COLUMNS.index(field)] = tag
        else:
            name, place = (field.removeprefix(FEATURE), "feats") if field else (_ENTITY, "misc")
            columns[COLUMNS.index(place)] = _with_entry(columns[COLUMNS.index(place)], name, tag)
        yield "\t".join(columns)


def _with_entry(entries: str, name: str, value: str) -> str:
    """Set one entry in a list such as `Case=Nom|Number=Sing`, which stays sorted by name as the format requires."""
    others = [entry for entry in entries.split("|") if entry not in ("", ABSENT) and entry.split("=")[0] != name]
    entries = others + ([f"{name}={value}"] if value != ABSENT else [])
    return "|".join(sorted(entries, key=str.casefold)) or ABSENT


def _word(line: bytes, where: str) -> dict[str, Any] | None:
    """Return a line's columns by name; None for comments, multiword tokens and empty nodes."""
    # Imported here, because few runs read CoNLL-U.
    from conllu import exceptions, parser

    columns = decoded(line, where).split("\t")
    if columns[0].startswith("#"):
        return None
    if len(columns) != len(COLUMNS):
        raise UserError(f"{where} has {len(columns)} columns between tabs, not {len(COLUMNS)}; correct the line")
    values = dict(zip(COLUMNS, columns))
    try:
        number, feats = parser.parse_id_value(values["id"]), parser.parse_dict_value(values["feats"]) or {}
    except exceptions.ParseException as error:
        raise UserError(f"{where} is not CoNLL-U ({error}); correct the line") from None
    if number is None or not values["form"].strip():
        raise UserError(f"{where} has no {'word' if number else 'number'}; correct the line")
    return values | {"feats": feats} if isinstance(number, int) else None
