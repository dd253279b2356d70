"""Read and write the model folders of transformers."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.config import private_paths
from bertjax.config.config import from_dict, to_dict
from bertjax.config.export import Export
from bertjax.data.tokenizer import Tokenizer
from bertjax.interop import card, families, foreign_settings, sentence_transformers, task_heads, tokenizers, weights
from bertjax.interop.family import CLM, MLM, NSP, OF_DECODER, PLM, POOLER, RTD, SOP, part_of, parts_in
from bertjax.interop.names import ENCODER_ONLY, to_params, to_tensors
from bertjax.interop.roberta import with_published_ids
from bertjax.models import cut, vocabulary
from bertjax.models.blocks.llama import LlamaBlock
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.runtime import storage, untrusted
from bertjax.runtime.errors import UserError, quoted, shorten
from bertjax.training.config import Stage

CONFIG = "config.json"
_SEGMENT = "encoder/embeddings/segment"
_ON_MEAN = (
    "its head is on the mean of the hidden states, which sentence-transformers computes as the module 2_Dense and no "
    "class of transformers does"
)
_SHORTEST = 3  # [CLS], one token and [SEP]
# Patterns of all files from which transformers, sentence-transformers or bertjax would load a model or a tokenizer.
# Publishing a model deletes them all: a leftover tokenizer.model, for example, would be read instead of the new files.
MODEL_FILES = (
    *(CONFIG, "generation_config.json"),
    *("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json", "tf_model.h5"),
    *("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json", "flax_model.msgpack"),
    *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "spm.model"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "[0-9]_*/*", "onnx/*"),
)
# Pretraining heads: the objective that trains each, and task settings that differ from the defaults.
_TASKS = {
    NSP: ("bert", {}),
    SOP: ("sentence_order", {"examples": {"kind": "sentence_order"}}),
    RTD: ("electra", {}),
    PLM: ("permutation", {}),
    CLM: ("causal", {"examples": {"kind": "full_sentences"}}),
}
# Key of `config.json` for GPT-BERT's head, which has the tensor names of a masked-LM head.
_PREDICTS_NEXT = "bertjax_predicts_next"


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a Hugging Face checkpoint, convertible or not."""
    if (folder / sentence_transformers.MODULES).exists():
        return True
    try:
        config = untrusted.read_json(folder / CONFIG)
    except OSError:
        return bool(weights.other_format(folder))
    except ValueError:  # damaged: a workdir has a config.json too, but also checkpoints/
        return not (folder / "checkpoints").exists()
    return isinstance(config, dict) and "format_version" not in config  # only a workdir's file has this key


