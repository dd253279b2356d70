"""The code of docs/guides/ship.md, run on a small classifier: pipeline and HTTP server answer as bertjax does."""

import contextlib
import importlib.util
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bertjax.cli import convert
from bertjax.config import export
from bertjax.inference.predictor import Predictor
from tests.interop import models
from tests.ports import reserve_port
from tests.waiting import LIMIT_SECONDS, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "ship.md"
PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def ask(port: int, body: bytes):
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}", data=body, timeout=LIMIT_SECONDS))


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"needs the extra [onnx]: no {', '.join(MISSING)}")
def test_the_code_of_the_page_answers_as_bertjax_does(tmp_path, monkeypatch):
    model = models.fine_tuned("classification", models.trained())
    export.write(tmp_path / "ours", model)
    for target in ("hf/reviews", "reviews.onnx"):
        convert.run(tmp_path / "ours", tmp_path / target)
    use, serve = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(use, scope)
    texts = ["abd ace", "bbe"]
    expected = [prediction["probabilities"] for prediction in Predictor(model).predict(texts)]
    for answer, probabilities in zip(scope["answers"], expected, strict=True):
        assert {entry["label"]: entry["score"] for entry in answer} == pytest.approx(probabilities, abs=1e-5)

    (tmp_path / "serve.py").write_text(serve)
    port = reserve_port()
    server = subprocess.Popen([sys.executable, "serve.py", "hf/reviews", "reviews.onnx", str(port)])
    try:
        wait_until(lambda: listens(port), server)
        answers = ask(port, json.dumps({"texts": texts}).encode())
        for answer, probabilities in zip(answers, expected, strict=True):
            assert answer == pytest.approx(probabilities, abs=1e-5)
        assert len(ask(port, json.dumps({"texts": ["abd " * 100]}).encode())) == 1  # cut, not refused
        work = json.dumps({"texts": ["abd " * 100, *["a"] * 4000]}).encode()  # few bytes, and many rows of many tokens
        deep = b"[" * 100_000
        many = json.dumps({"texts": ["a"] * 100_000}).encode()
        for bad in (b"{", b"[]", b'{"text": "a"}', b'{"texts": [1]}', b'{"texts": "abc"}', work, deep, many):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask(port, bad)
    finally:
        server.kill()
        server.wait()
