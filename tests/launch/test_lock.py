"""The locked packages of pods, images and SkyPilot are what requirements.txt and pyproject.toml ask for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "launch" / "requirements-tpu.lock"
MACHINE = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}


def locked() -> dict[str, str]:
    """Return {package: version} of the lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[\w,-]+\])?==([^ ]+) \\$", LOCK.read_text(), re.MULTILINE))


def required() -> list[Requirement]:
    """Return what a TPU VM needs: a run, its extras, and the build of the package."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lines += [*extras["tpu"], *extras["gcs"], *extras["data"], *project["build-system"]["requires"]]
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [one for one in requirements if one.marker is None or one.marker.evaluate(MACHINE)]


@pytest.mark.parametrize("requirement", required(), ids=str)
def test_the_lock_has_what_the_project_requires(requirement):
    versions = locked()
    name = canonicalize_name(requirement.name)
    assert name in versions, 'write the lock file again: launch/README.md, "Locked packages"'
    assert requirement.specifier.contains(versions[name]), versions[name]
    assert requirement.name != "jax" or not requirement.extras or "libtpu" in versions


def test_every_package_has_hashes_and_no_address():
    entries = re.split(r"\n(?=[a-z0-9])", LOCK.read_text())[1:]
    assert len(entries) == len(locked()) > 50
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert not re.search(r"://|--(extra-)?index-url|--find-links|@ ", LOCK.read_text())
