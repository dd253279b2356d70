"""Settings of a fine-tuning that follow from the file and from the encoder."""

import dataclasses

import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.config.config_file import load
from bertjax.runtime.errors import UserError
from bertjax.training import stage_flops
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds
from bertjax.training.program import Program
from bertjax.training.resolve import fine_tuning_rate, open_feeds, resolve
from tests import labeled_files, runs

RECIPE = runs.CONFIG.parents[1] / "configs" / "finetune" / "classify.py"


@pytest.mark.parametrize("width, rate", [(256, 1.5e-4), (384, 1e-4), (768, 5e-5)])
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


def test_a_budget_of_operations_becomes_steps(store):
    """Two tasks take turns, one of which costs more; the stage executes its budget to within half a mean step."""
    tasks = {
        "mlm": {"objective": {"kind": "mlm"}, "examples": {"kind": "full_sentences"}, "row_examples": 1},
        "spans": {"objective": {"kind": "span_boundary"}, "examples": {"kind": "full_sentences"}, "weight": 2.0},
    }
    config = from_dict(to_dict(load(str(runs.CONFIG))) | {"tasks": tasks})
    config = dataclasses.replace(config, stages=(Stage(flops=3e10, seq_len=32, batch=8), Stage(10, 32, 8)))
    assert config.open_settings == ("stages.0.flops",)
    resolved = resolve(Feeds(config, store)).config
    assert resolved.stages[1] == config.stages[1] and resolved.stages[0].flops == 3e10
    with pytest.raises(UserError, match="stages.0.flops=1 is less than two steps of [0-9.e+]+ FLOPs; allow more, or"):
        resolve(Feeds(dataclasses.replace(config, stages=(Stage(flops=1.0, seq_len=32, batch=8),)), store))
    vocab_size = store.tokenizer.vocab_size
    cost = stage_flops.per_step(Program(resolved, vocab_size), 0)
    assert abs(resolved.stages[0].steps * cost - 3e10) <= cost / 2
    stages = tuple(Stage(10, 32, 8, tasks=(name,)) for name in tasks)
    one_task = Program(dataclasses.replace(resolved, stages=stages), vocab_size)
    mlm, spans = (stage_flops.per_step(one_task, stage) for stage in range(2))
    assert mlm < spans and cost == pytest.approx((mlm + 2 * spans) / 3)
