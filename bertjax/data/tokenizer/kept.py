"""Characters that must be in the vocabulary, however rare they are."""

import unicodedata
from typing import Any, cast

from bertjax.data.tokenizer_config import TokenizerConfig
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, reason


def kept_characters(config: TokenizerConfig) -> str:
    """Return the distinct characters in `keep` and in the file `keep_file`, normalized, sorted by code point.

    Raises:
      UserError: the file is unreadable.
    """
    text = config.keep
    if config.keep_file:
        try:
            text += untrusted.read_text(config.keep_file).removeprefix("\ufeff")
        except (OSError, ValueError) as error:
            refused = f"data.tokenizer.keep_file={config.keep_file!r}"
            raise UserError(f"{refused} is not a readable UTF-8 text ({reason(error)}); name another") from None
    normalized = unicodedata.normalize(cast(Any, config.normalizer.upper()), text)
    return "".join(sorted(character for character in set(normalized) if not character.isspace()))
