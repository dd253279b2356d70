"""The documentation: commands load, the tour prints what it shows, links lead somewhere, lines fit the page."""

import contextlib
import importlib.util
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import ml_collections
import pytest

from bertjax.config import config_file
from bertjax.config.config import from_dict, to_dict
from bertjax.data import sources
from bertjax.interop import huggingface
from bertjax.objectives.distill.losses.layers import MappedLoss
from bertjax.objectives.distill.replacing import Replacing
from bertjax.training.stages import warmup_steps
from tests import labeled_files
from tests.interop import models
from tests.objectives import example
from tests.serving import files

ROOT = Path(__file__).parents[1]
GENERATED = ROOT / "docs" / "generated"  # by the build of the site
DOCS = tuple(sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent != GENERATED))
READMES = tuple(ROOT / folder / "README.md" for folder in ("benchmarks", "launch", "launch/kaggle", "lessons"))
PAGES = (*sorted(ROOT.glob("*.md")), *READMES, *DOCS)
WITH_COMMANDS = (ROOT / "README.md", *DOCS, *sorted((ROOT / "configs").rglob("*.py")))
COMMAND = re.compile(r"python -m bertjax(?:\.train| (?:train|prepare|compile)) [^`\n#]*")
COMMANDS = sorted(
    {match[0] for page in WITH_COMMANDS for match in COMMAND.finditer(page.read_text().replace("\\\n", " "))}
)
TOUR = tuple(ROOT / "docs" / name for name in ("start.md", "start_step.md"))
CODE = re.compile(r"```.*?```", re.DOTALL)
# A block of a page that is a file of the reader's own package.
MODULE = re.compile(r"```python\n# (mylab/\w+\.py)\n(.*?)```", re.DOTALL)
IMPORT = re.compile(r"^from (bertjax[\w.]*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[\w+\]: (\S+)", re.MULTILINE)
FOLDERS = ("bertjax", "tests", "configs", "launch", "benchmarks", "docs", "lessons")
MENTION = re.compile(rf"[`\s]((?:{'|'.join(FOLDERS)})/[\w/.-]+)")
NAME = re.compile(r"`(?:[\w/]+/)?(\w+\.py)[:\w]*`")
# Files that the pages mention and that belong to the reader or to other repositories.
ELSEWHERE = ("launch/pod.env", "create_pretraining_data.py", "run_qa.py", "replaced.py", "annealed.py", "norms.py")
LONGEST_LINE = 120


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page that lead into the repository."""
    matches = LINK.finditer(CODE.sub("", page.read_text()))
    targets = [match[1] or match[2] for match in matches]
    return [target for target in targets if not target.startswith(("http://", "https://"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_there_are_commands():
    assert any("bertjax.train" in command for command in COMMANDS)
    assert any("bertjax prepare" in command for command in COMMANDS)
    assert any("bertjax compile" in command for command in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_configuration_of_a_shown_command_loads(command, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    # A model of BERT's size, with longer examples.
    settings = to_dict(config_file.load("configs/bert_base.py", ["model.max_positions=1024"]))
    manifest = {"format_version": 1, "vocab_size": 30_000, "config": settings, "numbers": {}}
    (tmp_path / "bertjax.json").write_text(json.dumps(manifest))
    command = re.sub(
        r"(--config\.init_from=|(?:adapt|distilbert|mobilebert|small_vocabulary)\.py:)\S+", rf"\g<1>{tmp_path}", command
    )
    example.write(tmp_path)
    for page in DOCS:
        for name, code in MODULE.findall(page.read_text()):
            (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    flags = [flag for flag in shlex.split(command)[3:] if flag.startswith("--config")]
    [path] = [flag.removeprefix("--config=") for flag in flags if flag.startswith("--config=")]
    config = config_file.load(path, [flag.removeprefix("--config.") for flag in flags if flag.startswith("--config.")])
    teacher = from_dict(settings).model
    for task in config.tasks.values():
        for loss in getattr(task.objective, "losses", {}).values():
            if isinstance(loss, MappedLoss):
                loss.pairs(config.model, teacher)
        assert not (isinstance(task.objective, Replacing) and teacher.layers % config.model.layers)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_to_files_and_headings(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        linked = Path(os.path.normpath(page.parent / path)) if path else page
        assert linked.exists(), f"{relative(page)} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{relative(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_mentioned_files_exist(page):
    text = page.read_text()
    names = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    paths = [mention.rstrip(".") for mention in MENTION.findall(text)]
    missing = [path for path in paths if not (ROOT / path).exists()]
    missing += [name for name in NAME.findall(text) if name not in names]
    assert [mention for mention in missing if mention not in ELSEWHERE] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_lines_fit_the_page(page):
    lines = enumerate(page.read_text().splitlines(), 1)
    long = [f"{relative(page)}:{number}" for number, line in lines if len(line) > LONGEST_LINE]
    assert not long


def test_shown_code_imports_what_exists():
    shown = [match for page in PAGES for match in IMPORT.finditer(page.read_text())]
    assert len(shown) > 20
    for module, names in (match.groups() for match in shown):
        for name in names.split(", "):
            name = name.partition(" as ")[0]
            found = importlib.import_module(module)
            assert hasattr(found, name) or importlib.import_module(f"{module}.{name}"), f"{module} has no {name}"


def test_shown_settings_are_a_configuration():
    pages = [
        (ROOT / "docs" / "guides" / f"{name}.md").read_text() for name in ("pretraining", "schedules", "optimizers")
    ]
    blocks = [
        code for page in pages for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "config." in code
    ]
    configs = [ml_collections.ConfigDict() for _ in blocks]
    for code, config in zip(blocks, configs, strict=True):
        exec(code, {"config": config})
        from_dict(config.to_dict())
    [ramp] = [config for config in configs if "warmup_tokens" in config.get("optimizer", {})]
    stages = from_dict(ramp.to_dict()).stages
    assert sum(stage.steps * stage.batch * stage.seq_len for stage in stages[:-1]) == pytest.approx(50e9, rel=1e-4)
    assert warmup_steps(stages, from_dict(ramp.to_dict()).optimizer) == round(3e9 / (768 * 512))


def test_a_list_of_texts_is_shown_as_a_shell_needs_it():
    """A shell removes the double quotes of a flag that is not in single quotes."""
    bare = [
        f"{page.name}: {flag}"
        for page in WITH_COMMANDS
        for flag in re.findall(r"(?<!')--config\S*=\[\S*", page.read_text())
    ]
    assert bare and not [flag for flag in bare if '"' in flag]


def test_every_page_is_reached_from_readme():
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page not in reached:
            reached.add(page)
            targets = (page.parent / target.partition("#")[0] for target in links(page))
            queue += [Path(os.path.normpath(target)) for target in targets if target.suffix == ".md"]
    assert [relative(page) for page in PAGES if page not in reached] == []


def test_the_site_has_the_tables_that_its_pages_link_to(monkeypatch):
    """A link to a .csv file stays, and Sphinx then copies the file as a download."""
    monkeypatch.setattr("sys.path", [*sys.path])  # conf.py changes it
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    tables = [(page, link) for page in DOCS for link in links(page) if link.endswith(".csv")]
    assert tables and [conf["_target"](page, page, link) for page, link in tables] == [link for _, link in tables]


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.slow
def test_the_tour_prints_what_it_shows(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path))  # token stores are in ~/.cache
    scope: dict = {}
    blocks = re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", "".join(page.read_text() for page in TOUR), re.DOTALL
    )
    assert len(blocks) > 12
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, scope)
        assert printed.getvalue() == expected, code


def smoke(line: str) -> str:
    """Return a command of README with a small recipe and the Python of the tests."""
    line = re.sub(r"(configs/[\w/]+\.py)(?!:)(?=\s|$)", r"\1:smoke", line.replace("--minutes=30 ", ""))
    return re.sub(r"(?:\.venv/bin/)?python -m", f"{shlex.quote(sys.executable)} -m", line)


def serve(command: str, **options) -> None:
    """Start a server, see that it answers, and stop it."""
    with subprocess.Popen(f"exec {command} --port=0", stdout=subprocess.PIPE, text=True, **options) as server:
        address = next(line for line in server.stdout if line.startswith("http"))
        request = urllib.request.Request(address.strip(), b'{"texts": ["a text"]}')
        assert json.load(urllib.request.urlopen(request, timeout=60))["predictions"]
        server.terminate()


@pytest.mark.slow
def test_the_commands_of_readme_work_in_the_order_in_which_they_stand(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "my" / "texts").mkdir(parents=True)
    documents = (document.text for document, _ in zip(sources.documents("embedded:en", "text"), range(400)))
    (tmp_path / "my" / "texts" / "mine.txt").write_text("\n\n".join(documents))
    huggingface.write(tmp_path / "downloads" / "bert", models.make(frozenset({"mlm"}), models.trained()))
    rows = [f"{row['sentence']},{row['label']}" for row in labeled_files.sentences(120)]
    (tmp_path / "messages.csv").write_text("\n".join(["message,category", *rows]) + "\n")
    [(module, code)] = MODULE.findall((ROOT / "docs" / "guides" / "adding_an_objective.md").read_text())
    (tmp_path / "mylab").mkdir()
    (tmp_path / module).write_text(code)
    missing = {"compile": not importlib.util.find_spec("libtpu"), "onnx": bool(files.MISSING)}
    environment = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{tmp_path}", "JAX_PLATFORMS": "cpu"}
    options = {"shell": True, "cwd": tmp_path, "env": environment}
    typed = 0
    for block in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        for line in re.split(r"\n| && ", block.replace("\\\n", "").strip()):
            if "bertjax" not in line or any(word in line and is_missing for word, is_missing in missing.items()):
                continue
            if " serve " in line:
                serve(smoke(line), **options)
            else:
                done = subprocess.run(smoke(line), capture_output=True, text=True, check=False, **options)
                assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
            typed += 1
    assert typed >= 7


def test_the_list_of_files_to_read_is_counted():
    """The default training step is at most 13 files and 1,900 lines."""
    page = TOUR[-1].read_text()
    rows = re.findall(r"^\| \[`[^`]+`\]\(\.\./(bertjax/[^)]+)\) \| (\d+) \|", page, re.MULTILINE)
    counted = {path: len((ROOT / path).read_text().splitlines()) for path, _ in rows}
    assert {path: int(lines) for path, lines in rows} == counted
    assert f"{len(rows)} files with {sum(counted.values()):,} lines" in page
    assert len(rows) <= 13 and sum(counted.values()) <= 1900
