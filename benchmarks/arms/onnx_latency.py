"""Milliseconds of a sentence on one core with ONNX Runtime: exports in turns. Prints JSON.

    taskset -c 0 python -m benchmarks.arms.onnx_latency EXPORT...

Rows and turns are those of `benchmarks.arms.latency`. An export with int8 weights is an ONNX file in int8. The command
needs the extra [onnx]. A model without an ONNX file is left out, and the reason is printed to stderr.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.arms import latency
from benchmarks.onnx_int8 import session_of
from bertjax.config.export import is_quantized
from bertjax.config.opening import SavedModel
from bertjax.interop import onnx, onnx_int8, onnx_rows
from bertjax.runtime import platform
from bertjax.runtime.errors import RunFailed, UserError


def main(*exports: str) -> None:
    """The command line."""
    platform.configure("cpu")
    arms = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(exports):
            export, path = SavedModel(name).export, Path(folder) / f"{number}.onnx"
            try:
                (onnx_int8 if is_quantized(name) else onnx).write(path, export)
            except (UserError, RunFailed) as error:
                print(f"{name} is not measured with ONNX Runtime: {error}", file=sys.stderr)
                continue
            session = session_of(path)
            for size in latency.BATCHES:
                tokens_BT = latency.rows(export.tokenizer, size)
                values = tokens_BT, np.ones_like(tokens_BT), np.zeros_like(tokens_BT)
                inputs = dict(zip(onnx_rows.inputs_of(export), values))
                arms[name, size] = lambda session=session, inputs=inputs: session.run(None, inputs)
    print(json.dumps(latency.medians(arms)))


if __name__ == "__main__":
    main(*sys.argv[1:])
