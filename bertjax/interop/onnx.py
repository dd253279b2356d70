"""A model as ONNX: the encoder of transformers with our heads, by PyTorch's exporter, checked with onnxruntime.

The check compares onnxruntime with bertjax's own encoder and heads, so it covers every step in between.
"""

import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertjax.errors import RunFailed, UserError
from bertjax.export import Export
from bertjax.interop import huggingface
from bertjax.interop.outputs import Reading, reading_of, values
from bertjax.models.directions import BIDIRECTIONAL

SUFFIX = ".onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4
# Larger weights are in a separate file, MODEL.onnx.data, because protocol buffers end at 2 GiB.
LARGEST_FILE = 2**31 - 2**24
_WITH_POOLER = ("bert", "albert", "roberta", "mobilebert")
_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
_CHECKED_SHAPES = ((3, 24), (1, 7))  # B, T


def inputs_of(export: Export) -> tuple[str, ...]:
    """Return the names of the inputs: an encoder without segments has no `token_type_ids`."""
    return INPUTS if export.encoder.segments else INPUTS[:-1]


def write(path: Path, export: Export) -> list[str]:
    """Write a model for int64 inputs [B, T] (`inputs_of`) of any batch and any length up to `max_positions`.

    Its outputs are float32. Those of a model that was fine-tuned on labels are only `logits` [B, C] or [B, T, C], or
    `start_logits` and `end_logits` [B, T]; of an embedder `sentence_embedding` [B, D]. Others have `last_hidden_state`
    [B, T, D] and, if the model has the part, `pooler_output` [B, D], `mlm_logits` [B, T, V] and so on.

    Args:
      path: the file to write, in an existing folder. It appears after all of it has been written and checked.
      export: an encoder that a family of transformers computes, with heads of bertjax.

    Returns:
      Notes about the file, one line each.

    Raises:
      UserError: a package is missing, the model has another head, or see `huggingface.write`.
      RunFailed: onnxruntime and bertjax compute different values.
    """
    check_installed()
    if export.encoder.direction != BIDIRECTIONAL:
        raise UserError(
            f"the model has model.direction={export.encoder.direction}, and bertjax writes ONNX of {BIDIRECTIONAL} "
            "models only; convert it to a folder of transformers"
        )
    reading = reading_of(export)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx-") as folder:
        huggingface.write(Path(folder) / "transformers", huggingface.encoder_alone(export))
        draft = Path(folder) / path.name
        _export(Path(folder) / "transformers", draft, export, reading, inputs_of(export))
        difference = _difference(draft, export, reading)
        if not difference <= TOLERANCE:
            raise RunFailed(f"onnxruntime and bertjax differ by {difference:.1e} in {path}; it was not written")
        publish(draft, path)
    return [f"outputs: {', '.join(reading.outputs)}", f"checked: onnxruntime and bertjax differ by {difference:.1e}"]


def publish(draft: Path, path: Path) -> None:
    """Move a file, and the weights beside it, to a path of the same name."""
    for file in sorted(draft.parent.glob(f"{path.name}*"), reverse=True):  # weights before the graph that names them
        os.replace(file, path.parent / file.name)


def check_installed() -> None:
    """Raise UserError if a package that `write` needs is missing."""
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"ONNX needs the packages {', '.join(missing)}; pip install '.[onnx]' brings them")


def _export(source: Path, path: Path, export: Export, reading: Reading, names: tuple[str, ...]) -> None:
    """Export the heads of a model on its encoder, which is in a folder of transformers."""
    import torch
    import transformers

    from bertjax.interop.torch_model import TorchModel

    kind = transformers.AutoConfig.from_pretrained(source).model_type
    # Otherwise a BERT would add an untrained pooler. XLNet has neither choice.
    choices = {"add_pooling_layer": False} if kind in _WITH_POOLER else {}
    # Plain attention: one graph for any number of rows and tokens.
    encoder = transformers.AutoModel.from_pretrained(source, attn_implementation="eager", **choices)
    model = TorchModel(encoder, export, reading, names).eval()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    longest = export.encoder.max_positions
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=longest)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about changes in later versions of the exporter
        level = logging.getLogger("torch.onnx").level
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            model,
            tuple(torch.ones(2, min(8, longest), dtype=torch.int64) for _ in names),
            path,
            dynamo=True,
            input_names=names,
            output_names=reading.outputs,
            dynamic_shapes=(tuple(axes for _ in names),),  # of `*values`
            external_data=size > LARGEST_FILE,
            verbose=False,
        )
        logging.getLogger("torch.onnx").setLevel(level)


def _difference(path: Path, export: Export, reading: Reading) -> float:
    """Return the largest absolute difference of any output at any position that is not padding."""
    return max(np.abs(output - ours).max().item() for output, ours in outputs_and_ours(path, export, reading))


def outputs_and_ours(path: Path, export: Export, reading: Reading) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each output of a file on random rows, without padding, and the same of bertjax."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for rows, seq_len in _CHECKED_SHAPES:
        inputs = _rows(rows, min(seq_len, export.encoder.max_positions), export)
        expected = values(export, reading, inputs)
        for name, output in zip(reading.outputs, session.run(reading.outputs, inputs), strict=True):
            is_read = inputs["attention_mask"] > 0 if reading.is_per_token(name) else ...
            yield output[is_read], expected[name][is_read]


def _rows(rows: int, seq_len: int, export: Export) -> dict[str, np.ndarray]:
    """Return rows of random tokens of different lengths, with two segments if the encoder has several."""
    draw, columns, pad_id = np.random.default_rng(0), np.arange(seq_len), export.tokenizer.pad_id
    lengths_B1 = draw.integers(max(seq_len // 3, 1), seq_len + 1, (rows, 1))
    mask_BT = (columns < lengths_B1).astype(np.int64)
    segments_BT = ((columns >= lengths_B1 // 2) & (export.encoder.segments > 1)) * mask_BT
    # Without the padding symbol in texts: RoBERTa counts positions over the other tokens.
    text = np.setdiff1d(np.arange(export.encoder.vocab_size), [pad_id])
    tokens_BT = np.where(mask_BT > 0, draw.choice(text, (rows, seq_len)), pad_id)
    every = {"input_ids": tokens_BT, "attention_mask": mask_BT, "token_type_ids": segments_BT}
    return {name: every[name] for name in inputs_of(export)}
