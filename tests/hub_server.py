"""A stand-in for the Hugging Face Hub: the HTTP requests of an upload and of a download, answered from memory."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import types
from collections.abc import Iterator, Mapping


class Hub:
    """What a server has received, or has to give.

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


def commit_of(revision: str) -> str:
    """The commit that a branch stands for: 40 hexadecimal digits, as in the cache of downloads."""
    return hashlib.sha1(revision.encode()).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)", path)
        tree = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path)
        if tree and (held := self._held(tree[1], tree[2])) is not None:
            files = [{"type": "file", "path": name, "oid": "0", "size": len(data)} for name, data in held.items()]
            self._answer(200, files)
        elif match and match[1] in self.hub.private:
            self._answer(200, {"id": match[1], "private": self.hub.private[match[1]], "siblings": []})
        elif self.do_HEAD(with_content=True):
            self._answer(404, {"error": f"not served: {self.path}"}, {"X-Error-Code": self._missing()})

    def _missing(self) -> str:
        """The code by which the client tells a missing repository from a missing revision."""
        names = re.match(r"/(?:api/models/)?([^/]+/[^/]+)", self.path)
        held = {repository for repository, _ in self.hub.files}
        return "RevisionNotFound" if names and names[1] in held else "RepoNotFound"

    def do_HEAD(self, with_content: bool = False) -> bool:
        """Answer a request for a revision or for a file of it; return whether neither is there."""
        path = self.path.partition("?")[0]
        revision = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path)
        if revision and (held := self._held(revision[1], revision[2])) is not None:
            siblings = [{"rfilename": name} for name in held]
            self._answer(200, {"id": revision[1], "sha": commit_of(revision[2]), "siblings": siblings})
            return False
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if file and file[3] in (held := self._held(file[1], file[2]) or {}):
            content = held[file[3]]
            self.send_response(200)
            for name, value in {
                "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
                "X-Repo-Commit": file[2],
                "Content-Length": str(len(content)),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content if with_content else b"")
            return False
        if not with_content:
            self._answer(404, {}, {"X-Error-Code": self._missing()})
        return True

    def _held(self, repository: str, revision: str) -> dict[str, bytes] | None:
        """Return the files of a branch, or of the commit that it stands for."""
        for (name, branch), held in self.hub.files.items():
            if name == repository and revision in (branch, commit_of(branch)):
                return held
        return None

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

    def _answer(self, status: int, content: dict, headers: Mapping[str, str] = types.MappingProxyType({})) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
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
