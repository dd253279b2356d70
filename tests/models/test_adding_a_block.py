"""The page on adding a block: its two blocks are trained, exported and opened as they are printed."""

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.cli import compress, extend, predict
from bertjax.config import config_file
from bertjax.config.opening import SavedModel
from bertjax.models.bert import BertEmbeddings
from bertjax.models.encoder import Encoder
from bertjax.objectives.distill.teacher import Teacher
from bertjax.runtime import command_line
from bertjax.runtime.errors import Untrusted
from tests import batches, runs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "adding_a_block.md"
CODES = dict(re.findall(r"```python\n# (mylab/\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
COMMANDS = re.findall(r"python -m bertjax.train --config=configs/(\S+) \\\n(.*?)```", PAGE.read_text(), re.DOTALL)
KINDS = {"llama": "mylab.llama:LlamaBlock", "distances": "mylab.distances:DistanceBlock"}
NO_POSITIONS = BertEmbeddings(positions="none")


def forget() -> None:
    """As in a new process, which has not imported the modules."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def lab(tmp_path_factory):
    """The folder of the page's modules, on the path of Python."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "mylab").mkdir()
    for name, code in CODES.items():
        (folder / name).write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
    forget()


@pytest.fixture(scope="module")
def few_steps(flags) -> list[str]:
    """Flags of a short run on the corpus of the tests."""
    steps = ["stages.0.steps=4", "optimizer.warmup_steps=1", "eval.every=4", "runtime.save_every=2"]
    small = ["data.tokenizer.vocab_size=400", "data.heldout_share=0.2", "eval.rows=16"]
    return [*flags[1:], *(f"--config.{setting}" for setting in (*steps, *small))]


@pytest.fixture(scope="module", params=["llama", pytest.param("distances", marks=pytest.mark.slow)])
def trained(request, few_steps, tmp_path_factory) -> tuple[str, list[str], Path]:
    """The name of an example, and the flags and the workdir of a short run with the command of the page."""
    [(recipe, text)] = [command for command in COMMANDS if KINDS[request.param] in command[1]]
    workdir = tmp_path_factory.mktemp("trained") / "run"
    flags = [f"--config={ROOT}/configs/{recipe}", *text.replace("\\\n", " ").split(), *few_steps]
    assert runs.call(*flags, f"--workdir={workdir}") == 0
    return request.param, flags, workdir


def block(name: str):
    module, _, kind = KINDS[name].partition(":")
    return getattr(importlib.import_module(module), kind)


def config_of(name: str):
    return dataclasses.replace(batches.ENCODER, block=block(name)(), embeddings=NO_POSITIONS)


def test_they_are_short():
    lines = {name: len(code.strip().splitlines()) for name, code in CODES.items()}
    assert 20 < lines["mylab/llama.py"] <= 80 and 20 < lines["mylab/distances.py"] <= 60


@pytest.mark.slow
def test_the_model_is_opened_with_trust_only(trained, tmp_path, capsys, caplog):
    name, _, workdir = trained
    export, tokens_BT = workdir / "export", jnp.asarray([[5, 9, 17, 30, 6]])
    forget()
    refused = f"model.block.kind='{KINDS[name]}' asks to import the module 'mylab.{name}', which runs its code"
    readers = {
        "load": lambda: bertjax.load(export),
        "load a checkpoint": lambda: bertjax.load(workdir),
        "predictor": lambda: bertjax.predictor(export),
        "teacher": lambda: Teacher.read(export),
        "extend": lambda: extend.run(export, tmp_path / "extended", max_positions=64),
        "compress": lambda: compress.run(str(export), tmp_path / "small", compress.Cuts(layers=(0,))),
    }
    for reader, read in readers.items():
        with pytest.raises(Untrusted) as caught:
            read()
        assert str(caught.value).startswith(refused) and "\n" not in str(caught.value), reader
    assert command_line.exit_code_of(lambda: predict.main([str(export), "Abc [MASK]."])) == 2
    assert capsys.readouterr().err.startswith(f"error: {refused}")
    assert f"mylab.{name}" not in sys.modules

    assert predict.main([str(export), "Abc [MASK].", "--trust-code"]) == 0
    forget()
    module, params, _ = bertjax.load(workdir, trust_code=True)
    exported = bertjax.load(export)  # the module is imported now, so nothing runs
    hidden = [np.asarray(m.apply({"params": p}, tokens_BT).hidden) for m, p, _ in (exported, (module, params, None))]
    np.testing.assert_allclose(*hidden, atol=1e-5)  # the run unrolls its layers, the export does not
    compress.run(str(export), tmp_path / "small", compress.Cuts(layers=(0,)))
    assert bertjax.load(tmp_path / "small").module.config.layers == 1
    assert not caplog.text


@pytest.mark.slow
def test_an_architecture_is_copied_only_if_the_user_names_its_code(trained):
    name, _, workdir = trained
    settings = ["model.preset=init_from", f"init_from={workdir / 'export'}", "optimizer.warmup_steps=1"]
    forget()
    with pytest.raises(Untrusted, match=f"^init_from has .* trust it, add --config.model.block.kind={KINDS[name]}$"):
        config_file.load(f"{ROOT}/configs/tiny.py:smoke", settings)
    assert f"mylab.{name}" not in sys.modules
    config = config_file.load(f"{ROOT}/configs/tiny.py:smoke", [*settings, f"model.block.kind={KINDS[name]}"])
    assert config.model.block == SavedModel(workdir / "export").export.encoder.block


@pytest.mark.slow
def test_a_changed_file_is_noticed(trained, lab, capsys, caplog):
    name, flags, workdir = trained
    path = lab / "mylab" / f"{name}.py"
    code = path.read_text()
    try:
        path.write_text(code + "# changed\n")
        assert runs.call(*flags, f"--workdir={workdir}") == 2
        assert re.search(rf"mylab.{name} \(sha256\): \w+ -> \w+\); restore that file", capsys.readouterr().err)
        bertjax.load(workdir / "export", trust_code=True)
        assert f"mylab.{name} has changed since the model was trained" in caplog.text
    finally:
        path.write_text(code)
    assert runs.call(*flags, f"--workdir={workdir}") == 0


@pytest.mark.parametrize("name", KINDS)
def test_examples_are_apart_and_the_last_layer_computes_what_is_read(name):
    encoder, batch = Encoder(config_of(name)), batches.make(rows=2)
    tokens_BT = jnp.asarray(batch["tokens_BT"])
    examples_BT = jnp.where(jnp.arange(16) < 9, 1, 2) * jnp.ones((2, 1), int)
    positions_BT = jnp.where(jnp.arange(16) < 9, jnp.arange(16), jnp.arange(16) - 9) * jnp.ones((2, 1), int)
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), tokens_BT))
    params = batches.filled(shapes["params"])

    def hidden(tokens_BT, **options):
        arrays = {"positions_BT": positions_BT, "examples_BT": examples_BT}
        return np.asarray(encoder.apply({"params": params}, tokens_BT, **arrays, **options).hidden)

    whole = hidden(tokens_BT)
    np.testing.assert_array_equal(hidden(tokens_BT.at[:, 12].set(50))[:, :9], whole[:, :9])
    read_BK = jnp.asarray([[3, 11], [8, 9]])
    expected = np.take_along_axis(whole, np.asarray(read_BK)[..., None], axis=1)
    np.testing.assert_allclose(hidden(tokens_BT, read_BK=read_BK), expected, rtol=1e-5, atol=1e-5)
    # The order matters, although words have no position embeddings.
    assert np.abs(hidden(tokens_BT[:, ::-1])[:, 0] - whole[:, 0]).max() > 1e-3


