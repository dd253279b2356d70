"""Variants of texts: drawn by a seed, filled by a masked LM, one line for bad input."""

import functools
import json
import re

import pytest

from bertjax.cli import augment
from bertjax.data.text.augmentation import MASK, Augmentation
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError


def test_a_masked_lm_fills_the_words(undisturbed, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in ["abc bad cab fed", "hid jig " * 60]))
    flags = [str(tmp_path / "texts.txt"), f"--model={undisturbed / 'export'}", "--copies=6", "--mask=0.3"]
    for name in ("first", "second"):
        arguments = [*flags, f"--to={tmp_path / name}.jsonl", "--platform=cpu"]
        assert command_line.exit_code_of(functools.partial(augment.main, arguments)) == 0
    written = (tmp_path / "first.jsonl").read_text()
    assert written == (tmp_path / "second.jsonl").read_text()
    texts = [json.loads(line)["text"] for line in written.splitlines()]
    assert 4 < len(texts) <= 12 and len(set(texts)) == len(texts) and not any(MASK in text for text in texts)
    assert f"2 records gave {len(texts)} variants" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, complaint",
    [
        ([], "--mask=0.1 needs a masked LM that fills [MASK]; add --model, or --mask=0"),
        (["--mask=2"], "--mask=2.0 must be between 0 and 1"),
        (["--mask=0", "--ngrams=0"], "change nothing; raise one of them"),
        (["--copies=0"], "--copies=0 must be at least 1"),
        (["--mask=0", "--to=more.csv"], "name a file that ends in .jsonl"),
        (["--mask=0", "--text=sentence", "--pair=other"], "together; give a .jsonl file with these fields"),
        (["--mask=0", "--to=not/there.jsonl"], "--to=not/there.jsonl is in a folder that does not exist"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, flags, complaint):
    (tmp_path / "texts.txt").write_text("one two three\n")
    arguments = [str(tmp_path / "texts.txt"), f"--to={tmp_path / 'more.jsonl'}", *flags, "--platform=cpu"]
    assert command_line.exit_code_of(lambda: augment.main(arguments)) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1 and not (tmp_path / "more.jsonl").exists()


@pytest.mark.parametrize("candidates", [0, 10**6])
def test_candidates_are_pieces_of_the_vocabulary(undisturbed, tmp_path, candidates):
    (tmp_path / "texts.txt").write_text("one two three\n")
    arguments = str(tmp_path / "texts.txt"), str(tmp_path / "more.jsonl"), ("text",), Augmentation()
    with pytest.raises(UserError, match=f"top={candidates} must be between 1 and "):
        augment.run(*arguments, str(undisturbed / "export"), candidates)


def test_a_text_that_cannot_change_is_refused(tmp_path):
    (tmp_path / "texts.txt").write_text("one\n")
    with pytest.raises(UserError, match="has no text that changes"):
        augment.run(str(tmp_path / "texts.txt"), str(tmp_path / "m.jsonl"), ("text",), Augmentation(mask=0.0))


def test_what_is_not_replaced_stays_as_it_is_written(undisturbed, tmp_path, capsys):
    """Also behind the first T tokens, and in a spelling that the tokenizer does not know."""
    words = [f"hid{'  ' if n % 7 else chr(9)}J\u00fcg!\u4e2d" for n in range(60)]
    text = "   ".join(["ABC", *words, "the very End."])
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": text}) + "\n")
    arguments = [str(tmp_path / "texts.jsonl"), f"--model={undisturbed / 'export'}", "--copies=4", "--mask=0.1"]
    arguments += ["--ngrams=0", f"--to={tmp_path / 'more.jsonl'}", "--platform=cpu"]
    assert command_line.exit_code_of(functools.partial(augment.main, arguments)) == 0
    lines = (tmp_path / "more.jsonl").read_text().splitlines()
    variants = Augmentation(copies=4, mask=0.1, ngrams=0.0).variants([[text]])
    assert len(lines) == len(variants) == 4
    for line, (masked,) in zip(lines, variants, strict=True):
        filled = json.loads(line)["text"]
        kept = [re.escape(part) for part in masked.split(MASK)]
        assert len(kept) > 2 and re.fullmatch(r"(\S+)".join(kept), filled), (masked, filled)
