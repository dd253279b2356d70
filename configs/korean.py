"""BERT base for Korean text: full sentences, whole words masked, Unigram pieces, no text lost.

    python -m bertjax prepare --config=configs/korean.py --config.data.corpus='my/texts/*.jsonl.gz' --show=2
    python -m bertjax.train --config=configs/korean.py --config.data.corpus='my/texts/*.jsonl.gz'

The model is as large as BERT base. The other settings are this project's choice for Korean and are of no paper:
docs/guides/your_language.md has the reasons and says which of them to change for another language.

| setting | here | because |
|---|---|---|
| tokenizer | Unigram, 32,000 pieces | it finds particles and endings, and restores the text |
| normalizer | NFC | NFKC turns a circled number into a plain one and square meters into m2 |
| coverage | 1 | every Hanja and sign of the sample is a piece; what is not in the sample becomes bytes |
| examples | full sentences of one document | pairs cut text away, and next-sentence labels teach little |
| masking | whole words, 15% | a particle alone is easy to guess |

| variant | what |
|---|---|
| `korean.py:laptop` | 3 layers of width 256, 128 tokens, on the embedded Korean corpus or yours: minutes on a CPU |
| `korean.py:v5e-8` | the recipe on 8 chips of TPU v5e, as `bert_base.py:v5e-8`: no activation is computed twice |
| `korean.py:smoke` | a very small model at both lengths on the embedded Korean corpus in under a minute |
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "base", "dropout": 0.1, "attention_dropout": 0.1}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.ko",
        "tokenizer": {"kind": "unigram", "vocab_size": 32_000, "normalizer": "nfc", "character_coverage": 1.0},
    }
    config.tasks = {
        "mlm": {"objective": {"kind": "mlm", "masking": {"kind": "words"}}, "examples": {"kind": "doc_sentences"}}
    }
    config.optimizer = {"learning_rate": 1e-4, "warmup_steps": 10_000}
    config.stages = [{"steps": 900_000, "seq_len": 128, "batch": 256}, {"steps": 100_000, "seq_len": 512, "batch": 256}]
    config.eval = {"every": 10_000}
    config.runtime = {"log_every": 100}
    if variant == "v5e-8":
        config.runtime["remat"] = "none"
    elif variant == "laptop":
        # Too short to memorize any text. Weights of 0.02 leave the attention of a narrow model uniform for long.
        config.model = {"preset": "tiny", "max_positions": 128, "dropout": 0.0, "attention_dropout": 0.0}
        config.model["init_stddev"] = 0.04
        config.data["corpus"], config.data["tokenizer"]["vocab_size"] = "embedded:ko", 8000
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 120}
        config.stages = [{"steps": 1200, "seq_len": 128, "batch": 16}]
        config.eval = {"every": 300, "rows": 512}
        config.runtime = {"save_every": 300}
    elif variant == "smoke":
        config.model["preset"] = "google_tiny"
        config.data["corpus"] = "embedded:ko"
        config.data["tokenizer"]["vocab_size"] = 3000
        config.optimizer = {"learning_rate": 1e-3, "warmup_steps": 10}
        config.stages = [{"steps": 40, "seq_len": 32, "batch": 32}, {"steps": 10, "seq_len": 64, "batch": 32}]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke, laptop or v5e-8")
    return config
