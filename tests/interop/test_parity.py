"""Families against the classes of transformers 4.57, PyTorch and Flax: equal outputs, and equal bytes on the way back.

`test_recent_families.py` compares the families that also change in transformers 5, with gradients.
"""

import dataclasses

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bertjax.cli import convert
from bertjax.config import export
from bertjax.interop import families, names, tokenizers, weights
from bertjax.models import vocabulary
from bertjax.models.config import Execution
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead, PairHead
from bertjax.models.label_heads import DetectionHead
from bertjax.models.vocabulary_heads import VocabularyHead
from bertjax.objectives.pretraining.permutation import PermutationLM
from tests.interop import models, published

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

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
    "roberta": SIZES | {"type_vocab_size": 1},
    "roberta, as published": SIZES | {"type_vocab_size": 1},
    "roberta, two segments": SIZES | {"type_vocab_size": 2},
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
    "bert, left to right": SIZES | {"is_decoder": True},
}
CASES = [
    (case, name)
    for case in SETTINGS
    for name in models.CLASSES[case.split(",")[0]]
    if (name == "BertLMHeadModel") == (case == "bert, left to right")
    and (case in ("bert", "bert, left to right") or not case.startswith("bert,") or name == "BertForPreTraining")
]
# Head -> its name in the output of a transformers class with several heads.
HEADS = {"mlm": "prediction_logits", "nsp": "seq_relationship_logits", "sop": "sop_logits", "rtd": "logits"}


@pytest.fixture(scope="module")
def tokens_of(tmp_path_factory):
    """tokens_of(case) -> its tokenizer; RoBERTa's is byte-level BPE with its own symbols, such as padding 1."""
    folder = tmp_path_factory.mktemp("roberta")
    for name, content in published.vocabulary("byte_bpe").items():
        (folder / name).write_bytes(content)
    tokenizer_of = {kind: models.trained() for kind in models.CLASSES} | {"roberta": tokenizers.read(folder)[0]}
    return lambda case: tokenizer_of[case.split(",")[0]]


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


def drawn(case: str, architecture: str, tokens):
    """Return a model of transformers with random weights, including biases and norms, so that each of them matters."""
    torch.manual_seed(0)
    sizes = SETTINGS[case] | {"vocab_size": tokens.vocab_size, "pad_token_id": tokens.pad_id}
    config = transformers.AutoConfig.for_model(case.split(",")[0], **sizes)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        if case == "roberta, as published":
            model.base_model.embeddings.token_type_embeddings.weight.zero_()
        if case.startswith("mobilebert"):  # its trigrams read this row, as PyTorch trains it: zeros
            model.get_input_embeddings().weight[tokens.pad_id].zero_()
    return model


def save(model, tokens, folder):
    model.save_pretrained(folder)
    tokenizers.write(folder, tokens, longest=20)
    return folder


