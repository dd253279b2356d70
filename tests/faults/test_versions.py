"""Other versions of the libraries: a run is not resumed with them, and hosts do not train together, unless asked to."""

import json
import os
import shutil

import pytest

from tests import runs
from tests.ports import reserve_port
from tests.training.run.test_versions import install


def test_a_run_resumes_with_other_versions_only_if_it_is_told_to(flags, undisturbed, tmp_path, capsys, caplog):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    (workdir / "export" / "bertjax.json").unlink()  # a finished run with a whole export would not start again
    [start] = runs.records(workdir / "starts.jsonl")
    start["versions"]["jax"] = "0.0.1"
    (workdir / "starts.jsonl").write_text(json.dumps(start) + "\n")
    before = runs.content(workdir)
    assert runs.call(*flags, f"--workdir={workdir}") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "jax: 0.0.1 -> " in error and "--other-versions" in error
    assert runs.content(workdir) == before
    assert runs.call(*flags, f"--workdir={workdir}", "--other-versions") == 0
    assert "jax: 0.0.1 -> " in caplog.text
    assert runs.weights(workdir) == runs.weights(undisturbed)
    assert len(runs.records(workdir / "starts.jsonl")) == 2
    assert json.loads((workdir / "versions.json").read_text())["jax"] != "0.0.1"


@pytest.mark.slow
def test_hosts_with_other_versions_are_refused(flags, tmp_path):
    install(tmp_path / "site", optax="9.9")
    together = {"JAX_COORDINATOR_ADDRESS": f"localhost:{reserve_port()}", "JAX_NUM_PROCESSES": "2"}
    path = os.environ.get("PYTHONPATH", "")
    paths = (path, f"{tmp_path / 'site'}:{path}")
    processes = [
        runs.start(
            "--distributed",
            *flags,
            f"--workdir={tmp_path / 'run'}",
            **together,
            JAX_PROCESS_ID=str(index),
            PYTHONPATH=path,
        )
        for index, path in enumerate(paths)
    ]
    for done in runs.finish_many(processes):
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert line.startswith("error: process 1 has other versions than process 0 (optax: ") and "-> 9.9" in line
    assert not (tmp_path / "run" / "config.json").exists()
