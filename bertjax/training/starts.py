"""What `starts.jsonl` says of a process start."""

import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece")


def start_record(resumes: bool, extend: bool) -> dict[str, Any]:
    """When, by which command, with which code, versions and devices."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "resumes": resumes,
        "extend": extend,
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "git": _git_state(),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "python": sys.version.split()[0],
        "versions": {package: metadata.version(package) for package in _PACKAGES},
    }


def _git_state() -> str:
    """Which commit of bertjax this is; empty where there is no git, or no repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
