"""The code of docs/guides/ship.md, run on a small classifier: pipeline and HTTP server answer as bertjax does."""

import re
from pathlib import Path

import pytest

from bertjax.cli import convert
from bertjax.config import export
from bertjax.inference.predictor import Predictor
from tests.interop import models
from tests.serving.files import slow
from tests.serving.running import Server

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "ship.md"


@slow
def test_the_code_of_the_page_answers_as_bertjax_does(tmp_path, monkeypatch):
    model = models.fine_tuned("classification", models.trained())
    export.write(tmp_path / "ours", model)
    for target in ("hf/reviews", "reviews.onnx"):
        convert.run(tmp_path / "ours", tmp_path / target)
    [use] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(use, scope)
    [command] = re.findall(r"^python -m bertjax serve (.*) &$", PAGE.read_text(), re.MULTILINE)
    [body] = re.findall(r"^curl -d '(.*)' http://127.0.0.1:8000/predict$", PAGE.read_text(), re.MULTILINE)
    texts = ["abd ace", "bbe"]
    expected = [prediction["probabilities"] for prediction in Predictor(model).predict(texts)]
    for answer, probabilities in zip(scope["answers"], expected, strict=True):
        assert {entry["label"]: entry["score"] for entry in answer} == pytest.approx(probabilities, abs=1e-5)
    server = Server(tmp_path, command)
    for answer, probabilities in zip(server.answers_to(body.encode()), expected, strict=True):
        assert answer["probabilities"] == pytest.approx(probabilities, abs=1e-5)
    server.stop()
