"""MPNet against transformers: values, gradients, bytes, every setting, tokens, and folders of sentence-transformers."""

import json

import numpy as np
import pytest

from bertjax.interop import families, foreign_settings, huggingface, sentence_transformers, tokenizers
from bertjax.models import vocabulary
from bertjax.models.blocks.mpnet import MPNetBlock, bucket_of
from bertjax.runtime.errors import UserError

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

from tests.interop import models, parity, published  # noqa: E402

SIZES = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 42, "layer_norm_eps": 1e-5,
}  # fmt: skip
FAMILY = families.of_config({"model_type": "mpnet"})
TOKENS = models.make(frozenset(), parity.TOKENS, "mpnet").tokenizer


@pytest.fixture(autouse=True)
def _padding_is_id_1(monkeypatch):
    """The classes of MPNet take id 1 for padding, and bertjax trains tokenizers with padding at id 0."""
    monkeypatch.setattr(parity, "TOKENS", TOKENS)
    parity.batch.cache_clear()
    yield
    parity.batch.cache_clear()


def make(folder, suffix: str, **settings):
    """Write a folder with every tensor drawn at random, norms too; return the model of transformers."""
    torch.manual_seed(0)
    config = transformers.MPNetConfig(vocab_size=parity.TOKENS.vocab_size, **SIZES | settings)
    config._attn_implementation = "eager"
    return parity.write(folder, getattr(transformers, f"MPNet{suffix}")(config))


def test_hidden_states_logits_and_gradients_are_those_of_transformers(tmp_path):
    parity.check_values_and_gradients(tmp_path, make(tmp_path, "ForMaskedLM"), FAMILY)


def test_every_distance_has_the_bucket_of_transformers():
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(-700, 700)
    theirs = MPNetEncoder.relative_position_bucket(torch.from_numpy(-distances)).numpy()
    np.testing.assert_array_equal(bucket_of(distances, 32, 128), theirs)


