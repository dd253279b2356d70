"""A folder that names a module as code: no entry point imports it unless the user trusts it."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bertjax
from bertjax.cli import (
    analyze,
    augment,
    compare,
    compress,
    convert,
    evaluate,
    extend,
    merge,
    predict,
    probe,
    push,
    report,
)
from bertjax.config import config_file, registry
from bertjax.config.opening import SavedModel
from bertjax.objectives.distill.teacher import Teacher
from bertjax.runtime import command_line
from bertjax.runtime.errors import Untrusted, UserError
from bertjax.training.results import rescore
from bertjax.training.run.record import check_identity, read_record
from bertjax.training.run.workdir import Workdir

_WITNESS = "the module was imported"
_EVIL = f"""
from pathlib import Path

from bertjax.data.formats.pairs import SegmentPairs
from bertjax.objectives.pretraining.sentence_pairs import BERT

Path(__file__).with_name("{_WITNESS}").touch()


class Objective(BERT):
    pass


class Examples(SegmentPairs):
    kind = "downloaded.evil:Examples"
"""
_TINY = Path(__file__).parents[1] / "configs" / "tiny.py"
_ADAPT = Path(__file__).parents[1] / "configs" / "adapt.py"
_LINE = "{setting}.kind='downloaded.evil:{name}' asks to import the module 'downloaded.evil', which runs its code"


@pytest.fixture
def downloaded(undisturbed, tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Return a function from `objective` or `examples` to a run whose record and export name a module for it.

    The module is in the folder of the run, which Python finds from the current folder.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "downloaded"
    shutil.copytree(undisturbed, folder)
    (folder / "evil.py").write_text(_EVIL)

    def name_module(setting: str) -> Path:
        for path in (folder / "config.json", folder / "export" / "bertjax.json"):
            record = json.loads(path.read_text())
            for half in {"config", "settings", "identity"} & record.keys():
                for task in record[half]["tasks"].values():
                    task[setting]["kind"] = f"downloaded.evil:{setting.capitalize()}"
            path.write_text(json.dumps(record))
        return folder

    yield name_module
    for name in ("downloaded", "downloaded.evil"):
        sys.modules.pop(name, None)


def _teacher(run: Path) -> None:
    Teacher.read(run / "export")


def _init_from(run: Path) -> None:
    flags = ["model.preset=init_from", "optimizer.warmup_steps=1", "stages.0.seq_len=16"]
    config_file.load(f"{_TINY}:smoke", [f"init_from={run / 'export'}", *flags])
    model = SavedModel(run / "export")
    assert model.tokenizer and model.export


# Functions that need only the encoder, its heads and the tokenizer.
_OF_THE_ENCODER = {
    "load": lambda run: bertjax.load(run / "export"),
    "load a checkpoint": bertjax.load,
    "fill": lambda run: predict.main([str(run / "export"), "Abc [MASK].", "--do=fill"]),
    "embed": lambda run: predict.main([str(run), "Abc.", "--do=embed"]),
    "convert": lambda run: convert.run(run / "export", "hf"),
    "convert a checkpoint": lambda run: convert.run(run, "hf"),
    "extend": lambda run: extend.run(run / "export", "extended", max_positions=512),
    "merge": lambda run: merge.run([run / "export", run], "merged"),
    "teacher": _teacher,
    "init_from": _init_from,
}
# Functions that need the configuration.
_OF_THE_CONFIGURATION = {
    "config of an export": lambda run: SavedModel(run / "export").config,
    "config of a run": lambda run: SavedModel(run).config,
    "record": lambda run: read_record(Workdir.at(run)),
    "evaluate": lambda run: rescore.run(str(run / "export")),
    "evaluate a checkpoint": lambda run: rescore.run(str(run)),
    "adapt": lambda run: config_file.load(f"{_ADAPT}:{run / 'export'}", ["data.corpus=embedded:en"]),
}


@pytest.mark.parametrize("setting", ["objective", "examples"])
@pytest.mark.parametrize("use", _OF_THE_ENCODER.values(), ids=_OF_THE_ENCODER)
def test_what_needs_the_encoder_works_without_the_module(downloaded, use, setting):
    run = downloaded(setting)
    use(run)
    assert "downloaded.evil" not in sys.modules and not (run / _WITNESS).exists()


@pytest.mark.parametrize("setting", ["objective", "examples"])
@pytest.mark.parametrize("use", _OF_THE_CONFIGURATION.values(), ids=_OF_THE_CONFIGURATION)
def test_what_needs_the_configuration_names_module_and_flag(downloaded, use, setting):
    run = downloaded(setting)
    with pytest.raises(Untrusted) as caught:
        use(run)
    assert str(caught.value).startswith(_LINE.format(setting=setting, name=setting.capitalize()))
    assert "--trust-code" in str(caught.value) and "\n" not in str(caught.value)
    assert "downloaded.evil" not in sys.modules and not (run / _WITNESS).exists()


@pytest.mark.parametrize("setting", ["objective", "examples"])
def test_a_command_ends_in_one_line(downloaded, capsys, setting):
    run = downloaded(setting)
    assert command_line.exit_code_of(lambda: evaluate.main([str(run)])) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: " + _LINE.format(setting=setting, name=setting.capitalize()))
    assert error.count("\n") == 1 and not (run / _WITNESS).exists()


def test_a_run_of_another_class_is_refused_for_its_settings(downloaded, undisturbed):
    """`train` has no such flag: what its own command line names is imported."""
    run = downloaded("objective")
    record = read_record(Workdir.at(undisturbed))
    with pytest.raises(
        UserError, match="holds a run with other settings .*kind: 'downloaded.evil:Objective' -> 'bert'"
    ):
        check_identity(Workdir.at(run), record, longer=False)
    assert not (run / _WITNESS).exists()


def test_the_error_names_the_commands_that_have_the_flag(capsys):
    with pytest.raises(UserError, match="in Python pass trust_code=True, or import the module first") as caught:
        registry.module_of("objective.kind='no.such:X'", "no.such", trust_code=False)
    for module in (analyze, augment, compare, compress, convert, evaluate, predict, probe, push, report):
        with pytest.raises(SystemExit):
            module.main(["--help"])
        name = module.__name__.rpartition(".")[2]
        assert ("--trust-code" in capsys.readouterr().out) == (f" {name}" in str(caught.value)), name
