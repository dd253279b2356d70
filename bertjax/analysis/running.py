"""Runs parts on models and materials, and records why models or parts were skipped."""

import dataclasses
import os
from collections.abc import Callable, Sequence

from bertjax.analysis.material import Corpus, Labeled, Material, OwnTexts, labeled, texts_material
from bertjax.analysis.part import Part, Result
from bertjax.analysis.parts import part_of
from bertjax.analysis.reduce import Progress, hide
from bertjax.analysis.subject import Subject, open_subjects
from bertjax.config.export import Export
from bertjax.models.layers import float32_products
from bertjax.runtime.errors import UserError, printable, reason

EXAMPLES = 500


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A part's result, or why it has none.

    Attributes:
      part: the part.
      result: its result; None if it was skipped or failed.
      missing: {model: reason why it was left out}.
      error: the error, if it failed.
    """

    part: Part
    result: Result | None
    missing: dict[str, str]
    error: Exception | None = None

    @property
    def failure(self) -> str:
        """The error in one line; its class comes first unless the message is meant for users."""
        if self.error is None:
            return ""
        kind = "" if isinstance(self.error, UserError) else f"{type(self.error).__name__}: "
        return printable(kind + reason(self.error))


@float32_products()
def run_in_float32(
    part: Part, subjects: Sequence[Subject], materials: Sequence[Material], progress: Progress = hide
) -> Result:
    """Run a part with float32 matrix products on every device."""
    # TPUs and recent GPUs round the inputs of products by default. Small differences between heads would drown in it.
    return part.run(subjects, materials, progress)


def run_parts(
    parts: Sequence[Part],
    subjects: Sequence[Subject],
    materials: Sequence[Material],
    progress: Progress = hide,
    on_part: Callable[[Part, bool], object] = lambda part, is_run: None,
) -> list[Outcome]:
    """Return the outcome of each part. A part skips the models that lack what it needs.

    A failing part does not stop the others: their results may have taken an hour.

    Args:
      parts: the parts, in page order.
      subjects: the models.
      materials: the texts.
      progress: creates progress bars.
      on_part: called before each part, with False if the part is skipped because it can serve no model.

    Raises:
      UserError: no part has a result, and the first one failed because a text does not suit a model. Other errors are
        raised under the same condition.
    """
    outcomes: list[Outcome] = []
    for part in parts:
        missing = {subject.label: part.lacks(subject, materials) for subject in subjects}
        served = [subject for subject in subjects if not missing[subject.label]]
        on_part(part, bool(served))
        # Later parts may build on earlier ones: `training` follows their numbers over checkpoints.
        part.results = {outcome.part.name: outcome.result for outcome in outcomes if outcome.result}
        outcome = Outcome(part, None, {label: why for label, why in missing.items() if why})
        if served:
            try:
                outcome = dataclasses.replace(outcome, result=run_in_float32(part, served, materials, progress))
            except Exception as error:  # a bug, or too little memory for this part
                outcome = dataclasses.replace(outcome, error=error)
        outcomes.append(outcome)
    raise_if_all_failed(outcomes)
    return outcomes


def raise_if_all_failed(outcomes: Sequence[Outcome]) -> None:
    """Raise the first error if some parts failed and none has a result."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors and not any(outcome.result for outcome in outcomes):
        raise errors[0]


def check_served(parts: Sequence[Part], subjects: Sequence[Subject], materials: Sequence[Material]) -> None:
    """Raise UserError if a part can serve none of the models."""
    for part in parts:
        reasons = [part.lacks(subject, materials) for subject in subjects]
        if all(reasons):
            raise UserError(f"--parts={part.name}: {subjects[0].label} {reasons[0]}")


def materials_of(
    subjects: Sequence[Subject],
    *,
    corpus: str = "",
    labels: Sequence[str] = (),
    texts: Sequence[str] = (),
    examples: int = 0,
) -> list[Material]:
    """Return the materials that the user names, or by default each model's own corpus or development set.

    Raises:
      UserError: a labeled file does not exist, a text is blank, or nothing is named and a model is an export without
        its data.
    """
    examples = examples or EXAMPLES
    materials: list[Material] = (
        [Corpus("corpus" if len(corpus) > 40 else corpus, examples, corpus=corpus)] if corpus else []
    )
    materials += [labeled(spec, examples) for spec in labels]
    if len(texts):
        materials.append(texts_material(texts))
    if not materials:
        for subject in subjects:
            if subject.saved:
                subject.saved.check_data("--corpus=CORPUS, --labeled=FILE or --texts=TEXT")
        materials.append(_own_texts(subjects, examples))
    # Names are keys of the results.
    names = [material.name for material in materials]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two files have the name {repeated[0]}; analyze one of them at a time")
    return materials


def _own_texts(subjects: Sequence[Subject], examples: int) -> Material:
    """Return the models' own texts, under a name that fits all models."""
    are_finetuned = [subject.finetuned is not None for subject in subjects]
    if not any(are_finetuned):
        return Corpus("corpus", examples)
    if not all(are_finetuned):
        # The loss on a corpus and the accuracy on a task are no comparison, so the name must not suggest equal texts.
        return OwnTexts("own held-out texts", examples)
    tasks = {next(iter(subject.export.settings["tasks"])) for subject in subjects}
    return Labeled(f"{tasks.pop()} dev" if len(tasks) == 1 else "own dev sets", examples)


def run_part(
    name: str,
    models: str | os.PathLike | Export | Subject | Sequence,
    texts: Sequence[str] = (),
    *,
    corpus: str = "",
    labeled: Sequence[str] = (),
    examples: int = 0,
    trust_code: bool = False,
    task: str = "",
) -> Result:
    """Run one part; see `bertjax.analysis.run`."""
    part = part_of(name)
    subjects = _subjects(models, trust_code, task)
    # A string is a sequence of characters, each of which would be analyzed as a text.
    if isinstance(texts, str):
        raise UserError(f"{texts[:40]!r} is one text; give a list of texts")
    materials = materials_of(subjects, corpus=corpus, labels=labeled, texts=texts, examples=examples)
    for subject in subjects:
        # A part that is called by name must not skip a model silently, as a page may.
        if reason := part.lacks(subject, materials):
            raise UserError(f"{name}: {subject.label} {reason}")
    return run_in_float32(part, subjects, materials)


def _subjects(models, trust_code: bool, task: str) -> list[Subject]:
    if isinstance(models, (str, os.PathLike, Subject, Export)):
        models = [models]
    subjects: list[Subject] = []
    for number, model in enumerate(models, 1):
        if isinstance(model, Subject):
            subjects.append(model)
        elif isinstance(model, Export):
            subjects.append(Subject(f"model {number}" if len(models) > 1 else "model", model))
        else:
            subjects += open_subjects([model], trust_code, task)
    labels = [subject.label for subject in subjects]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"two models are called {repeated[0]}; give subjects with labels of their own")
    return subjects
