"""A prediction as text for a person; `bertjax.predict` prints it on a terminal, and JSON everywhere else."""

from collections.abc import Sequence
from typing import Any

from bertjax.errors import printable


def text_of(prediction: dict[str, Any], fields: Sequence[str], shown: int) -> str:
    """Return one prediction as lines of text without control characters.

    Args:
      prediction: the fields of a record with its prediction.
      fields: the fields that the model reads.
      shown: number of classes to print with their probabilities.

    Raises:
      KeyError: the prediction is of another kind, such as an embedding.
    """
    lines = ["  |  ".join(str(prediction[name]) for name in fields)]
    if "masks" in prediction:
        for guesses in prediction["masks"]:
            lines.append("   ".join(_percent(guess["piece"], guess["probability"]) for guess in guesses))
        lines.append(prediction["filled"])
    elif isinstance(prediction.get("words"), list):
        pairs = zip(prediction["words"], prediction["prediction"], strict=True)
        lines.append(" ".join(word if tag == "O" else f"{word}[{tag}]" for word, tag in pairs))
    elif isinstance(probabilities := prediction.get("probabilities"), dict):
        best = sorted(probabilities.items(), key=lambda pair: -pair[1])[:shown]
        lines.append("   ".join(_percent(name, probability) for name, probability in best))
        if isinstance(sets := prediction["prediction"], list):  # any number of classes
            lines[-1] = f"{', '.join(sets) or 'none'}   ({lines[-1]})"
    else:
        lines.append(str(prediction["prediction"]))
    return "\n    ".join(printable(line) for line in lines)


def _percent(name: str, probability: float) -> str:
    return f"{name} {probability:.1%}"
