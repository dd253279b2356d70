"""End to end: text, pretraining, Hugging Face's files, the same loss in PyTorch, fine-tuning, prediction."""

import copy
import json

import jax
import numpy as np
import pytest

import bertjax
from bertjax.config.config import from_dict
from bertjax.config.opening import SavedModel
from bertjax.data.preparation.prepare import prepare
from bertjax.training.feeds import Feeds
from bertjax.training.setup import make_setups
from tests import labeled_files, runs

torch = pytest.importorskip("torch", reason="the same loss in PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="the same loss in transformers needs the extra [interop]")


def losses_in_bertjax(export, batch) -> dict[str, float]:
    """Return {term: S / W} of a batch."""
    [loss] = make_setups(from_dict(export.settings), export.tokenizer.vocab_size)[0].losses.values()
    sums, _ = loss.objective.terms(loss.model, export.params, None, batch, jax.random.key(0), False)
    weights = loss.objective.weights(batch)
    return {term: float(total / weights[term]) for term, total in sums.items()}


def losses_in_pytorch(folder, batch, pad_id: int) -> dict[str, float]:
    """Return the same losses from the class of transformers, for rows of one example."""
    model = transformers.AutoModelForPreTraining.from_pretrained(folder).eval()
    labels = np.full(batch["tokens_BT"].shape, -100)
    rows, _ = np.indices(batch["mlm_positions_BK"].shape)
    predicted = batch["mlm_weights_BK"] > 0
    labels[rows[predicted], batch["mlm_positions_BK"][predicted]] = batch["mlm_labels_BK"][predicted]
    with torch.no_grad():
        outputs = model(
            input_ids=torch.tensor(batch["tokens_BT"], dtype=torch.long),
            attention_mask=torch.tensor(batch["examples_BT"] > 0, dtype=torch.long),
            token_type_ids=torch.tensor(batch["segments_BT"], dtype=torch.long),
        )
    mlm = torch.nn.functional.cross_entropy(
        outputs.prediction_logits.flatten(0, 1), torch.tensor(labels).flatten(), ignore_index=-100
    )
    nsp = torch.nn.functional.cross_entropy(
        outputs.seq_relationship_logits, torch.tensor(batch["nsp_labels_BN"][:, 0], dtype=torch.long)
    )
    return {"mlm": float(mlm), "nsp": float(nsp)}


def test_from_text_to_prediction(flags, undisturbed, tmp_path):
    saved = SavedModel(undisturbed / "export")
    export, settings = saved.export, copy.deepcopy(SavedModel(undisturbed).settings)
    settings["tasks"]["bert"]["row_examples"] = 1
    config = from_dict(settings)
    export = export._replace(settings=settings)
    feed = Feeds(config, prepare(config.data)).heldout[config.task_name]
    batch = feed.batch(np.arange(8))
    ours = losses_in_bertjax(export, batch)
    theirs = losses_in_pytorch(undisturbed / "export" / "hf", batch, export.tokenizer.pad_id)
    assert ours == pytest.approx(theirs, abs=1e-5)

    train, dev = labeled_files.write(tmp_path)
    (tmp_path / "good.py").write_text(
        """
def get_config():
    return {
        "model": {"preset": "init_from"},
        "tasks": {"good": {"objective": {"kind": "classification"}, "examples": {"kind": "labeled_text"}}},
        "optimizer": {"learning_rate": 3e-3, "warmup_share": 0.1},
        "stages": [{"epochs": 8.0, "seq_len": 32, "examples": 16}],
        "eval": {"every": 0, "rows": 0, "samples": 0},
    }
"""
    )
    examples = "--config.tasks.good.examples"
    command = [f"--config={tmp_path / 'good.py'}", f"--config.init_from={undisturbed / 'export'}"]
    command += [f"{examples}.train={train}", f"{examples}.heldout={dev}", f"--workdir={tmp_path / 'run'}"]
    assert runs.call(*command) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval"]["accuracy"] > summary["baseline"]["majority_accuracy"]
    answers = bertjax.predictor(tmp_path / "run" / "export").predict(["abc good cab"])
    assert answers[0]["prediction"] in ("no", "yes")
