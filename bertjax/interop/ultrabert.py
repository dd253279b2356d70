"""UltraBERT in transformers: `UltrabertModel`, `UltrabertForMaskedLM` and `UltrabertConfig`.

(transformers 5.24, models/ultrabert/modeling_ultrabert.py and configuration_ultrabert.py.) Tensors of the encoder have
EuroBERT's names, under the prefix and the name of the decoder that its files have (conversion_mapping.py:
`UltrabertForMaskedLM`). Older folders have a window and a rotary base per layer (`attention_windows`, `rope_theta`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax.interop import eurobert, names
from bertjax.interop.family import MLM, number
from bertjax.interop.rotary_settings import base_of, table_of
from bertjax.interop.task_heads import (
    CLASSIFICATION,
    CLS,
    MEAN,
    MULTI_LABEL,
    QUESTIONS,
    REGRESSION,
    SEQUENCE,
    SPAN,
    TAGGING,
    TOKENS,
    TaskHead,
)
from bertjax.models.blocks.ultrabert import UltraBlock
from bertjax.runtime.errors import UserError, quoted

# Kinds of layers, and the names that their rotary bases have here until `settings` writes them.
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_BASES = {_GLOBAL: "full_rope_theta", _LOCAL: "sliding_rope_theta"}
_EVERY = "global_every"  # no key of the files, which list the kind of each layer


class _UltraBert(eurobert.EuroBert):
    @property
    def root(self):
        return "ultrabert."

    @property
    def settings_read(self):
        return super().settings_read | {"layer_types", "attention_windows", "rope_theta"}

    def encoder_config(self, config):
        config = _with_kinds(config)
        every, layers = self.defaults.block.global_every, number(config, "num_hidden_layers", self.defaults.layers)
        if kinds := config.get("layer_types"):
            every = kinds.index(_GLOBAL) + 1 if _GLOBAL in kinds else len(kinds) + 1
            if len(kinds) != layers or kinds != _kinds(layers, every):
                raise UserError(
                    f"config.json has layer_types={quoted(kinds)} for {layers} layers; bertjax's UltraBERT has global "
                    "layers in one period, the last layer of each"
                )
        rotations = table_of(config.get("rope_parameters"))
        if odd := {name: value for name, value in rotations.items() if name not in _BASES}:
            raise UserError(
                f"config.json has rope_parameters with {quoted(odd)}; UltraBERT has them for each kind of layer, under "
                f"{' and '.join(_BASES)}"
            )
        bases = {
            name: value for kind, key in _BASES.items() for name, value in base_of(rotations.get(kind), key).items()
        }
        window = {"sliding_window": 0} if every == 1 else {}
        unread = {"rope_parameters": None, "rope_theta": None}
        return super().encoder_config({**config, _EVERY: every, **bases, **window, **unread})

    def settings(self, encoder, architecture):
        settings = super().settings(encoder, architecture)
        block = encoder.block
        rotations = {_GLOBAL: block.rotary_base, _LOCAL: block.local_rotary_base}
        written = {
            "layer_types": _kinds(encoder.layers, block.global_every),
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": base} for kind, base in rotations.items()
            },
            "sliding_window": block.window or self.defaults.block.window,
            "classifier_pooling": CLS,
        }  # fmt: skip
        return {key: value for key, value in settings.items() if key not in (_EVERY, *_BASES.values())} | written


def _kinds(layers: int, every: int) -> list[str]:
    """Return `layer_types` of a period."""
    return [_LOCAL if (place + 1) % every else _GLOBAL for place in range(layers)]


def _with_kinds(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with `layer_types` and `rope_parameters` in place of lists with a value for each layer.

    Raises:
      UserError: layers of one kind have different rotary bases.
    """
    settings = dict(config)
    windows, bases = settings.pop("attention_windows", None), settings.pop("rope_theta", None)
    for name, values in (("attention_windows", windows), ("rope_theta", bases)):
        if not isinstance(values, list | None):
            raise UserError(f"config.json has {name}={quoted(values)}; UltraBERT has a list with one value per layer")
    if settings.get("rope_parameters") is None:
        settings["rope_parameters"] = settings.pop("rope_scaling", None)  # as transformers reads it
    if windows:
        settings["sliding_window"] = next(filter(None, windows), settings.get("sliding_window", 128))
        settings["layer_types"] = settings.get("layer_types") or [_LOCAL if window else _GLOBAL for window in windows]
    if bases is not None and settings.get("rope_parameters") is None:
        kinds = settings.get("layer_types") or _kinds(len(bases), 3)
        found = {kind: {base for each, base in zip(kinds, bases) if each == kind} for kind in _BASES}
        if odd := {kind: sorted(each) for kind, each in found.items() if len(each) > 1}:
            raise UserError(f"config.json has rope_theta with {quoted(odd)}; bertjax has one base per kind of layer")
        settings["rope_parameters"] = {kind: {"rope_theta": base} for kind, each in found.items() for base in each}
    return settings


_SEQUENCE_HEAD = TaskHead(SEQUENCE, "classifier", pooling="classifier_pooling", poolings={CLS: CLS, MEAN: MEAN})
_EURO = eurobert.FAMILY
FAMILY = _UltraBert(
    title="UltraBERT",
    model_type="ultrabert",
    stem="Ultrabert",
    table=tuple(name._replace(theirs=f"ultrabert.{name.theirs.removeprefix(_EURO.root)}") for name in _EURO.table),
    parts={
        MLM: (
            names.Name("head.linear1.weight", "heads/mlm/first/kernel", transposed=True),
            names.Name("head.linear2.weight", "heads/mlm/second/kernel", transposed=True),
            names.Name("cls.weight", "heads/mlm/word"),
        )
    },
    classes=_EURO.classes,
    task_heads=dict.fromkeys((CLASSIFICATION, MULTI_LABEL, REGRESSION), _SEQUENCE_HEAD)
    | {TAGGING: TaskHead(TOKENS, "classifier"), SPAN: TaskHead(QUESTIONS, "qa_outputs")},
    keys={ours: theirs for ours, theirs in _EURO.keys.items() if ours != "block.rotary_base"}
    | {
        "block.rotary_base": _BASES[_GLOBAL],
        "block.local_rotary_base": _BASES[_LOCAL],
        "block.window": "sliding_window",
        "block.global_every": _EVERY,
        "block.decoder_width": "prediction_head_size",
    },
    defaults=dataclasses.replace(
        _EURO.defaults,
        vocab_size=32000,
        layers=32,
        width=4096,
        heads=32,
        feedforward=11008,
        block=UltraBlock(),
        max_positions=32768,
        norm_epsilon=1e-6,
    ),
    fixed=_EURO.fixed,
    decoder_settings=_EURO.decoder_settings,
    tied={},
    has_flax=False,
    since="5.20",
)
