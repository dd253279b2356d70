"""ONNX export, in float32 or int8: transformers' encoder with bertjax's heads, through PyTorch's exporter, and checked.

The check compares onnxruntime with `bertjax predict` on random texts and text pairs, so it covers every step between,
including where [CLS] is.
"""

import importlib.util
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.data.batch import core, place
from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import special_tokens, truncate
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.inference import onnx as engine
from bertjax.inference.description import DESCRIPTION, EMBEDDING, TAGGING, TOKENIZER, Description
from bertjax.interop import huggingface, task_heads
from bertjax.interop.outputs import Reading, reading_of, values
from bertjax.interop.roberta import with_published_ids
from bertjax.interop.tokenizers import MODEL, load_json
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.runtime.errors import RunFailed, UserError

TOLERANCE = 1e-4
# Where transformers.js and the Hub look for the int8 file in a model folder.
INT8_PLACE = Path("onnx") / "model_quantized.onnx"
# Largest accepted error of an output, relative to its root mean square. On random tokens, all-MiniLM-L6-v2 with its
# real weights has 0.23, and a file with unrelated weights has more than 1.
INT8_TOLERANCE = 0.5
# Larger weights go into a separate file, MODEL.onnx.data: a protocol buffer holds at most 2 GiB.
LARGEST_FILE = 2**31 - 2**24
_WITH_POOLER = ("bert", "albert", "roberta", "mobilebert", "mpnet")
_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")


def write(path: Path, export: Export) -> list[str]:
    """Write an ONNX file with int64 inputs [B, T] (`inputs_of`); B is free, T goes up to `max_positions`.

    Outputs are float32. A model fine-tuned on labels has only `logits` [B, C] or [B, T, C], or `start_logits` and
    `end_logits` [B, T]. An embedder has `sentence_embedding` [B, D]. Other models have `last_hidden_state` [B, T, D]
    and, depending on their parts, `pooler_output` [B, D], `mlm_logits` [B, T, V] and so on. The metadata has the
    tokenizer and a description (`bertjax.inference.description`).

    Args:
      path: the file to write, in an existing folder. It appears only after it has been written whole and checked.
      export: the model: an encoder that transformers can compute, with bertjax's own heads.

    Returns:
      Notes about the file, one line each.

    Raises:
      UserError: a package is missing or too old, the model has another head, MODEL.onnx.data exists, or see
        `huggingface.write`.
      RunFailed: onnxruntime and bertjax compute different values.
    """
    check_installed()
    _check_place(path)
    if export.encoder.direction != BIDIRECTIONAL:
        raise UserError(
            f"the model has model.direction={export.encoder.direction}, and only {BIDIRECTIONAL} models become ONNX; "
            "convert it to a folder of transformers"
        )
    export, notes = _as_written(export)
    reading = reading_of(export)
    # Beside the target, so that the file can be moved into place in one step.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx-") as folder:
        huggingface.write(Path(folder) / "transformers", huggingface.encoder_alone(export))
        draft = Path(folder) / path.name
        _export(Path(folder) / "transformers", draft, export, reading, inputs_of(export))
        attach(draft, export, Path(folder) / "transformers")
        difference = _difference(draft, export, reading)
        if not difference <= TOLERANCE:  # also if it is NaN
            raise RunFailed(f"onnxruntime and bertjax differ by {difference:.1e} in {path}; it was not written")
        _publish(draft, path)
    checked = f"checked: onnxruntime and bertjax differ by {difference:.1e}"
    return [f"outputs: {', '.join(reading.outputs)}", checked, *notes, *huggingface.activation_notes(export.encoder)]


def write_int8(
    path: Path,
    export: Export,
    reduce_range: bool = True,
    compare: Callable[[Path, Path], list[str]] = lambda whole, small: [],
) -> list[str]:
    """Write a model in int8, with the same inputs and outputs as `write`, by dynamic quantization.

    Matmul weights are symmetric int8 with one scale per output channel; word embeddings have a single scale.
    Activations are uint8 over each batch's range. This needs no calibration data, but the answer to a text depends
    slightly on the texts and the padding beside it. Attention products, softmax and layer norms stay float32.

    Args:
      path: the file to write, in an existing folder. It appears only after it has been written whole and checked.
      export: a model that `write` can write.
      reduce_range: whether weights use 7 bits. With 8, int16 sums may overflow on processors without int8 units (VNNI).
      compare: returns further notes from the files in float32 and in int8.

    Returns:
      Notes about the file, one line each.

    Raises:
      UserError: see `write`.
      RunFailed: onnxruntime and bertjax compute different values, in float32 or in int8.
    """
    check_installed()
    _check_place(path)
    written, _ = _as_written(export)
    reading = reading_of(written)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx-") as folder:
        whole, draft = Path(folder) / "float" / path.name, Path(folder) / path.name
        whole.parent.mkdir()
        outputs, checked, *notes = write(whole, export)
        _quantize(whole, draft, reduce_range)
        pairs = outputs_and_ours(draft, written, reading)
        error = _largest(float(np.linalg.norm(output - ours) / np.linalg.norm(ours)) for output, ours in pairs)
        if not error <= INT8_TOLERANCE:
            raise RunFailed(
                f"onnxruntime in int8 and bertjax differ by {error:.0%} of the outputs in {path}; it was not written"
            )
        notes += compare(whole, draft)
        _publish(draft, path)
    return [outputs, f"{checked} in float32, by {error:.0%} of the outputs in int8 (random tokens)", *notes]


