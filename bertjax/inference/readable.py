"""Predictions as readable text: `bertjax predict` prints it on a terminal, and JSON everywhere else."""

from collections.abc import Sequence
from typing import Any

from bertjax.runtime.errors import printable


def text_of(prediction: dict[str, Any], fields: Sequence[str], shown: int) -> str:
    """Return one prediction as lines of text without control characters.

    Args:
      prediction: a record's fields with its prediction.
      fields: fields that the model reads.
      shown: number of classes to print with probabilities.

    Raises:
      KeyError: the prediction has another form, such as an embedding.
    """
    lines = ["  |  ".join(str(prediction[name]) for name in fields)]
    if "masks" in prediction:
        for guesses in prediction["masks"]:
            lines.append("   ".join(_percent(guess["piece"], guess["probability"]) for guess in guesses))
        lines.append(prediction["filled"])
    elif isinstance(prediction.get("words"), list):
        pairs = zip(prediction["words"], prediction["prediction"], strict=True)
        # The tag O marks words outside of any entity; printing it would bury the others.
        lines.append(" ".join(word if tag == "O" else f"{word}[{tag}]" for word, tag in pairs))
    elif isinstance(probabilities := prediction.get("probabilities"), dict):
        best = sorted(probabilities.items(), key=lambda pair: -pair[1])[:shown]
        lines.append("   ".join(_percent(name, probability) for name, probability in best))
        if isinstance(sets := prediction["prediction"], list):  # any number of classes
            lines[-1] = f"{', '.join(sets) or 'none'}   ({lines[-1]})"
        if prediction.get("accepted") is False:
            lines[-1] += "   (not accepted: below objective.threshold)"
    else:
        lines.append(str(prediction["prediction"]))
    return "\n    ".join(printable(line) for line in lines)


def _percent(name: str, probability: float) -> str:
    return f"{name} {probability:.1%}"
