"""A server of the JSON API of Google Cloud Storage, which fails as a test asks; gcsfs and TensorStore talk to it."""

import collections
import contextlib
import datetime
import email
import itertools
import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import fsspec

# What a fault may be: a status, a connection that ends before or within the answer, or seconds to wait.
Fault = int | str | float | None
LOST, CUT = "lost", "cut"


class ObjectStore:
    """Buckets in memory behind a URL.

    Attributes:
      objects: {(bucket, name): (content, generation, time of the write)}.
      fault: called with the kind of each call (`list`, `stat`, `read`, `write`, `delete`, `move`) and the name of the
        object; returns what goes wrong.
      calls: number of calls of each kind.
    """

    def __init__(self):
        self.objects: dict[tuple[str, str], tuple[bytes, int, str]] = {}
        self.fault: Callable[[str, str], Fault] = lambda kind, name: None
        self.calls = collections.Counter()
        self.generations = itertools.count(1)
        self.uploads: dict[str, tuple[str, dict, bytearray]] = {}
        self.lock = threading.Lock()
        self._server = _Server(("localhost", 0), type("Handler", (_Handler,), {"store": self}))
        self.url = f"http://localhost:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which gcsfs, Google's client and TensorStore use this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "FSSPEC_GCS_TOKEN": "anon",
            "GOOGLE_CLOUD_PROJECT": "test",
        }

    @contextlib.contextmanager
    def running(self) -> Iterator["ObjectStore"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    @contextlib.contextmanager
    def used_here(self) -> Iterator[None]:
        """Let gcsfs and TensorStore of this process use this server."""
        anonymous = {"gcs": {"token": "anon"}}  # fsspec reads its environment when it is imported
        with mock.patch.dict(os.environ, self.environment), mock.patch.dict(fsspec.config.conf, anonymous):
            yield

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects."""
        with self.lock:
            return sorted(name for _, name in self.objects if name.startswith(prefix))

    def content(self, name: str) -> bytes:
        """Return the content of an object of the only bucket."""
        with self.lock:
            return next(found[0] for (_, other), found in self.objects.items() if other == name)

    def put(self, bucket: str, name: str, content: bytes, age: float = 0.0) -> None:
        """Write an object `age` seconds ago."""
        moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        written = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.objects[bucket, name] = (content, next(self.generations), written)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_) -> None:
        """Clients may close a connection at any time."""


class _Status(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    store: ObjectStore
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def _handle(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = re.sub("^/(upload/|download/)?storage/v1/b", "", url.path)
        match = re.fullmatch("/([^/]+)(?:/o(?:/([^/]+))?(?:/(moveTo|rewriteTo|copyTo)/(?:b/[^/]+/)?o/([^/]+))?)?", path)
        if not match:
            return self._answer(400)
        bucket, name, move, target = (part and urllib.parse.unquote(part) for part in match.groups())
        listing = self.command == "GET" and "/o" in path and not name
        media = query.get("alt") == "media"
        kind = "move" if move else "list" if listing else "read" if media else "stat"
        kind = {"DELETE": "delete", "PUT": "write", "POST": "move" if move else "write"}.get(self.command, kind)
        self.store.calls[kind] += 1
        fault = self.store.fault(kind, name or query.get("name", ""))
        if isinstance(fault, float):
            time.sleep(fault)
        elif fault == LOST:
            self.close_connection = True
            return None
        elif isinstance(fault, int):
            return self._answer(fault, {"error": {"code": fault, "message": "a fault of the test"}})
        self._cut = fault == CUT
        try:
            with self.store.lock:
                if self.command == "DELETE":
                    self._object(bucket, name)
                    del self.store.objects[bucket, name]
                    return self._answer(204)
                if kind == "move":
                    return self._move(bucket, name, target, move)
                if kind == "write":
                    return self._write(bucket, query, body)
                if listing:
                    return self._list(bucket, query)
                if not name:
                    return self._answer(200, {"kind": "storage#bucket", "id": bucket, "name": bucket})
                content, generation, _ = self._object(bucket, name)
                if not media:
                    return self._answer(200, self._metadata(bucket, name))
                if query.get("ifGenerationNotMatch") == str(generation):
                    return self._answer(304)
                return self._read(content, generation)
        except _Status as status:
            return self._answer(status.args[0], {"error": {"code": status.args[0], "message": "No such object"}})

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _object(self, bucket: str, name: str) -> tuple[bytes, int, str]:
        if (bucket, name) not in self.store.objects:
            raise _Status(404)
        return self.store.objects[bucket, name]

    def _metadata(self, bucket: str, name: str) -> dict:
        content, generation, written = self.store.objects[bucket, name]
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(content)),
            "generation": str(generation),
            "metageneration": "1",
            "timeCreated": written,
            "updated": written,
        }

    def _list(self, bucket: str, query: dict) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set()
        for other, name in sorted(self.store.objects):
            inside = query.get("startOffset", "") <= name and name < query.get("endOffset", "\U0010ffff")
            if other != bucket or not name.startswith(prefix) or not inside:
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                items.append(self._metadata(bucket, name))
        self._answer(200, {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)})

    def _read(self, content: bytes, generation: int) -> None:
        status, headers = 200, {"x-goog-generation": str(generation), "Content-Type": "application/octet-stream"}
        if wanted := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = wanted.groups()
            start = int(first) if first else max(len(content) - int(last), 0)
            end = min(int(last) + 1, len(content)) if first and last else len(content)
            if start >= len(content):
                raise _Status(416)
            status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{len(content)}"
            content = content[start:end]
        self._answer(status, content, headers)

    def _write(self, bucket: str, query: dict, body: bytes) -> None:
        kind, name = query.get("uploadType"), query.get("name")
        if upload := query.get("upload_id"):
            name, query, content = self.store.uploads[upload]
            content += body
            size = self.headers.get("Content-Range", "").rpartition("/")[2]
            if size == "*" or (size and len(content) < int(size)):
                return self._answer(308, b"", {"Range": f"bytes=0-{len(content) - 1}"})
            body = bytes(content)
        elif kind == "resumable":
            upload = str(next(self.store.generations))
            self.store.uploads[upload] = (name or json.loads(body)["name"], query, bytearray())
            location = f"{self.store.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload}"
            return self._answer(200, b"", {"Location": location})
        elif kind == "multipart":
            boundary = email.message_from_string(f"Content-Type: {self.headers['Content-Type']}\n\n").get_boundary()
            _, settings, content, _ = re.split(b"\r?\n?--" + re.escape(boundary).encode(), body)
            separator = re.compile(rb"\r?\n\r?\n")
            name = name or json.loads(separator.split(settings, maxsplit=1)[1])["name"]
            body = separator.split(content, maxsplit=1)[1]
        match, existing = query.get("ifGenerationMatch"), self.store.objects.get((bucket, name))
        if match is not None and match != str(existing[1] if existing else 0):
            raise _Status(412)
        self.store.put(bucket, name, body)
        return self._answer(200, self._metadata(bucket, name))

    def _move(self, bucket: str, name: str, target: str, move: str) -> None:
        self.store.put(bucket, target, self._object(bucket, name)[0])
        if move == "moveTo":
            del self.store.objects[bucket, name]
        done = {"kind": "storage#rewriteResponse", "done": True} if move == "rewriteTo" else {}
        self._answer(200, done | self._metadata(bucket, target))

    def _answer(self, status: int, content: dict | bytes = b"", headers: dict[str, str] | None = None) -> None:
        if isinstance(content, dict):
            content, headers = json.dumps(content).encode(), {"Content-Type": "application/json"} | (headers or {})
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if getattr(self, "_cut", False) and len(content) > 1:
            content, self.close_connection = content[: len(content) // 2], True
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        pass
