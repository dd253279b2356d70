"""A very small BERT on the embedded English corpus, trained in about 20 minutes of CPU time.

    python -m bertjax.train --config=configs/tiny.py

What makes it quick is measured in `docs/results/tiny.md`. The variants train as BERT was trained, with AdamW from
random weights: `tiny.py:adamw` on the same text, with four times the steps; `tiny.py:ko` on the embedded Korean corpus
of court decisions. `tiny.py:smoke` runs every part in under a minute. `tiny.py:chars` learns to spell (its vocabulary
is the characters) in about three minutes. In `tiny.py:fixed` seven of eight heads have fixed attention maps, as
Raganato et al. (2020) trained them for translation; `--config.model.block.fixed_heads=[]` has eight learned heads
instead.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # This training is too short to memorize any text, so dropout would only slow it down.
    # In a narrow model, weights as small as BERT's 0.02 leave attention uniform for thousands of steps.
    config.model = {
        "preset": "tiny",
        "max_positions": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "init_stddev": 0.04,
    }
    # Each position embedding learns its neighbors separately, so fewer positions learn sooner.
    config.stages = [{"steps": 1100, "seq_len": 32, "batch": 48, "masking_rate": 0.25}]
    config.optimizer = {"kind": "muon", "block": 64, "learning_rate": 2e-3, "warmup_steps": 50, "b2": 0.98}
    # Words start from counts and heads at neighbors: from random weights, both take several hundred steps.
    config.init_words = config.init_neighbors = True
    if variant:
        config.stages = [{"steps": 4000, "seq_len": 32, "batch": 48}]
        config.optimizer = {"learning_rate": 1.2e-3, "warmup_steps": 300, "b2": 0.98}
        config.init_words = config.init_neighbors = False
    # Rows of 32 tokens are short enough without BERT's tenth of even shorter pairs, and most sentences fill one: chunks
    # of two sentences keep the labels even. The ends of A and B that meet are not cut, so that text is continuous, and
    # each epoch cuts and pairs it in another way.
    examples = {"kind": "segment_pairs", "short_seq_prob": 0.0, "fewest": 2, "trim": "outer_ends"}
    config.tasks = {"bert": {"examples": examples, "plans": 8}}
    config.eval = {"every": 500}
    config.runtime = {"unroll": True, "save_every": 250}
    if variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data = {"tokenizer": {"vocab_size": 2000}}
        config.stages = [{"steps": 60, "seq_len": 32, "batch": 32}]
        config.optimizer["warmup_steps"] = 10
        config.eval = {"every": 30, "rows": 64}
        config.runtime["save_every"] = 20
    elif variant == "chars":
        config.data = {"tokenizer": {"kind": "char", "vocab_size": 200, "byte_fallback": False}}
        config.model.update({"preset": "google_tiny", "max_positions": 64, "init_stddev": 0.08})
        config.stages = [{"steps": 1700, "seq_len": 64, "batch": 32}]
        config.optimizer.update({"learning_rate": 1e-3, "warmup_steps": 100})
        config.eval = {"every": 850, "rows": 512}
    elif variant == "fixed":
        config.model["preset"] = "fixed_tiny"
    elif variant == "ko":
        config.data = {"corpus": "embedded:ko"}
    elif variant not in ("", "adamw"):
        raise ValueError(f"unknown variant {variant!r}; choose smoke, adamw, chars, fixed or ko")
    return config