@pytest.mark.parametrize(
    "suffix",
    [
        *("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
        pytest.param("ForMultipleChoice", marks=pytest.mark.slow),
    ],
)
def test_every_byte_returns_and_transformers_opens_it(tmp_path, suffix):
    if suffix == "ForMultipleChoice":
        make(tmp_path, suffix)
        parity.check_labels(tmp_path, make(tmp_path, suffix), has_choices=True)
    else:
        parity.check_bytes(tmp_path, make(tmp_path / "theirs", suffix))


@pytest.mark.parametrize("suffix", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"])
def test_heads_on_labels(tmp_path, suffix):
    parity.check_labels(tmp_path, make(tmp_path, suffix, **{} if "Question" in suffix else {"num_labels": 3}))


def with_padding_first():
    """Return a model with a tokenizer as bertjax trains it."""
    export = models.make(frozenset({"mlm"}), models.trained(), "mpnet")
    return export._replace(tokenizer=models.trained(), params=vocabulary.exchanged(export.params, 0, 1))


@pytest.mark.slow
def test_the_file_for_onnx_computes_the_same(tmp_path):
    pytest.importorskip("onnxscript", reason="ONNX needs the extra [onnx]")
    from bertjax.interop import onnx

    make(tmp_path / "theirs", "ForMaskedLM")
    for name, export in {
        "imported": huggingface.read(tmp_path / "theirs")[0],
        "own_tokenizer": with_padding_first(),
    }.items():
        notes = onnx.write(tmp_path / f"{name}.onnx", export)
        assert notes[1].startswith("checked: onnxruntime and bertjax differ by ")


def config_of(**settings) -> dict:
    return {"model_type": "mpnet"} | settings


def test_settings_of_the_published_folder():
    config = config_of(
        _name_or_path="microsoft/mpnet-base", architectures=["MPNetForMaskedLM"], attention_probs_dropout_prob=0.1,
        bos_token_id=0, eos_token_id=2, hidden_act="gelu", hidden_dropout_prob=0.1, hidden_size=768,
        initializer_range=0.02, intermediate_size=3072, layer_norm_eps=1e-5, max_position_embeddings=514,
        num_attention_heads=12, num_hidden_layers=12, pad_token_id=1, relative_attention_num_buckets=32,
        transformers_version="4.8.2", vocab_size=30527,
    )  # fmt: skip
    assert foreign_settings.notes_of_config(config, FAMILY.settings_read) == []
    encoder = FAMILY.encoder_config(config)
    assert (encoder.max_positions, encoder.embeddings.position_offset, encoder.block) == (512, 2, MPNetBlock())
    written = FAMILY.settings(encoder, "MPNetForMaskedLM")
    assert written.items() <= config.items()
    defaults = transformers.MPNetConfig().to_dict()
    written = FAMILY.settings(FAMILY.encoder_config(config_of()), "MPNetModel")
    assert written == {key: defaults[key] for key in written} | {"architectures": ["MPNetModel"]}


@pytest.mark.parametrize(
    "settings, complaint",
    [
        (
            {"relative_attention_num_buckets": 16},
            "config.json has relative_attention_num_buckets=16; bertjax's MPN",
        ),
        ({"hidden_act": "relu"}, "config.json has hidden_act='relu'; bertjax's MPNet computes 'gelu' only"),
        ({"is_decoder": True}, "config.json has is_decoder=True"),
        ({"max_position_embeddings": 2}, "config.json has max_position_embeddings=2, of which MPNet leaves 2 unused"),
    ],
)
def test_settings_that_are_not_computed_are_refused(settings, complaint):
    with pytest.raises(UserError, match=f"^{complaint}"):
        FAMILY.encoder_config(config_of(**settings))


def test_other_buckets_are_not_written():
    export = models.make(frozenset({"mlm"}), models.trained(), "mpnet")
    other = export.encoder.replace({"block.buckets": 16})
    [complaint] = FAMILY.refusals(other, 1)
    assert complaint == "the model has model.block.buckets=16, and transformers' MPNet computes 32 only"


def test_a_tokenizer_with_padding_elsewhere_is_of_another_model(tmp_path, monkeypatch):
    monkeypatch.setattr(parity, "TOKENS", models.trained())
    make(tmp_path, "ForMaskedLM")
    with pytest.raises(UserError, match="^the tokenizer has 0 as the id of its padding, and MPNet counts positions"):
        huggingface.read(tmp_path)


def test_own_tokenizers_get_their_padding_where_the_classes_have_it(tmp_path):
    """Ids are exchanged, and every text and its logits stay the same."""
    export = with_padding_first()
    assert export.tokenizer.pad_id == 0
    huggingface.write(tmp_path, export)
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
    model = transformers.MPNetForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert (opened.pad_token, opened.pad_token_id, model.config.pad_token_id) == ("[PAD]", 1, 1)
    again, _ = huggingface.read(tmp_path)
    texts = ["adcbe fabc", "b é def"]  # é is [UNK], whose id was 1
    pieces = [[own.piece(i) for i in row] for own in (export.tokenizer, again.tokenizer) for row in own.encode(texts)]
    assert pieces[:2] == pieces[2:] and "[UNK]" in pieces[1]
    assert opened(texts, add_special_tokens=False)["input_ids"] == again.tokenizer.encode(texts)
    before, after = (own.params["encoder"]["embeddings"]["word"][own.tokenizer.pad_id] for own in (export, again))
    np.testing.assert_array_equal(before, after)


def test_a_tokenizer_whose_ids_are_not_exchanged_is_refused():
    from bertjax.data import tokenizer
    from bertjax.data.config import TokenizerConfig

    unigram = tokenizer.train(published.lines(100), TokenizerConfig(kind="unigram", vocab_size=1600))
    complaint = FAMILY.tokenizer_complaint(unigram)
    assert complaint.startswith("the tokenizer has 0 as the id of its padding, and transformers' MPNet takes id 1")
    assert not FAMILY.tokenizer_complaint(models.trained()) and not FAMILY.tokenizer_complaint(TOKENS)


def pieces_of_mpnet() -> list[str]:
    """Return a vocabulary as MPNet's: BERT's with its symbols, after RoBERTa's, and <mask> at the end."""
    words = published.lines(300)
    letters = sorted({letter for line in words for letter in line.lower() if letter.isalnum()})
    common = sorted({word for line in words for word in line.lower().split() if word.isalpha()})[:500]
    of_bert = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    others = [word for word in dict.fromkeys((*common, ".", ",", "!", "?")) if word not in of_bert]
    return ["<s>", "<pad>", "</s>", "<unk>", *of_bert, *others, "<mask>"]


TEXTS = [
    *published.lines(40), "", "Ünïcode ÉCOLE naïve", "e\u0301 E\u0301", "日本語 and 한국어",
    "a [MASK] or <mask> b", "<s> x </s> [SEP] <pad>", "[UNK] ☃ \u00a0tab\tnew\nline", "don't-stop, it's 3.14!",
]  # fmt: skip


@pytest.mark.parametrize("has_json, case", [(True, None), (True, False), (False, None), (False, False)])
def test_tokens_are_those_of_transformers_both_ways(tmp_path, has_json, case):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces_of_mpnet()), encoding="utf-8")
    settings = {"tokenizer_class": "MPNetTokenizer"} | ({} if case is None else {"do_lower_case": case})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "mpnet"}))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if has_json:
        theirs.save_pretrained(folder)
    found = tokenizers.read(folder)
    ours, symbols = found.tokenizer, ("cls", "pad", "sep", "mask", "unk")
    assert [getattr(ours, f"{name}_id") for name in symbols] == [0, 1, 2, len(pieces_of_mpnet()) - 1, 6]
    assert [ours.piece(getattr(ours, f"{name}_id")) for name in symbols] == ["<s>", "<pad>", "</s>", "<mask>", "[UNK]"]
    assert not found.has_segments and ours.pair_separators == 2
    texts = [text for text in TEXTS if "<" not in text and "[" not in text]
    assert ours.encode(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    tokenizers.write(tmp_path, ours, 128, segments=0)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert back(texts)["input_ids"] == theirs(texts)["input_ids"]
    assert back(texts, texts[::-1])["input_ids"] == theirs(texts, texts[::-1])["input_ids"]
    assert back("The <mask> was")["input_ids"] == theirs("The <mask> was")["input_ids"]
    [filled] = ours.encode_masked(["The [MASK] was"])
    assert filled == theirs("The <mask> was", add_special_tokens=False)["input_ids"]
    assert "token_type_ids" not in back(texts)
    again = tokenizers.read(tmp_path).tokenizer
    assert again.encode(TEXTS) == ours.encode(TEXTS)
    assert again.model == ours.model or again.roles == ours.roles


def test_an_embedder_as_all_mpnet_base_v2_both_ways(tmp_path):
    """The layout of version 2, in which the published models are: an encoder with a pooler that nothing reads."""
    folder = tmp_path / "theirs"
    make(folder, "Model")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24, "do_lower_case": False}))
    (folder / "modules.json").write_text(json.dumps(modules))
    export, notes = huggingface.read(folder)
    assert (export.encoder.block.kind, export.lengths.example, export.is_normalized) == ("mpnet", 24, True)
    assert not [note for note in notes if "does not know" in note or "not converted" in note]
    embedder = export._replace(
        settings=export.settings | {"tasks": {"similar": {"objective": {"kind": "embedding_simcse"}}}}
    )
    huggingface.write(tmp_path / "ours", embedder)
    assert sentence_transformers.read(tmp_path / "ours").is_embedder
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    back = transformers.AutoModel.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    with torch.no_grad():
        expected, computed = (model(**parity.inputs()).last_hidden_state for model in (theirs, back))
    assert torch.equal(expected, computed)
