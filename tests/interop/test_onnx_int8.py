"""ONNX files in int8: smaller, close to bertjax, and never half written."""

import pytest

from bertjax.cli import convert
from bertjax.config import export
from bertjax.inference.onnx import INPUTS
from bertjax.interop import onnx, onnx_int8
from bertjax.interop.outputs import reading_of
from bertjax.runtime.errors import RunFailed, UserError
from tests.interop.test_onnx import made, session_of, slow


@slow
def test_a_folder_of_transformers_with_the_file_that_browsers_look_for(tmp_path, capsys):
    import numpy as np
    import onnx as library

    export.write(tmp_path / "ours", made("BertForPreTraining"))
    flags = [f"--from={tmp_path / 'ours'}", f"--to={tmp_path / 'new' / 'hf'}", "--quantize=int8"]
    assert convert.main(flags) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "new" / "hf"
    assert [path.name for path in folder.parent.iterdir()] == ["hf"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "onnx"} <= {path.name for path in folder.iterdir()}
    assert [str(path.relative_to(folder)) for path in (folder / "onnx").iterdir()] == [str(onnx_int8.PLACE)]
    assert f"int8: {folder / onnx_int8.PLACE}" in printed and "of the outputs in int8" in printed
    nodes = library.load(folder / onnx_int8.PLACE).graph.node
    assert sum(node.op_type == "MatMulInteger" for node in nodes) >= 6 * 2  # the kernels of two layers
    session = session_of(folder / onnx_int8.PLACE)
    model = export.read(tmp_path / "ours")
    reading = reading_of(model)
    assert [node.name for node in session.get_outputs()] == list(reading.outputs)
    assert [(node.name, node.type) for node in session.get_inputs()] == [(n, "tensor(int64)") for n in INPUTS]
    for output, ours in onnx.outputs_and_ours(folder / onnx_int8.PLACE, model, reading):
        assert 0 < np.linalg.norm(output - ours) < 0.2 * np.linalg.norm(ours)
    # As the documentation says: the answer to a text depends on the text beside it.
    tokens_BT = model.tokenizer.rows(["abd ace", "bbe cfd aec"], seq_len=8)[0].astype(np.int64)
    both = dict(zip(INPUTS, (tokens_BT, tokens_BT * 0 + 1, tokens_BT * 0), strict=True))
    alone = {name: values[:1] for name, values in both.items()}
    assert np.abs(session.run(None, both)[0][0] - session.run(None, alone)[0][0]).max() > 1e-4


@slow
def test_a_file_with_other_outputs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_int8, "TOLERANCE", 0.0)
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
