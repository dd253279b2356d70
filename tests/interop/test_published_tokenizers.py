"""Tokenizers of published checkpoints give the ids of transformers, in lines of several scripts.

The vocabularies are of our own, the files, steps and symbols those of the published ones.
"""

import json
import pickle
import shutil

import pytest

from bertjax.data import tokenizer
from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.inspect import vocabulary
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.tokenizer import resizing
from bertjax.interop import huggingface, tokenizers
from bertjax.runtime.errors import UserError
from tests.interop import published

transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

IS_5 = transformers.__version__ >= "5"
NAMES = ("pad", "unk", "cls", "sep", "mask")
BYTES = ("modernbert", "mmbert", "mmbert_of_gemma", "eurobert")  # kinds with a piece for every byte
SENTENCEPIECE = ("albert", "xlnet", "xlm-roberta", "camembert", "deberta-v2")
CASES = [  # (kind, options)
    *((kind, {}) for kind in published.SETTINGS),
    ("wordpiece", {"do_lower_case": False}),
    ("mpnet", {"do_lower_case": False}),
    ("deberta-v2", {"do_lower_case": True}),
    ("albert", {"do_lower_case": False, "keep_accents": True}),
]
# The slow class in transformers 4 makes `tokenizer.json` of a SentencePiece file. In 5 the options are in it.
CASES = [case for case in CASES if not IS_5 or not case[1] or case[0] in ("wordpiece", "mpnet")]
SPELLED = ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "<pad>", "<s>", "</s>", "<cls>", "<mask>", "<eod>")
TEXTS = ["The king was old.", "She said, “No”", "No"]


@pytest.fixture(scope="module")
def sample():
    return published.lines(600)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join([case[0], *case[1]]))
def checkpoint(request, tmp_path_factory):
    """A folder that transformers wrote, its tokenizer there, and the kind."""
    kind, options = request.param
    folder = published.write(tmp_path_factory.mktemp(kind), kind, **options)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if kind not in BYTES:
        theirs.save_pretrained(folder)
    return folder, theirs, kind


def foreign(theirs) -> list[str]:
    """Texts with symbols of other tokenizers, which are ordinary text here."""
    return [f"the{symbol} {symbol}{symbol}" for symbol in SPELLED if symbol not in theirs.get_added_vocab()]


def rows(tokens, first, second=None):
    """Return the rows of texts or pairs as bertjax lays them out."""
    encoded = [tokens.encode(texts) for texts in (first, second) if texts is not None]
    ragged = add_special_tokens(*encoded, *([None] * (2 - len(encoded))), Vocabulary.of(tokens), {})
    return [row.tolist() for row in ragged.token_lists()]


def test_ids_rows_and_symbols_are_those_of_transformers_both_ways(checkpoint, sample, tmp_path):
    folder, theirs, kind = checkpoint
    found = tokenizers.read(folder)
    tokens, second = found.tokenizer, sample[::-1]
    assert tokens.vocab_size == len(theirs)
    tokenizers.write(tmp_path, tokens, 128, segments=2 if found.has_segments else 0)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    # A note reports the class that lays out pairs in another way in transformers 4.
    is_gemma = kind == "mmbert_of_gemma"
    assert bool(found.notes) == is_gemma
    for one in (theirs, back):
        assert tokens.encode(sample) == one(sample, add_special_tokens=False)["input_ids"]
        assert rows(tokens, sample) == one(sample)["input_ids"]
        assert IS_5 < is_gemma or rows(tokens, sample, second) == one(sample, second)["input_ids"]
        assert ("token_type_ids" in one(TEXTS)) == found.has_segments or kind in ("albert", "xlnet")
        for name in NAMES:
            assert kind == "eurobert" or getattr(tokens, f"{name}_id") == getattr(one, f"{name}_token_id")
            assert getattr(tokens, f"{name}_id") in tokens.special_ids
    again = tokenizers.read(tmp_path).tokenizer
    assert again.encode(sample) == tokens.encode(sample) and (kind == "mpnet" or again == tokens)


def test_older_files_give_the_same(checkpoint, sample, tmp_path):
    """Without `tokenizer.json` the class decides the layout."""
    folder, theirs, kind = checkpoint
    if kind in BYTES or (IS_5 and kind in SENTENCEPIECE):
        pytest.skip("published with a tokenizer.json only, or read in another way by transformers 5")
    published.write(tmp_path, kind)
    shutil.copy(folder / "tokenizer_config.json", tmp_path)
    tokens, sample = tokenizers.read(tmp_path).tokenizer, foreign(theirs) + sample
    assert rows(tokens, sample, sample[::-1]) == theirs(sample, sample[::-1])["input_ids"]
    assert [getattr(tokens, f"{name}_id") for name in NAMES] == [getattr(theirs, f"{name}_token_id") for name in NAMES]


