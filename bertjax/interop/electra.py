"""ELECTRA in transformers: `ElectraModel`, `ElectraForPreTraining` (the discriminator) and `ElectraConfig`.

(transformers 4.57, models/electra/modeling_electra.py and configuration_electra.py.) Its classes have no pooler. In
transformers a generator is a separate model. Ours shares the discriminator's embeddings and is not exported.
"""

from bertjax.interop import names
from bertjax.interop.bert import FIXED, KEYS
from bertjax.interop.family import MLM, RTD, Family
from bertjax.interop.task_heads import TaskHead, task_heads
from bertjax.models.bert import BertEmbeddings
from bertjax.models.config import EncoderConfig

# Our generator shares the embeddings. Its MLM head reads a narrower encoder than that of the exported model.
_GENERATOR = frozenset({"generator", MLM})
_SUMMARY = {"summary_type": ("first",) * 2, "summary_use_proj": (True,) * 2, "summary_activation": ("gelu",) * 2}


class _Electra(Family):
    def leave_out(self, parts):
        if RTD not in parts or not parts & _GENERATOR:
            return super().leave_out(parts)
        kept, notes = super().leave_out(parts - _GENERATOR)
        return kept, [*notes, "generator and its head not exported: only pretraining needs them"]


FAMILY = _Electra(
    title="ELECTRA",
    model_type="electra",
    stem="Electra",
    table=(
        *names.embeddings("electra.embeddings"),
        *names.dense("electra.embeddings_project", "encoder/projection"),
        *names.bert_layers("electra"),
    ),
    parts={
        RTD: (
            *names.dense("discriminator_predictions.dense", "heads/rtd/transform"),
            *names.dense("discriminator_predictions.dense_prediction", "heads/rtd/classifier"),
        ),
    },
    classes={frozenset({RTD}): "ForPreTraining", frozenset(): "Model"},
    task_heads=task_heads(
        TaskHead("classifier.out_proj", "classifier.dense"),
        TaskHead("classifier", "sequence_summary.summary", _SUMMARY),
    ),
    keys=KEYS | {"activation": "hidden_act", "embeddings.width": "embedding_size"},
    defaults=EncoderConfig(
        vocab_size=30522, width=256, heads=4, feedforward=1024, embeddings=BertEmbeddings(128), pooler_activation="gelu"
    ),
    fixed=FIXED,
)
