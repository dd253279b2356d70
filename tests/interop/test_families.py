"""Every family of transformers, without transformers: round trips, the choice of the family, and errors."""

import json
import re

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.config import export
from bertjax.data.tokenizer.tokenizers_library import HuggingFaceTokenizer
from bertjax.interop import families, huggingface, weights
from bertjax.models.bert import BertEmbeddings
from bertjax.models.presets import PRESETS
from bertjax.runtime.errors import UserError
from tests import batches
from tests.interop import models

CLASSES = [(kind, name, parts) for kind, known in models.CLASSES.items() for name, parts in known.items()]


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


def encoder_with(export, **settings):
    return export._replace(encoder=export.encoder.replace(settings))


def test_every_family_is_tested():
    assert models.CLASSES.keys() == models.OWN.keys() == {family.model_type for family in families.FAMILIES}
    for family in families.FAMILIES:
        assert {family.class_of(parts) for parts in family.classes} == models.CLASSES[family.model_type].keys()


def test_encoders_that_no_family_computes():
    unknown = {name for name, encoder in PRESETS.items() if not families.has_encoder(encoder, pad_id=1)}
    assert unknown == {"fixed_tiny", "ib_bert_large", "bilstm"}


def test_the_error_is_about_the_family_that_knows_the_features_of_a_model():
    """ELECTRA has as few complaints about the teacher of MobileBERT, because it has no bottlenecks at all."""
    with pytest.raises(UserError, match="bottlenecked='none', .* train it with model.block.bottlenecked=queries_keys$"):
        families.of_model(PRESETS["ib_bert_large"], {"encoder/embeddings/word": None}, 0)


@pytest.mark.parametrize("kind, architecture, parts", CLASSES)
def test_a_round_trip_restores_the_export(tokens, tmp_path, kind, architecture, parts):
    original = models.make(parts, tokens, kind)
    notes = huggingface.write(tmp_path, original)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == ([architecture], kind)
    assert notes[0].startswith(f"architecture {architecture}, ") and len(notes) == 1
    restored, _ = huggingface.read(tmp_path)
    assert (restored.encoder, restored.settings, restored.tokenizer) == (
        original.encoder,
        original.settings,
        original.tokenizer,
    )
    assert jax.tree.structure(restored.params) == jax.tree.structure(original.params)
    rows = original.encoder.vocab_size
    back = flatten_dict(restored.params, sep="/")
    for path, leaf in flatten_dict(original.params, sep="/").items():
        real = slice(rows) if path.rpartition("/")[2].startswith("word") else slice(None)
        np.testing.assert_array_equal(leaf[real], back[path][real])


@pytest.mark.parametrize("kind, architecture, parts", CLASSES)
def test_the_card_loads_it_with_the_class_that_it_is(tokens, tmp_path, kind, architecture, parts):
    huggingface.write(tmp_path, models.make(parts, tokens, kind))
    card, stem = (tmp_path / "README.md").read_text(), families.of_config({"model_type": kind}).stem
    named = {f"{stem}Model": "AutoModel", "NeoBERT": "AutoModel", "XLNetLMHeadModel": "AutoModelForPreTraining"}
    named |= {"BertLMHeadModel": "AutoModelForCausalLM", "NeoBERTLMHead": "AutoModelForMaskedLM"}
    auto = named.get(architecture, architecture.replace(stem, "AutoModel"))
    assert f"# {architecture}\n" in card and f"- {kind}\n" in card
    longest = json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"]
    assert (
        f"\nA text has at most {longest} tokens, special symbols included: `tokenizer(text, truncation=True)`" in card
    )
    code = ", trust_remote_code=True" if kind == "neobert" else ""
    assert re.search(rf'model = {auto}.from_pretrained\("[^"]*"{code}\)', card)
    assert ("from\n[chandar-lab/NeoBERT](https://huggingface.co/chandar-lab/NeoBERT)." in card) == bool(code)
    since = {"modernbert": "4.48", "eurobert": "5.3", "deberta-v2": "4.48"}.get(kind)
    assert (f"\nPyTorch, with transformers {since} or later:\n" if since else "\nPyTorch:\n") in card
    assert (f"model = Flax{auto}.from_pretrained" in card) == (
        kind not in ("xlnet", "mobilebert", "modernbert", "eurobert", "neobert", "deberta-v2", "mpnet")
    )


