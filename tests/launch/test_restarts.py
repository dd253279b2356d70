"""restarts.sh, which every launcher follows, is the table of launch/README.md."""

import itertools
import re
import signal
import subprocess
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"


def bash(script: str, *arguments: str, **environment: str) -> list[str]:
    """Return the lines that a script prints after sourcing restarts.sh."""
    text = f"set -euo pipefail\nsource {LAUNCH / 'restarts.sh'}\n{script}"
    command = ["bash", "-c", text, "test", *arguments]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def expected(codes: tuple[int, ...]) -> str:
    """The table: what the exit codes of all processes mean together."""
    kinds = set(codes) - {0}
    if not kinds:
        return "finished"
    if kinds == {75}:
        return "stopped"
    return "final" if kinds <= {2, 3} else "failed"


def test_every_mixture_of_exit_codes_has_the_meaning_of_the_table():
    mixtures = [codes for size in (1, 2, 3) for codes in itertools.product((0, 1, 2, 3, 75, 134, 137), repeat=size)]
    lines = [" ".join(map(str, codes)) for codes in mixtures]
    meanings = bash("for codes; do meaning $codes; done", *lines)
    assert dict(zip(lines, meanings)) == {line: expected(codes) for line, codes in zip(lines, mixtures)}


def test_a_signal_before_the_training_can_be_told_is_not_lost():
    script = r"""
    set -T
    trap '[[ $BASH_COMMAND != "training=\$!" ]] || kill -TERM $$' DEBUG
    run_training sleep 60
    echo $code
    """
    assert bash(script) == [str(128 + signal.SIGTERM)]


def test_the_readme_has_the_same_table():
    table = (LAUNCH / "README.md").read_text().partition("| exit codes of all hosts |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+) \| (\w+) \|", table, re.MULTILINE)
    assert [meaning for _, meaning in rows] == ["finished", "stopped", "final", "failed"]
    for examples, meaning in rows:
        for mixture in re.findall(r"`([\d ]+)`", examples):
            assert expected(tuple(map(int, mixture.split()))) == meaning, mixture


def ends(workdir: Path, *events: str, **limits: str) -> list[str]:
    """Return what a launcher does after each event: MEANING or MEANING:CHECKPOINT, a checkpoint saved just before."""
    script = """has_moved || true
    for event; do
      [[ $event != *:* ]] || mkdir -p "$WORKDIR/checkpoints/${event#*:}"
      if run_again "${event%%:*}"; then echo "again $failures $stops"; else echo "end $failures $stops"; fi
    done"""
    return bash(script, *events, WORKDIR=str(workdir), **limits)


def test_failures_without_a_new_checkpoint_have_a_limit(tmp_path):
    assert ends(tmp_path, *["failed"] * 5) == ["again 1 0", "again 2 0", "again 3 0", "again 4 0", "end 5 0"]


@pytest.mark.parametrize("meaning", ["finished", "final"])
def test_a_run_that_ended_for_good_is_not_started_again(tmp_path, meaning):
    assert ends(tmp_path, f"{meaning}:10") == ["end 0 0"]


def test_each_seed_of_a_run_moves_it(tmp_path):
    """The second seed starts at step 0, below the checkpoints of the first one."""
    folder = tmp_path / "runs[0 1]"
    for name in ("seed=0/checkpoints/100", "seed=0/checkpoints/90", "seed=0/checkpoints/damaged-400"):
        (folder / name).mkdir(parents=True)
    assert bash("newest_checkpoint", WORKDIR=str(folder)) == ["100"]
    moves = ["failed", "failed:../seed=1/checkpoints/0", "failed", "failed:../seed=1/checkpoints/10", "failed"]
    (folder / "checkpoints").mkdir()
    assert ends(folder, *moves) == ["again 1 0", "again 0 0", "again 1 0", "again 0 0", "again 1 0"]


def test_in_a_bucket_a_checkpoint_without_its_mark_is_not_one(tmp_path):
    """What gcloud prints for the pattern: checkpoint 300 has no mark, because its save was killed."""
    listed = """storage() {
      case $* in
        "ls gs://bucket/run/checkpoints/*/commit_success.txt") folders="$OWN" ;;
        "ls gs://bucket/run/*/checkpoints/*/commit_success.txt") folders="$SEEDS" ;;
      esac
      [[ $folders ]] || return 1
      printf "gs://bucket/run/%s/commit_success.txt\\n" $folders
    }
    newest_checkpoint"""
    own = " ".join(f"checkpoints/{name}" for name in (20, 100, "200.tmp"))
    assert bash(listed, WORKDIR="gs://bucket/run", OWN=own, SEEDS="") == ["100"]
    seeds = "seed=0/checkpoints/100 seed=1/checkpoints/9"
    assert bash(listed, WORKDIR="gs://bucket/run", OWN="", SEEDS=seeds) == ["110"]
    assert bash("storage() { return 1; }; newest_checkpoint", WORKDIR="gs://bucket/run") == ["-1"]


def test_the_counts_survive_in_the_workdir_until_the_launcher_stops(tmp_path):
    attempt = 'read_counts; if wants_restart "$1" >/dev/null; then echo again; else echo end; fi'
    codes = ["1", "134", "75", "1", "1", "137", "1"]
    answers = [bash(attempt, code, WORKDIR=str(tmp_path / "run"))[0] for code in codes]
    assert answers == ["again"] * 5 + ["end", "again"], "a person who starts it again starts at zero"
    (tmp_path / "run" / "launcher_counts").write_text("torn")
    assert bash(attempt, "1", WORKDIR=str(tmp_path / "run")) == ["again"]
