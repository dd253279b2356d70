"""Settings of a fine-tuning that follow from the file and from the encoder."""

import pytest

from bertjax.config_file import load
from bertjax.training.resolve import fine_tuning_rate, open_feeds
from tests import labeled_files, runs

RECIPE = runs.CONFIG.parents[1] / "configs" / "finetune" / "classify.py"


@pytest.mark.parametrize("width, rate", [(256, 3e-4), (768, 1e-4), (1024, 7.5e-5)])
def test_narrow_encoders_have_higher_rates(width, rate):
    assert fine_tuning_rate(width) == rate


@pytest.mark.parametrize("epochs, steps", [(4.0, 300), (40.0, 400)])
def test_a_small_file_is_passed_more_often(undisturbed, tmp_path, epochs, steps):
    train, heldout = labeled_files.write(tmp_path)
    examples = "tasks.classify.examples"
    settings = [f"init_from={undisturbed / 'export'}", f"{examples}.train={train}", f"{examples}.heldout={heldout}"]
    config = load(str(RECIPE), [*settings, f"{examples}.text=sentence", f"stages.0.epochs={epochs}"])
    assert config.open_settings[-1] == "optimizer.learning_rate"
    resolved = open_feeds(config).config
    assert resolved.open_settings == ()
    (stage,) = resolved.stages
    assert stage.steps == pytest.approx(steps, rel=0.1) and stage.steps >= 300
    assert resolved.optimizer.learning_rate == fine_tuning_rate(32)
    assert resolved.optimizer.warmup_steps == stage.steps // 10