@pytest.mark.parametrize(
    "before, after, message",
    [
        ("sums + dropout(output", "rums + dropout(output", r"fails: .*:\d+ in __call__: NameError: name 'rums'"),
        ("sums = queries.hidden_BQD", "pass", r"fails: .*broken.py:\d+ in __call__: TypeError: .*; correct it$"),
        ("return sums +", "return hidden_BTD if queries else sums +", r"returns float32 \[2, 8, 32\] for 3 tokens"),
        ("return sums +", "return None and sums +", r"returns NoneType for 8 tokens or queries, and the next"),
        ("(self, inputs):", "(self, inputs, key):", r"in a call with LayerInputs fails: TypeError: missing a required"),
        (
            "[None] * 3 if key is None else split(key, 3)",
            "split(key, 3)",
            r"fails: .*broken.py:\d+ in __call__: .*; correct it$",  # an evaluation has no dropout
        ),
        ("feedforward=3)", "feedforward=3 / 0)", r"fails: .*broken.py:\d+ in products: ZeroDivisionError: .*; correct"),
    ],
)
def test_an_error_in_a_layer_is_one_line_before_a_corpus_is_prepared(refused, lab, before, after, message):
    code = CODES["mylab/llama.py"]
    assert before in code
    (lab / "mylab" / "broken.py").write_text(code.replace(before, after))
    importlib.invalidate_caches()
    sys.modules.pop("mylab.broken", None)
    line = refused("--config.model.block.kind=mylab.broken:LlamaBlock", "--config.model.embeddings.positions=none")
    assert re.search(f"^error: model.block.kind='mylab.broken:LlamaBlock' {message}", line), line
