"""The labels of attention maps by eye: the committed scores are those of the rules of today."""

import json
from pathlib import Path

from benchmarks import attention_maps

FOLDER = Path(__file__).parents[2] / "benchmarks" / "results" / "attention_maps"


def test_the_committed_scores_are_those_of_the_rules():
    scores = attention_maps.score(FOLDER / "maps.npz", FOLDER / "labels.json")
    assert json.loads(json.dumps(scores)) == json.loads((FOLDER / "scores.json").read_text())
