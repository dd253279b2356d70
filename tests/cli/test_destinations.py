"""What a model can be converted to is known before it is trained, and is what the converters then do."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.cli.destinations import ONNX, SENTENCE_TRANSFORMERS, TRANSFORMERS, destinations_of
from bertjax.config import config_file
from bertjax.config.config import to_dict
from bertjax.config.export import Export, exported
from bertjax.config.opening import SavedModel
from bertjax.config.private_paths import without_teachers
from bertjax.interop import huggingface
from bertjax.objectives.wrapper import rewrapped
from bertjax.runtime.errors import UserError
from bertjax.training.program import Program

LEFT_TO_RIGHT = {ONNX: "model.direction=left_to_right", TRANSFORMERS: "no head 'clm'"}


@pytest.mark.parametrize(
    "recipe, overrides, refused",
    [
        ("finetune/classify:cls", [], {}),
        ("finetune/classify:regression", ["tasks.classify.objective.pooling=cls"], {}),
        (
            "finetune/classify",
            [],
            {TRANSFORMERS: "its classes have no objective.pooling=mean; set --config.tasks.clas"},
        ),
        (
            "finetune/few",
            [],
            {TRANSFORMERS: "set --config.tasks.classify.objective.objective.pooling=cls"},
        ),
        ("finetune/few:cls", [], {}),
        ("finetune/ner", [], {}),
        ("finetune/classify:cls", ["lora.rank=2"], {}),
        ("finetune/classify:cls", ["model.direction=left_to_right"], LEFT_TO_RIGHT),
    ],
)
def test_destinations_are_those_of_the_converters(undisturbed, tmp_path, recipe, overrides, refused):
    source = undisturbed / "export"
    config = config_file.load(recipe, [f"init_from={source}", *overrides])
    objective, classes = config.task.objective, ("no", "yes")
    if config.task.has_classes:
        objective = rewrapped(objective, lambda inner: dataclasses.replace(inner, classes=classes))
    tasks = {config.task_name: dataclasses.replace(config.task, objective=objective)}
    config, tokenizer = dataclasses.replace(config, tasks=tasks), SavedModel(source).tokenizer
    program = Program(config, tokenizer.vocab_size)
    reasons = destinations_of(program, tokenizer)
    assert {name for name, reason in reasons.items() if reason} == set(refused)
    assert all(refused[name] in reasons[name] for name in refused)
    state = program.abstract_state
    shapes = exported(jax.eval_shape(program.to_model_params, state["params"], state["step"]))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    model = Export(without_teachers(to_dict(config)), program.encoder, params, tokenizer, {}, {})
    if SENTENCE_TRANSFORMERS in reasons:
        huggingface.write(tmp_path / "hf", model)
        assert (tmp_path / "hf" / "modules.json").exists()
    elif reasons[TRANSFORMERS]:
        with pytest.raises(UserError):
            huggingface.write(tmp_path / "hf", model)
    else:
        huggingface.write(tmp_path / "hf", model)
