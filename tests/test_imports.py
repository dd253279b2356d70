"""Imports point one way: commands -> inference, interop, training -> objectives -> models, data."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bertjax"
FILES = sorted(PACKAGE.rglob("*.py"))

# Who may import whom, from the ground up: each entry names entries above it only. A module belongs to the longest entry
# that it starts with, and modules of one entry may import each other. A new module needs an entry.
ALLOWED = {
    "nano": "",
    "runtime": "",  # errors, storage, locks, platform: imports nothing of the rest
    "analysis.page": "runtime",
    "config": "",  # a new module there needs an entry of its own
    "config.registry": "runtime",
    "config.typed": "runtime config.registry",
    "config.private_paths": "",
    "data": "runtime config.registry config.private_paths",  # knows no model
    "models": "runtime config.registry",  # knows no data
    "config.export": "runtime config.typed data models config.private_paths",
    "objectives": "runtime config.registry data models config.export",
    "training.schedules": "runtime config.registry",
    "training.schedule_kinds": "runtime training.schedules",
    "training.param_paths": "runtime models",
    "training.config": "runtime data models training.param_paths",
    "training.optim": "runtime config.registry training.schedules training.param_paths training.config",
    "training.lora": "runtime training.param_paths",
    "training.compression": "runtime models training.param_paths",
    "training.model_params": "models training.optim training.lora training.compression",
    "training.stages": "runtime data models training.schedules training.config training.optim",
    "config.row_lengths": "runtime config.typed data models training.config",
    "config.task": "runtime data models objectives training.config",
    "config.config": "runtime config.registry config.typed data models config.export objectives training.schedules "
    "training.config training.optim training.lora training.compression training.stages "
    "config.row_lengths config.task",
    "training.parallel": "runtime data models training.config training.param_paths",
    "training.state": "training.parallel",
    "training.run": "runtime config.registry config.typed data config.private_paths config.export training.config "
    "training.lora training.compression training.model_params training.stages "
    "config.config training.param_paths training.parallel training.state",
    "config.settings": "runtime config.registry config.typed config.config",
    "inference.records": "runtime data",
    "inference.base": "runtime data objectives inference.records",
    "inference.description": "runtime config.typed data",
    "inference.onnx": "runtime data objectives inference.records inference.base inference.description",
    "serving": "runtime data inference.onnx inference.base",  # ONNX files, without JAX
    "interop": "inference.onnx inference.description runtime data models config.private_paths config.export "
    "training.config config.config",
    "config.opening": "runtime data models config.private_paths config.export config.config training.run interop",
    "config.config_file": "runtime config.typed data models config.row_lengths config.config config.opening",
    "training": "runtime config.registry config.typed data models config.export objectives "
    "config.private_paths inference.records "
    "training.schedules training.config training.optim training.lora training.compression "
    "training.model_params training.stages config.config training.param_paths training.parallel training.state "
    "training.run config.opening",
    "forecast": "runtime data models training.stages config.config training.parallel training",
    "inference": "runtime data models config.export objectives config.config inference.records inference.base",
    "comparison": "runtime config.typed config.config training.run training",
    "analysis": "analysis.page runtime config.registry config.typed data models config.export objectives "
    "training.config config.config config.settings training.parallel training.run config.opening config.config_file "
    "training inference inference.records inference.base interop comparison",
    "cli": "analysis.page runtime data models config.private_paths config.export objectives training.config "
    "config.config config.settings training.optim training.compression training.parallel training.run config.opening "
    "config.config_file training forecast inference inference.records inference.base inference.description "
    "inference.onnx serving interop comparison analysis",
    "": "config.opening inference",  # bertjax/__init__.py
    "__main__": "runtime training.parallel",  # imports the command that is run
    "train": "__main__",
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


def test_four_modules_are_at_the_top_level():
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", "nano", "train"}


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


@functools.cache
def names_in(module: str) -> set[str]:
    """The names that a module has: what it defines, sets and imports; none if there is no such module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())) if module in MODULES else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias)):
            names.add(getattr(node, "asname", None) or node.name.rpartition(".")[2])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_scripts_and_tests_import_what_there_is():
    """Also those that no other test starts, such as the check of a TPU."""
    missing = set()
    for folder in ("benchmarks", "configs", "docs", "launch", "lessons", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in imported(path):
                module, _, attribute = (own := name.removeprefix("bertjax.")).rpartition(".")
                if own != name and own not in MODULES and attribute not in names_in(module):
                    missing.add(f"{path.relative_to(ROOT)} imports {name}")
    assert missing == set()


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
        "tensorflow_datasets": "data/sources/published.py",
        "datasets": "data/sources/published.py",
        "apache_beam": "data/preparation/beam.py",
        "conllu": "data/labeled/tagged_files.py",
    }
    assert {library: users_of(library) for library in only} == {library: {file} for library, file in only.items()}


def test_data_is_made_without_jax():
    """Workers that prepare batches must not start a backend."""
    reached, users = {module for module in MODULES if module.startswith("data.")}, users_of("jax", "flax")
    while more := set().union(*(IMPORTS[module] for module in reached)) - reached:
        reached |= more
    assert sorted(module for module in reached if str(MODULES[module].relative_to(PACKAGE)) in users) == []


def test_an_older_python_is_reported_in_one_line():
    program = "import sys; sys.version_info = (3, 10, 12); sys.version = '3.10.12 (main)'; import bertjax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: bertjax needs Python 3.11 or newer, this is 3.10.12; see README\n"
