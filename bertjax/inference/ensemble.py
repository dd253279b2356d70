"""Several fine-tuned models of one task in use, such as the seeds of a recipe: their outputs are averaged."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.inference.finetuned import FineTuned
from bertjax.inference.predictor import Predictor, Request

# Settings of examples that do not change how a record without a label is encoded.
_FREE = ("train", "heldout", "further_heldout", "unlabeled", "limit", "limit_seed", "on_bad_record")


class Ensemble(Predictor):
    """Predicts the mean of what its models predict: of probabilities, numbers or, for questions, logits of the spans.

    Args:
      models: {name: model}, at least one, with one task, tokenizer and number of positions.

    Raises:
      UserError: a model differs from the first one in what makes their outputs comparable.
    """

    def __init__(self, models: Mapping[str, Export]):
        (first, model), *others = models.items()
        super().__init__(model)
        self._members = [Predictor(other) for _, other in others]
        for name, other in others:
            for part, of_first, of_other in (
                ("tokenizer", model.tokenizer.fingerprint, other.tokenizer.fingerprint),
                ("task", _task(model), _task(other)),
                ("model.max_positions", model.encoder.max_positions, other.encoder.max_positions),
            ):
                if of_first != of_other:
                    raise UserError(f"{name} has another {part} than {first}; average models of one fine-tuning recipe")

    def outputs(
        self, request: Request, on_tokens: Callable[[int], object] = lambda tokens: None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the mean of the models' arrays for each part of the records; see `Predictor.outputs`.

        Raises:
          UserError: the models predict classes without probabilities.
        """
        members = [member.outputs(Request(member.pipeline(FineTuned), request.parts)) for member in self._members]
        for parts in zip(super().outputs(request, on_tokens), *members, strict=True):
            for name, array in parts[0].items():
                if not np.issubdtype(array.dtype, np.floating):
                    raise UserError(
                        f"the models predict {name} without probabilities, which have no mean; remove --with"
                    )
            yield {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}


def _task(model: Export) -> dict[str, Any]:
    """Return the settings of a model's task that its predictions depend on."""
    [settings, *_] = model.settings["tasks"].values()
    examples = {name: value for name, value in settings["examples"].items() if name not in _FREE}
    return {"objective": settings["objective"], "examples": examples}
