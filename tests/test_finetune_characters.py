"""A tagger that has learned characters, as in KLUE-NER, tags the characters of a text."""

import pytest

import bertjax
from bertjax.runtime.errors import UserError
from tests.test_finetune_tokens import finetune

# A Korean sentence by characters, spaces too, as KLUE has it: a name, a particle, a place, a particle and a verb.
NAMES, PLACES, VERBS = ("\uae40\ubbfc\uc218", "\ubc15\uc11c\uc5f0"), ("\ubd80\uc0b0", "\uc804\uc8fc"), ("\uac14\ub2e4",)


def korean(path, sentences: int):
    """Every character with its tag; comments that start with ## before each sentence."""
    lines = []
    for number in range(sentences):
        name, place = NAMES[number % 2], PLACES[number // 2 % 2]
        text = f"{name}\uc640 {place}\uc5d0 {VERBS[0]}"
        tags = ["O"] * len(text)
        for kind, word in (("PS", name), ("LC", place)):
            first = text.index(word)
            tags[first : first + len(word)] = [f"B-{kind}", *[f"I-{kind}"] * (len(word) - 1)]
        lines += [f"## korean_{number:05}\t", *(f"{character}\t{tag}" for character, tag in zip(text, tags)), ""]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """The export of a tagger of Korean characters."""
    folder = tmp_path_factory.mktemp("characters")
    train, dev = korean(folder / "train.tsv", 120), korean(folder / "dev.tsv", 24)
    letters = sorted({line[0] for line in train.read_text().splitlines() if line and not line.startswith("#")} - {" "})
    vocabulary = folder / "letters.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary.write_text("\n".join(pieces) + "\n")
    more = [f"--config.data.tokenizer.model={vocabulary}", "--config.stages.0.epochs=6"]
    assert finetune("ner.py:smoke", "ner", train, dev, folder / "run", *more) == 0
    return folder / "run" / "export"


@pytest.mark.slow
def test_a_tagger_of_characters_tags_the_characters_of_a_text(characters):
    text = "\uae40\ubbfc\uc218\uc640 \ubd80\uc0b0\uc5d0 \uac14\ub2e4"
    predictor = bertjax.predictor(characters)
    answers = predictor.predict([text, {"words": list(text)}])
    for answer in answers:
        assert answer["words"] == list(text)
        for kind, name in (("PS", "\uae40\ubbfc\uc218"), ("LC", "\ubd80\uc0b0")):
            tagged = [letter for letter, tag in zip(text, answer["prediction"], strict=True) if tag.endswith(kind)]
            assert "".join(tagged) == name
    with pytest.raises(UserError, match="text 1: 'words' is .*, not a list of texts"):
        predictor.predict([{"words": "ann"}])
