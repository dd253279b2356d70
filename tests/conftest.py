"""Fixtures of all tests: quick compilation, a token store, and one very small finished run."""

import gc
import gzip
import importlib.resources
import json
import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxlib.version
import numpy as np
import pytest

from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from tests import runs

# A program is compiled as one module: XLA compiles several at the same time, takes a third longer for them, and rounds
# equal loops differently from one program to the next. Its older emitters of fused loops take less than half of the
# time of the newer ones. jaxlib 0.11 has the newer ones only, and aborts the process at the flag that chooses.
QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jaxlib.version.__version_info__ < (0, 11):
    QUICK_FLAGS += " --xla_cpu_use_fusion_emitters=false"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="run the K-th of N parts of the test files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the files of one part, chosen by a hash of their names."""
    if config.option.part:
        part, parts = map(int, config.option.part.split("/"))
        kept = [item for item in items if zlib.crc32(item.location[0].encode()) % parts == part - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """Compile fast rather than well, and each program once for all the processes that the tests start.

    JAX reads the environment when it is imported: nothing above may import it.
    """
    os.environ.setdefault("XLA_FLAGS", QUICK_FLAGS)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu, which some tests compile with, finds no TPU and prints so
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # else gcsfs asks Google about each bucket
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.cache.mkdir("compiled"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    # By default, an example fails that takes 0.2 s, and so does a slow draw of them: on a busy machine, any may.
    hypothesis.settings.register_profile(
        "any speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any speed")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what collecting made: thousands of tests, which stay until the end.

    A third of the time of collecting is the collector's, and traces of JAX make it run again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def few_programs_in_memory() -> Iterator[None]:
    """Forget compiled programs before there are too many.

    Each is mapped into memory a few times, Linux allows a process 65,530 mappings, and XLA crashes at the limit.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        import jax

        jax.clear_caches()


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> TokenStore:
    """Sixty documents of made-up words, on disk as any store is."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(2, 7))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(rng.choice(words, rng.integers(2, 12))).capitalize() + "."

    documents = [" ".join(sentence() for _ in range(rng.integers(1, 30))) for _ in range(60)]
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    tokenizer = TokenizerConfig(vocab_size=400)
    return prepare(
        DataConfig(str(folder / "corpus.txt"), heldout_share=0.2, tokenizer=tokenizer, store=str(folder / "stores"))
    )


@pytest.fixture(scope="session")
def excerpt(tmp_path_factory) -> Path:
    """60 shortened documents of the embedded corpus, one in each paragraph."""
    source = importlib.resources.files("bertjax.data") / "embedded" / "en.jsonl.gz"
    with gzip.open(str(source), "rt", encoding="utf-8") as file:
        documents = [" ".join(json.loads(next(file))["text"].split())[:2500] for _ in range(60)]
    path = tmp_path_factory.mktemp("excerpt") / "texts.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def flags(tmp_path_factory) -> list[str]:
    """The command line of a very small run, without its workdir."""
    folder = tmp_path_factory.mktemp("small")
    corpus = runs.write_corpus(folder / "corpus.txt")
    return [f"--config={runs.CONFIG}", f"--config.data.corpus={corpus}", f"--config.data.store={folder / 'stores'}"]


@pytest.fixture
def refused(flags, tmp_path, capsys):
    """refused(*flags) -> the line with which a command ends; the workdir is new, and must not have begun."""

    def refuse(*more: str) -> str:
        capsys.readouterr()
        code = runs.call(*flags, f"--workdir={tmp_path / 'run'}", *more)
        output = capsys.readouterr()
        assert code == 2, output.err
        assert output.err.startswith("error: ") and output.err.count("\n") == 1, output.err
        assert "Traceback" not in output.err + output.out and len(output.err) < 800, output.err
        assert {path.name for path in (tmp_path / "run").glob("*")} <= {".lock"}
        return output.err

    return refuse


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of six megabytes."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.fixture(scope="module")
def shared_programs() -> Iterator[None]:
    """Also what is trained and scored in this process without the functions of `runs` shares programs."""
    with runs.shared_programs():
        yield


@pytest.fixture(scope="session")
def undisturbed(flags, tmp_path_factory) -> Path:
    """Workdir of such a run that nothing disturbed. Not to be written to."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert runs.call(*flags, f"--workdir={workdir}") == 0
    return workdir
