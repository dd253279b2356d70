"""Files of unknown origin."""

import pytest

from bertjax.runtime import untrusted


@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_json_has_at_most_64_levels(opening, closing):
    def nested(levels):
        return opening * (levels - 1) + "[]" + closing * (levels - 1)

    assert untrusted.parse_json(nested(64)) is not None
    for levels in (65, 100, 10**5):
        with pytest.raises(ValueError, match="nested in more than 64 levels"):
            untrusted.parse_json(nested(levels))
