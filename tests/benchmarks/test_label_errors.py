"""The benchmark of probable label errors: the page shows the committed lines, and the flips are those it counts."""

import gzip
import json
from pathlib import Path

from benchmarks import label_errors
from benchmarks.resumable import finished

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_committed_lines():
    table = label_errors.markdown(finished(ROOT / "benchmarks" / "results" / "label_errors.jsonl"))
    assert table in (ROOT / "docs" / "guides" / "label_errors.md").read_text()


def test_a_hundred_labels_of_two_thousand_are_flipped(tmp_path):
    rows = [f"text {number}\t{number % 3 % 2}" for number in range(2500)]
    path = tmp_path / "train.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(["sentence\tlabel", *rows, ""]).encode()))
    flipped = label_errors.noisy(path, 1, tmp_path / "noisy.tsv")
    lines = (tmp_path / "noisy.tsv").read_text().splitlines()
    assert len(lines) == 2001 and lines[0] == "sentence\tlabel" and len(flipped) == 100
    assert {number for number, line in enumerate(lines[1:], 2) if line not in set(rows)} == flipped
    assert (
        label_errors.noisy(path, 1, tmp_path / "again.tsv")
        == flipped
        != label_errors.noisy(path, 2, tmp_path / "b.tsv")
    )


def test_the_mean_is_that_of_all_seeds():
    def line(seed: int, own: int, other: int) -> dict:
        first = {"flips_in_first_100": other}
        cleanlab = {"cleanlab_self_confidence": first, "cleanlab_normalized_margin": first}
        return {"seed": seed, "flips_in_first_100": own, "accuracy": {"mean": 0.8}, **cleanlab}

    lines = json.loads(json.dumps([line(0, 60, 50), line(1, 50, 52)]))
    assert label_errors.markdown(lines).splitlines()[-1] == "| mean | 55 | 51 | 51 | 0.8 |"
