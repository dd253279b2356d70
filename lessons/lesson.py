"""What the lessons share: the path to bertjax, two sizes, pictures, grading, and one small trained model.

A lesson imports this file from its own folder, so it also runs where bertjax is not installed.
"""

import contextlib
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import matplotlib.figure
import numpy as np

if TYPE_CHECKING:
    from bertjax.config.config import Config
    from bertjax.data.store import TokenStore

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Last in the path: an installed bertjax is used if there is one.
sys.path += [str(HERE), str(ROOT)]

# `LESSONS=smoke` runs everything once on very small models, to show that it runs. Its numbers mean nothing.
SMOKE = os.environ.get("LESSONS") == "smoke"
RUNS = Path("runs") / "lessons"

T = TypeVar("T")


def size(full: T, smoke: T) -> T:
    """Return the first value, or the second with `LESSONS=smoke`."""
    return smoke if SMOKE else full


def picture(figure: matplotlib.figure.Figure, name: str) -> None:
    """Store a figure as `runs/lessons/NAME.png` and print its path; a notebook also shows it below the cell."""
    RUNS.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(RUNS / f"{name}.png", dpi=120)
    print(f"picture: {RUNS / name}.png")


def grade(function: Callable) -> None:
    """Run the tests of one exercise, and print for each if it passed or what is wrong.

    `pytest lessons/test_N.py` runs the same tests on the saved file of the lesson.
    """
    name = function.__name__
    tests = [
        test
        for path in sorted(HERE.glob("test_*.py"))
        for test in vars(importlib.import_module(path.stem)).values()
        if inspect.isfunction(test) and test.__name__.startswith("test_") and name in inspect.signature(test).parameters
    ]
    if not tests:
        print(f"{name}: no exercise has this name")
    for test in tests:
        title = test.__name__.removeprefix("test_").replace("_", " ")
        try:
            test(function)
        except NotImplementedError:
            print(f"{name}: not written yet")
            return
        except AssertionError as error:
            print(f"{name}: WRONG: {title}: {str(error).partition(chr(10))[0]}")
        except Exception as error:  # whatever the student's code raises
            print(f"{name}: WRONG: {title}: {type(error).__name__}: {error}")
        else:
            print(f"{name}: right: {title}")


def config() -> "Config":
    """Return the configuration of lessons 3 to 6: `configs/tiny.py:adamw` with 2 layers of width 128 and 4 heads."""
    from bertjax.config import config_file

    steps, width = size(2000, 20), size(128, 32)
    settings = [f"model.width={width}", f"model.feedforward={4 * width}", "model.layers=2", "model.init_stddev=0.06"]
    settings += [f"data.tokenizer.vocab_size={size(4000, 1000)}", f"eval.rows={size(1024, 64)}"]
    settings += [f"stages.0.steps={steps}", f"optimizer.warmup_steps={steps // 10}", f"eval.every={steps // 2}"]
    return config_file.load(f"{ROOT}/configs/tiny.py:adamw", [*settings, "optimizer.learning_rate=2e-3"])


def trained() -> str:
    """Return the path of a small trained BERT; train it first if it does not exist. Lessons 4 to 6 share it."""
    from bertjax.cli import train

    workdir = RUNS / size("small", "smoke")
    if not (workdir / "export" / "bertjax.json").exists():
        train.run(config(), workdir)
    return str(workdir / "export")


def prepared() -> "TokenStore":
    """Return the token store of the embedded corpus; `prepare` makes it once and prints a report, which is left out."""
    from bertjax.data.preparation.prepare import prepare

    with contextlib.redirect_stdout(io.StringIO()):
        return prepare(config().data)


def heldout_rows(count: int) -> np.ndarray:
    """Return rows of 32 tokens of documents that the model never trained on: `[CLS]`, 30 tokens of text, `[SEP]`.

    Args:
      count: number of rows; the result is int32 [count, 32].
    """
    store = prepared()
    text = store.split("heldout").tokens
    rows = np.asarray(text[: 30 * count], np.int32).reshape(-1, 30)
    return np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (store.tokenizer.cls_id, store.tokenizer.sep_id)))


def masked_loss(module, params, tokens_BT, mask_id, head_mask_LH):
    """Return the mean of -log p of every sixth token, which `[MASK]` hides; in nats.

    Args:
      module: the encoder, a Flax module.
      params: parameters of the encoder and of its heads, {"encoder", "heads"}.
      tokens_BT: int32 [B, T], rows without padding.
      mask_id: id of `[MASK]`.
      head_mask_LH: float [L, H], a factor for each head: 1 leaves it as it is, 0 switches it off.
    """
    import jax

    from bertjax import nano

    masked_BT = tokens_BT.at[:, 3::6].set(mask_id)
    variables = {"params": params["encoder"], "taps": {"head_mask": head_mask_LH}}
    hidden_BKD = module.apply(variables, masked_BT).hidden[:, 3::6]
    head = params["heads"]["mlm"]  # the same lines as in nano.loss
    guess_BKD = nano.layer_norm(head["norm"], nano.gelu(nano.dense(head["transform"], hidden_BKD)))
    logits_BKV = guess_BKD @ params["encoder"]["embeddings"]["word"].T + head["word_bias"]
    log_BKV = jax.nn.log_softmax(logits_BKV[..., : module.config.vocab_size])
    return -jax.numpy.take_along_axis(log_BKV, tokens_BT[:, 3::6, None], axis=-1).mean()
