"""A model as ONNX in int8, quantized by onnxruntime and checked against bertjax's own outputs.

Weights of products are int8, symmetric, with a scale for each output channel; word embeddings have one scale.
Activations are uint8 with the range of each batch (dynamic quantization), so no calibration data is needed, and the
answer to a text depends a little on the texts and the padding beside it. Products of activations with activations,
softmax and layer norms stay float32.
"""

import logging
import tempfile
from pathlib import Path

import numpy as np

from bertjax.errors import RunFailed
from bertjax.export import Export
from bertjax.interop import onnx
from bertjax.interop.outputs import reading_of

# Where transformers.js and the Hub look for the int8 file of a folder of transformers.
PLACE = Path("onnx") / "model_quantized.onnx"
# The largest error of an output, as a share of its root mean square. A real all-MiniLM-L6-v2 has 0.23 on rows of random
# tokens, and a file with other weights more than 1.
TOLERANCE = 0.5


def write(path: Path, export: Export, reduce_range: bool = True) -> list[str]:
    """Write a model in int8; inputs and outputs are those of `onnx.write`.

    Args:
      path: the file to write, in an existing folder. It appears after all of it has been written and checked.
      export: a model that `onnx.write` can write.
      reduce_range: whether weights have 7 bits. With 8, the int16 sums of processors without int8 units (VNNI) may
        overflow.

    Returns:
      Notes about the file, one line each.

    Raises:
      UserError: see `onnx.write`.
      RunFailed: onnxruntime and bertjax compute different values, in float32 or in int8.
    """
    onnx.check_installed()
    onnx.check_place(path)
    reading = reading_of(export)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".onnx-") as folder:
        whole, draft = Path(folder) / "float" / path.name, Path(folder) / path.name
        whole.parent.mkdir()
        outputs, checked, *notes = onnx.write(whole, export)
        _quantize(whole, draft, reduce_range)
        error = onnx.largest(_error(*both) for both in onnx.outputs_and_ours(draft, export, reading))
        if not error <= TOLERANCE:
            raise RunFailed(
                f"onnxruntime in int8 and bertjax differ by {error:.0%} of the outputs in {path}; it was not written"
            )
        onnx.publish(draft, path)
    return [outputs, f"{checked} in float32, by {error:.0%} of the outputs in int8 (random texts)", *notes]


def _error(output: np.ndarray, expected: np.ndarray) -> float:
    """Return the error of an output as a share of its root mean square."""
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))


def _quantize(whole: Path, path: Path, reduce_range: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # the root logger recommends passes that PyTorch's exporter has made already
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
