"""NeoBERT against golden values of the authors' code: values, gradients, bytes and settings."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from bertjax.interop import families, huggingface, names, tokenizers, weights
from bertjax.interop.outputs import reading_of, values
from bertjax.models.encoder import Encoder
from bertjax.models.heads import masked_lm_head
from tests.interop import models

FAMILY = families.of_config({"model_type": "neobert"})
GOLDEN = load_file(Path(__file__).with_name("neobert.safetensors"))
# `SIZES` of `benchmarks/golden_neobert.py`, whose import needs PyTorch.
CONFIG = {
    "model_type": "neobert", "auto_map": {"AutoConfig": "model.NeoBERTConfig"}, "vocab_size": 60, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "norm_eps": 1e-5, "pad_token_id": 0,
    "max_length": 20, "hidden_act": "SwiGLU", "dim_head": 8,
}  # fmt: skip
LABELS = {"id2label": {"0": "a", "1": "b", "2": "c"}, "problem_type": "single_label_classification"}


def of(prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in GOLDEN.items() if name.startswith(prefix)}


def make(folder, architecture: str = "NeoBERTLMHead", **settings):
    """Write a folder with the tensors of one of the authors' classes; return it."""
    folder.mkdir(exist_ok=True)
    tensors = of("weights/")
    if architecture != "NeoBERTLMHead":
        tensors = {name: value for name, value in tensors.items() if name.startswith("model.")}
    if architecture == "NeoBERT":
        tensors = {name.removeprefix("model."): value for name, value in tensors.items()}
    if architecture == "NeoBERTForSequenceClassification":
        tensors, settings = tensors | of("classifier/"), LABELS | settings
    weights.write(folder / weights.SAFETENSORS, tensors)
    tokenizers.write(folder, models.trained(), 20, segments=0)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"architectures": [architecture]} | settings))
    return folder


def batch() -> dict[str, np.ndarray]:
    examples_BT = (GOLDEN["tokens"] > 0).astype(np.int32)
    zeros_BT = np.zeros_like(examples_BT)
    return {
        "tokens_BT": GOLDEN["tokens"],
        "segments_BT": zeros_BT,
        "positions_BT": np.arange(examples_BT.shape[1]) * examples_BT,
        "examples_BT": examples_BT,
        "example_ids_BN": np.arange(len(examples_BT))[:, None],
        "summary_positions_BN": zeros_BT[:, :1],
    }


def test_states_logits_and_gradients_are_those_of_the_authors_code(tmp_path):
    ours, notes = huggingface.read(make(tmp_path))
    assert not [note for note in notes if "does not know" in note]
    real_BT, labels_BT = batch()["examples_BT"] > 0, np.maximum(GOLDEN["labels"], 0)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        encoder, head = Encoder(ours.encoder), masked_lm_head(ours.encoder)(ours.encoder)
        arrays = {name: batch()[name] for name in ("tokens_BT", "positions_BT", "examples_BT")}
        encoded, state = encoder.apply({"params": params["encoder"]}, **arrays, mutable=["captured"])
        logits_BTV = head.apply({"params": params["heads"]["mlm"]}, encoded.hidden, jnp.zeros(()))
        scores_BT = jnp.take_along_axis(jax.nn.log_softmax(logits_BTV), labels_BT[..., None], axis=-1)[..., 0]
        return -jnp.mean(scores_BT, where=real_BT), (state["captured"]["hidden"], encoded.hidden, logits_BTV)

    params = ours.params | {"encoder": {k: v for k, v in ours.params["encoder"].items() if k != "pooler"}}
    (_, (hidden, last_BTD, logits_BTV)), gradients = jax.jit(loss)(params)
    for computed, expected in zip((*hidden[:2], last_BTD), GOLDEN["hidden"], strict=True):
        np.testing.assert_allclose(computed[real_BT], expected[real_BT], atol=1e-5)
        assert expected.std() > 0.2
    np.testing.assert_allclose(logits_BTV[real_BT][:, :60], GOLDEN["logits"][real_BT], atol=1e-5)
    flat = flatten_dict(jax.tree.map(np.asarray, gradients), sep="/")
    cut = {path: leaf[:60] if path.rpartition("/")[2].startswith("word") else leaf for path, leaf in flat.items()}
    _, cut = FAMILY.to_theirs(ours.encoder, cut, 0)
    own = names.to_tensors(cut, FAMILY.names(ours.encoder, frozenset({"mlm"})))
    assert own.keys() == of("gradients/").keys()
    for name, gradient in of("gradients/").items():
        assert np.linalg.norm(own[name] - gradient) <= 1e-4 * np.linalg.norm(gradient) > 0, name


def test_classes_are_those_of_the_authors_code(tmp_path):
    ours, _ = huggingface.read(make(tmp_path, "NeoBERTForSequenceClassification"))
    [logits] = values(ours, reading_of(ours), batch()).values()
    np.testing.assert_allclose(logits, GOLDEN["classes"], atol=1e-5)
    assert np.ptp(GOLDEN["classes"], axis=0).max() > 0.1


def test_an_encoder_alone_is_that_of_eurobert_which_needs_no_code(tmp_path):
    ours, _ = huggingface.read(make(tmp_path / "theirs"), encoder_only=True)
    expected = values(ours, reading_of(ours), batch())["last_hidden_state"]
    huggingface.write(tmp_path / "ours", huggingface.encoder_alone(ours))
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert config["architectures"] == ["EuroBertModel"] and "auto_map" not in config
    back, _ = huggingface.read(tmp_path / "ours")
    np.testing.assert_array_equal(values(back, reading_of(back), batch())["last_hidden_state"], expected)
