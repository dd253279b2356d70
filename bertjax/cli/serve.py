"""python -m bertjax serve: answer over HTTP with an ONNX file, without JAX."""

import dataclasses
import importlib.util

from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError, printable, say, shorten
from bertjax.serving.limits import Limits
from bertjax.serving.model import OnnxModel, cores, one_thread_tokenizers

_PACKAGES = ("onnxruntime", "tokenizers", "starlette", "uvicorn", "prometheus_client")
_LIMITS = {
    "body-bytes": "bytes of a body",
    "texts": "texts of a request",
    "characters": "characters of a text",
    "waiting": "texts in the queue; requests beyond it are answered with 429",
    "connections": "open connections; further ones are answered with 503",
    "seconds": "seconds in which a client sends its header, again its body, and reads an answer",
}


def check_installed() -> None:
    """Raise UserError if a package of the server is missing."""
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"serve needs the packages {', '.join(missing)}; pip install '.[serve]' brings them")


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        "serve",
        description="Answer over HTTP with an ONNX file: classes, numbers or embeddings. Texts of concurrent requests\n"
        "are computed in batches. SIGTERM stops it after the requests that it has read are answered.",
        epilog="examples:\n"
        "  python -m bertjax convert --from=runs/reviews --to=reviews.onnx --quantize=int8\n"
        "  python -m bertjax serve reviews.onnx\n"
        "  python -m bertjax serve reviews.onnx --host=0.0.0.0 --port=80 --workers=4\n\n"
        'Ask it:  curl -d \'{"texts": ["a text"]}\' http://127.0.0.1:8000/predict\n'
        "GET /health and GET /metrics (Prometheus) are for those who watch it.",
    )
    parser.add_argument("model", help="a file of bertjax convert --to=MODEL.onnx")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, default=0, help="batches to compute at a time, each on one core (default: all cores)"
    )
    parser.add_argument(
        "--batch", type=int, default=16, help="most texts of a batch; 1 computes each alone (default: %(default)s)"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="cut texts to fewer tokens than the model does (default: as it does)",
    )
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
    check_installed()
    from bertjax.serving.connections import check_open_files
    from bertjax.serving.server import app_of, bind, serve

    for flag, value in (("--batch", args.batch), ("--max-tokens", args.max_tokens), ("--workers", args.workers + 1)):
        if value is not None and value < 1:
            raise UserError(f"{flag}={value} must be at least 1")
    limits = Limits(**{field.name: getattr(args, f"max_{field.name}") for field in dataclasses.fields(Limits)})
    check_open_files(limits)
    workers = args.workers or cores()
    one_thread_tokenizers()
    model = OnnxModel(args.model, threads=1, max_tokens=args.max_tokens or 0)
    app = app_of(model, workers, args.batch, limits)
    bound = bind(args.host, args.port)
    host, port = bound.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    labels = f" ({shorten(list(map(printable, model.description.labels)))})" if model.description.labels else ""
    say(f"serving {args.model}: {model.description.task}{labels}, {model.max_tokens} tokens, {workers} workers")
    say(f"http://{place}:{port}/predict", flush=True)
    serve(app, bound, limits)
    return 0
