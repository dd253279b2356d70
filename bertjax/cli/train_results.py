"""What `bertjax train` prints at its end: the results of a run, and commands to try next."""

import logging
import shlex
from collections.abc import Callable, Sequence

from etils import epath

from bertjax.config import config as configuration
from bertjax.config import private_paths
from bertjax.config.config import Config
from bertjax.data.labeled.base import LabeledFormat
from bertjax.interop import families
from bertjax.objectives.finetuning.embeddings import EmbeddingObjective
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime import command_line, storage
from bertjax.runtime.command_line import STOPPED, command
from bertjax.runtime.errors import reason, say
from bertjax.training.each import Summary
from bertjax.training.results import report, seeds
from bertjax.training.run.workdir import Workdir, read_jsonl

log = logging.getLogger(__name__)


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
