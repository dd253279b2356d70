"""A stand-in for the Hugging Face Hub: the HTTP requests of an upload, answered and kept in memory."""

import base64
import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator


class Hub:
    """What a server has received.

    Attributes:
      files: {(repository, revision): {path: content}}.
      private: {repository: whether it was created as private}.
      token: the token that the server accepts.
    """

    def __init__(self, token: str):
        self.token = token
        self.address = ""
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}

    def create(self, request: dict) -> tuple[int, dict]:
        name = "/".join(filter(None, (request.get("organization"), request["name"])))
        if name in self.private:
            return 409, {"error": "You already created this model repo", "url": f"{self.address}/{name}"}
        self.private[name] = bool(request.get("private")) or request.get("visibility") == "private"
        self.files[name, "main"] = {}
        return 200, {"url": f"{self.address}/{name}"}

    def branch(self, name: str, revision: str) -> tuple[int, dict]:
        if (name, revision) in self.files:
            return 409, {"error": "Reference already exists"}
        self.files[name, revision] = {}
        return 200, {}

    def commit(self, name: str, revision: str, body: bytes) -> tuple[int, dict]:
        if (name, revision) not in self.files:
            return 404, {"error": "Revision not found"}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                assert line["value"]["encoding"] == "base64"
                content = base64.b64decode(line["value"]["content"])
                self.files[name, revision][line["value"]["path"]] = content
            elif line["key"] == "deletedFile":
                del self.files[name, revision][line["value"]["path"]]
        commit = f"{self.address}/{name}/commit/0123"
        return 200, {"commitUrl": commit, "commitOid": "0123", "success": True}


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)", path)
        tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path)
        if tree and (held := self.hub.files.get((tree[1], tree[2]))) is not None:
            files = [{"type": "file", "path": name, "oid": "0", "size": len(data)} for name, data in held.items()]
            self._answer(200, files)
        elif match and match[1] in self.hub.private:
            self._answer(200, {"id": match[1], "private": self.hub.private[match[1]], "siblings": []})
        else:
            self._answer(404, {"error": f"not served: {self.path}"})

    def do_POST(self) -> None:
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self._answer(*self.hub.create(json.loads(body)))
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", self.path):
            self._answer(*self.hub.branch(match[1], match[2]))
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/.+", self.path):
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self._answer(200, {"files": modes})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", self.path.partition("?")[0]):
            self._answer(*self.hub.commit(match[1], match[2], body))
        else:
            self._answer(404, {"error": f"not served: {self.path}"})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serve(token: str) -> Iterator[Hub]:
    """Serve a Hub on a free port of 127.0.0.1."""
    hub = Hub(token)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
