"""bertjax pretrains BERT-family encoders in JAX, from raw text to an encoder that other libraries load.

Terms that have one meaning in the whole code::

    corpus, document, sentence   input text; a unit of consecutive sentences; a part of a document
    token store                  the prepared corpus: a folder with memory-mapped token ids and offsets
    example, row, batch          one [CLS] ... [SEP] sequence; one line of a batch, with one or more examples; all rows
                                 in a step, on all hosts
    plan                         how a store is cut into rows, for one example format and row length
    objective, term, task        a prediction problem; a summand of its loss; an objective with examples and a weight
    stage                        consecutive steps with fixed shapes
    encoder, head, preset        the Transformer; layers from hidden states to logits; a published architecture
    tap                          a named per-layer value to capture, or a mask to apply
    teacher, student             a frozen model that gives targets; the model trained on them
    workdir, checkpoint, export  everything that a run writes; one saved training state; the finished model
    forecast                     memory, time and communication on an absent TPU, from compiling for it

Array names end with the letters of their axes, such as `hidden_BTD` or `logits_BKV`::

    B  batch rows                  D  model width          L  layers
    T  tokens per row              F  feed-forward width   V  vocabulary size
    K  predicted tokens per row    H  attention heads      E  embedding width
    N  examples per row            Q  attention queries
"""

import os
import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036 - a clone runs without pip having checked
    print(f"error: bertjax needs Python 3.11 or newer, this is {sys.version.split()[0]}; see README", file=sys.stderr)
    raise SystemExit(2)

if TYPE_CHECKING:
    from bertjax.config.opening import Model
    from bertjax.inference.predictor import Predictor

__version__ = "0.1.0"


def load(name: str | os.PathLike, trust_code: bool = False) -> "Model":
    """Read a pretrained encoder: `module, params, tokenizer = bertjax.load("RUN/export")`.

    Args:
      name: path to an export folder, a workdir `RUN` (newest checkpoint) or `RUN@STEP`; or `hf:OWNER/NAME@REVISION`, a
        model of the Hugging Face Hub, which is downloaded and converted once.
      trust_code: import the modules that the model names as `module:Class`, which runs their code. Needed only for an
        encoder with a block or embeddings of a user.

    Raises:
      UserError: `name` is not a model, or the model is damaged.
      Untrusted: the encoder's class is in a module that is not imported, and `trust_code` is False.
    """
    from bertjax.config import opening  # here, so that `import bertjax` stays fast and starts no backend

    return opening.load(name, trust_code)


def predictor(name: str | os.PathLike, trust_code: bool = False, task: str = "") -> "Predictor":
    """Read a model for inference: `bertjax.predictor("RUN/export").fill(["The king is [MASK]."])` or `.embed(texts)`.

    Args:
      name: path to an export folder, `RUN` or `RUN@STEP`.
      trust_code: import the modules that the model names as `module:Class`, which runs their code.
      task: task to predict, if the model was fine-tuned on several.

    Raises:
      UserError: `name` is not a model, or the model is damaged or has no such task.
    """
    from bertjax.config import opening
    from bertjax.inference.predictor import Predictor

    return Predictor(opening.SavedModel(name, trust_code, task).export)
