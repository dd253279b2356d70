"""EuroBERT and NeoBERT, which have Llama's block: `EuroBertModel`, `EuroBertForMaskedLM`, `NeoBERT`, `NeoBERTLMHead`.

EuroBERT (transformers 5.24, models/eurobert/modeling_eurobert.py and configuration_eurobert.py): the published folders
name code of the authors (`auto_map`) that computes the same. The classes are new in transformers 5.3.

NeoBERT (github.com/chandar-lab/NeoBERT, commit ed75b68, src/neobert/model/model.py and rotary.py; `config.json` and
names of huggingface.co/chandar-lab/NeoBERT): transformers does not have the classes, so a folder names them in
`auto_map`. bertjax runs no such code. It computes the same function, and the folders that it writes name the authors'
repository. One tensor joins queries, keys and values, head by head: rows of head h are q, k, v. Rotations pair
neighboring channels (2i with 2i + 1), and bertjax pairs halves (i with i + d / 2), so channels of queries and keys are
reordered.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.interop import names
from bertjax.interop.bert import KEYS_WITHOUT_SEGMENTS
from bertjax.interop.family import MLM, OF_DECODER, Family
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.task_heads import CLS, LATE, MEAN, ON_EXAMPLES, TAGGING, TOKENS, TaskHead
from bertjax.models.config import EncoderConfig
from bertjax.models.presets import PRESETS

_OURS = "encoder/layers"
_ATTENTION = tuple(f"{_OURS}/attention/{name}" for name in ("query", "key", "value"))
_LAYER = f"model.layers.{names.LAYER}"
# Keys that do not change the function, some of them of the authors' code only.
_HARMLESS = frozenset("auto_map pretraining_tp bos_token eos_token pad_token mask_token".split())


class EuroBert(Family):
    symbol_keys = {"bos": "cls", "eos": "sep", "mask": "mask"}

    def encoder_config(self, config):
        # Of the two keys transformers 5 takes the older one first.
        key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        config = {**config, **base_of(config.get(key), "rope_theta", key)}
        # null, like a missing key, means one head of keys and values per head of queries, which is 0 in bertjax.
        return super().encoder_config(config | {"num_key_value_heads": config.get("num_key_value_heads") or 0})

    def settings(self, encoder, architecture):
        return super().settings(encoder, architecture) | {
            "num_key_value_heads": encoder.block.key_value_heads or encoder.heads,
            "head_dim": encoder.head_channels,
            "rope_parameters": {"rope_type": "default", "rope_theta": encoder.block.rotary_base},
        }


_POOLINGS = {"late": LATE, "bos": CLS, "mean": MEAN}
EUROBERT = EuroBert(
    title="EuroBERT",
    model_type="eurobert",
    stem="EuroBert",
    table=(
        names.Name("model.embed_tokens.weight", "encoder/embeddings/word"),
        *names.dense(f"{_LAYER}.self_attn.q_proj", f"{_OURS}/attention/query"),
        *names.dense(f"{_LAYER}.self_attn.k_proj", f"{_OURS}/attention/key"),
        *names.dense(f"{_LAYER}.self_attn.v_proj", f"{_OURS}/attention/value"),
        *names.dense(f"{_LAYER}.self_attn.o_proj", f"{_OURS}/attention/output"),
        *names.norm(f"{_LAYER}.input_layernorm", f"{_OURS}/attention_norm"),
        *names.dense(f"{_LAYER}.mlp.gate_proj", f"{_OURS}/intermediate"),
        *names.dense(f"{_LAYER}.mlp.up_proj", f"{_OURS}/gate"),
        *names.dense(f"{_LAYER}.mlp.down_proj", f"{_OURS}/output"),
        *names.norm(f"{_LAYER}.post_attention_layernorm", f"{_OURS}/output_norm"),
        *names.norm("model.norm", "encoder/final_norm"),
    ),
    parts={MLM: (names.Name("lm_head.weight", "heads/mlm/word"),)},
    task_heads=dict.fromkeys(
        ON_EXAMPLES, TaskHead("classifier", own="dense", pooling="classifier_pooling", poolings=_POOLINGS)
    )
    | {TAGGING: TaskHead("classifier", suffix=TOKENS)},
    keys=KEYS_WITHOUT_SEGMENTS
    | {
        "dropout": "hidden_dropout",  # of the authors' code; transformers has none
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "rms_norm_eps",
        "block.key_value_heads": "num_key_value_heads",
        "block.rotary_base": "rope_theta",
    },
    defaults=PRESETS["eurobert_210m"].replace({"vocab_size": 128256, "block.rotary_base": 10000.0}),
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, OF_DECODER: False},
    derived={"head_dim": "head_channels"},
    further=_HARMLESS | {"rope_parameters", "rope_scaling"},
    masking_rate=0.5,
    since="5.3",
)


_UNSCALED = {"rope_type": "default", "type": "default", "factor": 1.0, "partial_rotary_factor": 1.0}
# Only scaled types read it.
_UNREAD = "original_max_position_embeddings"


def table_of(parameters: Any, name: str = "rope_parameters") -> Mapping[str, Any]:
    """Return `rope_parameters`, or its entry for a kind of layer, as a mapping; null is an empty one.

    Args:
      parameters: the value.
      name: its key, for the message; `rope_scaling` in transformers 4.

    Raises:
      UserError: it is neither.
    """
    if not isinstance(parameters, Mapping | None):
        raise config_error(name, parameters, "it is not a table; download the file again")
    return parameters or {}


def base_of(parameters: Any, key: str, name: str = "rope_parameters") -> dict[str, float]:
    """Return {key: base} of `rope_parameters`, or of its entry for a kind of layer; empty if it has no base.

    Args:
      parameters, name: see `table_of`.
      key: name of the base in the result.

    Raises:
      UserError: rotations are scaled, or see `table_of`.
    """
    parameters = table_of(parameters, name)
    neutral = {name: parameters.get(name) for name in ("rope_theta", _UNREAD)} | _UNSCALED
    if scaled := {name: value for name, value in parameters.items() if value not in (None, neutral.get(name))}:
        raise config_error(name, scaled, "bertjax's rotary positions are not scaled")
    return {key: parameters["rope_theta"]} if "rope_theta" in parameters else {}


_BLOCK = f"model.transformer_encoder.{names.LAYER}"
_CODE = "chandar-lab/NeoBERT"
# Keys that do not change the function: initialization, speed, and leftovers of their training code.
_UNUSED = frozenset(
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
        classes = {"AutoConfig": f"{self.stem}Config"}
        classes |= {self.auto_of(parts): f"{self.stem}{suffix}" for parts, suffix in self.suffixes.items()}
        return super().settings(encoder, architecture) | {
            "intermediate_size": -(-3 * encoder.feedforward // 2),
            "embedding_init_range": encoder.init_stddev,
            "dim_head": encoder.head_channels,
            "hidden_act": "SwiGLU",
            # As transformers writes the reference to code of another repository.
            "auto_map": {auto: f"{_CODE}--model.{name}" for auto, name in classes.items()},
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


NEOBERT = _NeoBert(
    title="NeoBERT",
    model_type="neobert",
    stem="NeoBERT",
    table=(
        names.Name("model.encoder.weight", "encoder/embeddings/word"),
        *names.joined(f"{_BLOCK}.qkv", *_ATTENTION),
        *names.dense(f"{_BLOCK}.wo", f"{_OURS}/attention/output"),
        *names.norm(f"{_BLOCK}.attention_norm", f"{_OURS}/attention_norm"),
        *names.joined(f"{_BLOCK}.ffn.w12", f"{_OURS}/intermediate", f"{_OURS}/gate"),
        *names.dense(f"{_BLOCK}.ffn.w3", f"{_OURS}/output"),
        *names.norm(f"{_BLOCK}.ffn_norm", f"{_OURS}/output_norm"),
        names.Name("model.layer_norm.weight", "encoder/final_norm/scale"),
    ),
    parts={MLM: (names.Name("decoder.weight", "heads/mlm/word"), names.Name("decoder.bias", "heads/mlm/word_bias"))},
    classes={frozenset(): "", frozenset({MLM}): "LMHead"},
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
    further=_UNUSED | {"hidden_act"},
    masking_rate=0.2,
    code=_CODE,
)
