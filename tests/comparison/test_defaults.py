"""The settings that differ from their defaults: by the name of their override, each with its own class's default."""

import dataclasses

from bertjax.analysis.run_data import changes_of
from bertjax.config.config import Config, from_dict
from bertjax.objectives.base import Objective


def test_defaults_do_not_differ():
    assert changes_of(Config()) == {}


def test_settings_that_differ():
    changes = changes_of(
        from_dict(
            {"seed": 3, "model": {"layers": 2}, "optimizer": {"learning_rate": 0.5}, "runtime": {"dtype": "float32"}}
        )
    )
    defaults = Config()
    assert changes == {
        "seed": (3, 0),
        "model.layers": (2, defaults.model.layers),
        "optimizer.learning_rate": (0.5, defaults.optimizer.learning_rate),
        "runtime.dtype": ("float32", "auto"),
    }


def test_every_stage_is_compared_with_the_default_stage():
    stage = Config().stages[0]
    changes = changes_of(from_dict({"stages": [{}, {"seq_len": 64, "batch": 8}]}))
    assert changes == {"stages.1.seq_len": (64, stage.seq_len), "stages.1.batch": (8, stage.batch)}


def test_a_kind_is_compared_with_the_defaults_of_its_class():
    changes = changes_of(
        from_dict({"tasks": {"mine": {"objective": {"kind": "mlm"}, "examples": {"kind": "full_sentences"}}}})
    )
    assert changes == {
        "tasks.mine.objective.kind": ("mlm", "bert"),
        "tasks.mine.examples.kind": ("full_sentences", "segment_pairs"),
    }


@dataclasses.dataclass(frozen=True)
class Part:
    size: int
    rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class OfParts(Objective):
    """An objective whose setting has no default."""

    parts: tuple[Part, ...] = dataclasses.field(kw_only=True)


def test_a_setting_without_a_default_is_compared_with_the_defaults_of_its_entries():
    task = dataclasses.replace(Config().task, objective=OfParts(parts=(Part(1), Part(2, 0.1))))
    changes = changes_of(dataclasses.replace(Config(), tasks={"mine": task}))
    assert {name: change for name, change in changes.items() if ".parts." in name} == {
        "tasks.mine.objective.parts.0.size": (1, None),
        "tasks.mine.objective.parts.1.size": (2, None),
        "tasks.mine.objective.parts.1.rate": (0.1, 0.5),
    }


def test_the_names_are_those_of_overrides():
    config = from_dict({"tasks": {"bert": {"objective": {"kind": "mlm", "masking": {"kind": "words", "rate": 0.3}}}}})
    assert changes_of(config)["tasks.bert.objective.masking.rate"] == (0.3, 0.15)
