"""The processes that benchmarks start."""

import os
import signal
import subprocess
import sys

import pytest

from benchmarks import commands
from tests.waiting import LIMIT_SECONDS, wait_until


def test_the_json_that_a_module_prints_is_returned(tmp_path):
    (tmp_path / "prints.py").write_text("import json, sys\nprint(json.dumps({'flags': sys.argv[1:]}))\n")
    assert commands.json_of("prints", "--one=1", folder=tmp_path) == {"flags": ["--one=1"]}


def test_a_benchmark_that_is_stopped_stops_what_it_runs(tmp_path):
    """And does not go on with the next command, as after one that failed."""
    tells = f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
    (tmp_path / "sleeps.py").write_text(tells + "time.sleep(10_000)\n")
    runs = "import pathlib; from benchmarks import commands; commands.json_of('sleeps', folder=pathlib.Path({!r}))"
    benchmark = subprocess.Popen([sys.executable, "-c", runs.format(str(tmp_path))], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), benchmark)
    pid = int((tmp_path / "pid").read_text())
    benchmark.send_signal(signal.SIGTERM)
    _, error = benchmark.communicate(timeout=LIMIT_SECONDS)
    assert error.rstrip().endswith("KeyboardInterrupt")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
