"""The processes that benchmarks start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import commands


def test_the_json_that_a_module_prints_is_returned(tmp_path):
    (tmp_path / "prints.py").write_text("import json, sys\nprint(json.dumps({'flags': sys.argv[1:]}))\n")
    assert commands.json_of("prints", "--one=1", folder=tmp_path) == {"flags": ["--one=1"]}


def test_a_benchmark_that_is_stopped_stops_what_it_runs(tmp_path):
    """And does not go on with the next command, as after one that failed."""
    tells = f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
    (tmp_path / "sleeps.py").write_text(tells + "time.sleep(60)\n")
    runs = "import pathlib; from benchmarks import commands; commands.json_of('sleeps', folder=pathlib.Path({!r}))"
    benchmark = subprocess.Popen([sys.executable, "-c", runs.format(str(tmp_path))], stderr=subprocess.PIPE, text=True)
    pid = int(_written(tmp_path / "pid"))
    benchmark.send_signal(signal.SIGTERM)
    _, error = benchmark.communicate(timeout=30)
    assert error.rstrip().endswith("KeyboardInterrupt")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _written(path: Path) -> str:
    for _ in range(300):
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.1)
    raise TimeoutError(f"{path} was not written")
