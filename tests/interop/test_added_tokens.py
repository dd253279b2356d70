"""Symbols, added tokens and separators of foreign tokenizers: ids and rows are those of transformers."""

import json
import shutil

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.tokenizer import resizing
from bertjax.interop import tokenizers
from bertjax.runtime.errors import UserError
from tests.interop import published

transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

TEXTS = [
    "[E1]abc[/E1] def covid abd",
    "covid",
    "acovid covidb",
    "[E1] abd [/E1]ace COVID",
    "abd [e1] x",
    "The king was old.",
    "",
]
IS_5 = int(transformers.__version__.partition(".")[0]) >= 5
MARKERS = {"additional_special_tokens": ["[E1]", "[/E1]"]}


FAMILIES = {"bert": "wordpiece", "roberta": "byte_bpe", "xlnet": "xlnet", "xlm-roberta": "xlm-roberta"}


@pytest.fixture
def made(tmp_path):
    """made(family, change) -> its tokenizer in transformers, and the folder that it was saved to."""

    def make(family, change=lambda theirs: None):
        folder = published.write(tmp_path / family, FAMILIES[family])
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        change(theirs)
        theirs.save_pretrained(folder)
        return transformers.AutoTokenizer.from_pretrained(folder), folder

    return make


def rows(tokens, first, second=None):
    """Return the rows of texts or pairs as bertjax lays them out."""
    encoded = [tokens.encode(texts) for texts in (first, second) if texts is not None]
    ragged = add_special_tokens(*encoded, *([None] * (2 - len(encoded))), Vocabulary.of(tokens), {})
    return [row.tolist() for row in ragged.token_lists()]


def check(theirs, folder, tmp_path):
    """The ids, rows and pairs of a folder are those of transformers, there and after it is written and read again."""
    tokens = tokenizers.read(folder)[0]
    tmp_path.mkdir()
    tokenizers.write(tmp_path, tokens, longest=64)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizers.read(tmp_path)[0] == tokens
    for one in (theirs, back):
        assert tokens.encode(TEXTS) == one(TEXTS, add_special_tokens=False)["input_ids"]
        assert rows(tokens, TEXTS) == one(TEXTS)["input_ids"]
        assert rows(tokens, TEXTS, TEXTS[::-1]) == one(TEXTS, TEXTS[::-1])["input_ids"]
    return tokens


def add_words(theirs):
    theirs.add_special_tokens(MARKERS)
    theirs.add_tokens(["covid"])


@pytest.mark.parametrize("family", FAMILIES)
def test_added_tokens_are_read_in_a_text(made, tmp_path, family):
    theirs, folder = made(family, add_words)
    tokens = check(theirs, folder, tmp_path / "back")
    [ids] = tokens.encode([TEXTS[0]])
    assert [tokens.piece(i) for i in ids if i in theirs.added_tokens_decoder] == ["[E1]", "[/E1]", "covid"]
    assert not tokens.special_ids & set(ids) and not tokens.continuation_ids & set(theirs.added_tokens_decoder)
    kept = resizing.trim(tokens, {i for text in tokens.encode(TEXTS) for i in text})
    assert kept.tokenizer.decode(kept.tokenizer.encode([TEXTS[0]])[0]) == tokens.decode(ids)
    assert (kept.tokenizer.cls_last, kept.tokenizer.pair_separators) == (tokens.cls_last, tokens.pair_separators)


