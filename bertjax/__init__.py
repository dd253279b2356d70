"""bertjax pretrains BERT-family encoders in JAX, from raw text to an encoder that other libraries load.

Words that have one meaning in the whole code:

    corpus, document, sentence   what the user has; the unit in which sentences are consecutive; a part of a document
    token store                  the prepared corpus: a folder of memory-mapped token ids and offsets
    example, row, batch          one [CLS] ... [SEP] sequence; a line of a batch with one or more examples; all rows of
                                 a step on all hosts
    plan                         how a store becomes rows, for one example format and row length
    objective, term, task        what is predicted; a summand of its loss; an objective with its examples and weight
    stage                        consecutive steps with fixed shapes
    encoder, head, preset        the Transformer; what turns hidden states into logits; a published architecture
    tap                          a per-layer value that is captured, or a mask that is applied, by name
    teacher, student             a frozen model that gives targets; the model that is trained on them
    workdir, checkpoint, export  everything that a run writes; one saved state of it; the finished model
    forecast                     what compilation for an absent TPU reports

Arrays end in the letters of their axes, `hidden_BTD` or `logits_BKV`:

    B  rows of a batch             D  width of the model          L  layers
    T  tokens of a row             F  width of the feed-forward   V  tokens of the vocabulary
    K  predicted positions a row   H  attention heads             E  width of the embeddings
    N  examples of a row           Q  queries of attention
"""

import os
import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036 - a clone runs without pip having checked
    print(f"error: bertjax needs Python 3.11 or newer, this is {sys.version.split()[0]}; see README", file=sys.stderr)
    raise SystemExit(2)

if TYPE_CHECKING:
    from bertjax.inference.predictor import Predictor
    from bertjax.opening import Model

__version__ = "0.1.0"


def load(name: str | os.PathLike) -> "Model":
    """Read a pretrained encoder: `module, params, tokenizer = bertjax.load("RUN/export")`.

    No class that the export names is imported.

    Args:
      name: path of an export folder, a workdir `RUN` (its newest checkpoint) or `RUN@STEP`.

    Raises:
      UserError: the name stands for no model, or the model is damaged.
    """
    from bertjax import opening

    return opening.load(name)


def predictor(name: str | os.PathLike, trust_code: bool = False, task: str = "") -> "Predictor":
    """Read a model to use: `bertjax.predictor("RUN/export").fill(["The king is [MASK]."])`, or `.embed(texts)`.

    Args:
      name: path of an export folder, `RUN` or `RUN@STEP`.
      trust_code: whether modules that the model names as `module:Class` are imported, which runs their code.
      task: the task to predict, if the model was fine-tuned on several.

    Raises:
      UserError: the name stands for no model, or the model is damaged or has no such task.
    """
    from bertjax import opening
    from bertjax.inference.predictor import Predictor

    return Predictor(opening.SavedModel(name, trust_code, task).export)
