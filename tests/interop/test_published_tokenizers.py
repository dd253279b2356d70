"""Tokenizers of published checkpoints give the ids of transformers, in lines of several scripts."""

import json
import pickle
import shutil

import pytest

from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.interop import huggingface, tokenizers
from tests.interop import published

transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

FILES = {
    "albert": "spiece.model",
    "xlnet": "spiece.model",
    "xlm-roberta": "sentencepiece.bpe.model",
    "camembert": "sentencepiece.bpe.model",
    "deberta-v2": "spm.model",
}
CLASSES = {
    "albert": "Albert",
    "xlnet": "XLNet",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "deberta-v2": "DebertaV2",
}
SPELLED = ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "<pad>", "<unk>", "<s>", "</s>", "<cls>", "<sep>", "<mask>", "<eod>")
VARIANTS = [
    ("albert", {}),
    ("albert", {"do_lower_case": False, "keep_accents": True}),
    ("xlnet", {}),
    ("xlm-roberta", {}),
    ("camembert", {}),
    ("deberta-v2", {}),
    ("deberta-v2", {"do_lower_case": True}),
]


@pytest.fixture(scope="module")
def sample():
    return published.lines(600)


@pytest.fixture(scope="module")
def models(sample, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for family in FILES:
        (root / family).mkdir()
    return {family: published.train(family, root / family / name, sample) for family, name in FILES.items()}


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: "-".join(map(str, [variant[0], *variant[1]])))
def checkpoint(request, models, tmp_path_factory):
    """A folder that transformers wrote, and its tokenizer there."""
    family, options = request.param
    folder = tmp_path_factory.mktemp(family)
    theirs = getattr(transformers, f"{CLASSES[family]}TokenizerFast")(str(models[family]), **options)
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder, theirs


def ids_of(theirs, lines):
    return theirs(lines, add_special_tokens=False)["input_ids"]


def older(folder, target, *left_out):
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*left_out))
    return target


def test_ids_are_those_of_transformers(checkpoint, sample, tmp_path):
    folder, theirs = checkpoint
    expected = ids_of(theirs, sample)
    tokens = tokenizers.read(folder)[0]
    assert tokens.encode(sample) == expected
    assert tokens.vocab_size == len(theirs)
    from_model = tokenizers.read(older(folder, tmp_path / "older", "tokenizer.json"))[0]
    assert from_model.encode(sample) == expected
    names = ("pad", "unk", "cls", "sep", "mask")
    for one in (tokens, from_model):
        assert [getattr(one, f"{name}_id") for name in names] == [getattr(theirs, f"{name}_token_id") for name in names]
        assert one.special_ids >= {getattr(theirs, f"{name}_token_id") for name in names}
    tokenizers.write(tmp_path, tokens, longest=64)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ids_of(back, sample) == expected
    assert tokenizers.read(tmp_path)[0] == tokens


def test_spelled_symbols_are_text_and_masks_are_not(checkpoint):
    folder, _ = checkpoint
    tokens = tokenizers.read(folder)[0]
    texts = [f"{before}{symbol}{after}" for symbol in SPELLED for before in ("", "a ", "a") for after in ("", "b")]
    assert not [ids for ids in tokens.encode(texts) if (tokens.special_ids - {tokens.unk_id}) & set(ids)]
    [masked] = tokens.encode_masked(["the [MASK]s of"])
    pieces = [tokens.piece(token_id) for token_id in masked]
    assert pieces == ["\u2581the", tokens.piece(tokens.mask_id), "s", "\u2581of"]


def test_a_saved_one_loads_again(checkpoint, sample, tmp_path):
    tokens = tokenizers.read(checkpoint[0])[0]
    tokens.save(tmp_path)
    loaded = tokenizer.load(tmp_path)
    assert loaded == tokens and pickle.loads(pickle.dumps(tokens)) == tokens
    assert loaded.encode(sample[:9]) == tokens.encode(sample[:9])
    for text, (ids, spans) in zip(sample, tokens.encode_with_offsets(sample)):
        assert ids == tokens.encode([text])[0]
        assert (spans >= 0).all() and (spans <= len(text)).all() and (spans[:, 0] <= spans[:, 1]).all()


@pytest.fixture(scope="module")
def roberta(sample, tmp_path_factory):
    """RoBERTa's class of transformers with merges trained on the sample; no space before the first word."""
    folder = tmp_path_factory.mktemp("roberta")
    trained = tokenizer.train(sample, TokenizerConfig(kind="byte_bpe", vocab_size=1500)).description["model"]
    first = ("<s>", "<pad>", "</s>", "<unk>")
    pieces = [*first, *(piece for piece in trained["vocab"] if piece not in tokenizer.SPECIALS), "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    merges = "".join(f"{left} {right}\n" for left, right in trained["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    theirs = transformers.RobertaTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    return folder, theirs


def test_the_first_word_of_roberta(roberta, sample, tmp_path):
    folder, theirs = roberta
    expected = ids_of(theirs, sample)
    tokens = tokenizers.read(folder)[0]
    assert tokens.encode(sample) == expected
    assert tokenizers.read(older(folder, tmp_path / "older", "tokenizer.json"))[0].encode(sample) == expected
    tokenizers.write(tmp_path, tokens, longest=64)
    assert ids_of(transformers.AutoTokenizer.from_pretrained(tmp_path), sample) == expected
    assert tokenizers.read(tmp_path)[0] == tokens
    # In a corpus a sentence follows others, so its first word has the space that it has there.
    flat, lengths = tokens.encode_flat(["the same", "the king"])
    assert flat.tolist() == ids_of(theirs, [" the same the king"])[0] and lengths.sum() == len(flat)
    masked = theirs("the <mask> of <mask>s", add_special_tokens=False)["input_ids"]
    assert tokens.encode_masked(["the [MASK] of [MASK]s"]) == [masked]


@pytest.mark.parametrize("settings", [{"do_lower_case": True}, {"do_lower_case": False}], ids=["uncased", "cased"])
def test_wordpiece(sample, tmp_path, settings):
    config = TokenizerConfig(kind="wordpiece", vocab_size=6000, lowercase=settings["do_lower_case"])
    trained = tokenizer.train(sample, config)
    (tmp_path / "vocab.txt").write_text("".join(trained.piece(i) + "\n" for i in range(trained.vocab_size)))
    theirs = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"), **settings)
    theirs.save_pretrained(tmp_path)
    assert tokenizers.read(tmp_path)[0].encode(sample) == ids_of(theirs, sample)


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
def test_fairseq_models_are_read_from_shards(models, sample, tmp_path, family):
    theirs = getattr(transformers, f"{CLASSES[family]}TokenizerFast")(str(models[family]))
    config_class = getattr(transformers, f"{CLASSES[family]}Config")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = config_class(vocab_size=len(theirs), max_position_embeddings=40, type_vocab_size=1, **sizes)
    model = getattr(transformers, f"{CLASSES[family]}Model")(config).eval()
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    export, _ = huggingface.read(tmp_path)
    assert (export.encoder.embeddings.position_offset, export.encoder.embeddings.segments) in ((2, 0), (2, 1))
    assert export.tokenizer.encode(sample) == ids_of(theirs, sample)
    word = export.params["encoder"]["embeddings"]["word"][: len(theirs)]
    assert (word == model.embeddings.word_embeddings.weight.detach().numpy()).all()
