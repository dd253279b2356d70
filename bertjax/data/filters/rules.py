"""The filters: length, Gopher's and C4's rules, scripts, personal data, and decontamination."""

import collections
import dataclasses
import functools
import hashlib
import ipaddress
import re
import string
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.data import sources
from bertjax.data.filters import Filter
from bertjax.data.sources import Document
from bertjax.data.text import ngrams, unicode
from bertjax.data.text.sentences import LETTER_AND_STOP, split
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import PLACE, Allowed, setting


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
        for unit in ("characters", "words"):
            fewest, most = getattr(self, f"fewest_{unit}"), getattr(self, f"most_{unit}")
            if fewest or most:
                count = len(document.text if unit == "characters" else unicode.words(document.text))
                if count < fewest:
                    return f"fewer than {fewest:,} {unit}"
                if most and count > most:
                    return f"more than {most:,} {unit}"
        return None


_ELLIPSIS = ("...", "\u2026")
_BULLETS = ("\u2022", "\u2023", "\u25cf", "\u25e6", "\u2043", "*", "-")
_LETTER = re.compile(r"[^\W\d_]")
_PUNCTUATION = string.punctuation + "\u2018\u2019\u201c\u201d"


@dataclasses.dataclass(frozen=True)
class GopherQuality(Filter):
    """Keeps documents that look like prose, with the paper's thresholds (Rae et al. 2021, arXiv 2112.11446, A1.1).

    The paper does not define a word; here white space separates words, and in scripts without spaces each character is
    one. If most words are such characters, the mean word length is not tested. The stop words are English: for another
    language set `stop_words`, or `fewest_stop_words=0`.

    Attributes:
      fewest_words: minimum words.
      most_words: maximum words.
      shortest_mean_word: minimum mean word length, in characters.
      longest_mean_word: maximum mean word length, in characters.
      most_symbols: maximum number of `#`, and of ellipses, per word.
      most_bullets: maximum share of lines that start with a bullet.
      most_ellipses: maximum share of lines that end with an ellipsis.
      fewest_alphabetic: minimum share of words that contain a letter.
      fewest_stop_words: how many different stop words must occur.
      stop_words: the words of which `fewest_stop_words` must occur, in lower case.
    """

    kind: str = dataclasses.field(default="gopher_quality", init=False)
    fewest_words: int = setting(50, least=0)
    most_words: int = setting(100_000, least=0)
    shortest_mean_word: float = setting(3.0, least=0)
    longest_mean_word: float = setting(10.0, least=0)
    most_symbols: float = setting(0.1, least=0, most=1)
    most_bullets: float = setting(0.9, least=0, most=1)
    most_ellipses: float = setting(0.3, least=0, most=1)
    fewest_alphabetic: float = setting(0.8, least=0, most=1)
    fewest_stop_words: int = setting(2, least=0)
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")

    def __post_init__(self):
        super().__post_init__()
        if self.fewest_stop_words > len(set(self.stop_words)):
            words = f"fewest_stop_words={self.fewest_stop_words} of the filter {self.kind!r}"
            raise UserError(f"{words} exceeds its {len(set(self.stop_words))} stop_words; lower it")

    def keep(self, document: Document) -> str | None:
        words = unicode.words(document.text)
        if len(words) < self.fewest_words:
            return f"fewer than {self.fewest_words:,} words"
        if len(words) > self.most_words:
            return f"more than {self.most_words:,} words"
        if wrong := self._mean_word(words):
            return wrong
        most = self.most_symbols * len(words)
        if document.text.count("#") > most or sum(map(document.text.count, _ELLIPSIS)) > most:
            return f"more than {self.most_symbols:g} symbols a word"
        lines = [line.strip() for line in document.text.splitlines() if line.strip()]
        if sum(line.startswith(_BULLETS) for line in lines) > self.most_bullets * len(lines):
            return f"more than {self.most_bullets:.0%} of the lines start with a bullet"
        if sum(line.endswith(_ELLIPSIS) for line in lines) > self.most_ellipses * len(lines):
            return f"more than {self.most_ellipses:.0%} of the lines end with an ellipsis"
        if sum(map(bool, map(_LETTER.search, words))) < self.fewest_alphabetic * len(words):
            return f"less than {self.fewest_alphabetic:.0%} of the words hold a letter"
        if self.fewest_stop_words:
            present = {word.strip(_PUNCTUATION).lower() for word in words} & set(self.stop_words)
            if len(present) < self.fewest_stop_words:
                return f"fewer than {self.fewest_stop_words} stop words"
        return None

    def _mean_word(self, words: list[str]) -> str | None:
        """Return the reason to drop a document for its mean word length, or None."""
        spaced = [word for word in words if not unicode.is_unspaced(word[0])]
        if 2 * len(spaced) < len(words):
            return None
        mean = sum(map(len, spaced)) / max(1, len(spaced))
        if mean < self.shortest_mean_word:
            return f"mean word shorter than {self.shortest_mean_word:g}"
        if mean > self.longest_mean_word:
            return f"mean word longer than {self.longest_mean_word:g}"
        return None


