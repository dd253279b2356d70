"""tpu_pod.sh check: one line per point against the stand-in for gcloud, and nothing requested."""

import os
import subprocess
import sys

import pytest

from bertjax.config.config import Config
from tests import runs
from tests.config.test_read_from_export import settings_of
from tests.launch.conftest import SETTINGS, executable
from tests.launch.preemptions import RealPod

pytestmark = pytest.mark.slow

# A stand-in for Python with bertjax: it notes its arguments and ends as the test asks, `compile` after one line.
PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$FAKE_CLOUD/python"
[[ $2 == bertjax.train ]] && { echo "${TRAIN_ERROR:-}" >&2; exit "${TRAIN:-0}"; }
echo "${LINE:-stage 0: 3.1 of 16 GiB}" >&2
exit "${COMPILE:-0}"
"""
ARGUMENTS = ("--config.data.corpus=gs://bucket/texts/*.txt", "--config.seed=1", "--seeds=2")


@pytest.fixture
def checked(pod):
    """checked(**environment) -> (exit code, {point: (result, text)}), of a pod whose points are all right."""
    executable(pod.cloud / "python-of-test", PYTHON)
    pod.settings(*ARGUMENTS, **SETTINGS)
    (pod.cloud / "buckets/bucket/texts").mkdir(parents=True)
    (pod.cloud / "buckets/bucket/texts/a.txt").touch()

    def check(**environment: str) -> tuple[int, dict[str, tuple[str, str]]]:
        done = pod("check", PYTHON=str(pod.cloud / "python-of-test"), **environment)
        assert not pod.calls("create") and not pod.exists(), "a check must cost nothing"
        assert "nothing was requested" in done.stderr.splitlines()[-1], done.stderr
        lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
        return done.returncode, {point: (result, text) for result, point, text in lines}

    return check


def test_all_points_are_right(checked, pod):
    code, points = checked()
    results = {point: result for point, (result, _) in points.items()}
    skipped = {"quota": "skipped"}
    names = "settings tools disk commit config forecast login project API type runtime name quota bucket corpus"
    assert code == 0 and results == dict.fromkeys(names.split(), "ok") | skipped
    assert points["corpus"][1] == "gs://bucket/texts/a.txt" and points["bucket"][1] == "gs://bucket, in zone"
    train, forecast = (pod.cloud / "python").read_text().splitlines()
    assert (
        train == f"-m bertjax.train --distributed --config=configs/some.py:small {' '.join(ARGUMENTS)} --settings=seed"
    )
    overrides = " ".join(ARGUMENTS[:2])  # compile knows no --seeds
    assert forecast == f"-m bertjax compile --config=configs/some.py:small {overrides} --topology=v4-16"


@pytest.mark.parametrize(
    ("environment", "point", "result", "text"),
    [
        ({"TRAIN": "2", "TRAIN_ERROR": "error: unknown flag '--a'"}, "config", "FAILED", "unknown flag '--a'; correct"),
        ({"COMPILE": "1", "LINE": "19 of 16 GiB"}, "forecast", "FAILED", "19 of 16 GiB; lower runtime.micro_tokens"),
        (
            {"TRAIN": "1", "TRAIN_ERROR": "ModuleNotFoundError: No module named 'jax'"},
            "config",
            "FAILED",
            "ModuleNotFoundError: No module named 'jax'; set PYTHON, now /",
        ),
        (
            {"COMPILE": "1", "LINE": "ModuleNotFoundError: libtpu"},
            "forecast",
            "FAILED",
            "ModuleNotFoundError: libtpu; set",
        ),
        ({"COMPILE": "2", "LINE": "error: no libtpu"}, "forecast", "FAILED", "no libtpu"),
        ({"COMPILE": "2", "LINE": "epochs depends on the data"}, "forecast", "skipped", "epochs depends on the data"),
        ({"FORECAST": "no"}, "forecast", "skipped", "FORECAST=no; whether the step fits v4-16 is not known"),
    ],
)
def test_a_configuration_that_does_not_run(checked, environment, point, result, text):
    code, points = checked(**environment)
    assert points[point][0] == result and points[point][1].startswith(text)
    assert code == (2 if result == "FAILED" else 0)


def test_what_google_cloud_refuses(checked, pod):
    refusals = {
        "project": ("project", ["ERROR PERMISSION_DENIED: no"], "(gcloud) PERMISSION_DENIED: no; see: gcloud projects"),
        "services": ("API", [""], "tpu.googleapis.com is not enabled; run: gcloud services enable tpu.googleapis.com"),
        "type": ("type", ["ERROR NOT_FOUND: v4-16"], "(gcloud) NOT_FOUND: v4-16; see: gcloud compute tpus"),
        "version": ("runtime", ["ERROR NOT_FOUND: x"], "(gcloud) NOT_FOUND: x; see: gcloud compute tpus versions"),
        "describe": ("name", ["PERMISSION_DENIED"], "(gcloud) PERMISSION_DENIED; check PROJECT, ZONE and your role"),
    }
    pod.script(**{kind: events for kind, (_, events, _) in refusals.items()})
    code, points = checked()
    assert code == 2
    assert [name for name, (result, _) in points.items() if result == "FAILED"] == [p for p, _, _ in refusals.values()]
    for point, _, text in refusals.values():
        assert points[point][1].startswith(text)
    pod.script(services=["ERROR PERMISSION_DENIED: services"])  # this is not an answer
    _, points = checked(FORECAST="no")
    assert points["API"] == (
        "FAILED",
        "(gcloud) PERMISSION_DENIED: services; check PROJECT and your role in the project (Service Usage Viewer)",
    )


def test_what_is_missing_in_the_bucket_or_here(checked, pod):
    missing = ("--config.data.sources.law.corpus=gs://bucket/law/*", "--config.data.heldout=my/texts.txt")
    pod.settings(*missing, **SETTINGS | {"WORKDIR": "gs://other/run"})
    (pod.repository / "configs" / "some.py").write_text("changed since the commit")
    done = pod("check", PYTHON=str(pod.cloud / "python-of-test"))
    assert done.returncode == 2 and "4 points failed" in done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    expected = ["commit     files differ from REF=HEAD", "bucket     (gcloud) gs://other not found: 404.; correct"]
    expected += ["corpus     (gcloud) The following URLs matched no", "corpus     my/texts.txt is on this machine only"]
    assert len(failed) == 4
    for line, start in zip(failed, expected, strict=True):
        assert line.startswith(f"FAILED   {start}")


def test_every_setting_that_names_files_has_a_point():
    places = [name for name, known in settings_of(Config).items() if known.get("is_place")]
    script = '. launch/pod_check.sh; for name; do echo "$name:$(point_of "$name")"; done'
    command = ["bash", "-c", script, "_", *(name.replace("*", "x") for name in places)]
    lines = subprocess.run(
        command, cwd=runs.CONFIG.parents[1], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [line for line in lines if line.endswith(":")] == ["data.cache_dir:"]  # a folder of the worker itself


def test_every_place_that_workers_read_is_looked_at(checked, pod):
    """Weights, tokenizer, labeled files and store, as the corpus; a number is a share of the training file."""
    (pod.cloud / "buckets/bucket/model").mkdir()
    (pod.cloud / "buckets/bucket/model/a").touch()
    (pod.cloud / "python-relative").symlink_to("python-of-test")
    places = {
        "init_from": "gs://bucket/model@400",
        "data.tokenizer.model": "my/tokenizer",
        "tasks.sst2.examples.train": "my/train.tsv",
        "tasks.sst2.examples.heldout": "'0.1'",
        "tasks.sst2.examples.further_heldout": "{'other': 'gs://bucket/none.tsv'}",
        "data.store": "gs://bucket/stores-to-come",
        "data.filters.evaluations.against": "('gs://bucket/model', 'my/test set.txt')",
        "tasks.sst2.objective.teacher": "my/teacher",
        "tasks.sst2.objective.masking.lexicon": "mine",
    }
    pod.settings(*(f"--config.{name}={place}" for name, place in places.items()), **SETTINGS)
    python = os.path.relpath(pod.cloud / "python-relative")  # in the folder of this process, not in the checkout
    done = pod("check", PYTHON=python, FORECAST="no")
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    names = ("config", "init_from", "tokenizer", "examples", "store", "filter", "teacher", "lexicon")
    assert [(name, result) for result, name, _ in lines if name in names] == [
        ("config", "ok"),
        ("init_from", "ok"),
        ("tokenizer", "FAILED"),
        ("examples", "FAILED"),
        ("examples", "FAILED"),
        ("store", "ok"),
        ("filter", "ok"),
        ("filter", "FAILED"),
        ("teacher", "FAILED"),
    ], done.stdout
    assert "my/test set.txt is on this machine only" in done.stdout
    assert "my/train.tsv is on this machine only; run: gcloud storage cp -r my/train.tsv gs://BUCKET/" in done.stdout
    pod.settings("--config.data.store=stores", **SETTINGS)
    done = pod("check", PYTHON=python, FORECAST="no")
    assert "FAILED   store      stores is on this machine only; run: gcloud storage cp -r stores gs" in done.stdout


def test_a_real_configuration_compiles_for_the_accelerator_type(tmp_path):
    pod = RealPod(tmp_path, ["--config.data.corpus=embedded:en"])
    (pod.cloud / "buckets/bucket").mkdir(parents=True)
    done = pod("check", PYTHON=sys.executable, PYTHONPATH="", JAX_PLATFORMS="cpu", XLA_FLAGS=os.environ["XLA_FLAGS"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok       config     configs/small.py, with 1 arguments" in done.stdout
    [forecast] = [line for line in done.stdout.splitlines() if " forecast " in line]
    assert forecast.startswith("ok ") and "GiB" in forecast
    assert runs.CONFIG.name not in forecast
