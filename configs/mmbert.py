"""mmBERT, a multilingual encoder with annealed language learning: Marone et al. (2025), arXiv 2509.06888.

Run on every host of a TPU slice of 64 chips. All three phases in one run, on the same languages:

    python -m bertjax.train --distributed --config=configs/mmbert.py --workdir=gs://BUCKET/mmbert \
        --config.data.store=gs://BUCKET/stores

As the authors did it, each phase is a run of its own, with more languages, drawn more evenly. The second and third one
start with the state of the run before, and with its tokenizer. SHARED is a folder on a disk that all hosts mount:

    python -m bertjax.train --distributed --config=configs/mmbert.py:phase1 --workdir=SHARED/phase1
    python -m bertjax.train --distributed --config=configs/mmbert.py:phase2 --workdir=SHARED/phase2 \
        --config.init_from=SHARED/phase1@487434 --config.init_state=True \
        --config.data.tokenizer.model=SHARED/phase1/tokenizer
    python -m bertjax.train --distributed --config=configs/mmbert.py:phase3 --workdir=SHARED/phase3 \
        --config.init_from=SHARED/phase2@503329 --config.init_state=True \
        --config.data.tokenizer.model=SHARED/phase1/tokenizer

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/mmbert.py --topology=v5e:8x8

| setting | authors | where | here |
|---|---|---|---|
| architecture | ModernBERT: 22 layers, width 768 or 384 | README (*) | the same, `mmbert_base`; `:small` |
| positions | rotary; base 10,000, from the second phase on 160,000 in all layers (*) | | the same |
| phases | 2,300 billion tokens at 1,024; 600 and 100 billion at 8,192 | paper, section 3 | as many, in three stages |
| languages | 60, then 110, then 1,833 | README (*) | 7, then 10, then 13 Wikipedias: add your own |
| sampling of languages | exponent 0.7, then 0.5, then 0.3 | README (*) | the same, in three runs |
| objective | masked tokens, 30%, then 15%, then 5% | README (*) | the same |
| batch | 4,608 rows, also of 8,192 tokens (*) | | the same |
| learning rate | 8e-4; small: 4e-4 from the second phase on (*) | | the same |
| decay | over the last phase: 1-sqrt to 2%; small: linear to 4% (*) | | the same |
| warm-up | 3 billion tokens; small: 4 (*) | | the same |
| optimizer | StableAdamW, b2 0.95, epsilon 1e-8 (*) | | the same |
| weight decay | 8e-5 per step; small: 4e-5 from the second phase on (*) | | the same: 0.1, times the rate |
| packing | several examples per row (*) | | the same |
| vocabulary | 256,000, the tokenizer of Gemma 2 | README (*) | BPE of this size, trained on your corpus |

(*) From the authors' published code, JHU-CLSP/mmBERT: README.md, configs/mmBERT-base.yaml, -ext.yaml, -decay.yaml and
those of mmBERT-small. There, the last part of the first phase of the base model has a masking rate of 25%. The
optimizer is ModernBERT's, whose weight decay is a share of the weights per step at the peak (configs/modernbert.py).

Deviations:
- That code has a dropout of 0.1 on the output of attention; here 0. Its batch grows in the first 60 billion tokens, for
  small in the first 100.
- The 4e-5 of small would be 2e-5 if their optimizer kept the peak of the first phase, which their code leaves open.
- Of the published text of the first phase, 60.2% is FineWeb2, which has no English, 30.2% DCLM, English web pages, and
  5.1% code (README of the data set jhu-clsp/mmBERT-pretrain-p3-others). Here each source has its share by the exponent.
- The published base model is an average of three decays: English, 110 and 1,833 languages. `bertjax merge` averages
  runs of `:phase3`.

`mmbert.py:smoke` trains a very small model in the same way on the embedded corpora in under a minute.
"""

import ml_collections

# The languages of Wikipedia that each phase adds.
LANGUAGES = (("de", "en", "es", "fr", "ja", "ru", "zh"), ("ko", "tr", "vi"), ("is", "sw", "yo"))
# The exponent of each phase: a source with n rows gets n^s / sum(n^s) of all.
SMOOTHING = (0.7, 0.5, 0.3)
SHORT_BASES = {"rotary_base": 10_000.0, "local_rotary_base": 10_000.0}
PHASES = ("phase1", "phase2", "phase3")
VARIANTS = ("smoke", *PHASES, "small", *(f"small-{phase}" for phase in PHASES))


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if variant and variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}; choose one of {', '.join(VARIANTS)}")
    is_small = variant.startswith("small")
    phases = int(variant[-1]) if "phase" in variant else 3
    config = ml_collections.ConfigDict()
    config.model = {"preset": "mmbert_small" if is_small else "mmbert_base"}
    languages = [language for added in LANGUAGES[:phases] for language in added]
    config.data = {
        "sources": {language: {"corpus": f"hf:wikimedia/wikipedia/20231101.{language}"} for language in languages},
        "smoothing": SMOOTHING[phases - 1] if "phase" in variant else SMOOTHING[0],
        "tokenizer": {"kind": "bpe", "vocab_size": 256_000},
    }
    config.tasks = {
        "mlm": {
            "objective": {"kind": "mlm", "masking": {"kind": "tokens", "rate": 0.3}},
            "examples": {"kind": "doc_sentences"},
        }
    }
    config.optimizer = {
        "kind": "stable_adamw",
        "learning_rate": 8e-4,
        "warmup_tokens": 4e9 if is_small else 3e9,
        "clip_norm": 0.0,
        "schedule": {"kind": "wsd", "decay_steps": 2649, "decay": "1-sqrt", "floor": 0.02},
        "b2": 0.95,
        "epsilon": 1e-8,
        "weight_decay": 0.1,  # 8e-5 / the peak
    }
    if is_small:
        config.optimizer.schedule.update({"decay": "linear", "floor": 0.04})
    config.stages = [
        {"steps": 487_434, "seq_len": 1024, "batch": 4608, **SHORT_BASES},
        {"steps": 15_895, "seq_len": 8192, "batch": 4608, "masking_rate": 0.15},
        {"steps": 2649, "seq_len": 8192, "batch": 4608, "masking_rate": 0.05},  # the decay
    ][:phases]
    if is_small and phases > 1:
        config.stages[1]["learning_rate"] = 4e-4
    if phases < 3:
        config.optimizer.schedule.decay_steps = 0
    if phases == 1:
        # A run ends with the model that it exports, so the first phase has its own rotary bases.
        config.model.block = {"kind": "modern", **SHORT_BASES}
    config.eval = {"every": 2500}
    config.runtime = {"micro_tokens": 8192, "log_every": 100}
    if variant == "smoke":
        config.model.update({"layers": 4, "width": 128, "heads": 2, "feedforward": 192})
        config.model.block = {"kind": "modern", "window": 8}
        sources = {language: {"corpus": f"embedded:{language}"} for language in ("en", "ko")}
        config.data = {"sources": sources, "smoothing": 0.7, "tokenizer": {"kind": "bpe", "vocab_size": 3000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_tokens": 2e4})
        config.optimizer.schedule.decay_steps = 10
        config.stages = [
            {"steps": 40, "seq_len": 64, "batch": 32, **SHORT_BASES},
            {"steps": 5, "seq_len": 128, "batch": 16, "masking_rate": 0.15},
            {"steps": 10, "seq_len": 128, "batch": 16, "masking_rate": 0.05},
        ]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    return config
