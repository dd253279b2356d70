"""The modules of classes from outside of bertjax, such as an objective: recorded at every start, as versions are."""

import hashlib
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from bertjax.config import Config
from bertjax.training.run.versions import described_commit


class ForeignModule(NamedTuple):
    """A module that a configuration names.

    Attributes:
      sha256: of its file, the first 12 digits; empty if it is in no file.
      commit: of the repository that holds the file, with `-dirty` if files were changed; empty if there is none.
      version: of the installed package that the module belongs to; empty if it belongs to none.
    """

    sha256: str
    commit: str
    version: str


def foreign_modules(config: Config) -> dict[str, ForeignModule]:
    """Return the modules that `module:Class` settings of a configuration name, which have been imported."""
    names = sorted({kind.partition(":")[0] for kind in config.foreign_kinds})
    distributions = metadata.packages_distributions() if names else {}
    return {name: _module(name, distributions.get(name.partition(".")[0], [])) for name in names}


def hashes(modules: Mapping[str, ForeignModule]) -> dict[str, str]:
    """Return {`module (sha256)`: hash of its file}, which is compared as versions are."""
    return {f"{name} (sha256)": module.sha256 for name, module in modules.items() if module.sha256}


def _module(name: str, distributions: list[str]) -> ForeignModule:
    file = getattr(sys.modules[name], "__file__", None)
    version = metadata.version(distributions[0]) if distributions else ""
    if not file:
        return ForeignModule("", "", version)
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return ForeignModule(digest, described_commit(Path(file).parent), version)
