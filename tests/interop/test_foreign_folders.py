"""Folders as others publish them: each setting is read, harmless, refused by its name, or noted."""

import json

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.interop import families, huggingface, weights
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
        ("BertJapaneseTokenizer", "tokenizer_config.json", "words are split by code"),
        ("KoBertTokenizer", "config.json", "words are split by code"),
        ("BertweetTokenizer", "tokenizer_config.json", "words are split by code"),
        ("HerbertTokenizer", "config.json", "and only vocab.txt, which bertjax reads as BertTokenizer does"),
        ("RobertaTokenizer", "tokenizer_config.json", "and only vocab.txt, which bertjax reads as BertTokenizer does"),
    ],
)
def test_classes_whose_files_do_not_suffice_are_refused_by_name(folder, named, place, does):
    change(older(folder) / place, tokenizer_class=named)
    with pytest.raises(UserError, match=f"has tokenizer_class='{named}':? {does}"):
        huggingface.read(folder)


def test_code_of_its_own_and_pieces_of_other_kinds_are_refused(folder):
    change(
        older(folder) / "tokenizer_config.json",
        tokenizer_class="BertTokenizer",
        auto_map={"AutoTokenizer": ["a", None]},
    )
    with pytest.raises(UserError, match="tokenizer_class='BertTokenizer' with auto_map: words are split by code"):
        huggingface.read(folder)
    (folder / "tokenizer_config.json").unlink()
    vocab = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(vocab.replace("##", "\u2581"))
    with pytest.raises(UserError, match="has pieces of SentencePiece .*, as KoBERT's"):
        huggingface.read(folder)
    (folder / "bpe.codes").write_text("e r 12\n")
    with pytest.raises(UserError, match=r"has a bpe.codes, the merges of fastBPE: words"):
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
