"""Score a saved model: on the held-out documents of a corpus, or on a labeled file."""

import contextlib
import dataclasses
import sys
import types
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from bertjax.config import export, private_paths
from bertjax.config.config import Config
from bertjax.config.opening import SavedModel
from bertjax.data.config import NearDuplicates
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.labeled.source import LabeledPlan, LabeledSource, LabeledSources, count_known
from bertjax.data.preparation import spec
from bertjax.data.store import TokenStore
from bertjax.data.text.lexicon import MINE
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.inference.records import read_labeled
from bertjax.objectives.finetuning.labels import Classification
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, printable, quoted, say
from bertjax.training.config import MeshConfig
from bertjax.training.evaluation import Evaluator
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import labeled_files, open_store
from bertjax.training.results import classes, report
from bertjax.training.run.record import read_record
from bertjax.training.run.workdir import Workdir
from bertjax.training.setup import init_frozen, make_setup, put, resolve_encoder


def run(
    name: str,
    corpus: str = "",
    trust_code: bool = False,
    task: str = "",
    per_class: bool = False,
    columns: Mapping[str, str | int] = types.MappingProxyType({}),
    asked_by: str = "",
    precision: float | None = None,
) -> dict[str, Any]:
    """Score a pretrained model on held-out documents, or a fine-tuned model on a labeled file.

    Masks are fixed. Files and folders that `corpus` names are scored whole. Of the model's own corpus, and of corpora
    with a name such as `embedded:en`, only documents that a hash of their content holds out are scored, so no training
    document is as long as the held-out share is the same.

    Args:
      name: path of an export folder, a workdir `RUN` (its newest checkpoint) or `RUN@STEP`.
      corpus: corpus as in `data.corpus`, by default the run's own; for a fine-tuned model a labeled file, by default
        its development set. An export has no default, unless its corpus comes with bertjax.
      trust_code: whether to import modules that the model names as `module:Class`, which runs their code.
      task: task to score if there are several; all if empty.
      per_class: whether to return scores per class as well.
      columns: {setting of the examples: column in the labeled file `corpus`}, if columns differ from the training file.
      asked_by: a pretrained model whose question to ask: its objective, masking, rows and held-out documents. Thus a
        model of another objective has a score beside it.
      precision: share of right predictions among the accepted ones. The scored records choose the threshold for it, and
        the export keeps both. None scores the threshold that the model has.

    Returns:
      {`eval`: {metric: value}, `baseline`: {metric: value}, `scored`: {task: see `_scored`}}, and `classes`: {set:
      `ClassReport.scores`} on request.

    Raises:
      UserError: no such model or corpus, a model without heads, a corpus whose store has another tokenizer, or a
        precision for something else than an export of a classifier.
    """
    saved = SavedModel(name, trust_code, task)
    _ = saved.export  # a damaged model is refused before anything else is printed
    saved.note_unfinished("scored")
    asked = SavedModel(asked_by, trust_code, task) if asked_by else saved
    if asked_by and isinstance(asked.config.task.examples, LabeledFormat):
        raise UserError(f"--as={asked_by} was fine-tuned on a labeled file; name the file instead, as --corpus=FILE")
    if not corpus:
        asked.check_data("--corpus=CORPUS")
    config = asked.config
    if precision is not None:
        objective = config.task.objective
        if asked_by or not isinstance(objective, Classification) or len(config.tasks) > 1 or not saved.is_export:
            such_as = "" if saved.is_export else f" such as {name}/export"
            raise UserError(
                f"--precision={precision:g} chooses the threshold of one classifier, without --as, and writes it into "
                f"its export; name an export{such_as}, and the --task of several"
            )
    figures = score(saved, config, corpus, per_class, columns, asked, precision)
    if precision is not None:
        values = {"precision": precision, "threshold": figures["eval"]["threshold"]}
        export.set_objective(saved.folder, config.task_name, values)
        say(f"{name} has objective.threshold={values['threshold']:.4f} from now on", file=sys.stderr)
    return figures