DUPLICATE_LINES = 0.30
DUPLICATE_LINE_CHARACTERS = 0.20
# {n: maximum share of characters in all copies of the most frequent n-gram}
TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}
# {n: maximum share of characters in words that belong to a repeated n-gram}
DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
_PARAGRAPH = re.compile(r"\n{2,}")


@dataclasses.dataclass(frozen=True)
class GopherRepetition(Filter):
    """Keeps documents that repeat few lines, paragraphs and word n-grams (Rae et al. 2021, arXiv 2112.11446, table A1).

    The first occurrence does not count as a repetition. White space separates words and does not count as characters.
    A word in two repeated n-grams counts once. In scripts without spaces an n-gram has 2n characters (Chinese and
    Japanese) or 4n (Thai and others), about as much text as n English words.
    """

    kind: str = dataclasses.field(default="gopher_repetition", init=False)

    def keep(self, document: Document) -> str | None:
        text = document.text
        for what, parts in (("lines", text.splitlines()), ("paragraphs", _PARAGRAPH.split(text))):
            parts = [part.strip() for part in parts if part.strip()]
            repeated = _repeated(parts)
            if len(repeated) > DUPLICATE_LINES * len(parts):
                return f"more than {DUPLICATE_LINES:.0%} of the {what} are repeated"
            if sum(map(len, repeated)) > DUPLICATE_LINE_CHARACTERS * sum(map(len, parts)):
                return f"more than {DUPLICATE_LINE_CHARACTERS:.0%} of the characters are in repeated {what}"
        words = unicode.words(text)
        # Words become numbers once, so that n-grams can be counted with arrays.
        numbers: dict[str, int] = {}
        ids_W = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)
        characters_W = np.fromiter(map(len, words), np.int64, len(words))
        return _repeats_ngrams(ids_W, characters_W, unicode.characters_a_word(words))


def _repeated(parts: Sequence[str]) -> list[str]:
    """Return the parts that are equal to an earlier one."""
    seen: set[str] = set()
    return [part for part in parts if part in seen or seen.add(part)]


def _repeats_ngrams(ids_W: np.ndarray, characters_W: np.ndarray, scale: int) -> str | None:
    """Return the reason to drop a text with these words, or None.

    Args:
      ids_W: word ids, equal for equal words: int64 [words].
      characters_W: characters per word: int64 [words].
      scale: an n-gram has scale * n of these words; a power of two.
    """
    total = characters_W.sum()
    ends = np.concatenate([[0], np.cumsum(characters_W)])
    # Number each n-gram by the pair (number of its first part, number of the rest): exact, unlike a hash.
    unigrams, size = ids_W, 1
    while size < scale:
        unigrams, size = np.unique(_pairs(unigrams, unigrams, size), return_inverse=True)[1], 2 * size
    grams = unigrams
    for n in range(2, max(DUPLICATE_NGRAMS) + 1):
        pairs = _pairs(grams, unigrams, scale * (n - 1))
        if not len(pairs):
            return None
        _, first, grams, counts = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
        if len(counts) == len(pairs):
            return None  # if no n-gram repeats, no longer one does
        if n in TOP_NGRAM:
            lengths = ends[first + scale * n] - ends[first]
            top = np.flatnonzero(counts == counts.max())  # if several are most frequent, the longest decides
            if counts.max() * lengths[top].max() > TOP_NGRAM[n] * total:
                return f"one {n}-gram has more than {TOP_NGRAM[n]:.0%} of the characters"
        elif characters_W[_covered(np.setdiff1d(np.arange(len(pairs)), first), scale * n, len(ids_W))].sum() > (
            DUPLICATE_NGRAMS[n] * total
        ):
            return f"more than {DUPLICATE_NGRAMS[n]:.0%} of the characters are in repeated {n}-grams"
    return None


