"""Tokenizers of ModernBERT and mmBERT give the ids of transformers in lines of several scripts.

The vocabularies are of our own, the steps and symbols those of the published files.
"""

import json

import pytest

from bertjax.data import tokenizer
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


def test_masks_that_a_text_spells_out_are_text(folder):
    ours = tokenizers.read(folder).tokenizer
    mask = ours.piece(ours.mask_id)
    for symbol in (mask, ours.piece(ours.cls_id), ours.piece(ours.pad_id)):
        [ids] = ours.encode([f"a {symbol} b"])
        assert not ours.special_ids & {*ids}
    [ids] = ours.encode_masked([f"The {mask} was old"])
    assert ids.count(ours.mask_id) == 1 and ids[-2:] == ours.encode_inside(["was old"])[0][-2:]


def test_a_gemma_tokenizer_without_a_last_symbol_is_refused(tmp_path):
    make, size, settings = CASES["mmbert_of_gemma"]
    (tmp_path / "tokenizer.json").write_bytes(make(published.lines(200), 600))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_eos_token": False}))
    with pytest.raises(UserError, match="GemmaTokenizerFast' without add_eos_token: texts end without"):
        tokenizers.read(tmp_path)
