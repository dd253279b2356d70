"""python -m bertjax.convert: Hugging Face checkpoints to bertjax and back."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from bertjax import errors, export, opening
from bertjax.commands import command
from bertjax.errors import UserError
from bertjax.interop import card, huggingface
from bertjax.training import platform


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a conversion came to.

    Attributes:
      target: the folder that was written.
      to_huggingface: whether transformers opens it, or else bertjax.
      has_heads: whether it can be evaluated, or only loaded.
      notes: what there is to say of the model, a line each.
    """

    target: Path
    to_huggingface: bool
    has_heads: bool
    notes: tuple[str, ...]


def run(source: str | os.PathLike, target: str | os.PathLike) -> Summary:
    """Converts a model; the direction follows from what `source` holds.

    Args:
      source: a folder of transformers (`config.json` and weights), or an export, a workdir `RUN` or `RUN@STEP`.
      target: a folder that is empty or not there yet.

    Raises:
      UserError: nothing readable is there, it is no BERT, a name is left over on either side, or the target is not
        empty.
    """
    path, target = Path(os.path.expanduser(os.fspath(source))), Path(os.path.expanduser(os.fspath(target)))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"--to={target} is there already and not empty; name another folder, or remove it")
    from_huggingface = huggingface.is_checkpoint(path) and not (path / export.RECORD).exists()
    if from_huggingface:
        found, notes = huggingface.read(path)
        export.write(target, found)
    else:
        found = opening.open_model(source)
        notes = huggingface.write(target, found)
    return Summary(target, not from_huggingface, "heads" in found.params, tuple(notes))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = errors.ArgumentParser(
        prog="python -m bertjax.convert",
        description="Converts a BERT of Hugging Face transformers to bertjax, or one of bertjax to transformers. The\n"
        "direction follows from what the folder holds. PyTorch and transformers need not be installed.",
        epilog="examples:\n"
        "  a run to transformers:       python -m bertjax.convert --from=runs/tiny --to=hf/tiny\n"
        "  one of its checkpoints:      python -m bertjax.convert --from=runs/tiny@3500 --to=hf/tiny-3500\n"
        "  a downloaded model to here:  python -m bertjax.convert --from=downloads/bert --to=models/bert\n\n"
        "A folder of transformers holds config.json, model.safetensors (or pytorch_model.bin, of which nothing is\n"
        "run) and the tokenizer; BertModel, BertForMaskedLM and BertForPreTraining are converted. Every tensor is\n"
        "accounted for: a name that is left over on either side is an error.",
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
    parser.add_argument("--to", dest="target", required=True, metavar="DIR", help="the folder to write, not there yet")
    args = parser.parse_args(argv)
    platform.configure_logging()
    platform.configure("cpu")  # checkpoints are read through JAX, and nothing is computed
    print(_told(run(args.source, args.target)))
    return 0


def _told(summary: Summary) -> str:
    target = str(summary.target)
    if summary.to_huggingface:
        made, following = "transformers", f"AutoModel.from_pretrained({target!r}), see {summary.target / card.FILE}"
    elif summary.has_heads:
        made, following = "export", command("evaluate", target, "--corpus=embedded:en")
    else:
        made, following = "export", f"module, params, tokenizer = bertjax.load({target!r})"
    return "\n".join([*summary.notes, f"{made:<12}  {target}", f"{'next':<12}  {following}"])


if __name__ == "__main__":
    sys.exit(errors.exit_code_of(main))
