"""Over training: the numbers of parts as series over steps, seeds side by side, and the loss with its interval."""

import json
import shutil

import jax
import numpy as np
import pytest

from bertjax.analysis.material import texts_material
from bertjax.analysis.part import Part, Result
from bertjax.analysis.parts.training import Training
from bertjax.analysis.subject import open_subjects
from bertjax.cli import analyze
from bertjax.runtime.command_line import exit_code_of

pytestmark = pytest.mark.slow


def numbers_at(step: int) -> dict:
    return {
        "corpus": {
            "share": step / 10,
            "by layer": [float(step), 2.0],
            "with embeddings": [0.0, None, float(step)],
            "matrix": [[step, 1, 2], [3, 4, 5]],
            "most": {"head": step, "interval": [0.0, step]},
            "examples": 50,  # always the same
            "curve": [1.0, 2.0, 3.0, float(step)],  # another length than that of layers
            "good": bool(step),
            "name": f"step {step}",
            "records": [{"loss": step}],
            "ragged": [[1.0], [1.0, 2.0]],
        }
    }


@pytest.fixture(scope="module")
def two_seeds(undisturbed, tmp_path_factory):
    """A finished run, and a copy that lacks its last checkpoint but one, as two seeds."""
    folder = tmp_path_factory.mktemp("seeds") / "small"
    for seed in (0, 1):
        shutil.copytree(undisturbed, folder / f"seed={seed}")
    shutil.rmtree(folder / "seed=1" / "checkpoints" / "90")
    return folder


@pytest.fixture(scope="module")
def checkpoints(two_seeds):
    return open_subjects([f"{two_seeds / f'seed={seed}'}@*" for seed in (0, 1)])


@pytest.fixture(scope="module")
def words():
    """Sentences of letters that the run has seen."""
    draw = np.random.default_rng(0)
    return texts_material([" ".join("".join(draw.choice(list("abcdefghij"), 3)) for _ in range(5)) for _ in range(20)])


@pytest.fixture(scope="module")
def result(checkpoints, words):
    part = Training()
    part.results = {
        "toy": Result({subject.label: {"texts": numbers_at(subject.step)["corpus"]} for subject in checkpoints}),
        "silent": Result({"words": 3}),
    }
    return part.run(checkpoints, [words])


def test_the_loss_is_that_of_single_examples(result, checkpoints, words):
    subject = next(subject for subject in checkpoints if subject.step == 80)
    encoded, total, weight = words.encoded(subject), 0.0, 0.0
    model, objective = encoded.objective.model(subject.encoder), encoded.objective
    lengths = encoded.ragged.lengths

    @jax.jit
    def of_example(params, batch):
        sums, _ = objective.terms(model, params, None, batch, jax.random.key(0), False)
        return sums["mlm"], objective.weights(batch)["mlm"]

    for index in range(len(encoded)):
        batch = encoded.batch(np.array([[index]]), 32, with_objective=True)
        own, count = of_example(subject.params, batch)
        total, weight = total + float(own), weight + float(count)
    assert lengths.max() <= 32
    loss = result.numbers["loss"]["texts"]["small (2 seeds)"]
    assert result.numbers["runs"] == {"small (2 seeds)": {"seeds": 2, "steps": [40, 80, 100]}}
    np.testing.assert_allclose(loss["mean"][1], total / weight, atol=1e-5)
    assert loss["low"] == loss["mean"] == loss["high"], "the second seed is a copy of the first"
    assert loss["mean"][2] < loss["mean"][0]


class Steps(Part):
    """A part whose number is the step."""

    name, title = "steps", "Steps"

    def run(self, subjects, materials, progress=None):
        return Result({subject.label: {"step": subject.step} for subject in subjects})


def test_the_page_of_a_run(two_seeds, tmp_path, monkeypatch, capsys):
    own = {"steps": f"{__name__}:Steps", "training": "bertjax.analysis.parts.training:Training"}
    for module in ("bertjax.analysis.parts", "bertjax.cli.analyze"):
        monkeypatch.setattr(f"{module}.PARTS", own)
    name, out = f"{two_seeds / 'seed=0'}@*", str(tmp_path / "report")
    arguments = [name, "--texts=abc def", "--texts=ghi jab", "--platform=cpu", f"--out={out}"]
    for parts in ("steps,training", "training"):  # those before it on the page, or all others
        assert exit_code_of(lambda parts=parts: analyze.main([*arguments, f"--parts={parts}"])) == 0
        numbers = json.loads((tmp_path / "report" / "analysis.json").read_text())["parts"]["training"]
        assert numbers["parts"]["steps"]["step"]["seed=0"]["mean"] == [40.0, 80.0, 90.0, 100.0]
        assert (tmp_path / "report" / "figures" / "training-steps.svg").exists()
    export = str(two_seeds / "seed=0" / "export")
    assert exit_code_of(lambda: analyze.main([export, *arguments[1:], "--parts=training"])) == 2
    assert "is not a checkpoint of a run; name RUN@* for all that it kept" in capsys.readouterr().err
