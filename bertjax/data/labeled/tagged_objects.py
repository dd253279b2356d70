"""Tagged sentences in JSON, as written by the `datasets` library: {`tokens`: [...], `ner_tags`: [...]}."""

from bertjax.data.labeled import json_objects, labels
from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.base import OnBad, check_surrogates, read_each, stop
from bertjax.runtime.errors import UserError, shorten

# Accepted names for the field with the words.
WORD_FIELDS = ("tokens", "words")


def read(path: str, tag_field: str, on_bad: OnBad) -> list[Record]:
    """Read sentences as {`words`, `tags`} with their locations.

    Args:
      path: JSON lines or one JSON array of objects, plain, .gz, .zst or .xz.
      tag_field: field with the tags, texts or numbers; empty if only one list besides the words fits.
      on_bad: called with each bad sentence's error; if it returns, the sentence is dropped.

    Raises:
      UserError: the file cannot be read, several fields could hold the tags, or no sentence is left.
    """

    def record_of(item: tuple[Record, str, str]) -> Record:
        entry, word_field, field = item
        words, tags = _words(entry, word_field), entry.get(field)
        if not isinstance(tags, list) or len(tags) != len(words):
            count = f"{len(tags)} tags" if isinstance(tags, list) else "no list"
            raise UserError(
                f"{entry[WHERE]} has {count} in {field!r} and {len(words)} words in {word_field!r}; correct it"
            )
        if bad := [tag for tag in tags if type(tag) not in (str, int) or not str(tag).strip()]:
            raise UserError(f"{entry[WHERE]} has the tag {str(bad[0])[:40]!r}; write texts or numbers")
        check_surrogates("".join(map(str, tags)), f"{entry[WHERE]}: {field}")
        return {"words": words, "tags": [labels.class_of(tag) for tag in tags], WHERE: entry[WHERE]}

    records = list(read_each(_entries(path, tag_field, on_bad), record_of, on_bad))
    if not records:
        raise UserError(f"{path} has no sentences that can be used; give a file with a tag for each word")
    return records


def read_words(path: str) -> list[Record] | None:
    """Read sentences without tags; None if the objects have texts instead of word lists.

    Raises:
      UserError: the file cannot be read, or a sentence is bad.
    """
    first = _objects(path, stop)[0]
    if not any(isinstance(first.get(field), list) for field in WORD_FIELDS):
        return None
    return [entry | {"words": _words(entry, field)} for entry, field, _ in _entries(path, "", stop, needs_tags=False)]


def _entries(path: str, tag_field: str, on_bad: OnBad, needs_tags: bool = True) -> list[tuple[Record, str, str]]:
    """Return (object, word field, tag field) per sentence; the first object decides which fields they are."""
    entries = _objects(path, on_bad)
    first = entries[0]
    word_field = next((field for field in WORD_FIELDS if isinstance(first.get(field), list)), "")
    names = shorten([repr(name) for name in first if name != WHERE], 12)
    if not word_field:
        raise UserError(
            f"{first[WHERE]} has no list of words in {' or '.join(map(repr, WORD_FIELDS))}, it has {names}; write "
            '{"tokens": [...], "tags": [...]}'
        )
    # Other lists, such as those of characters or relations, rarely have as many entries as there are words.
    fitting = [
        name
        for name, value in first.items()
        if name != word_field and isinstance(value, list) and len(value) == len(first[word_field])
    ]
    if needs_tags and not tag_field and len(fitting) != 1:
        several = ", ".join(map(repr, fitting))
        what = f"has several lists of tags, {several}" if fitting else f"has no list of tags, only {names}"
        raise UserError(f"{first[WHERE]} {what}; set examples.tag_field to the one to learn")
    return [(entry, word_field, tag_field or next(iter(fitting), "")) for entry in entries]


def _objects(path: str, on_bad: OnBad) -> list[Record]:
    objects = list(json_objects.read(path, (), on_bad))
    if not objects:
        raise UserError(f"{path} has no objects; give a file with at least one")
    return objects


def _words(entry: Record, field: str) -> list[str]:
    words = entry.get(field)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise UserError(f"{entry[WHERE]} has no list of words in {field!r}; write one, without empty words")
    check_surrogates("".join(words), f"{entry[WHERE]}: {field}")
    return words
