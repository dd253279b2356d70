"""The benchmark of ONNX in int8: the page shows the committed lines, and they are within the limits that it states."""

from pathlib import Path

from benchmarks import onnx_int8
from benchmarks.resumable import finished

ROOT = Path(__file__).parents[2]
LINES = finished(ROOT / "benchmarks" / "results" / "onnx_int8.jsonl")


def test_the_page_shows_the_committed_lines():
    assert onnx_int8.markdown(LINES) in (ROOT / "docs" / "guides" / "compress.md").read_text()


def test_int8_is_small_and_close_to_float32():
    whole, written, _ = LINES
    assert (whole["file"], written["file"]) == ("float32", "int8")
    assert written["share_of_bytes"] <= 0.30 and written["cosine_mean"] >= 0.99
    assert abs(written["spearman"] - whole["spearman"]) <= 0.01
    for size in onnx_int8.BATCHES:
        name = f"milliseconds_batch_{size}"
        assert all(ours < theirs for ours, theirs in zip(written[name], whole[name], strict=True)), (
            "each turn is faster"
        )


def test_masked_means_ignore_padding():
    class Tokens:
        cls_id, sep_id, pad_id = 1, 2, 0

    [batch] = onnx_int8.batches_of([[5], [6, 7, 8]], Tokens(), ("input_ids", "attention_mask"), 2)
    assert batch["input_ids"].tolist() == [[1, 5, 2, 0, 0], [1, 6, 7, 8, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]] and len(batch) == 2
