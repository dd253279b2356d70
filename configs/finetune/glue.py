"""GLUE (Wang et al., 2019, arXiv 1804.07461) as BERT was fine-tuned on it (Devlin et al., 2019, section 4.1).

    python -m bertjax.train --config=configs/finetune/glue.py:MRPC --config.init_from=EXPORT --seeds=5 \
        --workdir=runs/glue/MRPC

EXPORT is an export of a run (`runs/tiny/export`) or of a converted model (docs/guides/huggingface.md). Variants are
CoLA, SST-2, MRPC, STS-B, RTE, QQP, MNLI, QNLI and WNLI. The recipe reads the original files, such as
glue/MRPC/train.tsv and glue/MRPC/dev.tsv; `--config.tasks.MRPC.examples.train=` and `...heldout=` name others. MNLI
scores one model on both of its development sets, the second one named by `...further_heldout.mismatched=`. When the
tasks are trained in runs/glue,

    python -m bertjax evaluate runs/glue --suite=glue

prints the row of the paper's table 1.

    python -m bertjax.train --config=configs/finetune/glue.py:RTE-lora --config.init_from=EXPORT --workdir=runs/lora/RTE

`TASK-STYLE` has the settings that the authors of another method published: `roberta`, `albert`, `electra` (small and
base), `electra_large`, `xlnet`, and `lora`, which trains low-rank factors in place of the encoder. Each is for a model
of that kind. The tables are below.

| setting | paper | where | here |
|---|---|---|---|
| batch | 32 examples | section 4.1 | 32 on average: short examples share rows |
| epochs | 3 | section 4.1 | the same |
| learning rate | best of 5e-5, 4e-5, 3e-5, 2e-5 on dev | section 4.1 | 3e-5 |
| warm-up | a tenth of the steps | the published run_classifier.py | the same |
| optimizer | Adam with bias correction, weight decay 0.01 | Mosbach et al. (2021), arXiv 2006.04884 | the same |
| dropout on the pooled [CLS] | 0.1 | section 4.1 | that of the model |
| runs | several for BERT-Large, the best on dev | section 4.1 | 5 seeds, and their spread |

| style | settings | source |
|---|---|---|
| `roberta` | 10 epochs, weight decay 0.1, b2 0.98, no clipping, warm-up 6%; rates and batches in `ROBERTA` | [1] |
| `albert` | rates, batches, steps, warm-ups and the encoder's dropout in `ALBERT` | [2] |
| `electra` | 1e-4, layer decay 0.8, 3 epochs, 10 for RTE and STS-B, batch 32, warm-up 10%, weight decay 0.01 | [3] |
| `electra_large` | the same with 5e-5 and layer decay 0.9 | [3] |
| `xlnet` | MNLI: 2e-5, batch 128, 10,000 steps; STS-B: 5e-5, 32, 1,200, warm-up 120; weight decay 0.01 | [4] |
| `lora` | rank 8, alpha 16, weight decay 0.1, warm-up 6%; rates, epochs and batches in `LORA` | [5] |

1. RoBERTa-large: fairseq, examples/roberta/README.glue.md; Liu et al. (2019), arXiv 1907.11692, table 10. QQP warms up
   over a quarter of its steps. fairseq has no dropout before the head (`--pooler-dropout 0.0`), here it is that of the
   encoder.
2. ALBERT: Lan et al. (2020), arXiv 1909.11942, table 14, and run_glue.sh of google-research/albert.
3. ELECTRA: configure_finetuning.py and model/optimization.py of google-research/electra (Clark et al., 2020, arXiv
   2003.10555). The optimizer has no bias correction, and the last layer has the square of the layer decay. MRPC and
   STS-B are also trained with their sentences in the other order there, and not here.
   The rate of 1e-4 is the default of that code for small and base. For small, table 7 of the paper has 3e-4:
   `--config.optimizer.learning_rate=3e-4`.
   That code has no pooler: its classifier reads [CLS] after dropout. Here a dense layer and GELU come before it, as in
   transformers' `ElectraForSequenceClassification`. The style sets `model.pooler_activation=gelu`, since transformers
   holds no ELECTRA with another one.
4. XLNet-large: Yang et al. (2019), arXiv 1906.08237, table 8, for MNLI, and README.md of zihangdai/xlnet for STS-B. The
   table has no warm-up. Its layer decay of 0.75 is for SQuAD only.
5. LoRA on RoBERTa-base (Hu et al., 2021, arXiv 2106.09685): examples/NLU/roberta_base_*.sh of microsoft/LoRA, 8 devices
   times 16 or 32 examples. MRPC, RTE and STS-B start from the factors of MNLI there, and from `init_from` here.

RoBERTa, ALBERT and LoRA cut examples to 512 tokens, and all styles here to 128. The dropout before the classifier is
that of the encoder, also for ALBERT, whose table has 0.1 for it in every task.

    python -m bertjax.train --config=configs/finetune/glue.py:MNLI+RTE+MRPC --config.init_from=EXPORT \
        --workdir=runs/together

`TASK+TASK` trains one encoder with a head for each task, as MT-DNN does (Liu et al., 2019, arXiv 1901.11504): each step
has a batch of one task, in proportion to the rows of its file. The first task chooses the best checkpoint.

| setting | paper (section 4.2) | here |
|---|---|---|
| learning rate, batch, epochs | 5e-5, 32 examples, 5 | the same |
| warm-up, clipping | a tenth of the steps, norm 1 | the same |
| optimizer | Adamax | AdamW |
| longest example | 512 tokens | 128 |
| dropout before the head | 0.1; MNLI 0.3, CoLA 0.05 | that of the encoder |
| heads of pairs | stochastic answer networks | linear, on the pooled [CLS] |
"""

