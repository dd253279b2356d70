"""Measure what each layer of a model encodes: labels, syntax trees, word senses; or score it on minimal pairs.

Layers are probed by the part `layers` of `bertjax analyze`. Runs keep the results, which `bertjax compare` prints.

examples:
  parts of speech and syntax trees:  python -m bertjax probe my/bert --labeled=ud/train.conllu --heldout=ud/dev.conllu
  a feature of the words:            python -m bertjax probe my/bert --labeled=ud/train.conllu --tag=feats.Number
  over the checkpoints of a run:     python -m bertjax probe 'runs/tiny@*' --labeled=ud/train.conllu
  word senses:                       python -m bertjax probe my/bert --labeled=senses.tsv
  BLiMP, three seeds of two runs:    python -m bertjax probe runs/a runs/b --minimal-pairs=blimp/data
"""

import argparse
import contextlib
import dataclasses
import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from etils import epath

from bertjax.analysis import results, running
from bertjax.analysis.labeled_files import format_of
from bertjax.analysis.material import Labeled
from bertjax.analysis.parts.layers import RANK, Layers
from bertjax.analysis.probing import tasks
from bertjax.analysis.reduce import show
from bertjax.analysis.subject import Subject, open_subjects
from bertjax.data.labeled.base import Record
from bertjax.data.labeled.tagged import Tagged
from bertjax.inference import minimal_pairs
from bertjax.inference.fill import masked_lm
from bertjax.inference.likelihood import is_causal
from bertjax.runtime import command_line, platform
from bertjax.runtime.errors import UserError, say
from bertjax.training.results.scores import Scores, scores_of, scores_of_records, write_probe

# Effectively unlimited: more records than any file has.
_ALL = 10**9
# Table columns: group (a dict in `analysis.json`), measure, heading, format.
_COLUMNS = (
    ("probe", "accuracy", "accuracy", "{:.4f}"),
    ("probe", "random_accuracy", "random", "{:.4f}"),
    ("probe", "control_accuracy", "control", "{:.4f}"),
    ("probe", "compression", "code", "{:.2f}x"),
    ("probe", "random_compression", "random", "{:.2f}x"),
    ("trees", "uuas", "UUAS", "{:.4f}"),
    ("trees", "random_uuas", "random", "{:.4f}"),
    ("trees", "spearman", "Spearman", "{:.4f}"),
    ("senses", "accuracy", "senses", "{:.4f}"),
    ("lens", "accuracy", "lens", "{:.4f}"),
    ("lens", "geometric_mean_rank", "rank", "{:.1f}"),
    ("contextuality", "adjusted_self_similarity", "self-sim.", "{:.3f}"),
)
_CONSTANTS = (
    ("probe", "majority", "majority class"),
    ("trees", "chain_uuas", "UUAS of a chain of words"),
    ("trees", "chain_spearman", "Spearman of a chain"),
    ("senses", "most_frequent", "most frequent sense"),
)