def _pairs(first: np.ndarray, second: np.ndarray, distance: int) -> np.ndarray:
    """Return a number for each pair of an n-gram and the one `distance` words later; int64."""
    second = second[distance:]
    return first[: len(second)] * (second.max(initial=0) + 1) + second


def _covered(starts: np.ndarray, n: int, words: int) -> np.ndarray:
    """Return whether each word is in an n-gram that begins at one of `starts`: bool [words]."""
    change = np.zeros(words + 1, np.int64)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + n, -1)
    return np.cumsum(change[:-1]) > 0


_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
# C4's "terminal punctuation mark": any script's sentence terminal, or a closing quotation mark. Thai and Lao have no
# such mark, so their letters count as one and no line is dropped for its end.
_END = re.compile(
    rf"(?:[{unicode.TERMINALS}\"\u201d\u00bb\u300d\u300f{unicode.ENDED_BY_SPACE}]|"
    rf"{LETTER_AND_STOP}|{unicode.ETHIOPIC_FULL_STOP})[{unicode.INVISIBLE}]*\Z"
)
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
LONGEST_WORD = 1000


@dataclasses.dataclass(frozen=True)
class C4(Filter):
    """Removes lines that are not sentences, and drops pages with few sentences, `lorem ipsum` or code.

    (Raffel et al. 2020, arXiv 1910.10683, section 2.2.) Thresholds follow the published code (tensorflow/datasets,
    `text/c4_utils.py`). Two rules are not applied: the list of bad words, and the removal of repeated three-sentence
    spans.

    Attributes:
      fewest_sentences: minimum sentences per page, after lines were removed.
      fewest_words: minimum words per line; in scripts without spaces each character counts as a word.
    """

    kind: str = dataclasses.field(default="c4", init=False)
    fewest_sentences: int = setting(5, least=0)
    fewest_words: int = setting(3, least=0)

    def rewrite(self, text: str) -> tuple[str, int]:
        """Remove citation marks and bad lines; also return how many marks and lines were removed."""
        lines, changes = [], 0
        for line in text.split("\n"):
            line, citations = _CITATION.subn("", line)
            changes += citations
            if not line.strip() or self._is_sentence(line.strip()):
                lines.append(line)
            else:
                changes += 1
        return ("\n".join(lines).strip() if changes else text), changes

    def keep(self, document: Document) -> str | None:
        lower = document.text.lower()
        if "lorem ipsum" in lower:
            return "lorem ipsum"
        if "{" in lower:  # many programming languages have it, and prose does not (section 2.2)
            return "curly bracket"
        if len(split(document.text, "punctuation")) < self.fewest_sentences:
            return f"fewer than {self.fewest_sentences} sentences"
        return None

    def _is_sentence(self, line: str) -> bool:
        words, lower = unicode.words(line), line.lower()
        return (
            bool(_END.search(line))
            and not line.endswith(_ELLIPSIS)
            and len(words) >= self.fewest_words
            and max(map(len, words)) <= LONGEST_WORD
            and "javascript" not in lower
            and not any(policy in lower for policy in _POLICIES)
        )


