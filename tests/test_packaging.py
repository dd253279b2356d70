"""What is released and what a public host runs: one version, pinned packages, workflows with parts of `.ci/run`."""

import re
import subprocess
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import bertjax

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_all_files_have_one_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == bertjax.__version__
    headings = re.findall(r"^## (\S+?)(?:,.*)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == bertjax.__version__


def test_the_tested_versions_are_pinned_and_accepted():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+", line) for line in lines), "a host, a path or an open range"
    versions = {normalized(line.partition("==")[0]): line.partition("==")[2] for line in lines}
    required = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line[0] != "#"]
    for requirement in map(Requirement, required):
        assert requirement.specifier.contains(versions[normalized(requirement.name)]), requirement


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_workflows_run_every_part_of_the_checks():
    refused = subprocess.run([ROOT / ".ci" / "run", "nonsense"], capture_output=True, text=True)
    assert refused.returncode == 2
    known = set(re.findall(r"[\w-]+", refused.stderr.partition("[")[2]))
    named = set()
    for path in WORKFLOWS:
        [job] = yaml.safe_load(path.read_text())["jobs"].values()
        assert [step["run"] for step in job["steps"] if "run" in step] == ['.ci/run "$PART"']
        matrix = job["strategy"]["matrix"]
        named |= {*matrix["part"], *(row["part"] for row in matrix.get("include", ()))}
    assert named == known - {"night"}, "which is all of them"
