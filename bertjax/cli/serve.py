"""Answer over HTTP with an ONNX file, without JAX: classes, numbers or embeddings.

Texts of concurrent requests are computed in batches. SIGTERM stops it after the requests that it has read are answered.

examples:
  python -m bertjax convert --from=runs/reviews --to=reviews.onnx --quantize=int8
  python -m bertjax serve reviews.onnx
  python -m bertjax serve reviews.onnx --host=0.0.0.0 --port=80 --workers=4

Ask it:  curl -d '{"texts": ["a text"]}' http://127.0.0.1:8000/predict
GET /health and GET /metrics (Prometheus) are for those who watch it.
"""

import dataclasses
import importlib.util

from bertjax.inference.onnx import OnnxModel, cores, one_thread_tokenizers
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError, printable, say, shorten
from bertjax.serving.limits import Limits

_PACKAGES = ("onnxruntime", "tokenizers", "starlette", "uvicorn", "prometheus_client")
_LIMITS = {
    "body-bytes": "bytes of a body",
    "texts": "texts of a request",
    "characters": "characters of a text",
    "waiting": "texts in the queue; requests beyond it are answered with 429",
    "connections": "open connections; further ones are answered with 503",
    "seconds": "seconds in which a client sends its header, again its body, and reads an answer",
}


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("serve", __doc__)
    parser.add_argument("model", help="a file of bertjax convert --to=MODEL.onnx")
    parser.add_flags({"--host": "address to listen at (default: %(default)s)"}, default="127.0.0.1")
    parser.add_flags({"--port": "port; 0 takes a free one (default: %(default)s)"}, type=int, default=8000)
    parser.add_flags(
        {
            "--workers": "batches to compute at a time, each on one core (default: all cores)",
            "--batch": "most texts of a batch; 1 computes each alone (default: %(default)s)",
            "--max-tokens=N": "cut texts to fewer tokens than the model does (default: as it does)",
        },
        type=command_line.positive,
    )
    parser.set_defaults(workers=cores(), batch=16, max_tokens=0)
    parser.add_flags(command_line.THRESHOLD, type=float)
    for field in dataclasses.fields(Limits):
        name = field.name.replace("_", "-")
        parser.add_argument(
            f"--max-{name}",
            type=field.type,
            default=field.default,
            metavar="N",
            help=f"most {_LIMITS[name]} (default: {field.default})",
        )
    args = parser.parse_args(argv)
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"serve needs the packages {', '.join(missing)}; pip install '.[serve]' brings them")
    from bertjax.serving.connections import check_open_files
    from bertjax.serving.server import app_of, bind, serve

    limits = Limits(**{field.name: getattr(args, f"max_{field.name}") for field in dataclasses.fields(Limits)})
    check_open_files(limits)
    one_thread_tokenizers()
    model = OnnxModel(args.model, threads=1, max_tokens=args.max_tokens)
    app = app_of(model.task(threshold=args.threshold), args.workers, args.batch, limits)
    bound = bind(args.host, args.port)
    host, port = bound.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    labels = f" ({shorten(list(map(printable, model.description.labels)))})" if model.description.labels else ""
    say(f"serving {args.model}: {model.description.task}{labels}, {model.max_tokens} tokens, {args.workers} workers")
    say(f"http://{place}:{port}/predict", flush=True)
    serve(app, bound, limits)
    return 0
