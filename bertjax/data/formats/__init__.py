"""Example formats, one per file, listed in a registry; name a format from outside bertjax as `module:Class`.

Formats in this package read token stores; `bertjax.data.labeled` has the ones for labeled files.
"""

from bertjax.config.registry import Union
from bertjax.data.formats.base import ExampleFormat

KINDS = {
    "segment_pairs": "bertjax.data.formats.segments:SegmentPairs",
    "sentence_pairs": "bertjax.data.formats.sentence_pairs:SentencePairs",
    "full_sentences": "bertjax.data.formats.runs:FullSentences",
    "doc_sentences": "bertjax.data.formats.runs:DocSentences",
    "sentence_order": "bertjax.data.formats.sentence_pairs:SentenceOrder",
    "sentence_structure": "bertjax.data.formats.sentence_pairs:SentenceStructure",
    "sentence_distance": "bertjax.data.formats.sentence_pairs:SentenceDistance",
    "sentence_reordering": "bertjax.data.formats.sentence_reordering:SentenceReordering",
    "token_document": "bertjax.data.formats.token_document:TokenDocument",
}
LABELED_KINDS = {
    "labeled_text": "bertjax.data.labeled.texts:LabeledText",
    "label_sets": "bertjax.data.labeled.label_sets:LabelSets",
    "tagged": "bertjax.data.labeled.tagged:Tagged",
    "questions": "bertjax.data.labeled.questions:Questions",
    "siamese_pairs": "bertjax.data.labeled.siamese:SiamesePairs",
    "repeated_text": "bertjax.data.labeled.siamese:RepeatedText",
    "choices": "bertjax.data.labeled.choices:Choices",
    "race": "bertjax.data.labeled.choices:Race",
}

FORMATS = Union("examples", ExampleFormat, default="segment_pairs", kinds=KINDS | LABELED_KINDS)


def kinds_with(labels: tuple[str, ...]) -> list[str]:
    """Return the registered kinds with examples that carry all these labels."""
    return [kind for kind in FORMATS.kinds if set(labels) <= set(FORMATS.class_of(kind)().labels)]
