"""ONNX files: onnxruntime computes the same outputs as bertjax, and nearly the same in int8."""

import dataclasses
import functools
import importlib
import importlib.util
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax.cli import convert
from bertjax.config import export
from bertjax.inference.onnx import INPUTS
from bertjax.inference.predictor import Predictor
from bertjax.interop import onnx
from bertjax.interop.outputs import reading_of
from bertjax.models import vocabulary
from bertjax.runtime import command_line
from bertjax.runtime.errors import RunFailed, UserError
from tests.interop import models

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "onnx.md"
PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
installed = pytest.mark.skipif(bool(MISSING), reason=f"needs the extra [onnx]: no {', '.join(MISSING)}")


def slow(test):
    """Mark a test as slow: each export takes PyTorch about ten seconds."""
    return pytest.mark.slow(installed(test))


HEADS = {
    "BertForPreTraining": ["last_hidden_state", "pooler_output", "mlm_logits", "nsp_logits"],
    "BertForMaskedLM": ["last_hidden_state", "mlm_logits"],
}


def made(kind: str) -> export.Export:
    return models.make(models.PARTS.get(kind, frozenset()), models.trained())


def session_of(path):
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """exported(kind) -> a folder with the model as an export, `ours`, and `new/model.onnx`; the result of `convert`."""

    @functools.cache
    def write(kind: str):
        folder = tmp_path_factory.mktemp(kind)
        export.write(folder / "ours", made(kind))
        return folder, convert.run(folder / "ours", folder / "new" / "model.onnx")

    return write


def export_once(monkeypatch, path) -> None:
    """PyTorch's exporter gives a file that it has written before, of a model with the same graph and weights."""
    monkeypatch.setattr(onnx, "_export", lambda source, draft, *others: draft.write_bytes(path.read_bytes()))


@slow
@pytest.mark.parametrize("kind", HEADS)
def test_hidden_states_are_those_of_the_export_for_any_batch_and_length(kind, exported):
    folder, lines = exported(kind)
    assert lines[-2].startswith("onnx ") and lines[0] == f"outputs: {', '.join(HEADS[kind])}"
    assert [path.name for path in (folder / "new").iterdir()] == ["model.onnx"]
    session = session_of(folder / "new" / "model.onnx")
    assert [(node.name, node.type) for node in session.get_inputs()] == [(n, "tensor(int64)") for n in INPUTS]
    assert [node.name for node in session.get_outputs()] == HEADS[kind]
    module, params, tokenizer = bertjax.load(folder / "ours")
    for rows, seq_len in ((1, 1), (1, 20), (5, 3), (7, 20)):
        draw = np.random.default_rng(rows)
        tokens_BT = draw.integers(0, tokenizer.vocab_size, (rows, seq_len))
        segments_BT = draw.integers(0, 3, (rows, seq_len))
        mask_BT = (np.arange(seq_len) < draw.integers(1, seq_len + 1, (rows, 1))).astype(np.int64)
        outputs = session.run(None, dict(zip(INPUTS, (tokens_BT, mask_BT, segments_BT), strict=True)))
        expected = jax.jit(module.apply)({"params": params}, tokens_BT, segments_BT, examples_BT=mask_BT)
        assert outputs[0].shape == (rows, seq_len, 16)
        np.testing.assert_allclose(outputs[0][mask_BT > 0], expected.hidden[mask_BT > 0], atol=1e-5)
        if "pooler_output" in HEADS[kind]:
            np.testing.assert_allclose(outputs[1], expected.pooled_BND[:, 0], atol=1e-5)


@slow
def test_the_check_sees_every_output(exported, tmp_path, monkeypatch):
    model, outputs, real = made("BertForPreTraining"), HEADS["BertForPreTraining"], onnx.values
    reading = onnx.reading_of(model)
    path = exported("BertForPreTraining")[0] / "new" / "model.onnx"
    assert 0 < onnx._difference(path, model, reading) < onnx.TOLERANCE
    for name in outputs:
        wrong = lambda *args, name=name: (computed := real(*args)) | {name: computed[name] + 1}  # noqa: E731
        monkeypatch.setattr(onnx, "values", wrong)
        assert onnx._difference(path, model, reading) == pytest.approx(1, abs=1e-4), name
    last = outputs[-1]
    monkeypatch.setattr(onnx, "values", lambda *args: (computed := real(*args)) | {last: computed[last] * np.nan})
    assert np.isnan(onnx._difference(path, model, reading))
    export_once(monkeypatch, path)
    with pytest.raises(RunFailed, match="onnxruntime and bertjax differ by nan in .*; it was not written"):
        onnx.write(tmp_path / "other.onnx", model)
    assert list(tmp_path.iterdir()) == []


