"""Score a model: on the held-out documents of a corpus, on a labeled file, or on minimal pairs.

A pretrained model is scored on the held-out documents of its corpus, a fine-tuned one on its development set. Baselines
that need no model are printed beside the metrics.

examples:
  the run's own held-out documents:  python -m bertjax evaluate runs/tiny
  those of other texts, as JSON:     python -m bertjax evaluate runs/tiny@750 --corpus=my/texts --json
  another run's held-out question:   python -m bertjax evaluate runs/mine --as=runs/tiny
  a labeled file of another form:    python -m bertjax evaluate models/nli --corpus=snli.jsonl \\
                                         --text=premise --pair=hypothesis --label=gold_label
  BLiMP, or pairs of your own:       python -m bertjax evaluate runs/tiny --minimal-pairs=pairs.jsonl
  GLUE, from the runs of its tasks:  python -m bertjax evaluate runs/glue --suite=glue
  an ONNX file, without JAX:         python -m bertjax evaluate reviews.onnx --corpus=test.csv

A line of pairs.jsonl: {"sentence_good": "He has come.", "sentence_bad": "He have come.", "UID": "agreement"}.
A pair counts as right if the good sentence has the higher pseudo-log-likelihood, under a causal model the
higher log-likelihood, and half if both are equal.
"""

import argparse
import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from bertjax.inference.onnx import OnnxModel, is_onnx, score
from bertjax.inference.records import CUT_FEWER, with_answer
from bertjax.runtime import command_line, storage
from bertjax.runtime.errors import UserError, json_text, printable, say

# Flags that only an export or a run has.
_OF_RUNS = ("as", "task", "minimal_pairs", "scores", "precision", "suite", "trust_code", "platform")


def run_pairs(name: str, path: str, trust_code: bool = False, scores: str = "") -> dict[str, Any]:
    """Score a model on minimal pairs: an acceptable and an unacceptable sentence (`bertjax.inference.minimal_pairs`).

    Args:
      name: path of an export folder, `RUN` or `RUN@STEP`.
      path: .jsonl file, plain or compressed, or a folder with such files, with BLiMP's fields; see
        `bertjax.inference.minimal_pairs.read`.
      trust_code: whether to import modules that the model names as `module:Class`, which runs their code.
      scores: .jsonl file to write with both sentences' scores for each pair; none if empty.

    Returns:
      {`minimal_pairs`: result of `bertjax.inference.minimal_pairs.shares`}.

    Raises:
      UserError: no such model or file, a line that is not a pair, or a model without a masked-LM or causal head.
    """
    from bertjax.config.opening import SavedModel
    from bertjax.inference import minimal_pairs
    from bertjax.training.run.workdir import write_jsonl

    target = storage.place_of(scores)
    # Scoring takes long: an output that cannot be written must fail before it.
    if scores and not storage.is_remote(target) and not target.parent.exists():
        raise UserError(f"--scores={scores} is in a folder that does not exist; make it first")
    pairs = minimal_pairs.read(path)
    for pair in pairs if scores else ():  # before they are scored
        with_answer(pair, dict.fromkeys(minimal_pairs.JUDGED), ())
    judged = minimal_pairs.judge(SavedModel(name, trust_code).export, pairs)
    if scores:
        write_jsonl(target, [with_answer(pair, judgment, ()) for pair, judgment in zip(pairs, judged, strict=True)])
    return {"minimal_pairs": minimal_pairs.shares(pairs, judged)}


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("evaluate", __doc__)
    parser.add_argument(
        "model",
        help="an export folder, a workdir (its newest checkpoint), WORKDIR@STEP, or an ONNX file; with --suite a "
        "folder of runs",
    )
    parser.add_flags(
        {
            "--corpus": "file or folder to score whole, or a corpus such as embedded:en, of which a part is held out "
            "(default: the held-out part of the run's corpus; an export has one only if it is embedded:...); for a "
            "fine-tuned model, a labeled file",
            "--as=MODEL": "ask the question of this pretrained model: its objective, masking and held-out documents",
            "--task=NAME": "the task to score, if the model has several (default: all)",
            "--minimal-pairs=F": "score on the sentence pairs of this .jsonl file or folder instead (fields of BLiMP)",
            "--scores=FILE": "with --minimal-pairs: write the scores of each pair as .jsonl",
        }
    )
    parser.add_flags(
        {"--precision=P": "choose the threshold above which this share of answers is right, and write it into MODEL"},
        type=float,
    )
    parser.add_flags({"--threads": "for an ONNX file: threads to compute with (default: one on each core)"}, type=int)
    parser.add_flags({"--suite": "print one table for all runs in the folder MODEL"}, choices=("glue",))
    command_line.add_column_flags(parser, "--corpus")
    parser.add_flags(command_line.FIGURES, action="store_true")
    command_line.add_trust_flag(parser)
    command_line.add_platform_flag(parser)
    args = parser.parse_args(argv)
    columns = command_line.columns_of(args)
    return _of_file(args, columns) if is_onnx(args.model) else _of_run(args, columns)


