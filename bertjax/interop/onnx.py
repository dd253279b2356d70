"""A model as ONNX: the class of transformers, written by PyTorch's exporter, checked with onnxruntime.

The check compares onnxruntime with bertjax's own encoder and heads, so it covers every step in between.
"""

import dataclasses
import importlib.util
import logging
import os
import tempfile
import warnings
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from bertjax.errors import RunFailed, UserError
from bertjax.export import Export
from bertjax.interop import bert, families, huggingface
from bertjax.interop.family import MLM, NSP, POOLER
from bertjax.models.config import BIDIRECTIONAL, Execution
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead, PairHead

SUFFIX = ".onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HIDDEN, POOLED, MLM_LOGITS, NSP_LOGITS = "last_hidden_state", "pooler_output", "mlm_logits", "nsp_logits"
TOLERANCE = 1e-4
# Larger weights are in a separate file, MODEL.onnx.data, because protocol buffers end at 2 GiB.
LARGEST_FILE = 2**31 - 2**24
_BARE = "BertModel"
_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
_CHECKED_SHAPES = ((3, 24), (1, 7))  # B, T


def write(path: Path, export: Export) -> list[str]:
    """Write a model with int64 inputs `INPUTS` of any batch and any length up to `max_positions`, all [B, T].

    Its outputs are float32: `last_hidden_state` [B, T, D], and if the model has the part, `pooler_output` [B, D],
    `mlm_logits` [B, T, V] and `nsp_logits` [B, 2].

    Args:
      path: the file to write, in an existing folder. It appears after all of it has been written and checked.
      export: an encoder with heads that a BERT class of transformers has too.

    Returns:
      Notes about the file, one line each.

    Raises:
      UserError: a package is missing, the family of the model is not BERT, or see `huggingface.write`.
      RunFailed: onnxruntime and bertjax compute different values.
    """
    check_installed()
    flat = flatten_dict(export.params, sep="/")
    if (family := families.of_model(export.encoder, flat, export.tokenizer.pad_id)) is not bert.FAMILY:
        raise UserError(
            f"transformers has the model as {family.title}, and bertjax writes ONNX for BERT only; convert it to a "
            "folder of transformers"
        )
    if export.encoder.direction != BIDIRECTIONAL:
        raise UserError(
            f"the model has model.direction={export.encoder.direction}, and bertjax writes ONNX of {BIDIRECTIONAL} "
            "models only; convert it to a folder of transformers"
        )
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx-") as folder:
        _, *notes = huggingface.write(Path(folder) / "transformers", export)
        draft = Path(folder) / path.name
        outputs = _export(Path(folder) / "transformers", draft, export)
        difference = _difference(draft, export, outputs)
        if not difference <= TOLERANCE:
            raise RunFailed(f"onnxruntime and bertjax differ by {difference:.1e} in {path}; it was not written")
        for file in sorted(
            draft.parent.glob(f"{path.name}*"), reverse=True
        ):  # weights before the graph that names them
            os.replace(file, path.parent / file.name)
    return [f"outputs: {', '.join(outputs)}", *notes, f"checked: onnxruntime and bertjax differ by {difference:.1e}"]


def check_installed() -> None:
    """Raise UserError if a package that `write` needs is missing."""
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"ONNX needs the packages {', '.join(missing)}; pip install '.[onnx]' brings them")


