"""Comparison of a family with transformers on folders in which every tensor is drawn at random, norms included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax.traverse_util import flatten_dict

from bertjax.config.export import Export
from bertjax.data.tokenizer import Tokenizer
from bertjax.interop import huggingface, names, tokenizers, weights
from bertjax.interop.family import Family
from bertjax.interop.outputs import reading_of, values
from bertjax.models.encoder import Encoder
from bertjax.models.heads import masked_lm_head
from tests.interop import models

ROWS, LENGTH = 3, 40
# Keys of `config.json` that do not change what a model computes.
_UNREAD = {"transformers_version", "dtype", "torch_dtype", "_name_or_path", "classifier_pooling", "problem_type"}
# -1 is the length of the longest example. No layer reads the window if all are global.
_UNREAD |= {"max_relative_positions", "local_attention"}


@functools.cache
def tokens_of(kind: str) -> Tokenizer:
    """Return a tokenizer with the ids that the classes of a family expect: MPNet's take id 1 for padding."""
    return models.make(frozenset(), models.trained(), kind).tokenizer


def write(folder, model: torch.nn.Module, noise: float = 0.27) -> torch.nn.Module:
    """Write a folder of a model after drawing every tensor at random, norms and biases too; return the model."""
    tokens, kind = tokens_of(model.config.model_type), model.config.model_type
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
        if kind == "mobilebert":  # its trigrams read this row, as PyTorch trains it: zeros
            model.get_input_embeddings().weight[tokens.pad_id].zero_()
    model.eval().save_pretrained(folder)
    tokenizers.write(folder, tokens, LENGTH, segments=segments_of(model))
    return model


def segments_of(model: torch.nn.Module) -> int:
    """Return the number of segments that rows of a model have; 0 if its tokenizer gives none."""
    rows = 2 if model.config.model_type == "xlnet" else getattr(model.config, "type_vocab_size", 0)
    return rows if rows > 1 else 0


