"""Tokenizers of ModernBERT, mmBERT and EuroBERT give the ids of transformers in lines of several scripts.

The vocabularies are of our own, the steps and symbols those of the published files.
"""

import json
import shutil

import pytest

from bertjax.data import tokenizer
from bertjax.data.inspect import vocabulary
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.tokenizer import new_pieces
from bertjax.interop import tokenizers
from bertjax.runtime.errors import UserError
from tests.interop import published

transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

_NAMES = ("unk", "cls", "sep", "pad", "mask")
_BOUNDS = {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True, "add_eos_token": True}
CASES = {  # {case: (maker of tokenizer.json, pieces, tokenizer_config.json)}
    "modernbert": (published.byte_bpe, 3000, {f"{name}_token": f"[{name.upper()}]" for name in _NAMES}),
    "mmbert": (
        published.gemma,
        4000,
        dict(zip((f"{name}_token" for name in _NAMES), ("<unk>", "<bos>", "<eos>", "<pad>", "<mask>"), strict=True)),
    ),
}
# Its end of a text is its padding too, and it has no symbol for unknowns.
_END = "<|end_of_text|>"
CASES["eurobert"] = (
    published.llama,
    3000,
    {"bos_token": "<|begin_of_text|>", "eos_token": _END, "pad_token": _END, "mask_token": "<|mask|>"},
)
CASES["mmbert_of_gemma"] = (
    *CASES["mmbert"][:2],
    CASES["mmbert"][2] | _BOUNDS | {"tokenizer_class": "GemmaTokenizerFast"},
)


@pytest.fixture(scope="module", params=CASES)
def folder(request, tmp_path_factory):
    make, size, settings = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "tokenizer.json").write_bytes(make(published.lines(2000), size))
    names = {"model_input_names": ["input_ids", "attention_mask"], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "modernbert"}))
    return folder


def ids_of(folder, texts: list[str]) -> list[list[int]]:
    return transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]


def test_ids_are_those_of_transformers_both_ways(folder, tmp_path):
    texts = published.lines(2000)
    found = tokenizers.read(folder)
    ours = found.tokenizer
    expected = ids_of(folder, texts)
    assert [[ours.cls_id, *ids, ours.sep_id] for ids in ours.encode(texts)] == expected
    assert sum(map(len, expected)) > 10 * len(texts)
    tokenizers.write(tmp_path, ours, 128, segments=0)
    assert ids_of(tmp_path, texts) == expected
    [theirs] = transformers.AutoTokenizer.from_pretrained(folder)(["One."], ["Two"])["input_ids"]
    pair = [ours.cls_id, *ours.encode(["One."])[0], ours.sep_id, *ours.encode(["Two"])[0], ours.sep_id]
    # A note reports the class that lays out pairs in another way in transformers 4.
    is_gemma = "gemma" in folder.name
    assert bool(found.notes) == is_gemma
    assert (pair == theirs) == (not is_gemma or transformers.__version__ >= "5")


def symbols_of(folder) -> dict:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    return {name: getattr(theirs, f"{name}_token") for name in (*_NAMES, "bos", "eos")}


@pytest.mark.parametrize("flags", [{}, {"lstrip": True}, {"rstrip": True}], ids=["plain", "lstrip", "rstrip"])
@pytest.mark.parametrize("declared_in", ["tokenizer.json", "tokenizer_config.json"])
def test_symbols_and_their_flags_go_out_as_they_came_in(folder, tmp_path, flags, declared_in):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    shutil.copytree(folder, theirs)
    ours.mkdir()
    description, settings = (json.loads((theirs / name).read_text()) for name in (tokenizers.MODEL, tokenizers.CONFIG))
    [mask] = [token for token in description["added_tokens"] if token["content"] == settings["mask_token"]]
    mask |= {"lstrip": False, "special": True}
    if declared_in == tokenizers.CONFIG:  # its flags win
        settings["added_tokens_decoder"] = {str(mask["id"]): {k: v for k, v in mask.items() if k != "id"} | flags}
    else:
        mask |= flags
    (theirs / tokenizers.MODEL).write_text(json.dumps(description))
    (theirs / tokenizers.CONFIG).write_text(json.dumps(settings))
    read = tokenizers.read(theirs).tokenizer
    tokenizers.write(ours, read, 128, segments=0)
    expected = symbols_of(theirs)
    # EuroBERT names only the bounds of a text, which are the first and last symbol of its template.
    expected |= {name: expected[name] or expected[bound] for name, bound in (("cls", "bos"), ("sep", "eos"))}
    assert symbols_of(ours) == expected
    text = f"The {mask['content']} was"
    assert ids_of(ours, [text]) == ids_of(theirs, [text])
    assert tokenizers.read(ours).tokenizer == read


def test_a_saved_one_loads_again_and_restores_texts(folder, tmp_path):
    ours = tokenizers.read(folder).tokenizer
    ours.save(tmp_path)
    assert tokenizer.load(tmp_path) == ours
    text = "The king, 왕은, κόσμος \U0001f600 went home."
    [ids], [inside] = ours.encode([text]), ours.encode_inside([text])
    assert ours.decode(ids) == ours.decode(inside) == text
    assert ids != inside, "a word at the start of a text has other pieces than inside of it"
    [(aligned, spans)] = ours.encode_with_offsets([text])
    assert aligned == ids and text[slice(*spans[-2])] + text[slice(*spans[-1])] in text
    assert len(ours.byte_ids) == 256