@dataclasses.dataclass(frozen=True)
class Scripts(Filter):
    """Keeps documents by their letters' scripts and by their shares of symbols and letters.

    A script is named by the first word in its letters' Unicode names: `latin`, `hangul`, `cjk` (Chinese characters),
    `hiragana`, `cyrillic`, `arabic`. Compatibility forms count as the character they stand for (NFKC).

    Attributes:
      at_least: {script: minimum share of letters}.
      at_most: {script: maximum share of letters}.
      most_symbols: maximum share of symbols (not letters, digits or punctuation) among all characters except marks and
        white space.
      fewest_letters: minimum share of letters among the same characters. A mark is part of its letter: half of Burmese
        and 40% of Hindi are marks.
    """

    kind: str = dataclasses.field(default="scripts", init=False)
    at_least: dict[str, float] = dataclasses.field(default_factory=dict)
    at_most: dict[str, float] = dataclasses.field(default_factory=dict)
    most_symbols: float = setting(1.0, least=0, most=1)
    fewest_letters: float = setting(0.0, least=0, most=1)

    def __post_init__(self):
        super().__post_init__()
        shares = {f"at_least.{name}": share for name, share in self.at_least.items()}
        shares |= {f"at_most.{name}": share for name, share in self.at_most.items()}
        for name, share in shares.items():
            Allowed(least=0, most=1).check(name, share, f" of the filter {self.kind!r}")
        for script in (*self.at_least, *self.at_most):
            if script not in _known():
                hint = "take a Unicode name, such as latin, hangul, cjk (Chinese characters), hiragana or cyrillic"
                raise UserError(f"the filter 'scripts' knows no script {script!r}; {hint}")
        if not shares and self.most_symbols == 1 and self.fewest_letters == 0:
            raise UserError("the filter 'scripts' has no limit; set at_least, at_most, most_symbols or fewest_letters")

    def keep(self, document: Document) -> str | None:
        # Count distinct characters first: there are few, and each needs a look-up of its name.
        kinds: collections.Counter[str] = collections.Counter()
        for character, number in collections.Counter(unicodedata.normalize("NFKC", document.text)).items():
            if unicodedata.category(character)[0] != "M":
                kinds[kind_of(character)] += number
        symbols, others, _ = (kinds.pop(name, 0) for name in ("SYMBOL", "OTHER", "SPACE"))
        letters = sum(kinds.values())
        characters = max(1, letters + symbols + others)
        if symbols > self.most_symbols * characters:
            return f"more than {self.most_symbols:.0%} symbols"
        if letters < self.fewest_letters * characters:
            return f"less than {self.fewest_letters:.0%} letters"
        for script, share in self.at_least.items():
            if kinds[script] < share * max(1, letters):
                return f"less than {share:.0%} of the letters are {script}"
        for script, share in self.at_most.items():
            if kinds[script] > share * letters:
                return f"more than {share:.0%} of the letters are {script}"
        return None


# First words in the names of letters that belong to no script, such as MODIFIER LETTER APOSTROPHE.
_NO_SCRIPTS = ("modifier", "caron", "space", "vedic", "turned", "roman", "vertical", "masu", "combining", "unnamed")


@functools.lru_cache(maxsize=1 << 16)
def kind_of(character: str) -> str:
    """Return a letter's script, in lower case, or SPACE, SYMBOL or OTHER for other characters.

    A compatibility form has the script of the letter it stands for (NFKC): the micro sign is Greek, and the feminine
    ordinal indicator is Latin.
    """
    category = unicodedata.category(character)
    if category[0] == "L":
        stands_for = next(filter(str.isalpha, unicodedata.normalize("NFKC", character)), character)
        script = unicodedata.name(stands_for, "unnamed").split()[0].partition("-")[0].lower()
        return "OTHER" if script in _NO_SCRIPTS else "cjk" if script == "ideographic" else script
    if character.isspace():
        return "SPACE"
    return "SYMBOL" if category[0] == "S" else "OTHER"


@functools.cache
def _known() -> frozenset[str]:
    """Return all script names."""
    characters = map(chr, range(sys.maxunicode + 1))
    letters = (character for character in characters if unicodedata.category(character)[0] == "L")
    return frozenset(map(kind_of.__wrapped__, letters)) - {"OTHER"}


