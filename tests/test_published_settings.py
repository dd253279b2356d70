"""The published settings of configs/finetune/glue.py: they load, and are those of their sources."""

from pathlib import Path

import pytest
from flax.traverse_util import flatten_dict

from bertjax.config.config_file import load
from bertjax.interop import families
from bertjax.objectives.finetuning.classification import Classification
from bertjax.runtime.errors import UserError
from tests import batches

GLUE = Path(__file__).parents[1] / "configs" / "finetune" / "glue.py"
STYLED = {
    "roberta": ("MNLI", "QNLI", "QQP", "RTE", "SST-2", "MRPC", "CoLA", "STS-B"),
    "albert": ("CoLA", "STS-B", "SST-2", "MNLI", "QNLI", "QQP", "RTE", "MRPC", "WNLI"),
    "electra": ("CoLA", "STS-B", "SST-2", "MNLI", "QNLI", "QQP", "RTE", "MRPC", "WNLI"),
    "electra_large": ("RTE", "MRPC"),
    "xlnet": ("MNLI", "STS-B"),
    "lora": ("MNLI", "QNLI", "QQP", "RTE", "MRPC", "STS-B"),
}


def settings(variant: str):
    return load(f"{GLUE}:{variant}", ["model.preset=base"])


@pytest.mark.parametrize("style, tasks", STYLED.items(), ids=STYLED)
def test_a_style_changes_neither_task_nor_data(style, tasks):
    for task in tasks:
        plain, styled = settings(task), settings(f"{task}-{style}")
        assert styled.tasks == plain.tasks and styled.stages[0].seq_len == plain.stages[0].seq_len
        assert styled.optimizer != plain.optimizer


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


@pytest.mark.parametrize("variant", ["", ":base", ":large", ":smoke"])
def test_transformers_holds_classifiers_of_every_electra(variant):
    """The activation of their pooler is that of the class of ELECTRA, which fine-tuning keeps."""
    recipe = load(f"{GLUE.parents[1] / 'electra_small.py'}{variant}", [])
    model = recipe.model
    width, activation = model.embeddings.width and 8, model.pooler_activation
    encoder = batches.ENCODER.replace({"embeddings.width": width, "pooler_activation": activation})
    flat = flatten_dict(batches.param_shapes(Classification(classes=("a", "b")), encoder), sep="/")
    assert families.of_model(encoder, flat, pad_id=0).title == "ELECTRA"


@pytest.mark.parametrize(
    "variant, message",
    [
        ("RTE-xlnet", "RTE-xlnet has no published settings; choose a task among MNLI, STS-B"),
        ("MNL", "name a task: CoLA, SST-2, "),
        ("MNL-roberta", "name a task: CoLA, SST-2, "),
    ],
)
def test_other_variants_are_refused(variant, message):
    with pytest.raises(UserError, match=message):
        settings(variant)
