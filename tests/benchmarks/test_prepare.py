"""The benchmark of preparing: every arm on a small corpus, and ratios within a round."""

import json

import pytest

from benchmarks import prepare

ARMS = "bare", "prepare", "near", "kept", "trained"


def test_ratios_are_those_of_a_round():
    seconds = {"bare": (1.0, 1.5), "prepare": (2.0, 5.0), "near": (3.0, 5.0), "kept": (1.0, 1.0), "trained": (9.0,)}
    lines = [
        {"kind": "unigram", "mb": 8, "arm": arm, "seconds": value, "characters": 3e6, "peak": 10**8, "disk": 0.5}
        for arm, values in seconds.items()
        for value in values
    ]
    [_, _, row] = prepare.markdown(lines).splitlines()
    assert row == (
        "| `unigram` | 8 MB | 0.9 M/s | 2.4 M/s | 40% (30% to 50%) | 1.25 (1.00 to 1.50) | 3.50 (2.00 to 5.00) "
        "| 100 MB | 100 MB | 0.50 |"
    )


@pytest.mark.slow
def test_every_arm_runs_and_its_line_is_kept(tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    prepare.main(["--sizes=2", "--rounds=1", f"--out={out}"])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["arm"] for line in lines] == list(ARMS) and min(line["seconds"] for line in lines) > 0
    assert "| `unigram` | 2 MB |" in capsys.readouterr().out