def test_the_lines_for_jax_in_the_card_run_and_hide_padding(tokens, tmp_path, monkeypatch):
    original = models.make(frozenset({"mlm"}), tokens, "eurobert")
    huggingface.write(tmp_path, original)
    export.write(tmp_path / "EXPORT", original)
    [lines] = re.findall(r"```python\n(import bertjax\n.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(lines, scope)
    [ids] = tokens.encode(["a sentence"])
    assert scope["examples_BT"].tolist() == [[1] * (len(ids) + 2) + [0] * (14 - len(ids))]
    assert np.isfinite(scope["hidden_BTD"]).all()


@pytest.mark.parametrize("kind, architecture, parts", CLASSES)
def test_every_tensor_is_needed_and_none_may_be_left_over(tokens, tmp_path, kind, architecture, parts):
    huggingface.write(tmp_path, models.make(parts, tokens, kind))
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    norms = ("LayerNorm.bias", "layer_norm.bias", "final_norm.weight", "layernorm.weight", "ffn_norm.weight")
    ends = ("output.bias", *norms)
    name = next(name for name in tensors if name.endswith(ends))
    for changed in ({n: t for n, t in tensors.items() if n != name}, tensors | {"classifier.weight": tensors[name]}):
        weights.write(tmp_path / "model.safetensors", changed)
        with pytest.raises(UserError, match=f"the model lacks .*{name}|does not know: .*classifier.weight"):
            huggingface.read(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "albert", "distilbert", "roberta"])
def test_an_unused_pooler_is_not_exported_and_a_note_reports_it(tokens, tmp_path, kind):
    export = models.make(frozenset({"mlm"}), tokens, kind)
    width = export.encoder.width
    export.params["encoder"]["pooler"] = {"kernel": np.ones((width, width)), "bias": np.ones(width)}
    [_, note] = huggingface.write(tmp_path, export)
    assert (
        note.startswith("pooler not exported: no head uses it, and ")
        and note[1:] in (tmp_path / "README.md").read_text()
    )
    assert not any("pooler" in name for name in weights.read(tmp_path))


@pytest.mark.parametrize(
    "kind, setting, value",
    [
        (kind, setting, value)
        for kind in models.CLASSES
        for setting, value in (("hidden_size", "large"), ("pruned_heads", {"0": [1]}), ("is_decoder", True))
        if (kind, setting) != ("bert", "is_decoder")
    ],
)
def test_settings_that_are_not_computed_are_refused(kind, setting, value):
    family = families.of_config({"model_type": kind})
    setting = family.keys["width"] if setting == "hidden_size" else setting
    with pytest.raises(UserError, match=f"config.json has {setting}="):
        family.encoder_config({"model_type": kind, **models.NEEDED.get(kind, {}), setting: value})


