"""The formats of other libraries that a model can have, found before it is trained."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax.traverse_util import flatten_dict

from bertjax.config import config as configuration
from bertjax.config import export, private_paths
from bertjax.config.export import Export
from bertjax.data.tokenizer import Tokenizer
from bertjax.interop import families, huggingface, sentence_transformers, task_heads
from bertjax.interop.family import parts_in
from bertjax.interop.outputs import reading_of
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.objectives.wrapper import Wrapper
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, say
from bertjax.training.parallel import processes
from bertjax.training.program import Program
from bertjax.training.results import labeled_block
from bertjax.training.run.workdir import read_json
from bertjax.training.start import Start

TRANSFORMERS, SENTENCE_TRANSFORMERS, ONNX = "transformers", "sentence-transformers", "ONNX"


def describe_labeled(started: Start) -> dict[str, Any]:
    """Print what there is to know about labeled files before the first step, and return it; empty for a corpus.

    A run that resumes has the same files, so it reads what its first start has found.
    """
    path, before = started.session.files.labeled, None
    if started.resumes:
        before = processes.from_writer(lambda: read_json(path, "tasks") if storage.exists(path) else None, "labeled")
    facts = before["tasks"] if before else labeled_block.facts_of(started.feeds)
    if not facts:
        return {}
    destinations = destinations_of(started.program, started.feeds.store.tokenizer)
    for line in labeled_block.lines_of(started.feeds, facts, destinations):
        say(line)
    return {"tasks": facts, "destinations": destinations}


def destinations_of(program: Program, tokenizer: Tokenizer) -> dict[str, str]:
    """Return {`transformers`, `ONNX`: why the finished model cannot be converted to it; empty if it can}.

    A classifier on the mean that no class of transformers has can be one of sentence-transformers, which is an entry
    then. Only shapes of the parameters are read, so nothing has to be trained first.
    """
    settings = private_paths.without_teachers(configuration.to_dict(program.config))
    state = program.abstract_state
    # As in the export: without the factors of LoRA, which are merged into the kernels.
    params = export.exported(jax.eval_shape(program.to_model_params, state["params"], state["step"]))
    model = Export(settings, program.encoder, params, tokenizer, {}, {})
    inner = "objective." if isinstance(program.config.task.objective, Wrapper) else ""
    pooling = f"--config.tasks.{program.config.task_name}.objective.{inner}pooling"
    own = {TRANSFORMERS: _reason(functools.partial(_check_transformers, pooling_flag=pooling), model)}
    if sentence_transformers.classifier_on_mean(model) and own[TRANSFORMERS]:
        own[SENTENCE_TRANSFORMERS] = _reason(_check_sentence_transformers, model)
    return own | {ONNX: _reason(_check_onnx, model)}


def _reason(check: Callable[[Export], None], model: Export) -> str:
    try:
        check(model)
    except UserError as error:
        return str(error)
    return ""


def _check_transformers(model: Export, pooling_flag: str) -> None:
    """Raise UserError if no class of transformers has the model's heads; `pooling_flag` sets `objective.pooling`."""
    huggingface.check_kinds(model.encoder.architecture())
    if model.is_embedder:
        model = huggingface.encoder_alone(model)
    flat, pad_id = flatten_dict(model.params, sep="/"), model.tokenizer.pad_id
    family = families.of_model(model.encoder, flat, pad_id)
    parts, _ = family.leave_out(parts_in(flat))
    for term in parts & family.task_heads.keys():
        head = family.task_head(term, model.tokenizer)
        pooling = task_heads.objective_of(model.settings, term).get("pooling")
        if pooling and pooling not in head.poolings.values():
            raise UserError(f"its classes have no objective.pooling={pooling}; set {pooling_flag}={task_heads.CLS}")
        task_heads.settings_of(model.settings, term, head)


def _check_sentence_transformers(model: Export) -> None:
    """Raise UserError if `huggingface.write` would refuse a classifier on the mean."""
    huggingface.check_kinds(model.encoder.architecture())
    huggingface.head_on_mean(model)


def _check_onnx(model: Export) -> None:
    """Raise UserError if `onnx.write` would refuse the model."""
    if model.encoder.direction != BIDIRECTIONAL:
        raise UserError(f"model.direction={model.encoder.direction}, and only {BIDIRECTIONAL} models are written")
    if not families.has_encoder(model.encoder, model.tokenizer.pad_id):
        raise UserError("no family of transformers computes this encoder")
    reading_of(model)
