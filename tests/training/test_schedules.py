"""Learning rate schedules: values, bounds, and segments of stages."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from bertjax.config.config import from_dict, to_dict
from bertjax.config.config_file import load
from bertjax.runtime.errors import UserError
from bertjax.training import stage_flops
from bertjax.training.config import Stage
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import fine_tuning_rate, open_feeds, resolve
from bertjax.training.schedule_kinds import Cosine, InverseSqrt, WarmupStableDecay
from bertjax.training.schedules import Linear, Schedule, WarmupSegment, learning_rate
from bertjax.training.setup import make_setups
from tests import labeled_files, runs

SCHEDULES = [Linear(), Cosine(), WarmupStableDecay(decay_steps=20), InverseSqrt()]


def rates(schedule: Schedule, *segments: WarmupSegment) -> np.ndarray:
    at = learning_rate(schedule, segments)
    return np.array([float(at(np.int32(step))) for step in range(sum(segment.steps for segment in segments))])


def test_cosine_equals_optax():
    theirs = optax.schedules.cosine_decay_schedule(2.0, decay_steps=60)
    values = rates(Cosine(), WarmupSegment(0, 100, 2.0, 40))
    np.testing.assert_allclose(values[:40], 2.0 * np.arange(1, 41) / 40, rtol=1e-6)
    np.testing.assert_allclose(values[40:], [theirs(step) for step in range(60)], rtol=1e-4, atol=1e-6)


def test_warm_up_stable_decay_is_a_trapezoid():
    values = rates(WarmupStableDecay(decay_steps=20), WarmupSegment(0, 100, 2.0, 40))
    np.testing.assert_allclose(values[:40], 2.0 * np.arange(1, 41) / 40, rtol=1e-6)
    np.testing.assert_allclose(values[40:80], 2.0, rtol=1e-6)
    np.testing.assert_allclose(values[80:], 2.0 * np.arange(20, 0, -1) / 20, rtol=1e-6)


def test_a_cosine_that_ends_nowhere_is_refused():
    with pytest.raises(UserError, match="end_step=80 must be above here=80, and at most the 100 steps"):
        Cosine(floor=0.1, end_step=80).check(80, 100, "here=80")
    Cosine(floor=0.1, end_step=81).check(80, 81, "here=80")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("warmup_steps", [0, 1, 40, 79])
def test_every_schedule_rises_once_to_its_peak_and_is_never_zero(schedule, warmup_steps):
    values = rates(schedule, WarmupSegment(0, 100, 2.0, warmup_steps))
    peak = int(np.argmax(values))
    assert values.max() == pytest.approx(2.0, rel=1e-6) and values.min() > 0
    assert (np.diff(values[: peak + 1]) > 0).all() and (np.diff(values[peak:]) <= 0).all()


@pytest.mark.parametrize("schedule", [*SCHEDULES, WarmupStableDecay(decay_steps=1)], ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("warmup_steps, steps", [(0, 1), (0, 2), (1, 2), (2, 3), (29, 30)])
def test_short_segments_reach_the_peak_too(schedule, warmup_steps, steps):
    try:
        schedule.check(warmup_steps, steps, "here")
    except UserError:
        assert isinstance(schedule, WarmupStableDecay)  # its decay has to fit after the warm-up
        return
    values = rates(schedule, WarmupSegment(0, steps, 2.0, warmup_steps))
    assert values.max() == pytest.approx(2.0, rel=1e-6) and values.min() > 0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
def test_a_stage_may_start_a_segment_of_its_own(schedule):
    first, second = WarmupSegment(0, 100, 2.0, 40), WarmupSegment(100, 50, 0.5, 10)
    alone = second._replace(first=0)
    values = rates(schedule, first, second)
    np.testing.assert_array_equal(values, [*rates(schedule.before_another, first), *rates(schedule, alone)])
    compiled = jax.jit(jax.vmap(learning_rate(schedule, [first, second])))(np.arange(150))
    np.testing.assert_allclose(compiled, values, rtol=1e-5)


RECIPE = runs.CONFIG.parents[1] / "configs" / "finetune" / "classify.py"


@pytest.mark.slow
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
    cost = stage_flops.per_step(make_setups(resolved, vocab_size)[0], 0)
    assert abs(resolved.stages[0].steps * cost - 3e10) <= cost / 2
    stages = tuple(Stage(10, 32, 8, tasks=(name,)) for name in tasks)
    [one_task, _] = make_setups(dataclasses.replace(resolved, stages=stages), vocab_size)
    mlm, spans = (stage_flops.per_step(one_task, stage) for stage in range(2))
    assert mlm < spans and cost == pytest.approx((mlm + 2 * spans) / 3)