@pytest.mark.parametrize(
    "kind, settings, complaint",
    [
        ("bert", batches.LSTM, "model.block.kind='lstm', which bertjax converts neither to transformers nor to "),
        (
            "modernbert",
            {"block.gated": False},
            "model.block.gated=False, and transformers' ModernBERT computes True only",
        ),
        ("modernbert", {"embeddings.segments": 2}, "model.embeddings.segments=2, and transformers' ModernBERT comp"),
        (
            "eurobert",
            {"activation": "relu"},
            "model.activation='relu', and transformers' EuroBERT computes 'gelu' only",
        ),
        ("bert", {"sharing": "attention"}, "model.sharing='attention', and transformers' BERT computes 'none' only"),
        ("albert", {"sharing": "attention"}, "model.sharing='attention', and transformers' ALBERT computes 'all'"),
        ("albert", {"embeddings.width": 16}, "embeddings of model.width=16, and transformers' ALBERT projects them"),
        ("electra", {"embeddings.position_offset": 3}, "model.embeddings.position_offset=3, and transformers' ELECTRA"),
        (
            "distilbert",
            {"norm_epsilon": 1e-6},
            "model.embeddings.segments=0, and transformers' BERT",
        ),
        ("roberta", {"activation": "gelu_tanh"}, "model.activation='gelu_tanh', and transformers' RoBERTa computes"),
        (
            "mobilebert",
            {"embeddings.segments": 0},
            "model.embeddings.segments=0, and transformers' MobileBERT",
        ),
        (
            "mobilebert",
            {"block.bottlenecked": "none"},
            "model.block.bottlenecked='none', and attention of transformers'",
        ),
        (
            "mobilebert",
            {"block.normalization": "layer_norm"},
            "model.norm_epsilon=1e-06, and transformers' MobileBERT comp",
        ),
        (
            "mobilebert",
            {"embeddings.width": 16},
            "embeddings of model.width=16, and transformers' MobileBERT has",
        ),
        ("mobilebert", {"embeddings": BertEmbeddings(8)}, "model.embeddings.kind='bert', and transformers' MobileBERT"),
        (
            "albert",
            {"embeddings.segments": 0},
            "model.embeddings.segments=0, and transformers' ALBERT",
        ),
    ],
)
def test_the_error_for_a_model_of_no_family_names_the_setting(tokens, tmp_path, kind, settings, complaint):
    export = encoder_with(models.make(models.CLASSES[kind][f"{models.STEMS[kind]}Model"], tokens, kind), **settings)
    with pytest.raises(UserError, match=f"^the model has {complaint}") as caught:
        huggingface.write(tmp_path / "out", export)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_the_generator_of_electra_is_not_exported_and_the_card_notes_it(tokens, tmp_path):
    export = models.make(models.CLASSES["electra"]["ElectraForPreTraining"], tokens, "electra")
    export.params["heads"]["mlm"] = {"word_bias": np.ones(128, np.float32)}
    export.params["generator"] = {"encoder": {"pooler": {"bias": np.ones(4, np.float32)}}}
    export.params["encoder"]["pooler"] = {"bias": np.ones(16, np.float32)}
    notes = huggingface.write(tmp_path, export)
    assert [note.partition(":")[0] for note in notes[1:]] == [
        "pooler not exported",
        "generator and its head not exported",
    ]
    assert "Generator and its head not exported: only pretraining needs them." in (tmp_path / "README.md").read_text()
    assert huggingface.read(tmp_path)[0].params["heads"].keys() == {"rtd"}


@pytest.mark.parametrize(
    "settings, complaint",
    [
        ({"use_bottleneck": False}, "use_bottleneck=False; bertjax's MobileBERT computes True only"),
        ({"trigram_input": False}, "trigram_input=False; bertjax's MobileBERT computes True only"),
        ({"use_bottleneck_attention": True}, "use_bottleneck_attention=True and key_query_shared_bottleneck=True; "),
        ({"normalization_type": "rms"}, None),
    ],
)
def test_settings_of_mobilebert_that_are_not_computed_are_refused(settings, complaint):
    complaint = f"^config.json has {complaint}" if complaint else "^model.block.normalization='rms' is unknown"
    with pytest.raises(UserError, match=complaint):
        families.of_config({"model_type": "mobilebert"}).encoder_config(settings)


def test_the_padding_of_a_mobilebert_is_exported_as_zeros_and_a_note_reports_it(tokens, tmp_path):
    export = models.make(frozenset({"mlm"}), tokens, "mobilebert")
    word = export.params["encoder"]["embeddings"]["word"]
    word[tokens.pad_id] = 1.0
    [_, note] = huggingface.write(tmp_path, export)
    assert note.startswith("the embedding of the padding token is not zero")
    written = weights.read(tmp_path)["mobilebert.embeddings.word_embeddings.weight"]
    assert not written[tokens.pad_id].any() and word[tokens.pad_id].all()
    others = np.arange(tokens.vocab_size) != tokens.pad_id
    np.testing.assert_array_equal(written[others], word[: tokens.vocab_size][others])


