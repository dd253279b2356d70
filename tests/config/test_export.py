"""The export folder: written and read, damaged, of another format, and opened with few imports."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax.config import export
from bertjax.config.config import from_dict, to_dict
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.interop import huggingface
from bertjax.models import vocabulary
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.runtime.errors import UserError
from tests import batches


@pytest.fixture(scope="module")
def original(store) -> export.Export:
    config = from_dict(
        {
            "model": {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 16},
            "stages": [{"seq_len": 16}],
        }
    )
    encoder = config.encoder(store.tokenizer.vocab_size, "cpu")
    shapes = batches.param_shapes(BERT(), encoder)
    return export.Export(to_dict(config), encoder, batches.filled(shapes), store.tokenizer, {"eval": {"mlm_loss": 1.5}})


@pytest.fixture
def folder(original, tmp_path) -> Path:
    export.write(tmp_path / "export", original)
    return tmp_path / "export"


def test_an_export_is_read_as_it_was_written(original, folder):
    read = export.read(folder)
    assert (read.settings, read.encoder, read.numbers) == (original.settings, original.encoder, original.numbers)
    assert read.tokenizer.fingerprint == original.tokenizer.fingerprint
    rows = original.encoder.vocab_size
    assert original.encoder.padded_vocab_size > rows  # otherwise nothing is cut

    def compare(path, written, read):
        assert written.shape == read.shape and read.dtype == np.float32
        real = slice(rows) if path[-1].key.startswith("word") else slice(None)
        np.testing.assert_array_equal(written[real], read[real])

    jax.tree_util.tree_map_with_path(compare, original.params, read.params)


@pytest.mark.parametrize("write, seal", [(export.write, "bertjax.json"), (huggingface.write, "config.json")])
def test_all_files_are_on_disk_before_the_one_that_vouches_for_them(original, tmp_path, monkeypatch, write, seal):
    flushed, fsync = [], os.fsync

    def flush(number):
        flushed.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    monkeypatch.setattr(os, "fsync", flush)
    write(tmp_path / "model", original)
    (sealed,) = (index for index, path in enumerate(flushed) if path.name.startswith(f".{seal}."))
    others = {path for path in (tmp_path / "model").rglob("*") if path.is_file() and path.name != seal}
    assert len(others) > 1 and others <= set(flushed[:sealed])


@pytest.mark.parametrize("name", ["bertjax.json", "model.safetensors"])
def test_a_missing_file_is_reported(folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"^{folder} is not an export: {name} is missing$"):
        export.read(folder)


_MOST_MODULES = 50


def test_opening_an_export_imports_few_modules_and_starts_no_backend(folder):
    script = (
        "import sys, bertjax\n"
        "module, params, tokenizer = bertjax.load(sys.argv[1])\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] == 'bertjax'))\n"
        "heavy = {'grain', 'orbax', 'tensorflow_datasets', 'tensorflow', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "hidden = module.apply({'params': params}, tokenizer.rows(['Abc abc.'], 8)[0]).hidden\n"
        "assert hidden.shape == (1, 8, 16)\n"
        "assert xla_bridge.backends_are_initialized()\n"
    )
    command = [sys.executable, "-c", script, str(folder)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    modules = ended.stdout.split()
    assert len(modules) <= _MOST_MODULES, modules
    assert {name.split(".")[1] for name in modules if "." in name} == {"config", "data", "models", "runtime"}


@pytest.fixture
def foreign(folder, tmp_path, monkeypatch) -> Path:
    """The same export, of an objective and of examples whose modules must not be imported."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    manifest = json.loads((folder / "bertjax.json").read_text())
    manifest["config"]["tasks"]["bert"]["objective"] = {"kind": "evil:X", "share": 0.5}
    (folder / "bertjax.json").write_text(json.dumps(manifest))
    return folder


def test_opening_an_encoder_imports_no_class_that_the_export_names(foreign, original):
    module, params, tokenizer = bertjax.load(foreign)
    assert module.config == original.encoder and tokenizer.fingerprint == original.tokenizer.fingerprint
    np.testing.assert_array_equal(params["pooler"]["kernel"], original.params["encoder"]["pooler"]["kernel"])
    model = export.read(foreign)
    assert model.encoder == original.encoder and set(model.params) == {"encoder", "heads"}
    assert "evil" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, choices, library", [("char", {"byte_fallback": False}, "sentencepiece"), ("wordpiece", {}, "tokenizers")]
)
def test_an_export_needs_the_library_of_its_own_tokenizer(original, tmp_path, kind, choices, library):
    words = ["abc abd abe abf", "bcd bce bcf bcg"] * 9
    trained = tokenizer.train(words, TokenizerConfig(kind=kind, vocab_size=24, **choices))
    encoder = dataclasses.replace(original.encoder, vocab_size=trained.vocab_size)
    params = vocabulary.cut(original.params, encoder)
    export.write(tmp_path / "export", original._replace(tokenizer=trained, encoder=encoder, params=params))
    script = (
        "import sys, bertjax\n"
        "rows, _ = bertjax.load(sys.argv[1]).tokenizer.rows(['abc bcd'], 8)\n"
        "print(rows.tolist(), *sorted({'sentencepiece', 'tokenizers'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "export")]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.stdout.strip() == f"{trained.rows(['abc bcd'], 8)[0].tolist()} {library}", ended.stderr
