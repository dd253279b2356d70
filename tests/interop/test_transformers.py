"""Parity with transformers' PyTorch and Flax classes, and with real weights if they are available."""

import functools
import itertools
import os
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax.cli import convert
from bertjax.config import export
from bertjax.data import tokenizer
from bertjax.data.sources import documents
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig
from bertjax.interop import tokenizers, weights
from bertjax.objectives.pretraining.sentence_pairs import BERT
from tests.interop import models

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

REAL = "BERTJAX_TEST_CHECKPOINT"


@pytest.fixture(scope="module")
def tokens():
    return models.trained()


def published(architecture: str, tokens, layers: int = 2, width: int = 16):
    """Return a model of transformers with random weights, including biases and norms, so that each of them matters."""
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(
        transformers.BertConfig(
            vocab_size=tokens.vocab_size,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=2 * width,
            max_position_embeddings=40,
            type_vocab_size=3,
            layer_norm_eps=1e-7,
            pad_token_id=tokens.pad_id,
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def save(model, tokens, folder: Path) -> Path:
    """Save a model and its tokenizer as transformers does; return the folder."""
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(tokens.piece(i) + "\n" for i in range(tokens.vocab_size)))
    transformers.BertTokenizer(folder / "vocab.txt", do_lower_case=False).save_pretrained(folder)
    return folder


def batch(vocab_size: int, rows: int = 4, seq_len: int = 24) -> dict[str, np.ndarray]:
    """Return rows of different lengths with two segments."""
    draw, columns = np.random.default_rng(0), np.arange(seq_len)
    lengths_B1 = draw.integers(seq_len // 3, seq_len + 1, (rows, 1))
    mask_BT = (columns < lengths_B1).astype(np.int32)
    segments_BT = ((columns >= lengths_B1 // 2) * mask_BT).astype(np.int32)
    tokens_BT = draw.integers(0, vocab_size, (rows, seq_len)).astype(np.int32) * mask_BT
    return {"input_ids": tokens_BT, "attention_mask": mask_BT, "token_type_ids": segments_BT}


def ours(folder: Path, inputs: dict[str, np.ndarray], logits: bool) -> dict[str, np.ndarray]:
    """Return the hidden states of an export, and the logits of both heads at every position."""
    model = export.read(folder)
    tokens_BT, mask_BT, segments_BT = (inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    module, params, _ = bertjax.load(folder)
    encoded = jax.jit(module.apply)({"params": params}, tokens_BT, segments_BT, examples_BT=mask_BT)
    outputs = {"hidden": encoded.hidden, "pooled": encoded.pooled_BND}
    if logits:
        columns_BT = np.broadcast_to(np.arange(tokens_BT.shape[1]), tokens_BT.shape)
        core = {
            "tokens_BT": tokens_BT,
            "segments_BT": segments_BT,
            "positions_BT": columns_BT,
            "examples_BT": mask_BT,
            "summary_positions_BN": np.zeros((len(tokens_BT), 1), np.int32),
            "mlm_positions_BK": columns_BT,
        }
        head_logits = jax.jit(functools.partial(BERT().apply, BERT().model(model.encoder)))(model.params, core)
        outputs |= {"mlm": head_logits["mlm"][..., : model.encoder.vocab_size], "nsp": head_logits["nsp"][:, 0]}
    return outputs


def run_torch(model, inputs):
    with torch.no_grad():
        return model(**{name: torch.tensor(array) for name, array in inputs.items()}, output_hidden_states=True)


def assert_close(actual, expected, tolerance, mask_BT=None):
    actual, expected = np.asarray(actual), np.asarray(expected)
    if mask_BT is not None:
        actual, expected = actual[mask_BT > 0], expected[mask_BT > 0]
    assert np.abs(actual - expected).max() < tolerance


@pytest.mark.parametrize("layers, width, tolerance", [(2, 16, 1e-5), (12, 64, 1e-4)])
def test_hidden_states_and_logits_are_those_of_torch_and_flax(tokens, tmp_path, layers, width, tolerance):
    model = published("BertForPreTraining", tokens, layers, width)
    convert.run(save(model, tokens, tmp_path / "theirs"), tmp_path / "ours")
    inputs = batch(tokens.vocab_size)
    mask_BT = inputs["attention_mask"]
    actual = ours(tmp_path / "ours", inputs, logits=True)
    flax = transformers.FlaxBertForPreTraining.from_pretrained(tmp_path / "theirs", from_pt=True)
    for expected in (run_torch(model, inputs), flax(**inputs, output_hidden_states=True)):
        assert_close(actual["hidden"], expected.hidden_states[-1], tolerance, mask_BT)
        assert_close(actual["mlm"], expected.prediction_logits, tolerance, mask_BT)
        assert_close(actual["nsp"], expected.seq_relationship_logits, tolerance)


@pytest.mark.parametrize("architecture", models.PARTS)
@pytest.mark.parametrize("format", ["safetensors", "zip", "sequence"])
def test_a_round_trip_gives_the_same_bytes(tokens, tmp_path, architecture, format):
    source = save(published(architecture, tokens), tokens, tmp_path / "theirs")
    state = {name: np.asarray(tensor) for name, tensor in weights.read(source).items()}
    if format != "safetensors":
        model = getattr(transformers, architecture).from_pretrained(source)
        (source / "model.safetensors").unlink()
        torch.save(model.state_dict(), source / "pytorch_model.bin", _use_new_zipfile_serialization=format == "zip")
        assert set(state) <= set(weights.read(source))  # with its tied copies
    convert.run(source, tmp_path / "ours")
    convert.run(tmp_path / "ours", tmp_path / "again")
    again = weights.read(tmp_path / "again")
    assert again.keys() == state.keys()
    for name, tensor in state.items():
        assert (again[name].shape, again[name].tobytes()) == (tensor.shape, tensor.tobytes()), name
    before, after = (transformers.AutoConfig.from_pretrained(folder) for folder in (source, tmp_path / "again"))
    ignored = {"transformers_version", "dtype", "torch_dtype", "_name_or_path"}
    assert {key for key in before.to_dict() if before.to_dict()[key] != after.to_dict().get(key)} <= ignored


@pytest.mark.parametrize(
    "architecture, auto",
    [
        ("BertForPreTraining", "AutoModelForPreTraining"),
        ("BertForPreTraining", "AutoModelForMaskedLM"),
        ("BertForPreTraining", "AutoModel"),
        ("BertForMaskedLM", "AutoModelForMaskedLM"),
        ("BertModel", "AutoModel"),
    ],
)
def test_auto_classes_open_what_bertjax_wrote(tokens, tmp_path, architecture, auto):
    export.write(tmp_path / "ours", models.make(models.PARTS[architecture], tokens))
    convert.run(tmp_path / "ours", tmp_path / "theirs")
    model, loading_info = getattr(transformers, auto).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not loading_info["missing_keys"] and not loading_info["mismatched_keys"] and not loading_info["error_msgs"]
    unread = {"BertForPreTraining": ("bert.pooler.", "cls.")}.get(architecture, ())
    assert (
        all(name.startswith(unread) for name in loading_info["unexpected_keys"])
        if unread
        else not loading_info["unexpected_keys"]
    )
    inputs = batch(tokens.vocab_size, seq_len=20)
    actual = ours(tmp_path / "ours", inputs, logits=architecture == "BertForPreTraining")
    expected = run_torch(model.eval(), inputs)
    assert_close(actual["hidden"], expected.hidden_states[-1], 1e-5, inputs["attention_mask"])
    flax = getattr(transformers, f"Flax{auto}").from_pretrained(tmp_path / "theirs", from_pt=True)
    flax_outputs = flax(**inputs, output_hidden_states=True)
    assert_close(actual["hidden"], flax_outputs.hidden_states[-1], 1e-5, inputs["attention_mask"])


def test_embeddings_are_transformers_hidden_states_under_mean_pooling(tokens, tmp_path):
    """Pooling as in Sentence-BERT: over the attention mask, including [CLS] and [SEP]."""
    model = published("BertModel", tokens)
    convert.run(save(model, tokens, tmp_path / "theirs"), tmp_path / "ours")
    texts = ["adabc bce", "cde", " ".join(["adf"] * 12)]
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden_BTD = model(**inputs).last_hidden_state
    mask_BT1 = inputs["attention_mask"][..., None]
    expected = (hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)
    predictor = bertjax.predictor(tmp_path / "ours")
    assert_close(predictor.embed(texts), expected, 1e-5)
    assert_close(predictor.embed(texts, normalize=True), torch.nn.functional.normalize(expected), 1e-5)


def test_the_words_for_a_mask_are_those_of_transformers(tokens, tmp_path):
    model = published("BertForMaskedLM", tokens)
    convert.run(save(model, tokens, tmp_path / "theirs"), tmp_path / "ours")
    text = "ad [MASK] bce [MASK]"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    inputs = theirs(text, return_tensors="pt")
    with torch.no_grad():
        expected_TV = model(**inputs).logits[0].softmax(-1)
    expected = expected_TV[inputs["input_ids"][0] == theirs.mask_token_id].topk(4)
    [answer] = bertjax.predictor(tmp_path / "ours").fill([text], top=4)
    for guesses, ids, probabilities in zip(answer["masks"], expected.indices, expected.values, strict=True):
        assert [guess["piece"] for guess in guesses] == theirs.convert_ids_to_tokens(ids)
        assert_close([guess["probability"] for guess in guesses], probabilities, 1e-5)


def test_half_precision_is_widened(tokens, tmp_path):
    model = published("BertForMaskedLM", tokens)
    for dtype in (torch.float16, torch.bfloat16):
        folder = save(model.to(dtype), tokens, tmp_path / str(dtype))
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        for read in (weights.read(folder), weights.read(tmp_path)):
            name = "bert.embeddings.word_embeddings.weight"
            expected = model.state_dict()[name].float().numpy()
            assert np.array_equal(read[name].astype(np.float32), expected)


@pytest.mark.parametrize("kind", SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS)
def test_auto_tokenizer_gives_the_same_ids(tmp_path, kind):
    documents_of = (itertools.islice(documents(corpus, "text"), 5) for corpus in ("embedded:en", "embedded:ko"))
    texts = [
        line for first_documents in documents_of for document in first_documents for line in document.text.split("\n")
    ]
    tokens = tokenizer.train([text for text in texts if text], TokenizerConfig(kind=kind, vocab_size=2000))
    tokenizers.write(tmp_path, tokens, longest=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.model_max_length, theirs.mask_token_id, theirs.pad_token_id) == (64, tokens.mask_id, tokens.pad_id)
    assert len(theirs) == theirs.vocab_size == tokens.vocab_size
    assert theirs(texts)["input_ids"] == [[tokens.cls_id, *ids, tokens.sep_id] for ids in tokens.encode(texts)]
    assert set(theirs("a", "b")) == {"input_ids", "token_type_ids", "attention_mask"}


@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL} names no folder with a real checkpoint of BertModel")
def test_a_real_checkpoint(tmp_path):
    source = Path(os.environ[REAL])
    convert.run(source, tmp_path / "ours")
    model = transformers.AutoModel.from_pretrained(source).eval()
    texts = ["The quick brown fox.", "A naïve café, 한국어 and #hashtags — unaffable.", "Yes"]
    inputs = transformers.AutoTokenizer.from_pretrained(source)(texts, padding=True, return_tensors="np")
    inputs["token_type_ids"] = np.where(np.arange(inputs["input_ids"].shape[1]) > 3, 1, 0) * inputs["attention_mask"]
    actual = ours(tmp_path / "ours", dict(inputs), logits=False)
    flax = transformers.FlaxAutoModel.from_pretrained(source, from_pt=True)
    for expected in (run_torch(model, inputs), flax(**inputs)):
        assert_close(actual["hidden"], expected.last_hidden_state, 1e-4, inputs["attention_mask"])
        assert_close(actual["pooled"][:, 0], expected.pooler_output, 1e-4)
    convert.run(tmp_path / "ours", tmp_path / "again")
    before, after = weights.read(source), weights.read(tmp_path / "again")
    assert before.keys() - after.keys() <= {"embeddings.position_ids"} and after.keys() <= before.keys()
    assert all(after[name].tobytes() == before[name].tobytes() for name in after)