class EndIsPadding(HuggingFaceTokenizer):
    """A tokenizer that pads with the symbol that ends texts, as of EuroBERT."""

    @property
    def pad_id(self):
        return self.sep_id


@pytest.mark.parametrize("kind", models.CLASSES)
def test_families_that_find_padding_by_its_id_refuse_a_tokenizer_that_pads_with_the_end_of_a_text(
    tokens, tmp_path, kind
):
    shared = EndIsPadding(tokens.model)
    offset = {"embeddings.position_offset": shared.pad_id + 1} if kind == "roberta" else {}
    original = encoder_with(models.make(frozenset(), tokens, kind)._replace(tokenizer=shared), **offset)
    if offset:
        original.params["encoder"]["embeddings"]["position"] = np.ones((20 + shared.pad_id + 1, 16), np.float32)
    title = families.of_config({"model_type": kind}).title
    message = rf"ends texts with the symbol that it pads with, '\[SEP\]', and transformers' {title} takes the end of"
    if kind in ("roberta", "mobilebert", "mpnet"):
        assert re.search(message, families.tokenizer_complaint(original.encoder, shared))
        with pytest.raises(UserError, match=message):
            huggingface.write(tmp_path / "out", original)
        assert not (tmp_path / "out").exists()
    else:
        assert not families.tokenizer_complaint(original.encoder, shared)
        huggingface.write(tmp_path / "out", original)


def test_a_pooler_without_a_head_is_not_dropped(tokens, tmp_path):
    export = models.make(frozenset(), tokens, "electra")
    export.params["encoder"]["pooler"] = {"bias": np.ones(16, np.float32)}
    with pytest.raises(UserError, match="^the model has "):
        huggingface.write(tmp_path, export)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("offset, rows", [(1, 21), (3, 21)])
def test_rows_of_positions_that_no_token_reads_are_not_written(tokens, tmp_path, offset, rows):
    export = encoder_with(models.make(frozenset({"mlm"}), tokens, "roberta"), **{"embeddings.position_offset": offset})
    position = np.arange((20 + offset) * 16, dtype=np.float32).reshape(-1, 16)
    export.params["encoder"]["embeddings"]["position"] = position
    huggingface.write(tmp_path, export)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["max_position_embeddings"], config["pad_token_id"], config["type_vocab_size"]) == (rows, 0, 1)
    assert not weights.read(tmp_path)["roberta.embeddings.token_type_embeddings.weight"].any()
    restored, _ = huggingface.read(tmp_path)
    embeddings = restored.encoder.embeddings
    assert (embeddings.position_offset, embeddings.segments, restored.encoder.max_positions) == (1, 0, 20)
    np.testing.assert_array_equal(restored.params["encoder"]["embeddings"]["position"][1:], position[offset:])


def test_a_row_of_segments_that_is_not_zero_is_kept(tokens, tmp_path):
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, "roberta"))
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    tensors["roberta.embeddings.token_type_embeddings.weight"][0, 3] = -0.0
    weights.write(tmp_path / "model.safetensors", tensors)
    assert huggingface.read(tmp_path)[0].encoder.embeddings.segments == 1


