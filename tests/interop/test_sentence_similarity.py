"""A real sentence encoder on real pairs: mean pooling, cosines and the score equal those of transformers.

Environment variables name both: a Hugging Face folder with a BERT that was trained like Sentence-BERT, and STS-B's
dev.tsv from GLUE, plain or compressed.
"""

import functools
import os

import jax
import numpy as np
import pytest
from scipy import stats

import bertjax
from bertjax.cli import convert
from bertjax.config import export
from bertjax.config.config import Config, Task
from bertjax.data.labeled.siamese import SiamesePairs
from bertjax.data.labeled.source import LabeledSource
from bertjax.objectives.finetuning.embeddings import EmbeddingRegression
from bertjax.objectives.outputs import regroup
from bertjax.training.feeds import Feeds

torch = pytest.importorskip("torch", reason="parity with PyTorch needs the extra [interop]")
transformers = pytest.importorskip("transformers", reason="parity with transformers needs the extra [interop]")

MODEL, PAIRS = "BERTJAX_TEST_SENTENCE_ENCODER", "BERTJAX_TEST_STSB_DEV"
T, BATCH = 256, 16


@pytest.mark.slow
@pytest.mark.skipif(
    not {MODEL, PAIRS} <= os.environ.keys(), reason=f"{MODEL} and {PAIRS} name no sentence encoder and no dev.tsv"
)
def test_spearman_on_sts_b_is_that_of_transformers(tmp_path):
    folder, path = os.environ[MODEL], os.environ[PAIRS]
    convert.run(folder, tmp_path / "ours")
    records = SiamesePairs(label="score").read(path)
    expected = theirs(folder, [record[name] for record in records for name in ("sentence1", "sentence2")])
    cosines_of_theirs = np.sum(expected[::2] * expected[1::2], axis=1)

    model = export.read(tmp_path / "ours")
    objective, format = EmbeddingRegression(full_score=5.0), SiamesePairs(train=path, heldout=path, label="score")
    task = Task(objective, format)
    feed = Feeds(Config(tasks={"task": task}), LabeledSource(format, model.tokenizer)).feed("heldout", T)
    (plan,) = feed.plans
    assert plan.counts.rows * 3 < plan.counts.examples, "rows are packed"
    module, params = objective.model(model.encoder), {"encoder": model.params["encoder"]}
    outputs = jax.jit(functools.partial(objective.outputs, module))
    ids, cosines = [], []
    for first in range(0, plan.counts.rows, BATCH):
        ordinals = np.arange(first, first + BATCH)
        batch = feed.batch(np.where(ordinals < plan.counts.rows, ordinals, -1))
        ids.append(batch["example_ids_BN"][batch["example_ids_BN"] >= 0])
        cosines.append(regroup(outputs(params, batch), batch)["cosine"])
    ids, cosines = np.concatenate(ids), np.concatenate(cosines)
    np.testing.assert_allclose(cosines[np.argsort(ids[::2])], cosines_of_theirs, atol=1e-4)

    scores = objective.score({"cosine": cosines}, plan.examples.take(ids), [])
    labels = [float(record["score"]) for record in records]
    assert scores["spearman"] == pytest.approx(stats.spearmanr(cosines_of_theirs, labels).statistic, abs=5e-4)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(cosines_of_theirs, labels).statistic, abs=5e-4)

    texts = [record["sentence1"] for record in records[:40]]
    embedded = bertjax.predictor(tmp_path / "ours").embed(texts, normalize=True)
    np.testing.assert_allclose(embedded, expected[:80:2], atol=1e-4)


def theirs(folder: str, texts: list[str]) -> np.ndarray:
    """Return unit vectors, float32 [texts, D], pooled as in the model cards of Sentence-BERT with only transformers."""
    tokenizer, model = (
        transformers.AutoTokenizer.from_pretrained(folder),
        transformers.AutoModel.from_pretrained(folder),
    )
    vectors = []
    for first in range(0, len(texts), 64):
        inputs = tokenizer(
            texts[first : first + 64], padding=True, truncation=True, max_length=128, return_tensors="pt"
        )
        with torch.no_grad():
            hidden_BTD = model.eval()(**inputs).last_hidden_state
        mask_BT1 = inputs["attention_mask"][..., None]
        means_BD = (hidden_BTD * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)
        vectors.append(torch.nn.functional.normalize(means_BD).numpy())
    return np.concatenate(vectors)
