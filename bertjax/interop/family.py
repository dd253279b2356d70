"""Model families in transformers: tensor names, `config.json` keys and class names, as data.

Each family is one file in this folder: an instance of `Family`, or of a subclass that overrides a few methods.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.interop.foreign_settings import config_error
from bertjax.interop.names import ENCODER_ONLY, LAYER, Name, unnamed
from bertjax.interop.task_heads import ON_TOKENS, TaskHead
from bertjax.models.config import EncoderConfig
from bertjax.models.heads import PairHead, masked_lm_head
from bertjax.models.other_heads import DetectionHead, VocabularyHead, label_head
from bertjax.models.vocabulary import encoder_shapes, unpadded_shapes
from bertjax.runtime.errors import UserError, quoted, shorten

# Parts of a model besides its encoder: the pooler, and pretraining heads under the names of their loss terms.
POOLER, MLM, CLM, NSP, SOP, RTD, PLM = "pooler", "mlm", "clm", "nsp", "sop", "rtd", "plm"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}  # theirs: ours
_ACTIVATIONS_THERE = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
# The setting that only the decoder of a masked-LM head reads.
OF_DECODER = "tie_word_embeddings"
# Settings that every config class has and that change the computed function, with their defaults in transformers.
_PLAIN = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}

Flat = dict[str, np.ndarray]


class Pretrained(NamedTuple):
    """A pretraining head.

    Attributes:
      module: makes its Flax module.
      reads_pooler: whether it reads the pooled [CLS] instead of the hidden states.
      reads_words: whether it reads the word embeddings too.
    """

    module: Callable[[EncoderConfig], Any]
    reads_pooler: bool = False
    reads_words: bool = False


PRETRAINED = {
    MLM: Pretrained(lambda encoder: masked_lm_head(encoder)(encoder), reads_words=True),
    PLM: Pretrained(VocabularyHead, reads_words=True),
    RTD: Pretrained(DetectionHead),
    NSP: Pretrained(PairHead, reads_pooler=True),
    SOP: Pretrained(PairHead, reads_pooler=True),
}


class Fixed(NamedTuple):
    """A setting of `config.json` of which bertjax computes one value.

    Attributes:
      value: the value.
      absent: the default in transformers, which a missing key means.
    """

    value: Any
    absent: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """One model family in transformers.

    Attributes:
      title: name of the architecture in its paper.
      model_type: value of `model_type` in `config.json`.
      stem: prefix of its class names, such as `Bert`.
      table: tensor names of the encoder. Those of params that an encoder lacks, such as biases, are not used.
      parts: tensor names of each optional part.
      classes: class-name suffix for sets of pretraining parts, beside or in place of `ForMaskedLM` and `Model`.
      autos: `AutoModel...` class of a suffix, if it has another name.
      task_heads: fine-tuned heads by their names in bertjax.
      keys: key in `config.json` for each setting of the encoder, by dotted name (`block.inner_width`).
      defaults: default settings in transformers. A field without a key is constant in the family.
      fixed: other keys that change the computed function, with the only value that bertjax computes: a `Fixed`, or a
        value that is also the default in transformers.
      derived: keys whose value must equal a property of the encoder, such as `head_channels`.
      further: keys that a subclass reads, or that do not change the function.
      decoder: name, without `.weight` or `.bias`, of the decoder that is tied to the word embeddings; empty for none.
      symbol_keys: {`config.json`'s name of a symbol: ours}, for ids of special tokens beside the padding.
      masking_rate: share of tokens that the paper predicts in masked language modeling.
      code: repository of the Hugging Face Hub with the family's classes, if transformers does not have them. A written
        folder names it (`auto_map`), and transformers runs it if `trust_remote_code` is set.
      since: first version of transformers with the classes, if it is a recent one, such as `5.3`.
      finds_padding_by_id: whether the classes treat every token with the padding id as padding, whatever the attention
        mask is.
      of_replaced_tokens: parts of a model trained by replaced tokens that its classes lack, and the note on them.
      unread: regular expression of names of tensors that published files have and no class reads; empty for none.
    """

    title: str
    model_type: str
    stem: str
    table: tuple[Name, ...]
    parts: Mapping[str, tuple[Name, ...]]
    task_heads: Mapping[str, TaskHead]
    keys: Mapping[str, str]
    defaults: EncoderConfig
    fixed: Mapping[str, Any]
    classes: Mapping[frozenset[str], str] = dataclasses.field(default_factory=dict)
    decoder: str = ""
    autos: Mapping[str, str] = dataclasses.field(default_factory=dict)
    derived: Mapping[str, str] = dataclasses.field(default_factory=dict)
    further: frozenset[str] = frozenset()
    masking_rate: float = 0.15
    code: str = ""
    since: str = ""
    finds_padding_by_id: bool = False
    # Of subclasses.
    symbol_keys: ClassVar[Mapping[str, str]] = {}
    unread: ClassVar[str] = ""
    of_replaced_tokens: ClassVar[frozenset[str]] = frozenset()
    note_on_generator: ClassVar[str] = ""

    @property
    def root(self) -> str:
        """Prefix of the encoder's tensor names; a checkpoint without heads omits it."""
        return f"{self.table[0].theirs.partition('.')[0]}."

    @functools.cached_property
    def _fixed(self) -> dict[str, Fixed]:
        plain = _PLAIN | dict(self.fixed)
        return {key: value if isinstance(value, Fixed) else Fixed(value, value) for key, value in plain.items()}

    def names(self, encoder: EncoderConfig, parts: frozenset[str]) -> tuple[Name, ...]:
        """Return the name table for a model with these parts; an encoder may lack some of the params."""
        # A fine-tuned class has no pretraining heads, and its pooler may have another name.
        if term := next((term for term in self.task_heads if term in parts), None):
            return (*self.table, *self.task_heads[term].names(term))
        return (*self.table, *(name for part, own in self.parts.items() if part in parts for name in own))

    @functools.cached_property
    def tied(self) -> dict[str, str]:
        """{copy: original} of shared tensors; some versions of transformers write both."""
        ours = {name.ours: name.theirs for own in (self.table, *self.parts.values()) for name in own}
        copies = {"encoder/embeddings/word": f"{self.decoder}.weight"} if self.decoder else {}
        copies |= {path: f"{self.decoder}.bias" for path in ours if self.decoder and path.endswith("/word_bias")}
        return {copy: ours[path] for path, copy in copies.items() if copy != ours[path]}

    @functools.cached_property
    def suffixes(self) -> Mapping[frozenset[str], str]:
        """Class-name suffix for each set of parts, fine-tuned heads included."""
        usual = {(MLM,): "ForMaskedLM", (POOLER,): "Model", (): "Model"}
        plain = {frozenset(parts): suffix for parts, suffix in usual.items() if self.parts.keys() >= set(parts)}
        heads = {self.parts_with(term): head.suffix for term, head in self.task_heads.items()}
        return {**self.classes, **plain, **self.classes, **heads}

    def parts_with(self, term: str) -> frozenset[str]:
        """Return the parts of a model that has this fine-tuned head."""
        return frozenset({term, POOLER} if self.task_heads[term].pooler else {term})

    def shapes(self, encoder: EncoderConfig, outputs: Mapping[str, int] = {}) -> dict[str, tuple[int, ...]]:
        """Return every param's shape by flattened path, for the encoder and all heads, with an unpadded vocabulary.

        Args:
          encoder: the architecture.
          outputs: logit count of each fine-tuned head.
        """

        def init() -> dict:
            key, hidden_BTD = jax.random.key(0), jnp.zeros((1, 1, encoder.width))
            word_VE = jnp.zeros((encoder.padded_vocab_size, encoder.embedded_width))
            heads = {}
            for part in sorted(self.parts.keys() - {POOLER}):
                own = PRETRAINED[MLM if part == CLM else part]  # a causal head has the params of a masked one
                inputs = (hidden_BTD, word_VE) if own.reads_words else (hidden_BTD,)
                heads[part] = own.module(encoder).init(key, *inputs)["params"]
            for term, count in outputs.items():
                head = label_head(encoder, count, on_tokens=term in ON_TOKENS)
                heads[term] = head.kind(encoder, **head.options).init(key, hidden_BTD)["params"]
            return {"heads": heads}

        ours = {f"encoder/{path}": shape for path, shape in encoder_shapes(encoder).items()}
        return ours | unpadded_shapes(jax.eval_shape(init), encoder)  # shapes only: nothing is allocated

    def parts_of(self, encoder: EncoderConfig, present: Mapping[str, Any]) -> frozenset[str]:
        """Return the parts that have at least one of the tensors `present`, which has names of transformers."""
        return frozenset(part for part, own in self.parts.items() if any(name.theirs in present for name in own))

    def class_of(self, parts: frozenset[str]) -> str | None:
        """Return the class of transformers with exactly these parts, or None if there is no such class."""
        return self.stem + self.suffixes[parts] if parts in self.suffixes else None

    def auto_of(self, parts: frozenset[str]) -> str:
        """Return the `AutoModel...` class that opens a model with these parts."""
        suffix = self.suffixes[parts]
        return self.autos.get(suffix, "AutoModel" + suffix.removeprefix("Model"))

    def leave_out(self, parts: frozenset[str]) -> tuple[frozenset[str], list[str]]:
        """Return the parts that are exported, and a note for each part that is not."""
        if RTD in parts and (own := parts & self.of_replaced_tokens):
            kept, notes = self.leave_out(parts - own - {"generator"})
            return kept, [*notes, self.note_on_generator]
        # Runs without a sentence objective have a pooler as well, which only their class in transformers lacks.
        heads = parts - {POOLER}
        if POOLER in parts and heads in self.suffixes and heads and parts not in self.suffixes:
            return heads, [f"pooler not exported: no head uses it, and {self.class_of(heads)} has none"]
        return parts, []

    def refusal(self, field: str, value: Any, why: str) -> str:
        """Return the error line for a setting of an encoder; `why` has the verb of the family's classes."""
        return f"the model has model.{field}={value!r}, and transformers' {self.title} {why}"

    def refusals(self, encoder: EncoderConfig, pad_id: int) -> list[str]:
        """Return an error line for each encoder setting that the family's classes cannot compute."""
        # A field without a key cannot be written to config.json, so it must have the family's constant value.
        settings, constants = _settings(encoder), _settings(self.defaults)
        constants["pooler_activation"] = encoder.pooler_activation  # see `complaints`
        lines = [
            self.refusal(field, settings[field], f"computes {value!r} only")
            for field, value in constants.items()
            if field in settings and field not in self.keys and settings[field] != value
        ]
        if "activation" in self.keys and encoder.activation not in ACTIVATIONS.values():
            known = ", ".join(dict.fromkeys(ACTIVATIONS.values()))
            lines.append(self.refusal("activation", encoder.activation, f"computes {known} only"))
        if "embeddings.segments" in self.keys and not encoder.embeddings.segments:
            lines.append(self.refusal("embeddings.segments", 0, "has a segment table; train it with 1"))
        return lines

    def complaints(self, encoder: EncoderConfig, flat: Flat, pad_id: int) -> list[str]:
        """Return every reason why a model cannot be written as this family, one line each; empty if it can.

        Args:
          encoder: the architecture.
          flat: params by flattened path.
          pad_id: padding id of the tokenizer.
        """
        lines = self.refusals(encoder, pad_id)
        kept, _ = self.leave_out(parts_in(flat))
        if kept not in self.suffixes:
            # Complain about unknown heads first, otherwise about those beyond the largest class that fits.
            known = max((parts for parts in self.suffixes if parts <= kept), key=len)
            unknown = kept - self.parts.keys() - self.task_heads.keys() or kept - known
            lines.append(unnamed(path for path in flat if part_of(path) in unknown))
        # Fine-tuning alone can change it.
        if POOLER in kept and encoder.pooler_activation != (computed := self.defaults.pooler_activation):
            why = f"computes {computed!r} only; fine-tune it with model.pooler_activation={computed}, or {ENCODER_ONLY}"
            lines.append(self.refusal("pooler_activation", encoder.pooler_activation, why))
        return lines

    def tokenizer_complaint(self, tokenizer: Tokenizer) -> str:
        """Return why the family's classes would read this tokenizer's ids in another way; empty if they would not."""
        if not self.finds_padding_by_id or tokenizer.pad_id != tokenizer.sep_id:
            return ""
        return (
            f"the tokenizer ends texts with the symbol that it pads with, {quoted(tokenizer.piece(tokenizer.pad_id))}, "
            f"and transformers' {self.title} takes the end of each text for padding; use a tokenizer with a symbol for "
            "padding only"
        )

    def encoder_config(self, config: Mapping[str, Any]) -> EncoderConfig:
        """Return the architecture in a `config.json`; missing keys have the defaults of transformers.

        Raises:
          UserError: bertjax's encoder cannot compute it, or the file is damaged.
        """
        for key, fixed in self._fixed.items():
            value = config.get(key)
            if value is None and (key not in config or fixed.absent is not True):
                value = fixed.absent  # null, like a missing key, means the default; but as False it switches off
            self._check(key, value, fixed.value, f"; {ENCODER_ONLY}" if key == OF_DECODER else "")
        keys, defaults = dict(self.keys), self.defaults.settings()
        settings: dict[str, Any] = {}
        if key := keys.pop("activation", ""):
            if (activation := config.get(key, _ACTIVATIONS_THERE[self.defaults.activation])) not in ACTIVATIONS:
                known = ", ".join(map(repr, ACTIVATIONS))
                raise config_error(key, activation, f"bertjax's {self.title} computes {known} only")
            settings["activation"] = ACTIVATIONS[activation]
        settings |= {ours: number(config, theirs, defaults[ours]) for ours, theirs in keys.items()}
        if settings.get("embeddings.width") == settings["width"]:
            settings["embeddings.width"] = 0
        encoder = self.defaults.replace(settings)
        for key, name in self.derived.items():
            if (value := config.get(key)) is not None:
                self._check(key, value, getattr(encoder, name))
        return encoder

    def _check(self, key: str, value: Any, computed: Any, remedy: str = "") -> None:
        if value != computed:
            raise config_error(key, value, f"bertjax's {self.title} computes {computed!r} only{remedy}")

    def settings(self, encoder: EncoderConfig, architecture: str) -> dict[str, Any]:
        """Return the `config.json` of an encoder, without `symbols`."""
        written = {"embeddings.width": encoder.embedded_width, "activation": _ACTIVATIONS_THERE[encoder.activation]}
        settings = encoder.settings() | written
        sizes = {theirs: settings[ours] for ours, theirs in self.keys.items()}
        kind = {"architectures": [architecture], "model_type": self.model_type}
        return kind | sizes | {key: self._fixed[key].value for key in self.fixed}

    def symbols(self, tokenizer: Tokenizer) -> dict[str, int]:
        """Return the ids of special tokens in `config.json`."""
        # The defaults are ids of the family's own tokenizer.
        keys = {"pad": "pad", **self.symbol_keys}
        return {f"{theirs}_token_id": getattr(tokenizer, f"{ours}_id") for theirs, ours in keys.items()}

    def to_theirs(self, encoder: EncoderConfig, flat: Flat, pad_id: int) -> tuple[EncoderConfig, Flat]:
        """Return an equivalent model with exactly the tables of the family's classes; `to_ours` is the inverse."""
        return encoder, flat

    def to_ours(self, encoder: EncoderConfig, flat: Flat, pad_id: int) -> tuple[EncoderConfig, Flat]:
        """Return an equivalent model without redundant tables.

        Raises:
          UserError: the tokenizer belongs to another model.
        """
        return encoder, flat

    def notes(self, flat: Flat, pad_id: int) -> list[str]:
        """Return a note for each value that the family's classes use differently."""
        return []

    @property
    def settings_read(self) -> set[str]:
        """Keys of `config.json` that the encoder or a head uses."""
        heads = itertools.chain.from_iterable((*head.settings, head.pooling) for head in self.task_heads.values())
        return {*self.keys.values(), *self._fixed, *self.derived, *self.further, *heads}

    def task_head(self, term: str, tokenizer: Tokenizer) -> TaskHead:
        """Return a fine-tuned head; XLNet's depends on where the tokenizer puts [CLS]."""
        return self.task_heads[term]

    def without_pooler(self, tensors: Mapping[str, np.ndarray], term: str | None) -> dict[str, np.ndarray]:
        """Drop a pooler that a fine-tuned head does not read, as older versions of transformers wrote one.

        Args:
          tensors: tensors under the names of the table.
          term: the head; None for the encoder alone, which has no heads either.
        """
        read = {name.theirs for name in self.task_heads[term].names(term)} if term else set()
        unread = {name.theirs for name in self.parts.get(POOLER, ())} - read
        kept = {name: tensor for name, tensor in tensors.items() if name not in unread}
        return {name: tensor for name, tensor in kept.items() if term or name.startswith(self.root)}

    def published(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rename tensors as the family's classes do, from the names in the table; the inverse of `canonical`."""
        return dict(tensors)

    def without_unread_names(self, tensors: Mapping[str, np.ndarray]) -> tuple[Mapping[str, np.ndarray], list[str]]:
        """Drop tensors that no class of transformers reads (`unread`); return the others and notes."""
        if not (names := sorted(name for name in tensors if self.unread and re.search(self.unread, name))):
            return tensors, []
        note = f"left out, because no class of transformers reads it: {shorten(list(map(quoted, names)))}"
        return {name: tensor for name, tensor in tensors.items() if name not in names}, [note]

    @functools.cached_property
    def _first_parts_of_heads(self) -> frozenset[str]:
        fine_tuned = (head.names(term) for term, head in self.task_heads.items())
        own_names = itertools.chain.from_iterable((*self.parts.values(), *fine_tuned))
        return frozenset(name.partition(".")[0] for name in (*(name.theirs for name in own_names), *self.tied))

    @functools.cached_property
    def names_outside_layers(self) -> tuple[str, ...]:
        """Names of embeddings and other tensors of the encoder that no layer has, without the encoder's prefix."""
        return tuple(name.theirs.removeprefix(self.root) for name in self.table if LAYER not in name.theirs)

    def canonical(self, tensors: Mapping[str, np.ndarray], encoder_only: bool = False) -> dict[str, np.ndarray]:
        """Rename a checkpoint's tensors as in the table; tied copies and buffers are checked and dropped.

        Args:
          tensors: the checkpoint.
          encoder_only: whether an untied decoder is accepted, since it is not read.

        Raises:
          UserError: the decoder is untied, or `position_ids` is not 0, 1, 2, ...
        """
        # Classes without heads omit the prefix. Scripts may have saved heads beside such an encoder.
        bare = not any(name.startswith(self.root) for name in tensors)
        heads = tuple({f"{first}." for first in self._first_parts_of_heads} - {self.root})
        named = {}
        for name, tensor in tensors.items():
            # TensorFlow's names, which the first PyTorch ports kept.
            name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
            named[f"{self.root}{name}" if bare and not name.startswith(heads) else name] = tensor
        for copy, original in self.tied.items():
            if copy in named and original not in named:  # safetensors keeps one name per storage, the alphabet's first
                named[original] = named.pop(copy)
            is_tied = copy not in named or np.array_equal(named.pop(copy), named[original])
            if not is_tied and not encoder_only:
                raise UserError(f"the checkpoint's {copy} differs from its {original}; {ENCODER_ONLY}")
        position_ids = f"{self.root}embeddings.position_ids"
        if position_ids in named:
            ids = named.pop(position_ids)
            if not np.array_equal(ids.reshape(-1), np.arange(ids.size)):
                raise UserError(f"the checkpoint's {position_ids} does not count from 0; bertjax's positions do")
        return named


def part_of(path: str) -> str:
    """Return the part that a param belongs to: `mlm` for `heads/mlm/...`, `pooler` for `encoder/pooler/...`."""
    root, _, rest = path.partition("/")
    return rest.partition("/")[0] if root in ("encoder", "heads") else root


def parts_in(flat: Mapping[str, Any]) -> frozenset[str]:
    """Return the parts that a model has besides its encoder."""
    return frozenset(part_of(path) for path in flat if not path.startswith("encoder/") or part_of(path) == POOLER)


def _settings(encoder: EncoderConfig) -> dict[str, Any]:
    """Return the architecture by dotted name; an embedding width equal to the width becomes 0, its default."""
    return encoder.settings() | {
        "embeddings.width": 0 if encoder.embedded_width == encoder.width else encoder.embeddings.width
    }


def number(config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a setting of a `config.json` as a number of the default's type.

    Raises:
      UserError: it is of another type.
    """
    value, kind = config.get(key, default), type(default)
    # True is an int in Python.
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, (int, kind)):
        name = {bool: "truth value", int: "whole number"}.get(kind, "number")
        raise UserError(f"config.json has {key}={value!r}, which is not a {name}; download the file again")
    return kind(value)
