"""Average the parameters of several models: checkpoints of one run, or models fine-tuned from the same encoder.

examples:
  the end of a run:   python -m bertjax merge runs/tiny@800 runs/tiny@900 runs/tiny@1000 --to=runs/mean
  seeds of one task:  python -m bertjax merge runs/mrpc/seed=0 runs/mrpc/seed=1 --to=runs/mrpc-soup
"""

import contextlib
import os
from collections.abc import Sequence

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from bertjax.config import export, private_paths
from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.objectives.base import OBJECTIVES
from bertjax.objectives.finetuning.base import OF_HEAD
from bertjax.runtime import command_line, platform, storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import Untrusted, UserError, say, shorten
from bertjax.runtime.storage import split_name


def run(sources: Sequence[str | os.PathLike], target: str | os.PathLike) -> Export:
    """Write an export whose parameters are the mean of those of several models, and return it.

    Averaging checkpoints of one run stands in for a decay of the learning rate (Izmailov et al., 2018, arXiv
    1803.05407; for pretraining Kaddour, 2022, arXiv 2209.14981). Averaging models that were fine-tuned from one start
    gives a "soup" (Wortsman et al., 2022, arXiv 2203.05482). Without a common start, the mean is not a good model.

    Args:
      sources: export folders, or checkpoints `RUN@STEP`; two or more.
      target: an empty or new folder.

    Raises:
      UserError: fewer than two models, or models whose architecture, heads or tokenizer differ.
    """
    target = command_line.new_target(target)
    names = [os.fspath(source) for source in sources]
    if len(names) < 2:
        raise UserError(f"one model has nothing to be averaged with ({', '.join(names)}); name two or more")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{twice[0]} is named twice; name each model once")
    first, total = None, None
    for name in names:  # one after the other: only one model and the sum are in memory
        model = SavedModel(name).export
        first = first or model
        _check_alike(names[0], first, name, model)
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.params)
        total = params if total is None else jax.tree.map(np.add, total, params)
    mean = jax.tree.map(lambda leaf, old: (leaf / len(names)).astype(np.asarray(old).dtype), total, model.params)
    # Scores of one of them, and what was tuned for it, must not pass for those of their mean.
    numbers = {"merged_from": [private_paths.base_name(name) for name in names]}
    merged = model._replace(settings=_untuned(model), params=mean, numbers=numbers)
    with storage.whole_folder(target) as draft:
        export.write(draft, merged)
    return merged


def _check_alike(first_name: str, first: Export, name: str, model: Export) -> None:
    """Raise UserError unless a model can be averaged with the first one."""
    both = f"{first_name} and {name}"
    if differing := first.encoder.differences(model.encoder):
        setting, (one, other) = next(iter(differing.items()))
        raise UserError(f"{both} differ in model.{setting} ({one!r}, {other!r}); name models of one architecture")
    if first.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise UserError(f"{both} have different tokenizers; the same row would be another word")
    shapes, others = (
        {path: leaf.shape for path, leaf in flatten_dict(each.params, sep="/").items()} for each in (first, model)
    )
    if differing := [path for path in {**shapes, **others} if shapes.get(path) != others.get(path)]:
        raise UserError(f"{both} have different heads ({shorten(differing)}); name models of one task")
    # Heads of one shape may still read other states, or have other classes in the same place.
    for tasks in zip(first.settings["tasks"].values(), model.settings["tasks"].values()):
        for setting in sorted({"classes", *OBJECTIVES.marked(OF_HEAD)}):
            one, other = (task["objective"].get(setting) for task in tasks)
            if one != other:
                values = f"{one!s:.60}; {other!s:.60}"
                raise UserError(f"{both} differ in objective.{setting} ({values}); name models of one task")


def _untuned(model: Export) -> dict:
    """Return a model's settings without those that an evaluation tuned, such as a temperature."""
    tasks = dict(model.settings["tasks"])
    with contextlib.suppress(Untrusted):  # a class of the user's, whose code is not run for a mean of numbers
        for name, task in config_of(model).tasks.items():
            untuned = dict.fromkeys(task.objective.traits.tuned_settings)
            tasks[name] = tasks[name] | {"objective": tasks[name]["objective"] | untuned}
    return model.settings | {"tasks": tasks}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = command_line.ArgumentParser("merge", __doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="export folder, run, or RUN@STEP; two or more")
    command_line.add_target(parser)
    args = parser.parse_args(argv)
    platform.configure("cpu")  # JAX only reads checkpoints here
    merged = run(args.models, args.target)
    # An export does not open data by names that it has from elsewhere.
    own_corpus = () if merged.settings["data"]["corpus"].startswith(private_paths.EMBEDDED) else ("--corpus=CORPUS",)
    lines = [f"{'merged':<8}{len(args.models)} models", f"{'export':<8}{args.target}"]
    if len({split_name(name)[0] for name in args.models}) > 1:
        lines.insert(1, f"{'note':<8}they are of several runs; their mean is good only if these had the same start")
    say("\n".join([*lines, f"{'next':<8}{command('evaluate', args.target, *own_corpus)}"]))
    return 0
