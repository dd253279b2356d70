"""The benchmark of the recipe for labeled files: the page shows the committed lines; the simple arm is right."""

import json
from pathlib import Path

import pytest

from benchmarks import classify
from benchmarks.resumable import finished

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_committed_lines():
    table = classify.markdown(finished(ROOT / "benchmarks" / "results" / "classify.jsonl"))
    assert table in (ROOT / "docs" / "results" / "benchmarks.md").read_text()


def test_a_fifth_of_the_questions_of_each_article_is_held_out(tmp_path):
    (tmp_path / "qa").mkdir()
    articles = [
        {"paragraphs": [{"qas": [{"question": f"{name} {number}"} for number in range(10)]}]}
        for name in ("river", "king")
    ]
    (tmp_path / "qa" / "xquad.en.json").write_text(json.dumps({"data": articles}))
    job = classify.Job("XQuAD", tmp_path, tmp_path)
    assert job.labels("heldout") == ["article 00"] * 2 + ["article 01"] * 2 and len(job.train) == 16
    assert job.majority() == 0.5 and job.score(classify.simple(job)) == 1.0


def test_the_simple_tagger_takes_the_most_frequent_tag_of_a_word(tmp_path):
    (tmp_path / "conll2003").mkdir()
    train = "ann B-PER x\nran O x\n\nann B-PER x\n\nann B-LOC x\n"
    (tmp_path / "conll2003" / "train.txt").write_text(train)
    (tmp_path / "conll2003" / "valid.txt").write_text("ann B-PER x\nsaw O x\nann B-LOC x\n")
    job = classify.Job("CoNLL-2003", tmp_path, tmp_path)
    predictions = classify.simple(job)
    assert predictions == [["B-PER", "O", "B-PER"]]
    assert job.score(predictions) == pytest.approx(0.5), "one of two entities"
