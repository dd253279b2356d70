"""Tokenizers with the files, options and special symbols of published checkpoints, trained on a small sample."""

import functools
import itertools
import json
import random
import tempfile
import unicodedata
from pathlib import Path

import sentencepiece
import tokenizers

from bertjax.data import tokenizer
from bertjax.data.sources import documents
from bertjax.data.tokenizer.layout import template
from bertjax.data.tokenizer_config import TokenizerConfig

# First and last letter of the alphabets beside those of the embedded corpora: Arabic, Cyrillic, Devanagari, emoji,
# Greek, half width, Han, Hangul, Hebrew, Kana, Latin, symbols and Thai.
_ALPHABETS = (
    "\u0621\u064a \u0400\u04ff \u0905\u094d \U0001f300\U0001f64f \u0370\u03ff \uff01\uffdc \u4e00\u4eff "
    "\uac00\uacff \u05d0\u05ea \u3041\u30ff a\u024f \u2010\u214f \u0e01\u0e4e"
).split()
_ODD = "  | |\u3000|\t|``|''|9,|10,000|(|).|e\u0301|\u200b|\u00a0|\u2581|\u00ad".split("|")
# As ALBERT and XLNet were trained (google-research/albert README; zihangdai/xlnet README), but for the vocabulary.
_OPTIONS = {
    "albert": {
        "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": ["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"],
    },
    "xlnet": {
        "unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1,
        "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
        "user_defined_symbols": ["<eop>", ".", "(", ")", '"', "-", "\u2013", "\u00a3", "\u20ac"],
    },
    "deberta-v2": {
        "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3,
        "pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]",
    },
    "xlm-roberta": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
    "camembert": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
}  # fmt: skip


def byte_bpe(text: list[str], vocab_size: int) -> bytes:
    """Return a `tokenizer.json` as ModernBERT publishes it: byte-level BPE of OLMo, with symbols after the pieces."""
    trained = tokenizer.train(text, TokenizerConfig(kind="byte_bpe", vocab_size=vocab_size)).description["model"]
    ordinary = (piece for piece in trained["vocab"] if piece not in tokenizer.SPECIALS)
    ids = {piece: number for number, piece in enumerate(["<|padding|>", *ordinary])}
    # Runs of spaces are tokens of text. Of the symbols only [MASK] takes the space before it.
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    spaces = [{"content": " " * count, "normalized": True} for count in (4, 3, 2)]
    symbols = [{"content": f"[{name}]", "special": True} for name in ("UNK", "CLS", "SEP", "PAD")]
    others = [{"content": "[MASK]", "special": True, "lstrip": True}, {"content": "[unused0]", "normalized": True}]
    added = [{"id": 0, "content": "<|padding|>", "special": True}, *spaces, *symbols, *others]
    added = [{"id": len(ids) - 1 + number} | plain | token for number, token in enumerate(added)]
    number_of = {token["content"]: token["id"] for token in added}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": template(("[CLS]", number_of["[CLS]"]), ("[SEP]", number_of["[SEP]"]), segment=0),
        "decoder": byte_level | {"add_prefix_space": True},
        "model": trained | {"vocab": ids},
    }
    return json.dumps(description).encode()


def llama(text: list[str], vocab_size: int) -> bytes:
    """Return a `tokenizer.json` as EuroBERT publishes it: byte-level BPE of Llama 3, without a symbol for unknowns."""
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    others = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    processor = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    processor.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(f"{words}|{others}"), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    processor.train_from_iterator(
        text, tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    )
    description = json.loads(processor.to_str())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = len(description["model"]["vocab"])
    symbols = ("<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|reserved_special_token_0|>")
    description["added_tokens"] = [
        {"id": first + number, "content": symbol, **plain, "special": True} for number, symbol in enumerate(symbols)
    ]
    bounds = template((symbols[0], first), (symbols[1], first + 1), segment=0)
    description["post_processor"] = {"type": "Sequence", "processors": [byte_level, bounds]}
    return json.dumps(description | {"decoder": byte_level}).encode()


def gemma(text: list[str], vocab_size: int) -> bytes:
    """Return a `tokenizer.json` as mmBERT publishes it: BPE of Gemma 2 with byte fallback, and [MASK] not special."""
    symbols = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    alphabet = [*symbols, *(f"<0x{byte:02X}>" for byte in range(256))]
    model = tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    processor = tokenizers.Tokenizer(model)
    # In training a word starts with its space, so that no piece has two words.
    processor.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    processor.pre_tokenizer = tokenizers.pre_tokenizers.Split("\u2581", "merged_with_next")
    # Rare characters have no piece.
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=alphabet, limit_alphabet=300, show_progress=False
    )
    processor.train_from_iterator(text, trainer)
    processor.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    steps = (tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse())
    processor.decoder = tokenizers.decoders.Sequence(list(steps))
    description = json.loads(processor.to_str())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"] = [
        {"id": number, "content": symbol, **plain, "special": symbol != "<mask>"}
        for number, symbol in enumerate(symbols)
    ]
    return json.dumps(description | {"post_processor": template(("<bos>", 2), ("<eos>", 1), segment=0)}).encode()


