"""Replaced token detection: what counts as replaced, and which gradients reach what."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.models.bert import BertBlock
from bertjax.models.disentangled_embeddings import part
from bertjax.models.presets import PRESETS
from bertjax.objectives.pretraining.electra import Electra, replace
from bertjax.runtime.errors import UserError
from bertjax.training.loss import normalized
from bertjax.training.model_params import ModelParams
from tests import batches

OBJECTIVE = Electra(generator_share=0.5)
GDES = Electra(generator_share=0.5, embedding_sharing="gradient_disentangled")


def test_a_sample_that_is_the_original_is_not_a_replacement():
    batch = batches.make()
    kept, is_replaced_BT = replace(batch, jnp.array(batch["mlm_labels_BK"]))
    assert not is_replaced_BT.any()
    real_BK = batch["mlm_weights_BK"] > 0
    rows, places = np.nonzero(real_BK)
    columns = batch["mlm_positions_BK"][rows, places]
    np.testing.assert_array_equal(kept["tokens_BT"][rows, columns], batch["mlm_labels_BK"][real_BK])


def test_only_predicted_positions_are_replaced():
    """Although a place without a prediction points to column 0, which may be predicted, too."""
    batch = batches.make()
    batch["mlm_positions_BK"][:, 0] = 0
    batch["mlm_weights_BK"][:, :2], batch["mlm_weights_BK"][:, 2:] = 1.0, 0.0
    batch["mlm_positions_BK"][:, 2:] = 0
    drawn_BK = batch["mlm_labels_BK"] + 1
    filled, is_replaced_BT = replace(batch, jnp.array(drawn_BK))
    rows = np.arange(len(drawn_BK))
    for place_ in (0, 1):
        columns = batch["mlm_positions_BK"][:, place_]
        np.testing.assert_array_equal(filled["tokens_BT"][rows, columns], drawn_BK[:, place_])
        assert is_replaced_BT[rows, columns].all()
    assert is_replaced_BT.sum() == 2 * len(rows)
    np.testing.assert_array_equal(
        np.where(is_replaced_BT, 0, filled["tokens_BT"]), np.where(is_replaced_BT, 0, batch["tokens_BT"])
    )


@functools.cache
def gradients_of(objective: Electra) -> dict[str, dict[str, float]]:
    """{term: {path: its largest gradient}}, dropout off."""
    module, batch = objective.model(batches.ENCODER), batches.make()
    params = batches.filled(batches.param_shapes(objective, module.config, batch))

    def losses(params):
        sums, _ = objective.terms(module, ModelParams()(params, 0), None, batch, jax.random.key(1), False)
        return normalized(sums, objective.weights(batch))

    gradients = jax.jit(jax.jacrev(losses))(params)
    return {
        term: {path: float(jnp.abs(leaf).max()) for path, leaf in flatten_dict(gradient, sep="/").items()}
        for term, gradient in gradients.items()
    }


@pytest.mark.slow
def test_the_discriminator_sends_no_gradient_to_the_generator():
    """Its gradients reach only the embeddings that both share (section 2)."""
    reached = {path for path, largest in gradients_of(OBJECTIVE)["rtd"].items() if largest > 0.0}
    assert not any(path.startswith(("generator/", "heads/mlm/")) for path in reached)
    assert {"encoder/embeddings/word", "encoder/embeddings/position", "heads/rtd/classifier/kernel"} <= reached
    assert any(path.startswith("encoder/layers/") for path in reached)


@pytest.mark.slow
def test_the_generator_sends_gradients_to_the_shared_embeddings_only():
    reached = {path for path, largest in gradients_of(OBJECTIVE)["generator"].items() if largest > 0.0}
    assert not any(path.startswith(("encoder/layers/", "heads/rtd/")) for path in reached)
    assert {"encoder/embeddings/word", "heads/mlm/transform/kernel"} <= reached
    assert any(path.startswith("generator/encoder/layers/") for path in reached)


@pytest.mark.slow
def test_disentangled_the_discriminator_trains_only_its_difference_to_the_words_of_the_generator():
    reached = {path for path, largest in gradients_of(GDES)["rtd"].items() if largest > 0.0}
    assert not any(path.startswith(("generator/", "heads/mlm/")) for path in reached)
    assert "encoder/embeddings/word" not in reached and "delta/encoder/embeddings/word" in reached
    reached = {path for path, largest in gradients_of(GDES)["generator"].items() if largest > 0.0}
    others = {path for path in reached if not path.startswith(("generator/", "heads/mlm/"))}
    assert others == {"encoder/embeddings/word"}
    assert "generator/encoder/embeddings/position" in reached  # only words are shared


@pytest.mark.parametrize("tables", [{}, batches.GROUPED], ids=["bert", "words"])
def test_an_exported_encoder_has_the_sum_from_which_training_continues(tables):
    trained = batches.filled(batches.param_shapes(GDES, dataclasses.replace(batches.ENCODER, **tables)))
    trained = unflatten_dict(flatten_dict(trained))  # as a run does, without the empty dicts
    exported = jax.tree.map(np.asarray, ModelParams()(trained, 0))
    word_VE, delta_VE = (tree["encoder"]["embeddings"]["word"] for tree in (trained, trained["delta"]))
    np.testing.assert_array_equal(exported["encoder"]["embeddings"]["word"], word_VE + delta_VE)
    assert exported.keys() == {"encoder", "generator", "heads"}
    parted = part(exported)
    np.testing.assert_allclose(parted["delta"]["encoder"]["embeddings"]["word"], delta_VE, atol=1e-6)
    np.testing.assert_array_equal(parted["encoder"]["embeddings"]["word"], word_VE)
    alone = part({"encoder": exported["encoder"]})
    assert not alone["delta"]["encoder"]["embeddings"]["word"].any()
    np.testing.assert_array_equal(alone["encoder"]["embeddings"]["word"], word_VE + delta_VE)


def test_the_generator_has_its_share_of_the_widths_and_all_layers():
    generator = Electra().generator(PRESETS["base"])
    assert (generator.layers, generator.width, generator.feedforward, generator.heads) == (12, 192, 768, 3)
    assert generator.embedded_width == 768
    base = Electra(generator_share=1 / 3).generator(PRESETS["base"])
    assert (base.width, base.feedforward, base.heads) == (256, 1024, 4)
    half = Electra(generator_share=1.0, generator_depth=0.5).generator(PRESETS["deberta_v3_base"])
    assert half == dataclasses.replace(PRESETS["deberta_v3_base"].replace({"embeddings.width": 768}), layers=6)


@pytest.mark.parametrize(
    ("changes", "choices", "problem"),
    [
        ({"heads": 4}, {"generator_share": 0.7}, "model.width=11 is not divisible by model.heads=3"),
        ({"width": 12} | batches.LSTM, {}, "needs an even model.width, not 3"),
        (
            {"heads": 8, "block": BertBlock(("current", "previous", "next", "left"))},
            {},
            "model.block.fixed_heads has 4 patterns, and model.heads=2 leaves no learned head",
        ),
        (
            {"layers": 8, "sharing": "all", "sharing_groups": 4},
            {"generator_share": 0.5, "generator_depth": 0.4},
            "model.sharing_groups=4 does not divide model.layers=3",
        ),
    ],
)
def test_a_generator_that_cannot_exist_is_refused(changes, choices, problem):
    encoder = dataclasses.replace(batches.ENCODER, **changes)
    with pytest.raises(UserError, match=f"^objective.generator_share=.* generator_depth=.* cannot exist .*{problem}"):
        Electra(**choices).generator(encoder)
