"""One measurement of `benchmarks.prepare`, in a process of its own: prints seconds, characters and peak memory as JSON.

    python -m benchmarks.arms.preparing bare|prepare|near CORPUS MODEL STORE [KEPT]

`near` is `prepare` that drops near-duplicates. MODEL is a tokenizer folder, or nothing to train one. KEPT is the folder
of `prepare --keep-shards`.
"""

import contextlib
import json
import resource
import sys
import time
from pathlib import Path

from bertjax.data import sources, tokenizer
from bertjax.data.config import DataConfig, NearDuplicates, TokenizerConfig
from bertjax.data.preparation.encoding import BATCH_CHARACTERS
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.prepare import prepare
from bertjax.data.text.sentences import split


def bare(corpus: str, model: str) -> dict:
    """Time only `Tokenizer.encode`, without reading and splitting."""
    encode, seconds, characters = tokenizer.from_model(model).encode, 0.0, 0
    sentences, waiting = [], 0
    encode(["a first sentence loads the model"])

    def flush() -> None:
        nonlocal seconds, sentences, waiting
        start = time.process_time()
        encode(sentences)
        seconds += time.process_time() - start
        sentences, waiting = [], 0

    for document in sources.documents(corpus, "text"):
        sentences += split(document.text, "punctuation")
        waiting += len(document.text)
        characters += len(document.text)
        if waiting >= BATCH_CHARACTERS:
            flush()
    flush()
    return {"seconds": seconds, "characters": characters}


def prepared(corpus: str, model: str, store: str, kept: str, near: NearDuplicates) -> dict:
    """Time all of `prepare` in one process."""
    tokens = TokenizerConfig(model=model)
    config = DataConfig(corpus=corpus, store=store, workers=0, tokenizer=tokens, near_duplicates=near)
    start = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        made = prepare(config, Local(Path(kept) if kept else None))
    seconds = time.process_time() - start
    size = sum(path.stat().st_size for path in made.path.rglob("*") if path.is_file())
    text = sum(counts["bytes"] for counts in made.manifest["splits"].values())
    return {"seconds": seconds, "disk": size / text}


def main(arm: str, corpus: str, model: str, store: str, kept: str = "") -> None:
    """The command line."""
    near = NearDuplicates(drop=arm == "near")
    measured = bare(corpus, model) if arm == "bare" else prepared(corpus, model, store, kept, near)
    status = Path("/proc/self/status")
    # On Linux `ru_maxrss` would start from the peak of the process that started this one.
    kibibytes = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")] or [
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ]
    print(json.dumps(measured | {"peak": int(kibibytes[0]) * 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