def score(
    saved: SavedModel,
    config: Config,
    corpus: str = "",
    per_class: bool = False,
    columns: Mapping[str, str | int] = types.MappingProxyType({}),
    asked: SavedModel | None = None,
    precision: float | None = None,
) -> dict[str, Any]:
    """Score a model under a given configuration, for example the configuration of the model that it was pruned from.

    Args:
      saved: the model.
      config: configuration; `SavedModel.config` is the model's own.
      corpus, per_class, columns, precision: see `run`.
      asked: the model of this configuration, by default `saved`.

    Returns:
      See `run`, also for the errors.
    """
    model, name, asked = saved.export, saved.name, asked or saved
    data, tokenizer = config.data, TokenizerConfig(model=str(saved.folder / "tokenizer"))
    if corpus and not isinstance(config.task.examples, LabeledFormat):
        # The model's tokenizer and not one trained on the new corpus: its ids index the model's word table.
        data = dataclasses.replace(data, corpus=corpus, sources={}, heldout="", tokenizer=tokenizer)
        if not corpus.startswith(private_paths.PUBLIC):  # a file of the user is scored whole, and as it is
            data = dataclasses.replace(data, heldout=corpus, share=1.0, filters={}, near_duplicates=NearDuplicates())
    elif data.tokenizer.model:  # the recorded path may exist only on the training machine
        data = dataclasses.replace(data, tokenizer=tokenizer)
    rows = dataclasses.replace(config.eval, rows=0 if corpus else config.eval.rows)
    if asked is not saved:
        try:  # with the lengths of the model that answers
            config = dataclasses.replace(config, model=saved.config.model)
        except UserError as error:
            raise UserError(f"{name} cannot answer --as={asked.name}: {error}") from error
    # Scoring must work on any machine, so ignore the mesh and kernels that the model was trained with.
    runtime = dataclasses.replace(config.runtime, mesh=MeshConfig(), strategy="auto", attention="auto")
    config = dataclasses.replace(_with_tuned(config, model.settings), data=data, eval=rows, runtime=runtime)
    if precision is not None:
        objective = dataclasses.replace(cast(Any, config.task.objective), precision=precision, threshold=None)
        task = dataclasses.replace(config.task, objective=objective)
        config = dataclasses.replace(config, tasks={config.task_name: task})
    # A checkpoint of an early stage may have fewer layers than the finished model, or another rotary base.
    encoder = resolve_encoder(config, model.tokenizer.vocab_size, model=model.encoder)
    setup = make_setup(config, encoder)
    heads = (params.get("heads", {}).keys() for params in (setup.shapes["params"], model.params))
    # Heads that the objectives read and the model does not have.
    if missing := set.difference(*map(set, heads)):
        raise UserError(
            f"{name} has no head {', '.join(sorted(missing))} to score; fine-tune it, or name a model with heads"
        )
    config, store = _labeled(config, model.tokenizer, corpus, columns)
    if store is None:  # a run's record names its own store
        # With another corpus, the recorded store would be the wrong one.
        has_record = not corpus and not asked.is_export
        store = open_store(config.data, read_record(Workdir.at(asked.folder)) if has_record else None)
    if store.tokenizer.fingerprint != model.tokenizer.fingerprint:
        remedy = f"score it with --corpus={config.data.corpus}" if asked is saved else "leave --as out"
        raise UserError(f"{store.path} was made with another tokenizer than {name}; {remedy}")
    for task_name, task in config.tasks.items():
        lexicon = _objective_of(asked.settings, task_name).get("masking", {}).get("lexicon", MINE)
        if lexicon != MINE and task.objective.masking.lexicon == MINE:  # files named by an export are never opened
            say(f"objective.masking.lexicon={quoted(lexicon)} is not opened: phrases are mined from the scored corpus")
    for objective in (task.objective for task in config.tasks.values()):
        for setting in objective.traits.tuned_settings:
            value = getattr(objective, setting)
            source = "tuned on the scored file" if value is None else f"{value:.4f}, as the model has it"
            say(f"objective.{setting}: {source}")
    if (corpus or asked is not saved) and not saved.is_export and isinstance(store, TokenStore):
        _warn_of_trained_documents(saved, store)
    feeds = Feeds(setup.config, store)
    evaluation = Evaluator(setup, feeds, init_frozen([setup])[setup])(put(setup, model.params))
    metrics, baselines = evaluation.of_all("metrics"), evaluation.of_all("baselines")
    figures = {"eval": metrics, "baseline": baselines, "scored": _scored(feeds)}
    if per_class:
        sets = classes.scored_sets(config, evaluation)
        if not sets:
            raise UserError(
                f"--per-class has no effect on {name}, which does not predict one class for each record; leave it out"
            )
        figures["classes"] = {each.name: each.report.scores for each in sets}
    return figures


def _scored(feeds: Feeds) -> dict[str, dict[str, int]]:
    """Return {task: {`records` or `documents`, `rows`: counts of what is scored, `of_rows`: all held-out rows}}.

    For records also `cut`, the number of examples that were cut.
    """
    scored = {}
    for task, feed in feeds.heldout.items():
        [plan], limit = feed.plans, feeds.config.eval.rows
        rows = {"rows": min(limit or plan.counts.rows, plan.counts.rows), "of_rows": plan.counts.rows}
        if isinstance(plan, LabeledPlan):
            ids = plan.rows_RN[feed.locate(np.arange(rows["rows"]))[2]]
            count = {"records": len(np.unique(plan.examples.record_of[ids[ids >= 0]]))}
            rows["cut"] = sum(count for note, count in plan.examples.notes.items() if note.startswith("cut"))
        else:
            count = {"documents": feeds.store_of(task).manifest["splits"]["heldout"]["documents"]}
        scored[task] = count | rows
    return scored


