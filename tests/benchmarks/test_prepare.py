"""The benchmark of preparing: every arm on a small corpus, and ratios within a round."""

import json

import pytest

from benchmarks import prepare

ARMS = "bare", "prepare", "near", "kept", "trained"


@pytest.mark.slow
def test_every_arm_runs_and_its_line_is_kept(tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    prepare.main(["--sizes=2", "--rounds=1", f"--out={out}"])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["arm"] for line in lines] == list(ARMS) and min(line["seconds"] for line in lines) > 0
    assert "| `unigram` | 2 MB |" in capsys.readouterr().out
