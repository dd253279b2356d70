"""`configs/adapt.py` continues a model of every family: a folder of transformers goes in, and one comes out."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="folders of transformers need the extra [interop]")
transformers = pytest.importorskip("transformers", reason="folders of transformers need the extra [interop]")

if not hasattr(transformers, "EuroBertConfig"):
    pytest.skip("the newest transformers has every family, and once is enough", allow_module_level=True)

from safetensors.numpy import load_file  # noqa: E402

from bertjax.cli import convert, evaluate  # noqa: E402
from bertjax.interop import huggingface  # noqa: E402
from bertjax.runtime import command_line  # noqa: E402
from tests import runs  # noqa: E402
from tests.interop import foreign, models, published  # noqa: E402

ADAPT = Path(__file__).parents[2] / "configs" / "adapt.py"
STEPS = 6
SHORT = {
    **{"stages.0.steps": STEPS, "stages.0.seq_len": 64, "stages.0.batch": 8, "optimizer.warmup_steps": 1},
    **{"optimizer.learning_rate": 3e-3, "eval.every": STEPS, "eval.rows": 8, "eval.samples": 0},
}
# XLM-R and CamemBERT are read as RoBERTa, and written as it.
FAMILIES = [family for family in foreign.FAMILIES if family not in ("xlm-roberta", "camembert")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    lines = published.lines(240)
    path.write_text("\n\n".join("\n".join(lines[at : at + 6]) for at in range(0, len(lines), 6)))
    return path


def adapted(folder: Path, corpus: Path, tmp_path: Path, **settings) -> Path:
    """Convert a folder of transformers, train it further and convert it back; return the workdir."""
    convert.run(folder, tmp_path / "model")
    flags = [f"--config.{name}={value}" for name, value in (SHORT | settings).items()]
    flags += [f"--config.data.corpus={corpus}", f"--config.data.store={tmp_path}/stores"]
    workdir = tmp_path / "run"
    assert runs.call(f"--config={ADAPT}:{tmp_path / 'model'}", *flags, f"--workdir={workdir}") == 0
    convert.run(workdir, tmp_path / "back")
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_model_is_trained_further(family, corpus, tmp_path, capsys):
    """From a folder of transformers to one that its class opens, with all of its weights and other logits."""
    made = foreign.make(family, "pretrained", tmp_path / "theirs")
    workdir = adapted(made.folder, corpus, tmp_path)
    opened, info = type(made.model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = foreign.rows(made.tokenizer, foreign.TEXTS, None)
    with torch.no_grad():
        old, new = (model.eval()(**inputs).logits.numpy() for model in (made.model, opened))
    assert np.isfinite(new).all() and 1e-3 < np.abs(new - old).max()
    if family == "modernbert":  # the run keeps the model as it came, and its held-out loss was higher on the same rows
        before, after = (scores(capsys, f"{workdir}@{step}") for step in (0, STEPS))
        summary = json.loads((workdir / "summary.json").read_text())["eval"]
        assert after == pytest.approx(summary["mlm_loss"], rel=1e-5) and after < before - 0.1


@pytest.mark.slow
def test_so_is_a_model_that_transformers_lacks(tmp_path):
    """Its files have the tensors of those that came, with other values."""
    made = models.make(models.CLASSES["neobert"]["NeoBERTLMHead"], models.trained(), "neobert")
    huggingface.write(tmp_path / "theirs", made)
    adapted(tmp_path / "theirs", runs.write_corpus(tmp_path / "corpus.txt"), tmp_path, **{"stages.0.seq_len": 20})
    old, new = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    assert {path: values.shape for path, values in old.items()} == {path: values.shape for path, values in new.items()}
    assert any((old[path] != new[path]).any() for path in old)


def scores(capsys, *arguments: str) -> float:
    """Return the loss that `bertjax evaluate` prints."""
    capsys.readouterr()
    assert command_line.exit_code_of(lambda: evaluate.main([*arguments, "--json", "--platform=cpu"])) == 0
    return json.loads(capsys.readouterr().out)["eval"]["mlm_loss"]
