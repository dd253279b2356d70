"""The published settings of configs/finetune/glue.py: they load, and are those of their sources."""

from pathlib import Path

import pytest

from bertjax.config.config_file import load

GLUE = Path(__file__).parents[1] / "configs" / "finetune" / "glue.py"


def settings(variant: str):
    return load(f"{GLUE}:{variant}", ["model.preset=base"])


def test_settings_are_those_of_the_sources():
    rte, qqp = settings("RTE-roberta"), settings("QQP-roberta")
    (stage,) = rte.stages
    assert (stage.epochs, stage.examples, rte.optimizer.learning_rate, rte.optimizer.warmup_share) == (
        10,
        16,
        2e-5,
        0.06,
    )
    assert (rte.optimizer.weight_decay, rte.optimizer.b2, rte.optimizer.clip_norm) == (0.1, 0.98, 0.0)
    # The published steps: 28,318 of 113,272 warm up.
    assert qqp.optimizer.warmup_share == pytest.approx(28_318 / 113_272, abs=1e-4)

    qqp = settings("QQP-albert")
    (stage,) = qqp.stages
    assert (stage.steps, stage.examples, qqp.optimizer.warmup_steps, qqp.optimizer.learning_rate) == (
        14_000,
        128,
        1_000,
        5e-5,
    )
    assert (qqp.model.dropout, qqp.model.attention_dropout) == (0.1, 0.1)
    assert settings("MNLI-albert").model.dropout == 0.0

    base, large = settings("STS-B-electra"), settings("MRPC-electra_large")
    assert (base.stages[0].epochs, base.optimizer.learning_rate, base.optimizer.layer_decay) == (10, 1e-4, 0.8)
    assert (large.stages[0].epochs, large.optimizer.learning_rate, large.optimizer.layer_decay) == (3, 5e-5, 0.9)
    assert base.optimizer.layer_decay_offset == large.optimizer.layer_decay_offset == 2
    assert not base.optimizer.bias_correction and not large.optimizer.bias_correction

    assert base.model.pooler_activation == large.model.pooler_activation == "gelu"

    mnli = settings("MNLI-xlnet")
    assert (mnli.stages[0].steps, mnli.stages[0].examples, mnli.optimizer.layer_decay) == (10_000, 128, 1.0)
    lora = settings("MRPC-lora")
    assert (lora.lora.rank, lora.lora.alpha, lora.stages[0].epochs, lora.stages[0].examples) == (8, 16.0, 30, 128)
