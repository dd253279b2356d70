"""CoNLL-U files, as used by Universal Dependencies (universaldependencies.org/format.html; Nivre et al. 2020)."""

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


def read(path: str, field: str, on_bad: OnBad) -> list[Record]:
    """Read sentences as {`words`, `tags`} with the location of their first line.

    Words are syntactic words, which carry the tags: multiword tokens (`1-2`) and empty nodes (`1.1`) are skipped.

    Args:
      path: a .conllu file, plain, .gz, .zst or .xz.
      field: the tag, see `check`; words that lack it get the tag `_`.
      on_bad: called with each bad sentence's error; if it returns, the sentence is dropped.

    Raises:
      UserError: the file cannot be read, no sentence is left, or no word has the feature.
    """
    records = _records(path, on_bad, lambda words, where: {"tags": [_tag(values, field) for values in words]})
    if all(tag == ABSENT for record in records for tag in record["tags"]):
        raise UserError(f"{path} has no word with examples.conllu={field}; choose upos, xpos or another feature")
    return records


def read_words(path: str) -> list[Record]:
    """Read sentences as {`words`} with the location of their first line.

    Raises:
      UserError: the file cannot be read, or a sentence is bad.
    """
    return _records(path, stop, lambda words, where: {})


def read_trees(path: str) -> list[Record]:
    """Read sentences as {`words`, `tags`, `heads`} with the location of their first line.

    Words are as in `read`; tags are `upos`. A head is a word number, counted from 1, or 0 for the only root.

    Args:
      path: a .conllu file, plain, .gz, .zst or .xz.

    Raises:
      UserError: the file cannot be read, has no sentence, or a sentence is bad, e.g. its heads do not form a tree.
    """
    return _records(path, stop, _tree)


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


def _records(path: str, on_bad: OnBad, make: Callable[[list[dict[str, Any]], str], Record]) -> list[Record]:
    """Return {`words`} per sentence, with what `make` adds from the columns of its words and their location."""

    def record_of(lines: list[tuple[int, bytes]]) -> Record:
        where = f"{path}:{lines[0][0]}"
        words = [values for number, line in lines if (values := _word(line, f"{path}:{number}"))]
        made = make(words, where) if words else {}  # without words there are only comments
        return {"words": [values["form"] for values in words]} | made | {WHERE: where}

    records = (record for record in read_each(_sentences(path), record_of, on_bad) if record["words"])
    return not_empty(records, path, "sentences of CoNLL-U that can be used")


def _tag(values: dict[str, Any], field: str) -> str:
    tag = values["feats"].get(field.removeprefix(FEATURE)) if field.startswith(FEATURE) else values[field]
    return tag or ABSENT


def _tree(words: list[dict[str, Any]], where: str) -> Record:
    heads = [int(values["head"]) if values["head"].isdecimal() else -1 for values in words]
    if not _is_tree(heads):
        raise UserError(f"{where} starts a sentence whose heads are no tree with one root; correct the column head")
    return {"tags": [values["upos"] for values in words], "heads": heads}


def _is_tree(heads: list[int]) -> bool:
    """Return whether every word reaches the only root."""
    if heads.count(0) != 1 or not all(0 <= head <= len(heads) for head in heads):
        return False
    # Walk down from the root, level by level; words in a cycle are never reached.
    reached = {0}
    while below := {word for word, head in enumerate(heads, 1) if head in reached} - reached:
        reached |= below
    return len(reached) == len(heads) + 1


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
    if not isinstance(number, int):
        return None
    return values | {"feats": feats}


def _sentences(path: str) -> Iterator[list[tuple[int, bytes]]]:
    """Yield blocks of numbered lines, split at blank lines."""
    lines = []
    for number, line in numbered_lines(path):
        if line.strip():
            lines.append((number, line))
        elif lines:
            yield lines
            lines = []
    if lines:
        yield lines
