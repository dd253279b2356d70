"""The server in a process without JAX: answers, metrics, stopping, and clients that ask for too much."""

import asyncio
import concurrent.futures
import contextlib
import json
import resource
import signal
import socket
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the server needs the extra [serve]")
pytest.importorskip("onnxruntime", reason="the server needs the extra [serve]")

from starlette.requests import ClientDisconnect  # noqa: E402

from benchmarks import serving  # noqa: E402
from bertjax.serving.server import while_connected  # noqa: E402
from tests.serving import files  # noqa: E402
from tests.serving.files import slow  # noqa: E402
from tests.serving.running import Server, received  # noqa: E402
from tests.waiting import LIMIT_SECONDS, wait_until  # noqa: E402

TEXTS = ["abd ace", "bbe", "abd " * 60]
# The growth of memory that any number of requests may cause, far below what they would need all at once.
MOST_BYTES = 96 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return files.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(made, tmp_path_factory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"), str(made.onnx), "--max-body-bytes=100000", "--max-waiting=64")
    yield running
    running.stop()


@slow
def test_answers_are_those_of_predict(made, server, tmp_path):
    assert server.first.startswith(f"serving {made.onnx}: classification (bad, good, ü, so-so), 20 tokens, ")
    done = files.run(tmp_path, "predict", str(made.onnx), *TEXTS)
    expected = [json.loads(line) for line in done.stdout.splitlines()]
    for own, theirs in zip(server.answers(TEXTS), expected, strict=True):
        assert own["prediction"] == theirs["prediction"]
        assert own["probabilities"] == pytest.approx(theirs["probabilities"], abs=2e-6)


@slow
def test_concurrent_requests_get_their_own_answers(server):
    words = ["abd", "ace", "bbe", "cfd", "aef"]
    requests = [[f"{first} {second}"] * (1 + number % 3) for number, first in enumerate(words) for second in words]
    alone = [server.answers(texts) for texts in requests]
    before = server.metric("bertjax_batch_texts_sum")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(server.answers, requests * 4))
    for own, expected in zip(together, alone * 4, strict=True):
        for one, other in zip(own, expected, strict=True):
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)
    assert server.metric("bertjax_batch_texts_sum") - before == 4 * sum(map(len, requests))


@slow
def test_health_and_metrics(server):
    status, text = server.ask(None, "/health")
    assert status == 200 and json.loads(text) == {
        "status": "ok",
        "model": "model.onnx",
        "task": "classification",
        "labels": ["bad", "good", "ü, so-so"],
        "max_tokens": 20,
    }
    texts, right, wrong = (
        "bertjax_texts_total",
        'bertjax_requests_total{status="200"}',
        'bertjax_requests_total{status="400"}',
    )
    server.ask(b"{")
    before = [server.metric(name) for name in (texts, right, wrong, "bertjax_request_seconds_count")]
    server.answers(["abd", "ace"])
    server.ask(b"{")
    after = [server.metric(name) for name in (texts, right, wrong, "bertjax_request_seconds_count")]
    assert [new - old for new, old in zip(after, before, strict=True)] == [2, 1, 1, 1]
    assert server.metric("bertjax_waiting_texts") == 0


