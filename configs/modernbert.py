"""ModernBERT in three phases: Warner et al. (2024), arXiv 2412.13663.

Run on every host of a TPU slice of 64 chips:

    python -m bertjax.train --distributed --config=configs/modernbert.py --workdir=gs://BUCKET/modernbert \
        --config.data.corpus='gs://BUCKET/corpus/*.jsonl.gz' --config.data.store=gs://BUCKET/stores

To see whether it fits and what it costs, compile it for the slice. This needs no TPU:

    python -m bertjax compile --config=configs/modernbert.py --topology=v5e:8x8

| setting | paper | where | here |
|---|---|---|---|
| layers, width | 22, 768 | 2.1 | the same, `modernbert_base` |
| positions | rotary; base 10,000, in global layers 160,000 from the second phase on | 2.2 | the same |
| attention | every third layer global, the others see 128 tokens | 2.1 | the same: 64 to either side |
| feed-forward | GeGLU | 2.1 | the same |
| norms | before each part but the first attention, after the embeddings | 2.1 | the same |
| biases | only in the decoder | 2.1 | the same |
| initialization | 0.02; outputs 0.02 / sqrt(2 L) (*) | | the same |
| objective | masked tokens, 30%, no sentence pairs | 2.2 | the same |
| phases | 1,719 billion tokens at 1,024; 250 and 50 billion at 8,192 (*) | 2.2 | as many, in three stages |
| batch | 4,608 rows, then 576 (*) | | the same |
| learning rate | 8e-4, then 3e-4 on long rows, both constant | 2.2 | the same |
| decay | 1-sqrt, over the last phase, to 0.1% (*) | 2.2 | the same |
| warm-up | 3 billion tokens | 2.2 | the same |
| optimizer | StableAdamW without clipping, b2 0.98 (*) | 2.2 | the same |
| weight decay | 1e-5 per step at the peak (*) | | the same: 0.0125, times the rate |
| vocabulary | 50,368 | 2.1 | the same, byte-level BPE trained on your corpus |
| packing | no padding | 2.1 | several examples per row, kept separate |

| variant | what |
|---|---|
| `modernbert.py:large` | the large model, see below |
| `modernbert.py:laptop` | 6 layers of width 256, 128 tokens, on the embedded corpus or yours: minutes on a CPU |
| `modernbert.py:smoke` | a very small model in three phases on the embedded corpus in under a minute |

On 8 chips the recipe needs no variant: it computes 8,192 tokens of a chip at once. Compiled for v5e:2x4, rows of 8,192
tokens take 4.3 of a chip's 15.75 GiB, in 72 micro-batches. It has not run on them.

`modernbert.py:large` has 28 layers of width 1,024, a peak of 5e-4 for 900 billion tokens after a warm-up of 2 billion,
and 5e-5 from then on (section 2.2).

(*) From the authors' published code, AnswerDotAI/ModernBERT, branch pretraining_documentation: yamls/modernbert,
modernbert-base-pretrain, -context-extension and -learning-rate-decay, and those of large. Its optimizer (main.py and
src/optimizer.py, `decoupled_stableadamw`) multiplies weights by 1 - rate / peak * weight decay, and ours by 1 - rate *
weight decay. The peak stays that of the first phase: `max_lr` is loaded from the checkpoint, and `restart_override`
resets only the rate and the weight decay.

Deviations:
- That code has a dropout of 0.1 on the output of attention; `model.dropout` has one rate for all layers, here 0.
- Its batch grows from 768 to 4,608 rows over 50 billion tokens. Here all batches of the first phase are whole
  (docs/guides/pretraining.md has such a ramp).
- The text has no code.
- Large starts with random weights, and has the batches of base. Theirs starts with copies of the weights of base, and
  has 4,928, then 616, then 624 rows (*).
- The weight decay of large falls with the rate, to 1e-6 per step. Theirs is set to 1e-6 at 5e-5, and falls to 1e-7 if
  their optimizer kept the peak of 5e-4 (*).
- Each phase of the authors reads its own corpus, and their optimizer keeps its moments. Here all steps read one corpus;
  `init_state` starts a phase as a run of its own, with its own corpus.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = {"preset": "modernbert_base"}
    config.data = {
        "corpus": "hf:wikimedia/wikipedia/20231101.en",
        "tokenizer": {"kind": "byte_bpe", "vocab_size": 50_368},
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
        "warmup_tokens": 3e9,
        "clip_norm": 0.0,
        "schedule": {"kind": "wsd", "decay_steps": 10_596, "decay": "1-sqrt", "floor": 0.001},
        "b2": 0.98,
        "weight_decay": 0.0125,  # 1e-5 / the peak
    }
    config.stages = [
        # The preset has the base of the published model, with which the last stages read.
        {"steps": 364_304, "seq_len": 1024, "batch": 4608, "rotary_base": 10_000.0},
        {"steps": 52_982, "seq_len": 8192, "batch": 576, "learning_rate": 3e-4},
        {"steps": 10_596, "seq_len": 8192, "batch": 576},  # the decay
    ]
    config.eval = {"every": 2500}
    config.runtime = {"micro_tokens": 8192, "log_every": 100}
    if variant == "large":
        config.model["preset"] = "modernbert_large"
        config.optimizer.update({"learning_rate": 5e-4, "warmup_tokens": 2e9, "weight_decay": 0.02})
        short, long, decay = config.stages
        slow = {"steps": 173_569, "seq_len": 1024, "batch": 4608, "rotary_base": 10_000.0, "learning_rate": 5e-5}
        config.stages = [{**short, "steps": 190_735}, slow, {**long, "learning_rate": 0.0}, decay]
    elif variant == "laptop":
        # Local layers see 16 tokens to either side, so that rows of 128 tell them from global ones.
        config.model.update({"layers": 6, "width": 256, "heads": 4, "feedforward": 384, "max_positions": 128})
        config.model.block = {"kind": "modern", "window": 32}
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "byte_bpe", "vocab_size": 8000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_tokens": 2e5})
        config.optimizer.schedule.decay_steps = 300
        config.stages = [{"steps": 1200, "seq_len": 128, "batch": 16}]
        config.eval = {"every": 300, "rows": 512}
        config.runtime = {"save_every": 300}
    elif variant == "smoke":
        config.model.update({"layers": 4, "width": 128, "heads": 2, "feedforward": 192})
        config.model.block = {"kind": "modern", "window": 8}
        config.data = {"corpus": "embedded:en", "tokenizer": {"kind": "byte_bpe", "vocab_size": 2000}}
        config.optimizer.update({"learning_rate": 1e-3, "warmup_tokens": 2e4})
        config.optimizer.schedule.decay_steps = 10
        config.stages = [
            {"steps": 40, "seq_len": 64, "batch": 32, "rotary_base": 10_000.0},
            {"steps": 5, "seq_len": 128, "batch": 16, "learning_rate": 4e-4},
            {"steps": 10, "seq_len": 128, "batch": 16},
        ]
        config.eval = {"every": 25, "rows": 64}
        config.runtime = {"micro_tokens": 1024, "save_every": 20}
    elif variant:
        raise ValueError(f"unknown variant {variant!r}; choose smoke, large or laptop")
    return config