@pytest.mark.parametrize(
    "settings, complaint",
    [
        (
            {"pad_token_id": 1},
            "pad_token_id=1, from which RoBERTa counts its positions, and the tokenizer's padding is 0",
        ),
        ({"pad_token_id": None}, "pad_token_id=None, after which RoBERTa counts its 21 rows of positions"),
        ({"pad_token_id": 20}, "pad_token_id=20, after which RoBERTa counts its 21 rows"),
        ({"type_vocab_size": 0}, "type_vocab_size=0; transformers' RoBERTa needs at least one row"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new'; bertjax's RoBERTa computes 'gelu' only"),
    ],
)
def test_positions_that_would_be_others_are_refused(tokens, tmp_path, settings, complaint):
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, "roberta"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(UserError, match=f"^config.json has {complaint}"):
        huggingface.read(tmp_path)


@pytest.mark.parametrize("shape", [(16, 4, 4), (16, 16), (2, 8, 16), (256,), (0,), ()])
@pytest.mark.parametrize("kernel", ["q", "o"])
def test_kernels_that_are_split_over_other_heads_are_refused(tokens, tmp_path, kernel, shape):
    huggingface.write(tmp_path, models.make(frozenset({"plm"}), tokens, "xlnet"))
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    name = f"transformer.layer.1.rel_attn.{kernel}"
    assert tensors[name].shape == (16, 2, 8)
    weights.write(tmp_path / "model.safetensors", tensors | {name: np.resize(tensors[name], shape)})
    with pytest.raises(UserError, match=rf"{name} has shape \[.*make it \[16, 2, 8\]"):
        huggingface.read(tmp_path)


def test_heads_of_one_family_on_the_encoder_of_another_have_no_class(tokens, tmp_path):
    export = models.make(models.PARTS["BertForPreTraining"], tokens)
    export.params["heads"]["sop"] = export.params["heads"].pop("nsp")
    with pytest.raises(UserError, match="no name for: heads/sop/classifier/bias, heads/sop/classifier/kernel;"):
        huggingface.write(tmp_path, export)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "kind, rate", [("modernbert", 0.3), ("eurobert", 0.5), ("neobert", 0.2), ("roberta", 0.15), ("bert", 0.15)]
)
def test_pretraining_continues_without_pairs_if_no_head_reads_them(tokens, tmp_path, kind, rate):
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, kind))
    restored, notes = huggingface.read(tmp_path)
    task = restored.settings["tasks"]["mlm"]
    assert (task["examples"]["kind"], task["objective"]["masking"]["rate"]) == ("doc_sentences", rate)
    assert f"the folder names no objective: mlm on doc_sentences with masking.rate={rate} is assumed" in notes
    # A block without a pooler gives the state of [CLS].
    assert ("no pooler: pooled_BND is None" in notes) == (kind not in ("modernbert", "eurobert"))


def test_the_settings_of_a_modernbert_are_complete_for_other_runtimes(tokens, tmp_path):
    """Text Embeddings Inference and candle have no defaults for these, and refuse null."""
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, "modernbert"))
    config = json.loads((tmp_path / "config.json").read_text())
    cls, sep = tokens.cls_id, tokens.sep_id
    expected = {"bos_token_id": cls, "cls_token_id": cls, "eos_token_id": sep, "sep_token_id": sep}
    expected["classifier_pooling"] = "mean"
    expected |= {"pad_token_id": tokens.pad_id, "layer_norm_eps": 1e-6, "initializer_cutoff_factor": 2.0}
    assert {key: config.get(key) for key in expected} == expected
    assert None not in config.values()


@pytest.mark.parametrize("rows", [0, 47, 51])
def test_joined_tensors_are_named_as_in_the_file(tokens, tmp_path, rows):
    huggingface.write(tmp_path, models.make(frozenset({"mlm"}), tokens, "modernbert"))
    tensors = {name: np.array(tensor) for name, tensor in weights.read(tmp_path).items()}
    name = "model.layers.1.attn.Wqkv.weight"
    whole = tensors.pop(name)
    if rows:
        tensors[name] = np.resize(whole, (rows, 16))
    weights.write(tmp_path / "model.safetensors", tensors)
    complaint = rf"checkpoint's {name} has shape \[{rows}, 16\], .* make it \[48, 16\]" if rows else f"lacks {name};"
    with pytest.raises(UserError, match=complaint):
        huggingface.read(tmp_path)