def write(folder: os.PathLike, export: Export, about: card.About | None = None) -> list[str]:
    """Write a folder that `AutoModel` and `AutoTokenizer` open; `config.json`, which they need, is written last.

    Args:
      folder: the folder; it is created.
      export: the model. If transformers has no class with its heads, pass it through `encoder_alone` first.
      about: facts that the author adds to the model card.

    Returns:
      Notes about the export, one line each.

    Raises:
      UserError: no family in transformers computes the model, or Hugging Face's formats cannot express its heads or its
        tokenizer.
    """
    folder = Path(folder)
    check_kinds(export.encoder.architecture())
    # 1. Make it a model that transformers can compute, with notes on what changes.
    export = with_published_ids(export)
    tokenizer = export.tokenizer
    export, temperature_notes = task_heads.with_temperature(export)
    export, left_out_notes = _with_whole_attention(export)
    left_out_notes += temperature_notes + activation_notes(export.encoder)
    export = export._replace(encoder=dataclasses.replace(export.encoder, activation_bits=0))
    if export.is_embedder:
        left_out_notes.append("pooler and heads not exported: sentence embeddings do not read them")
        export = encoder_alone(export)
    objective, head, on_mean = task_heads.first_objective(export.settings), None, head_on_mean(export)
    if on_mean:
        left_out_notes += [_ON_MEAN, *task_heads.notes_of(export.settings, on_mean)]
        head, export = export.params["heads"][on_mean], encoder_alone(export)
    # 2. Choose the family and class, and name the tensors.
    flat = flatten_dict(vocabulary.cut(export.params, export.encoder), sep="/")
    family = families.of_model(export.encoder, flat, tokenizer.pad_id)
    if complaint := family.tokenizer_complaint(tokenizer):
        raise UserError(complaint)
    parts, notes = family.leave_out(parts_in(flat))
    notes = [*left_out_notes, *notes, *family.notes(flat, tokenizer.pad_id)]
    flat = {path: leaf for path, leaf in flat.items() if part_of(path) not in parts_in(flat) - parts}
    encoder, flat = family.to_theirs(export.encoder, flat, tokenizer.pad_id)
    tensors = family.published(to_tensors(flat, family.names(encoder, parts)))
    architecture = family.class_of(parts)
    # Not `id2label`: a pipeline of transformers would give these names to a head of random values.
    task_settings = {card.LOGITS: task_heads.names_of_logits(objective)} if on_mean else {}
    for term in parts & family.task_heads.keys():
        task_settings = task_heads.settings_of(export.settings, term, family.task_head(term, tokenizer))
        notes = [*notes, *task_heads.notes_of(export.settings, term)]
    if CLM in parts and encoder.direction == BIDIRECTIONAL:
        task_settings = {_PREDICTS_NEXT: True}
        notes.append("a state predicts the token after it: pipelines of transformers fill masks from the wrong states")
    if not parts - {POOLER}:
        tensors = {name.removeprefix(family.root): tensor for name, tensor in tensors.items()}  # as in such a class
    # 3. Write the files. Without its config.json a folder is not a model, so a run that is killed leaves none.
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    longest = export.lengths.example
    tokenizers.write(folder, tokenizer, longest, export.encoder.embeddings.segments)
    weights.write(folder / weights.SAFETENSORS, tensors)
    if export.is_embedder or on_mean:
        activation = task_heads.ACTIVATION_FUNCTIONS[objective.get("activation", "identity")] if on_mean else ""
        sentence_transformers.write(folder, export.encoder, longest, export.is_normalized, head, activation)
    text = card.text(export, family, parts, longest, notes, about, on_mean)
    (folder / card.FILE).write_text(text, encoding="utf-8")
    settings = family.settings(encoder, architecture) | family.symbols(tokenizer) | task_settings
    storage.flush_folder(folder)
    storage.write_text(folder / CONFIG, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    return [f"architecture {architecture}, {sum(tensor.size for tensor in tensors.values()):,} parameters", *notes]


def head_on_mean(export: Export) -> str:
    """Return the name of a head that sentence-transformers computes and no class of transformers does; else empty.

    Raises:
      UserError: no family in transformers computes the model.
    """
    term = sentence_transformers.classifier_on_mean(export)
    if not term:
        return ""
    flat = flatten_dict(export.params, sep="/")
    family = families.of_model(export.encoder, flat, export.tokenizer.pad_id)
    has_class = task_heads.MEAN in family.task_head(term, export.tokenizer).poolings.values()
    return "" if has_class else term


def check_kinds(model: Any) -> None:
    """Check that transformers has the kinds of an architecture.

    Args:
      model: the settings of `model`, which may come from a file.

    Raises:
      UserError: no family in transformers has its block or embeddings.
    """
    for part, known in families.KINDS.items():
        settings = model.get(part) if isinstance(model, Mapping) else None
        kind = settings.get("kind") if isinstance(settings, Mapping) else None
        if isinstance(kind, str) and kind not in known:
            raise UserError(f"the model has model.{part}.kind={kind!r}, which only bertjax has; use bertjax.load")


def activation_notes(encoder: EncoderConfig) -> list[str]:
    """Return a note if the model rounds its activations, which other libraries cannot do."""
    bits = encoder.activation_bits
    return [f"activations are not rounded to {bits} bits there, so answers differ a little"] if bits else []


def _with_whole_attention(export: Export) -> tuple[Export, list[str]]:
    """Pad attention with zero heads until heads * head width equals the width, as transformers requires.

    The function stays the same. Returns the model and notes.
    """
    encoder = export.encoder
    if encoder.context_width == encoder.layer_width:
        return export._replace(encoder=dataclasses.replace(encoder, head_width=0)), []
    try:
        params, whole = cut.with_zero_heads(export.params["encoder"], encoder)
    except ValueError as error:
        raise UserError(
            f"the model has model.head_width={encoder.head_width}, and transformers has no such heads ({error}); "
            "use bertjax.load, or train a model without head_width"
        ) from None
    note = (
        f"{encoder.heads} heads of width {encoder.head_width} do not fill the width {encoder.layer_width}, as "
        f"transformers requires: {whole.heads - encoder.heads} heads of zeros were added"
    )
    return export._replace(params=export.params | {"encoder": params}, encoder=whole), [note]


def encoder_alone(export: Export) -> Export:
    """Return a model without heads and pooler; without heads nothing has trained the pooler.

    NeoBERT's encoder, for which transformers has no class, becomes EuroBERT's: only heads tell them apart.
    """
    params = {name: leaves for name, leaves in export.params["encoder"].items() if name != POOLER}
    encoder = export.encoder
    if isinstance(encoder.block, LlamaBlock):
        encoder = encoder.replace({"block.decoder_bias": False, "block.pooler": False})
    return export._replace(params={"encoder": params}, encoder=encoder)


def read(folder: os.PathLike, encoder_only: bool = False) -> tuple[Export, list[str]]:
    """Read a transformers checkpoint: encoder, heads and tokenizer.

    A checkpoint without heads gets masked language modeling as its objective, so that pretraining can continue. No
    folder names the examples: without a head on pairs they are `doc_sentences`.

    Args:
      folder: the checkpoint.
      encoder_only: whether to leave out the pooler and all heads, known or not.

    Returns:
      The export, and notes about it, one line each.

    Raises:
      UserError: the checkpoint is damaged, its family is not supported, or bertjax's encoder cannot compute it.
    """
    try:
        return _read(Path(folder), encoder_only)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise UserError(f"the checkpoint in {folder} cannot be read ({quoted(error)}); download it again") from error


def _read(folder: Path, encoder_only: bool) -> tuple[Export, list[str]]:
    # 1. Settings: from the outer layout to the encoder's. An unsupported one ends here, before weights are read.
    embedder = sentence_transformers.read(folder, encoder_only)
    folder = embedder.folder
    if not (folder / CONFIG).exists() and (other := weights.other_format(folder)):
        raise UserError(other)
    settings = foreign_settings.with_own_names(tokenizers.load_json(folder / CONFIG))
    if embedder.activation and not embedder.is_embedder:
        settings |= task_heads.of_cross_encoder(embedder.activation)
    family = families.of_config(settings)
    notes = foreign_settings.notes_of_config(settings, {*family.settings_read, _PREDICTS_NEXT})
    term = None if encoder_only else task_heads.term_of(family.task_heads, family.stem, settings)
    has_decoder = not encoder_only and term is None
    encoder = family.encoder_config({key: value for key, value in settings.items() if has_decoder or key != OF_DECODER})
    notes += foreign_settings.notes_of_dropout(settings, family.keys["dropout"], encoder.dropout)
    tokenizer, notes_of_tokenizer, has_segments = tokenizers.read(folder, embedder.lowercase)
    # 2. Tensors under canonical names, and the head that the class of the checkpoint has.
    tensors, notes_of_names = weights.unwrapped(weights.read(folder), family.root, family.names_outside_layers)
    tensors, notes_of_unread = family.without_unread_names(tensors)
    tensors = family.canonical(tensors, encoder_only)
    notes += [*notes_of_tokenizer, *notes_of_names, *notes_of_unread, *embedder.notes]
    if term is not None or encoder_only:
        tensors = family.without_pooler(tensors, term)
    outputs = {}
    if term is not None:
        head = family.task_head(term, tokenizer)
        head.check(settings)
        outputs = {term: task_heads.outputs_of(tensors, head)}
    parts = family.parts_of(encoder, tensors) if term is None else family.parts_with(term)
    # Other classes that read this head have trained it for masked tokens since.
    if settings.get(_PREDICTS_NEXT) and settings.get("architectures") == [family.class_of(frozenset({CLM}))]:
        parts = frozenset({CLM} if parts == {MLM} else parts)
    # No class has only these two, but an MLM checkpoint may keep the pooler of the model it was trained from.
    if parts not in family.suffixes and parts != {POOLER, MLM}:
        names = {family.stem + name for own, name in family.suffixes.items() if own <= family.parts.keys()}
        known = ", ".join(sorted(names))
        raise UserError(f"{folder} has {', '.join(sorted(parts))} beside its encoder, and not {known}; {ENCODER_ONLY}")
    if refusals := family.refusals(encoder, tokenizer.pad_id):
        raise UserError(refusals[0])
    if complaint := family.tokenizer_complaint(tokenizer):
        raise UserError(complaint)
    # 3. Params, without the rows of tables that no text reads.
    flat = to_params(tensors, family.names(encoder, parts), family.shapes(encoder, outputs))
    if not has_segments and encoder.embeddings.segments > 1:
        encoder, flat, notes_of_segments = _with_one_segment(encoder, flat)
        notes += notes_of_segments
    encoder, flat = family.to_ours(encoder, flat, tokenizer.pad_id)
    encoder, flat, notes_of_vocabulary = _with_vocabulary_of(tokenizer, folder, encoder, flat)
    max_tokens = _most_tokens(folder, embedder.max_tokens, encoder)
    longest, stage = max_tokens or encoder.max_positions, {"seq_len": min(Stage().seq_len, encoder.max_positions)}
    # 4. The configuration that a run would have, so that everything else treats the model as one of its own.
    if term is None:
        # Without a head on pairs: masked tokens only, in examples of one text each.
        rate = family.masking_rate
        masked = {
            "objective": {"kind": "mlm", "masking": {"kind": "tokens", "rate": rate}},
            "examples": {"kind": "doc_sentences"},
        }
        objective, own = next((_TASKS[part] for part in _TASKS if part in parts), (MLM, masked))
        both = ("masked_next_token", "next_token") if encoder.direction == BIDIRECTIONAL else ("causal",)
        kinds = both if CLM in parts else (objective,)
        tasks = {kind: {"objective": {"kind": kind}} | own for kind in kinds}
        if objective == MLM and MLM in parts:
            notes.append(f"the folder names no objective: mlm on doc_sentences with masking.rate={rate} is assumed")
    else:
        tasks = {term: task_heads.task_of(settings, term, head, outputs[term], longest)}
        # Rows as in a training on texts of this length; all choices of a question share one.
        row = longest * (len(tasks[term]["objective"]["classes"]) if term == task_heads.CHOICE else 1)
        stage = {"seq_len": row, "batch": max(1, min(32, 32 * Stage().seq_len // row))}
        if row > 2 * longest:  # a list of choices may have only two, which would be longer in this row
            tasks[term]["examples"]["max_tokens"] = longest
    if max_tokens and (term is not None or embedder.is_embedder):
        [task] = tasks.values()
        task["examples"] = task.get("examples", {}) | {"max_tokens": max_tokens}
        notes.append(f"texts are cut to {max_tokens} tokens, the longest that its files allow")
    config = from_dict(
        {
            "model": encoder.architecture(),
            "data": {"corpus": private_paths.EMBEDDED},  # which texts it was trained on is not in the folder
            "tasks": tasks,
            "stages": [stage],
        }
    )
    encoder = config.encoder(encoder.vocab_size, backend="cpu")
    params = vocabulary.pad(unflatten_dict(flat, sep="/"), encoder)
    known = (*family.parts, *({POOLER} - family.parts.keys()), *family.task_heads)
    parts_note = f"parts: encoder{''.join(f', {part}' for part in known if part in parts)}"
    notes = [parts_note, *notes, *notes_of_vocabulary, *family.notes(flat, tokenizer.pad_id)]
    if POOLER not in parts and encoder.block.has_pooler:
        notes.append("no pooler: pooled_BND is None")
    return Export(to_dict(config), encoder, params, tokenizer, {}, unit_embeddings=embedder.is_normalized), notes


def _with_one_segment(
    encoder: EncoderConfig, flat: dict[str, np.ndarray]
) -> tuple[EncoderConfig, dict[str, np.ndarray], list[str]]:
    """Cut the segment table to the only row that is read if the tokenizer gives both texts of a pair segment 0."""
    if _SEGMENT not in flat:
        note = "the tokenizer gives no token_type_ids, without which transformers leaves out the term of segments"
        return encoder, flat, [f"{note}; bertjax computes it"]
    rows = encoder.embeddings.segments
    note = f"{rows - 1} of {rows} rows of segments cut: the tokenizer gives all texts segment 0"
    return encoder.replace({"embeddings.segments": 1}), flat | {_SEGMENT: flat[_SEGMENT][:1]}, [note]


def _with_vocabulary_of(
    tokenizer: Tokenizer, folder: Path, encoder: EncoderConfig, flat: dict[str, np.ndarray]
) -> tuple[EncoderConfig, dict[str, np.ndarray], list[str]]:
    """Cut vocabulary rows that belong to no token: published tables are often padded to a multiple of 8, 64 or 128.

    Raises:
      UserError: a token has no row.
    """
    rows, ids = encoder.vocab_size, tokenizer.vocab_size
    if ids > rows:
        without = shorten([quoted(tokenizer.piece(number)) for number in range(rows, ids)])
        raise UserError(
            f"{folder} has {rows} rows of word embeddings and {ids} ids: {without} have no row; get both of one model"
        )
    if ids == rows:
        return encoder, flat, []
    flat = {path: leaf[:ids] if path.rpartition("/")[2].startswith("word") else leaf for path, leaf in flat.items()}
    note = f"{rows - ids:,} of {rows:,} rows of word embeddings cut: the tokenizer has {ids:,} ids"
    return dataclasses.replace(encoder, vocab_size=ids), flat, [note]


def _most_tokens(folder: Path, limit: int, encoder: EncoderConfig) -> int:
    """Return the folder's limit of tokens per text if it is below the encoder's own, else 0."""
    settings = tokenizers.load_if_there(folder / tokenizers.CONFIG)
    # Tokenizers without a limit have 10^30 here. `max_len` is an older name of the key.
    longest = limit or settings.get("model_max_length") or settings.get("max_len") or 0
    if type(longest) not in (int, float) or (longest and not longest >= _SHORTEST):
        raise UserError(f"{folder} has max_seq_length or model_max_length={quoted(longest)}; write {_SHORTEST} or more")
    return int(longest) if 0 < longest < encoder.max_positions else 0
