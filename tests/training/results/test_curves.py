"""Training curves: panels, gaps, and the reference curve."""

import json

import pytest
from matplotlib import image

from bertjax.training.results import curves
from bertjax.training.run.workdir import Workdir, append_jsonl

RECORDS = [
    {"step": step, "train/mlm_loss": 9.0 - step, "train/mlm_accuracy": step / 10, "eval/heldout/mlm_loss": 9.5 - step}
    for step in (1, 2, 3)
]


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    return Workdir.at(tmp_path)


def drawn(workdir, records, name=""):
    for record in records:
        append_jsonl(workdir.metrics, record)
    curves.draw(workdir.metrics, workdir.curves, name)
    return image.imread(workdir.curves)


def test_a_panel_for_every_loss_of_a_mixture(workdir):
    """Both tasks have one of the same name."""
    records = [{"step": 1, "train/a/mlm_loss": 1.0, "eval/heldout/b/mlm_loss": 2.0}]
    assert curves.losses_among(curves.metrics_in(records)) == ["a/mlm_loss", "b/mlm_loss"]
    assert drawn(workdir, records).shape[1] == 1200


def test_the_reference_of_a_configuration_is_drawn(workdir, tmp_path, monkeypatch):
    plain = drawn(workdir, RECORDS)
    band = {"step": [1, 2, 3], "mean": [8.0, 7.0, 6.0], "low": [7.5, 6.5, 5.5], "high": [8.5, 7.5, 6.5]}
    (tmp_path / "known.json").write_text(json.dumps({"seeds": 3, "mlm_loss": band}))
    monkeypatch.setattr(curves, "REFERENCES", tmp_path)
    assert curves.reference_of("unknown") is None
    curves.draw(workdir.metrics, workdir.curves, "known")
    with_reference = image.imread(workdir.curves)
    half = plain.shape[1] // 2
    assert (plain[:, :half] != with_reference[:, :half]).any()
    assert (plain[:, half + 20 :] == with_reference[:, half + 20 :]).all()