def test_rows_hide_padding_and_not_the_end_of_a_text(folder):
    """EuroBERT pads with the symbol that ends a text, so ids alone do not tell them apart."""
    ours = tokenizers.read(folder).tokenizer
    tokens_BT, examples_BT = ours.rows(["One.", "One. Two. Three."], seq_len=16)
    for tokens_T, examples_T, [ids] in zip(tokens_BT, examples_BT, map(ours.encode, (["One."], ["One. Two. Three."]))):
        assert tokens_T[examples_T == 1].tolist() == [ours.cls_id, *ids, ours.sep_id]
        assert set(tokens_T[examples_T == 0]) == {ours.pad_id} and len(ids) < 14
    assert (ours.pad_id == ours.sep_id) == (folder.name.startswith("eurobert"))


@pytest.mark.parametrize("spaces", [0, 1, 2, 5])
def test_texts_are_those_of_transformers_but_for_the_space_before_a_sentence(folder, spaces):
    """Sentences of a corpus are encoded after a space, so `decode` leaves out one."""
    ours, theirs = tokenizers.read(folder).tokenizer, transformers.AutoTokenizer.from_pretrained(folder)
    texts = [" " * spaces + text for text in ("The king  was old. ", "왕은", "\U0001f600")]
    for ids in ours.encode(texts) + ours.encode_inside(texts):
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False).removeprefix(" ")


def test_new_pieces_are_refused_by_the_name_of_the_kind(folder):
    kind = "BPE with byte fallback" if "mmbert" in folder.name else "byte-level BPE"
    with pytest.raises(UserError, match=f"need a WordPiece tokenizer, this one is {kind}"):
        new_pieces.wordpiece(tokenizers.read(folder).tokenizer)


def test_the_letter_that_spells_a_space_in_byte_level_bpe_is_a_letter_elsewhere(folder):
    """It is a letter of Maltese."""
    kind = vocabulary._kind(tokenizers.read(folder).tokenizer)
    assert vocabulary._form("\u0120ob", kind) == ("\u0120ob" if "mmbert" in folder.name else "\u2581ob")


def test_tagged_words_have_the_pieces_of_running_text(folder):
    words = ["The", "king,", "\uc655\uc740", "(went)", "home."]
    [row] = Tagged().encode([{"words": words}], tokenizers.read(folder).tokenizer, 64, ()).ragged.token_lists()
    assert row.tolist() == ids_of(folder, [" ".join(words)])[0]


def test_masks_that_a_text_spells_out_are_text(folder):
    ours = tokenizers.read(folder).tokenizer
    mask = ours.piece(ours.mask_id)
    for symbol in (mask, ours.piece(ours.cls_id), ours.piece(ours.pad_id)):
        [ids] = ours.encode([f"a {symbol} b"])
        assert not ours.special_ids & {*ids}
    [ids] = ours.encode_masked([f"The {mask} was old"])
    assert ids.count(ours.mask_id) == 1 and ids[-2:] == ours.encode_inside(["was old"])[0][-2:]


def test_a_tokenizer_that_puts_a_space_before_texts_is_refused(tmp_path):
    """Llama's would put one before each tagged word, beside the one between words."""
    make, size, settings = CASES["mmbert"]
    description = json.loads(make(published.lines(200), 600))
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    normalizer = {"type": "Sequence", "normalizers": [prepend, description["normalizer"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description | {"normalizer": normalizer}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="it puts a space before each text, as Llama's does"):
        tokenizers.read(tmp_path)


def test_a_gemma_tokenizer_without_a_last_symbol_is_refused(tmp_path):
    make, size, settings = CASES["mmbert_of_gemma"]
    (tmp_path / "tokenizer.json").write_bytes(make(published.lines(200), 600))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_eos_token": False}))
    with pytest.raises(UserError, match="GemmaTokenizerFast' without add_eos_token: texts end without"):
        tokenizers.read(tmp_path)


@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": False}])
def test_a_template_without_an_end_is_refused_by_name(tmp_path, settings):
    """As of Llama itself, whose texts only start with a symbol."""
    make, size, symbols = CASES["eurobert"]
    description = json.loads(make(published.lines(200), 600))
    template = description["post_processor"]["processors"][1]
    template["single"] = template["single"][:-1]
    template["pair"] = [part for part in template["pair"] if _END not in str(part)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(symbols | settings))
    complaint = r"lays out a text as '<\|begin_of_text\|> A', and bertjax as \[CLS\] A \[SEP\] or"
    with pytest.raises(UserError, match=complaint):
        tokenizers.read(tmp_path)
    with pytest.raises(UserError, match=complaint):
        tokenizer.from_model(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "case, vocabulary, settings, message",
    [
        ("eurobert", "without a byte", {}, r"has no symbols \[UNK\]"),
        ("modernbert", "whole", {"pad_token": "[SEP]"}, "two special symbols have one id"),
    ],
)
def test_only_a_piece_for_every_byte_needs_no_symbol_for_unknowns(tmp_path, case, vocabulary, settings, message):
    make, size, symbols = CASES[case]
    description = json.loads(make(published.lines(2000), size))
    if vocabulary == "without a byte":
        del description["model"]["vocab"]["\u00ff"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(symbols | settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "modernbert"}))
    with pytest.raises((UserError, ValueError), match=message):
        tokenizers.read(tmp_path).tokenizer.check()
