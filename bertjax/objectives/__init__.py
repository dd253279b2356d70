"""Objectives: one file each. The registry names them; one that lives elsewhere is named by `module:Class`."""

from bertjax.objectives.base import Objective
from bertjax.registry import named_class

KINDS = {
    "mlm": "bertjax.objectives.mlm:MaskedLM",
    "bert": "bertjax.objectives.bert:BERT",
    "distillation": "bertjax.objectives.distillation:Distillation",
    "electra": "bertjax.objectives.electra:Electra",
    "permutation": "bertjax.objectives.permutation:PermutationLM",
    "sentence_order": "bertjax.objectives.sop:SentenceOrderPrediction",
    "sentence_structure": "bertjax.objectives.structure:SentenceStructurePrediction",
    "span_boundary": "bertjax.objectives.span_boundary:SpanBoundary",
    "structbert": "bertjax.objectives.structbert:StructBERT",
    "sentence_distance": "bertjax.objectives.sentence_distance:SentenceDistancePrediction",
    "sentence_reordering": "bertjax.objectives.sentence_reordering:SentenceReorderingPrediction",
    "capitals": "bertjax.objectives.capitals:CapitalPrediction",
    "token_document": "bertjax.objectives.token_document:TokenDocumentRelation",
    "classification": "bertjax.objectives.classification:Classification",
    "regression": "bertjax.objectives.regression:Regression",
    "tagging": "bertjax.objectives.tagging:Tagging",
    "question_answering": "bertjax.objectives.question_answering:QuestionAnswering",
    "multiple_choice": "bertjax.objectives.multiple_choice:MultipleChoice",
    "embedding_classification": "bertjax.objectives.embedding:EmbeddingClassification",
    "embedding_regression": "bertjax.objectives.embedding:EmbeddingRegression",
    "embedding_contrastive": "bertjax.objectives.contrastive:EmbeddingContrastive",
}


def objective_class(kind: str | None) -> type[Objective]:
    """The class of an objective, by its registered kind or as `module:Class`; BERT's where none is said.

    Raises:
      UserError: no such kind, or nothing importable under that name.
    """
    return named_class("objective", kind or "bert", KINDS, Objective)


def kind_of(objective: Objective) -> str:
    """The name under which `objective_class` finds an objective's class again."""
    name = f"{type(objective).__module__}:{type(objective).__qualname__}"
    return next((kind for kind, known in KINDS.items() if known == name), name)
