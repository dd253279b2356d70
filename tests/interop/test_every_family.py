"""Every family with the tokenizer of its kind and every head: predict, ONNX and the way back answer as transformers."""

import importlib.util

import numpy as np
import pytest

pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

from bertjax.inference.description import TASKS  # noqa: E402
from tests.interop import foreign  # noqa: E402

TOLERANCE = 2e-4  # of logits up to 30
CASES = [
    ("bert", "multiple_choice"),
    ("albert", "span"),
    ("electra", "multi_label"),
    ("distilbert", "tagging"),
    ("roberta", "classification"),
    ("xlnet", "regression"),
    ("xlnet", "pretrained"),
    ("mobilebert", "pretrained"),
    ("xlm-roberta", "cross_encoder"),
    ("camembert", "classification"),
    ("mpnet", "pretrained"),
    ("modernbert", "classification"),
    ("deberta-v2", "classification"),
    *([("eurobert", "classification"), ("eurobert", "tagging")] if "eurobert" in foreign.FAMILIES else []),
]
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


def test_every_family_and_every_head_is_here():
    families, heads = (set(names) for names in zip(*CASES, strict=True))
    assert (families, heads) == (set(foreign.FAMILIES), set(foreign.HEADS))


@pytest.mark.slow
@pytest.mark.parametrize("family, head", CASES)
def test_answers_are_those_of_transformers(tmp_path, family, head):
    made = foreign.make(family, head, tmp_path / "theirs")
    reference = list(foreign.logits(made.tokenizer, made.model, head))
    assert max(np.ptp(values) for values in reference) > 0.1
    count = 0
    for ours, theirs in foreign.answers(made, head):
        count += 1
        if isinstance(theirs, np.ndarray):
            np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=1e-3)
        else:
            assert ours == theirs
    assert count
    back = foreign.logits_of_what_is_written_back(made, head, tmp_path / "back")
    assert foreign.difference(back, reference) < TOLERANCE
    if HAS_ONNX:
        files = foreign.logits_of_onnx(made, head, tmp_path / "model.onnx")
        assert foreign.difference(files, reference) < TOLERANCE
        if head in TASKS[:-1] or head == "cross_encoder":
            for ours, theirs in foreign.answers_of_file(head, tmp_path / "model.onnx", reference):
                np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=1e-3)