def test_spelled_symbols_are_text_and_masks_are_not(checkpoint):
    folder, theirs, kind = checkpoint
    tokens = tokenizers.read(folder).tokenizer
    spelled = SPELLED + tuple(tokens.piece(getattr(tokens, f"{name}_id")) for name in NAMES)
    texts = [f"{before}{symbol}{after}" for symbol in spelled for before in ("", "a ", "a") for after in ("", "b")]
    assert tokens.encode(foreign(theirs)) == theirs(foreign(theirs), add_special_tokens=False)["input_ids"]
    assert not [ids for ids in tokens.encode(texts) if (tokens.special_ids - {tokens.unk_id}) & {*ids}]
    # Elsewhere transformers has a piece for the space before a mask.
    if kind not in ("mmbert", "mmbert_of_gemma", "eurobert") and not (IS_5 and kind == "byte_bpe"):
        expected = theirs([f"the {theirs.mask_token} of"], add_special_tokens=False)["input_ids"]
        assert tokens.encode_masked(["the [MASK] of"]) == expected
    [masked] = tokens.encode_masked(["the [MASK]s of"])
    assert masked.count(tokens.mask_id) == 1 and masked[-1] == tokens.encode_inside(["of"])[0][-1]
    if kind in SENTENCEPIECE:
        assert len(tokens.words("</s>")) == 1 + ("</s>" in theirs.get_vocab()), "only what is a piece is split"
        assert [tokens.piece(token) for token in masked] == ["\u2581the", theirs.mask_token, "s", "\u2581of"]


def test_a_saved_one_loads_again_and_restores_texts(checkpoint, sample, tmp_path):
    folder, theirs, kind = checkpoint
    tokens = tokenizers.read(folder).tokenizer
    tokens.save(tmp_path)
    loaded = tokenizer.load(tmp_path)
    assert loaded == tokens and pickle.loads(pickle.dumps(tokens)) == tokens
    assert loaded.encode(sample[:9]) == tokens.encode(sample[:9])
    for text, (ids, spans) in zip(sample, tokens.encode_with_offsets(sample)):
        assert ids == tokens.encode([text])[0]
        assert (spans >= 0).all() and (spans <= len(text)).all() and (spans[:, 0] <= spans[:, 1]).all()
    if kind not in BYTES:
        return
    text = "The king, 왕은, κόσμος \U0001f600 went home."
    [ids], [inside] = tokens.encode([text]), tokens.encode_inside([text])
    assert tokens.decode(ids) == tokens.decode(inside) == text
    assert ids != inside, "a word at the start of a text has other pieces than inside of it"
    assert len(tokens.byte_ids) == 256
    # Sentences of a corpus are encoded after a space, so `decode` leaves out one.
    texts = [" " * spaces + text for spaces in (0, 1, 2, 5) for text in ("The king  was old. ", "왕은", "\U0001f600")]
    for ids in tokens.encode(texts) + tokens.encode_inside(texts):
        assert tokens.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False).removeprefix(" ")


@pytest.mark.parametrize("kind", BYTES)
def test_kinds_with_a_piece_for_every_byte(kind, tmp_path):
    tokens, is_fallback = tokenizers.read(published.write(tmp_path, kind)).tokenizer, "mmbert" in kind
    # EuroBERT pads with the symbol that ends a text, so ids alone do not tell them apart.
    tokens_BT, examples_BT = tokens.rows(["One.", "One. Two. Three."], seq_len=32)
    for tokens_T, examples_T, text in zip(tokens_BT, examples_BT, ("One.", "One. Two. Three.")):
        assert tokens_T[examples_T == 1].tolist() == [tokens.cls_id, *tokens.encode([text])[0], tokens.sep_id]
        assert set(tokens_T[examples_T == 0]) == {tokens.pad_id}
    assert (tokens.pad_id == tokens.sep_id) == (kind == "eurobert")
    with pytest.raises(UserError, match="this one is BPE"):
        resizing.wordpiece(tokens)
    # The letter that spells a space in byte-level BPE is a letter of Maltese elsewhere.
    form = vocabulary._form("\u0120ob", vocabulary._kind(tokens))
    assert form == ("\u0120ob" if is_fallback else "\u2581ob")
    words = ["The", "king,", "\uc655\uc740", "(went)", "home."]
    [row] = Tagged().encode([{"words": words}], tokens, 64, ()).ragged.token_lists()
    assert row.tolist() == transformers.AutoTokenizer.from_pretrained(tmp_path)(" ".join(words))["input_ids"]


