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
    "named, does",
    [
        ("BertJapaneseTokenizer", "splits words by MeCab, Sudachi or Juman"),
        ("KoBertTokenizer", "joins a SentencePiece model"),
        ("BertweetTokenizer", "rewrites users"),
        ("PhobertTokenizer", "splits words by fastBPE"),
        ("HerbertTokenizer", "and only vocab.txt, which bertjax reads as BertTokenizer does"),
        ("RobertaTokenizer", "and only vocab.txt, which bertjax reads as BertTokenizer does"),
        ("MyOwnTokenizer", "and only vocab.txt, which bertjax reads as BertTokenizer does"),
    ],
)
@pytest.mark.parametrize("place", ["tokenizer_config.json", "config.json"])
def test_classes_whose_files_do_not_suffice_are_refused_by_name(folder, named, does, place):
    change(older(folder) / place, tokenizer_class=named)
    with pytest.raises(UserError, match=f"has tokenizer_class='{named}',? .*{does}"):
        huggingface.read(folder)


@pytest.mark.parametrize("named", ["BertTokenizer", "BertTokenizerFast", "ElectraTokenizer", "MobileBertTokenizerFast"])
def test_classes_whose_vocab_txt_is_plain_wordpiece_are_read(folder, tokens, named):
    change(older(folder) / "tokenizer_config.json", tokenizer_class=named)
    assert tokenizers.read(folder)[0].encode(["abd aceb"]) == tokens.encode(["abd aceb"])


@pytest.mark.parametrize("named", ["PreTrainedTokenizerFast", "TokenizersBackend", "HerbertTokenizerFast"])
def test_a_tokenizer_json_suffices_for_classes_that_only_use_it(folder, tokens, named):
    change(folder / "tokenizer_config.json", tokenizer_class=named)
    _, notes = huggingface.read(folder)
    assert any("tokenizer_class=HerbertTokenizer is not known" in note for note in notes) == ("Herbert" in named)


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


def test_lower_case_that_nobody_set_is_noted_for_a_cased_vocabulary(folder):
    older(folder)
    assert not any("do_lower_case" in note for note in huggingface.read(folder)[1])
    vocab = (folder / "vocab.txt").read_text()
    (folder / "vocab.txt").write_text(vocab.replace("\na", "\nA"))
    assert any("does not set do_lower_case, so texts lose capitals" in note for note in huggingface.read(folder)[1])


@pytest.mark.parametrize(
    "file, settings, complaint",
    [
        ("config.json", {"quantization_config": {"bits": 4}}, "quantization_config=.*: its weights are packed"),
        ("config.json", {"auto_map": {"AutoModel": "m.M"}}, "auto_map=.*: its model has code of its own"),
        ("config.json", {"is_encoder_decoder": True}, "is_encoder_decoder=True"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens=True"),
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}, "word_tokenizer_type='mecab': words are split"),
        ("tokenizer_config.json", {"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs="),
        ("tokenizer_config.json", {"normalization": True}, "normalization=True: texts are rewritten"),
    ],
)
def test_settings_that_change_the_function_are_refused_by_name(folder, file, settings, complaint):
    change(folder / file, **settings)
    with pytest.raises(UserError, match=f"{file} has {complaint}") as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_settings_that_nobody_knows_are_noted(folder, file):
    before = huggingface.read(folder)[1]
    change(folder / file, use_flux="yes", return_dict=True, padding_side="right", sep_token="[SEP]")
    added = [note for note in huggingface.read(folder)[1] if note not in before]
    assert len(added) == 1 and added[0].startswith(f"{file} has settings that bertjax does not know and leaves out: ")
    assert "'use_flux'" in added[0]


@pytest.mark.parametrize(
    "setting, harmless, note",
    [
        (
            "truncation_side",
            {"left": "right"},
            "which keeps the end of a text that is too long: bertjax keeps its start",
        ),
        ("do_basic_tokenize", {False: True}, "which only the slow class of transformers follows"),
    ],
)
def test_settings_that_bertjax_computes_in_one_way_only_are_noted(folder, setting, harmless, note):
    [(other, usual)] = harmless.items()
    before = huggingface.read(folder)[1]
    change(folder / "tokenizer_config.json", **{setting: usual})
    assert huggingface.read(folder)[1] == before
    change(folder / "tokenizer_config.json", **{setting: other})
    [added] = [line for line in huggingface.read(folder)[1] if line not in before]
    assert added.startswith(f"tokenizer_config.json has {setting}={other!r}, {note}")


@pytest.mark.parametrize("kind", models.STEMS)
def test_what_bertjax_writes_has_no_unknown_setting(tokens, tmp_path, kind):
    for term in families.of_config({"model_type": kind}).task_heads:
        huggingface.write(tmp_path / term, models.fine_tuned(term, tokens, kind))
        assert not [note for note in huggingface.read(tmp_path / term)[1] if "does not know" in note]


