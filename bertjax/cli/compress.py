"""Write a smaller export of a model: with fewer layers, heads, feed-forward neurons or pieces, or with int8 weights.

Cuts cost accuracy, which training the smaller model restores in part.

examples:
  two of three layers:      python -m bertjax compress runs/tiny --to=models/short --layers=0,2
  narrower by importance:   python -m bertjax analyze runs/tiny --parts=importance --out=report
                            python -m bertjax compress runs/tiny --to=models/narrow --heads=2 --mlp=512 \\
                                --importance=report/importance.json
  the pieces of a domain:   python -m bertjax compress models/bert --to=models/law --vocabulary=my/laws
  a quarter of the bytes:   python -m bertjax compress models/bert --to=models/int8 --quantize=int8
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.analysis import smaller_models
from bertjax.cli import bench
from bertjax.config import export
from bertjax.config.config import Config
from bertjax.config.export import Export
from bertjax.config.opening import SavedModel
from bertjax.data import sources
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.tokenizer import Tokenizer, resizing
from bertjax.interop import task_heads
from bertjax.models import cut, vocabulary
from bertjax.models.config import EncoderConfig
from bertjax.models.taps import FEEDFORWARD_MASK, HEAD_MASK
from bertjax.runtime import command_line, platform, storage
from bertjax.runtime.command_line import command
from bertjax.runtime.errors import UserError, printable, say
from bertjax.runtime.storage import split_name
from bertjax.training.results import rescore

FLOAT32_BYTES = 4
_BATCH_CHARACTERS = 10_000_000
# Time for the latency of each model.
_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Cuts to make in a model.

    Attributes:
      layers: layers to keep, counted from 0, ascending; empty for all.
      heads: heads to keep in each layer; 0 for all.
      mlp: feed-forward neurons to keep in each layer; 0 for all.
      importance: path of an `cut.json`; the most important heads and neurons are kept.
      vocabulary: a corpus as in `data.corpus`; pieces that do not occur in it are removed. Empty for all pieces.
      text_field: field, column or feature of that corpus with the document text.
    """

    layers: tuple[int, ...] = ()
    heads: int = 0
    mlp: int = 0
    importance: str = ""
    vocabulary: str = ""
    text_field: str = "text"


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of a compression.

    Attributes:
      target: the new export folder.
      encoders: architecture before and after.
      parameters: parameter counts before and after, heads included.
      bytes: weight bytes before (in float32) and after (`model.safetensors`).
      scores: {metric: (before, after)}; empty without a corpus to score.
      baselines: {metric: (before, after)} for baselines.
      notes: remarks, one line each.
      is_fine_tuned: whether the model has a head trained on labels.
      milliseconds: median time of a text before and after; None without a corpus to score.
    """

    target: Path
    encoders: tuple[EncoderConfig, EncoderConfig]
    parameters: tuple[int, int]
    bytes: tuple[int, int]
    scores: dict[str, tuple[float, float]]
    baselines: dict[str, tuple[float, float]]
    notes: tuple[str, ...]
    is_fine_tuned: bool
    milliseconds: tuple[float, float] | None = None


def run(
    source: str | os.PathLike,
    target: str | os.PathLike,
    cuts: Cuts = Cuts(),
    quantized: bool = False,
    score: str = "",
    trust_code: bool = False,
) -> Summary:
    """Write a smaller model; if anything fails, nothing is written.

    Args:
      source: an export folder, a workdir `RUN` or `RUN@STEP`.
      target: a folder that is empty or does not exist.
      cuts: cuts to make.
      quantized: store kernels and word embeddings as int8 (`bertjax.models.int8`).
      score: corpus or labeled file to score the model on before and after, as in `bertjax evaluate`.
      trust_code: import the modules that the model names as `module:Class`, for the score.

    Raises:
      UserError: there is nothing to do, a cut does not fit the model, or a file cannot be read.
    """
    path, target = Path(split_name(source)[0]), command_line.new_target(target)
    if dataclasses.replace(cuts, text_field=Cuts.text_field) == Cuts() and not quantized:
        raise UserError("nothing to compress; give --layers, --heads, --mlp, --vocabulary or --quantize")
    if quantized and export.is_quantized(path):
        raise UserError(f"{path} has int8 weights already; leave out --quantize, or name the model that it is from")
    saved = SavedModel(source, trust_code)
    model = saved.export
    if score and "generator" in model.params and (cuts.layers or cuts.heads or cuts.mlp):
        raise UserError(
            f"--score={score} cannot score the cut model: its generator, which replaces tokens, is not kept; leave out "
            "--score"
        )
    smaller, notes = compressed(model, cuts)
    before = rescore.run(os.fspath(source), score, trust_code) if score else {}
    with storage.whole_folder(target) as folder:
        export.write(folder, smaller, quantized)
        # Score both with the settings of `source`: a run names its training file, which baselines need; exports do not.
        written, config = SavedModel(folder, trust_code), saved.config_of(smaller.settings) if score else None
        after = rescore.score(written, config, score) if config else {}
        weights = (folder / export.WEIGHTS).stat().st_size
        times = [_milliseconds(name, config, score, trust_code) for name in (source, folder)] if config else []
    parameters = [vocabulary.count_parameters(each.params, each.encoder) for each in (model, smaller)]
    return Summary(
        target,
        (model.encoder, smaller.encoder),
        (parameters[0], parameters[1]),
        # Computed, because a run's checkpoint has no weights file to measure.
        (parameters[0] * FLOAT32_BYTES, weights),
        _pairs(before, after, "eval"),
        _pairs(before, after, "baseline"),
        tuple(notes),
        any(term in model.params.get("heads", {}) for term in task_heads.TERMS),
        (times[0], times[1]) if times else None,
    )


def _milliseconds(name: str | os.PathLike, config: Config, score: str, trust_code: bool) -> float:
    """Return the median time per text, in the scored labeled file or else the embedded corpus."""
    file = score if isinstance(config.task.examples, LabeledFormat) else ""
    [result] = bench.run([os.fspath(name)], file, batches=(1,), seconds=_SECONDS, trust_code=trust_code)
    return result["p50"] * 1e3


def compressed(model: Export, cuts: Cuts) -> tuple[Export, list[str]]:
    """Return a smaller model, and remarks on it, one line each.

    Raises:
      UserError: a cut does not fit the model, or a file cannot be read.
    """
    _check(model.encoder, cuts)
    # Heads and neurons first: importance is given for all layers, so it must be read before layers are cut.
    before, notes = model.encoder, []
    if cuts.vocabulary:
        model, note = _trimmed(model, cuts.vocabulary, cuts.text_field)
        notes.append(note)
    params, encoder = model.params["encoder"], model.encoder
    if cuts.heads or cuts.mlp:
        order = cut.read_importance(cuts.importance, before)
    if cuts.heads:
        kept = cut.most_important(order.heads, before, "attention", cuts.heads)
        params, encoder = cut.heads(params, encoder, kept)
        if encoder.context_width != encoder.layer_width:
            notes.append(
                f"{encoder.heads} heads of width {encoder.head_channels} do not fill the width {encoder.layer_width}: "
                "a conversion to transformers or ONNX puts zeros in place of the heads that were cut, and gains "
                "nothing from them"
            )
    if cuts.mlp:
        kept = cut.most_important(order.neurons, before, "intermediate", cuts.mlp)
        params, encoder = cut.neurons(params, encoder, kept)
    if cuts.layers:
        params, encoder = cut.layers(params, encoder, cuts.layers)
    everything = model.params | {"encoder": params}
    if cuts.layers:
        # A head that reads a mix of all layers has a weight for each of them.
        everything["heads"] = cut.mixes(everything.get("heads", {}), cuts.layers)
        model = model._replace(settings=_of_layers(model.settings, cuts.layers))
    # The widths of ELECTRA's generator are shares of the encoder's (`generator_share`), so it does not fit a cut one.
    if encoder != model.encoder and "generator" in everything:
        del everything["generator"]
        everything["heads"] = {name: head for name, head in everything["heads"].items() if name != "mlm"}
        notes.append("generator and its head not kept: continued pretraining draws a new one of the smaller size")
    # Scores of the whole model must not pass for scores of the smaller one.
    numbers = {"before_compression": model.numbers} if model.numbers else {}
    return export.with_encoder(model, encoder, everything)._replace(numbers=numbers), notes


def _of_layers(settings: dict[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """Return settings in which per-layer values are kept only for the remaining layers."""

    def chosen(mapping: dict[str, Any], field: str) -> dict[str, Any]:
        values = mapping.get(field)
        return mapping | {field: [values[layer] for layer in layers]} if values else mapping

    optimizer = settings.get("optimizer", {})
    multipliers = [chosen(multiplier, "by_layer") for multiplier in optimizer.get("multipliers", [])]
    return settings | {
        "optimizer": optimizer | {"multipliers": multipliers},
        "quantization": chosen(settings.get("quantization", {}), "layer_bits"),
    }


def _check(encoder: EncoderConfig, cuts: Cuts) -> None:
    """Raise UserError unless the cuts fit the encoder."""
    listed = ",".join(map(str, cuts.layers))
    if cuts.layers and encoder.sharing != "none":
        raise UserError(
            f"--layers={listed} has no effect on a model whose layers share parameters "
            f"(model.sharing={encoder.sharing}); cut --heads or --mlp, or train a shallower model"
        )
    if list(cuts.layers) != sorted(set(cuts.layers)) or not set(cuts.layers) <= set(range(encoder.layers)):
        raise UserError(
            f"--layers={listed} does not fit a model of {encoder.layers} layers; list different layers from 0 to "
            f"{encoder.layers - 1} in ascending order"
        )
    if moved := cut.moved(encoder, cuts.layers):
        raise UserError(f"--layers={listed} moves layers: {moved}; choose layers that keep the pattern")
    if cuts.heads:
        try:
            cut.check_heads(encoder)
        except ValueError as error:
            raise UserError(f"--heads={cuts.heads} does not fit: {error}; cut --mlp or --layers") from None
    for flag, count, most, unit, mask in (
        ("--heads", cuts.heads, encoder.heads, "heads", HEAD_MASK),
        ("--mlp", cuts.mlp, encoder.feedforward, "feed-forward neurons", FEEDFORWARD_MASK),
    ):
        if count and mask not in encoder.block.masks:
            raise UserError(
                f"{flag}={count} cuts {unit}, which layers of model.block.kind={encoder.block.kind} do not have; leave "
                "it out"
            )
        if count and not 1 <= count < most:
            raise UserError(f"{flag}={count} is not a cut of {most} {unit}; give a number from 1 to {most - 1}")
        if flag == "--mlp" and count and encoder.block.feedforwards > 1:
            raise UserError(
                f"--mlp={count} cuts one feed-forward network of a layer, and the model has "
                f"model.block.feedforwards={encoder.block.feedforwards}; cut --heads or --layers"
            )
        if count and not cuts.importance:
            raise UserError(
                f"{flag}={count} needs --importance=FILE to order {unit}; make one with "
                f"{command('analyze', 'MODEL', '--parts=importance')}"
            )
    if cuts.heads and encoder.block.fixed_heads:
        raise UserError(
            f"--heads={cuts.heads} cannot cut a model with model.block.fixed_heads={list(encoder.block.fixed_heads)}, "
            "whose heads have an order; cut --mlp or --layers"
        )
    if cuts.importance and not (cuts.heads or cuts.mlp):
        raise UserError(f"--importance={cuts.importance} orders heads and neurons; add --heads or --mlp")
    if cuts.text_field != Cuts.text_field and not cuts.vocabulary:
        raise UserError(f"--text-field={cuts.text_field} is a field of the corpus of --vocabulary; add --vocabulary")


def _trimmed(model: Export, corpus: str, text_field: str) -> tuple[Export, str]:
    """Return the model with only the pieces that a corpus uses, and a remark.

    Raises:
      UserError: the corpus cannot be read or has no text.
    """
    tokenizer = model.tokenizer
    used, tokens = np.zeros(tokenizer.vocab_size, bool), 0
    for lines in _batches(corpus, text_field):
        for ids in _encoded(tokenizer, lines):
            used[ids] = True
        # `ids` is now the whole batch in sequence, the last of the two encodings: count each token once.
        tokens += len(ids)
    if not tokens:
        raise UserError(f"--vocabulary={corpus} has no text; name a corpus with documents")
    trimmed, kept = resizing.trim(tokenizer, np.flatnonzero(used))
    # Without the unused pieces a tokenizer may split a word differently: encode the corpus again and compare all ids.
    for lines in _batches(corpus, text_field):
        for old, new in zip(_encoded(tokenizer, lines), _encoded(trimmed, lines), strict=True):
            if not np.array_equal(old, kept[new]):
                raise UserError(
                    f"--vocabulary={corpus} cannot be trimmed to: this tokenizer splits its texts in another way "
                    "without the unused pieces; leave out --vocabulary"
                )
    encoder = dataclasses.replace(model.encoder, vocab_size=len(kept))
    # Word tables and output biases lose the same rows.
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf[kept] if vocabulary.has_vocabulary_axis(path) else leaf, model.params
    )
    note = f"the {tokens:,} tokens of {corpus} are the same as before; {np.sum(used):,} pieces occur in it"
    return model._replace(encoder=encoder, params=vocabulary.pad(params, encoder), tokenizer=trimmed), note


def _batches(corpus: str, text_field: str):
    """Yield a corpus as lists of lines, about 10 million characters each, to bound memory."""
    lines, characters = [], 0
    for document in sources.documents(corpus, text_field):
        lines += filter(str.strip, document.text.splitlines())
        characters += len(document.text)
        if characters > _BATCH_CHARACTERS:
            yield lines
            lines, characters = [], 0
    if lines:
        yield lines


def _encoded(tokenizer: Tokenizer, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of lines as separate texts, and of lines that follow others: BPE puts a space before these."""
    alone = [token_id for ids in tokenizer.encode(lines) for token_id in ids]
    return np.array(alone, np.int64), tokenizer.encode_flat(lines)[0]


