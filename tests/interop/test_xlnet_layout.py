"""An XLNet reads the rows it was trained on, `A <sep> B <sep> <cls>`: ids, segments and logits of transformers."""

import json

import numpy as np
import pytest

from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.inference.predictor import Predictor
from bertjax.interop import huggingface, onnx, tokenizers
from tests.interop import published

torch = pytest.importorskip("torch", reason="parity with transformers needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")
SENTENCES = ["The king was old.", "She said, “No”, and the whole company of travelers went away.", "No"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A classifier of pairs as transformers writes it, and its tokenizer and model there."""
    folder = tmp_path_factory.mktemp("xlnet")
    spiece = published.train("xlnet", folder / "spiece.model", published.lines(600))
    theirs = transformers.XLNetTokenizerFast(str(spiece))
    config = transformers.XLNetConfig(
        vocab_size=len(theirs), d_model=32, n_layer=2, n_head=2, d_inner=48, num_labels=3, dropout=0.0
    )
    torch.manual_seed(0)
    model = transformers.XLNetForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that layout and segments matter
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    theirs.save_pretrained(folder)
    return folder, theirs, model


def expected(theirs, model, first, second=None):
    with torch.no_grad():
        logits = model(**theirs(first, second, padding=True, return_tensors="pt")).logits
    return torch.softmax(logits, dim=-1).numpy()


@pytest.mark.parametrize("pairs", [False, True])
def test_a_classifier_answers_as_there_and_back_again(checkpoint, tmp_path, pairs):
    folder, theirs, model = checkpoint
    assert model.config.summary_type == "last"
    ours, _ = huggingface.read(folder)
    columns = {"text": "a", "pair": "b"} if pairs else {"text": "a"}
    ours.settings["tasks"]["classification"]["examples"].update(columns)
    second = SENTENCES[::-1] if pairs else None
    records = [{"a": a, "b": b} for a, b in zip(SENTENCES, SENTENCES[::-1], strict=True)]
    if not pairs:
        records = SENTENCES
    answers = Predictor(ours).predict(records)
    probabilities = np.array([list(answer["probabilities"].values()) for answer in answers])
    reference = expected(theirs, model, SENTENCES, second)
    assert np.ptp(reference) > 0.2
    np.testing.assert_allclose(probabilities, reference, atol=1e-4)
    # What bertjax writes is read by transformers with the rows of its own tokenizer file.
    huggingface.write(tmp_path, ours)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    np.testing.assert_allclose(expected(back, again, SENTENCES, second), reference, atol=1e-4)


@pytest.fixture(scope="module")
def onnx_session(checkpoint, tmp_path_factory):
    """The same classifier as an ONNX file; `onnx.write` has compared it with bertjax."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="ONNX needs the extra [onnx]")
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs the extra [onnx]")
    path = tmp_path_factory.mktemp("onnx") / "xlnet.onnx"
    onnx.write(path, huggingface.read(checkpoint[0])[0])
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pairs", [False, True])
def test_an_onnx_file_answers_as_predict_and_as_transformers(checkpoint, onnx_session, pairs, side):
    folder, theirs, model = checkpoint
    ours, _ = huggingface.read(folder)
    ours.settings["tasks"]["classification"]["examples"].update({"text": "a"} | ({"pair": "b"} if pairs else {}))
    second = SENTENCES[::-1] if pairs else None
    rows = theirs(SENTENCES, second, padding=True, padding_side=side, return_tensors="np")
    [logits] = onnx_session.run(None, {node.name: rows[node.name] for node in onnx_session.get_inputs()})
    probabilities = torch.softmax(torch.from_numpy(logits), dim=-1).numpy()
    records = [{"a": a, "b": b} for a, b in zip(SENTENCES, SENTENCES[::-1], strict=True)]
    answers = Predictor(ours).predict(records)
    np.testing.assert_allclose([list(a["probabilities"].values()) for a in answers], probabilities, atol=1e-5)
    np.testing.assert_allclose(expected(theirs, model, SENTENCES, second), probabilities, atol=1e-5)


def test_rows_segments_and_padding_of_the_written_tokenizer(checkpoint, tmp_path):
    folder, theirs, _ = checkpoint
    tokenizers.write(tmp_path, tokenizers.read(folder)[0], longest=64)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for arguments in ([SENTENCES], [SENTENCES, SENTENCES[::-1]]):
        rows, written = (dict(one(*arguments, padding=True)) for one in (theirs, back))
        assert written["input_ids"] == rows["input_ids"] and written["attention_mask"] == rows["attention_mask"]
        for ours, reference, mask in zip(
            written["token_type_ids"], rows["token_type_ids"], rows["attention_mask"], strict=True
        ):  # padding has a segment of its own there, and is not attended to
            assert [a for a, used in zip(ours, mask) if used] == [b for b, used in zip(reference, mask) if used]


def test_an_older_checkpoint_and_an_export_know_where_cls_is(checkpoint, tmp_path):
    folder, theirs, _ = checkpoint
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlnet"}))
    (tmp_path / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    assert tokenizers.read(tmp_path)[0].cls_last
    export.write(tmp_path / "export", huggingface.read(folder)[0])
    tokens = SavedModel(tmp_path / "export").tokenizer
    rows, _ = tokens.rows(SENTENCES, seq_len=32)
    for row, reference in zip(rows.tolist(), theirs(SENTENCES)["input_ids"], strict=True):
        assert row[: len(reference)] == reference


def test_masks_are_filled_as_there(checkpoint, tmp_path):
    """Each mask is predicted from all other tokens, the first one of the text included."""
    _, theirs, model = checkpoint
    torch.manual_seed(1)
    causal = transformers.XLNetLMHeadModel(model.config).eval()
    with torch.no_grad():
        for parameter in causal.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    causal.save_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    predictor = Predictor(huggingface.read(tmp_path)[0])
    for text in ("the king <mask> old", "a king <mask> old", "<mask> king was <mask>"):
        inputs = theirs(text, return_tensors="pt")
        columns = torch.nonzero(inputs["input_ids"][0] == theirs.mask_token_id)[:, 0]
        length = inputs["input_ids"].shape[1]
        hidden = torch.zeros(1, length, length)
        hidden[:, :, columns] = 1.0
        with torch.no_grad():
            logits = causal(**inputs, perm_mask=hidden, target_mapping=torch.eye(length)[columns][None]).logits[0]
        [prediction] = predictor.fill([text.replace("<mask>", "[MASK]")], top=5)
        for guesses, expected in zip(prediction["masks"], torch.softmax(logits, dim=-1).numpy(), strict=True):
            ours = [guess["probability"] for guess in guesses]
            np.testing.assert_allclose(ours, np.sort(expected)[:-6:-1], rtol=1e-3)
