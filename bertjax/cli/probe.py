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
from bertjax.analysis.probing import senses, tasks
from bertjax.analysis.probing.tasks import is_conllu
from bertjax.analysis.reduce import show
from bertjax.analysis.subject import Subject, open_subjects
from bertjax.data.labeled.base import Record
from bertjax.data.labeled.tagged import Tagged
from bertjax.inference import minimal_pairs
from bertjax.inference.likelihood import is_causal
from bertjax.inference.masked import masked_lm
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
                (heading, form, found[group][measure])
                for group, measure, heading, form in _COLUMNS
                if measure in (found.get(group) or {})
            ]
            layers = range(max((len(values) for *_, values in columns), default=0))
            rows = [["layer", *(heading for heading, *_ in columns)]]
            rows += [[str(layer), *(form.format(values[layer]) for _, form, values in columns)] for layer in layers]
            widths = [max(map(len, column)) for column in zip(*rows)]
            lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
            constants = [
                f"{title}: {found[group][name]:.4f}"
                for group, name, title in _CONSTANTS
                if name in found.get(group, {})
            ]
            blocks.append("\n".join([f"{label}, {material}", *lines, *filter(None, [", ".join(constants)])]))
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
    if args.heldout and len(args.labeled) > 1:
        raise UserError(f"--heldout={args.heldout} can score the probes of one labeled file only; give one --labeled")
    if bool(args.labeled) == bool(args.minimal_pairs):
        raise UserError("name what to probe: --labeled=FILE, or --minimal-pairs=PATH")
    for name in ("tag", "heldout", "pooling", "out", "examples"):
        if args.minimal_pairs and getattr(args, name):
            raise UserError(f"--{name} has no effect with --minimal-pairs; remove it")
    for path in filter(senses.is_senses, map(os.path.expanduser, args.labeled)):
        for name in ("heldout", "pooling", "examples"):
            if getattr(args, name):
                raise UserError(f"--{name} has no effect on {path}, which has word senses; remove it")
    platform.configure(args.platform)
    if args.out:
        results.check_folder(Path(args.out).expanduser())

    if args.minimal_pairs:
        return _on_pairs(args)
    part = Layers(heldout=os.path.expanduser(args.heldout), rank=args.rank, pooling=args.pooling or "")
    with contextlib.redirect_stdout(sys.stderr):
        subjects = open_subjects(args.models, args.trust_code)
        materials = _materials(subjects, args.labeled, args.examples, args.tag)
        result = running.run_in_float32(part, subjects, materials, show)
        if args.out:
            out = Path(args.out).expanduser()
            results.write(out, [running.Outcome(part, result, {})], subjects, materials)
        choices = args.tag, args.pooling or "", f"{args.examples}" if args.examples else ""
        heldout = [Path(args.heldout).expanduser()] if args.heldout else []
        names = {each.name: _kept_name(each.name, [Path(each.path), *heldout], *choices) for each in materials}
        _keep(subjects, result.numbers, names)
    say(table(result.numbers))
    if args.out:
        say(f"\npage: {out / results.PAGE}")
    return 0


def _on_pairs(args: argparse.Namespace) -> int:
    """Print a table of minimal pairs for each model, and keep the scores in the workdirs."""
    found = minimal_pairs.read(args.minimal_pairs)
    name, tables = _kept_name(args.minimal_pairs, minimal_pairs.files_of(args.minimal_pairs)), []
    with contextlib.redirect_stdout(sys.stderr):
        subjects = open_subjects(args.models, args.trust_code)
        for subject in subjects:  # before the first one judges a pair
            if not (masked_lm(subject.export) or is_causal(subject.export)):
                raise UserError(
                    f"{subject.label} has neither a masked-LM head nor a causal one, which minimal pairs need; leave "
                    "it out"
                )
        for subject in subjects:
            judged = minimal_pairs.judge(subject.export, found)
            tables.append(f"{subject.label}\n{minimal_pairs.table(minimal_pairs.shares(found, judged))}")
            if workdir := _workdir_of(subject):
                kept = write_probe(workdir, name, pair_scores(found, judged))
                say(f"kept in {kept}")
    say("\n\n".join(tables))
    return 0


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
    subjects: Sequence[Subject],
    numbers: dict[str, dict[str, dict[str, Any]]],
    name_of: Mapping[str, str],
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


def _materials(subjects: Sequence[Subject], files: Sequence[str], examples: int, tag: str) -> list[Labeled]:
    """Return the files as materials; unlike in `analyze`, columns come from the file, not from the model."""
    materials = running.materials_of(subjects, labels=files, examples=examples or _ALL)
    for material in materials:
        if tag and not is_conllu(material.path):
            raise UserError(f"--tag={tag} has no effect on {material.path}, which is not a .conllu file; remove it")
    return [
        dataclasses.replace(
            cast(Labeled, material),
            format=Tagged(heldout=material.path, conllu=tag) if tag else material.format or format_of(material.path),
        )
        for material in materials
    ]
