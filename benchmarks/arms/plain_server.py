"""The server that an engineer writes first: a pool of threads, each computes one text of a request after the other.

    python -m benchmarks.arms.plain_server MODEL.onnx THREADS

It has the web server, the tokenizer and the ONNX Runtime of `bertjax serve`, one thread for each call, and no batches.
The first line of its output is its port.
"""

import json
import sys

import anyio.to_thread
import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from bertjax.serving.server import bind

_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def app_of(path: str, threads: int) -> Starlette:
    """Return the application for a classifier."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    description, tokenizer = json.loads(metadata["bertjax"]), Tokenizer.from_str(metadata["tokenizer.json"])
    tokenizer.enable_truncation(min(512, description["max_tokens"]))
    fields = {node.name: _FIELDS[node.name] for node in session.get_inputs()}

    def classify(text: str) -> dict[str, float]:
        encoded = tokenizer.encode(text)
        inputs = {name: np.array([getattr(encoded, field)], np.int64) for name, field in fields.items()}
        [logits_1C] = session.run(["logits"], inputs)
        powers_C = np.exp(logits_1C[0] - logits_1C[0].max())
        return dict(zip(description["labels"], (powers_C / powers_C.sum()).tolist(), strict=True))

    def answer(texts: list[str]) -> list[dict[str, float]]:
        return [classify(text) for text in texts]

    async def predict(request: Request) -> JSONResponse:
        anyio.to_thread.current_default_thread_limiter().total_tokens = threads
        return JSONResponse({"predictions": await run_in_threadpool(answer, (await request.json())["texts"])})

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


if __name__ == "__main__":
    bound = bind("127.0.0.1", 0)
    print(bound.getsockname()[1], flush=True)
    config = uvicorn.Config(app_of(sys.argv[1], int(sys.argv[2])), http="h11", log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[bound])
