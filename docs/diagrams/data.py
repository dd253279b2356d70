"""Figures of rows: packing, masking, and the order of rows."""

import jax.numpy as jnp
import numpy as np

from bertjax.data.batch import Draw, place
from bertjax.data.masking import SpanMasking, TokenMasking, WordMasking, mask
from bertjax.models.visibility import Visibility
from docs.diagrams.canvas import Canvas
from docs.diagrams.tales import SEQ_LEN, Tales

EXAMPLE_COLORS = ("blue", "orange", "green")


def determinism(tales: Tales) -> Canvas:
    """The rows of steps, in a run that never stops and in one that does."""
    steps, batch, stop, left, width = 6, 4, 3, 60, 63
    canvas = Canvas(
        "A step reads the same rows in a run that never stops and in one that was killed and continues on two hosts.",
        352,
    )
    for y, name in ((28, "never stopped"), (172, "killed, continued")):
        canvas.text(14, y, name, "head")
        canvas.text(14, y + 66, "rows", "soft")
        for index in range(steps):
            x = left + width * index
            canvas.text(x + 28, y + 20, f"step {index}", "soft", "middle")
            rows = tales.feed.locate(np.arange(index * batch, (index + 1) * batch))[2]
            for place_in_batch, row in enumerate(rows):
                is_second_host = y > 28 and index >= stop and place_in_batch >= batch / 2
                color = "orange" if is_second_host else "blue"
                canvas.box(x, y + 28 + 23 * place_in_batch, 56, 20, color, f"{row}", "code")
    cut = left + width * stop - 3.5
    canvas.line((cut, 162), (cut, 294), style="dashed")
    for x, color, name in ((cut + 10, "blue", "host 0"), (cut + 88, "orange", "host 1")):
        canvas.box(x, 162, 11, 11, color)
        canvas.text(x + 16, 172, name, "soft")
    sources_of = (("rows", "seed, step"), ("masks", "seed, example, epoch"), ("dropout", "seed, step, row"))
    for x, (name, arguments) in zip((14, 130, 296), sources_of):
        canvas.text(x, 318, f"{name}: from")
        canvas.text(x, 336, arguments, "soft")
    return canvas


# {kind: (masking, epoch)}
MASKINGS = (
    (TokenMasking(rate=0.3), 0),
    (TokenMasking(rate=0.3), 1),
    (WordMasking(rate=0.3), 0),
    (SpanMasking(rate=0.3), 1),
)


def masking(tales: Tales) -> Canvas:
    """One sentence, masked by three kinds of masking, and by one of them in two epochs."""
    tokenizer, plan = tales.store.tokenizer, tales.feed.plans[0]
    [ids] = tokenizer.encode(["From the hearth the field is a great distance."])
    ragged = plan.examples.take(np.arange(plan.counts.examples))
    [example] = [
        number
        for number, (start, stop) in enumerate(zip(ragged.offsets, ragged.offsets[1:]))
        if list(ragged.tokens[start + 1 : stop - 1]) == ids
    ]
    ragged = plan.examples.take(np.array([example]))
    placed = place(ragged, np.array([[0]]), SEQ_LEN, tales.feed.vocabulary)
    bottom = 50 + 21 * len(ragged.tokens)
    canvas = Canvas(
        "A sentence and what the model sees of it: with single tokens masked, with others in the next epoch, with "
        "whole words masked, and with a span masked.",
        bottom + 56,
    )
    canvas.text(14, 40, "the text", "soft")
    for row, token in enumerate(ragged.tokens):
        canvas.text(14, 64 + 21 * row, tokenizer.piece(token), "code")
    for column, (choice, epoch) in enumerate(MASKINGS):
        x = 92 + 86 * column
        canvas.text(x + 39, 24, choice.kind, "code", "middle")
        canvas.text(x + 39, 40, f"epoch {epoch}", "soft", "middle")
        masked = mask(placed, Draw(0, np.array([epoch])), choice)
        for row, (token, original) in enumerate(zip(masked.tokens, ragged.tokens)):
            y = 50 + 21 * row
            if masked.chosen[row]:
                color = "orange" if token == tokenizer.mask_id else "blue" if token == original else "red"
                canvas.box(x, y, 78, 19, color, tokenizer.piece(token), "code")
            else:
                canvas.line((x + 34, y + 10), (x + 44, y + 10))
    canvas.text(14, bottom + 20, "The model predicts all tokens in boxes:", "soft")
    for x, color, word in ((14, "orange", "hidden"), (104, "red", "another token"), (240, "blue", "left as it is")):
        canvas.box(x, bottom + 30, 11, 11, color)
        canvas.text(x + 16, bottom + 40, word, "soft")
    return canvas


def packing(tales: Tales) -> Canvas:
    """A row of three examples, and which token sees which."""
    batch = tales.feed.batch(np.array([755]))
    examples, cell, left, top = batch["examples_BT"][0], 13, 114, 46
    visible_TT = np.asarray(Visibility(jnp.asarray(batch["examples_BT"])).mask_BQT())[0]
    canvas = Canvas(
        "A row with three examples. A token attends only to tokens of its own example, and positions restart in each.",
        top + cell * SEQ_LEN + 32,
    )
    canvas.text(14, 24, f"one row, {examples.max()} examples", "head")
    canvas.text(left + cell * SEQ_LEN, 24, "which token sees which", "soft", "end")
    canvas.text(left - 6, top - 6, "position", "soft", "end")
    for number, color in zip(range(1, examples.max() + 1), EXAMPLE_COLORS, strict=True):
        columns = np.flatnonzero(examples == number)
        canvas.box(10, top + cell * columns[0] - 1, 78, cell * len(columns), color)
        middle = left + cell * (columns[0] + len(columns) / 2)
        canvas.text(middle, top + cell * SEQ_LEN + 18, f"example {number}", "soft", "middle")
        for query in columns:
            y = top + cell * query
            canvas.text(15, y + 10, tales.store.tokenizer.piece(batch["tokens_BT"][0, query]), "code")
            canvas.text(left - 6, y + 10, f"{batch['positions_BT'][0, query]}", "soft", "end")
            for key in np.flatnonzero(visible_TT[query]):
                canvas.box(left + cell * key, y, cell - 2, cell - 2, f"{color}-full")
    canvas.box(left - 2, top - 2, cell * SEQ_LEN + 2, cell * SEQ_LEN + 2, "outline")
    return canvas