def table(numbers: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the results as text: one table per model and material, with one line per layer.

    Args:
      numbers: {model: {material: {group: {measure: values by layer}}}}.
    """
    blocks = []
    for label, materials in numbers.items():
        for material, found in materials.items():
            columns = [
                [heading, *map(form.format, found[group][measure])]
                for group, measure, heading, form in _COLUMNS
                if measure in (found.get(group) or {})
            ]
            layers = ["layer", *map(str, range(max(map(len, columns), default=1) - 1))]
            aligned = ([cell.rjust(max(map(len, column))) for cell in column] for column in (layers, *columns))
            constants = ", ".join(
                f"{title}: {found[group][name]:.4f}"
                for group, name, title in _CONSTANTS
                if name in found.get(group, {})
            )
            lines = [f"{label}, {material}", *map("  ".join, zip(*aligned)), constants]
            blocks.append("\n".join(filter(None, lines)))
    return "\n\n".join(blocks)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("probe", __doc__)
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="an export folder, a workdir, WORKDIR@STEP, 'WORKDIR@*', or a folder of --seeds",
    )
    parser.add_flags(
        {
            "--labeled=FILE": "a file that trains the probes: .conllu, words and tags in columns, or a table with the "
            "columns sentence and label; or a table with the columns word, sense and sentence. May be repeated"
        },
        action="append",
        default=[],
    )
    parser.add_flags(
        {
            "--minimal-pairs=PATH": "a .jsonl file of sentence pairs, or a folder of them, such as BLiMP's",
            "--heldout=FILE": "a file that scores the probes (default: a third of --labeled)",
            "--tag=NAME": "tag of .conllu to predict: upos, xpos or a feature such as feats.Case",
            "--out=DIR": "folder for a report page, figures and all numbers",
        }
    )
    parser.add_flags(
        {
            "--pooling": "state of a word or text: that of its first token, or the mean of its tokens (default: first "
            "for words, mean for texts)"
        },
        choices=tasks.POOLINGS,
    )
    parser.add_flags(
        {"--rank=R": f"rank of the structural probe (default: {RANK})"}, type=command_line.positive, default=RANK
    )
    parser.add_flags(
        {"--examples=N": "read at most N records of a file, drawn at random (default: all)"},
        type=command_line.positive,
        default=0,
    )
    command_line.add_trust_flag(parser)
    command_line.add_platform_flag(parser)
    args = parser.parse_args(argv)
    _check(args)
    platform.configure(args.platform)
    if args.out:
        results.check_folder(Path(args.out).expanduser())
    with contextlib.redirect_stdout(sys.stderr):
        printed = _on_pairs(args) if args.minimal_pairs else _on_labels(args)
    say(printed)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UserError if it is not clear what to probe, or if a flag has no effect."""
    if args.heldout and len(args.labeled) > 1:
        raise UserError(f"--heldout={args.heldout} can score the probes of one labeled file only; give one --labeled")
    if bool(args.labeled) == bool(args.minimal_pairs):
        raise UserError("name what to probe: --labeled=FILE, or --minimal-pairs=PATH")
    unused = {"with --minimal-pairs": "tag heldout pooling out examples"} if args.minimal_pairs else {}
    for path in map(os.path.expanduser, args.labeled):
        if tasks.is_senses(path):
            unused[f"on {path}, which has word senses"] = "tag heldout pooling examples"
        elif not tasks.is_conllu(path):
            unused[f"on {path}, which is not a .conllu file"] = "tag"
    for where, names in unused.items():
        for name in names.split():
            if getattr(args, name):
                raise UserError(f"--{name} has no effect {where}; remove it")


def _on_labels(args: argparse.Namespace) -> str:
    """Return the tables of labeled files. Write the page, and keep the accuracies in the workdirs."""
    part = Layers(heldout=os.path.expanduser(args.heldout), rank=args.rank, pooling=args.pooling or "")
    subjects = open_subjects(args.models, args.trust_code)
    # Unlike in `analyze`, columns come from the file, not from the model.
    materials = [
        dataclasses.replace(
            cast(Labeled, each),
            format=Tagged(heldout=each.path, conllu=args.tag) if args.tag else each.format or format_of(each.path),
        )
        for each in running.materials_of(subjects, labels=args.labeled, examples=args.examples or _ALL)
    ]
    result = running.run_in_float32(part, subjects, materials, show)
    printed = table(result.numbers)
    if args.out:
        out = Path(args.out).expanduser()
        results.write(out, [running.Outcome(part, result, {})], subjects, materials)
        printed += f"\n\npage: {out / results.PAGE}"
    choices = args.tag, args.pooling or "", f"{args.examples}" if args.examples else ""
    heldout = [Path(args.heldout).expanduser()] if args.heldout else []
    names = {each.name: _kept_name(each.name, [Path(each.path), *heldout], *choices) for each in materials}
    _keep(subjects, result.numbers, names)
    return printed


def _on_pairs(args: argparse.Namespace) -> str:
    """Return a table of minimal pairs for each model, and keep the scores in the workdirs."""
    pairs, tables = minimal_pairs.read(args.minimal_pairs), []
    name = _kept_name(args.minimal_pairs, minimal_pairs.files_of(args.minimal_pairs))
    subjects = open_subjects(args.models, args.trust_code)
    for subject in subjects:  # before the first one judges a pair
        if not (masked_lm(subject.export) or is_causal(subject.export)):
            raise UserError(
                f"{subject.label} has neither a masked-LM head nor a causal one, which minimal pairs need; leave it out"
            )
    for subject in subjects:
        judged = minimal_pairs.judge(subject.export, pairs)
        tables.append(f"{subject.label}\n{minimal_pairs.table(minimal_pairs.shares(pairs, judged))}")
        if workdir := _workdir_of(subject):
            say(f"kept in {write_probe(workdir, name, pair_scores(pairs, judged))}")
    return "\n\n".join(tables)


def pair_scores(pairs: Sequence[Record], judged: Sequence[Record]) -> dict[str, Scores]:
    """Return accuracy per pair: overall, and for each group in the coarsest grouping that the pairs have."""
    points = [(pair, judgment["point"], 1.0) for pair, judgment in zip(pairs, judged, strict=True)]
    scores = {"accuracy": scores_of_records(points)}
    # The finest grouping, BLiMP's 67 paradigms, would be too many rows for a comparison.
    grouping = next((name for name in reversed(minimal_pairs.GROUPINGS) if any(name in pair for pair in pairs)), None)
    for group in dict.fromkeys(str(pair[grouping]) for pair in pairs if grouping in pair):
        members = [point for point in points if str(point[0].get(grouping)) == group]
        scores[f"{group}/accuracy"] = scores_of_records(members)
    return scores


def _keep(
    subjects: Sequence[Subject], numbers: dict[str, dict[str, dict[str, Any]]], name_of: Mapping[str, str]
) -> None:
    """Write each run's linear probe accuracies by layer into its workdir.

    Args:
      name_of: {material: result name}.
    """
    for subject in subjects:
        workdir = _workdir_of(subject)
        for material, found in numbers[subject.label].items():
            if workdir and "probe" in found:
                by_layer = {
                    # One unit: `compare` reads scores by unit, and here there is only the accuracy of the file.
                    f"layer_{layer}/accuracy": scores_of([0], [(accuracy, 1.0)])
                    for layer, accuracy in enumerate(found["probe"]["accuracy"])
                }
                majority = {"majority": scores_of([0], [(found["probe"]["majority"], 1.0)])}
                say(f"kept in {write_probe(workdir, name_of[material], by_layer | majority)}")


def _kept_name(name: str, files: Sequence[Path], *choices: str) -> str:
    """Return a result's name: file stem, choices, and six hex digits that hash file contents and choices.

    The hash keeps files with equal names apart, and gives a file the same result name on every machine.
    """
    # No argument can contain "\0", so that different choices never join to the same text.
    digest = hashlib.sha256("\0".join(choices).encode())
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    # Without format and compression suffixes.
    stem = re.sub(r"(\.(conllu|tsv|csv|jsonl|txt|gz|zst|xz))+$", "", Path(name).name)
    return "-".join([stem, *filter(None, choices), digest.hexdigest()[:6]])


def _workdir_of(subject: Subject) -> epath.Path | None:
    """Return a model's workdir if it is a run's newest state; None for `RUN@STEP` and exports."""
    saved = subject.saved
    # Results of an older checkpoint would be taken for the run's.
    return None if saved is None or saved.is_export or saved.step else epath.Path(saved.folder)
