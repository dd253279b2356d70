"""Imports point one way: commands -> inference, interop, training -> objectives -> models, data."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bertjax"
FILES = sorted(PACKAGE.rglob("*.py"))

# Who may import whom, from the ground up: each entry names entries above it only. A module belongs to the longest entry
# that it starts with, and modules of one entry may import each other. A new module needs an entry.
ALLOWED = {
    "analysis.page": "",
    "errors": "",
    "storage": "errors",
    "locks": "errors storage",
    "untrusted": "errors storage",
    "user_code": "",
    "registry": "errors user_code",
    "typed": "errors",
    "cli": "errors storage",
    "mesh": "",
    "nano": "",
    "resampling": "",
    "data": "errors storage locks untrusted registry",  # knows no model
    "models": "errors registry",  # knows no data
    "importance": "errors untrusted models",
    "hardware": "errors models",
    "hardware.check": "errors cli hardware",
    "int8": "",
    "private_paths": "data",
    "export": "errors storage untrusted int8 private_paths typed data models",
    "objectives": "errors registry mesh data models export",
    "training.schedules": "errors registry",
    "training.config": "errors models training.schedules",
    "training.lora": "errors training.config",
    "training.pruning": "errors training.config",
    "training.quantization": "errors int8 models",
    "training.model_params": "training.lora training.pruning training.quantization",
    "training.stages": "data training.config training.schedules",
    "training.depths": "errors models training.config",
    "row_lengths": "errors typed data models training.config",
    "task": "errors data objectives",
    "config": "errors registry row_lengths task typed data models objectives "
    "training.config training.depths training.lora training.pruning training.quantization training.schedules "
    "training.stages",
    "training.param_paths": "errors",
    "training.parallel": "errors cli mesh data models training.config training.param_paths",
    "training.state": "training.parallel",
    "training.run": "errors storage locks untrusted registry typed data hardware export config "
    "training.config training.lora training.model_params training.parallel training.param_paths training.pruning "
    "training.quantization training.stages training.state",
    "opening": "errors untrusted private_paths data models export config training.run",
    "config_file": "errors cli row_lengths typed models config opening",
    "training": "errors user_code storage mesh typed data models hardware export objectives config opening "
    "training.config training.lora training.model_params training.parallel training.param_paths training.pruning "
    "training.quantization training.run "
    "training.schedules training.stages training.state",
    "forecast": "errors hardware data models config training training.parallel training.stages",
    "inference": "errors storage data models objectives export config",
    "interop": "errors storage untrusted private_paths data models export config training.config",
    "comparison": "errors storage resampling typed config training training.run",
    "analysis": "errors storage resampling registry typed data models hardware export objectives config opening "
    "config_file training.config training.run training.parallel training inference interop comparison analysis.page "
    "importance",
    "train": "errors storage cli data hardware export config config_file interop training training.parallel "
    "training.run",
    "prepare": "errors storage cli data config config_file training",
    "evaluate": "errors storage cli data hardware inference objectives config opening training training.config "
    "training.run",
    "predict": "errors storage cli data hardware inference opening",
    "compile": "errors cli hardware config config_file forecast training",
    "convert": "errors storage cli hardware inference interop export opening",
    "push": "errors storage cli hardware interop opening training.run",
    "extend": "errors storage cli data models hardware interop export opening",
    "augment": "errors storage cli data hardware inference opening",
    "compress": "errors storage cli data models hardware interop export importance opening evaluate",
    "compare": "errors cli comparison",
    "status": "errors storage cli training.run",
    "analyze": "errors cli hardware inference analysis",
    "report": "errors storage cli hardware data training.run analysis analysis.page",
    "probe": "errors cli data hardware inference training analysis",
    "": "inference opening",  # bertjax/__init__.py
}


def module_of(path: Path) -> str:
    """The name of a module within the package, `data.store` for bertjax/data/store.py."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, inside of functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(module: str) -> set[str]:
    """Return the modules of bertjax that a module imports; a name imported from a module counts as that module."""
    names = (name.removeprefix("bertjax.") for name in NAMES[module] if name.startswith("bertjax."))
    return {name if name in MODULES else name.rpartition(".")[0] for name in names} - {module}


MODULES = {module_of(path): path for path in FILES}
NAMES = {module: imported(path) for module, path in MODULES.items()}
IMPORTS = {module: own_imports(module) for module in MODULES}


def entry_of(module: str) -> str:
    """The entry of the table that a module belongs to."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in ALLOWED), "none")


def test_the_table_points_one_way():
    entries = list(ALLOWED)
    for index, entry in enumerate(entries):
        assert set(ALLOWED[entry].split()) <= set(entries[:index]), entry
    assert {entry_of(module) for module in MODULES if module} == set(entries) - {""}, "an entry without modules"


def test_modules_import_what_the_table_allows():
    assert [module for module in MODULES if module and entry_of(module) == "none"] == [], "modules without an entry"
    refused = {}
    for module, names in IMPORTS.items():
        entry = entry_of(module) if module else ""
        if wrong := {name for name in names if entry_of(name) not in {*ALLOWED[entry].split(), entry}}:
            refused[module] = wrong
    assert refused == {}


def test_there_are_no_circles_between_modules():
    """Imports within functions included."""
    remaining = dict(IMPORTS)
    while leaves := [module for module, imports in remaining.items() if not imports & remaining.keys()]:
        for module in leaves:
            del remaining[module]
    assert sorted(remaining) == [], "these modules import each other, or import ones that do"


def test_a_package_describes_its_contents():
    packages = [path for path in FILES if path.name == "__init__.py"]
    assert [path for path in packages if not (ast.get_docstring(ast.parse(path.read_text())) or "").strip()] == []


def users_of(*libraries: str) -> set[str]:
    """The files that import one of these libraries."""
    return {
        str(MODULES[module].relative_to(PACKAGE))
        for module, names in NAMES.items()
        if {name.split(".")[0] for name in names} & {*libraries}
    }


def test_libraries_of_one_file():
    only = {
        "grain": "data/pipeline.py",
        "orbax": "training/run/checkpoint.py",
        "sentencepiece": "data/tokenizer/sentencepiece.py",
        "tokenizers": "data/tokenizer/tokenizers_library.py",
        "tensorflow_datasets": "data/sources/tfds.py",
        "datasets": "data/sources/hub.py",
        "apache_beam": "data/preparation/beam.py",
        "conllu": "data/labeled/conllu.py",
    }
    assert {library: users_of(library) for library in only} == {library: {file} for library, file in only.items()}


def test_data_is_made_without_jax():
    """Workers that prepare batches must not start a backend."""
    assert [file for file in users_of("jax", "flax") if file.startswith("data/")] == []


def test_an_older_python_is_reported_in_one_line():
    program = "import sys; sys.version_info = (3, 10, 12); sys.version = '3.10.12 (main)'; import bertjax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: bertjax needs Python 3.11 or newer, this is 3.10.12; see README\n"