import ml_collections

from bertjax.analysis.labeled_files import COLUMNS, heldout_file

# MNLI is also scored on genres that its training file does not have.
FURTHER = {"MNLI": {"mismatched": "glue/MNLI/dev_mismatched.tsv"}}
# Tokens per row and the most examples that share one (0: one per 16 tokens). Sentences of these two tasks have 11 and
# 13 tokens on average. Rows of 128 tokens with 8 examples, which suit pairs, would be 69% and 71% full. These rows are
# 98% and 99.6% full, with attention over half as many tokens. 4 of SST-2's 67,349 sentences are cut to 64 tokens.
ROWS = {"CoLA": (64, 16), "SST-2": (64, 16)}
METRICS = {"CoLA": "matthews", "MRPC": "f1", "QQP": "f1"}
STYLES = ("roberta", "albert", "electra", "electra_large", "xlnet", "lora")
# {task: (learning rate, examples of a batch)}
ROBERTA = {
    "MNLI": (1e-5, 32),
    "QNLI": (1e-5, 32),
    "QQP": (1e-5, 32),
    "RTE": (2e-5, 16),
    "SST-2": (1e-5, 32),
    "MRPC": (1e-5, 16),
    "CoLA": (1e-5, 16),
    "STS-B": (2e-5, 16),
}
# {task: (learning rate, examples of a batch, dropout of the encoder, steps, warm-up steps)}
ALBERT = {
    "CoLA": (1e-5, 16, 0.0, 5_336, 320),
    "STS-B": (2e-5, 16, 0.0, 3_598, 214),
    "SST-2": (1e-5, 32, 0.0, 20_935, 1_256),
    "MNLI": (3e-5, 128, 0.0, 10_000, 1_000),
    "QNLI": (1e-5, 32, 0.0, 33_112, 1_986),
    "QQP": (5e-5, 128, 0.1, 14_000, 1_000),
    "RTE": (3e-5, 32, 0.1, 800, 200),
    "MRPC": (2e-5, 32, 0.0, 800, 200),
    "WNLI": (2e-5, 16, 0.1, 2_000, 250),
}
# {task: (learning rate, examples of a batch, steps, warm-up steps)}
XLNET = {"MNLI": (2e-5, 128, 10_000, 0), "STS-B": (5e-5, 32, 1_200, 120)}
# {task: (learning rate, epochs, examples of a batch)}
LORA = {
    "MNLI": (5e-4, 30.0, 128),
    "QNLI": (4e-4, 25.0, 256),
    "QQP": (5e-4, 25.0, 128),
    "RTE": (5e-4, 80.0, 256),
    "MRPC": (4e-4, 30.0, 128),
    "STS-B": (4e-4, 40.0, 128),
}
PUBLISHED = {"roberta": ROBERTA, "albert": ALBERT, "xlnet": XLNET, "lora": LORA}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    if "+" in variant:
        return _together(variant.split("+"))
    task, _, style = variant.rpartition("-")
    if style in STYLES:
        return _styled(get_config(task), task, style)
    if variant not in COLUMNS:
        raise ValueError(f"name a task: {', '.join(COLUMNS)}; TASK-STYLE with one of {', '.join(STYLES)}; or TASK+TASK")
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
                "heldout": f"glue/{variant}/{heldout_file(variant)}",
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


