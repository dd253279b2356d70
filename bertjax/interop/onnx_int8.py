"""ONNX export in int8: dynamic quantization by onnxruntime, checked against bertjax's own outputs.

Matmul weights are symmetric int8 with one scale per output channel; word embeddings have a single scale. Activations
are uint8 over each batch's range (dynamic quantization). This needs no calibration data, but the answer to a text
depends slightly on the texts and the padding beside it. Attention products, softmax and layer norms stay float32.
"""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertjax.config.export import Export
from bertjax.interop import onnx
from bertjax.interop.outputs import reading_of
from bertjax.runtime.errors import RunFailed

# Where transformers.js and the Hub look for the int8 file in a model folder.
PLACE = Path("onnx") / "model_quantized.onnx"
# Largest accepted error of an output, relative to its root mean square. On random tokens, all-MiniLM-L6-v2 with its
# real weights has 0.23, and a file with unrelated weights has more than 1.
TOLERANCE = 0.5


def write(
    path: Path,
    export: Export,
    reduce_range: bool = True,
    compare: Callable[[Path, Path], list[str]] = lambda whole, small: [],
) -> list[str]:
    """Write a model in int8, with the same inputs and outputs as `onnx.write`.

    Args:
      path: the file to write, in an existing folder. It appears only after it has been written whole and checked.
      export: a model that `onnx.write` can write.
      reduce_range: whether weights use 7 bits. With 8, int16 sums may overflow on processors without int8 units (VNNI).
      compare: returns further notes from the files in float32 and in int8.

    Returns:
      Notes about the file, one line each.

    Raises:
      UserError: see `onnx.write`.
      RunFailed: onnxruntime and bertjax compute different values, in float32 or in int8.
    """
    onnx.check_installed()
    onnx.check_place(path)
    written, _ = onnx.as_written(export)
    reading = reading_of(written)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx-") as folder:
        whole, draft = Path(folder) / "float" / path.name, Path(folder) / path.name
        whole.parent.mkdir()
        outputs, checked, *notes = onnx.write(whole, export)
        _quantize(whole, draft, reduce_range)
        error = onnx.largest(_error(*both) for both in onnx.outputs_and_ours(draft, written, reading))
        if not error <= TOLERANCE:
            raise RunFailed(
                f"onnxruntime in int8 and bertjax differ by {error:.0%} of the outputs in {path}; it was not written"
            )
        notes += compare(whole, draft)
        onnx.publish(draft, path)
    return [outputs, f"{checked} in float32, by {error:.0%} of the outputs in int8 (random tokens)", *notes]


def _error(output: np.ndarray, expected: np.ndarray) -> float:
    """Return an output's error relative to its root mean square."""
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


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
            use_external_data_format=onnx.weights_of(whole).exists(),
        )
    finally:
        logging.disable(logging.NOTSET)
