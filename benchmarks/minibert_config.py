"""A small encoder of English and Korean text, from which `benchmarks.minibert` makes its teacher and students.

    python -m bertjax.train --config=benchmarks/minibert_config.py --workdir=runs/english_korean

Both languages have one vocabulary and half of the tokens each. The corpora are the embedded ones;
`--config.data.sources.english.corpus=` and `...korean.corpus=` name others.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # This training is too short to memorize any text, and narrow, as in configs/tiny.py.
    config.model = {
        "preset": "tiny",
        "layers": 6,
        "max_positions": 128,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "init_stddev": 0.04,
    }
    config.data = {
        "sources": {
            "english": {"corpus": "embedded:en", "token_share": 0.5},
            "korean": {"corpus": "embedded:ko", "token_share": 0.5},
        },
        "tokenizer": {"kind": "unigram", "vocab_size": 16_000, "normalizer": "nfc"},
    }
    config.tasks = {"mlm": {"objective": {"kind": "mlm"}, "examples": {"kind": "full_sentences"}}}
    config.optimizer = {"learning_rate": 1e-3, "warmup_share": 0.1, "b2": 0.98}
    # As in configs/tiny.py: short rows have few positions to learn. The long ones are for the longest sentences.
    config.stages = [{"steps": 2700, "seq_len": 32, "batch": 64}, {"steps": 300, "seq_len": 128, "batch": 16}]
    config.eval = {"every": 0, "samples": 0}
    return config
