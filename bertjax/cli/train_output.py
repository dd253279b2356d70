"""What `bertjax train` prints: labeled files and possible formats at first, results and next commands at the end."""

import functools
import logging
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import jax
from etils import epath
from flax.traverse_util import flatten_dict

from bertjax.config import config as configuration
from bertjax.config import export, private_paths
from bertjax.config.config import Config
from bertjax.config.export import Export
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.tokenizer import Tokenizer
from bertjax.interop import families, huggingface, sentence_transformers, task_heads
from bertjax.interop.family import parts_in
from bertjax.interop.names import of_run
from bertjax.interop.outputs import reading_of
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.objectives.finetuning.embeddings import EmbeddingObjective
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.wrapper import Wrapper
from bertjax.runtime import command_line, storage
from bertjax.runtime.command_line import STOPPED, command
from bertjax.runtime.errors import UserError, reason, say
from bertjax.training.each import Summary
from bertjax.training.parallel import processes
from bertjax.training.results import labeled_block, report, seeds
from bertjax.training.run.workdir import Workdir, read_json, read_jsonl
from bertjax.training.setup import Setup
from bertjax.training.start import Start

log = logging.getLogger(__name__)

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
    destinations = destinations_of(started.setup, started.feeds.store.tokenizer)
    for line in labeled_block.lines_of(started.feeds, facts, destinations):
        say(line)
    return {"tasks": facts, "destinations": destinations}


def destinations_of(setup: Setup, tokenizer: Tokenizer) -> dict[str, str]:
    """Return {`transformers`, `ONNX`: why the finished model cannot be converted to it; empty if it can}.

    A classifier on the mean that no class of transformers has can be one of sentence-transformers, which is an entry
    then. Only shapes of the parameters are read, so nothing has to be trained first.
    """
    config = setup.config
    settings = private_paths.without_teachers(configuration.to_dict(config))
    # As in the export: without the factors of LoRA, which are merged into the kernels.
    params = export.exported(jax.eval_shape(setup.model_params, setup.shapes["params"], setup.shapes["step"]))
    model = Export(settings, setup.encoder, params, tokenizer, {}, {})
    inner = "objective." if isinstance(config.task.objective, Wrapper) else ""
    pooling = f"--config.tasks.{config.task_name}.objective.{inner}pooling"
    own = {TRANSFORMERS: _reason(functools.partial(_check_transformers, pooling_flag=pooling), model)}
    if sentence_transformers.classifier_on_mean(model) and own[TRANSFORMERS]:
        own[SENTENCE_TRANSFORMERS] = _reason(_check_sentence_transformers, model)
    return own | {ONNX: _reason(_check_onnx, model)}


def _reason(check: Callable[[Export], None], model: Export) -> str:
    try:
        check(model)
    except UserError as error:
        return of_run(error, "RUN")
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


def report_result(summary: Summary, config: Config, again: Sequence[str]) -> int:
    """Print the result of one run, and return the exit code.

    Args:
      summary: the result.
      config: the configuration.
      again: the command and its arguments.
    """
    if not summary.finished:
        print(f"stopped and saved at step {summary.step}; to resume: {command(*again)}")
        return STOPPED
    return print_lines(lambda: _lines_of(summary, config), summary.workdir)


def print_lines(lines_of: Callable[[], Sequence[str]], root: epath.PathLike) -> int:
    """Print the result of finished runs, and return the exit code.

    Args:
      lines_of: prints tables, and returns the lines below them.
      root: folder of the results.
    """
    try:
        say("\n".join(lines_of()))
    except Exception as error:
        # Everything is trained and exported: a launcher must not repeat it, or give up, because of these lines.
        log.warning("the results are in %s, but could not be printed: %s", root, reason(error))
    return command_line.FINISHED


def _lines_of(summary: Summary, config: Config) -> list[str]:
    root, files, lines = summary.workdir, Workdir.at(summary.workdir), []
    report.print_summary(summary.figures)
    if config.runtime.keep_best and (better := seeds.better_checkpoint(files, config, summary.figures["eval"])):
        lines.append(f"best      {better}")
    exported = files.export
    lines.append(f"encoder   {root / 'export'}")
    if "eval_ema" in summary.figures:
        score, is_better = seeds.average_scores(config, summary.figures)
        exported = files.export_ema if is_better else files.export
        lines.append(f"average   {root / 'export_ema'} has {score}: {'better' if is_better else 'not better'}")
    lines += [f"curves    {root / 'curves.png'}", f"figures   {root / 'summary.json'}"]
    commands = next_commands(config, files, exported, summary.pad_id)
    return lines + [f"{'' if index else 'next':<10}{line}" for index, line in enumerate(commands)]


def next_commands(config: Config, files: Workdir, export_folder: epath.Path, pad_id: int) -> list[str]:
    """Return commands to try with a finished run and the better one of its exports."""
    root, copy, use, score, ship = str(files.path), [], [], [], []
    trust = ["--trust-code"] if config.foreign_kinds else []  # for commands that open the run itself
    page = [command("report", root, *trust)]
    if storage.is_remote(files.root):  # the commands below read local files: copy the run first
        root, page = files.root.name, []
        copy = [f"mkdir -p {shlex.quote(root)} && gcloud storage cp --recursive {export_folder} {shlex.quote(root)}"]
    exported = f"{root}/{export_folder.name}"
    # Only the export is copied, and a run stands for its last weights.
    needs_export = copy or export_folder != files.export
    source = f"--from={exported if needs_export else root}"
    if isinstance(config.task.examples, LabeledFormat):
        is_embedder = isinstance(config.task.objective, EmbeddingObjective)
        use, score = ["--do=embed"] * is_embedder + ["--file=FILE"], ["--corpus=TEST_FILE"]
        if storage.exists(files.export / "hf"):
            ship = [command("convert", source, "--to=hf")]
        elif families.has_encoder(config.model, pad_id):
            ship = [command("convert", source, f"--to={files.root.name}.onnx")]
    else:
        objective = config.task.objective
        is_masked = isinstance(objective, MaskedLM) or MaskedLM.head in objective.heads(config.model)
        samples = read_jsonl(files.samples)
        masked = report.masked_sentence(samples[-1]["samples"] if samples else [])
        use = [masked] if is_masked else ["--do=embed", "The king is old."]
    # An export names less code: its learning rate schedule, for example, is not opened.
    opened = configuration.from_dict(private_paths.read_from_export(configuration.to_dict(config)), trust_code=True)
    trust_export = ["--trust-code"] if opened.foreign_kinds else []
    scored = root
    if needs_export:  # of the run's corpora, it names only those that come with bertjax
        own_corpus = [] if opened.data.corpus != private_paths.EMBEDDED else ["--corpus=TEXTS"]
        scored, score, trust = exported, score or own_corpus, trust_export
    evaluated, predicted = (scored, *score, *trust), (exported, *use, *trust_export)
    return [*copy, command("evaluate", *evaluated), command("predict", *predicted), *page, *ship]
