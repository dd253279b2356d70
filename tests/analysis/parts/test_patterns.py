"""Classes of attention maps: maps made of each class are recognized, and shares are those of loops over maps."""

import functools

import jax
import numpy as np
import pytest

from bertjax.analysis.parts.patterns import (
    BLOCK,
    CLASSES,
    COLUMN,
    DIAGONAL,
    NEAR,
    VERTICAL,
    Patterns,
    classify,
    features,
    shares_of_maps,
)
from bertjax.analysis.reduce import reduce
from bertjax.analysis.subject import captured
from tests.analysis.conftest import packed_rows

SHARE_OF_NOISE = 0.25


def rows_of_one(weights_TT: np.ndarray) -> np.ndarray:
    return weights_TT / weights_TT.sum(axis=1, keepdims=True)


def clean_map(name: str, length: int, second: int, draw: np.random.Generator) -> np.ndarray:
    """Return a map of a class; segment B starts at `second`; 0, second - 1 and length - 1 are [CLS] and [SEP]."""
    columns = np.arange(length)
    vertical = np.zeros((length, length))
    vertical[:, draw.choice([0, second - 1, length - 1], draw.integers(1, 3), replace=False)] = 1.0
    diagonal = np.eye(length, k=int(draw.integers(-1, 2)))
    diagonal[diagonal.sum(axis=1) == 0, 0 if diagonal[0].sum() == 0 else length - 1] = 1.0
    is_second = columns >= second
    block = (is_second[:, None] == is_second).astype(float)
    if name == "vertical+diagonal":
        return rows_of_one(rows_of_one(vertical) + diagonal)
    if name == "heterogeneous":
        return draw.dirichlet(np.full(length, 0.5), length)
    return rows_of_one({"vertical": vertical, "diagonal": diagonal, "block": block}[name])


def batch_of(length: int, second: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    columns = np.arange(length)
    batch = {
        "examples_BT": np.ones((1, length), np.int32),
        "segments_BT": (columns >= second).astype(np.int32)[None],
        "example_ids_BN": np.zeros((1, 1), np.int32),
    }
    return batch, np.isin(columns, [0, second - 1, length - 1])[None]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("share", [0.0, SHARE_OF_NOISE])
def test_a_map_of_each_class_is_recognized(name, share):
    """Noise is a random map, whose attention a part of each row is replaced by."""
    draw = np.random.default_rng(0)
    length, second = 32, 15
    batch, is_special = batch_of(length, second)
    maps = np.stack([clean_map(name, length, second, draw) for _ in range(60)])
    noise = draw.dirichlet(np.full(length, 0.5), maps.shape[:2])
    found = features(((1 - share) * maps + share * noise)[None].astype(np.float32), batch, is_special)
    classes = np.asarray(classify(found))[0, :, 0]
    assert np.mean(classes == CLASSES.index(name)) >= 0.95, [CLASSES[number] for number in classes]


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


def test_block_features_of_pairs_are_those_of_loops():
    draw = np.random.default_rng(3)
    for length, second in ((6, 3), (23, 15)):
        weights_TT = draw.dirichlet(np.full(length, 0.3), length)
        batch, special = batch_of(length, second)
        found = features(weights_TT[None, None].astype(np.float32), batch, special)[:, 0, 0, 0]
        expected = features_by_loops(weights_TT, batch["segments_BT"][0], special[0])
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_packed_rows_have_the_features_of_single_rows(pretrained, texts):
    function = jax.jit(functools.partial(shares_of_maps(pretrained.encoder, pretrained.vocabulary.special_ids)))
    encoded = texts.encoded(pretrained)
    rows = [np.arange(9)[:, None], packed_rows(encoded.ragged.lengths[:9], 64)]
    assert (rows[1] >= 0).sum(axis=1).max() > 1
    alone, packed = (function(pretrained.params, encoded.batch(rows_BN, 64)) for rows_BN in rows)
    for name in alone:
        for one, other in zip(alone[name], packed[name], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_part_shows_models_side_by_side(subjects, labeled, texts):
    result = Patterns().run(subjects, [labeled, texts])
    assert list(result.numbers) == ["pretrained", "finetuned"] and list(result.numbers["finetuned"]) == ["toy", "texts"]
    for by_material in result.numbers.values():
        for values in by_material.values():
            assert sum(values["shares"].values()) == pytest.approx(1.0)
    assert result.arrays["finetuned/toy/shares"].shape == (5, 3, 4)
    assert [figure.name for figure in result.figures] == ["shares", "heads-1", "heads-2", "heads-3", "heads-4"]
    drawing = result.figures[0].draw()
    assert len(drawing.axes) == 4 and all(figure.alternative for figure in result.figures)
