"""The fine-tuning benchmark without PyTorch: both arms get the same recipe, and their scores the same code."""

import pytest

from benchmarks import finetuning, resumable


@pytest.mark.slow
def test_our_arm_runs_and_a_second_call_has_nothing_to_do(tmp_path, capsys):
    flags = ["--smoke", "--tasks=STS-B,CoNLL-2003", "--arms=bertjax", f"--out={tmp_path / 'out.jsonl'}"]
    assert finetuning.main(flags) == 0
    lines = resumable.finished(tmp_path / "out.jsonl")
    assert [(entry["task"], entry["arm"]) for entry in lines] == [(task, "bertjax") for task in ("STS-B", "CoNLL-2003")]
    for entry in lines:
        assert entry["score"] == entry["scores"][entry["metric"]] and entry["updates"] > 0
        assert 0.0 < entry["train_seconds"] < entry["wall_seconds"]
    assert "| STS-B | 64 | bertjax |" in capsys.readouterr().out
    assert finetuning.main(flags) == 0
    assert resumable.finished(tmp_path / "out.jsonl") == lines