@pytest.mark.parametrize(
    "kind, theirs", [("distilbert", {"n_layers": "num_hidden_layers"}), ("xlnet", {"d_model": "hidden_size"})]
)
def test_the_other_names_of_sizes_are_read(tokens, tmp_path, kind, theirs):
    huggingface.write(tmp_path, models.make(next(iter(models.CLASSES[kind].values())), tokens, kind))
    expected, config = huggingface.read(tmp_path)[0].encoder, json.loads((tmp_path / "config.json").read_text())
    renamed = {theirs.get(key, key): value for key, value in config.items()}
    (tmp_path / "config.json").write_text(json.dumps(renamed))
    assert huggingface.read(tmp_path)[0].encoder == expected
    # transformers sets the other name last, so it wins over the family's own.
    (tmp_path / "config.json").write_text(json.dumps(dict.fromkeys(theirs, 7) | renamed))
    assert huggingface.read(tmp_path)[0].encoder == expected


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
    "wrap, noted",
    [
        ("_orig_mod.{}", "torch.compile"),
        ("module.{}", "parallel wrapper"),
        ("module._orig_mod.{}", "parallel wrapper"),
        ("model.{}", "names start with 'model.'"),
        ("model.backbone.{}", "names start with 'model.backbone.'"),
        ("net.module.{}", "names start with 'net.'"),
        ("0.auto_model.{}", "names start with '0.auto_model.'"),
        ("encoder.{}", "names start with 'encoder.'"),  # also the name of a part of BERT
    ],
)
@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertModel"])
def test_prefixes_of_wrappers_are_left_out(tokens, tmp_path, architecture, wrap, noted):
    huggingface.write(tmp_path, models.make(models.PARTS[architecture], tokens))
    expected = params_of(tmp_path)
    rename(tmp_path, wrap.format)
    model, notes = huggingface.read(tmp_path)
    assert any(noted in note for note in notes)
    for path, leaf in flatten_dict(model.params, sep="/").items():
        np.testing.assert_array_equal(leaf, expected[path], path)


def test_a_model_within_a_field_of_its_own_name(tokens, tmp_path):
    huggingface.write(tmp_path, models.make(frozenset({"pooler"}), tokens))
    expected = params_of(tmp_path)
    rename(tmp_path, "bert.{}".format)  # BertModel in a class with heads: not a wrapper
    assert not any("names start with" in note for note in huggingface.read(tmp_path)[1])
    rename(tmp_path, "bert.{}".format)
    assert any("names start with 'bert.'" in note for note in huggingface.read(tmp_path)[1])
    np.testing.assert_array_equal(params_of(tmp_path)["encoder/embeddings/word"], expected["encoder/embeddings/word"])
    tensors = dict(weights.read(tmp_path))
    weights.write(tmp_path / "model.safetensors", tensors | {f"teacher.{name}": tensors[name] for name in tensors})
    with pytest.raises(UserError, match="lacks bert.embeddings.*; it has 'bert.bert.embeddings"):
        huggingface.read(tmp_path)


def test_wrappers_within_a_model_and_fields_beside_it(folder):
    expected = params_of(folder)
    rename(folder, lambda name: name.replace("encoder.layer.0.", "encoder.layer.0._orig_mod."))
    np.testing.assert_array_equal(params_of(folder)["encoder/embeddings/word"], expected["encoder/embeddings/word"])
    rename(folder, lambda name: f"model.{name}")
    tensors = dict(weights.read(folder))
    weights.write(folder / "model.safetensors", tensors | {"loss.weight": np.ones(3, np.float32)})
    with pytest.raises(UserError, match="names that bertjax does not know: loss.weight"):
        huggingface.read(folder)
    assert params_of(folder, encoder_only=True)


def test_what_the_file_has_instead_is_listed(folder):
    rename(folder, lambda name: name.replace("bert.embeddings", "bert.inputs"))
    with pytest.raises(UserError, match="lacks bert.embeddings.*; it has 'bert.inputs.LayerNorm.bias'"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    "name, what",
    [
        ("tf_model.h5", "weights of TensorFlow.*BertForMaskedLM.from_pretrained.*from_tf=True"),
        ("flax_model.msgpack", "weights of Flax.*from_flax=True"),
        ("bert_model.ckpt.index", "a checkpoint of TensorFlow, as google-research publishes.*from_json_file"),
        ("epoch=3-step=900.ckpt", "a checkpoint of Lightning.*state_dict"),
        ("adapter_model.safetensors", "an adapter of PEFT.*merge_and_unload"),
        ("zero_to_fp32.py", "a checkpoint of DeepSpeed.*zero_to_fp32.py"),
        ("model.fp16.safetensors", "a file with another name.*rename it to model.safetensors"),
        ("pytorch_model.pt", "a file with another name.*state dict as pytorch_model.bin"),
    ],
)
@pytest.mark.parametrize("has_config", [True, False])
def test_weights_of_other_formats_are_named_with_the_way_to_convert_them(folder, name, what, has_config):
    (folder / "model.safetensors").rename(folder / name)
    if not has_config:
        (folder / "config.json").unlink()
    assert huggingface.is_checkpoint(folder)
    with pytest.raises(UserError, match=what.replace("BertForMaskedLM", "" if not has_config else "BertForMaskedLM")):
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
        ("tokenizer.json", {"post_processor": {"type": "Sequence", "processors": [None]}}),
        ("tokenizer.json", {"post_processor": {"type": "TemplateProcessing", "single": [[]], "pair": {}}}),
        ("tokenizer.json", {"roles": ["<s>"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {}, "sep_token": 3}),
        ("tokenizer_config.json", {"model_max_length": "512"}),
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
