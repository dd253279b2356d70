"""Look inside models: what heads attend to, what layers know, what is lost without a head.

Several models stand beside each other on one page.

examples:
  a run, on its own held-out text:   python -m bertjax analyze runs/tiny
  before and after fine-tuning:      python -m bertjax analyze my/bert runs/sst2 --labeled=glue:SST-2
  all checkpoints of a run:          python -m bertjax analyze 'runs/tiny@*' --parts=patterns
  a sentence of your own:            python -m bertjax analyze runs/tiny --texts="Where is the king?"
"""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bertjax.analysis import results, run_report, running
from bertjax.analysis.parts import PARTS, parts_of
from bertjax.analysis.reduce import show
from bertjax.analysis.running import Outcome
from bertjax.analysis.subject import open_subjects
from bertjax.inference.records import read_file
from bertjax.runtime import command_line, platform
from bertjax.runtime.errors import UserError, say

# A value of --texts that looks like a file name. Spaces do not tell: some languages write sentences without them.
_FILE = re.compile(r"\S+\.(txt|csv|tsv|jsonl?)(\.(gz|zst|xz))?")


def run(
    models: Sequence[str],
    *,
    corpus: str = "",
    labeled: Sequence[str] = (),
    texts: Sequence[str] = (),
    parts: Sequence[str] = (),
    examples: int = 0,
    out: Path = Path("report"),
    trust_code: bool = False,
    task: str = "",
) -> list[Outcome]:
    """Analyze models and write the folder `out`; an existing one is replaced once the new one is complete.

    Args:
      models: export folders, `RUN`, `RUN@STEP`, or `RUN@*` for all kept checkpoints.
      corpus: as in `data.corpus`. Without corpus, labeled files and texts, each model reads its own corpus, or its
        development set if it is fine-tuned.
      labeled: labeled files, see `bertjax.analysis.labeled_files`.
      texts: sentences.
      parts: names of parts; empty for all that the models support.
      examples: maximum examples from the corpus and from each labeled file; 0 for 500.
      out: output folder.
      trust_code: import the modules that a model names as `module:Class`.
      task: task to analyze, for models that were fine-tuned on several.

    Returns:
      The outcome of each part.

    Raises:
      UserError: bad input, or a named part that none of the models supports. Nothing is written.
      Exception: no part has a result; the error of the first failed part. Nothing is written.
    """
    chosen = parts_of(parts)
    results.check_folder(out)
    subjects = open_subjects(models, trust_code, task)
    materials = running.materials_of(subjects, corpus=corpus, labels=labeled, texts=texts, examples=examples)
    for note in filter(None, (material.note for material in materials)):
        say(note, file=sys.stderr)
    if parts:
        # Parts that were named must fit a model; without names, those that do not fit are left out.
        running.check_served(chosen, subjects, materials)

    def on_part(part, is_run):
        skipped = "" if is_run else ", left out"
        say(f"{part.name} ({chosen.index(part) + 1} of {len(chosen)}{skipped})", file=sys.stderr, flush=True)

    # Read training logs before the parts run, which may take an hour: a damaged log must fail early.
    before = run_report.sections_before(subjects, trust_code)
    outcomes = running.run_parts(chosen, subjects, materials, show, on_part)
    return results.write(out, outcomes, subjects, materials, before)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("analyze", __doc__)
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="an export folder, a workdir, WORKDIR@STEP, or 'WORKDIR@*'"
    )
    parser.add_flags(
        {
            "--corpus": "corpus to analyze on (default: each model's own)",
            "--parts=A,B": f"parts among {', '.join(PARTS)} (default: all but curvature, which takes long)",
            "--task=NAME": "the task of models that were fine-tuned on several",
        }
    )
    parser.add_flags(
        {
            "--labeled=FILE": "a labeled file, or glue:TASK for glue/TASK/dev.tsv (glue:FOLDER/TASK elsewhere). May "
            "be repeated",
            "--texts=TEXT": "a sentence, or a file with one in each line. May be repeated",
        },
        action="append",
        default=[],
    )
    parser.add_flags(
        {"--examples=N": "most examples of a corpus or a file (default: 500)"}, type=command_line.positive, default=0
    )
    parser.add_flags({"--out=DIR": "folder to write (default: report)"}, default="report")
    command_line.add_trust_flag(parser)
    command_line.add_platform_flag(parser)
    args = parser.parse_args(argv)
    platform.configure(args.platform)
    out = Path(args.out).expanduser()
    parts = [name.strip() for name in args.parts.split(",") if name.strip()]
    with contextlib.redirect_stdout(sys.stderr):  # preparing a corpus prints; stdout is for results only
        outcomes = run(
            args.models,
            corpus=args.corpus,
            labeled=args.labeled,
            texts=_texts(args.texts),
            parts=parts,
            examples=args.examples,
            out=out,
            trust_code=args.trust_code,
            task=args.task,
        )
    for outcome in outcomes:
        for label, reason in outcome.missing.items():
            say(f"{outcome.part.name} leaves out {label}, which {reason}")
    say(f"page:    {out / results.PAGE}")
    say(f"numbers: {out / results.NUMBERS}, {out / results.ARRAYS}")
    say(f"figures: {out / results.FIGURES}{'/'}")
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        again = f"the other parts are written; run it alone with --parts={outcome.part.name}"
        say(f"error: {outcome.part.name} failed: {outcome.failure}; {again}", file=sys.stderr)
    # The page is written, but a script must still notice that a part failed.
    return command_line.code_for(failed[0].error) if failed else 0


def _texts(values: Sequence[str]) -> list[str]:
    """Return all sentences; a value that names a file is replaced by its lines.

    Raises:
      UserError: a value looks like a file name and the file is missing or empty.
    """
    texts = []
    for value in values:
        if os.path.isfile(os.path.expanduser(value)):  # `Path.is_file` raises for a name that is too long
            if not (lines := read_file(value, ("text",))):
                raise UserError(f"--texts={value} has no lines, so there is nothing to analyze; give at least one")
            texts += [record["text"] for record in lines]
        # A mistyped file name would otherwise be analyzed as a sentence.
        elif _FILE.fullmatch(value):
            raise UserError(f"--texts={value} does not exist; check the path")
        else:
            texts.append(value)
    return texts
