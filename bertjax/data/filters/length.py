"""Length limits for documents."""

import dataclasses

from bertjax.data.filters import Filter
from bertjax.data.sources import Document
from bertjax.data.text import unicode
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class Length(Filter):
    """Keeps documents by length; 0 turns a limit off.

    Attributes:
      fewest_words: minimum words. White space separates words; in scripts without spaces each character is one.
      most_words: maximum words.
      fewest_characters: minimum characters, white space included.
      most_characters: maximum characters, white space included.
    """

    kind: str = dataclasses.field(default="length", init=False)
    fewest_words: int = setting(0, least=0)
    most_words: int = setting(0, least=0)
    fewest_characters: int = setting(0, least=0)
    most_characters: int = setting(0, least=0)

    def __post_init__(self):
        super().__post_init__()
        limits = [name.name for name in dataclasses.fields(self) if name.name != "kind"]
        if not any(getattr(self, name) for name in limits):
            raise UserError(f"the filter 'length' has no limit; set {' or '.join(limits)}")

    def keep(self, document: Document) -> str | None:
        characters = len(document.text)
        if characters < self.fewest_characters:
            return f"fewer than {self.fewest_characters:,} characters"
        if self.most_characters and characters > self.most_characters:
            return f"more than {self.most_characters:,} characters"
        if not self.fewest_words and not self.most_words:
            return None
        words = len(unicode.words(document.text))
        if words < self.fewest_words:
            return f"fewer than {self.fewest_words:,} words"
        if self.most_words and words > self.most_words:
            return f"more than {self.most_words:,} words"
        return None
