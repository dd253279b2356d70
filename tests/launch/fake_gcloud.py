"""A stand-in for the gcloud command: a cloud in the folder FAKE_CLOUD.

It accepts the commands and flags that launch/ uses, as gcloud's reference documents them, and refuses all others. A TPU
has FAKE_WORKERS workers. Each is a folder that serves as its home, and commands sent there by ssh really run. `script`
in the folder holds the events to come, a JSON object of lists that are consumed from the front:

- `requests`: the states of each queued resource, one per `describe`
  (default: WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE; the last state stays)
- `ssh`: exit codes of the next connections (default: the exit codes of the commands)
- `describe`: errors that gcloud prints instead of a state ("": no error; "hang": it never answers)
- `create`: errors of the next requests ("": no error)
- `login`: errors of the next checks of the login ("": no error)
- `project`, `services`, `type`, `version`, `location`: answers to what `tpu_pod.sh check` asks; one that starts with
  ERROR is an error

One state is not documented by gcloud: VM PREEMPTED stands for ACTIVE with a VM that is PREEMPTED.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

WORKERS = int(os.environ.get("FAKE_WORKERS", "2"))
CLOUD = Path(os.environ["FAKE_CLOUD"])


def write(file: Path, content) -> None:
    """Write atomically, because trainings and commands read each other's files."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(content))
    part.replace(file)


def take(kind: str, default):
    """Return the next event of its kind, or the default."""
    script = json.loads((CLOUD / "script").read_text())
    if not script.get(kind):
        return default
    event = script[kind].pop(0)
    write(CLOUD / "script", script)
    return event


def fail(message: str) -> None:
    sys.exit(f"ERROR: (gcloud) {message}")


def homes(name: str, worker: str = "all") -> list[Path]:
    every = [CLOUD / "workers" / name / str(index) for index in range(WORKERS)]
    return every if worker == "all" else [every[int(worker)]]


def lose(name: str) -> None:
    """Remove the VMs of a TPU, their disks and their processes."""
    for home in homes(name):
        if (home / "bertjax" / "pid").exists():
            subprocess.run(["kill", "-KILL", "--", f"-{(home / 'bertjax' / 'pid').read_text().strip()}"])
        shutil.rmtree(home, ignore_errors=True)


class Resource:
    """One queued resource, a JSON file."""

    def __init__(self, name: str):
        self.name, self.file = name, CLOUD / f"{name}.json"

    def read(self) -> dict:
        if not self.file.exists():
            fail(f"NOT_FOUND: Resource '{self.name}' was not found")
        return json.loads(self.file.read_text())

    def write(self, states: list[str], request: dict) -> None:
        write(self.file, {"states": states, "request": request})

    def advance(self) -> str:
        """Return the current state and move to the next one."""
        content = self.read()
        (state, *later), request = content["states"], content["request"]
        if state == "ACTIVE" and not homes(self.name)[0].exists():
            for home in homes(self.name):
                home.mkdir(parents=True)
        if state in ("SUSPENDING", "SUSPENDED", "VM PREEMPTED"):
            lose(self.name)
        if later:
            self.write(later, request)
        return "ACTIVE" if state == "VM PREEMPTED" else state


def create(flags: argparse.Namespace) -> None:
    if error := take("create", None):
        fail(error)
    resource = Resource(flags.name)
    if resource.file.exists():
        fail(f"ALREADY_EXISTS: Resource '{flags.name}' already exists")
    waiting = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    resource.write(take("requests", waiting), {**vars(flags), "do": None})


def answer(kind: str, default: str) -> None:
    """Print the next answer of its kind, or fail with it."""
    event = take(kind, default)
    if event.startswith("ERROR "):
        fail(event.removeprefix("ERROR "))
    print(event)


def describe_project(flags: argparse.Namespace) -> None:
    answer("project", flags.name)


def list_services(flags: argparse.Namespace) -> None:
    assert flags.filter == "config.name=tpu.googleapis.com" and flags.enabled, flags
    answer("services", "tpu.googleapis.com")


def describe_type(flags: argparse.Namespace) -> None:
    answer("type", flags.name)


def describe_version(flags: argparse.Namespace) -> None:
    answer("version", flags.name)


def describe_bucket(flags: argparse.Namespace) -> None:
    answer("location", "ZONE")


def print_token(flags: argparse.Namespace) -> None:
    if error := take("login", None):
        fail(error)
    print("token")


def describe(flags: argparse.Namespace) -> None:
    if error := take("describe", None):
        time.sleep(10_000 if error == "hang" else 0)
        fail(error)
    if flags.format == "value(state.failedData.error.message)":
        return print("no quota is left")
    assert flags.format == "value(state.state)", flags.format
    print(Resource(flags.name).advance())


def delete(flags: argparse.Namespace) -> None:
    resource = Resource(flags.name)
    if resource.read()["states"][0] not in ("ACCEPTED", "FAILED", "SUSPENDED") and not flags.force:
        fail("FAILED_PRECONDITION: the queued resource has nodes")
    lose(flags.name)
    resource.file.unlink()


def describe_vm(flags: argparse.Namespace) -> None:
    assert flags.format == "value(state)", flags.format
    print("PREEMPTED" if Resource(flags.name).read()["states"][0] == "VM PREEMPTED" else "READY")


