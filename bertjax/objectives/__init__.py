"""Objectives: one file each. The registry names them; one that lives elsewhere is named by `module:Class`."""

from bertjax.objectives.base import Objective
from bertjax.registry import Union

KINDS = {
    "mlm": "bertjax.objectives.pretraining.mlm:MaskedLM",
    "bert": "bertjax.objectives.pretraining.bert:BERT",
    "distillation": "bertjax.objectives.pretraining.distillation:Distillation",
    "electra": "bertjax.objectives.pretraining.electra:Electra",
    "permutation": "bertjax.objectives.pretraining.permutation:PermutationLM",
    "sentence_order": "bertjax.objectives.pretraining.sop:SentenceOrderPrediction",
    "sentence_structure": "bertjax.objectives.pretraining.structure:SentenceStructurePrediction",
    "span_boundary": "bertjax.objectives.pretraining.span_boundary:SpanBoundary",
    "structbert": "bertjax.objectives.pretraining.structbert:StructBERT",
    "sentence_distance": "bertjax.objectives.pretraining.sentence_distance:SentenceDistancePrediction",
    "sentence_reordering": "bertjax.objectives.pretraining.sentence_reordering:SentenceReorderingPrediction",
    "capitals": "bertjax.objectives.pretraining.capitals:CapitalPrediction",
    "token_document": "bertjax.objectives.pretraining.token_document:TokenDocumentRelation",
    "classification": "bertjax.objectives.finetuning.classification:Classification",
    "regression": "bertjax.objectives.finetuning.regression:Regression",
    "tagging": "bertjax.objectives.finetuning.tagging:Tagging",
    "question_answering": "bertjax.objectives.finetuning.question_answering:QuestionAnswering",
    "multiple_choice": "bertjax.objectives.finetuning.multiple_choice:MultipleChoice",
    "embedding_classification": "bertjax.objectives.finetuning.embeddings:EmbeddingClassification",
    "embedding_regression": "bertjax.objectives.finetuning.embeddings:EmbeddingRegression",
    "embedding_contrastive": "bertjax.objectives.finetuning.contrastive:EmbeddingContrastive",
}

OBJECTIVES = Union("objective", Objective, default="bert", kinds=KINDS)