def batch(tokens, segments: int, rows: int = 4, seq_len: int = 20) -> dict[str, np.ndarray]:
    """Return rows of different lengths, padded with the tokenizer's symbol; with two segments if `segments` > 1."""
    draw, columns = np.random.default_rng(0), np.arange(seq_len)
    lengths_B1 = draw.integers(seq_len // 3, seq_len + 1, (rows, 1))
    real_BT = columns < lengths_B1
    ordinary = np.setdiff1d(np.arange(tokens.vocab_size), [tokens.pad_id])
    inputs = {
        "input_ids": np.where(real_BT, draw.choice(ordinary, (rows, seq_len)), tokens.pad_id).astype(np.int32),
        "attention_mask": real_BT.astype(np.int32),
    }
    if segments > 1:
        inputs["token_type_ids"] = ((columns >= lengths_B1 // 2) & real_BT).astype(np.int32)
    return inputs


def ours(folder, inputs) -> dict[str, np.ndarray]:
    """Return the hidden states of an export and the logits of every head, or the pooled states if there is no head."""
    model = export.read(folder)
    config = dataclasses.replace(model.encoder, execution=Execution())
    params, heads = model.params["encoder"], model.params.get("heads", {})
    tokens_BT, mask_BT = inputs["input_ids"], inputs["attention_mask"]
    segments_BT = inputs.get("token_type_ids")
    encoded = jax.jit(Encoder(config).apply)({"params": params}, tokens_BT, segments_BT, examples_BT=mask_BT)
    outputs = {"hidden": encoded.hidden}
    if encoded.pooled_BND is not None and config.block.has_pooler and not heads:
        outputs["pooled"] = encoded.pooled_BND[:, 0]
    for head, own in heads.items():
        if head in ("mlm", "clm", "plm"):
            module = VocabularyHead(config) if head == "plm" else MaskedLMHead(config)
            logits = module.apply({"params": own}, encoded.hidden, params["embeddings"]["word"])
            outputs[head] = logits[..., : config.vocab_size]
        elif head == "rtd":
            outputs[head] = DetectionHead(config).apply({"params": own}, encoded.hidden)
        else:
            outputs[head] = PairHead(config).apply({"params": own}, encoded.pooled_BND)[:, 0]
    return {name: np.asarray(output) for name, output in outputs.items()}


def theirs(model, inputs) -> dict[str, np.ndarray]:
    """Return the same outputs of a PyTorch class."""
    with torch.no_grad():
        outputs = model(
            **{name: torch.tensor(array, dtype=torch.long) for name, array in inputs.items()}, output_hidden_states=True
        )
        by_name = named(outputs)
        if hasattr(model.base_model, "final_norm"):  # transformers 4.57 lists ModernBERT's states before this norm
            by_name["hidden"] = model.base_model.final_norm(outputs.hidden_states[-1]).numpy()
    return by_name


def named(outputs) -> dict[str, np.ndarray]:
    """Return the outputs of a transformers class under the names of `ours`."""
    by_name = {"hidden": outputs.hidden_states[-1]}
    for name, theirs in (HEADS | {"pooled": "pooler_output"}).items():
        if getattr(outputs, theirs, None) is not None:
            by_name[name] = getattr(outputs, theirs)
    if "rtd" in by_name and by_name["rtd"].ndim == 3:  # a class with a single head calls its output `logits`
        head = "plm" if hasattr(outputs, "mems") else "clm" if hasattr(outputs, "cross_attentions") else "mlm"
        by_name[head] = by_name.pop("rtd")
    return {name: np.asarray(output) for name, output in by_name.items()}


def largest_difference(actual: dict, expected: dict, mask_BT) -> dict[str, float]:
    """Return {output: largest absolute difference outside of the padding}."""
    assert actual.keys() == expected.keys()
    differences = {}
    for name, output in actual.items():
        of_tokens = output.shape[:2] == mask_BT.shape
        pair = (x[mask_BT > 0] if of_tokens else x for x in (output, expected[name]))
        differences[name] = float(np.abs(np.subtract(*pair)).max())
    return differences


@pytest.mark.parametrize("case, architecture", CASES)
def test_outputs_are_those_of_transformers_and_bytes_come_back(tokens_of, tmp_path, case, architecture):
    tokens = tokens_of(case)
    model = drawn(case, architecture, tokens)
    source = save(model, tokens, tmp_path / "theirs")
    convert.run(source, tmp_path / "ours")
    inputs = batch(tokens, 2 if case == "xlnet" else SETTINGS[case].get("type_vocab_size", 1))
    mask_BT = inputs["attention_mask"]
    actual = ours(tmp_path / "ours", inputs)
    differences = largest_difference(actual, theirs(model, inputs), mask_BT)
    print(f"{case} {architecture}: {differences}")
    assert max(differences.values()) < (DEEP if case == "bert, deep" else TOLERANCE)

    convert.run(tmp_path / "ours", tmp_path / "again")
    if case == "roberta, as published":
        assert export.read(tmp_path / "ours").encoder.embeddings.segments == 0
    state, again = weights.read(source), weights.read(tmp_path / "again")
    assert again.keys() == state.keys()
    for name, tensor in state.items():
        assert (again[name].shape, again[name].tobytes()) == (tensor.shape, tensor.tobytes()), name
    before, after = (transformers.AutoConfig.from_pretrained(folder) for folder in (source, tmp_path / "again"))
    if (case, architecture) == ("electra, embeddings as wide", "ElectraModel"):  # its architecture is that of BERT
        assert after.architectures == ["BertModel"]
        return
    ignored = {"transformers_version", "dtype", "torch_dtype", "_name_or_path"}
    assert {key for key in before.to_dict() if before.to_dict()[key] != after.to_dict().get(key)} <= ignored


@pytest.mark.parametrize("is_zip", [True, False])
def test_pickles_of_every_precision_hold_the_tensors_of_safetensors(tokens, tmp_path, is_zip):
    model = drawn("bert", "BertForPreTraining", tokens)
    state = weights.read(save(model, tokens, tmp_path))
    (tmp_path / "model.safetensors").unlink()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        own = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
        torch.save(own, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
        read = weights.read(tmp_path)
        assert state.keys() <= read.keys()  # with its tied copies
        for name, tensor in own.items():
            assert np.array_equal(read[name].astype(np.float32), tensor.float().numpy())


CLASSES = [(kind, name) for kind, known in models.CLASSES.items() for name in known if name != "BertLMHeadModel"]
CLASSES = [case for case in CLASSES if hasattr(transformers, case[1])]  # EuroBERT is in transformers 5 only


@pytest.mark.parametrize("kind, architecture", CLASSES)
def test_auto_classes_open_what_bertjax_wrote(tokens, tmp_path, kind, architecture):
    made = models.make(models.CLASSES[kind][architecture], tokens, kind)
    export.write(tmp_path / "ours", made)
    convert.run(tmp_path / "ours", tmp_path / "theirs")
    auto = families.of_config({"model_type": kind}).auto_of(models.CLASSES[kind][architecture])
    model, loading_info = getattr(transformers, auto).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert type(model).__name__ == architecture
    assert not any(loading_info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    inputs = batch(made.tokenizer, made.encoder.embeddings.segments)
    mask_BT, actual = inputs["attention_mask"], ours(tmp_path / "ours", inputs)
    assert max(largest_difference(actual, theirs(model.eval(), inputs), mask_BT).values()) < TOLERANCE
    if families.of_config({"model_type": kind}).has_flax:
        flax = getattr(transformers, f"Flax{auto}").from_pretrained(tmp_path / "theirs", from_pt=True)
        flax_outputs = named(flax(**inputs, output_hidden_states=True))
        assert max(largest_difference(actual, flax_outputs, mask_BT).values()) < TOLERANCE
    of_texts = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    encoded = of_texts(["adabc bce", "cde"], ["ad", "bc ad"], padding=True, return_tensors="pt")
    assert torch.isfinite(model(**encoded)[0]).all()  # the class accepts the tokenizer's ids, mask and segments


def of_xlnet(model):
    """Return the encoder and the params of a model of transformers in bertjax."""
    family = families.of_config({"model_type": "xlnet"})
    encoder = dataclasses.replace(family.encoder_config(model.config.to_dict()), dropout=0.0, attention_dropout=0.0)
    tensors = family.canonical({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    flat = names.to_params(tensors, family.names(encoder, frozenset({"plm"})), family.shapes(encoder))
    return encoder, vocabulary.pad(unflatten_dict(flat, sep="/"), encoder)


def test_predictions_in_an_order_are_those_of_transformers(tokens):
    """Both streams: `perm_mask` hides tokens, and `target_mapping` selects the predicted tokens."""
    model = drawn("xlnet", "XLNetLMHeadModel", tokens)
    encoder, params = of_xlnet(model)

    inputs = batch(tokens, segments=2)
    # Rank 1: visible tokens. Columns 0, 2 and 5 come later, in another order in each row.
    rank_BT = np.ones_like(inputs["input_ids"])
    read_BK = np.tile(np.array([0, 2, 5], np.int32), (4, 1))
    rank_BT[:, [0, 2, 5]] = 2 + np.array([[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]])
    objective = PermutationLM()
    logits = objective.apply(
        objective.model(encoder),
        params,
        {
            "tokens_BT": inputs["input_ids"],
            "segments_BT": inputs["token_type_ids"],
            "positions_BT": np.broadcast_to(np.arange(20), (4, 20)),
            "examples_BT": inputs["attention_mask"],
            "summary_positions_BN": np.zeros((4, 1), np.int32),
            "plm_positions_BK": read_BK,
            "rank_BT": rank_BT,
        },
    )
    is_seen_BTT = (rank_BT[:, :, None] > rank_BT[:, None, :]) | (rank_BT[:, None, :] == 1)
    with torch.no_grad():
        expected = model(
            **{name: torch.tensor(array, dtype=torch.long) for name, array in inputs.items()},
            perm_mask=torch.tensor(1.0 - is_seen_BTT, dtype=torch.float32),
            target_mapping=torch.tensor(np.eye(20, dtype=np.float32)[read_BK]),
        ).logits
    difference = np.abs(logits["plm"][..., : encoder.vocab_size] - expected.numpy()).max()
    print(f"two streams: {difference}")
    assert difference < TOLERANCE


def test_a_memory_on_either_side_is_that_of_the_reversed_half_of_the_batch(tokens):
    """`bi_data`: the second row is reversed and its distances are negated, so its memory is the text after it."""
    model = drawn("xlnet", "XLNetLMHeadModel", tokens)
    model.transformer.bi_data, model.transformer.mem_len = True, 10
    encoder, params = of_xlnet(model)

    tokens_BT = np.tile(batch(tokens, segments=1)["input_ids"][:1, :20], (2, 1))
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


def test_next_tokens_of_both_directions_are_those_of_transformers(tokens_of, tmp_path):
    """GPT-BERT's one head: `is_decoder` decides the direction in transformers, and the logits mean the same."""
    made = models.make(frozenset({"clm"}), tokens_of("bert"))
    both = dataclasses.replace(made.encoder, direction="bidirectional")
    settings = made.settings | {"model": made.settings["model"] | {"direction": "bidirectional"}}
    export.write(tmp_path / "ours", made._replace(encoder=both, settings=settings))
    convert.run(tmp_path / "ours", tmp_path / "theirs")
    export.write(tmp_path / "causal", made)
    inputs = batch(tokens_of("bert"), 2)
    for folder, is_decoder in (("ours", False), ("causal", True)):
        model = transformers.BertLMHeadModel.from_pretrained(tmp_path / "theirs", is_decoder=is_decoder).eval()
        actual, expected = ours(tmp_path / folder, inputs), theirs(model, inputs)
        for name, array in expected.items():
            real = inputs["attention_mask"] > 0
            np.testing.assert_allclose(actual[name][real], array[real], rtol=TOLERANCE, atol=TOLERANCE)