def ssh(flags: argparse.Namespace) -> None:
    if sys.stdin.isatty() and os.getpgrp() != os.tcgetpgrp(0):
        fail("ssh reads the terminal in the background, and would be stopped")
    if code := take("ssh", 0):
        print("ssh: connect to host: Connection timed out", file=sys.stderr)
        sys.exit(code)
    tools = f"{CLOUD / 'tools'}:{os.environ['PATH']}"
    codes = [
        subprocess.run(["bash", "-c", flags.command], cwd=home, env={**os.environ, "HOME": str(home), "PATH": tools})
        for home in homes(flags.name, flags.worker)
    ]
    sys.exit(max(done.returncode for done in codes))


def scp(flags: argparse.Namespace) -> None:
    name, _, target = flags.target.partition(":")
    for home in homes(name, flags.worker):
        shutil.copy(flags.name, home / target)


def in_bucket(address: str) -> Path:
    return CLOUD / "buckets" / address.removeprefix("gs://").rstrip("/")


def copy(flags: argparse.Namespace) -> None:
    """`storage cp` to a bucket; - is the standard input."""
    target = in_bucket(flags.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if flags.name == "-":
        target.write_text(sys.stdin.read())
    else:
        shutil.copy(flags.name, target)


def matches(pattern: str) -> list[Path]:
    """Return the objects whose address fits a pattern; addresses of objects have no slash at the end."""
    bucket, _, name = pattern.removeprefix("gs://").partition("/")
    found = sorted(path for path in in_bucket(bucket).glob(name) if path.is_file())
    if not found:
        fail(f"The following URLs matched no objects or files:\n{pattern}")
    return found


def list_objects(flags: argparse.Namespace) -> None:
    if in_bucket(flags.name).is_dir():  # a bucket, or a folder of one
        return print("\n".join(f"{flags.name}/{path.name}" for path in sorted(in_bucket(flags.name).iterdir())))
    if "/" not in flags.name.removeprefix("gs://"):
        fail(f"{flags.name} not found: 404.")
    print("\n".join(f"gs://{path.relative_to(CLOUD / 'buckets')}" for path in matches(flags.name)))


def cat(flags: argparse.Namespace) -> None:
    for path in matches(flags.name):
        print(path.read_text(), end="")


def parser() -> argparse.ArgumentParser:
    anywhere = argparse.ArgumentParser(add_help=False)
    anywhere.add_argument("--quiet", action="store_true")
    placed = argparse.ArgumentParser(add_help=False, parents=[anywhere])
    placed.add_argument("--project", required=True)
    placed.add_argument("--zone", required=True)

    def command(group, name, do, *flags, parents=(placed,)):
        parser = group.add_parser(name, parents=parents, allow_abbrev=False)
        parser.set_defaults(do=do)
        parser.add_argument("name")
        for flag in flags:
            parser.add_argument(flag)
        return parser

    gcloud = argparse.ArgumentParser(prog="gcloud", allow_abbrev=False)
    services = gcloud.add_subparsers(required=True)
    storage = services.add_parser("storage").add_subparsers(required=True)
    command(storage, "cp", copy, "target", parents=[anywhere])
    command(storage, "ls", list_objects, parents=[anywhere])
    command(storage, "cat", cat, parents=[anywhere])
    buckets = storage.add_parser("buckets").add_subparsers(required=True)
    command(buckets, "describe", describe_bucket, "--format", parents=[anywhere])
    projects = services.add_parser("projects").add_subparsers(required=True)
    command(projects, "describe", describe_project, "--format", parents=[anywhere])
    apis = services.add_parser("services").add_subparsers(required=True)
    listed = apis.add_parser("list", parents=[anywhere], allow_abbrev=False)
    listed.set_defaults(do=list_services)
    listed.add_argument("--enabled", action="store_true")
    for flag in ("--project", "--filter", "--format"):
        listed.add_argument(flag, required=True)
    auth = services.add_parser("auth").add_subparsers(required=True)
    auth.add_parser("print-access-token", parents=[anywhere], allow_abbrev=False).set_defaults(do=print_token)
    compute = services.add_parser("compute").add_subparsers(required=True)
    tpus = compute.add_parser("tpus").add_subparsers(required=True)
    queued = tpus.add_parser("queued-resources").add_subparsers(required=True)
    made = command(queued, "create", create, "--node-id", "--accelerator-type", "--runtime-version")
    made.add_argument("--spot", action="store_true")
    made.add_argument("--network")
    made.add_argument("--internal-ips", action="store_true")
    command(queued, "describe", describe, "--format")
    command(queued, "delete", delete).add_argument("--force", action="store_true")
    types = tpus.add_parser("accelerator-types").add_subparsers(required=True)
    command(types, "describe", describe_type, "--format")
    versions = tpus.add_parser("versions").add_subparsers(required=True)
    command(versions, "describe", describe_version, "--format")
    vm = tpus.add_parser("tpu-vm").add_subparsers(required=True)
    command(vm, "describe", describe_vm, "--format")
    command(vm, "ssh", ssh, "--worker", "--command")
    command(vm, "scp", scp, "target", "--worker")
    return gcloud


if __name__ == "__main__":
    with (CLOUD / "calls").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    flags = parser().parse_args()
    flags.do(flags)