# Local part, at sign, domain with a dot; quoted local parts and Unicode addresses are not matched. A letter in another
# script may follow without a space, as Korean particles do. Local parts have at most 64 characters (RFC 5321), labels
# 63 (RFC 1035); the bounds also keep the search linear.
_EMAIL = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![A-Za-z0-9])"
)
_IP = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")


@dataclasses.dataclass(frozen=True)
class Personal(Filter):
    """Replaces e-mail addresses and public IPv4 addresses, and counts them; it drops no document.

    Attributes:
      email: replacement for e-mail addresses; example.com is reserved (RFC 2606).
      ip: replacement for public IP addresses; 192.0.2.1 is reserved for documentation (RFC 5737).
    """

    kind: str = dataclasses.field(default="personal", init=False)
    email: str = "email@example.com"
    ip: str = "192.0.2.1"

    def rewrite(self, text: str) -> tuple[str, int]:
        changes = 0

        def replace(match: re.Match) -> str:
            nonlocal changes
            is_email = "@" in match[0]
            new = self.email if is_email else self.ip
            if match[0] == new or not (is_email or _is_public(match[0])):
                return match[0]
            changes += 1
            return new

        return _IP.sub(replace, _EMAIL.sub(replace, text)), changes


def _is_public(address: str) -> bool:
    try:
        return ipaddress.IPv4Address(address).is_global
    except ValueError:  # a number above 255, or with a leading zero
        return False


@dataclasses.dataclass(frozen=True)
class Decontamination(Filter):
    """Drops documents that share a word n-gram with evaluation files.

    GPT-3 uses 13-grams too (Brown et al. 2020, arXiv 2005.14165, appendix C), but cuts the passage out of the document;
    here the document is dropped. Words are lower-cased and without punctuation, see `text.ngrams`. Evaluation texts
    with fewer than `ngram` words are not compared.

    In scripts without spaces, two characters (Chinese, Japanese) or four (Thai and others) count as a word: 13 Thai
    characters are three words, which unrelated texts share. Each evaluation text determines the length of its n-grams.

    Attributes:
      against: evaluation files, each any corpus, see `bertjax.data.sources.parts`.
      text_field: field or column that holds their text.
      ngram: words per n-gram.
    """

    kind: str = dataclasses.field(default="decontamination", init=False)
    against: tuple[str, ...] = setting((), filled="name evaluation files to compare with", metadata=PLACE)
    text_field: str = "text"
    ngram: int = setting(13, least=1, most=1000)

    def identity(self) -> dict[str, Any]:
        """Return the settings, with a digest of the evaluation files in place of their paths."""
        # Sorted, because the order of the files has no effect on the n-grams.
        parts = [part.fingerprint() for corpus in self.against for part in sources.parts(corpus, self.text_field)]
        digest = hashlib.sha256(" ".join(sorted(parts)).encode()).hexdigest()
        return dataclasses.asdict(self) | {"against": digest}

    def keep(self, document: Document) -> str | None:
        return f"shares {self.ngram} words with evaluation files" if self._shares(document.text) else None

    def _shares(self, text: str) -> bool:
        words, counts = ngrams.word_hashes([text])
        return any(
            ngrams.are_among(self._hashes(words, counts, scale), evaluation).any()
            for scale, evaluation in self._evaluation.items()
        )

    @functools.cached_property
    def _evaluation(self) -> dict[int, np.ndarray]:
        """Hashes of every n-gram in the evaluation files, by `ngrams.words_a_word` of their text: sorted uint64."""
        hashes = collections.defaultdict(list)
        for corpus in self.against:
            for document in sources.documents(corpus, self.text_field):
                scale = ngrams.words_a_word(document.text)
                hashes[scale].append(self._hashes(*ngrams.word_hashes([document.text]), scale))
        every = {scale: np.unique(np.concatenate(of_texts)) for scale, of_texts in hashes.items()}
        return {scale: known for scale, known in every.items() if len(known)}

    def _hashes(self, words: np.ndarray, counts: np.ndarray, scale: int) -> np.ndarray:
        if counts[0] < scale * self.ngram:
            return np.zeros(0, np.uint64)
        return ngrams.ngram_hashes(words, counts, scale * self.ngram)[0]
