"""Classes of attention maps: maps made of each class are recognized, and shares are those of loops over maps."""

import jax
import numpy as np
import pytest

from bertjax.analysis.parts.patterns import BLOCK, CLASSES, COLUMN, DIAGONAL, NEAR, VERTICAL, Patterns, shares_of_maps
from bertjax.analysis.reduce import reduce
from bertjax.analysis.subject import captured


def features_by_loops(weights_TT: np.ndarray, segments_T: np.ndarray, special_T: np.ndarray) -> np.ndarray:
    """The definitions of `bertjax.analysis.parts.patterns`, cell by cell."""
    n = len(weights_TT)
    column = [np.mean([weights_TT[i, j] for i in range(n) if abs(i - j) > NEAR] or [0.0]) for j in range(n)]
    vertical = sum(max(0.0, column[j] - COLUMN / n) for j in range(n))
    diagonal = 0.0
    for i in range(n):
        for j in range(max(0, i - NEAR), min(n, i + NEAR + 1)):
            diagonal += max(0.0, weights_TT[i, j] - column[j]) / n
    block = 0.0
    for j in range(n):
        own = [weights_TT[i, j] for i in range(n) if abs(i - j) > NEAR and segments_T[i] == segments_T[j]]
        other = [weights_TT[i, j] for i in range(n) if abs(i - j) > NEAR and segments_T[i] != segments_T[j]]
        size = int(np.sum(segments_T == segments_T[j]))
        if size < n and not special_T[j]:
            block += size / n * (np.mean(own or [0.0]) - np.mean(other or [0.0]))
    return np.array([vertical, diagonal, block])


def class_by_rules(vertical: float, diagonal: float, block: float) -> str:
    if block >= BLOCK and diagonal < DIAGONAL:
        return "block"
    if vertical >= VERTICAL and diagonal >= DIAGONAL:
        return "vertical+diagonal"
    if vertical >= VERTICAL:
        return "vertical"
    if diagonal >= DIAGONAL:
        return "diagonal"
    return "heterogeneous"


def test_shares_and_features_are_those_of_loops(pretrained, texts):
    function = shares_of_maps(pretrained.encoder, pretrained.vocabulary.special_ids)
    result, encoded = reduce(pretrained, texts, function), texts.encoded(pretrained)
    attend = jax.jit(lambda params, batch: captured(pretrained.encoder, params, batch, ["attention"])["attention"])
    batch = encoded.batch(np.arange(len(encoded))[:, None], 64)
    attention_LBHTT = np.asarray(attend(pretrained.params, batch), np.float64)
    shares, means = np.zeros((5, 3, 4)), np.zeros((3, 3, 4))
    for index, length in enumerate(encoded.ragged.lengths):
        segments, special = batch["segments_BT"][index, :length], pretrained.vocabulary.is_special
        special = special[batch["tokens_BT"][index, :length]]
        for layer in range(3):
            for head in range(4):
                found = features_by_loops(attention_LBHTT[layer, index, head, :length, :length], segments, special)
                means[:, layer, head] += found / len(encoded)
                shares[CLASSES.index(class_by_rules(*found)), layer, head] += 1 / len(encoded)
    np.testing.assert_allclose(result["features"], means, atol=1e-5)
    np.testing.assert_allclose(result["shares"], shares, atol=1e-5)


def test_the_part_shows_models_side_by_side(subjects, labeled, texts):
    result = Patterns().run(subjects, [labeled, texts])
    assert list(result.numbers) == ["pretrained", "finetuned"] and list(result.numbers["finetuned"]) == ["toy", "texts"]
    for by_material in result.numbers.values():
        for values in by_material.values():
            assert sum(values["shares"].values()) == pytest.approx(1.0)
    assert result.arrays["finetuned/toy/shares"].shape == (5, 3, 4)
    assert [figure.name for figure in result.figures] == ["shares", "heads-1", "heads-2", "heads-3", "heads-4"]
    drawing = result.figures[0].drawn
    assert len(drawing.axes) == 4 and all(figure.alternative for figure in result.figures)
