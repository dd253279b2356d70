"""Made-up text in twelve scripts: words by Zipf's law in the letters of each, with its real spacing and punctuation."""

import dataclasses
import random

from bertjax.data.sources import documents


@dataclasses.dataclass(frozen=True)
class Script:
    """How a script is written.

    Attributes:
      letters: its letters.
      marks: vowel signs and points, one of which follows half of the letters.
      stops: marks that end sentences, the most frequent one first.
      comma: what is between two clauses.
      space: what is between two words.
      gap: what is between two sentences.
      word: fewest and most letters of a word.
      capitals: whether a sentence starts with a capital letter.
    """

    letters: str
    marks: str = ""
    stops: str = "...?!"
    comma: str = ", "
    space: str = " "
    gap: str = " "
    word: tuple[int, int] = (2, 7)
    capitals: bool = False


def _range(first: int, last: int) -> str:
    return "".join(map(chr, range(first, last + 1)))


SCRIPTS = {
    "cyrillic": Script(_range(0x430, 0x44F), capitals=True),
    "greek": Script(_range(0x3B1, 0x3C1) + _range(0x3C3, 0x3C9), stops="...;!", capitals=True),
    "arabic": Script(_range(0x627, 0x63A) + _range(0x641, 0x64A), stops="...\u061f!", comma="\u060c "),
    "hebrew": Script(_range(0x5D0, 0x5EA)),
    "devanagari": Script(_range(0x915, 0x939), _range(0x93E, 0x94C), stops="\u0964\u0964\u0964?!", word=(1, 4)),
    "bengali": Script(_range(0x995, 0x9A8) + _range(0x9AA, 0x9B0), _range(0x9BE, 0x9C3), "\u0964\u0964?!", word=(1, 4)),
    "tamil": Script(
        "\u0b95\u0b99\u0b9a\u0b9e\u0b9f\u0ba3\u0ba4\u0ba8\u0baa\u0bae\u0baf\u0bb0\u0bb2\u0bb5\u0bb4\u0bb3\u0bb1\u0ba9",
        "\u0bbe\u0bbf\u0bc0\u0bc1\u0bc2\u0bc6\u0bc7\u0bc8\u0bcd",
        word=(2, 5),
    ),
    "thai": Script(_range(0xE01, 0xE2E), "\u0e31\u0e34\u0e35\u0e38\u0e48\u0e49", "", "", "", word=(2, 4)),
    "han": Script(_range(0x4E00, 0x4FFF), "", "\u3002\u3002\u3002\uff1f\uff01", "\uff0c", "", "", word=(1, 2)),
    "kana": Script(_range(0x3042, 0x3093), "", "\u3002\u3002\u3002\uff1f\uff01", "\u3001", "", "", word=(1, 4)),
    "ethiopic": Script(_range(0x1200, 0x1246) + _range(0x1260, 0x1286), "", "\u1362\u1362\u1362\u1367!", "\u1363 "),
}
REAL = {"latin": "embedded:en", "hangul": "embedded:ko"}
NAMES = (*REAL, *SCRIPTS)


def texts(name: str, count: int = 200) -> list[str]:
    """Return documents in a script, always the same: of the embedded corpus if it has one."""
    if name in REAL:
        every = [document.text for document in documents(REAL[name], "text")]
        return [text[:6_000] for text in every[:: len(every) // (count // 4)]]
    return made(name, count)


def made(name: str, count: int, sentences: tuple[int, int] = (4, 12), lines: int = 5, seed: int = 0) -> list[str]:
    """Return made-up documents of a few sentences each.

    Args:
      lines: the most sentences of a line.
    """
    script, draw = SCRIPTS[name], random.Random(f"{name} {seed}")
    words = ["".join(_letter(script, draw) for _ in range(draw.randint(*script.word))) for _ in range(500)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    # Every fifth word has one that often follows it, so that there are phrases.
    following = {word: draw.choice(words) for word in words[::5]}

    def sentence() -> str:
        chosen = draw.choices(words, weights, k=draw.randint(6, 18))
        for place, word in enumerate(chosen[:-1]):
            if word in following and draw.random() < 0.7:
                chosen[place + 1] = following[word]
        cut = draw.randint(2, len(chosen) - 2)
        text = script.comma.join(map(script.space.join, (chosen[:cut], chosen[cut:])))
        return (text.capitalize() if script.capitals else text) + (draw.choice(script.stops) if script.stops else "")

    def document() -> str:
        number, result = draw.randint(*sentences), []
        while number > 0:
            line = min(number, draw.randint(1, lines))
            result.append(script.gap.join(sentence() for _ in range(line)))
            number -= line
        return "\n".join(result)

    return [document() for _ in range(count)]


def _letter(script: Script, draw: random.Random) -> str:
    return draw.choice(script.letters) + (draw.choice(script.marks) if script.marks and draw.random() < 0.5 else "")
