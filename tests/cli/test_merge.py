"""The mean of several models: its parameters, its summary, and what is refused."""

import jax
import numpy as np
import pytest

from bertjax.cli import extend, merge
from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.models import vocabulary
from bertjax.runtime import command_line
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError
from tests import runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(flags, tmp_path_factory):
    """A run of which checkpoints 10, 20 and 30 are kept."""
    workdir = tmp_path_factory.mktemp("merge") / "run"
    kept = ["--config.stages.0.steps=30", "--config.runtime.save_every=10", "--config.runtime.keep=3"]
    assert runs.call(*flags, *kept, f"--workdir={workdir}") == 0
    return workdir


def test_checkpoints_of_a_run_are_averaged(run, tmp_path, capsys):
    names = [f"{run}@{step}" for step in (10, 20, 30)]
    assert command_line.exit_code_of(lambda: merge.main([*names, f"--to={tmp_path / 'mean'}"])) == 0
    assert capsys.readouterr().out.splitlines() == [
        "merged  3 models",
        f"export  {tmp_path / 'mean'}",
        f"next    {command('evaluate', str(tmp_path / 'mean'), '--corpus=CORPUS')}",
    ]
    merged = export.read(tmp_path / "mean")

    def leaves(params: dict) -> list[np.ndarray]:
        return jax.tree.leaves(vocabulary.cut(params, merged.encoder))  # an export has no padding

    own_leaves = [leaves(SavedModel(name).export.params) for name in names]
    for mean, *own in zip(leaves(merged.params), *own_leaves, strict=True):
        assert mean.dtype == np.float32
        np.testing.assert_allclose(mean, np.mean(np.stack(own).astype(np.float64), axis=0), rtol=1e-6, atol=1e-9)
    assert merged.numbers == {"merged_from": ["run@10", "run@20", "run@30"]}  # and no path of this machine


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "one model has nothing to be averaged with"),
        (["RUN@10"], "is named twice; name each model once"),
        (["LONG"], "differ in model.max_positions (32, 64); name models of one architecture"),
        (["nowhere"], "'nowhere' does not exist"),
    ],
)
def test_what_cannot_be_averaged_is_refused(run, tmp_path, capsys, others, message):
    if others == ["LONG"]:
        extend.run(f"{run}@10", tmp_path / "long", max_positions=64)
    names = [name.replace("RUN", str(run)).replace("LONG", str(tmp_path / "long")) for name in ["RUN@10", *others]]
    assert command_line.exit_code_of(lambda: merge.main([*names, f"--to={tmp_path / 'mean'}"])) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line and not (tmp_path / "mean").exists()


def test_other_heads_and_tokenizers_are_refused(run, tmp_path):
    model = SavedModel(f"{run}@10").export
    export.write(tmp_path / "headless", model._replace(params={"encoder": model.params["encoder"]}))
    with pytest.raises(UserError, match="have different heads \\(heads/"):
        merge.run([f"{run}@10", tmp_path / "headless"], tmp_path / "mean")
