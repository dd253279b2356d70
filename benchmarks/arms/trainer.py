"""transformers' `Trainer` fine-tunes a BERT on PyTorch, as its users do: dynamic padding, all else its default.

    python -m benchmarks.arms.trainer JOB

JOB is a JSON file that `benchmarks/finetuning.py` writes. Into the folder of that file go `predictions.json`, one for
each held-out record in the order of the file, and `figures.json`.
"""

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "accelerate")


def encoded(tokenizer: Any, records: list[dict], seq_len: int) -> list[dict]:
    """Token ids of at most T tokens and the label of each record, not padded yet."""
    columns = [list(column) for column in zip(*(record["texts"] for record in records))]
    found = tokenizer(*columns, truncation=True, max_length=seq_len)
    return [
        {name: values[index] for name, values in found.items()} | {"labels": record["label"]}
        for index, record in enumerate(records)
    ]


def run(job: dict[str, Any], folder: Path) -> None:
    """Trains, predicts, and writes both results."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    torch.set_num_threads(job["threads"])
    set_seed(job["seed"])  # before the head is drawn
    classes = job["classes"]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForSequenceClassification.from_pretrained(
        job["model"],
        num_labels=classes or 1,
        problem_type="single_label_classification" if classes else "regression",
        hidden_dropout_prob=job["dropout"],
        attention_probs_dropout_prob=job["attention_dropout"],
    )
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=job["examples"],
        per_device_eval_batch_size=job["examples"],
        num_train_epochs=job["epochs"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="linear",
        warmup_ratio=job["warmup_share"],
        adam_beta1=job["b1"],
        adam_beta2=job["b2"],
        adam_epsilon=job["epsilon"],
        weight_decay=job["weight_decay"],
        max_grad_norm=job["clip_norm"],
        seed=job["seed"],
        use_cpu=True,
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    train, heldout = (encoded(tokenizer, job[split], job["seq_len"]) for split in ("train", "heldout"))
    trainer = Trainer(model, arguments, DataCollatorWithPadding(tokenizer), train_dataset=train)
    trained = trainer.train()
    outputs = trainer.predict(heldout).predictions
    predictions = outputs.argmax(axis=-1) if classes else outputs[:, 0]
    (folder / "predictions.json").write_text(json.dumps(predictions.tolist()))
    figures = {
        "updates": trained.global_step,
        "train_seconds": trained.metrics["train_runtime"],
        "versions": {package: metadata.version(package) for package in PACKAGES},
    }
    (folder / "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # all texts are encoded before the workers of PyTorch start
    path = Path(sys.argv[1])
    run(json.loads(path.read_text()), path.parent)
