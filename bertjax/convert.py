"""python -m bertjax.convert: Hugging Face checkpoints to bertjax and back, and either to ONNX."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from bertjax import cli, export
from bertjax.cli import command
from bertjax.errors import UserError
from bertjax.hardware import platform
from bertjax.inference.masked import masked_lm
from bertjax.interop import card, huggingface, onnx
from bertjax.opening import SavedModel


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a conversion came to.

    Attributes:
      target: the folder or file that was written.
      made: what it is: a folder of `transformers`, an `export` or an `onnx` file.
      has_heads: whether it can be evaluated, or only loaded and trained.
      notes: what there is to say of the model, a line each.
    """

    target: Path
    made: str
    has_heads: bool
    notes: tuple[str, ...]


def run(source: str | os.PathLike, target: str | os.PathLike) -> Summary:
    """Converts a model; the direction follows from what `source` holds and from whether `target` ends in `.onnx`.

    Args:
      source: a folder of transformers (`config.json` and weights), or an export, a workdir `RUN` or `RUN@STEP`.
      target: a folder that is empty or not there yet, or a file `MODEL.onnx` that is not there yet.

    Raises:
      UserError: nothing readable is there, it is of no family that is converted, a name is left over on either side, or
        the target is not empty.
      RunFailed: see `onnx.write`.
    """
    path, target = Path(os.path.expanduser(os.fspath(source))), Path(os.path.expanduser(os.fspath(target)))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"--to={target} is there already and not empty; name another, or remove it")
    from_huggingface = huggingface.is_checkpoint(path) and not (path / export.MANIFEST).exists()
    to_onnx = target.suffix == onnx.SUFFIX
    if to_onnx:
        onnx.check_installed()
    found, notes = huggingface.read(path) if from_huggingface else (SavedModel(source).export, [])
    if to_onnx:
        target.parent.mkdir(parents=True, exist_ok=True)
        notes += onnx.write(target, found)
    elif from_huggingface:
        export.write(target, found)
    else:
        notes = huggingface.write(target, found)
    made = "onnx" if to_onnx else "export" if from_huggingface else "transformers"
    return Summary(target, made, masked_lm(found) is not None, tuple(notes))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m bertjax.convert",
        description="Converts a model of Hugging Face transformers to bertjax, or one of bertjax to transformers:\n"
        "BERT, ALBERT, ELECTRA, DistilBERT, RoBERTa and XLNet. The direction follows from what the folder holds;\n"
        "a BERT becomes ONNX where --to ends in .onnx. PyTorch and transformers need not be installed, but for ONNX.",
        epilog="examples:\n"
        "  a run to transformers:       python -m bertjax.convert --from=runs/tiny --to=hf/tiny\n"
        "  one of its checkpoints:      python -m bertjax.convert --from=runs/tiny@3500 --to=hf/tiny-3500\n"
        "  a downloaded model to here:  python -m bertjax.convert --from=downloads/bert --to=models/bert\n"
        "  either to ONNX:              python -m bertjax.convert --from=runs/tiny --to=tiny.onnx\n\n"
        "A folder of transformers holds config.json, model.safetensors (or pytorch_model.bin, of which nothing is\n"
        "run) and the tokenizer. The classes that are converted end in Model, ForMaskedLM and ForPreTraining; of\n"
        "ELECTRA it is the discriminator. Every tensor is accounted for: a name that is left over is an error.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="DIR",
        help="a folder of transformers, an export, RUN or RUN@STEP",
    )
    parser.add_argument("--to", dest="target", required=True, metavar="DIR", help="the folder or .onnx file to write")
    args = parser.parse_args(argv)
    platform.configure_logging()
    platform.configure("cpu")  # checkpoints are read through JAX, and nothing is computed
    print(_told(run(args.source, args.target)))
    return 0


def _told(summary: Summary) -> str:
    target = str(summary.target)
    if summary.made == "transformers":
        following = f"AutoModel.from_pretrained({target!r}), see {summary.target / card.FILE}"
    elif summary.made == "onnx":
        following = f"onnxruntime.InferenceSession({target!r}).run(None, tokenized), see docs/guides/huggingface.md"
    elif summary.has_heads:
        following = command("evaluate", target, "--corpus=embedded:en")
    else:
        following = f"module, params, tokenizer = bertjax.load({target!r})"
    return "\n".join([*summary.notes, f"{summary.made:<12}  {target}", f"{'next':<12}  {following}"])


if __name__ == "__main__":
    sys.exit(cli.exit_code_of(main))