@functools.cache
def batch(pad_id: int, segments: int = 0) -> dict[str, np.ndarray]:
    """Return rows of one example each, of three lengths."""
    draw, columns = np.random.default_rng(0), np.arange(LENGTH)
    lengths_B1 = np.array([[LENGTH], [29], [7]])
    real_BT = columns < lengths_B1
    tokens_BT = np.where(real_BT, draw.integers(5, 60, (ROWS, LENGTH)), pad_id)
    zeros_BT = np.zeros_like(tokens_BT)
    return {
        "tokens_BT": tokens_BT,
        "segments_BT": np.where(real_BT & (columns >= lengths_B1 // 2), 1, 0) if segments else zeros_BT,
        "positions_BT": np.where(real_BT, columns, 0),
        "examples_BT": real_BT.astype(np.int32),
        "example_ids_BN": np.arange(ROWS)[:, None],
        "summary_positions_BN": zeros_BT[:, :1],
    }


def inputs(pad_id: int, segments: int = 0) -> dict[str, torch.Tensor]:
    """Return the same rows as transformers reads them."""
    names_of_ours = {"input_ids": "tokens_BT", "attention_mask": "examples_BT"}
    names_of_ours |= {"token_type_ids": "segments_BT"} if segments else {}
    return {name: torch.tensor(batch(pad_id, segments)[ours]) for name, ours in names_of_ours.items()}


def check_values_and_gradients(folder, model: torch.nn.Module, family: Family) -> None:
    """Compare hidden states, MLM logits and gradients of the MLM loss with the model that `write` wrote."""
    ours, _ = huggingface.read(folder)
    arrays, given = batch(ours.tokenizer.pad_id), inputs(ours.tokenizer.pad_id)
    real_BT, labels_BT = arrays["examples_BT"] > 0, np.roll(arrays["tokens_BT"], 3)
    outputs = model(**given, output_hidden_states=True)
    torch.nn.functional.cross_entropy(outputs.logits[real_BT], torch.tensor(labels_BT[real_BT])).backward()
    assert outputs.logits[real_BT].std() > 1

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        encoder, head = Encoder(ours.encoder), masked_lm_head(ours.encoder)(ours.encoder)
        read = {name: arrays[name] for name in ("tokens_BT", "positions_BT", "examples_BT")}
        encoded, state = encoder.apply({"params": params["encoder"]}, **read, mutable=["captured"])
        word_VE = params["encoder"]["embeddings"]["word"]
        logits_BTV = head.apply({"params": params["heads"]["mlm"]}, encoded.hidden, word_VE)
        scores_BT = jnp.take_along_axis(jax.nn.log_softmax(logits_BTV), labels_BT[..., None], axis=-1)[..., 0]
        return -jnp.mean(scores_BT, where=real_BT), (state["captured"]["hidden"], encoded.hidden, logits_BTV)

    (_, (hidden, last_BTD, logits_BTV)), gradients = jax.jit(loss)(ours.params)
    # transformers lists the last states after the final norm.
    for layer, theirs_BTD in enumerate(outputs.hidden_states[: ours.encoder.layers]):
        np.testing.assert_allclose(hidden[layer][real_BT], theirs_BTD.detach().numpy()[real_BT], atol=1e-4)
    theirs_BTD = model.base_model(**given).last_hidden_state.detach().numpy()
    np.testing.assert_allclose(last_BTD[real_BT], theirs_BTD[real_BT], atol=1e-4)
    theirs_BTV = outputs.logits.detach().numpy()[real_BT]
    np.testing.assert_allclose(logits_BTV[real_BT][:, : ours.encoder.vocab_size], theirs_BTV, atol=1e-4)
    theirs = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    flat = flatten_dict(jax.tree.map(np.asarray, gradients), sep="/")
    cut = {path: x[: ours.encoder.vocab_size] if "/word" in path else x for path, x in flat.items()}
    own = family.published(names.to_tensors(cut, family.names(ours.encoder, frozenset({"mlm"}))))
    assert own.keys() == theirs.keys()
    # Softmax cancels biases of keys if positions do not rotate them: their gradient is rounding of zero.
    rounding = 1e-6 * np.sqrt(sum(np.sum(gradient**2) for gradient in theirs.values()))
    for name, gradient in theirs.items():
        assert np.linalg.norm(own[name] - gradient) <= max(1e-3 * np.linalg.norm(gradient), rounding), name


def check_folder(folder, model: torch.nn.Module, tolerance: float = 1e-4) -> None:
    """Check the folder `theirs` against transformers: outputs, bytes, settings and classes of what is written back."""
    ours, notes = huggingface.read(folder / "theirs")
    assert not [note for note in notes if "does not know" in note]
    huggingface.write(folder / "ours", ours)
    theirs, back = weights.read(folder / "theirs"), weights.read(folder / "ours")
    assert theirs.keys() == back.keys()
    assert all(tensor.tobytes() == back[name].tobytes() for name, tensor in theirs.items())
    again, _ = huggingface.read(folder / "ours")
    assert (again.encoder, again.settings) == (ours.encoder, ours.settings)
    # transformers opens it by the class of the card, and computes the same.
    architecture, has_choices = type(model).__name__, type(model).__name__.endswith("MultipleChoice")
    [suffix] = [name for name in ("Model", "LMHeadModel", "For") if name in architecture][-1:]
    auto = "AutoModel" + architecture[architecture.index(suffix) :].removeprefix("Model").removesuffix("Simple")
    auto = auto.replace("LMHeadModel", "ForPreTraining")
    eager = {"attn_implementation": "eager"} if hasattr(transformers, f"{architecture}") else {}
    opened = getattr(transformers, auto).from_pretrained(folder / "ours", **eager).eval()
    assert type(opened) is type(model)
    pad_id, segments = ours.tokenizer.pad_id, segments_of(model)
    given = inputs(pad_id, segments)
    given = {name: tensor[None] for name, tensor in given.items()} if has_choices else given
    with torch.no_grad():
        expected, computed = (
            {key: array for key, array in one(**given).items() if isinstance(array, torch.Tensor)}
            for one in (model, opened)
        )
    is_equal = torch.allclose if has_choices else torch.equal
    assert all(is_equal(expected[key], computed[key]) for key in expected)
    before, after = model.config.to_dict(), opened.config.to_dict()
    changed = {key for key in before if before[key] != after.get(key) and not key.endswith("_token_id")}
    assert changed <= _UNREAD | ({"id2label", "label2id"} if has_choices else set())
    check_outputs(ours, {name: array.numpy() for name, array in expected.items()}, segments, tolerance)
    if hasattr(transformers, f"Flax{architecture}"):
        flax = getattr(transformers, f"Flax{architecture}").from_pretrained(folder / "ours", from_pt=True)
        arrays = {name: tensor.numpy().astype(np.int32) for name, tensor in given.items()}
        outputs = {name: np.asarray(array) for name, array in flax(**arrays).items() if hasattr(array, "shape")}
        check_outputs(ours, outputs, segments, tolerance)


# {output of transformers: that of bertjax}; `logits` are those of the only head.
_OUTPUTS = {"prediction_logits": "mlm_logits", "seq_relationship_logits": "nsp_logits", "sop_logits": "sop_logits"}


def check_outputs(ours: Export, expected: dict[str, np.ndarray], segments: int, tolerance: float) -> None:
    """Compare outputs of transformers with those of bertjax outside of the padding."""
    reading, arrays = reading_of(ours), batch(ours.tokenizer.pad_id, segments)
    computed = values(ours, reading, arrays)
    [*heads] = (name for name in computed if name.endswith("logits"))
    named = {name: _OUTPUTS.get(name, name) for name in expected}
    if "logits" in expected and "logits" not in computed:
        [named["logits"]] = heads
    compared = {name: own for name, own in named.items() if own in computed}
    assert compared and {*heads} <= {*compared.values()}
    for name, own in compared.items():
        rows = arrays["examples_BT"] > 0 if reading.is_per_token(own) else slice(None)
        theirs = expected[name].reshape(computed[own].shape)[rows]
        np.testing.assert_allclose(computed[own][rows], theirs, atol=tolerance, err_msg=name)
        assert np.ptp(theirs) > 0.01