def _quantize(whole: Path, path: Path, reduce_range: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # it recommends graph passes that PyTorch's exporter has already applied
    try:
        quantize_dynamic(
            whole,
            path,
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            use_external_data_format=_weights_of(whole).exists(),
        )
    finally:
        logging.disable(logging.NOTSET)


def _as_written(export: Export) -> tuple[Export, list[str]]:
    """Return the model that a file computes, with the ids of its family and its temperature in the head, and notes."""
    return task_heads.with_temperature(with_published_ids(export))


def _check_place(path: Path) -> None:
    """Raise UserError if another model's weights are where this file would put its own."""
    if _weights_of(path).exists():
        raise UserError(f"{_weights_of(path)} exists, from which {path.name} would read its weights; remove it")


def _weights_of(path: Path) -> Path:
    """Return the path of the weight file beside an ONNX file, used if the weights are too large for it."""
    return path.with_name(f"{path.name}.data")


def _publish(draft: Path, path: Path) -> None:
    """Move a file and the weights beside it to `path`, which must have the same file name."""
    if _weights_of(draft).exists():  # first, so that a graph never names weights that are not there
        os.replace(_weights_of(draft), _weights_of(path))
    os.replace(draft, path)


def check_installed() -> None:
    """Raise UserError if a package needed by `write` is missing."""
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"ONNX needs the packages {', '.join(missing)}; pip install '.[onnx]' brings them")


def _export(source: Path, path: Path, export: Export, reading: Reading, names: tuple[str, ...]) -> None:
    """Run PyTorch's exporter on the encoder in a transformers folder, with the heads of `export` on top."""
    import torch
    import transformers

    from bertjax.interop.torch_model import TorchModel

    kind = load_json(source / huggingface.CONFIG)["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        version = transformers.__version__
        raise UserError(f"transformers {version} has no class of {kind} for ONNX; pip install --upgrade transformers")
    # Without this, BERT-like classes would add an untrained pooler. Other families do not accept the argument.
    choices = {"add_pooling_layer": False} if kind in _WITH_POOLER else {}
    # Eager attention traces to one graph for any number of rows and tokens.
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
            dynamic_shapes=(tuple(axes for _ in names),),  # `forward` has one argument, the tuple `*values`
            external_data=size > LARGEST_FILE,
            verbose=False,
        )
        logging.getLogger("torch.onnx").setLevel(level)


def _difference(path: Path, export: Export, reading: Reading) -> float:
    """Return the largest absolute difference over all outputs, padding excluded."""
    return _largest(np.abs(output - ours).max() for output, ours in outputs_and_ours(path, export, reading))


def _largest(errors: Iterable[float]) -> float:
    """Return the largest error, or NaN if any is NaN: Python's max() drops a NaN that does not come first."""
    return float(np.max(list(errors)))


def outputs_and_ours(path: Path, export: Export, reading: Reading) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (onnxruntime's, bertjax's) values of each output on the rows of `onnx_rows`, without padding."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for inputs, batch in rows(export):
        expected = values(export, reading, batch)
        for name, output in zip(reading.outputs, session.run(reading.outputs, inputs), strict=True):
            if reading.is_per_token(name):
                yield output[inputs["attention_mask"] > 0], expected[name][batch["examples_BT"] > 0]
            else:
                yield output, expected[name]


# (tokens per text, for each of B texts; row length T). The first batch has padding, and one text that is cut.
_SHAPES = (((3, 30, 9), 24), ((5,), 7))
# Tokens of a third batch, if the model reads as many. Longer rows would need seconds.
_LONGEST = 512


class Rows(NamedTuple):
    """The same rows as inputs of an ONNX file and as a bertjax batch.

    Attributes:
      inputs: {input name: int64 [B, T]}.
      batch: the core batch, one example per row, padded on the right.
    """

    inputs: dict[str, np.ndarray]
    batch: dict[str, np.ndarray]


def inputs_of(export: Export) -> tuple[str, ...]:
    """Return the input names; an encoder without segments has no `token_type_ids`."""
    return engine.INPUTS if export.encoder.embeddings.segments else engine.INPUTS[:-1]