def _together(tasks: list[str]) -> ml_collections.ConfigDict:
    """Return the configuration of several tasks in one training."""
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"{'+'.join(tasks)} names a task twice; name each once")
    configs = {task: get_config(task) for task in tasks}
    config = configs[tasks[0]]
    config.tasks = {task: {**one.tasks[task].to_dict(), "weight": None} for task, one in configs.items()}
    for task in set(tasks) & ROWS.keys():
        seq_len, row_examples = ROWS[task]
        config.tasks[task].row_examples = row_examples * 128 // seq_len
    config.optimizer = {"learning_rate": 5e-5, "warmup_share": 0.1}
    config.stages = [{"epochs": 5.0, "seq_len": 128, "examples": 32}]
    return config


def _styled(config: ml_collections.ConfigDict, task: str, style: str) -> ml_collections.ConfigDict:
    """Return the configuration of a task with the settings of a style."""
    published = PUBLISHED.get(style, COLUMNS)
    if task not in published:
        raise ValueError(f"{task}-{style} has no published settings; choose a task among {', '.join(published)}")
    optimizer, stage = {}, config.stages[0]
    if style == "roberta":
        optimizer["learning_rate"], stage["examples"] = ROBERTA[task]
        stage["epochs"] = 10.0
        optimizer |= {
            "weight_decay": 0.1,
            "b2": 0.98,
            "clip_norm": 0.0,
            "warmup_share": 0.25 if task == "QQP" else 0.06,
        }
    elif style == "albert":
        rate, stage["examples"], dropout, stage["steps"], warmup_steps = ALBERT[task]
        config.model.update({"dropout": dropout, "attention_dropout": dropout})
        optimizer = {"learning_rate": rate, "warmup_steps": warmup_steps}
    elif style == "xlnet":
        optimizer["learning_rate"], stage["examples"], stage["steps"], optimizer["warmup_steps"] = XLNET[task]
    elif style == "lora":
        optimizer["learning_rate"], stage["epochs"], stage["examples"] = LORA[task]
        optimizer |= {"weight_decay": 0.1, "warmup_share": 0.06}
        config.lora = {"rank": 8, "alpha": 16.0, "kernels": "query|value"}
    else:
        rate, decay = (5e-5, 0.9) if style == "electra_large" else (1e-4, 0.8)
        stage["epochs"] = 10.0 if task in ("RTE", "STS-B") else 3.0
        optimizer = {"learning_rate": rate, "layer_decay": decay, "layer_decay_offset": 2, "warmup_share": 0.1}
        optimizer["bias_correction"] = False
        config.model["pooler_activation"] = "gelu"
    if "steps" in stage:
        del stage["epochs"]
    config.optimizer = optimizer
    return config