def _export(source: Path, path: Path, export: Export) -> list[str]:
    """Export the model in a folder of transformers; return the names of its outputs."""
    import torch
    import transformers

    class Model(torch.nn.Module):
        """Encoder and heads; returns all their outputs as a tuple."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, token_type_ids):
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
            encoded = self.model.base_model(**inputs)
            hidden, pooled = encoded.last_hidden_state, encoded.pooler_output
            states = (hidden,) if pooled is None else (hidden, pooled)
            if not hasattr(self.model, "cls"):
                return states
            return (*states, self.model.cls(hidden)) if pooled is None else (*states, *self.model.cls(hidden, pooled))

    [architecture] = transformers.AutoConfig.from_pretrained(source).architectures
    has_pooler = POOLER in export.params["encoder"]
    choices = (
        {"add_pooling_layer": has_pooler} if architecture == _BARE else {}
    )  # otherwise it would add an untrained pooler
    # Plain attention: one graph for any number of rows and tokens.
    model = getattr(transformers, architecture).from_pretrained(source, attn_implementation="eager", **choices).eval()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    outputs = {
        "BertForPreTraining": [HIDDEN, POOLED, MLM_LOGITS, NSP_LOGITS],
        "BertForMaskedLM": [HIDDEN, MLM_LOGITS],
        _BARE: [HIDDEN, POOLED] if has_pooler else [HIDDEN],
    }[architecture]
    longest = export.encoder.max_positions
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=longest)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about changes in later versions of the exporter
        level = logging.getLogger("torch.onnx").level
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            Model(model),
            tuple(torch.ones(2, min(8, longest), dtype=torch.int64) for _ in INPUTS),
            path,
            dynamo=True,
            input_names=INPUTS,
            output_names=outputs,
            dynamic_shapes=dict.fromkeys(INPUTS, axes),
            external_data=size > LARGEST_FILE,
            verbose=False,
        )
        logging.getLogger("torch.onnx").setLevel(level)
    return outputs


def _difference(path: Path, export: Export, outputs: list[str]) -> float:
    """Return the largest absolute difference of any output at any position that is not padding."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    largest = 0.0
    for rows, seq_len in _CHECKED_SHAPES:
        inputs = _rows(rows, min(seq_len, export.encoder.max_positions), export)
        mask_BT = inputs["attention_mask"]
        expected = _outputs(export, inputs)
        for name, output in zip(outputs, session.run(outputs, inputs), strict=True):
            difference = np.abs(output - expected[name])
            if output.ndim == 3:
                difference = difference[mask_BT > 0]
            largest = max(largest, difference.max().item())
    return largest


def _rows(rows: int, seq_len: int, export: Export) -> dict[str, np.ndarray]:
    """Return rows of random tokens of different lengths, with two segments if the encoder has segments."""
    draw, columns = np.random.default_rng(0), np.arange(seq_len)
    lengths_B1 = draw.integers(max(seq_len // 3, 1), seq_len + 1, (rows, 1))
    mask_BT = (columns < lengths_B1).astype(np.int64)
    segments_BT = ((columns >= lengths_B1 // 2) & (export.encoder.segments > 1)) * mask_BT
    tokens_BT = draw.integers(0, export.encoder.vocab_size, (rows, seq_len))
    return dict(zip(INPUTS, (tokens_BT, mask_BT, segments_BT), strict=True))


def _outputs(export: Export, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return bertjax's own outputs, computed in float32."""
    config = dataclasses.replace(export.encoder, execution=Execution())
    encoder, heads = export.params["encoder"], export.params.get("heads", {})
    tokens_BT, mask_BT, segments_BT = (inputs[name].astype(np.int32) for name in INPUTS)
    encoded = jax.jit(Encoder(config).apply)({"params": encoder}, tokens_BT, segments_BT, examples_BT=mask_BT)
    outputs = {HIDDEN: encoded.hidden}
    if encoded.pooled_BND is not None:
        outputs[POOLED] = encoded.pooled_BND[:, 0]
    if MLM in heads:
        word = encoder["embeddings"]["word"]
        logits_BTV = MaskedLMHead(config).apply({"params": heads[MLM]}, encoded.hidden, word)
        outputs[MLM_LOGITS] = logits_BTV[..., : config.vocab_size]
    if NSP in heads:
        outputs[NSP_LOGITS] = PairHead(config).apply({"params": heads[NSP]}, encoded.pooled_BND)[:, 0]
    return {name: np.asarray(output) for name, output in outputs.items()}
