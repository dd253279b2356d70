"""transformers' `Trainer` fine-tunes a BERT on PyTorch, as its users do: dynamic padding, all else its default.

    python -m benchmarks.arms.trainer JOB

JOB is a JSON file, see `run`. Into the folder of that file go `predictions.json`, one for
each held-out record in the order of the file, and `figures.json`.
"""

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.arms.trainer_tasks import TASKS

PACKAGES = ("torch", "transformers", "accelerate")


def run(job: dict[str, Any], folder: Path) -> None:
    """Train, predict, and write the figures and the predictions."""
    import torch
    import transformers

    torch.set_num_threads(job["threads"])
    transformers.set_seed(job["seed"])  # before the head is initialized
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    task = TASKS[job["kind"]](job, tokenizer)
    model = getattr(transformers, task.model).from_pretrained(
        job["model"],
        **task.model_options,
        hidden_dropout_prob=job["dropout"],
        attention_probs_dropout_prob=job["attention_dropout"],
    )
    arguments = transformers.TrainingArguments(
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
    collator = getattr(transformers, task.collator)(tokenizer)
    trainer = transformers.Trainer(model, arguments, collator, train_dataset=task.train())
    trained = trainer.train()
    predictions = task.predictions(trainer.predict(task.heldout()).predictions)
    (folder / "predictions.json").write_text(json.dumps(predictions))
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
