"""The versions of bertjax and its libraries: recorded at every start, compared with the last start and among hosts."""

import functools
import hashlib
import logging
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from bertjax.errors import UserError
from bertjax.training.parallel import processes
from bertjax.training.run.workdir import Workdir, read_jsonl

# They compute the steps: another version may round in another order or draw other random numbers.
_COMPUTING = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt", "flax", "optax")
_OTHERS = ("orbax-checkpoint", "grain", "numpy", "sentencepiece")
_BERTJAX, _CODE = "bertjax", "bertjax code"
_PACKAGE = Path(__file__).parents[2]
_GIT_SECONDS = 10.0

log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """Return {`bertjax`: its commit, `bertjax code`: hash of its files, library: its version} of what is installed."""
    return {
        _BERTJAX: commit_of(_PACKAGE),
        _CODE: hash_of(_PACKAGE),
        **{name: _version(name) for name in (*_COMPUTING, *_OTHERS) if _version(name)},
    }


@functools.cache
def installed() -> dict[str, str]:
    """Return {distribution: version} of everything that this Python can import, as `pip freeze` lists it."""
    found = {each.name: each.version for each in metadata.distributions() if each.name}  # reads hundreds of files
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def hash_of(package: Path) -> str:
    """Return 12 hexadecimal digits of a hash of the Python files of a package, except for the recipes in it.

    An installed package has no commit, and with `-dirty` two commits are equal whatever was changed.
    """
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith("recipes/"):  # a configuration is compared by its settings
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def commit_of(package: Path) -> str:
    """Return the commit of a folder of bertjax, with `-dirty` if files were changed; empty if it is not known.

    Launchers copy the code without its repository and write the commit to a file `COMMIT`.
    """
    recorded = package / "COMMIT"
    if recorded.exists():
        return recorded.read_text(encoding="utf-8").strip()
    if not (package.parent / ".git").exists():  # a repository further up is not that of bertjax
        return ""
    return described_commit(package)


def described_commit(folder: Path) -> str:
    """Return the commit of the repository that a folder is in, `-dirty` if files were changed; empty if not known."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def check(workdir: Workdir, other_versions: bool, foreign: Mapping[str, str] = {}) -> None:
    """Compare the versions of this start with those of the other processes and of the last start; log differences.

    A run that has not saved a checkpoint starts from step 0 and is not compared with its last start. Commit and code of
    bertjax must be the same in all processes. They may change between two starts, and so may libraries that do not
    compute the steps.

    Args:
      workdir: the files of the run.
      other_versions: accept differences that may change the result.
      foreign: {module from outside of bertjax: hash of its file}; another file may change the result.

    Raises:
      UserError: versions that may change the result differ.
    """
    computing = (*_COMPUTING, *foreign)
    everywhere = processes.gather(versions() | dict(foreign), "versions")
    processes.together(lambda: _check_processes(everywhere, computing, other_versions))
    processes.on_writer(lambda: _check_last_start(workdir, everywhere[0], computing, other_versions))


def _check_processes(everywhere: Sequence[dict[str, str]], computing: Sequence[str], other_versions: bool) -> None:
    first = everywhere[0]
    for index, there in enumerate(everywhere):
        pairs = {name: (first.get(name, ""), there.get(name, "")) for name in (*first, *there)}
        _report(
            pairs,
            (*computing, _BERTJAX, _CODE),
            f"process {index} has other versions than process 0",
            "install the same on every host",
            other_versions,
        )


def _check_last_start(workdir: Workdir, now: dict[str, str], computing: Sequence[str], other_versions: bool) -> None:
    starts = read_jsonl(workdir.starts)
    if not starts or not workdir.saved_steps():
        return
    before = starts[-1].get("versions")
    if not isinstance(before, dict):
        raise UserError(f"{workdir.starts} is damaged (its last line has no versions); delete that line")
    # A library that only one of the two starts has belongs to other devices, which the run reports.
    pairs = {name: (before[name], now[name]) for name in now if name in before}
    own = any("(sha256)" in name and one != other for name, (one, other) in pairs.items())
    remedy = "restore that file" if own else "install those again (versions.json lists all)"
    _report(
        pairs,
        computing,
        f"the run in {workdir.root} was last started with other versions",
        remedy,
        other_versions,
    )


def _report(
    pairs: dict[str, tuple[str, str]], refused: Sequence[str], problem: str, remedy: str, other_versions: bool
) -> None:
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not changed:
        return
    lines = ", ".join(f"{name}: {one or 'none'} -> {other or 'none'}" for name, (one, other) in changed.items())
    if not other_versions and any(name in refused for name in changed):
        raise UserError(f"{problem} ({lines}); {remedy}, or add --other-versions to accept another result")
    if processes.is_writer():
        log.warning("%s (%s)", problem, lines)
