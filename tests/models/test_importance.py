"""`importance.json` keeps what it holds, and a file that does not fit is refused in one line."""

import json

import numpy as np
import pytest

from bertjax.models.importance import Importance, read
from bertjax.runtime.errors import UserError
from tests.batches import ENCODER

DRAW = np.random.default_rng(0)
IMPORTANCE = Importance(
    DRAW.uniform(size=(ENCODER.layers, ENCODER.heads)),
    DRAW.uniform(size=(ENCODER.layers, ENCODER.feedforward)) * 1e-7,
    "sst2",
    "glue:SST-2",
    500,
    "Classification",
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "importance.json"
    path.write_bytes(IMPORTANCE.to_json())
    return path


def test_what_is_written_is_read(path):
    importance = read(path, ENCODER)
    np.testing.assert_allclose(importance.heads, IMPORTANCE.heads, rtol=1e-5)
    np.testing.assert_allclose(importance.neurons, IMPORTANCE.neurons, rtol=1e-5)
    assert (importance.model, importance.material, importance.examples, importance.objective) == (
        "sst2",
        "glue:SST-2",
        500,
        "Classification",
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format_version": 2}, "has format 2, and this bertjax reads format 1; make it again"),
        ({"heads": [[1.0]]}, r"has heads of the shape \[1, 1\], and the model has \[3, 2\]; make it from this model"),
        ({"neurons": [[1.0], [2.0, 3.0]]}, "is not an importance.json .*; make one with python -m bertjax analyze"),
        ({"heads": [[-1.0, 1.0]] * 3}, "has heads that are negative or not finite; make it again"),
        ({"heads": "all"}, "is not an importance.json"),
        ({"examples": "many"}, "is not an importance.json"),
    ],
)
def test_files_that_are_refused(path, changes, message):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=message) as caught:
        read(path, ENCODER)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "3", "{}"])
def test_other_files_are_refused(path, content):
    path.write_text(content)
    with pytest.raises(UserError, match="is not an importance.json"):
        read(path, ENCODER)
    with pytest.raises(UserError, match="is not an importance.json"):
        read(path.parent / "missing.json", ENCODER)
