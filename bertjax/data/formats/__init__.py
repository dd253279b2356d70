"""Example formats: one file each. The registry names them; one that lives elsewhere is named by `module:Class`.

Those here read token stores; those of `bertjax.data.labeled` read files of labeled examples.
"""

from bertjax.data.formats.base import ExampleFormat
from bertjax.errors import UserError
from bertjax.registry import named_class

KINDS = {
    "segment_pairs": "bertjax.data.formats.segment_pairs:SegmentPairs",
    "sentence_pairs": "bertjax.data.formats.sentence_pairs:SentencePairs",
    "full_sentences": "bertjax.data.formats.full_sentences:FullSentences",
    "doc_sentences": "bertjax.data.formats.doc_sentences:DocSentences",
    "sentence_order": "bertjax.data.formats.sentence_order:SentenceOrder",
    "sentence_structure": "bertjax.data.formats.sentence_structure:SentenceStructure",
    "sentence_distance": "bertjax.data.formats.sentence_distance:SentenceDistance",
    "sentence_reordering": "bertjax.data.formats.sentence_reordering:SentenceReordering",
    "token_document": "bertjax.data.formats.token_document:TokenDocument",
}
LABELED_KINDS = {
    "labeled_text": "bertjax.data.labeled.texts:LabeledText",
    "tagged": "bertjax.data.labeled.tagged:Tagged",
    "questions": "bertjax.data.labeled.questions:Questions",
    "siamese_pairs": "bertjax.data.labeled.siamese:SiamesePairs",
    "choices": "bertjax.data.labeled.choices:Choices",
}


def format_class(kind: str | None) -> type[ExampleFormat]:
    """The class of a format, by its registered kind or as `module:Class`; that of segment pairs where none is said.

    Raises:
      UserError: no such kind, or nothing importable under that name.
    """
    kind = kind or "segment_pairs"
    found = named_class("examples", kind, KINDS | LABELED_KINDS, ExampleFormat)
    if (own := getattr(found, "kind", None)) != kind:
        raise UserError(f"examples.kind={kind!r} names a class whose own kind is {own!r}; make them the same")
    return found


def kinds_with(labels: tuple[str, ...]) -> list[str]:
    """The registered kinds whose examples carry all of these labels."""
    return [kind for kind in KINDS | LABELED_KINDS if set(labels) <= set(format_class(kind)().labels)]
