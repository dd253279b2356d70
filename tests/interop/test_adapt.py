"""`configs/adapt.py` continues a model of every family: a folder of transformers goes in, and one comes out."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="folders of transformers need the extra [interop]")
transformers = pytest.importorskip("transformers", reason="folders of transformers need the extra [interop]")

from bertjax.cli import convert, evaluate  # noqa: E402
from bertjax.runtime import command_line  # noqa: E402
from tests import runs  # noqa: E402
from tests.interop import foreign, published  # noqa: E402

ADAPT = Path(__file__).parents[2] / "configs" / "adapt.py"
STEPS = 3
SHORT = {
    **{"stages.0.steps": STEPS, "stages.0.seq_len": 64, "stages.0.batch": 4, "optimizer.warmup_steps": 1},
    **{"optimizer.learning_rate": 1e-3, "eval.every": STEPS, "eval.rows": 8, "eval.samples": 0, "runtime.log_every": 1},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    lines = published.lines(240)
    path.write_text("\n\n".join("\n".join(lines[at : at + 6]) for at in range(0, len(lines), 6)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("family", foreign.FAMILIES)
def test_a_published_model_is_trained_further(family, corpus, tmp_path, capsys):
    made = foreign.make(family, "pretrained", tmp_path / "theirs")
    convert.run(made.folder, tmp_path / "model")
    flags = [f"--config.{name}={value}" for name, value in SHORT.items()]
    flags += [f"--config.data.corpus={corpus}", f"--config.data.store={tmp_path}/stores"]
    workdir = tmp_path / "run"
    assert runs.call(f"--config={ADAPT}:{tmp_path / 'model'}", *flags, f"--workdir={workdir}") == 0
    before, after = (scores(f"{workdir}@{step}", capsys) for step in (0, STEPS))
    summary = json.loads((workdir / "summary.json").read_text())["eval"]
    name = next(name for name in summary if name.endswith("_loss"))
    assert after[name] == pytest.approx(summary[name], rel=1e-4)
    assert after[name] < before[name]
    convert.run(workdir, tmp_path / "back")
    opened = type(made.model).from_pretrained(tmp_path / "back").eval()
    for path, values in made.model.state_dict().items():
        assert path in opened.state_dict() and opened.state_dict()[path].shape == values.shape
    inputs = foreign.rows(made.tokenizer, foreign.TEXTS, None)
    with torch.no_grad():
        old, new = (model(**inputs).logits.numpy() for model in (made.model, opened))
    assert np.isfinite(new).all() and 0 < np.abs(new - old).max()


def scores(model: str, capsys) -> dict[str, float]:
    """Return what `bertjax evaluate` scores."""
    capsys.readouterr()
    assert command_line.exit_code_of(lambda: evaluate.main([model, "--json", "--platform=cpu"])) == 0
    return json.loads(capsys.readouterr().out)["eval"]