def _pairs(before: dict[str, Any], after: dict[str, Any], kind: str) -> dict[str, tuple[float, float]]:
    return {name: (value, after[kind][name]) for name, value in before.get(kind, {}).items() if name in after[kind]}


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("compress", __doc__)
    command_line.add_model_and_target(parser)
    parser.add_flags(
        {
            "--layers=I,J,...": "layers to keep, counted from 0",
            "--importance=FILE": "importance.json of bertjax analyze, which orders both",
            "--vocabulary=CORPUS": "keep the pieces that this corpus uses",
            "--text-field": "field of that corpus that holds a document (default: %(default)s)",
            "--score=CORPUS": "score before and after on this corpus or labeled file",
        }
    )
    parser.set_defaults(text_field=Cuts.text_field)
    parser.add_flags(
        {"--heads=N": "heads to keep in each layer", "--mlp=N": "feed-forward neurons to keep in each layer"},
        type=command_line.positive,
        default=0,
    )
    parser.add_flags({"--quantize": "store kernels and word embeddings as int8 with scales"}, choices=("int8",))
    command_line.add_trust_flag(parser)
    command_line.add_platform_flag(parser)
    args = parser.parse_args(argv)
    cuts = Cuts(_numbers(args.layers), args.heads, args.mlp, args.importance, args.vocabulary, args.text_field)
    platform.configure(args.platform)
    with contextlib.redirect_stdout(sys.stderr):  # preparing a corpus prints; stdout is for the summary only
        summary = run(args.model, args.target, cuts, bool(args.quantize), args.score, args.trust_code)
    say(_text(summary))
    made = command("compress", *(sys.argv[2:] if argv is None else argv))
    facts = summary.parameters, summary.bytes, summary.scores, summary.milliseconds
    try:
        if run_folder := smaller_models.record(args.model, made, *facts):
            say(f"{'page':<12}  {command('report', run_folder)} lists it beside what else was tried")
    except storage.StorageError as error:  # a run that only others may write; the model is there
        say(f"{'page':<12}  the run's page will not list it: {printable(str(error))}")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise UserError(f"--layers={text} is not a list of numbers; write for example --layers=0,2,5") from None


