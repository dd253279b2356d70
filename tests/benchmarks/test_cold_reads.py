"""The benchmark of large corpora: every arm on a small one."""

import json
from pathlib import Path

import pytest

from benchmarks import cold_reads


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes with /proc")
def test_every_arm_runs_and_its_line_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cold_reads, "PLANNED_SENTENCES", 5000)
    monkeypatch.setattr(cold_reads, "FORMATS", {"segment_pairs": cold_reads.FORMATS["segment_pairs"]})
    out = tmp_path / "lines.jsonl"
    cold_reads.main(["--gb=0.01", "--rows=300", "--mb=1", "--rounds=1", f"--out={out}", f"--folder={tmp_path}"])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["arm"] for line in lines] == ["rows"] * 2 + ["planning"] * 2 + ["documents"] * 2
    assert min(line["seconds"] for line in lines) > 0
    assert "random rows of `segment_pairs`, a cold store of 0.01 GB, advice: yes" in capsys.readouterr().out
