"""Kernels of one shape keep their roles: literal names of each family, as transformers' classes have them."""

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.interop import huggingface, weights
from bertjax.runtime.errors import UserError
from tests.interop import models

BERT = {
    "attention.self.query": "attention/query",
    "attention.self.key": "attention/key",
    "attention.self.value": "attention/value",
    "attention.output.dense": "attention/output",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
}
ALBERT = {
    "attention.query": "attention/query",
    "attention.key": "attention/key",
    "attention.value": "attention/value",
    "attention.dense": "attention/output",
    "ffn": "intermediate",
    "ffn_output": "output",
}
DISTILBERT = {
    "attention.q_lin": "attention/query",
    "attention.k_lin": "attention/key",
    "attention.v_lin": "attention/value",
    "attention.out_lin": "attention/output",
    "ffn.lin1": "intermediate",
    "ffn.lin2": "output",
}
XLNET = {"ff.layer_1": "intermediate", "ff.layer_2": "output"}
MOBILEBERT = BERT | {
    "bottleneck.input.dense": "bottleneck/input",
    "bottleneck.attention.dense": "bottleneck/attention",
    "output.bottleneck.dense": "bottleneck/output",
    "ffn.0.intermediate.dense": "feedforward_1/intermediate",
    "ffn.0.output.dense": "feedforward_1/output",
}
MODERNBERT = {"attn.Wo": "attention/output", "mlp.Wo": "output"}  # the others are joined, see MODERNBERT_JOINED
EUROBERT = {
    "self_attn.q_proj": "attention/query",
    "self_attn.k_proj": "attention/key",
    "self_attn.v_proj": "attention/value",
    "self_attn.o_proj": "attention/output",
    "mlp.gate_proj": "intermediate",
    "mlp.up_proj": "gate",
    "mlp.down_proj": "output",
}
NEOBERT = {"wo": "attention/output", "ffn.w3": "output"}  # the others are joined, see test_neobert.py
DEBERTA = {
    "attention.self.query_proj": "attention/query",
    "attention.self.key_proj": "attention/key",
    "attention.self.value_proj": "attention/value",
    "attention.output.dense": "attention/output",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
}
MPNET = {
    "attention.attn.q": "attention/query",
    "attention.attn.k": "attention/key",
    "attention.attn.v": "attention/value",
    "attention.attn.o": "attention/output",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
}
FAMILIES = {
    "bert": ("bert.encoder.layer.1", BERT),
    "roberta": ("roberta.encoder.layer.1", BERT),
    "electra": ("electra.encoder.layer.1", BERT),
    "albert": ("albert.encoder.albert_layer_groups.1.albert_layers.0", ALBERT),
    "distilbert": ("distilbert.transformer.layer.1", DISTILBERT),
    "xlnet": ("transformer.layer.1", XLNET),
    "mobilebert": ("mobilebert.encoder.layer.1", MOBILEBERT),
    "modernbert": ("model.layers.1", MODERNBERT),
    "eurobert": ("model.layers.1", EUROBERT),
    "neobert": ("model.transformer_encoder.1", NEOBERT),
    "deberta-v2": ("deberta.encoder.layer.1", DEBERTA),
    "mpnet": ("mpnet.encoder.layer.1", MPNET),
}
# Kernels that ModernBERT has in one, in their order.
MODERNBERT_JOINED = {
    "attn.Wqkv": ("attention/query", "attention/key", "attention/value"),
    "mlp.Wi": ("intermediate", "gate"),
}
# XLNet's kernels are [D, H, C]; that of the output maps heads back to D.
XLNET_SPLIT = {"q": "query", "k": "key", "v": "value", "r": "relative/distance", "o": "output"}


def test_all_families_are_listed():
    assert FAMILIES.keys() == models.CLASSES.keys()


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_kernel_has_its_name(kind, tmp_path):
    made = models.make(max(models.CLASSES[kind].values(), key=len), models.trained(), kind)
    huggingface.write(tmp_path, made)
    theirs, ours = weights.read(tmp_path), flatten_dict(made.params, sep="/")
    prefix, roles = FAMILIES[kind]
    for name, role in roles.items():
        kernel = ours[f"encoder/layers/{role}/kernel"][1]
        np.testing.assert_array_equal(theirs[f"{prefix}.{name}.weight"], kernel.T, err_msg=name)
    if kind == "xlnet":
        for name, role in XLNET_SPLIT.items():
            kernel = ours[f"encoder/layers/attention/{role}/kernel"][1]
            flat = kernel.T if role == "output" else kernel
            actual = theirs[f"{prefix}.rel_attn.{name}"]
            np.testing.assert_array_equal(actual.reshape(flat.shape), flat, err_msg=name)


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    model = models.make(frozenset({"mlm"}), models.trained())
    model.params["heads"]["mlm"]["transform"]["bias"][3] = np.nan
    model.params["encoder"]["layers"]["output"]["kernel"][1, 2, 3] = np.inf
    with pytest.raises(UserError) as error:
        huggingface.write(tmp_path / "hf", model)
    paths = "encoder/layers/output/kernel, heads/mlm/transform/bias"
    assert (
        str(error.value) == f"the model has values that are not finite in {paths}; take an earlier checkpoint, RUN@STEP"
    )
    assert not (tmp_path / "hf").exists()


def test_joined_kernels_of_modernbert_have_their_order(tmp_path):
    made = models.make(max(models.CLASSES["modernbert"].values(), key=len), models.trained(), "modernbert")
    huggingface.write(tmp_path, made)
    theirs, ours = weights.read(tmp_path), flatten_dict(made.params, sep="/")
    for name, roles in MODERNBERT_JOINED.items():
        kernels = [ours[f"encoder/layers/{role}/kernel"][1].T for role in roles]
        np.testing.assert_array_equal(theirs[f"model.layers.1.{name}.weight"], np.concatenate(kernels))