def as_older(folder, theirs, added, special):
    """Write the files of a folder as transformers 4.33 and before did: without tokenizer.json and its flags."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "added_tokens.json").write_text(json.dumps(added))
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": special}))
    return folder


@pytest.mark.skipif(IS_5, reason="transformers 5 writes tokenizer.json only")
@pytest.mark.parametrize("family", FAMILIES)
def test_older_files_of_added_tokens(made, tmp_path, family):
    theirs, folder = made(family, add_words)
    names = ("[E1]", "[/E1]", "covid")
    added = {token.content: i for i, token in theirs.added_tokens_decoder.items() if token.content in names}
    as_older(folder, theirs, added, ["[E1]", "[/E1]"])
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizers.read(folder)[0]
    assert tokens.encode(TEXTS) == opened(TEXTS, add_special_tokens=False)["input_ids"]
    assert rows(tokens, TEXTS, TEXTS[::-1]) == opened(TEXTS, TEXTS[::-1])["input_ids"]
    assert tokens.vocab_size == len(opened)
    added["covid"] += 3
    (folder / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(UserError, match="adds 'covid' with id .*, its vocabulary with"):
        tokenizers.read(folder)


@pytest.mark.parametrize("added", ["<sep>", "[SEP]", "[CLS]", "<cls>", "[MASK]"])
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_an_added_token_does_not_take_the_place_of_a_declared_symbol(made, tmp_path, family, added):
    theirs, folder = made(family, lambda theirs: theirs.add_special_tokens({"additional_special_tokens": [added]}))
    tokens = check(theirs, folder, tmp_path / "back")
    names = ("pad", "unk", "cls", "sep", "mask")
    assert [getattr(tokens, f"{name}_id") for name in names] == [getattr(theirs, f"{name}_token_id") for name in names]
    text = f"abd {added}ace"
    assert tokens.encode([text]) == theirs([text], add_special_tokens=False)["input_ids"]


def test_unusual_symbols_are_those_that_the_files_declare(tmp_path):
    """A vocabulary of BERT with symbols of RoBERTa and one of its own, from vocab.txt and from tokenizer.json."""
    names = {"[CLS]": "<s>", "[SEP]": "<|end|>", "[PAD]": "<pad>", "[MASK]": "<mask>", "[UNK]": "<unk>"}
    folder = published.write(tmp_path / "own", "wordpiece")
    lines = [names.get(line, line) for line in (folder / "vocab.txt").read_text().splitlines()]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    symbols = {f"{key.strip('[]').lower()}_token": piece for key, piece in names.items()}
    theirs = transformers.BertTokenizerFast(str(folder / "vocab.txt"), **symbols)
    theirs.save_pretrained(folder)
    tokens = check(theirs, folder, tmp_path / "back")
    assert tokens.piece(tokens.sep_id) == "<|end|>" and tokens.encode(["\u9f98"]) == [[tokens.unk_id]]
    shutil.copytree(folder, tmp_path / "older", ignore=shutil.ignore_patterns("tokenizer.json"))
    assert rows(tokenizers.read(tmp_path / "older")[0], TEXTS, TEXTS) == theirs(TEXTS, TEXTS)["input_ids"]
    tokens.save(tmp_path / "back")
    assert tokenizer.load(tmp_path / "back") == tokens


@pytest.mark.skipif(IS_5, reason="transformers 5 lays out texts as declared, whatever the template is")
def test_a_template_wins_over_a_declared_symbol_with_a_note(made, tmp_path):
    theirs, folder = made("roberta", lambda theirs: theirs.add_special_tokens({"sep_token": "<sep>"}))
    tokens, notes, _ = tokenizers.read(folder)
    assert rows(tokens, TEXTS) == theirs(TEXTS)["input_ids"]
    assert any("[SEP] is declared as '<sep>', and the template of tokenizer.json has '</s>'" in note for note in notes)


@pytest.mark.parametrize("file", ["special_tokens_map.json", "tokenizer_config.json"])
def test_symbols_without_a_role_take_ids_before_other_new_tokens(tmp_path, file):
    published.write(tmp_path, "wordpiece")
    lines = [line for line in (tmp_path / "vocab.txt").read_text().splitlines() if line not in ("[BOS]", "[EOS]")]
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "tokenizer_config.json").unlink()
    symbols = {"bos_token": "[BOS]", "eos_token": "[EOS]", "additional_special_tokens": ["[E1]", "[E2]"]}
    (tmp_path / file).write_text(json.dumps(symbols))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokens, texts = tokenizers.read(tmp_path)[0], ["abd [E1] ace [E2]"]
    assert rows(tokens, texts) == theirs(texts)["input_ids"] and tokens.vocab_size == len(theirs)


@pytest.mark.parametrize(
    "family, kind, named",
    [
        ("camembert", "xlm-roberta", "XLMRobertaTokenizer"),
        ("xlm-roberta", "xlm-roberta", "CamembertTokenizer"),
        ("roberta", "xlnet", "XLNetTokenizer"),
    ],
)
def test_the_class_decides_the_order_of_ids_and_not_the_family(tmp_path, family, kind, named):
    published.write(tmp_path, kind, tokenizer_class=named)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    theirs, tokens = transformers.AutoTokenizer.from_pretrained(tmp_path), tokenizers.read(tmp_path)[0]
    texts = ["The king was old.", "No, she said"]
    assert rows(tokens, texts) == theirs(texts)["input_ids"]
    assert rows(tokens, texts, texts[::-1]) == theirs(texts, texts[::-1])["input_ids"]


def test_tokens_added_to_a_folder_of_ours_are_read(tmp_path):
    """transformers writes them to tokenizer.json and leaves tokenizer.model as it is."""
    lines = ["the king was old and no travelers went away", "her company said so", "every word is here"] * 9
    for kind in ("unigram", "char"):
        own = tokenizer.train(lines, TokenizerConfig(kind=kind, vocab_size=290))
        folder = tmp_path / kind
        folder.mkdir()
        tokenizers.write(folder, own, longest=64)
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        theirs.add_tokens(["covid"])
        theirs.save_pretrained(folder)
        assert (folder / "tokenizer.model").exists()
        if kind == "char":
            with pytest.raises(UserError, match="has added tokens that its tokenizer.model lacks .*'covid'"):
                tokenizers.read(folder)
            continue
        tokens, texts = tokenizers.read(folder)[0], ["the covid was old", "no"]
        assert rows(tokens, texts, texts) == theirs(texts, texts)["input_ids"] != rows(own, texts, texts)


@pytest.mark.skipif(not IS_5, reason="transformers 4 has no such class")
@pytest.mark.parametrize("own, setting", [(True, None), (True, False), (False, True)])
def test_the_class_of_transformers_5_keeps_the_space_before_a_text(made, own, setting):
    _, folder = made("roberta")
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": "TokenizersBackend"}
    settings.pop("add_prefix_space", None)
    if setting is not None:
        settings["add_prefix_space"] = setting
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    description = json.loads((folder / "tokenizer.json").read_text())
    description["pre_tokenizer"]["add_prefix_space"] = own
    (folder / "tokenizer.json").write_text(json.dumps(description))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert rows(tokenizers.read(folder)[0], TEXTS) == theirs(TEXTS)["input_ids"]


@pytest.mark.parametrize("family", ["roberta", "xlnet", "xlm-roberta"])
def test_bounds_that_only_the_class_has_go_out_too(made, tmp_path, family):
    """roberta-base is published with an empty tokenizer_config.json."""
    theirs, folder = made(family)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    check(theirs, folder, tmp_path / "back")
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert (back.bos_token, back.eos_token) == (theirs.bos_token, theirs.eos_token) == ("<s>", "</s>")


def test_another_layout_is_refused(made):
    _, folder = made("bert")
    description = json.loads((folder / "tokenizer.json").read_text())
    for part in ("single", "pair"):
        description["post_processor"][part] = description["post_processor"][part][1:]
    (folder / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=r"lays out a text as 'A \[SEP\]', and bertjax as"):
        tokenizers.read(folder)


def test_pairs_that_are_too_long_keep_their_separators():
    from bertjax.data import framing

    first, second, _ = framing.truncate([[7] * 9, [7]], [[8] * 9, [8]], 10, separators=2)
    frame, text = framing.frame(first, second, separators=2)
    tokens = np.split(frame.tokens(text, 1, 2), frame.offsets[1:-1])
    assert [row.tolist() for row in tokens] == [[1, 7, 7, 7, 2, 2, 8, 8, 8, 2], [1, 7, 2, 2, 8, 2]]
    assert frame.part_lengths.tolist() == [5, 5, 3, 3] and frame.is_text.sum() == 8