@installed
@pytest.mark.parametrize("write", [onnx.write, onnx.write_int8], ids=["float", "int8"])
def test_weights_of_another_model_are_not_overwritten(tmp_path, write):
    (tmp_path / "model.onnx.data").write_text("somebody's")
    with pytest.raises(UserError, match="model.onnx.data exists, from which model.onnx would read its weights; remove"):
        write(tmp_path / "model.onnx", made("BertModel"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["somebody's"]


@slow
def test_the_lines_of_the_documentation_give_the_hidden_states_of_the_texts(exported, tmp_path, monkeypatch):
    folder, _ = exported("BertForPreTraining")
    convert.run(folder / "ours", tmp_path / "hf" / "tiny")
    shutil.copy(folder / "new" / "model.onnx", tmp_path / "tiny.onnx")
    [lines] = re.findall(r"```python\n(import numpy as np, onnxruntime\n.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(lines, scope)
    module, params, tokenizer = bertjax.load(folder / "ours")
    texts = ["where is the king?", "the king is here."]
    tokens_BT, examples_BT = tokenizer.rows(texts, scope["hidden"].shape[1])
    assert np.array_equal(scope["inputs"]["input_ids"], tokens_BT) and len(scope["heads"]) == 3
    hidden, real_BT = module.apply({"params": params}, tokens_BT, examples_BT=examples_BT).hidden, examples_BT > 0
    np.testing.assert_allclose(scope["hidden"][real_BT], hidden[real_BT], atol=1e-5)


@slow
def test_a_run_in_bfloat16_with_rounded_activations_is_checked_in_float32(exported, tmp_path, monkeypatch):
    export_once(monkeypatch, exported("BertForMaskedLM")[0] / "new" / "model.onnx")
    model = made("BertForMaskedLM")
    execution = dataclasses.replace(model.encoder.execution, dtype="bfloat16")
    model = model._replace(encoder=dataclasses.replace(model.encoder, execution=execution, activation_bits=4))
    *_, note = onnx.write(tmp_path / "model.onnx", model)
    assert note.startswith("activations are not rounded to 4 bits there")


@slow
def test_a_folder_of_transformers_with_weights_too_large_for_one_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(onnx, "LARGEST_FILE", 0)
    export.write(tmp_path / "ours", made("BertModel"))
    convert.run(tmp_path / "ours", tmp_path / "theirs")
    target = tmp_path / "new" / "tiny[v2]*.onnx"  # no pattern
    flags = [f"--from={tmp_path / 'theirs'}", f"--to={target}"]
    capsys.readouterr()
    assert command_line.exit_code_of(lambda: convert.main(flags)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["parts:", "outputs:", "checked:", "onnx", "next"]
    assert "outputs: last_hidden_state, pooler_output" in lines
    assert sorted(path.name for path in target.parent.iterdir()) == ["tiny[v2]*.onnx", "tiny[v2]*.onnx.data"]
    inputs = dict.fromkeys(INPUTS, np.ones((2, 5), np.int64))
    assert np.isfinite(session_of(target).run(None, inputs)[0]).all()
    assert command_line.exit_code_of(lambda: convert.main(flags)) == 2
    assert f"--to={target} exists and is not empty" in capsys.readouterr().err


def with_padding_first(tokens):
    """Return an MPNet with a tokenizer as bertjax trains it; its classes take id 1 for padding."""
    export = models.make(frozenset({"mlm"}), tokens, "mpnet")
    return export._replace(tokenizer=tokens, params=vocabulary.exchanged(export.params, 0, 1))


def on_mean(tokens, kind):
    model = models.fine_tuned("classification", tokens, kind)
    model.settings["tasks"]["classification"]["objective"]["pooling"] = "mean"
    return model


OTHERS = {
    "albert": (lambda tokens: models.make(frozenset({"pooler", "mlm", "sop"}), tokens, "albert"), "mlm_logits"),
    "electra": (lambda tokens: models.make(frozenset({"rtd"}), tokens, "electra"), "rtd_logits"),
    "neobert": (lambda tokens: models.make(frozenset({"mlm"}), tokens, "neobert"), "mlm_logits"),
    "eurobert on the mean": (lambda tokens: on_mean(tokens, "eurobert"), "logits"),
    "mpnet with padding first": (with_padding_first, "mlm_logits"),
}


@slow
@pytest.mark.parametrize("case", OTHERS)
def test_other_families_and_heads(tmp_path, case):
    """`write` compares each output; `test_every_family.py` has heads on labels."""
    if ("euro" in case or "neo" in case) and not importlib.import_module("transformers").__version__ >= "5":
        pytest.skip("transformers 4 has no EuroBERT")
    make, output = OTHERS[case]
    model = make(models.trained())
    write = onnx.write_int8 if "padding" in case else onnx.write  # which compares it with float32 too
    notes = write(tmp_path / "model.onnx", model)
    assert output in notes[0] and notes[1].startswith("checked: onnxruntime and bertjax differ by ")
    inputs = [node.name for node in session_of(tmp_path / "model.onnx").get_inputs()]
    assert inputs == [name for name in INPUTS if model.encoder.embeddings.segments or name != "token_type_ids"]


@slow
@pytest.mark.parametrize("output", ["logits", "sentence_embedding"])
def test_outputs_on_the_mean_are_those_of_predictions(tmp_path, output):
    """`test_every_family.py` has the classifiers that pool [CLS], as transformers does."""
    texts, model = ["abd ace", "bbe"], on_mean(models.trained(), "bert")
    if output == "sentence_embedding":
        model = made("BertModel")
        model.settings["tasks"] = {"pairs": {"objective": {"kind": "embedding_contrastive"}}}
    onnx.write(tmp_path / "model.onnx", model)
    tokens_BT, mask_BT = (x.astype(np.int64) for x in model.tokenizer.rows(texts, seq_len=12))
    inputs = dict(zip(INPUTS, (tokens_BT, mask_BT, np.zeros_like(tokens_BT)), strict=True))
    [values] = session_of(tmp_path / "model.onnx").run([output], inputs)
    if output == "sentence_embedding":
        expected = Predictor(model).embed(texts, normalize=True)
    else:
        values = jax.nn.softmax(values)
        expected = [list(answer["probabilities"].values()) for answer in Predictor(model).predict(texts)]
    np.testing.assert_allclose(values, expected, atol=1e-5)


@installed
def test_a_head_that_no_other_library_knows_is_refused(tmp_path):
    model = made("BertForMaskedLM")
    model.params["heads"]["left"] = {"bias": np.ones(2, np.float32)}
    with pytest.raises(UserError, match="no name for: heads/left; add --encoder-only"):
        onnx.write(tmp_path / "model.onnx", model)
    assert not list(tmp_path.iterdir())


@slow
def test_a_folder_of_transformers_with_the_file_that_browsers_look_for(tmp_path, capsys):
    import onnx as library

    export.write(tmp_path / "ours", made("BertForPreTraining"))
    flags = [f"--from={tmp_path / 'ours'}", f"--to={tmp_path / 'new' / 'hf'}", "--quantize=int8"]
    assert convert.main(flags) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "new" / "hf"
    assert [path.name for path in folder.parent.iterdir()] == ["hf"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "onnx"} <= {path.name for path in folder.iterdir()}
    assert [str(path.relative_to(folder)) for path in (folder / "onnx").iterdir()] == [str(onnx.INT8_PLACE)]
    assert f"int8: {folder / onnx.INT8_PLACE}" in printed and "of the outputs in int8" in printed
    nodes = library.load(folder / onnx.INT8_PLACE).graph.node
    assert sum(node.op_type == "MatMulInteger" for node in nodes) >= 6 * 2  # the kernels of two layers
    session = session_of(folder / onnx.INT8_PLACE)
    model = export.read(tmp_path / "ours")
    reading = reading_of(model)
    assert [node.name for node in session.get_outputs()] == list(reading.outputs)
    assert [(node.name, node.type) for node in session.get_inputs()] == [(n, "tensor(int64)") for n in INPUTS]
    for output, ours in onnx.outputs_and_ours(folder / onnx.INT8_PLACE, model, reading):
        assert 0 < np.linalg.norm(output - ours) < 0.2 * np.linalg.norm(ours)
    # As the documentation says: the answer to a text depends on the text beside it.
    tokens_BT = model.tokenizer.rows(["abd ace", "bbe cfd aec"], seq_len=8)[0].astype(np.int64)
    both = dict(zip(INPUTS, (tokens_BT, tokens_BT * 0 + 1, tokens_BT * 0), strict=True))
    alone = {name: values[:1] for name, values in both.items()}
    assert np.abs(session.run(None, both)[0][0] - session.run(None, alone)[0][0]).max() > 1e-4


@slow
def test_a_file_with_other_outputs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "INT8_TOLERANCE", 0.0)
    real, files = onnx._export, []

    def export_once(source, draft, *others):
        if not files:
            real(source, draft, *others)
            files.append(draft.read_bytes())
        draft.write_bytes(files[0])

    monkeypatch.setattr(onnx, "_export", export_once)
    export.write(tmp_path / "ours", made("BertModel"))
    for target in ("new/model.onnx", "new/hf"):
        with pytest.raises(RunFailed, match="in int8 and bertjax differ by .*% of the outputs in"):
            convert.run(tmp_path / "ours", tmp_path / target, quantized=True)
        assert list((tmp_path / "new").iterdir()) == []


def test_missing_packages_are_named_before_anything_is_written(tmp_path, monkeypatch):
    export.write(tmp_path / "ours", made("BertModel"))
    monkeypatch.setattr(onnx, "_PACKAGES", ("not_there",))
    with pytest.raises(UserError, match="ONNX needs the packages not_there"):
        convert.run(tmp_path / "ours", tmp_path / "new" / "hf", quantized=True)
    assert not (tmp_path / "new").exists()
