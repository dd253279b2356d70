"""NeoBERT in the authors' code for transformers: `NeoBERT`, `NeoBERTLMHead` and `NeoBERTForSequenceClassification`.

(github.com/chandar-lab/NeoBERT, commit ed75b68, src/neobert/model/model.py and rotary.py; `config.json` and names of
huggingface.co/chandar-lab/NeoBERT.) transformers does not have the classes: a folder names them in `auto_map`. bertjax
runs no such code. It computes the same function, and the folders that it writes name the authors' repository.

One tensor joins queries, keys and values, head by head: rows of head h are q, k, v. Rotations pair neighboring channels
(2i with 2i + 1), and bertjax pairs halves (i with i + d / 2), so channels of queries and keys are reordered.
"""

import numpy as np

from bertjax.interop import names
from bertjax.interop.bert import KEYS_WITHOUT_SEGMENTS
from bertjax.interop.family import MLM, Family
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import ON_EXAMPLES, TaskHead
from bertjax.models.config import EncoderConfig
from bertjax.models.presets import PRESETS

_LAYER, _OURS = f"model.transformer_encoder.{names.LAYER}", "encoder/layers"
_ATTENTION = tuple(f"{_OURS}/attention/{name}" for name in ("query", "key", "value"))
_CODE = "chandar-lab/NeoBERT"
_CLASSES = {
    "AutoConfig": "NeoBERTConfig",
    "AutoModel": "NeoBERT",
    "AutoModelForMaskedLM": "NeoBERTLMHead",
    "AutoModelForSequenceClassification": "NeoBERTForSequenceClassification",
}
# Keys that do not change the function: initialization, speed, and leftovers of their training code.
_HARMLESS = frozenset(
    "auto_map embedding_init_range classifier_init_range flash_attention base_scale kwargs trust_remote_code "
    "pretrained_model_name_or_path".split()
)
# The authors' hidden size is a multiple of this.
_MULTIPLE = 8


class _NeoBert(Family):
    def refusals(self, encoder, pad_id):
        lines = super().refusals(encoder, pad_id)
        if encoder.feedforward % _MULTIPLE:
            why = f"has a multiple of {_MULTIPLE}; train it with one"
            lines.append(self.refusal("feedforward", encoder.feedforward, why))
        return lines

    def encoder_config(self, config):
        if str(act := config.get("hidden_act", "SwiGLU")).lower() != "swiglu":
            raise config_error("hidden_act", act, f"bertjax's {self.title} computes 'SwiGLU' only")
        encoder = super().encoder_config(config)
        # A gate has a third matrix, so they take 2/3 of the size, rounded up.
        hidden = 2 * encoder.feedforward // 3
        return encoder.replace({"feedforward": -(-hidden // _MULTIPLE) * _MULTIPLE})

    def settings(self, encoder, architecture):
        return super().settings(encoder, architecture) | {
            "intermediate_size": -(-3 * encoder.feedforward // 2),
            "embedding_init_range": encoder.init_stddev,
            "dim_head": encoder.head_channels,
            "hidden_act": "SwiGLU",
            # As transformers writes the reference to code of another repository.
            "auto_map": {auto: f"{_CODE}--model.{name}" for auto, name in _CLASSES.items()},
        }

    def to_theirs(self, encoder, flat, pad_id):
        heads = [np.asarray(flat[f"{path}/kernel"]) for path in _ATTENTION]
        query, key, value = (kernel.reshape(*kernel.shape[:2], encoder.heads, -1) for kernel in heads)
        neighbors = np.argsort(_halves(encoder))
        joined = np.stack([query[..., neighbors], key[..., neighbors], value], axis=3)  # [L, D, H, 3, C]
        return encoder, flat | self._split(joined.reshape(*heads[0].shape[:2], -1))

    def to_ours(self, encoder, flat, pad_id):
        joined = np.concatenate([flat[f"{path}/kernel"] for path in _ATTENTION], axis=-1)
        by_head = joined.reshape(*joined.shape[:2], encoder.heads, 3, encoder.head_channels)
        query, key, value = np.moveaxis(by_head, 3, 0)
        halves = _halves(encoder)
        kernels = np.stack([query[..., halves], key[..., halves], value], axis=2)  # [L, D, 3, H, C]
        return encoder, flat | self._split(kernels.reshape(joined.shape))

    def _split(self, joined: np.ndarray) -> dict[str, np.ndarray]:
        """Return three kernels [L, D, D] by path, from one [L, D, 3 D]."""
        return {f"{path}/kernel": part for path, part in zip(_ATTENTION, np.split(joined, 3, axis=-1), strict=True)}


def _halves(encoder: EncoderConfig) -> np.ndarray:
    """Return, for each channel of a head in bertjax, its number in the authors' code."""
    return np.arange(encoder.head_channels).reshape(-1, 2).T.ravel()


FAMILY = _NeoBert(
    title="NeoBERT",
    model_type="neobert",
    stem="NeoBERT",
    table=(
        names.Name("model.encoder.weight", "encoder/embeddings/word"),
        *names.joined(f"{_LAYER}.qkv", *_ATTENTION),
        *names.dense(f"{_LAYER}.wo", f"{_OURS}/attention/output"),
        *names.norm(f"{_LAYER}.attention_norm", f"{_OURS}/attention_norm"),
        *names.joined(f"{_LAYER}.ffn.w12", f"{_OURS}/intermediate", f"{_OURS}/gate"),
        *names.dense(f"{_LAYER}.ffn.w3", f"{_OURS}/output"),
        *names.norm(f"{_LAYER}.ffn_norm", f"{_OURS}/output_norm"),
        names.Name("model.layer_norm.weight", "encoder/final_norm/scale"),
    ),
    parts={
        MLM: (
            names.Name("decoder.weight", "heads/mlm/word"),
            names.Name("decoder.bias", "heads/mlm/word_bias"),
        )
    },
    classes={frozenset({MLM}): "LMHead", frozenset(): ""},
    autos={"LMHead": "AutoModelForMaskedLM"},
    task_heads=dict.fromkeys(ON_EXAMPLES, TaskHead("classifier", "dense")),
    keys=KEYS_WITHOUT_SEGMENTS
    | {
        "max_positions": "max_length",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",  # only bertjax reads it
        "norm_epsilon": "norm_eps",
        "init_stddev": "decoder_init_range",  # there the bound of a uniform distribution
    },
    # Their class has other defaults than the published model: 1e-6 and 1,024 tokens.
    defaults=PRESETS["neobert"]
    .replace({"vocab_size": 30522, "feedforward": 3072, "norm_epsilon": 1e-6})
    .replace({"max_positions": 1024}),
    fixed={"rms_norm": True, "rope": True, "ngpt": False},
    derived={"dim_head": "head_channels"},
    further=_HARMLESS | {"hidden_act"},
    masking_rate=0.2,
    code=_CODE,
)
