"""User modules that a configuration names, such as an objective; they are recorded at every start and in exports."""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from bertjax.training.run.versions import described_commit


class ForeignModule(NamedTuple):
    """A user module that a configuration names.

    Attributes:
      sha256: first 12 digits of its file's hash; empty if it has no file.
      commit: commit of the file's repository, with `-dirty` after changes; empty without a repository.
      version: version of the installed package that contains it; empty without one.
    """

    sha256: str
    commit: str
    version: str


def foreign_modules(kinds: Iterable[str]) -> dict[str, ForeignModule]:
    """Return {module: its origin} for settings `module:Class`. The modules must be imported."""
    names = sorted({kind.partition(":")[0] for kind in kinds})
    distributions = metadata.packages_distributions() if names else {}
    return {name: _module(name, distributions.get(name.partition(".")[0], [])) for name in names}


def plain(modules: Mapping[str, ForeignModule]) -> dict[str, dict[str, str]]:
    """Return modules as JSON."""
    return {name: module._asdict() for name, module in modules.items()}


def hashes(modules: Mapping[str, ForeignModule]) -> dict[str, str]:
    """Return {`module (sha256)`: file hash}, to compare together with versions."""
    return {f"{name} (sha256)": module.sha256 for name, module in modules.items() if module.sha256}


def _module(name: str, distributions: list[str]) -> ForeignModule:
    file = getattr(sys.modules[name], "__file__", None)
    version = metadata.version(distributions[0]) if distributions else ""
    if not file:
        return ForeignModule("", "", version)
    # Only this file is hashed; the commit tells about other files that it imports.
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return ForeignModule(digest, described_commit(Path(file).parent), version)
