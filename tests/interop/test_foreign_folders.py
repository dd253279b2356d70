"""Folders as others publish them: each setting is read, harmless, refused by its name, or noted."""

import json

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.interop import families, huggingface, tokenizers, weights
from bertjax.runtime.errors import UserError
from tests.interop import models


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


@pytest.fixture
def folder(tokens, tmp_path):
    """A BertForMaskedLM as bertjax writes it."""
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens))
    return tmp_path


def change(path, **settings):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | settings))


def older(folder):
    """Leave only the vocab.txt of the tokenizer, as folders from before tokenizer.json have it."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink()
    return folder


def rename(folder, rule):
    tensors = {name: np.array(tensor) for name, tensor in weights.read(folder).items()}
    weights.write(folder / "model.safetensors", {rule(name): tensor for name, tensor in tensors.items()})


def params_of(folder, **options):
    return flatten_dict(huggingface.read(folder, **options)[0].params, sep="/")


# --- tokenizers


@pytest.mark.parametrize(
    "named, place, does",
    [
        ("BertJapaneseTokenizer", "tokenizer_config.json", "splits words by MeCab, Sudachi or Juman"),
        ("KoBertTokenizer", "config.json", "joins a SentencePiece model"),
        ("BertweetTokenizer", "tokenizer_config.json", "rewrites users"),
        ("HerbertTokenizer", "config.json", "and only vocab.txt, which bertjax reads as BertTokenizer does"),
        ("RobertaTokenizer", "tokenizer_config.json", "and only vocab.txt, which bertjax reads as BertTokenizer does"),
    ],
)
def test_classes_whose_files_do_not_suffice_are_refused_by_name(folder, named, place, does):
    change(older(folder) / place, tokenizer_class=named)
    with pytest.raises(UserError, match=f"has tokenizer_class='{named}',? .*{does}"):
        huggingface.read(folder)


def test_classes_whose_files_suffice_are_read(folder, tokens):
    for named in ("PreTrainedTokenizerFast", "TokenizersBackend", "HerbertTokenizerFast"):
        change(folder / "tokenizer_config.json", tokenizer_class=named)
        _, notes = huggingface.read(folder)
        assert any("tokenizer_class=HerbertTokenizer is not known" in note for note in notes) == ("Herbert" in named)
    older(folder)
    for named in ("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizerFast"):
        change(folder / "tokenizer_config.json", tokenizer_class=named)
        assert tokenizers.read(folder)[0].encode(["abd aceb"]) == tokens.encode(["abd aceb"])


def test_code_of_its_own_and_pieces_of_other_kinds_are_refused(folder):
    change(
        older(folder) / "tokenizer_config.json",
        tokenizer_class="BertTokenizer",
        auto_map={"AutoTokenizer": ["a", None]},
    )
    with pytest.raises(UserError, match="tokenizer_class='BertTokenizer' with auto_map, which bertjax does not run"):
        huggingface.read(folder)
    (folder / "tokenizer_config.json").unlink()
    vocab = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(vocab.replace("##", "\u2581"))
    with pytest.raises(UserError, match="has pieces of SentencePiece .*, as that of KoBertTokenizer"):
        huggingface.read(folder)
    (folder / "bpe.codes").write_text("e r 12\n")
    with pytest.raises(UserError, match=r"has a bpe.codes, the merges of fastBPE \(Phobert"):
        huggingface.read(folder)
    for name in ("vocab.txt", "bpe.codes"):
        (folder / name).unlink()
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate([*symbols, "a", "b</w>"])}))
    (folder / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    with pytest.raises(UserError, match="tokenizer_class='HerbertTokenizer' and only vocab.json|end a word with </w>"):
        change(folder / "config.json", tokenizer_class="RobertaTokenizer")
        huggingface.read(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"split_special_tokens": True},
        {"word_tokenizer_type": "mecab"},
        {"sp_model_kwargs": {"enable_sampling": True}},
        {"normalization": True},
    ],
)
def test_settings_that_change_the_ids_are_refused_by_name(folder, settings):
    change(folder / "tokenizer_config.json", **settings)
    with pytest.raises(UserError, match=f"tokenizer_config.json has {next(iter(settings))}=") as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "file, settings, plain, note",
    [
        ("config.json", {"use_flux": "yes"}, {"return_dict": True}, "does not know and leaves out: 'use_flux'"),
        ("tokenizer_config.json", {"use_flux": "yes"}, {"padding_side": "right"}, "does not know and leaves out"),
        ("special_tokens_map.json", {"use_flux": "yes"}, {"sep_token": "[SEP]"}, "does not know and leaves out"),
        ("tokenizer_config.json", {"truncation_side": "left"}, {"truncation_side": "right"}, "truncation_side='left'"),
        ("tokenizer_config.json", {"do_basic_tokenize": False}, {"do_basic_tokenize": True}, "do_basic_tokenize=False"),
    ],
)
def test_settings_that_are_not_followed_are_noted(folder, file, settings, plain, note):
    before = huggingface.read(folder)[1]
    change(folder / file, **plain)
    assert huggingface.read(folder)[1] == before
    change(folder / file, **settings)
    [added] = [line for line in huggingface.read(folder)[1] if line not in before]
    assert added.startswith(f"{file} has ") and note in added


def test_lower_case_that_nobody_set_is_noted_for_a_cased_vocabulary(folder):
    older(folder)
    assert not any("do_lower_case" in note for note in huggingface.read(folder)[1])
    vocab = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(vocab.replace("\na", "\nA"))
    assert any("does not set do_lower_case, so texts lose capitals" in note for note in huggingface.read(folder)[1])


def test_a_vocabulary_that_is_padded_is_cut(folder, tokens):
    expected = params_of(folder)
    tensors = {name: np.array(tensor) for name, tensor in weights.read(folder).items()}
    for name, tensor in tensors.items():
        if len(tensor) == tokens.vocab_size:
            tensors[name] = np.concatenate([tensor, np.ones((4, *tensor.shape[1:]), np.float32)])
    weights.write(folder / "model.safetensors", tensors)
    change(folder / "config.json", vocab_size=tokens.vocab_size + 4)
    model, notes = huggingface.read(folder)
    assert "4 of 64 rows of word embeddings cut: the tokenizer has 60 ids" in notes
    assert model.encoder.vocab_size == 60
    for path, leaf in flatten_dict(model.params, sep="/").items():
        np.testing.assert_array_equal(leaf, expected[path], path)


# --- weights


@pytest.mark.parametrize("kind", [kind for kind in models.STEMS if families.of_config({"model_type": kind}).tied])
def test_a_tied_tensor_is_read_under_either_name(tokens, tmp_path, kind):
    """safetensors keeps the first name of the alphabet of tensors that share their memory."""
    parts = next(parts for parts in models.CLASSES[kind].values() if parts & {"mlm", "plm"})
    huggingface.write(tmp_path, models.make(parts, tokens, kind))
    expected, tied = params_of(tmp_path), families.of_config({"model_type": kind}).tied
    rename(tmp_path, lambda name: next((copy for copy, original in tied.items() if original == name), name))
    for path, leaf in params_of(tmp_path).items():
        np.testing.assert_array_equal(leaf, expected[path], path)
    assert "encoder/embeddings/word" in params_of(tmp_path, encoder_only=True)


@pytest.mark.parametrize(
    "architecture, wrap, noted",
    [
        ("BertModel", "_orig_mod.{}", "torch.compile"),
        ("BertForMaskedLM", "module._orig_mod.{}", "parallel wrapper"),
        ("BertForMaskedLM", "model.{}", "names start with 'model.'"),
        ("BertModel", "model.backbone.{}", "names start with 'model.backbone.'"),
        ("BertForMaskedLM", "net.module.{}", "names start with 'net.'"),
        ("BertModel", "0.auto_model.{}", "names start with '0.auto_model.'"),
        ("BertModel", "encoder.{}", "names start with 'encoder.'"),  # also the name of a part of BERT
        ("BertModel", "bert.bert.{}", "names start with 'bert.'"),
    ],
)
def test_prefixes_of_wrappers_are_left_out(tokens, tmp_path, architecture, wrap, noted):
    huggingface.write(tmp_path, models.make(models.PARTS[architecture], tokens))
    expected = params_of(tmp_path)
    rename(tmp_path, lambda name: wrap.format(name.replace("layer.0.", "layer.0._orig_mod.")))
    model, notes = huggingface.read(tmp_path)
    assert any(noted in note for note in notes)
    for path, leaf in flatten_dict(model.params, sep="/").items():
        np.testing.assert_array_equal(leaf, expected[path], path)


def test_other_modules_beside_a_model_are_named(tokens, tmp_path):
    huggingface.write(tmp_path, models.make(frozenset({"pooler"}), tokens))
    rename(tmp_path, "bert.{}".format)  # BertModel in a class with heads: not a wrapper
    assert not any("names start with" in note for note in huggingface.read(tmp_path)[1])
    tensors = dict(weights.read(tmp_path))
    weights.write(tmp_path / "model.safetensors", tensors | {"loss.weight": np.ones(3, np.float32)})
    with pytest.raises(UserError, match="names that bertjax does not know: loss.weight"):
        huggingface.read(tmp_path)
    assert params_of(tmp_path, encoder_only=True)
    twice = {f"{prefix}.{name}": tensors[name] for name in tensors for prefix in ("student", "teacher")}
    weights.write(tmp_path / "model.safetensors", twice)
    with pytest.raises(UserError, match="lacks bert.embeddings.*; it has 'bert.student.bert.embeddings"):
        huggingface.read(tmp_path)


@pytest.mark.parametrize(
    "name, what",
    [
        ("tf_model.h5", "weights of TensorFlow.*BertForMaskedLM.from_pretrained.*from_tf=True"),
        ("flax_model.msgpack", "weights of Flax.*from_flax=True"),
        ("bert_model.ckpt.index", "a checkpoint of TensorFlow, as google-research publishes.*from_json_file"),
        ("epoch=3-step=900.ckpt", "a checkpoint of Lightning.*state_dict"),
        ("adapter_model.safetensors", "an adapter of PEFT.*merge_and_unload"),
        ("model.fp16.safetensors", "a file with another name.*rename it to model.safetensors"),
        ("pytorch_model.pt", "a file with another name.*state dict as pytorch_model.bin"),
    ],
)
def test_weights_of_other_formats_are_named_with_the_way_to_convert_them(folder, name, what):
    (folder / "model.safetensors").rename(folder / name)
    for path in (None, folder / "config.json"):  # with its config.json, and without
        if path:
            path.unlink()
        assert huggingface.is_checkpoint(folder)
        with pytest.raises(UserError, match=what.replace("BertForMaskedLM", "") if path else what):
            huggingface.read(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_pointers_of_git_lfs_are_named(folder, name):
    """A clone without Git LFS has them in place of large files."""
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 438\n")
    with pytest.raises(UserError, match=f"{name} is .*pointer of Git LFS and not the file; run git lfs pull"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    "file, settings",
    [
        ("tokenizer.json", {"post_processor": {"type": "BertProcessing", "cls": [], "sep": 1}}),
        ("tokenizer.json", {"post_processor": {"type": "TemplateProcessing", "single": [[]], "pair": {}}}),
        ("tokenizer.json", {"roles": ["<s>"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {}, "sep_token": 3}),
        ("tokenizer_config.json", {"model_max_length": 2}),
        ("added_tokens.json", {"covid": "60"}),
        ("modules.json", {"idx": 0}),
    ],
)
def test_damaged_settings_end_in_one_line(folder, file, settings):
    if file == "added_tokens.json":
        older(folder)
    change(folder / file, **settings)
    with pytest.raises(UserError) as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)
