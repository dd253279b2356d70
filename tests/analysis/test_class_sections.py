"""Page sections about a classifier. A run with all of them is in `tests/test_finetune_one_file.py`."""

import numpy as np

from bertjax.analysis import class_sections


def test_a_mistake_on_a_pair_shows_both_texts():
    records = [{"one": "He left.", "two": "He stayed.", "label": "same", "prediction": "other"}]
    table = class_sections.surest_mistakes(records, np.array([0.9]), np.array([False]), "label", ("one", "two"))
    assert table.rows == (("He left. | He stayed.", "same", "other", "0.900"),)
