"""DeBERTa-v3, EuroBERT, ModernBERT and MPNet against transformers, with every tensor drawn at random, norms included.

`test_settings.py` has what their `config.json` may contain.
"""

import json

import numpy as np
import pytest

from bertjax.interop import families, huggingface
from bertjax.interop.outputs import reading_of, values
from bertjax.models import vocabulary
from bertjax.models.blocks import deberta, mpnet
from bertjax.runtime.errors import UserError

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

from tests.interop import models, parity  # noqa: E402

SIZES = {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 24}
SIZES |= {"max_position_embeddings": 40}
# Rows of 40 tokens are longer than the distances that have buckets of their own.
DEBERTA = {
    "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "position_biased_input": False, "type_vocab_size": 0,
    "pad_token_id": 0, "legacy": False, "tie_word_embeddings": False,
}  # fmt: skip
# Layers 0 and 3 are global, the others see 4 tokens to either side.
MODERNBERT = {
    "num_hidden_layers": 5, "hidden_size": 16, "num_attention_heads": 2, "local_attention": 8,
    "global_rope_theta": 1000.0, "local_rope_theta": 10.0, "embedding_dropout": 0.0, "pad_token_id": 0,
}  # fmt: skip
BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
RELU = {"hidden_activation": "relu", "classifier_activation": "relu"}
ROTATION = {"rope_type": "default", "rope_theta": 1000.0}
FAMILIES = {  # {model_type: (stem of the classes, settings)}
    "deberta-v2": ("DebertaV2", SIZES | DEBERTA),
    "eurobert": ("EuroBert", SIZES | {"num_key_value_heads": 2, "pad_token_id": 0, "rope_parameters": ROTATION}),
    "modernbert": ("ModernBert", SIZES | MODERNBERT),
    "mpnet": ("MPNet", SIZES | {"max_position_embeddings": 42, "layer_norm_eps": 1e-5}),
}
SEQUENCE, TOKENS, SPAN, CHOICE = (
    f"For{name}" for name in ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
)


def cases(*listed: tuple) -> list[tuple]:
    """Return the cases whose classes this version of transformers has: EuroBERT is in transformers 5 only."""
    return [case for case in listed if hasattr(transformers, f"{FAMILIES[case[0]][0]}Model")]


def make(folder, kind: str, suffix: str, **settings):
    """Write a folder; return the model of transformers."""
    torch.manual_seed(0)
    stem, sizes = FAMILIES[kind]
    config = getattr(transformers, f"{stem}Config")(vocab_size=60, **sizes | settings)
    config._attn_implementation = "eager"
    return parity.write(folder, getattr(transformers, f"{stem}{suffix}")(config))


@pytest.mark.parametrize(
    "kind, settings",
    cases(
        ("deberta-v2", {}),
        ("deberta-v2", {"max_relative_positions": 12, "position_buckets": 6}),
        ("eurobert", {}),
        ("eurobert", {"num_key_value_heads": 4}),
        ("modernbert", {}),
        ("modernbert", BIASES | RELU),
        ("modernbert", {"global_attn_every_n_layers": 1}),
        ("mpnet", {}),
    ),
)
def test_states_logits_gradients_and_bytes_are_those_of_transformers(tmp_path, kind, settings):
    model = make(tmp_path / "theirs", kind, "ForMaskedLM", **settings)
    parity.check_values_and_gradients(tmp_path / "theirs", model, families.of_config({"model_type": kind}))
    parity.check_folder(tmp_path, model)


@pytest.mark.parametrize(
    "kind, suffix, settings",
    cases(
        *((kind, "Model", BIASES if kind == "modernbert" else {}) for kind in FAMILIES),
        ("deberta-v2", SEQUENCE, {"num_labels": 3}),
        ("deberta-v2", CHOICE, {}),
        *(("eurobert", SEQUENCE, {"num_labels": 3, "classifier_pooling": name}) for name in ("late", "bos", "mean")),
        ("eurobert", TOKENS, {"num_labels": 3}),
        ("modernbert", SEQUENCE, {"num_labels": 3, "classifier_pooling": "cls"}),
        ("modernbert", CHOICE, BIASES | {"classifier_pooling": "mean"}),
        ("modernbert", SPAN, BIASES),
        ("mpnet", SEQUENCE, {"num_labels": 3}),
        ("mpnet", TOKENS, {"num_labels": 3}),
        ("mpnet", CHOICE, {}),
    ),
)
def test_heads_and_bytes_are_those_of_transformers(tmp_path, kind, suffix, settings):
    model = make(tmp_path / "theirs", kind, suffix, **settings)
    parity.check_folder(tmp_path, model)
    if pooling := settings.get("classifier_pooling"):  # what a head pools is written back
        assert json.loads((tmp_path / "ours" / "config.json").read_text())["classifier_pooling"] == pooling


def test_the_head_of_the_default_class_of_deberta_is_written_as_the_published_one(tmp_path):
    model = make(tmp_path / "theirs", "deberta-v2", "ForMaskedLM", legacy=True, tie_word_embeddings=True)
    huggingface.write(tmp_path / "ours", huggingface.read(tmp_path / "theirs")[0])
    opened = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert opened.config.legacy is False
    with torch.no_grad():
        torch.testing.assert_close(opened(**parity.inputs(0)).logits, model(**parity.inputs(0)).logits)


@pytest.mark.parametrize("buckets, largest", [(256, 512), (8, 40), (6, 12), (2, 9), (32, 18)])
def test_distances_are_in_the_buckets_of_transformers(buckets, largest):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(-1000, 1001)
    theirs = make_log_bucket_position(torch.tensor(distances), buckets, largest).long().numpy()
    ours = deberta.bucket_of(distances, buckets, largest)
    np.testing.assert_array_equal(np.clip(ours, -buckets, buckets - 1), np.clip(theirs, -buckets, buckets - 1))
    theirs = MPNetEncoder.relative_position_bucket(torch.from_numpy(-distances)).numpy()
    np.testing.assert_array_equal(mpnet.bucket_of(distances, 32, 128), theirs)


@pytest.mark.skipif(not hasattr(transformers, "EuroBertModel"), reason="transformers 4 has no EuroBERT")
def test_a_tied_decoder_of_eurobert_is_left_out_with_encoder_only_and_by_other_heads(tmp_path):
    """transformers writes one tensor for both."""
    model = make(tmp_path / "mlm", "eurobert", "ForMaskedLM", tie_word_embeddings=True)
    with pytest.raises(UserError, match="tie_word_embeddings=True; .* add --encoder-only"):
        huggingface.read(tmp_path / "mlm")
    ours, _ = huggingface.read(tmp_path / "mlm", encoder_only=True)
    computed, real_BT = values(ours, reading_of(ours), parity.batch(0)), parity.batch(0)["examples_BT"] > 0
    with torch.no_grad():
        theirs_BTD = model.model(**parity.inputs(0)).last_hidden_state.numpy()
    np.testing.assert_allclose(computed["last_hidden_state"][real_BT], theirs_BTD[real_BT], atol=1e-4)
    make(tmp_path / "labels", "eurobert", TOKENS, num_labels=3, tie_word_embeddings=True)
    assert huggingface.read(tmp_path / "labels")[0].params["heads"].keys() == {"tagging"}


def test_own_tokenizers_get_their_padding_where_the_classes_of_mpnet_have_it(tmp_path):
    """Ids are exchanged, and every text and its logits stay the same."""
    made = models.make(frozenset({"mlm"}), models.trained(), "mpnet")
    export = made._replace(tokenizer=models.trained(), params=vocabulary.exchanged(made.params, 0, 1))
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
