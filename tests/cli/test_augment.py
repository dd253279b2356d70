"""Variants of texts: drawn by a seed, filled by a masked LM, one line for bad input."""

import functools
import json
import re

import numpy as np
import pytest

from bertjax.cli import augment
from bertjax.data.text.augmentation import MASK, Augmentation
from bertjax.inference import fill
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

TEXTS = ["one two three four five six seven", "eight nine ten", "eleven"]


def test_variants_of_pairs_change_one_text_or_both():
    pairs = [[TEXTS[0], "a b c d e f g h"]]
    variants = Augmentation(copies=60, mask=0.5).variants(pairs)
    changed = {(first != pairs[0][0], second != pairs[0][1]) for first, second in variants}
    assert changed == {(True, False), (False, True), (True, True)}
    assert len({tuple(variant) for variant in variants}) == len(variants) and pairs[0] not in variants


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


def test_a_file_is_not_written_over(tmp_path):
    """The source may be a .jsonl file, and has labels that the variants lack."""
    source = tmp_path / "train.jsonl"
    source.write_text('{"text": "one two three", "label": "yes"}\n')
    with pytest.raises(UserError, match="train.jsonl exists; name another file, or remove it"):
        augment.run(str(source), str(source), ("text",), Augmentation(mask=0.0))
    assert "label" in source.read_text()


@pytest.mark.parametrize("candidates", [0, 10**6])
def test_candidates_are_pieces_of_the_vocabulary(undisturbed, tmp_path, candidates):
    (tmp_path / "texts.txt").write_text("one two three\n")
    arguments = str(tmp_path / "texts.txt"), str(tmp_path / "more.jsonl"), ("text",), Augmentation()
    with pytest.raises(UserError, match=f"--candidates={candidates} must be between 1 and "):
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


@pytest.mark.parametrize("room", [4, 7, 30])
def test_windows_have_each_mask_once_with_text_around_it(room):
    for length in (1, 5, 29, 100):
        for every in (1, 3, 17):
            masks = np.arange(0, length, every)
            windows = list(fill._windows(masks, length, room))
            np.testing.assert_array_equal(np.concatenate([inside for _, inside in windows]), masks)
            for start, inside in windows:
                assert 0 <= start <= inside[0] and inside[-1] < min(length, start + room)
                assert inside[-1] < start + room - room // 4 or start + room >= length
