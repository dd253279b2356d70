"""Objectives, one idea per file: base classes, losses, pretraining, fine-tuning and distillation.

`host` has what an objective does in numpy, which ONNX files need too, and `base` what JAX traces. A kind from outside
of bertjax is `module:Class`, see `bertjax.config.registry`.

A wrapper, such as `distilled`, trains another objective in its own way.
"""

# As strings, because a module is imported only when its class is used.
KINDS = {
    "mlm": "bertjax.objectives.pretraining.mlm:MaskedLM",
    "causal": "bertjax.objectives.pretraining.causal:CausalLM",
    "bert": "bertjax.objectives.pretraining.sentence_pairs:BERT",
    "diffusion": "bertjax.objectives.pretraining.diffusion:MaskedDiffusion",
    "next_token": "bertjax.objectives.pretraining.causal:NextToken",
    "masked_next_token": "bertjax.objectives.pretraining.causal:MaskedNextToken",
    "electra": "bertjax.objectives.pretraining.electra:Electra",
    "permutation": "bertjax.objectives.pretraining.permutation:PermutationLM",
    "permuted_mlm": "bertjax.objectives.pretraining.permutation:PermutedMaskedLM",
    "sentence_order": "bertjax.objectives.pretraining.sentence_pairs:SentenceOrderPrediction",
    "sentence_structure": "bertjax.objectives.pretraining.sentence_pairs:SentenceStructurePrediction",
    "span_boundary": "bertjax.objectives.pretraining.span_boundary:SpanBoundary",
    "structbert": "bertjax.objectives.pretraining.structbert:StructBERT",
    "sentence_distance": "bertjax.objectives.pretraining.sentence_pairs:SentenceDistancePrediction",
    "sentence_reordering": "bertjax.objectives.pretraining.sentence_pairs:SentenceReorderingPrediction",
    "capitals": "bertjax.objectives.pretraining.token_labels:CapitalPrediction",
    "token_document": "bertjax.objectives.pretraining.token_labels:TokenDocumentRelation",
    "classification": "bertjax.objectives.finetuning.labels:Classification",
    "multi_label": "bertjax.objectives.finetuning.labels:MultiLabel",
    "regression": "bertjax.objectives.finetuning.labels:Regression",
    "tagging": "bertjax.objectives.finetuning.labels:Tagging",
    "question_answering": "bertjax.objectives.finetuning.question_answering:QuestionAnswering",
    "multiple_choice": "bertjax.objectives.finetuning.multiple_choice:MultipleChoice",
    "distilled": "bertjax.objectives.distill.distilled:Distilled",
    "replacing": "bertjax.objectives.distill.replacing:Replacing",
    "setfit": "bertjax.objectives.finetuning.setfit:SetFit",
    "embedding_classification": "bertjax.objectives.finetuning.embeddings:EmbeddingClassification",
    "embedding_regression": "bertjax.objectives.finetuning.embeddings:EmbeddingRegression",
    "embedding_contrastive": "bertjax.objectives.finetuning.embeddings:EmbeddingContrastive",
    "embedding_simcse": "bertjax.objectives.finetuning.embeddings:EmbeddingSimCSE",
}
