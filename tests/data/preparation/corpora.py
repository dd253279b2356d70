"""Made-up corpora, and preparations of them in a process that may be killed."""

import random
import subprocess
import sys

from bertjax.data.preparation import shards


def write_corpus(path, documents, seed=0):
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(500)]
    with open(path, "w") as file:
        for _ in range(documents):
            for _ in range(draw.randint(2, 9)):
                file.write(" ".join(draw.choices(words, k=12)).capitalize() + ".\n")
            file.write("\n")


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_a_process(config, afterward="", shard_bytes=shards.SHARD_BYTES):
    code = (
        "import re\nfrom bertjax.data.preparation import shards\nfrom bertjax.data.preparation.prepare import prepare\n"
        "from bertjax.data.config import *\n"
        f"shards.SHARD_BYTES = {shard_bytes}\nprepare({config})\n{afterward}"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