def _warn_of_trained_documents(saved: SavedModel, scored: TokenStore) -> None:
    """Print a line if the run was trained on scored documents, as long as its token store is there."""
    record = read_record(Workdir.at(saved.folder))
    path = spec.find(record.config.data, record.identity["data"]["store_fingerprint"])
    if path is None or storage.is_remote(path):
        return
    train, heldout = TokenStore.open(path).split("train"), scored.split("heldout")
    lengths, ends = np.diff(heldout.sentences[heldout.documents]), train.sentences[train.documents]
    documents = [tokens.tobytes() for tokens in np.split(heldout.tokens, np.cumsum(lengths)[:-1])]
    # Only training documents of the same lengths are read.
    same = np.flatnonzero(np.isin(np.diff(ends), lengths))
    known = {train.tokens[ends[number] : ends[number + 1]].tobytes() for number in same.tolist()}
    _say_trained(sum(document in known for document in documents), len(documents), "documents")


def _with_tuned(config: Config, settings: dict[str, Any]) -> Config:
    """Return the configuration with the values, such as a threshold, that were tuned for these weights."""
    tasks = {}
    for name, task in config.tasks.items():
        of_weights = _objective_of(settings, name)
        values = {field: of_weights[field] for field in task.objective.traits.tuned_settings if field in of_weights}
        tasks[name] = dataclasses.replace(task, objective=dataclasses.replace(task.objective, **values))
    return dataclasses.replace(config, tasks=tasks)


def _objective_of(settings: dict[str, Any], task: str) -> dict[str, Any]:
    """Return the recorded settings for a task's objective; missing ones have their defaults."""
    return settings.get("tasks", {}).get(task, {}).get("objective", {})


def _labeled(
    config: Config, tokenizer: Tokenizer, path: str, columns: Mapping[str, str | int]
) -> tuple[Config, LabeledSource | LabeledSources | None]:
    """Open a fine-tuned model's labeled files; None for other models.

    Also return the configuration with the columns of the scored file, under which its records have their labels.
    """
    task = config.task
    if not isinstance(task.examples, LabeledFormat):
        if columns:
            name, column = next(iter(columns.items()))
            flag = name.replace("_", "-")
            raise UserError(
                f"--{flag}={column} has no effect on a model of examples.kind={task.examples.kind}; remove it"
            )
        return config, None
    records, trained = [], None
    if path:
        if len(config.tasks) > 1:
            raise UserError(
                f"--corpus={path} is one file, and the model has the tasks {', '.join(config.tasks)}; add --task"
            )
        # The training records as they were chosen: without the held-out share, and under their own columns.
        trained = LabeledSource(task.examples, tokenizer, task.has_classes, task.objective.classes)
        # Without further files: only the named file is scored.
        own = {"heldout": path, "further_heldout": {}, "folds": 0}
        examples = dataclasses.replace(task.examples.with_columns(columns), **own)
        records = read_labeled(examples, path, task.objective.classes if task.has_classes else ())
        task = dataclasses.replace(task, examples=examples)
        config = dataclasses.replace(config, tasks={config.task_name: task})
    source = labeled_files(config, tokenizer)
    train = config.task.examples.train
    if path:
        # Hand over the records: read again, they would have their old labels.
        source.heldout = records
    is_readable = bool(train) and storage.exists(train)
    # Baselines need class counts. Without a readable training file, the scored file has to do.
    if path and (columns or not is_readable):
        missing = "has other columns" if columns and train else "is not there"
        name = printable(train) or "the training file of an export"
        say(f"{name} {missing}: the baselines are those of {path}", file=sys.stderr)
        source.train = source.heldout
    files = Feeds(config, source)
    try:
        if trained and is_readable:
            if not columns:
                source.train = trained.train
            with contextlib.suppress(UserError):  # a damaged training file: where something needs it, it raises there
                count = count_known(records, config.task.examples, trained.train, trained.format)
                _say_trained(count, len(records), "records")
        for name in config.tasks:
            labeled = files.store_of(name)
            _ = labeled.train  # the baselines count its labels
            for line in report.metric_lines(labeled, config.tasks[name].objective):
                say(line, file=sys.stderr)
    except UserError as error:
        raise UserError(f"{error}; the baselines need it: restore it, or use `predict`, which does not") from error
    return config, files.store


def _say_trained(count: int, total: int, unit: str) -> None:
    """Print a line if the model was trained on some of what is scored: it scores higher there than on new texts."""
    if count:
        counted = f"{count:,} of {total:,} {unit} were trained on"
        say(f"warning: {counted}; the scores are not those of new texts", file=sys.stderr)
