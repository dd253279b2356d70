"""Weights in int8: the bound of their error, and exports that hold them."""

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.config import export
from bertjax.models import int8
from bertjax.runtime.errors import UserError
from tests.interop import models

MODEL = models.make(models.PARTS["BertForPreTraining"], models.trained())
DRAW = np.random.default_rng(0)


@pytest.mark.parametrize(
    "path, shape, scales",
    [
        ("layers/intermediate/kernel", (3, 16, 24), (3, 1, 24)),
        ("heads/mlm/transform/kernel", (16, 16), (1, 16)),
        ("embeddings/word", (60, 16), (60, 1)),
    ],
)
def test_the_error_of_a_weight_is_at_most_half_the_scale_of_its_channel(path, shape, scales):
    leaf = (DRAW.normal(size=shape) * DRAW.uniform(1e-6, 10, size=scales)).astype(np.float32)
    stored = int8.quantize({path: leaf})
    quantized, scale = stored[path], stored[f"{path}.scale"]
    assert quantized.dtype == np.int8 and scale.dtype == np.float32 and scale.shape == scales
    assert quantized.max() == 127 and quantized.min() == -127
    [(_, restored)] = int8.dequantize(stored).items()
    assert restored.dtype == np.float32
    assert np.all(np.abs(restored - leaf) <= scale * (0.5 + 1e-4))
    np.testing.assert_allclose(np.abs(restored).max(), np.abs(leaf).max(), rtol=1e-6)
    again = int8.quantize({path: restored})[path]
    assert np.array_equal(again, quantized)


def test_biases_norms_and_positions_stay_as_they_are():
    flat = flatten_dict(MODEL.params, sep="/")
    stored = int8.quantize(flat)
    kept = {path for path in flat if stored[path].dtype == np.float32}
    names = {path.rpartition("/")[2] for path in kept}
    assert names == {"bias", "scale", "position", "segment", "word_bias"}
    assert all(stored[path] is flat[path] for path in kept)
    assert {path.rpartition("/")[2] for path in flat.keys() - kept} == {"kernel", "word"}


def test_an_export_of_int8_opens_as_float_and_takes_a_quarter_of_the_bytes(tmp_path):
    export.write(tmp_path / "float", MODEL)
    export.write(tmp_path / "int8", MODEL, quantized=True)
    assert (export.is_quantized(tmp_path / "float"), export.is_quantized(tmp_path / "int8")) == (False, True)
    before, after = (flatten_dict(export.read(tmp_path / name).params, sep="/") for name in ("float", "int8"))
    assert before.keys() == after.keys()
    for path, leaf in before.items():
        assert after[path].dtype == np.float32 and after[path].shape == leaf.shape
        assert np.abs(after[path] - leaf).max() <= np.abs(leaf).max() / 254 * 1.001, path
    tensors = load_file(tmp_path / "int8" / export.WEIGHTS)
    kernels = [leaf for leaf in tensors.values() if leaf.dtype == np.int8]
    assert sum(leaf.size for leaf in kernels) > 2 / 3 * sum(leaf.size for leaf in before.values())
    module, params, tokenizer = bertjax.load(tmp_path / "int8")
    tokens_BT, _ = tokenizer.rows(["ab ad ce", "fade"], 8)
    hidden = [module.apply({"params": p}, tokens_BT).hidden for p in (params, MODEL.params["encoder"])]
    assert 0 < np.abs(hidden[0] - hidden[1]).max() < 0.05


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda tensors: tensors.pop("encoder/embeddings/word.scale"), "embeddings/word has no scales that fit it"),
        (
            lambda tensors: tensors.update({"encoder/embeddings/word.scale": np.ones((60,), np.float32)}),
            "embeddings/word has no scales that fit it",
        ),
        (
            lambda tensors: tensors.update({"encoder/embeddings/word.scale": np.full((60, 1), np.nan, np.float32)}),
            "the scales of encoder/embeddings/word are negative or not finite",
        ),
        (
            lambda tensors: tensors.update({"encoder/embeddings/position": np.ones((20, 16), np.int8)}),
            "embeddings/position has no scales that fit it",
        ),
        (lambda tensors: tensors.update({"a.scale": np.ones(1, np.float32)}), "has the array 'a.scale'"),
    ],
)
def test_damaged_scales_are_refused_in_one_line(tmp_path, change, message):
    export.write(tmp_path, MODEL, quantized=True)
    tensors = load_file(tmp_path / export.WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / export.WEIGHTS)
    with pytest.raises(UserError, match=message) as caught:
        export.read(tmp_path)
    assert "is damaged" in str(caught.value) and "\n" not in str(caught.value)
