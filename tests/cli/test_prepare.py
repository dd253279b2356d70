"""The command line of `bertjax prepare`, run as a user runs it."""

import subprocess
import sys

CORPUS = "".join(f"Document {i} tells a story. It has {i} ends.\n\n" for i in range(100))


def prepare(*arguments):
    command = [sys.executable, "-m", "bertjax", "prepare", "--config=configs/tiny.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_prepare_makes_a_store_and_prints_its_contents(tmp_path):
    (tmp_path / "corpus.txt").write_text(CORPUS)
    done = prepare(
        f"--config.data.corpus={tmp_path}/corpus.txt",
        f"--config.data.store={tmp_path}/stores",
        "--config.data.tokenizer.vocab_size=300",
        "--verify",
        "--show=2",
    )
    assert done.returncode == 0, done.stderr
    assert " -m bertjax report " in done.stdout.splitlines()[-1]
    assert "\nrow 1: " in done.stdout and "real tokens" in done.stdout
    [picture] = (tmp_path / "stores").glob("*/plans/*/packing.png")
    assert str(picture) in done.stdout
    [store] = (tmp_path / "stores").glob("corpus-????????????")
    assert str(store) in done.stdout and "every file has the hash that was recorded" in done.stdout


def test_bad_input_is_one_line_and_exit_code_2(tmp_path):
    done = prepare(f"--config.data.corpus={tmp_path}/none.txt")
    assert done.returncode == 2
    assert done.stderr.startswith("error: corpus") and done.stderr.count("\n") == 1


def test_show_needs_at_least_one_row():
    done = prepare("--show=0")
    assert (done.returncode, done.stderr) == (2, "error: --show=0 must be at least 1, the number of rows to print\n")


def test_weights_that_leave_a_source_no_rows_are_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text(CORPUS)
    (tmp_path / "more.txt").write_text(CORPUS.replace("story", "tale"))
    sources = [f"--config.data.sources.{name}.corpus={tmp_path}/{name}.txt" for name in ("corpus", "more")]
    flags = (*sources, f"--config.data.store={tmp_path}/stores", "--config.data.tokenizer.vocab_size=300")
    done = prepare(*flags, "--config.data.sources.more.weight=3")
    assert done.returncode == 0 and "32 tokens: sources of the rows: corpus 2" in done.stdout, done.stderr
    done = prepare(*flags, "--config.data.sources.more.weight=1e-5")
    assert done.returncode == 2 and "data.sources.more would have 0.001% of the rows" in done.stderr
