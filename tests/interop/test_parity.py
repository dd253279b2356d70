"""Families against the classes of transformers 4.57, PyTorch and Flax: equal outputs, and equal bytes on the way back.

`test_recent_families.py` compares the families that also change in transformers 5, with gradients.
"""

import dataclasses

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bertjax.inference.likelihood import is_causal
from bertjax.inference.predictor import Predictor
from bertjax.interop import families, huggingface, names
from bertjax.models import vocabulary
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead
from bertjax.objectives.pretraining.permutation import PermutationLM
from tests.interop import models

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

from tests.interop import parity  # noqa: E402

TOLERANCE = 1e-5
DEEP = 1e-4  # of 12 layers
SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
SIZES |= {"max_position_embeddings": 40, "type_vocab_size": 3, "layer_norm_eps": 1e-7}
# Settings of transformers for each family; a family whose tensor names depend on the settings has several entries.
SETTINGS = {
    "albert": SIZES | {"embedding_size": 8, "num_hidden_groups": 1},
    "albert, two groups": SIZES | {"embedding_size": 24, "num_hidden_groups": 2, "hidden_act": "gelu"},
    "electra": SIZES | {"embedding_size": 8},
    "electra, embeddings as wide": SIZES | {"embedding_size": 16, "hidden_act": "gelu_new"},
    "distilbert": {
        "dim": 16,
        "n_layers": 3,
        "n_heads": 2,
        "hidden_dim": 24,
        "max_position_embeddings": 40,
        "activation": "gelu",
    },
    "roberta": SIZES | {"type_vocab_size": 1, "max_position_embeddings": 41},
    "roberta, two segments": SIZES | {"type_vocab_size": 2, "max_position_embeddings": 41},
    "xlnet": {"d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24, "layer_norm_eps": 1e-7},
    "mobilebert": SIZES | {"num_hidden_layers": 2, "embedding_size": 8, "intra_bottleneck_size": 12},
    "mobilebert, all bottlenecked": SIZES
    | {"num_hidden_layers": 2, "embedding_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 2}
    | {"use_bottleneck_attention": True, "key_query_shared_bottleneck": False},
    "mobilebert, inverted, layer norm": SIZES
    | {"num_hidden_layers": 3, "embedding_size": 8, "intra_bottleneck_size": 24, "num_feedforward_networks": 1}
    | {"normalization_type": "layer_norm", "hidden_act": "gelu", "layer_norm_eps": 1e-5},
    "bert": SIZES,
    "bert, deep": SIZES | {"num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 128},
    "bert, gelu_new": SIZES | {"hidden_act": "gelu_new"},
    "bert, relu": SIZES | {"hidden_act": "relu"},
}
CASES = [
    (case, name)
    for case in SETTINGS
    for name in models.CLASSES[case.split(",")[0]]
    if name != "BertLMHeadModel"
    and (not case.startswith("bert,") or name == "BertForPreTraining")
    and (case, name) != ("electra, embeddings as wide", "ElectraModel")  # its architecture is that of BERT
]


def drawn(folder, case: str, architecture: str):
    """Write a folder; return the model of transformers."""
    torch.manual_seed(0)
    sizes = SETTINGS[case] | {"vocab_size": 60, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(case.split(",")[0], **sizes)
    config._attn_implementation = "eager"
    return parity.write(folder, getattr(transformers, architecture)(config), noise=0.2)


@pytest.mark.parametrize("case, architecture", CASES)
def test_outputs_bytes_and_settings_are_those_of_transformers(tmp_path, case, architecture):
    model = drawn(tmp_path / "theirs", case, architecture)
    parity.check_folder(tmp_path, model, DEEP if case == "bert, deep" else TOLERANCE)


def of_xlnet(model):
    """Return the encoder and the params of a model of transformers in bertjax."""
    family = families.of_config({"model_type": "xlnet"})
    encoder = dataclasses.replace(family.encoder_config(model.config.to_dict()), dropout=0.0, attention_dropout=0.0)
    tensors = family.canonical({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    flat = names.to_params(tensors, family.names(encoder, frozenset({"plm"})), family.shapes(encoder))
    return encoder, vocabulary.pad(unflatten_dict(flat, sep="/"), encoder)


def test_predictions_in_an_order_are_those_of_transformers(tmp_path):
    """Both streams: `perm_mask` hides tokens, and `target_mapping` selects the predicted tokens."""
    model = drawn(tmp_path, "xlnet", "XLNetLMHeadModel")
    encoder, params = of_xlnet(model)

    inputs = {name: tensor.numpy() for name, tensor in parity.inputs(0, segments=2).items()}
    # Rank 1: visible tokens. Columns 0, 2 and 5 come later, in another order in each row.
    rank_BT = np.ones_like(inputs["input_ids"])
    read_BK = np.tile(np.array([0, 2, 5], np.int32), (3, 1))
    rank_BT[:, [0, 2, 5]] = 2 + np.array([[0, 1, 2], [2, 0, 1], [2, 1, 0]])
    objective = PermutationLM()
    logits = objective.apply(
        objective.model(encoder),
        params,
        {
            "tokens_BT": inputs["input_ids"],
            "segments_BT": inputs["token_type_ids"],
            "positions_BT": np.broadcast_to(np.arange(40), (3, 40)),
            "examples_BT": inputs["attention_mask"],
            "summary_positions_BN": np.zeros((3, 1), np.int32),
            "plm_positions_BK": read_BK,
            "rank_BT": rank_BT,
        },
    )
    is_seen_BTT = (rank_BT[:, :, None] > rank_BT[:, None, :]) | (rank_BT[:, None, :] == 1)
    with torch.no_grad():
        expected = model(
            **{name: torch.tensor(array, dtype=torch.long) for name, array in inputs.items()},
            perm_mask=torch.tensor(1.0 - is_seen_BTT, dtype=torch.float32),
            target_mapping=torch.tensor(np.eye(40, dtype=np.float32)[read_BK]),
        ).logits
    difference = np.abs(logits["plm"][..., : encoder.vocab_size] - expected.numpy()).max()
    print(f"two streams: {difference}")
    assert difference < TOLERANCE


def test_a_memory_on_either_side_is_that_of_the_reversed_half_of_the_batch(tmp_path):
    """`bi_data`: the second row is reversed and its distances are negated, so its memory is the text after it."""
    model = drawn(tmp_path, "xlnet", "XLNetLMHeadModel")
    model.transformer.bi_data, model.transformer.mem_len = True, 10
    encoder, params = of_xlnet(model)

    tokens_BT = np.tile(parity.batch(0)["tokens_BT"][:1, :20], (2, 1))
    rank_BT = np.ones((2, 20), np.int32)
    rank_BT[0, :10] = rank_BT[1, 10:] = 0  # the memory is the text before, and the text after
    read_BK = np.array([[12, 15, 19], [0, 3, 8]], np.int32)
    rank_BT[[[0], [1]], read_BK] = [[3, 2, 4], [2, 4, 3]]
    objective = PermutationLM(memory=True, both_directions=True)
    arrays = {"tokens_BT": tokens_BT, "segments_BT": 0 * tokens_BT, "rank_BT": rank_BT, "plm_positions_BK": read_BK}
    arrays |= {"positions_BT": np.tile(np.arange(20), (2, 1)), "examples_BT": np.ones((2, 20), int)}
    arrays |= {"summary_positions_BN": np.zeros((2, 1), np.int32)}
    logits = objective.apply(objective.model(encoder), params, arrays)["plm"]

    turned_BT, rank_BT, read_BK = tokens_BT.copy(), rank_BT.copy(), read_BK.copy()
    turned_BT[1], rank_BT[1], read_BK[1] = turned_BT[1, ::-1], rank_BT[1, ::-1], 19 - read_BK[1]
    own_BT = rank_BT[:, 10:]
    is_seen_BTT = (own_BT[:, :, None] > own_BT[:, None, :]) | (own_BT[:, None, :] == 1)
    with torch.no_grad():
        mems = model.transformer(torch.tensor(turned_BT[:, :10], dtype=torch.long), use_mems=True).mems
        expected = model(
            torch.tensor(turned_BT[:, 10:], dtype=torch.long),
            mems=mems,
            perm_mask=torch.tensor(1.0 - is_seen_BTT, dtype=torch.float32),
            target_mapping=torch.tensor(np.eye(10, dtype=np.float32)[read_BK - 10]),
        ).logits
    assert np.abs(logits[..., : encoder.vocab_size] - expected.numpy()).max() < TOLERANCE


def test_next_tokens_of_both_directions_are_those_of_transformers(tmp_path):
    """GPT-BERT's one head: `is_decoder` decides the direction in transformers, and the logits mean the same."""
    made = models.make(frozenset({"clm"}), models.trained())
    both = dataclasses.replace(made.encoder, direction="bidirectional")
    settings = made.settings | {"model": made.settings["model"] | {"direction": "bidirectional"}}
    ours = made._replace(encoder=both, settings=settings)
    notes = huggingface.write(tmp_path / "theirs", ours)
    assert "fill masks from the wrong states" in notes[-1]
    again, _ = huggingface.read(tmp_path / "theirs")
    kinds = [task["objective"]["kind"] for task in again.settings["tasks"].values()]
    assert kinds == ["masked_next_token", "next_token"] and is_causal(again)
    filled = [Predictor(m).fill(["the [MASK] of"]) for m in (again, ours._replace(settings=again.settings))]
    assert filled[0] == filled[1]
    inputs = {name: tensor[:, :20] for name, tensor in parity.inputs(0, segments=2).items()}
    tokens_BT, mask_BT, segments_BT = (tensor.numpy() for tensor in inputs.values())
    params = made.params["encoder"]
    for encoder, is_decoder in ((both, False), (made.encoder, True)):
        model = transformers.BertLMHeadModel.from_pretrained(tmp_path / "theirs", is_decoder=is_decoder).eval()
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        hidden = Encoder(encoder).apply({"params": params}, tokens_BT, segments_BT, examples_BT=mask_BT).hidden
        head = {"params": made.params["heads"]["clm"]}
        logits = MaskedLMHead(encoder).apply(head, hidden, params["embeddings"]["word"])[..., :60]
        real = mask_BT > 0
        np.testing.assert_allclose(logits[real], expected[real], rtol=TOLERANCE, atol=TOLERANCE)
