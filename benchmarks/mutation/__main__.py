"""Put one bug after the other into a copy of bertjax, and count those that the tests find.

    python -m benchmarks.mutation
    python -m benchmarks.mutation --summary

Each mutant runs against its own tests first, then, if they pass, against the slow ones among them, and against the
folders of these tests without slow ones. A mutant whose line is in --results with the text of today is not run again.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.mutation.mutants import MUTANTS, Mutant
from bertjax.runtime import command_line
from bertjax.runtime.errors import RunFailed, UserError

_ROOT = Path(__file__).resolve().parents[2]
RESULTS = _ROOT / "benchmarks" / "results" / "mutation.jsonl"
# Of one test, and of all tests of a mutant: a bug may make a loop endless.
_TEST_SECONDS, _TIMEOUT_SECONDS = 120, 900


def apply(mutant: Mutant, root: Path) -> str:
    """Put a bug into a copy of the repository; return the text of the file before.

    Raises:
      UserError: the text of the mutant does not occur exactly once.
    """
    path = root / "bertjax" / mutant.file
    text = path.read_text(encoding="utf-8")
    if (count := text.count(mutant.before)) != 1:
        raise UserError(f"{mutant.file} has {count} times {mutant.before!r}, not once; correct the mutant")
    path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
    return text


def found_by(mutant: Mutant, root: Path) -> str:
    """Return the first test that fails with a bug in a copy of the repository; empty if none does."""
    text = apply(mutant, root)
    own = mutant.tests.split()
    folders = sorted({str(Path(path).parent) if path.endswith(".py") else path for path in own} - {"."})
    try:
        in_own = first_failure(own, root) or first_failure(own, root, "-m", "slow")
        return in_own or (first_failure(folders, root) if folders not in ([], own) else "")
    finally:
        (root / "bertjax" / mutant.file).write_text(text, encoding="utf-8")


def first_failure(tests: list[str], root: Path, *options: str) -> str:
    """Return the name of the first failing test in files or folders of `tests/`; empty if all pass."""
    paths = [f"tests/{path}" for path in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-rfE", f"--timeout={_TEST_SECONDS}"]
    command += [*options, *paths]
    environment = os.environ | {"PYTHONPATH": str(root)}
    try:
        ended = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if ended.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        return ""
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if not lines:
        raise RunFailed(f"pytest {' '.join(paths)} ended with code {ended.returncode}: {ended.stdout[-300:]!r}")
    return lines[0].split()[1]


def copy_to(root: Path) -> None:
    """Copy what the tests need of the repository, with its cache of compiled programs."""
    for name in ("bertjax", "tests", "configs", "launch", "benchmarks", "docs", "pyproject.toml", "README.md"):
        source = _ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    (root / "bertjax" / "COMMIT").write_text("mutated\n", encoding="utf-8")  # a copy has no repository to ask
    compiled = _ROOT / ".pytest_cache" / "d" / "compiled"
    if compiled.exists():
        (root / ".pytest_cache" / "d").mkdir(parents=True)
        (root / ".pytest_cache" / "d" / "compiled").symlink_to(compiled.resolve())


def digest(mutant: Mutant) -> str:
    """Return a hash of a mutant and of the file that it changes."""
    content = "\0".join(mutant) + (_ROOT / "bertjax" / mutant.file).read_text(encoding="utf-8")
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the lines (default: %(default)s)")
    parser.add_argument("--summary", action="store_true", help="print the count and the mutants that no test found")
    args = parser.parse_args(argv)
    lines = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    known = {line["digest"]: line for line in lines}
    if not args.summary:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            copy_to(root)
            for number, mutant in enumerate(MUTANTS, 1):
                if digest(mutant) in known:
                    continue
                line = {"digest": digest(mutant), "mutant": mutant.name, "found_by": found_by(mutant, root)}
                known[line["digest"]] = line
                with open(args.results, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{number} of {len(MUTANTS)}: {line['found_by'] or 'NOT FOUND'}: {mutant.name}", flush=True)
    ended = [known[digest(mutant)] for mutant in MUTANTS if digest(mutant) in known]
    missed = [line["mutant"] for line in ended if not line["found_by"]]
    print(f"{len(ended) - len(missed)} of {len(ended)} mutants found, of {len(MUTANTS)} in the list")
    print("".join(f"not found: {name}\n" for name in missed), end="")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
