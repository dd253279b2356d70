"""The tables of docs/results/korean.md: normalizers, coverage, splitters and kinds of tokenizers on one corpus.

    python -m benchmarks.compare_tokenizers --corpus=embedded:ko --vocab-size=8000

Every tokenizer is trained on 19 of 20 documents and measured on the twentieth. The output is Markdown.
"""

import argparse
import dataclasses
import itertools

from bertjax.data import sources, tokenizer
from bertjax.data.config import SPLITTERS
from bertjax.data.text.sentences import split
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS, TokenizerConfig

EVERY = 20
KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS
COVERAGES = (0.99, 0.9995, 1.0)
# Texts that normalizers treat differently; all but the Roman numeral and the full width letters are in `embedded:ko`.
NOTATIONS = ("① 651㎡", "Ⅳ. 결론", "㉮목", "부정ㆍ불량", "ㄱ, ㄴ 부분", "약 3㎞…", "ＫＴ＆Ｇ", "\uf90a")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of a tokenizer on held-out sentences.

    Attributes:
      fertility: tokens per word; words are separated by white space.
      unknown: share of [UNK] among the tokens.
      lost_words: share of words that contain [UNK].
      bytes: share of byte pieces among the tokens.
    """

    fertility: float
    unknown: float
    lost_words: float
    bytes: float


def measure(tokens: Tokenizer, sentences: list[str]) -> Measured:
    words = [word for sentence in sentences for word in sentence.split()]
    encoded = list(itertools.chain.from_iterable(tokens.encode(sentences)))
    lost = sum(tokens.unk_id in ids for ids in tokens.encode(words))
    return Measured(
        fertility=len(encoded) / len(words),
        unknown=encoded.count(tokens.unk_id) / len(encoded),
        lost_words=lost / len(words),
        bytes=sum(i in tokens.byte_ids for i in encoded) / len(encoded),
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def pieces(tokens: Tokenizer, text: str) -> str:
    [ids] = tokens.encode([text])
    return " ".join(f"`{tokens.piece(i)}`" for i in ids)


def kinds(training: list[str], heldout: list[str], vocab_size: int) -> tuple[str, dict[str, Tokenizer]]:
    trained = {kind: tokenizer.train(training, TokenizerConfig(kind=kind, vocab_size=vocab_size)) for kind in KINDS}
    rows = []
    for kind, tokens in trained.items():
        measured = measure(tokens, heldout)
        shares = [f"{share:.2%}" for share in (measured.unknown, measured.lost_words, measured.bytes)]
        rows.append([f"`{kind}`", f"{tokens.vocab_size:,}", f"{measured.fertility:.2f}", *shares])
    header = ["kind", "pieces", "tokens a word", "[UNK] of tokens", "words with [UNK]", "byte pieces of tokens"]
    return table(header, rows), trained


def coverages(training: list[str], heldout: list[str], vocab_size: int) -> str:
    rows = []
    for coverage, (kind, choices) in itertools.product(
        COVERAGES, [("unigram", {"byte_fallback": True}), ("unigram", {"byte_fallback": False}), ("wordpiece", {})]
    ):
        config = TokenizerConfig(kind=kind, vocab_size=vocab_size, character_coverage=coverage, **choices)
        tokens = tokenizer.train(training, config)
        measured = measure(tokens, heldout)
        name = f"`{kind}`" + " without bytes" * (choices == {"byte_fallback": False})
        known = sum(len(tokens.piece(i)) == 1 for i in range(tokens.vocab_size))
        shares = [f"{share:.2%}" for share in (measured.unknown, measured.lost_words, measured.bytes)]
        rows.append([f"{coverage:g}", name, f"{known:,}", f"{measured.fertility:.2f}", *shares])
    header = ["coverage", "kind", "characters", "tokens a word", "[UNK] of tokens", "words with [UNK]", "byte pieces"]
    return table(header, rows)


def normalizers(training: list[str], vocab_size: int) -> str:
    nfc, nfkc = (
        tokenizer.train(training, TokenizerConfig(vocab_size=vocab_size, normalizer=name)) for name in ("nfc", "nfkc")
    )
    rows = [
        [f"`{text}`", *(f"`{tokens.decode(ids)}`" for tokens in (nfc, nfkc) for ids in tokens.encode([text]))]
        for text in NOTATIONS
    ]
    return table(["written", "nfc", "nfkc"], rows)


def splitters(texts: list[str]) -> str:
    rows = []
    for splitter in SPLITTERS:
        lengths = [len(sentence) for text in texts for sentence in split(text, splitter)]
        rows.append([f"`{splitter}`", f"{len(lengths):,}", f"{sum(lengths) / len(lengths):.0f}", f"{max(lengths):,}"])
    return table(["splitter", "sentences", "characters a sentence", "longest"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="embedded:ko")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--sentence", default="156㎡가 자기 소유이고 132㎡가 타인 소유인 경우")
    args = parser.parse_args()
    texts = [document.text for document in sources.documents(args.corpus, "text")]
    sides = [[], []]
    for number, text in enumerate(texts):
        sides[number % EVERY == EVERY - 1].extend(split(text, "punctuation"))
    training, heldout = sides
    print(normalizers(training, args.vocab_size))
    kinds_table, trained = kinds(training, heldout, args.vocab_size)
    print(kinds_table)
    print(table(["kind", args.sentence], [[f"`{kind}`", pieces(trained[kind], args.sentence)] for kind in KINDS]))
    print(coverages(training, heldout, args.vocab_size))
    print(splitters(texts))


if __name__ == "__main__":
    main()