def symbols_of(folder) -> dict:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    return {name: getattr(theirs, f"{name}_token") for name in (*NAMES, "bos", "eos")}


@pytest.mark.parametrize("flags", [{}, {"lstrip": True}, {"rstrip": True}], ids=["plain", "lstrip", "rstrip"])
@pytest.mark.parametrize(
    "kind, declared_in", [("modernbert", "tokenizer.json"), *((kind, "tokenizer_config.json") for kind in BYTES)]
)
def test_symbols_and_their_flags_go_out_as_they_came_in(tmp_path, kind, declared_in, flags):
    theirs, ours = published.write(tmp_path / "theirs", kind), tmp_path / "ours"
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
    ours.mkdir()
    tokenizers.write(ours, read, 128, segments=0)
    expected = symbols_of(theirs)
    # EuroBERT names only the bounds of a text, which are the first and last symbol of its template.
    expected |= {name: expected[name] or expected[bound] for name, bound in (("cls", "bos"), ("sep", "eos"))}
    assert symbols_of(ours) == expected
    texts = [f"The {mask['content']} was"]
    before, after = (transformers.AutoTokenizer.from_pretrained(path)(texts) for path in (theirs, ours))
    assert before["input_ids"] == after["input_ids"]
    assert tokenizers.read(ours).tokenizer == read


def without_end(description):
    """As of Llama itself, whose texts only start with a symbol."""
    template = description["post_processor"]["processors"][1]
    template["single"] = template["single"][:-1]
    template["pair"] = [part for part in template["pair"] if "end_of_text" not in str(part)]


def with_prefix(description):
    """As of Llama, whose space before each tagged word would be beside the one between words."""
    steps = [{"type": "Prepend", "prepend": "\u2581"}, description["normalizer"]]
    description["normalizer"] = {"type": "Sequence", "normalizers": steps}


LAYOUT = r"lays out a text as '<\|begin_of_text\|> A', and bertjax as \[CLS\] A \[SEP\] or"


@pytest.mark.parametrize(
    "kind, change, settings, complaint",
    [
        ("mmbert", with_prefix, {}, "it puts a space before each text, as Llama's does"),
        ("mmbert_of_gemma", None, {"add_eos_token": False}, "GemmaTokenizerFast' without add_eos_token"),
        ("eurobert", without_end, {}, LAYOUT),
        ("eurobert", without_end, {"add_bos_token": True, "add_eos_token": False}, LAYOUT),
        ("eurobert", lambda it: it["model"]["vocab"].pop("\u00ff"), {}, r"has no symbols \[UNK\]"),
        ("modernbert", None, {"pad_token": "[SEP]"}, "two special symbols have one id"),
    ],
)
def test_files_that_would_give_other_rows_are_refused(tmp_path, kind, change, settings, complaint):
    published.write(tmp_path, kind, **settings)
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    if change:
        change(description)
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises((UserError, ValueError), match=complaint):
        tokenizers.read(tmp_path).tokenizer.check()
    if change is without_end:
        with pytest.raises(UserError, match=complaint):
            tokenizer.from_model(tmp_path / "tokenizer.json")


def test_in_a_corpus_the_first_word_of_roberta_has_the_space_that_it_has_there(tmp_path):
    folder = published.write(tmp_path, "byte_bpe")
    theirs, tokens = transformers.AutoTokenizer.from_pretrained(folder), tokenizers.read(folder).tokenizer
    flat, lengths = tokens.encode_flat(["the same", "the king"])
    assert flat.tolist() == theirs(" the same the king", add_special_tokens=False)["input_ids"]
    assert lengths.sum() == len(flat)


@pytest.mark.parametrize("family, stem", [("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")])
def test_fairseq_models_are_read_from_shards(sample, tmp_path, family, stem):
    published.write(tmp_path, family)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"vocab_size": len(theirs), "max_position_embeddings": 40, "type_vocab_size": 1}
    model = getattr(transformers, f"{stem}Model")(getattr(transformers, f"{stem}Config")(**sizes)).eval()
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    export, _ = huggingface.read(tmp_path)
    assert (export.encoder.embeddings.position_offset, export.encoder.embeddings.segments) in ((2, 0), (2, 1))
    assert export.tokenizer.encode(sample) == theirs(sample, add_special_tokens=False)["input_ids"]
    word = export.params["encoder"]["embeddings"]["word"][: len(theirs)]
    assert (word == model.embeddings.word_embeddings.weight.detach().numpy()).all()
