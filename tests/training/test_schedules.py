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
from bertjax.training.program import Program
from bertjax.training.resolve import fine_tuning_rate, open_feeds, resolve
from bertjax.training.schedule_kinds import Cosine, InverseSqrt, OneCycle, WarmupStableDecay
from bertjax.training.schedules import Linear, Schedule, WarmupSegment, learning_rate
from tests import labeled_files, runs

SCHEDULES = [Linear(), OneCycle(), Cosine(), WarmupStableDecay(decay_steps=20), InverseSqrt()]


def rates(schedule: Schedule, *segments: WarmupSegment) -> np.ndarray:
    at = learning_rate(schedule, segments)
    return np.array([float(at(np.int32(step))) for step in range(sum(segment.steps for segment in segments))])


@pytest.mark.parametrize(
    "warmup_steps, expected",
    [
        (4, [0.5, 1.0, 1.5, 2.0, 2.0, 5 / 3, 4 / 3, 1.0, 2 / 3, 1 / 3]),
        (0, [2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2]),
        (1, [2.0, 2.0, 16 / 9, 14 / 9, 12 / 9, 10 / 9, 8 / 9, 6 / 9, 4 / 9, 2 / 9]),
    ],
)
def test_linear(warmup_steps, expected):
    np.testing.assert_allclose(rates(Linear(), WarmupSegment(0, 10, 2.0, warmup_steps)), expected, rtol=1e-6)


def test_one_cycle_starts_at_a_hundredth_and_ends_at_a_hundredth_of_that():
    values = rates(OneCycle(), WarmupSegment(0, 101, 2.0, 40))
    np.testing.assert_allclose(values[[0, 20, 40, 70, 100]], [0.02, 1.01, 2.0, 1.0001, 2e-4], rtol=1e-5)
    np.testing.assert_allclose(np.diff(values[:41]), 1.98 / 40, rtol=1e-4)
    np.testing.assert_allclose(np.diff(values[40:]), -1.9998 / 60, rtol=1e-4)


def test_cosine_equals_optax():
    theirs = optax.schedules.cosine_decay_schedule(2.0, decay_steps=60)
    values = rates(Cosine(), WarmupSegment(0, 100, 2.0, 40))
    np.testing.assert_allclose(values[:40], 2.0 * np.arange(1, 41) / 40, rtol=1e-6)
    np.testing.assert_allclose(values[40:], [theirs(step) for step in range(60)], rtol=1e-4, atol=1e-6)


def test_a_cosine_may_end_early_at_a_floor():
    """NeoBERT (Le Breton et al., 2025, section 3.3): to a tenth over 90% of the steps, and constant from then on."""
    values = rates(Cosine(floor=0.1, end_step=80), WarmupSegment(0, 100, 2.0, 40))
    theirs = optax.schedules.cosine_decay_schedule(2.0, decay_steps=40, alpha=0.1)
    np.testing.assert_allclose(values[40:], [theirs(step) for step in range(60)], rtol=1e-4)
    np.testing.assert_allclose(values[80:], 0.2, rtol=1e-6)


def test_warm_up_stable_decay_is_a_trapezoid():
    values = rates(WarmupStableDecay(decay_steps=20), WarmupSegment(0, 100, 2.0, 40))
    np.testing.assert_allclose(values[:40], 2.0 * np.arange(1, 41) / 40, rtol=1e-6)
    np.testing.assert_allclose(values[40:80], 2.0, rtol=1e-6)
    np.testing.assert_allclose(values[80:], 2.0 * np.arange(20, 0, -1) / 20, rtol=1e-6)


def test_a_decay_of_one_minus_the_root_ends_at_its_floor():
    """Haegele et al. (2024), section 3.2: 1 - sqrt((n - (N - N_decay)) / N_decay), above a floor of a tenth."""
    schedule = WarmupStableDecay(decay_steps=25, decay="1-sqrt", floor=0.1)
    values = rates(schedule, WarmupSegment(0, 100, 2.0, 40))
    np.testing.assert_allclose(values[40:76], 2.0, rtol=1e-6)
    falling = 1 - np.sqrt((np.arange(76, 100) - 75) / 25)
    np.testing.assert_allclose(values[76:], 2.0 * (0.1 + 0.9 * falling), rtol=1e-5)


