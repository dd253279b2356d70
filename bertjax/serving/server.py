"""The HTTP server: POST /predict, GET /health, GET /metrics, by Starlette on uvicorn.

A request costs bounded memory at each step: the header by one read of asyncio (256 KiB), the body by
`Limits.body_bytes`, the texts by `Limits.texts` and `Limits.characters`, the queue by `Limits.waiting`, all of them by
`Limits.connections` (see `bertjax.serving.connections`), and one call of the model by `bertjax.inference.onnx`.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bertjax.data.labeled.base import WHERE
from bertjax.inference.onnx import OnnxTask
from bertjax.runtime.errors import UserError, cut_text, json_text, reason
from bertjax.serving.batcher import Batcher, Full
from bertjax.serving.connections import BACKLOG, Complaints, protocol_of
from bertjax.serving.limits import Limits, Refused, body_of, texts_of

# Time for requests that are being answered when the process is asked to stop.
_STOP_SECONDS = 30
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Prometheus metrics of one server, in a registry of its own."""

    def __init__(self):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU time, open files
        self.requests = Counter("bertjax_requests", "Requests by HTTP status.", ["status"], registry=self.registry)
        self.texts = Counter("bertjax_texts", "Texts answered.", registry=self.registry)
        self.seconds = Histogram(
            "bertjax_request_seconds",
            "Time from the whole body to the answer, of requests with status 200.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.batch = Histogram("bertjax_batch_texts", "Texts of a batch.", registry=self.registry, buckets=_SIZES)
        self.waiting = Gauge("bertjax_waiting_texts", "Texts in the queue.", registry=self.registry)

    def count(self, status: int) -> None:
        """Count an answer."""
        self.requests.labels(status).inc()


def app_of(task: OnnxTask, workers: int, most_texts: int, limits: Limits) -> Starlette:
    """Return the ASGI application.

    Args:
      task: the answers of a model; its sessions compute with one thread for each worker.
      workers: number of batches that are computed at the same time.
      most_texts: maximum texts per batch.
      limits: limits of requests.
    """
    model, fields, metrics = task.model, task.fields, Metrics()

    def compute(texts: list[Any]) -> list[Any]:
        # A text, or both texts of a pair.
        places = ({WHERE: f"texts[{number}]"} for number in range(len(texts)))
        values = ([text] if isinstance(text, str) else text for text in texts)
        return model.answers(task, [dict(zip(fields, own)) | place for own, place in zip(values, places)])

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        on_batch = metrics.batch.observe
        async with Batcher(compute, workers, most_texts, limits.waiting, _length_of, on_batch) as batcher:
            asyncio.get_running_loop().set_exception_handler(Complaints())
            app.state.batcher = batcher
            metrics.waiting.set_function(lambda: batcher.waiting)
            yield

    async def predict(request: Request) -> Response:
        try:
            if {"content-length", "transfer-encoding"} <= {*request.headers}:  # RFC 9112, section 6.1
                raise Refused(400, "the body has two lengths; send Content-Length or chunks", closes=True)
            body = await body_of(request.headers.get("content-length"), request.stream(), limits)
            start = time.perf_counter()
            texts = texts_of(body, len(fields), limits)
            answers = await while_connected(request.receive, request.app.state.batcher.submit(texts))
        except ClientDisconnect:
            # Nobody reads this. If the protocol has cut the client off with an answer of its own, that one has counted.
            return Response(status_code=400)
        except Refused as error:
            return _error(metrics, error)
        except Full:
            full = Refused(429, f"{limits.waiting:,} texts are waiting; try again later")
            return _error(metrics, full, {"retry-after": "1"})
        metrics.seconds.observe(time.perf_counter() - start)
        metrics.texts.inc(len(texts))
        return _json(metrics, 200, {"predictions": answers})

    async def health(request: Request) -> Response:
        description = model.description
        state = {"status": "ok", "model": Path(model.path).name, "task": description.task}
        return _json(metrics, 200, state | {"labels": list(description.labels), "max_tokens": model.max_tokens})

    async def expose(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def refuse(request: Request, error: HTTPException) -> Response:
        """Errors of the router (404, 405)."""
        routes = "POST /predict, GET /health, GET /metrics"
        # The header Allow of 405.
        return _error(metrics, Refused(error.status_code, f"there are {routes}", closes=True), error.headers)

    async def fail(request: Request, error: Exception) -> Response:
        return _error(metrics, Refused(500, "the model failed; the log of the server has the reason"))

    app = Starlette(
        routes=[
            Route("/predict", predict, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", expose, methods=["GET"]),
        ],
        exception_handlers={HTTPException: refuse, 500: fail},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # no addresses but these
    app.state.metrics = metrics
    return app


async def while_connected(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`, which is cancelled when the client leaves.

    Args:
      receive: ASGI's function for the next message of the client, whose body has been read.
      work: the work.

    Raises:
      ClientDisconnect: the client has left.
    """

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(work), asyncio.create_task(left())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


def _length_of(text: str | Sequence[str]) -> int:
    """Return the bytes of a text, or of both texts of a pair."""
    return len((text if isinstance(text, str) else "".join(text)).encode())


def _json(metrics: Metrics, status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    metrics.count(status)
    return Response(json_text(value) + "\n", status, headers, media_type="application/json")


def _error(metrics: Metrics, error: Refused, headers: Mapping[str, str] | None = None) -> Response:
    # A body that is left unread would be taken for the next request, or be read for as long as it comes.
    closing = {"connection": "close"} if error.closes else {}
    return _json(metrics, error.status, {"error": str(error)}, {**(headers or {}), **closing})


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one. Clients wait until `serve` accepts them.

    Raises:
      UserError: the address is not one of this machine, or is in use.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:  # the last for a name that no host can have
        raise UserError(
            f"--host={cut_text(host)} --port={port} cannot be used ({reason(error)}); choose others"
        ) from None
    return bound


def serve(app: Starlette, bound: socket.socket, limits: Limits) -> None:
    """Serve until SIGTERM or SIGINT, then answer what has been asked. SIGHUP has no effect.

    Args:
      app: the application, from `app_of`.
      bound: see `bind`.
      limits: limits of connections.
    """
    config = uvicorn.Config(
        app,
        http=protocol_of(limits, app.state.metrics.count),
        ws="none",
        lifespan="on",
        log_level="error",  # a line for each malformed request would let clients fill the disk
        access_log=False,
        proxy_headers=False,  # the address of a client is not used
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=int(max(1, limits.seconds)),
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    server = uvicorn.Server(config)

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    # uvicorn sends itself the signal again after it has stopped, which would end the process with the signal's code.
    # A server that stopped as it was asked ends with code 0.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a terminal that is closed; its default would cut clients off
    server.run(sockets=[bound])
