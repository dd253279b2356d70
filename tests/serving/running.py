"""A server in another process, and clients of it."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess

from tests.serving import files
from tests.waiting import LIMIT_SECONDS, kill_at_exit


class Server:
    """A running server."""

    def __init__(self, folder, *flags: str):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = kill_at_exit(files.start(folder, "serve", *flags, "--port=0", **pipes))
        self.first = self.process.stdout.readline()
        line = self.process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), self.process.stderr.read()
        self.port = int(re.search(r":(\d+)/predict", line)[1])

    def ask(self, body: bytes | None, path: str = "/predict", headers: dict[str, str] = {}) -> tuple[int, str]:  # noqa: B006
        """Return status and text of one answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def answers(self, texts: list[str]) -> list[dict]:
        return self.answers_to(json.dumps({"texts": texts}).encode())

    def answers_to(self, body: bytes) -> list[dict]:
        status, text = self.ask(body)
        assert status == 200, text
        return json.loads(text)["predictions"]

    def metric(self, name: str) -> float:
        """Return a metric; 0 for a status that was not answered yet."""
        status, text = self.ask(None, "/metrics")
        assert status == 200, text
        match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(match[1]) if match or "{status=" not in name else 0.0

    def raw(self, *parts: bytes) -> bytes:
        """Send bytes on a connection of their own; return everything that comes until the server closes it."""
        with socket.create_connection(("127.0.0.1", self.port), LIMIT_SECONDS) as connection:
            with contextlib.suppress(ConnectionError):  # the server may close before it has read all
                for part in parts:
                    connection.sendall(part)
            return received(connection)

    def stop(self) -> None:
        """Ask it to stop, and check that it does so as asked."""
        self.process.send_signal(signal.SIGHUP)  # which ends nothing
        assert self.ask(None, "/health")[0] == 200
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=LIMIT_SECONDS)
        assert (self.process.returncode, errors) == (0, "")


def received(connection: socket.socket) -> bytes:
    """Return all bytes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)