def test_constants_of_two_phases_come_before_the_decay_of_the_last():
    """ModernBERT (Warner et al., 2024, section 2.2): 8e-4, then 3e-4, and at the end 1 - sqrt to a thousandth."""
    schedule = WarmupStableDecay(decay_steps=4, decay="1-sqrt", floor=0.001)
    values = rates(schedule, WarmupSegment(0, 8, 8e-4, 2), WarmupSegment(8, 10, 3e-4, 0))
    np.testing.assert_allclose(values[:8], [4e-4, *[8e-4] * 7], rtol=1e-6)
    np.testing.assert_allclose(values[8:15], 3e-4, rtol=1e-6)  # the first step of a decay has still all of the rate
    golden = [1.5015e-4, 8.80801e-5, 4.04522e-5]  # 3e-4 (0.001 + 0.999 (1 - sqrt(k / 4))) for k = 1, 2, 3
    np.testing.assert_allclose(values[15:], golden, rtol=1e-5)


def test_a_cosine_that_ends_nowhere_is_refused():
    with pytest.raises(UserError, match="end_step=80 must be above here=80, and at most the 100 steps"):
        Cosine(floor=0.1, end_step=80).check(80, 100, "here=80")
    Cosine(floor=0.1, end_step=81).check(80, 81, "here=80")


def test_inverse_sqrt_is_the_rate_of_the_transformer():
    """Vaswani et al. (2017), equation 3, with a peak instead of the root of the width."""
    step = np.arange(1, 101)
    expected = 2.0 * np.sqrt(25) * np.minimum(step**-0.5, step * 25**-1.5)
    np.testing.assert_allclose(rates(InverseSqrt(), WarmupSegment(0, 100, 2.0, 25)), expected, rtol=1e-6)


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
    alone = dataclasses.replace(second, first=0)
    values = rates(schedule, first, second)
    np.testing.assert_array_equal(values, [*rates(schedule.before_another, first), *rates(schedule, alone)])
    compiled = jax.jit(jax.vmap(learning_rate(schedule, [first, second])))(np.arange(150))
    np.testing.assert_allclose(compiled, values, rtol=1e-5)


@pytest.mark.parametrize(
    "schedule, warmup_steps, message",
    [
        (Linear(), 100, "here=100 must be below the 100 steps that the learning rate has to rise and fall; lower it"),
        (OneCycle(), 101, "here=101 must be below the 100 steps"),
        (WarmupStableDecay(decay_steps=20), 81, "here=81 and optimizer.schedule.decay_steps=20 are more than the 100"),
    ],
)
def test_settings_that_do_not_fit(schedule, warmup_steps, message):
    with pytest.raises(UserError, match=message):
        schedule.check(warmup_steps, 100, f"here={warmup_steps}")
    schedule.check(warmup_steps - 2, 100, "here")


RECIPE = runs.CONFIG.parents[1] / "configs" / "finetune" / "classify.py"


@pytest.mark.parametrize("width, rate", [(256, 1.5e-4), (384, 1e-4), (768, 5e-5)])
def test_narrow_encoders_have_higher_rates(width, rate):
    assert fine_tuning_rate(width) == rate


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
    cost = stage_flops.per_step(Program(resolved, vocab_size), 0)
    assert abs(resolved.stages[0].steps * cost - 3e10) <= cost / 2
    stages = tuple(Stage(10, 32, 8, tasks=(name,)) for name in tasks)
    one_task = Program(dataclasses.replace(resolved, stages=stages), vocab_size)
    mlm, spans = (stage_flops.per_step(one_task, stage) for stage in range(2))
    assert mlm < spans and cost == pytest.approx((mlm + 2 * spans) / 3)
