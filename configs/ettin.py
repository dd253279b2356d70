"""Ettin, encoders of 17 million to 1 billion parameters on public data: Weller et al. (2025), arXiv 2507.11412.

Run on every host of a TPU slice of 64 chips, here for the size `150m`:

    python -m bertjax.train --distributed --config=configs/ettin.py --workdir=gs://BUCKET/ettin \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/ettin.py --topology=v5e:8x8

`ettin.py:SIZE` is another size: 17m, 32m, 68m, 150m, 400m or 1b.

| setting | authors | where | here |
|---|---|---|---|
| architecture | ModernBERT, layers x width of each size | table 1 | the same, presets `ettin_SIZE` |
| rotary base | 10,000, from the second phase on 160,000; local layers of 17m: from the third on (*) | | the same |
| objective | masked tokens, 30%, in the last phase 15% (*) | | the same |
| phases | 1,700 billion tokens at 1,024; 250 and 50 billion at 7,999 (*) | | as many, in three stages |
| batch | 4,608 rows (*) | | 4,608, then 576 rows |
| learning rate | 3e-3 up to 68m, 8e-4 for 150m, 5e-4 above; half of it in the last phase (*) | | the same |
| decay | 1-sqrt over the last phase, to 2% of the peak (*) | | the same |
| warm-up | 2 to 4 billion tokens (*) | | the same |
| optimizer | StableAdamW, b2 0.98 (*) | | the same |
| weight decay | per step at the peak: 3e-4 up to 68m, 1e-5; 1b: 5e-5 (*) | | the same: it / peak, times the rate |
| vocabulary | 50,368, the tokenizer of ModernBERT | | byte-level BPE of this size, trained on your corpus |

(*) From the authors' published code, JHU-CLSP/ettin-encoder-vs-decoder: pretraining/configs/standard, SIZE (17m is
very_tiny, 32m tiny, 68m mini, 150m base, 400m large, 1b huge), encoder_SIZE.yaml, de_decay and prolong_decay. The
optimizer is ModernBERT's, whose weight decay is a share of the weights per step at the peak (configs/modernbert.py).

Deviations:
- In the second phase the authors' rate falls from the peak to half of it by 1-sqrt. Here it is half of it throughout.
- That code has a dropout of 0.1 on the output of attention; here 0. Its batch grows in the first 3 to 125 billion
  tokens.
- Its rows have one document each and are filled up with padding, which it does not count (`sequence_packing: false`):
  about 600,000, 100,000 and 20,000 steps, says pretraining/README.md. Here rows have several documents and no padding,
  so that as many tokens are 360,277, 52,982 and 10,596 steps. A batch of 576 long rows has the tokens of 4,608 short
  ones. Long rows have 8,192 tokens, in documents of at most 7,999.
- The 1b model was stopped after a third of the last two phases.
- Each phase of the authors reads its own corpus (jhu-clsp/ettin-pretraining-data, ettin-extension-data and
  ettin-decay-data on Hugging Face, as token ids). Here all steps read one corpus of text; `init_state` starts a phase
  as a run of its own, with its own corpus.

`ettin.py:smoke` trains a very small model in the same way on the embedded corpus in under a minute.
"""

import ml_collections

# {size: (peak of the learning rate, warm-up in billions of tokens, weight decay per step at the peak)}
SIZES = {
    "17m": (3e-3, 4, 3e-4),
    "32m": (3e-3, 4, 3e-4),
    "68m": (3e-3, 3, 3e-4),
    "150m": (8e-4, 3, 1e-5),
    "400m": (5e-4, 2, 1e-5),
    "1b": (5e-4, 2, 5e-5),
}
SHORT_BASES = {"rotary_base": 10_000.0, "local_rotary_base": 10_000.0}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    size = "150m" if variant in ("", "smoke") else variant
    if size not in SIZES:
        raise ValueError(f"unknown variant {variant!r}; choose smoke or one of {', '.join(SIZES)}")
    peak, warmup, decay_at_peak = SIZES[size]
    config = ml_collections.ConfigDict()
    config.model = {"preset": f"ettin_{size}"}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "byte_bpe", "vocab_size": 50_368},
    }
    config.tasks = {
        "mlm": {
            "objective": {"kind": "mlm", "masking": {"kind": "tokens", "rate": 0.3}},
            "examples": {"kind": "doc_sentences", "max_tokens": 7999},
        }
    }
    config.optimizer = {
        "kind": "stable_adamw",
        "learning_rate": peak,
        "warmup_tokens": warmup * 1e9,
        "clip_norm": 0.0,
        "schedule": {"kind": "wsd", "decay_steps": 10_596, "decay": "1-sqrt", "floor": 0.04},
        "b2": 0.98,
        "weight_decay": decay_at_peak / peak,
    }
    config.stages = [
        {"steps": 360_277, "seq_len": 1024, "batch": 4608, **SHORT_BASES},
        {"steps": 52_982, "seq_len": 8192, "batch": 576, "learning_rate": peak / 2},
        {"steps": 10_596, "seq_len": 8192, "batch": 576, "masking_rate": 0.15},  # the decay
    ]
    if size == "17m":
        config.stages[1]["local_rotary_base"] = SHORT_BASES["local_rotary_base"]
    config.eval = {"every": 2500}
    config.runtime = {"micro_tokens": 8192, "log_every": 100}
    if variant == "smoke":
        config.model.update({"layers": 4, "width": 128, "heads": 2, "feedforward": 192})
        config.model.block = {"kind": "modern", "window": 8}
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "byte_bpe", "vocab_size": 2000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_tokens": 2e4})
        config.optimizer.schedule.decay_steps = 10
        config.stages = [
            {"steps": 40, "seq_len": 64, "batch": 32, **SHORT_BASES},
            {"steps": 5, "seq_len": 128, "batch": 16, "learning_rate": 5e-4},
            {"steps": 10, "seq_len": 128, "batch": 16, "masking_rate": 0.15},
        ]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    return config