def rows(export: Export) -> Iterator[Rows]:
    """Yield rows of random texts and pairs, also padded on the left if [CLS] comes last, as XLNet's tokenizer pads.

    Texts are random tokens, decoded and tokenized again, so no special symbol and no layout is assumed.
    """
    draw, tokenizer = np.random.default_rng(0), export.tokenizer
    # Special symbols are left out: in a text their spelling is ordinary text, which would be cut into other tokens.
    ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size), sorted(tokenizer.special_ids))

    def texts(lengths: tuple[int, ...]) -> list[list[int]]:
        return tokenizer.encode([tokenizer.decode(draw.choice(ordinary, length).tolist()) for length in lengths])

    most = export.lengths.example
    for lengths, longest in (*_SHAPES, ((_LONGEST, _LONGEST // 2), _LONGEST)):
        seq_len = min(longest, most)
        for is_pair in (False, True) if seq_len > special_tokens(2, tokenizer.pair_separators) else (False,):
            batch = _batch(export, texts(lengths), texts(lengths[::-1]) if is_pair else None, seq_len)
            arrays = (batch["tokens_BT"], batch["examples_BT"] > 0, batch["segments_BT"])
            inputs = {name: array.astype(np.int64) for name, array in zip(inputs_of(export), arrays)}
            yield Rows(inputs, batch)
            if tokenizer.cls_last:
                padding_B = np.sum(batch["examples_BT"] == 0, axis=1)
                yield Rows({name: _rolled(values, padding_B) for name, values in inputs.items()}, batch)


def _rolled(values_BT: np.ndarray, shifts_B: np.ndarray) -> np.ndarray:
    """Move the padding of each row to its start."""
    return np.stack([np.roll(row, shift) for row, shift in zip(values_BT, shifts_B, strict=True)])


def _batch(
    export: Export, first: list[list[int]], second: list[list[int]] | None, seq_len: int
) -> dict[str, np.ndarray]:
    vocabulary = Vocabulary.of(export.tokenizer)
    first, second, _ = truncate(first, second, seq_len, vocabulary.pair_separators)
    ragged = add_special_tokens(first, second, vocabulary, labels={})
    batch = core(place(ragged, np.arange(len(first))[:, None], int(ragged.lengths.max()), vocabulary))
    if export.encoder.embeddings.segments == 1:  # as the exported tokenizer gives them
        batch["segments_BT"] = np.zeros_like(batch["segments_BT"])
    return batch


# Settings of labeled files that the description keeps. The paths of the training files stay out of it.
_COLUMNS = ("kind", "text", "pair", "label", "quoted", "separator", "label_columns")
_OF_WORDS = ("word", "comment", "conllu", "units", "stride")


def description_of(export: Export) -> Description:
    """Return the description of a model.

    Raises:
      UserError: the objective of a fine-tuned head is a user's own.
    """
    heads = () if export.is_embedder else export.params.get("heads", {})
    term = next((term for term in task_heads.TERMS if term in heads), None)
    objective = task_heads.objective_of(export.settings, term) if term else {}
    examples = config_of(export).task.examples if term else None
    return Description(
        task=term or EMBEDDING,
        max_tokens=export.lengths.example,
        pad_id=export.tokenizer.pad_id,
        pads_left=export.tokenizer.cls_last,
        labels=tuple(objective.get("classes", ())),
        examples={name: getattr(examples, name) for name in (*_COLUMNS, *_OF_WORDS) if hasattr(examples, name)},
        threshold=objective.get("threshold"),
        activation=objective.get("activation", "identity"),
        symbols=_symbols(export.tokenizer) if term == TAGGING else {},
    )


def _symbols(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the piece for each symbol of an example, as it is spelled in `tokenizer_of`."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.roles
    names = {"[PAD]": tokenizer.pad_id, "[UNK]": tokenizer.unk_id, "[SEP]": tokenizer.sep_id}
    names |= {"[CLS]": tokenizer.cls_id, "[MASK]": tokenizer.mask_id}
    return {name: _unmatched(tokenizer.piece(number)) for name, number in names.items()}


def _unmatched(symbol: str) -> str:
    # The library never sees a space, which its splitter replaces, so a piece with one matches nothing.
    return f"{symbol} "


def attach(path: Path, export: Export, folder: Path) -> None:
    """Add the description and the tokenizer to an ONNX file.

    Args:
      path: the file; weights beside it stay as they are.
      export: the model.
      folder: a folder of transformers with its `tokenizer.json`.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    tokenizer = json.dumps(tokenizer_of(export, folder), ensure_ascii=False)
    onnx.helper.set_model_props(model, {DESCRIPTION: description_of(export).to_json(), TOKENIZER: tokenizer})
    onnx.save(model, path)


def tokenizer_of(export: Export, folder: Path) -> dict[str, Any]:
    """Return a `tokenizer.json` that splits every text as bertjax does, also texts that spell out special symbols.

    Its reader must take special symbols for text, as `bertjax.inference.onnx` does. That of the folder does not
    suffice: transformers takes them for symbols.
    """
    description = load_json(folder / MODEL)
    if isinstance(export.tokenizer, HuggingFaceTokenizer):
        return export.tokenizer.library_description() | {"post_processor": description["post_processor"]}
    # The library's Unigram matches every piece of its vocabulary. A low score would change that of unknown characters,
    # which depends on the lowest. The template of [CLS] and [SEP] has their ids.
    symbols = {token["content"] for token in description["added_tokens"]}
    model = description["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [[_unmatched(piece) if piece in symbols else piece, score] for piece, score in model["vocab"]]
    return description | {"added_tokens": []}
