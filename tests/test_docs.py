"""Every command that the documentation shows is one that the command lines understand."""

import json
import re
import shlex
from pathlib import Path

import pytest

from bertjax import config_file
from tests.objectives import example

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "configs").rglob("*.py")))
SHOWN = re.compile(r"python -m bertjax\.(?:train|prepare|compile) [^`\n#]*")
COMMANDS = sorted({match[0] for page in PAGES for match in SHOWN.finditer(page.read_text().replace("\\\n", " "))})


def test_there_are_commands():
    assert any("bertjax.train" in command for command in COMMANDS)
    assert any("bertjax.prepare" in command for command in COMMANDS)
    assert any("bertjax.compile" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_configuration_of_a_shown_command_loads(command, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    # A model of BERT's size, with longer examples.
    (tmp_path / "bertjax.json").write_text(json.dumps({"config": {"model": {"max_positions": 1024}}}))
    command = re.sub(r"(--config\.init_from=|(?:adapt|distilbert)\.py:)\S+", rf"\g<1>{tmp_path}", command)
    example.write(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    flags = [flag for flag in shlex.split(command)[3:] if flag.startswith("--config")]
    [path] = [flag.removeprefix("--config=") for flag in flags if flag.startswith("--config=")]
    config_file.load(path, [flag.removeprefix("--config.") for flag in flags if flag.startswith("--config.")])
