"""Convert a model of Hugging Face transformers to bertjax, or a model of bertjax to transformers or ONNX.

The direction follows from the content of --from. It becomes ONNX if --to ends in .onnx. ONNX needs PyTorch and
transformers, pytorch_model.bin needs PyTorch.

examples:
  a run to transformers:       python -m bertjax convert --from=runs/tiny --to=hf/tiny
  one of its checkpoints:      python -m bertjax convert --from=runs/tiny@750 --to=hf/tiny-750
  a downloaded model to here:  python -m bertjax convert --from=downloads/bert --to=models/bert
  one of the Hub, by revision: python -m bertjax convert --from=hf:OWNER/NAME@main --to=models/bert
  both to ONNX:                python -m bertjax convert --from=runs/tiny --to=tiny.onnx
  in int8, for a browser:      python -m bertjax convert --from=runs/tiny --to=hf/tiny --quantize=int8
  the same, with its score:    python -m bertjax convert --from=runs/reviews --to=reviews.onnx \\
                                   --quantize=int8 --score=test.csv

A folder of transformers holds config.json, model.safetensors (or pytorch_model.bin, whose code is never
run) and the tokenizer. Classes that end in Model, ForMaskedLM and ForPreTraining are converted (for ELECTRA
the discriminator), and ForSequenceClassification, ForTokenClassification, ForQuestionAnswering and
ForMultipleChoice with their labels. A tensor without a counterpart is an error; --encoder-only leaves heads
out.
"""

import functools
import os
from pathlib import Path

from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.inference import description
from bertjax.inference import onnx as engine
from bertjax.inference.fill import masked_lm
from bertjax.interop import card, families, hub, huggingface, onnx, task_heads
from bertjax.runtime import command_line, platform, storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError, printable, say
from bertjax.serving import latency


def run(
    source: str | os.PathLike,
    target: str | os.PathLike,
    encoder_only: bool = False,
    quantized: bool = False,
    score: str = "",
) -> list[str]:
    """Convert a model. The content of `source` and the suffix of `target` decide the direction.

    Args:
      source: a transformers folder (`config.json` and weights), an export folder, a workdir `RUN` or `RUN@STEP`, or a
        model of the Hugging Face Hub, `hf:OWNER/NAME@REVISION`.
      target: an empty or new folder, or a new file `MODEL.onnx`.
      encoder_only: whether to leave out heads and pooler, which makes models with unknown heads convertible.
      quantized: whether to write ONNX in int8. If `target` is a folder, it becomes a transformers folder with the file
        in `onnx.INT8_PLACE`.
      score: labeled file to score the files in float32 and in int8 on; none if empty.

    Returns:
      Lines to print: remarks on the model, the folder or file that is written, and what to do with it next.

    Raises:
      UserError: the source is not a model, bertjax does not convert its family, a tensor has no counterpart, it has
        int8 weights already, or the target is not empty.
      RunFailed: see `onnx.write` and `onnx.write_int8`.
    """
    if score and not quantized:
        raise UserError(f"--score={score} compares int8 with float32; add --quantize=int8, or use bertjax evaluate")
    target = command_line.new_target(target)
    source = hub.downloaded(os.fspath(source)) if hub.is_name(source) else source
    path = Path(os.path.expanduser(os.fspath(source)))
    # A folder may be both. The export is read then: it also has the settings and numbers of the run.
    from_huggingface = huggingface.is_checkpoint(path) and not (path / export.MANIFEST).exists()
    saved = None if from_huggingface else SavedModel(source)
    if saved is not None:  # before it is opened, for which the code of a user's block would have to be trusted
        huggingface.check_kinds(saved.settings.get("model"))
    to_onnx = target.suffix == engine.SUFFIX
    if quantized and export.is_quantized(path):
        raise UserError(f"{path} has int8 weights already; leave out --quantize, or name the model that it is from")
    if to_onnx or quantized:  # before a large model is read
        onnx.check_installed()
    # `encoder_only` while reading: heads that have no counterpart here are not even looked at.
    model, notes = huggingface.read(path, encoder_only) if saved is None else (saved.export, [])
    if saved is not None:
        saved.note_unfinished("converted")
    if encoder_only:
        model = huggingface.encoder_alone(model)
        notes.append("heads and pooler not converted")
    if score:  # before PyTorch exports the model
        engine.read(onnx.description_of(model), score)
    compare = functools.partial(latency.compared, path=score) if score else lambda whole, small: []
    if to_onnx:
        target.parent.mkdir(parents=True, exist_ok=True)
        notes += onnx.write_int8(target, model, compare=compare) if quantized else onnx.write(target, model)
    else:
        # A draft that becomes the target when all of it is written.
        with storage.whole_folder(target) as draft:
            if from_huggingface and not quantized:
                export.write(draft, model)
            else:
                notes = [*huggingface.write(draft, model), *notes]
            if quantized:
                (draft / onnx.INT8_PLACE).parent.mkdir()
                notes += onnx.write_int8(draft / onnx.INT8_PLACE, model, compare=compare)
                notes.append(f"int8: {target / onnx.INT8_PLACE}")
    kind = "onnx" if to_onnx else "export" if from_huggingface and not quantized else "transformers"
    has_heads = masked_lm(model) is not None if from_huggingface else bool(model.params.get("heads"))
    task = next((term for term in task_heads.TERMS if term in model.params.get("heads", {})), "")
    next_step = _next_step(target, kind, task, has_heads)
    return [*map(printable, notes), f"{kind:<12}  {target}", f"{'next':<12}  {next_step}"]


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = command_line.ArgumentParser(
        "convert", f"{__doc__}\nFamilies: {', '.join(family.title for family in families.FAMILIES)}."
    )
    parser.add_flags(
        {
            "--from=DIR": "model to convert: a folder of transformers, an export folder, a workdir, WORKDIR@STEP, or "
            "hf:OWNER/NAME@REVISION of the Hugging Face Hub"
        },
        dest="source",
        required=True,
    )
    parser.add_flags({"--to=DIR": "folder or .onnx file to write"}, dest="target", required=True)
    parser.add_flags(
        {"--encoder-only": "leave out heads and pooler, as for a model whose heads the other library does not have"},
        action="store_true",
    )
    parser.add_flags(
        {
            "--quantize": "write ONNX in int8: the file of --to=MODEL.onnx, or in a folder of transformers "
            f"{onnx.INT8_PLACE}"
        },
        choices=("int8",),
    )
    parser.add_flags(
        {"--score=FILE": "with --quantize: score both files on this labeled file, and measure the time of a text"}
    )
    args = parser.parse_args(argv)
    platform.configure("cpu")  # JAX only reads checkpoints here
    say("\n".join(run(args.source, args.target, args.encoder_only, bool(args.quantize), args.score)))
    return 0


def _next_step(target: Path, kind: str, task: str, has_heads: bool) -> str:
    if kind == "transformers":
        return f"{target / card.FILE} has the code that loads it"
    if kind == "onnx":
        is_served = (task or description.EMBEDDING) in description.TASKS
        return command("serve", str(target)) if is_served else f"onnxruntime.InferenceSession({str(target)!r})"
    if task:
        return command("predict", str(target), "--file=RECORDS.jsonl")
    if has_heads:
        return command("evaluate", str(target), "--corpus=embedded:en")
    return f"module, params, tokenizer = bertjax.load({str(target)!r})"
