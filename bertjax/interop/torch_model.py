"""A PyTorch module for the ONNX exporter: transformers' encoder with bertjax's heads.

Heads are the same function in every family, so they are built from bertjax's params rather than from a family's
classes. Importing this file needs PyTorch.
"""

import collections
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional

from bertjax.config.export import Export
from bertjax.interop.outputs import HIDDEN, POOLED, SENTENCE, Reading
from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig

_ACTIVATIONS = {
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU(approximate="tanh"),
    "tanh": torch.nn.Tanh(),
    "relu": torch.nn.ReLU(),
}


class TorchModel(torch.nn.Module):
    """Encoder and heads; returns a reading's outputs as a tuple.

    Args:
      encoder: the encoder, a transformers model without a pooler.
      export: the whole model; its heads are used.
      reading: the outputs to return.
      inputs: argument names, in order.
    """

    def __init__(self, encoder: torch.nn.Module, export: Export, reading: Reading, inputs: tuple[str, ...]):
        super().__init__()
        self.encoder, self.reading, self.inputs = encoder, reading, inputs
        self.is_cls_last = export.tokenizer.cls_last
        params = vocabulary.cut(export.params, export.encoder)
        has_pooler = reading.needs(POOLED) and export.encoder.block.has_pooler
        self.pooler = _dense(params["encoder"]["pooler"]) if has_pooler else None
        self.pooler_activation = _ACTIVATIONS[export.encoder.pooler_activation]
        word_VE = encoder.get_input_embeddings()
        # MobileBERT's exported table has zeros for padding, its decoder does not.
        if export.encoder.embeddings.kind == "mobilebert":
            word_VE = torch.nn.Embedding.from_pretrained(_tensor(params["encoder"]["embeddings"]["word"]))
        self.heads = torch.nn.ModuleDict(
            {head.head: _head(params["heads"][head.head], export.encoder, word_VE) for head in reading.heads.values()}
        )

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        named = dict(zip(self.inputs, values, strict=True))
        mask_BT = named["attention_mask"]
        if self.encoder.config.model_type == "xlnet":  # it subtracts the mask from 1.0, which is not exported for int
            mask_BT = mask_BT.to(self.encoder.dtype)
        hidden_BTD = self.encoder(**named | {"attention_mask": mask_BT}, return_dict=True).last_hidden_state
        outputs = {HIDDEN: hidden_BTD}
        if self.reading.needs(POOLED):
            state_BD = self._cls(hidden_BTD, named["attention_mask"])
            outputs[POOLED] = state_BD if self.pooler is None else self.pooler_activation(self.pooler(state_BD))
        if self.reading.needs(SENTENCE):
            mean_BD = _mean(hidden_BTD, mask_BT)
            outputs[SENTENCE] = functional.normalize(mean_BD) if self.reading.is_normalized else mean_BD
        for name, (head, source, column, is_late) in self.reading.heads.items():
            logits = self.heads[head](outputs[source])
            logits = _mean(logits, mask_BT) if is_late else logits
            outputs[name] = logits if column is None else logits[..., column]
        return tuple(outputs[name] for name in self.reading.outputs)

    def _cls(self, hidden_BTD: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return the state of [CLS], [B, D]: the first column, or the last one that is not padding.

        XLNet's tokenizer puts [CLS] last and pads on the left. Rows padded on the right give the same result.
        """
        if not self.is_cls_last:
            return hidden_BTD[:, 0]
        is_last_BT = (mask_BT > 0) & (mask_BT.cumsum(1) == mask_BT.sum(1, keepdim=True))
        return torch.where(is_last_BT[..., None], hidden_BTD, 0.0).sum(1)


def _mean(values_BTC: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens that are not padding, special tokens included, [B, C]."""
    mask_BT1 = mask_BT[..., None].to(values_BTC.dtype)
    return (values_BTC * mask_BT1).sum(1) / mask_BT1.sum(1)


def _steps(**modules: torch.nn.Module) -> torch.nn.Sequential:
    return torch.nn.Sequential(collections.OrderedDict(modules))


def _transformed(params: Mapping, config: EncoderConfig) -> torch.nn.Sequential:
    """Return `bertjax.models.heads.transformed` in PyTorch: dense, activation, norm."""
    scale, bias = params["norm"]["scale"], params["norm"].get("bias")
    norm = torch.nn.LayerNorm(len(scale), eps=config.norm_epsilon, bias=bias is not None)
    norm.weight.data = _tensor(scale)
    if bias is not None:
        norm.bias.data = _tensor(bias)
    return _steps(transform=_dense(params["transform"]), activation=_ACTIVATIONS[config.activation], norm=norm)


class _MaskedLM(torch.nn.Module):
    """`MaskedLMHead` in PyTorch, or `VocabularyHead` if there is no transform."""

    def __init__(self, params: Mapping, config: EncoderConfig, word_VE: torch.nn.Embedding):
        super().__init__()
        self.transformed = _transformed(params, config) if "transform" in params else torch.nn.Identity()
        self.word_VE, self.bias_V = word_VE, torch.nn.Parameter(_tensor(params["word_bias"]))
        self.rest_VE = torch.nn.Parameter(_tensor(params["word_rest"])) if "word_rest" in params else None

    def forward(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        weight_VE = self.word_VE.weight
        if self.rest_VE is not None:
            weight_VE = torch.cat([weight_VE, self.rest_VE], dim=1)
        return functional.linear(self.transformed(hidden_BTD), weight_VE, self.bias_V)


def _head(params: Mapping, config: EncoderConfig, word_VE: torch.nn.Embedding) -> torch.nn.Module:
    if "word" in params:  # `DecoderHead`
        return _dense({"kernel": params["word"].T} | ({"bias": params["word_bias"]} if "word_bias" in params else {}))
    if "word_bias" in params:
        return _MaskedLM(params, config, word_VE)
    if "norm" in params:  # `LabelHead`
        return torch.nn.Sequential(_transformed(params, config), _dense(params["classifier"]))
    if "transform" in params:  # `DetectionHead` and `HiddenLayerHead`
        return _steps(
            transform=_dense(params["transform"]),
            activation=_ACTIVATIONS[config.activation],
            classifier=_dense(params["classifier"]),
        )
    return _dense(params.get("classifier", params))


def _dense(params: Mapping[str, np.ndarray]) -> torch.nn.Linear:
    layer = torch.nn.Linear(*params["kernel"].shape, bias="bias" in params)
    layer.weight.data = _tensor(params["kernel"].T)
    if "bias" in params:
        layer.bias.data = _tensor(params["bias"])
    return layer


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(values, np.float32, order="C"))
