"""Versions of libraries, bertjax and user code: recorded at each start, compared with the last and between hosts."""

import functools
import hashlib
import logging
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from bertjax.runtime.errors import UserError
from bertjax.training.parallel import processes
from bertjax.training.run.workdir import Workdir, read_jsonl

# Packages that compute the steps: another version may round differently or draw other random numbers.
_COMPUTING = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt", "flax", "optax")
_OTHERS = ("orbax-checkpoint", "grain", "numpy", "sentencepiece")
_BERTJAX, _CODE = "bertjax", "bertjax code"
_PACKAGE = Path(__file__).parents[2]
_GIT_SECONDS = 10.0

log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """Return {`bertjax`: commit, `bertjax code`: hash of its files, library: version} for the installed packages."""
    return {
        _BERTJAX: commit_of(_PACKAGE),
        _CODE: hash_of(_PACKAGE),
        **{name: _version(name) for name in (*_COMPUTING, *_OTHERS) if _version(name)},
    }


@functools.cache
def installed() -> dict[str, str]:
    """Return {distribution: version} for everything installed, like `pip freeze`."""
    found = {each.name: each.version for each in metadata.distributions() if each.name}  # slow: reads hundreds of files
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def hash_of(package: Path) -> str:
    """Return 12 hex digits of a hash over a package's Python files, without its recipes.

    An installed package has no commit, and a commit with `-dirty` does not identify the changes.
    """
    # Names are hashed too, so that moving a file changes the hash.
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith("recipes/"):  # configurations are compared by their settings
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def commit_of(package: Path) -> str:
    """Return the commit of a bertjax folder, with `-dirty` after changes; empty if unknown.

    Launchers copy the code without its repository and write the commit to a file `COMMIT`.
    """
    recorded = package / "COMMIT"
    if recorded.exists():
        return recorded.read_text(encoding="utf-8").strip()
    if not (package.parent / ".git").exists():  # a repository further up does not belong to bertjax
        return ""
    return described_commit(package)


def described_commit(folder: Path) -> str:
    """Return the commit of the repository around a folder, with `-dirty` after changes; empty if unknown."""
    # `--exclude=*` hides tags, so that the result is always the full hash.
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def foreign_modules(kinds: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return {module: its origin} for settings `module:Class`. The modules must be imported.

    An origin has `sha256`, the first 12 digits of its file's hash; `commit`, that of the file's repository, with
    `-dirty` after changes; and `version`, that of the installed package that contains it. Each is empty without one.
    """
    names = sorted({kind.partition(":")[0] for kind in kinds})
    distributions = metadata.packages_distributions() if names else {}
    return {name: _module(name, distributions.get(name.partition(".")[0], [])) for name in names}


def hashes(modules: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return {`module (sha256)`: file hash}, to compare together with versions."""
    return {f"{name} (sha256)": module["sha256"] for name, module in modules.items() if module["sha256"]}


def _module(name: str, distributions: list[str]) -> dict[str, str]:
    file, digest, commit = getattr(sys.modules[name], "__file__", None), "", ""
    if file:  # the hash covers this file alone, the commit also the files that it imports
        digest, commit = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12], described_commit(Path(file).parent)
    return {"sha256": digest, "commit": commit, "version": metadata.version(distributions[0]) if distributions else ""}


def check(workdir: Workdir, other_versions: bool, foreign: Mapping[str, str] = {}) -> None:
    """Compare versions between processes and with the last start, and log differences.

    A run without a checkpoint starts from step 0, so it is not compared with its last start. bertjax's commit and code
    must be the same in all processes. They may change between starts, like libraries that do not compute the steps.

    Args:
      workdir: workdir of the run.
      other_versions: accept differences that may change the result.
      foreign: {user module: file hash}; another file may change the result.

    Raises:
      UserError: versions that may change the result differ.
    """
    computing = (*_COMPUTING, *foreign)
    # Hosts with different code would compile different programs, and their collectives would not match.
    everywhere = processes.gather(versions() | dict(foreign), "versions")
    refused, first = () if other_versions else (*computing, _BERTJAX, _CODE), everywhere[0]

    def compare() -> None:
        for index, there in enumerate(everywhere):
            pairs = {name: (first.get(name, ""), there.get(name, "")) for name in (*first, *there)}
            problem = f"process {index} has other versions than process 0"
            _report(pairs, refused, problem, "install the same on every host")
        if processes.is_writer():
            _check_last_start(workdir, first, () if other_versions else computing)

    processes.together(compare)


def _check_last_start(workdir: Workdir, now: dict[str, str], refused: Sequence[str]) -> None:
    starts = read_jsonl(workdir.starts)
    if not starts or not workdir.saved_steps():
        return
    before = starts[-1].get("versions")
    if not isinstance(before, dict):
        raise UserError(f"{workdir.starts} is damaged (its last line has no versions); delete that line")
    # A library in only one of the two starts belongs to another kind of device, and the run reports devices itself.
    pairs = {name: (before[name], now[name]) for name in now if name in before}
    own = any("(sha256)" in name and one != other for name, (one, other) in pairs.items())
    remedy = "restore that file" if own else "install those again (versions.json lists all)"
    _report(pairs, refused, f"the run in {workdir.root} was last started with other versions", remedy)


def _report(pairs: dict[str, tuple[str, str]], refused: Sequence[str], problem: str, remedy: str) -> None:
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not changed:
        return
    lines = ", ".join(f"{name}: {one or 'none'} -> {other or 'none'}" for name, (one, other) in changed.items())
    if any(name in refused for name in changed):
        raise UserError(f"{problem} ({lines}); {remedy}, or add --other-versions to accept another result")
    if processes.is_writer():
        log.warning("%s (%s)", problem, lines)