def _of_file(args: argparse.Namespace, columns: Mapping[str, str | int]) -> int:
    """Score an ONNX file, without JAX."""
    given = {name: getattr(args, name) for name in _OF_RUNS}
    if stray := [name for name, value in given.items() if value not in (None, "") and value is not False]:
        raise UserError(f"--{stray[0].replace('_', '-')} has no effect on an ONNX file; remove it, or name its export")
    if not args.corpus:
        raise UserError("an ONNX file names no data to score on; add --corpus=FILE, a labeled file")
    figures = score(OnnxModel(args.model, args.threads or 0), args.corpus, columns, args.per_class)
    say(json_text(figures, indent=2) if args.json else _text(figures, args.corpus))
    return 0


def _text(figures: dict[str, Any], path: str) -> str:
    lines = [f"{name:<12}  {value:.4f}" for name, value in (figures["eval"] | figures["baseline"]).items()]
    cut = f", {figures['cut']:,} of them cut" if figures["cut"] else ""
    lines.append(f"{figures['records']:,} records of {printable(path)}{cut}")
    if by_class := figures.get("classes", {}).get("heldout"):
        *rows, macro, weighted = by_class.items()
        lines += ["", f"{'precision':>9}  {'recall':>6}  {'f1':>6}  {'support':>7}  class"]
        for label, of in (*sorted(rows, key=lambda row: row[1]["f1"]), macro, weighted):
            numbers = f"{of['precision']:>9.3f}  {of['recall']:>6.3f}  {of['f1']:>6.3f}  {of['support']:>7,}"
            lines.append(f"{numbers}  {printable(label)}")
    return "\n".join(lines)


def _of_run(args: argparse.Namespace, columns: Mapping[str, str | int]) -> int:
    """Score an export or a checkpoint, or print the scores of runs."""
    from bertjax.inference import minimal_pairs
    from bertjax.runtime import platform
    from bertjax.training.results import classes, report, rescore
    from bertjax.training.results.glue import as_dict, print_glue, scores_of

    if args.threads is not None:
        raise UserError(f"--threads={args.threads} has an effect on ONNX files only; remove it")
    asked_by = vars(args)["as"]
    flags = {"--task": args.task, "--as": asked_by, "--per-class": args.per_class, "--precision": args.precision}
    stray = [flag for flag, value in flags.items() if value not in (None, "", False)]
    if stray and (args.minimal_pairs or args.suite):
        flag = stray[0]
        raise UserError(f"{flag} has no effect with --minimal-pairs and --suite; remove it")
    if args.scores and not args.minimal_pairs:
        raise UserError(f"--scores={args.scores} needs --minimal-pairs; add it, or remove --scores")
    if sum(map(bool, (args.corpus, args.minimal_pairs, args.suite))) > 1:
        raise UserError("--corpus, --minimal-pairs and --suite exclude each other; give one of them")
    if args.suite:
        scores = scores_of(args.model)
        say(json_text(as_dict(scores), indent=2)) if args.json else print_glue(scores)
        return 0
    platform.configure(args.platform)
    with contextlib.redirect_stdout(sys.stderr):  # preparing a corpus prints lines, and --json prints only JSON
        if args.minimal_pairs:
            figures = run_pairs(args.model, args.minimal_pairs, args.trust_code, args.scores)
        else:
            figures = rescore.run(
                args.model, args.corpus, args.trust_code, args.task, args.per_class, columns, asked_by, args.precision
            )
    if args.json:
        say(json_text(figures, indent=2))
    elif args.minimal_pairs:
        say(minimal_pairs.table(figures["minimal_pairs"]))
    else:
        report.print_summary(figures)
        for task, scored in figures["scored"].items():
            say(_scored_line(task, scored))
        for name, scores in figures.get("classes", {}).items():
            say(f"\n{name}: {classes.table_of(scores)}", end="")
    return 0


def _scored_line(task: str, scored: Mapping[str, int]) -> str:
    unit = next(iter(scored))
    limited = f", the first {scored['rows']:,} of {scored['of_rows']:,} rows" * (scored["rows"] < scored["of_rows"])
    cut = f", {scored['cut']:,} texts cut{CUT_FEWER}" if scored.get("cut") else ""
    return f"{task}: scores of {scored[unit]:,} {unit}{limited}{cut}"