def _text(summary: Summary) -> str:
    before, after = summary.encoders
    lines = list(map(printable, summary.notes))
    for name, field in (("layers", "layers"), ("heads", "heads"), ("mlp", "feedforward"), ("ids", "vocab_size")):
        old, new = getattr(before, field), getattr(after, field)
        lines.append(f"{name:<12}  {old:,} -> {new:,}" if new != old else f"{name:<12}  {old:,}, as before")
    for name, (old, new) in (("parameters", summary.parameters), ("bytes", summary.bytes)):
        lines.append(f"{name:<12}  {old:,} -> {new:,} ({new / old:.1%})")
    for label, values in (("score", summary.scores), ("baseline", summary.baselines)):
        lines += [f"{label:<12}  {name} {old:.4f} -> {new:.4f}" for name, (old, new) in values.items()]
    if summary.milliseconds:
        old, new = summary.milliseconds
        lines.append(f"{'time':<12}  {old:.2f} -> {new:.2f} ms a text (median, in JAX; bench measures more)")
    target = str(summary.target)
    lines.append(f"{'export':<12}  {target}")
    flags = (f"--config=configs/adapt.py:{target}", "--config.data.corpus=CORPUS")
    if summary.is_fine_tuned:
        flags = ("--config=configs/finetune/RECIPE.py", f"--config.init_from={target}")
    return "\n".join([*lines, f"{'next':<12}  {command('train', *flags, '--workdir=WORKDIR')}"])