@slow
def test_an_attack_costs_one_line_each_and_bounded_memory(server):
    server.answers(TEXTS)
    before = server.metric("process_resident_memory_bytes")
    huge = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999\r\n\r\n"
    chunked = b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    part = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    cases = [
        ((huge,), b"413"),
        ((chunked, *[part] * 1000), b"413"),  # 64 MB, unless the server stops reading
        ((b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (1 << 20),), b"400"),  # a header without an end
        ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,), b"400"),  # TLS
        ((b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1e9\r\n\r\n",), b"400"),
        ((b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",), b"400"),
        ((b"GET /" + b"a" * 1_000_000,), b"400"),
        ((chunked.replace(b"\r\n\r\n", b"\r\nContent-Length: 6\r\n\r\n") + b"0\r\n\r\n",), b"400"),  # two lengths
    ]
    for parts, status in cases:
        answer = server.raw(*parts)
        # A client that still sends when the connection is closed may lose the answer (RFC 9112, section 9.6).
        assert not answer or answer.split()[1] == status, (parts[0][:80], answer)
        assert len(answer) < 500
    for body, status in [
        (b"[" * 90_000, 400),
        (b'{"texts": ' + b"9" * 90_000 + b"}", 400),
        (json.dumps({"texts": ["a"] * 15_000}).encode(), 422),
        (json.dumps({"texts": ["a" * 90_000]}).encode(), 422),
        (json.dumps({"texts": ["a" * 9_000] * 10}).encode(), 200),  # as long as it may be
        (json.dumps({"texts": ["a"] * 65}).encode(), 422),
        (b'{"texts": ["\\ud800"]}', 422),
        (b"\xff" * 1000, 400),
        (b"x" * 100_001, 413),
        (b"x" * 4_000_000, 413),  # `http.client` sends all of it before it reads
    ]:
        for _ in range(5):
            found, text = server.ask(body)
            assert found == status, (body[:40], text)
            assert text.count("\n") == 1 and text.endswith("}\n") and (status == 200 or len(text) < 500)
    assert server.ask(b"{}", "/nowhere")[0] == 404
    assert server.ask(b"{}", "/predict/")[0] == 404 and server.ask(b"{}", "/health")[0] == 405
    assert server.metric("process_resident_memory_bytes") - before < MOST_BYTES
    assert len(server.answers(TEXTS)) == 3  # it still answers


@slow
def test_a_full_queue_is_429(made, tmp_path):
    server = Server(tmp_path, str(made.onnx), "--max-waiting=2", "--workers=1", "--batch=1")
    status, text = server.ask(b'{"texts": ["a", "b", "c"]}')  # at any time: not told to try again
    error = {"error": "3 texts do not fit into a queue of 2; send several requests"}
    assert (status, json.loads(text)) == (422, error)
    found: set[int] = set()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        while 429 not in found:  # all come at once, sooner or later
            answers = list(pool.map(server.ask, [b'{"texts": ["abd ace abd", "b"]}'] * 64))
            found.update(status for status, _ in answers)
    assert found <= {200, 429}
    [error] = {text for status, text in answers if status == 429}
    assert json.loads(error) == {"error": "2 texts are waiting; try again later"}
    server.stop()


REFUSED = 'bertjax_requests_total{status="400"}'
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture(scope="module")
def quick(made, tmp_path_factory) -> Iterator[Server]:
    """A server that waits for a second, and for few clients."""
    folder = tmp_path_factory.mktemp("quick")
    running = Server(folder, str(made.onnx), "--max-seconds=1", "--max-connections=4")
    yield running
    running.stop()  # which checks that nothing was logged


@slow
def test_slow_clients_lose_their_connection_and_no_others(quick):
    """Nothing here waits for a time: each connection is read until the server closes it."""
    assert quick.raw() == b""
    assert quick.raw(b"POST /pre") == b""
    keeps = HEALTH + b"\r\n"
    assert quick.raw(keeps).split()[1] == b"200"  # an idle connection is closed as well
    assert quick.raw(keeps, b"GET /hea").count(b"HTTP/1.1 200 OK") == 1
    slow_body = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{"
    assert quick.raw(slow_body).split()[1] == b"408"
    assert len(quick.answers(TEXTS)) == 3


@slow
def test_a_body_that_nobody_reads_ends_in_time(quick):
    """It comes byte by byte after the answer, for as long as the server takes it."""
    with socket.create_connection(("127.0.0.1", quick.port), LIMIT_SECONDS) as connection:
        connection.sendall(HEALTH + b"Content-Length: 999999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
        end = time.monotonic() + LIMIT_SECONDS
        with pytest.raises(ConnectionError):
            while time.monotonic() < end:
                connection.sendall(b"x")
    assert quick.raw(HEALTH + b"Content-Length: 3\r\n\r\n", b"abc" + HEALTH + b"\r\n").count(b"200 OK") == 2


@slow
def test_a_client_that_does_not_read_is_cut_off(quick):
    """All sizes of buffers are finite, so at some time the server can neither send nor read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(LIMIT_SECONDS)
        connection.connect(("127.0.0.1", quick.port))
        with pytest.raises(ConnectionError):
            for _ in range(100_000):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 10)
    assert len(quick.answers(TEXTS)) == 3


@slow
def test_requests_that_are_not_http_get_one_answer_and_no_log(quick):
    chunked = HEALTH + b"Transfer-Encoding: chunked\r\n\r\n"
    before = quick.metric(REFUSED)
    with socket.create_connection(("127.0.0.1", quick.port), LIMIT_SECONDS) as connection:
        connection.sendall(chunked)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        connection.sendall(b"zz\r\n")
        received(connection)
    for raw in (chunked + b"zz\r\n", b"\0\r\n\r\n", HEALTH + b"Host: b\r\n\r\n"):
        head, body = quick.raw(raw).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n"), raw
        assert json.loads(body) == {"error": "the request is not HTTP/1.1"}
    assert quick.metric(REFUSED) - before == 3  # the first was answered with 200 before it broke
    before = quick.metric(REFUSED)
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n"
    assert quick.raw(head, b"no chunk\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert quick.metric(REFUSED) - before == 1, "one answer, although a handler was reading the body"


@slow
def test_connections_are_limited(quick):
    """Those that are open and silent count as well."""
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(socket.create_connection(("127.0.0.1", quick.port), LIMIT_SECONDS))
        head, body = quick.raw().split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert json.loads(body) == {"error": "4 connections are open; try again later"}
    # A connection that was just closed may count for a moment: this request may be refused as well.
    wait_until(lambda: quick.ask(None, "/health")[0] == 200)
    assert quick.metric('bertjax_requests_total{status="503"}') >= 1


@slow
def test_more_connections_than_files_are_refused_in_one_line_each(made, tmp_path):
    """asyncio would print a traceback for each one that cannot be accepted."""
    server = Server(tmp_path, str(made.onnx), "--max-connections=20", "--max-seconds=600")
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (60, 60))
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), LIMIT_SECONDS))
    assert len(server.answers(TEXTS)) == 3
    server.process.send_signal(signal.SIGTERM)
    _, errors = server.process.communicate(timeout=LIMIT_SECONDS)
    assert server.process.returncode == 0 and len(errors.splitlines()) <= 3 and "Traceback" not in errors
    flags = ("--max-connections=999999999", "--port=0")
    done = files.run(tmp_path, "serve", str(made.onnx), *flags)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "open files of" in done.stderr


def test_work_for_a_client_that_leaves_is_cancelled():
    async def run() -> None:
        started, ended, messages = asyncio.Event(), asyncio.Event(), asyncio.Queue()

        async def work() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(while_connected(messages.get, work()))
        await started.wait()
        messages.put_nowait({"type": "http.request"})
        messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientDisconnect):
            await task
        await ended.wait()
        assert await while_connected(messages.get, asyncio.sleep(0, "an answer")) == "an answer"

    asyncio.run(run())


@slow
def test_a_request_that_was_read_is_answered_before_the_process_ends(made, tmp_path):
    server = Server(tmp_path, str(made.onnx))
    body = b'{"texts": ["abd ace"]}'
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_SECONDS) as connection:
        length = str(len(body)).encode()
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " + length + b"\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # the server waits for the body
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(OSError):
            while True:  # until it listens no more
                socket.create_connection(("127.0.0.1", server.port), LIMIT_SECONDS).close()
        connection.sendall(body)
        answer = received(connection)
    assert answer.split()[1] == b"200" and b'"prediction"' in answer
    _, errors = server.process.communicate(timeout=LIMIT_SECONDS)
    assert (server.process.returncode, errors) == (0, "")


@slow
def test_a_port_in_use_is_one_line(made, server, tmp_path):
    done = files.run(tmp_path, "serve", str(made.onnx), f"--port={server.port}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"--port={server.port} cannot be used" in done.stderr and "choose others" in done.stderr


@slow
def test_the_benchmark_measures_both_servers(made):
    line = serving.measure(str(made.onnx), ["abd ace", "bbe"], clients=(1, 3), duration=0.2)
    for arm in serving.ARMS:
        for of in line["arms"][arm].values():
            assert of["requests_per_second"] > 0 and 0 < of["p50"] <= of["p99"]
