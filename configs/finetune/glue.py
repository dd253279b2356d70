"""GLUE (Wang et al., 2019, arXiv 1804.07461) as BERT was fine-tuned on it (Devlin et al., 2019, section 4.1).

    python -m bertjax.train --config=configs/finetune/glue.py:MRPC --config.init_from=EXPORT --seeds=5 \
        --workdir=runs/glue/MRPC

EXPORT is an export of a run (`runs/tiny/export`) or of a converted model (docs/guides/huggingface.md). Variants are
CoLA, SST-2, MRPC, STS-B, RTE, QQP, MNLI, QNLI and WNLI. The recipe reads the original files, such as
glue/MRPC/train.tsv and glue/MRPC/dev.tsv; `--config.tasks.MRPC.examples.train=` and `...heldout=` name others. MNLI
scores one model on both of its development sets, the second one named by `...further_heldout.mismatched=`. When the
tasks are trained in runs/glue,

    python -m bertjax.evaluate runs/glue --suite=glue

prints the row of the paper's table 1.

    python -m bertjax.train --config=configs/finetune/glue.py:RTE-lora --config.init_from=EXPORT --workdir=runs/lora/RTE

`TASK-lora` trains low-rank factors in place of the encoder (Hu et al., 2021, arXiv 2106.09685), with the settings that
its authors published for RoBERTa-base.

| setting | paper | where | here |
|---|---|---|---|
| batch | 32 examples | section 4.1 | 32 on average: short examples share rows |
| epochs | 3 | section 4.1 | the same |
| learning rate | best of 5e-5, 4e-5, 3e-5, 2e-5 on dev | section 4.1 | 3e-5 |
| warm-up | a tenth of the steps | the published run_classifier.py | the same |
| optimizer | Adam with bias correction, weight decay 0.01 | Mosbach et al. (2021), arXiv 2006.04884 | the same |
| dropout on the pooled [CLS] | 0.1 | section 4.1 | that of the model |
| runs | several for BERT-Large, the best on dev | section 4.1 | 5 seeds, and their spread |

| setting of `TASK-lora` | the authors' | where | here |
|---|---|---|---|
| rank, alpha, weight decay, warm-up | 8, 16, 0.1, 6% of the steps | scripts/roberta_base_*.sh | the same |
| kernels | of queries and values | paper, section 7.1 | the same |
| learning rate, epochs, batch | by task, see `LORA` | scripts/roberta_base_*.sh | the same |
| longest example | 512 tokens | scripts/roberta_base_*.sh | 128 tokens |
| first model of MRPC, RTE and STS-B | the factors of MNLI | scripts/roberta_base_*.sh | `init_from` |

The scripts are those in examples/NLU of microsoft/LoRA. A batch there is 8 devices times 16 or 32 examples.
"""

import ml_collections

# Columns of the original files: text, second text, label; a number is a column of a file without a header.
COLUMNS = {
    "CoLA": ("3", "", "1"),
    "SST-2": ("sentence", "", "label"),
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "STS-B": ("sentence1", "sentence2", "score"),
    "RTE": ("sentence1", "sentence2", "label"),
    "QQP": ("question1", "question2", "is_duplicate"),
    "MNLI": ("sentence1", "sentence2", "gold_label"),
    "QNLI": ("question", "sentence", "label"),
    "WNLI": ("sentence1", "sentence2", "label"),
}
# Development sets not called dev.tsv: MNLI has one of the genres of the training file, and one of others.
HELDOUT = {"MNLI": "dev_matched.tsv"}
FURTHER = {"MNLI": {"mismatched": "glue/MNLI/dev_mismatched.tsv"}}
# Tokens per row and the most examples that share one (0: one per 16 tokens). Sentences of these two tasks have 11 and
# 13 tokens on average. Rows of 128 tokens with 8 examples, which suit pairs, would be 69% and 71% full. These rows are
# 98% and 99.6% full, with attention over half as many tokens. 4 of SST-2's 67,349 sentences are cut to 64 tokens.
ROWS = {"CoLA": (64, 16), "SST-2": (64, 16)}
METRICS = {"CoLA": "matthews", "MRPC": "f1", "QQP": "f1"}
# {task: (learning rate, epochs, examples of a batch)} of LoRA on RoBERTa-base.
LORA = {
    "MNLI": (5e-4, 30.0, 128),
    "QNLI": (4e-4, 25.0, 256),
    "QQP": (5e-4, 25.0, 128),
    "RTE": (5e-4, 80.0, 256),
    "MRPC": (4e-4, 30.0, 128),
    "STS-B": (4e-4, 40.0, 128),
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if variant.endswith("-lora"):
        return _lora(variant.removesuffix("-lora"))
    if variant not in COLUMNS:
        raise ValueError(f"name a task: {', '.join(COLUMNS)}, or TASK-lora")
    text, pair, label = COLUMNS[variant]
    objective = {"kind": "classification", "metric": METRICS.get(variant, "accuracy")}
    if variant == "STS-B":
        objective = {"kind": "regression"}
    seq_len, row_examples = ROWS.get(variant, (128, 0))
    config = ml_collections.ConfigDict()
    config.model = {"preset": "init_from"}
    config.tasks = {
        variant: {
            "objective": objective,
            "examples": {
                "kind": "labeled_text",
                "train": f"glue/{variant}/train.tsv",
                "heldout": f"glue/{variant}/{HELDOUT.get(variant, 'dev.tsv')}",
                "further_heldout": FURTHER.get(variant, {}),
                "text": text,
                "pair": pair,
                "label": label,
            },
            "row_examples": row_examples,
        }
    }
    config.optimizer = {"learning_rate": 3e-5, "warmup_share": 0.1}
    config.stages = [{"epochs": 3.0, "seq_len": seq_len, "examples": 32}]
    config.eval = {"every": 0, "rows": 0, "samples": 0}
    # On a CPU, unrolling makes a step of six layers 4% to 15% faster and does not lengthen compilation.
    config.runtime = {"keep_best": 1, "unroll": True}
    return config


def _lora(task: str) -> ml_collections.ConfigDict:
    if task not in LORA:
        raise ValueError(f"{task}-lora has no published settings; choose among {', '.join(LORA)}")
    config = get_config(task)
    learning_rate, epochs, examples = LORA[task]
    config.lora = {"rank": 8, "alpha": 16.0, "kernels": "query|value"}
    config.optimizer = {"learning_rate": learning_rate, "warmup_share": 0.06, "weight_decay": 0.1}
    config.stages[0].update({"epochs": epochs, "examples": examples})
    return config
