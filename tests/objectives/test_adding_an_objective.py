"""The page on adding an objective: its code is trained as it is printed."""

import json
import sys

import pytest

from bertjax.runtime.errors import Untrusted
from bertjax.training.results import rescore
from tests import runs
from tests.objectives import example

FLAGS = [f"--config.tasks.bert.objective.kind={example.KIND}", "--config.tasks.bert.examples.kind=full_sentences"]


def test_it_is_short():
    assert 20 < len(example.code().strip().splitlines()) <= 60


@pytest.mark.slow
def test_it_learns_which_tokens_were_replaced(flags, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "mylab.replaced", raising=False)  # another test may have imported it
    example.write(tmp_path)
    workdir = f"--workdir={tmp_path / 'run'}"
    done = runs.finish(runs.start(*flags, *FLAGS, workdir, PYTHONPATH=f"{tmp_path}:."))
    assert done.returncode == 0, done.stderr
    assert f"--config.tasks.bert.objective.kind={example.KIND}" in example.PAGE.read_text()
    losses = [record["train/replaced_loss"] for record in runs.records(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < losses[0] - 0.1
    evaluated = json.loads((tmp_path / "run" / "summary.json").read_text())["eval"]
    assert set(evaluated) == {"replaced_loss", "replaced_accuracy", "replaced_precision", "replaced_recall"}

    export = str(tmp_path / "run" / "export")
    assert f"evaluate {tmp_path / 'run'} --trust-code" in done.stdout
    with pytest.raises(Untrusted, match="'mylab.replaced', which runs its code"):
        rescore.run(export)
    own = str(tmp_path / "run")
    trusted = runs.finish(runs.start(own, "--trust-code", "--json", module="evaluate", PYTHONPATH=f"{tmp_path}:."))
    assert json.loads(trusted.stdout)["eval"] == pytest.approx(evaluated, rel=1e-6), trusted.stderr
    resumed = runs.finish(runs.start(*flags, *FLAGS, workdir, PYTHONPATH=f"{tmp_path}:."))
    assert resumed.returncode == 0, resumed.stderr