@functools.cache
def lines(count: int) -> list[str]:
    """Return lines of several scripts: of the embedded corpora, and drawn from alphabets, white space and signs."""
    draw = random.Random(0)
    texts = itertools.chain.from_iterable(
        document.text.split("\n") for corpus in ("embedded:ko", "embedded:en") for document in documents(corpus, "text")
    )
    stretches = [text.strip()[:300] for text in itertools.islice((text for text in texts if text), 40 * count)]
    drawn = draw.sample(stretches, count // 2)
    while len(drawn) < count:
        words = [_word(draw) for _ in range(draw.randrange(1, 12))]
        line = "".join(word + draw.choice((" ", " ", " ", draw.choice(_ODD))) for word in words)
        drawn.append(unicodedata.normalize(draw.choice(("NFC", "NFD", "NFKC")), line))
    return drawn


def _word(draw: random.Random) -> str:
    first, last = draw.choice(_ALPHABETS)
    letters = (chr(draw.randint(ord(first), ord(last))) for _ in range(draw.randrange(1, 7)))
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Cn")


def train(family: str, path: Path, text: list[str], vocab_size: int = 3000) -> Path:
    """Write a SentencePiece model as a family publishes it; return its path."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(path.with_suffix("")),
        model_type="unigram",
        vocab_size=vocab_size,
        character_coverage=0.99,
        normalization_rule_name="nmt_nfkc_cf" if family == "albert" else "nmt_nfkc",
        num_threads=4,
        minloglevel=3,
        **_OPTIONS[family],
    )
    path.with_suffix(".vocab").unlink()
    return path


_NAMES = ("unk", "cls", "sep", "pad", "mask")
_GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
_MMBERT = dict(zip((f"{name}_token" for name in _NAMES), ("<unk>", "<bos>", "<eos>", "<pad>", "<mask>"), strict=True))
_END = "<|end_of_text|>"
# {kind: `tokenizer_config.json`}
SETTINGS = {
    "wordpiece": {"tokenizer_class": "BertTokenizer"},
    "byte_bpe": {"tokenizer_class": "RobertaTokenizer"},
    "albert": {"tokenizer_class": "AlbertTokenizer"},
    "xlnet": {"tokenizer_class": "XLNetTokenizer"},
    "xlm-roberta": {"tokenizer_class": "XLMRobertaTokenizer"},
    "camembert": {"tokenizer_class": "CamembertTokenizer"},
    "deberta-v2": {"tokenizer_class": "DebertaV2Tokenizer"},
    "mpnet": {"tokenizer_class": "MPNetTokenizer"},
    "modernbert": _GENERIC | {f"{name}_token": f"[{name.upper()}]" for name in _NAMES},
    "mmbert": _GENERIC | _MMBERT,
    "mmbert_of_gemma": _GENERIC
    | _MMBERT
    | {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True, "add_eos_token": True}
    | {"tokenizer_class": "GemmaTokenizerFast"},
    # Its end of a text is its padding too, and it has no symbol for unknowns.
    "eurobert": _GENERIC
    | {"bos_token": "<|begin_of_text|>", "eos_token": _END, "pad_token": _END, "mask_token": "<|mask|>"},
}
_JSON = {"modernbert": byte_bpe, "mmbert": gemma, "mmbert_of_gemma": gemma, "eurobert": llama}
_MODEL_TYPES = {"wordpiece": "bert", "byte_bpe": "roberta", "mmbert": "modernbert", "mmbert_of_gemma": "modernbert"}


@functools.cache
def vocabulary(kind: str) -> dict[str, bytes]:
    """Return the files of a vocabulary as it is published: {name: content}."""
    text = lines(300)
    if kind == "wordpiece":
        trained = tokenizer.train(text, TokenizerConfig(kind="wordpiece", vocab_size=4000, lowercase=True))
        return {"vocab.txt": "".join(trained.piece(i) + "\n" for i in range(trained.vocab_size)).encode()}
    if kind == "mpnet":  # the symbols of RoBERTa around a vocabulary of BERT
        of_bert = vocabulary("wordpiece")["vocab.txt"].decode()
        return {"vocab.txt": f"<s>\n<pad>\n</s>\n<unk>\n{of_bert}<mask>\n".encode()}
    if kind == "byte_bpe":
        model = tokenizer.train(text, TokenizerConfig(kind="byte_bpe", vocab_size=600)).description["model"]
        ordinary = (piece for piece in model["vocab"] if piece not in tokenizer.SPECIALS)
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *ordinary, "<mask>"]
        merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
        ids = json.dumps({piece: i for i, piece in enumerate(pieces)})
        return {"vocab.json": ids.encode(), "merges.txt": f"#version: 0.2\n{merges}".encode()}
    if kind in _JSON:
        return {"tokenizer.json": _JSON[kind](text, 700)}
    names = {"albert": "spiece.model", "xlnet": "spiece.model", "deberta-v2": "spm.model"}
    name = names.get(kind, "sentencepiece.bpe.model")
    with tempfile.TemporaryDirectory() as folder:
        return {name: train(kind, Path(folder) / name, text, 2000).read_bytes()}


def write(folder: Path, kind: str, **settings) -> Path:
    """Write the files of a tokenizer as they are published, and a `config.json`; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in vocabulary(kind).items():
        (folder / name).write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[kind] | settings))
    (folder / "config.json").write_text(json.dumps({"model_type": _MODEL_TYPES.get(kind, kind)}))
    return folder
