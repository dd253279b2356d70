"""Figures of the encoder: attention, taps, and how its arrays are split."""

import jax
import numpy as np
from jax.sharding import PartitionSpec

from bertjax.models.presets import PRESETS
from bertjax.models.taps import HIDDEN
from bertjax.runtime.devices import AXES, BATCH_AXES
from bertjax.training.parallel.sharding import ENCODER_RULES, HEAD_RULES
from bertjax.training.parallel.strategy import spec_of
from bertjax.training.param_paths import map_with_path
from bertjax.training.shapes import batch_shapes
from docs.diagrams.canvas import Canvas
from docs.diagrams.tales import SEQ_LEN, Tales

AXIS_COLORS = {"data": "green", "fsdp": "blue", "tensor": "orange"}


def attention(tales: Tales) -> Canvas:
    """What each implementation of attention has in memory."""
    heads, tokens = PRESETS["base"].heads, 512
    size, kept = f"{heads * tokens**2 * 2 / 1e6:.1f} MB", f"{heads * tokens * 4 / 1e3:.0f} kB"
    canvas = Canvas(
        "Plain attention has the probabilities of all pairs of tokens in memory. The fused kernel computes them tile "
        "by tile on the chip and keeps one sum for each query.",
        362,
    )
    for y, name in ((30, "plain"), (192, "fused")):
        canvas.text(14, y, name, "head")
        canvas.box(14, y + 12, 290, 122, "gray")
        canvas.text(24, y + 29, "memory (HBM)", "soft")
        canvas.box(314, y + 12, 112, 122, "gray dashed")
        canvas.text(324, y + 29, "chip (VMEM)", "soft")
        for index, letter in enumerate("QKV"):
            canvas.box(26, y + 44 + 27 * index, 34, 23, "blue", letter)
        canvas.box(214, y + 63, 78, 38, "blue", "context")
    for sheet in range(4):
        canvas.box(102 + 5 * sheet, 85 - 5 * sheet, 56, 56, "red")
    canvas.text(145, 102, "P", "", "middle")
    canvas.text(90, 157, f"{heads} x {tokens} x {tokens}: {size}", "soft")
    canvas.line((64, 112), (100, 112), arrow=True)
    canvas.line((176, 112), (212, 112), arrow=True)
    for line, words in enumerate(("single", "operations")):
        canvas.text(370, 105 + 16 * line, words, "soft", "middle")
    canvas.line((62, 248), (78, 248), (78, 234), (326, 234), arrow=True)
    for row in range(3):
        for column in range(4):
            is_computed = (row, column) == (0, 2)
            color = "orange" if is_computed else "page dashed"
            canvas.box(328 + 22 * column, 228 + 22 * row, 20, 20, color, "P" if is_computed else "")
    canvas.text(370, 314, "tile by tile", "soft", "middle")
    canvas.line((326, 274), (294, 274), arrow=True)
    canvas.box(90, 266, 110, 23, "green", f"{heads} x {tokens}: {kept}", "soft")
    canvas.text(145, 307, "sums of softmax", "soft", "middle")
    canvas.text(14, 348, f"One row of {tokens} tokens, one layer of BERT base, bfloat16", "soft")
    return canvas


# {path of an array: its name in the figure and its axes, of kernels those of one layer}
SHARDED = {
    "tokens_BT": ("tokens_BT", "BT"),
    "encoder/embeddings/word": ("word", "VD"),
    "encoder/layers/attention/query/kernel": ("query", "DD"),
    "encoder/layers/intermediate/kernel": ("intermediate", "DF"),
    "encoder/layers/output/kernel": ("output", "FD"),
    "encoder/layers/output_norm/scale": ("output_norm", "D"),
}


def sharding(tales: Tales) -> Canvas:
    """What the first of eight devices holds of some arrays, by the rules of the table."""
    [task] = tales.config.tasks.values()
    encoder = tales.config.encoder(tales.store.tokenizer.vocab_size, "cpu")
    batch, model = batch_shapes(task, encoder.vocab_size, SEQ_LEN), task.objective.model(encoder)
    params = jax.eval_shape(lambda key: task.objective.init(model, key, batch), jax.random.key(0))
    specs = {"tokens_BT": PartitionSpec(BATCH_AXES)}
    map_with_path(lambda path, leaf: specs.update({path: spec_of(path, leaf, (*ENCODER_RULES, *HEAD_RULES))}), params)
    canvas = Canvas(
        "The part of each array that one of eight devices holds, with two devices along each axis of the mesh: a "
        "quarter of the rows, of the word table and of each kernel, and all of a norm.",
        392,
    )
    canvas.text(14, 26, "8 devices", "head")
    for data, fsdp, tensor in np.ndindex(2, 2, 2):
        color = "gray" if data + fsdp + tensor else "held"
        canvas.box(14 + 62 * data + 26 * tensor, 38 + 26 * fsdp, 23, 23, color)
    for y, axis, use in zip((42, 64, 86), AXES, ("splits rows", "splits rows and weights", "splits matrices")):
        canvas.line((160, y), (190, y), style=f"cut {AXIS_COLORS[axis]}-line")
        canvas.text(200, y + 4.5, axis, "code")
        canvas.text(254, y + 4.5, use, "soft")
    canvas.text(14, 116, "filled: what the first device holds", "soft")
    for index, (path, (name, axes)) in enumerate(SHARDED.items()):
        # Kernels and norms are stacked, so their first axis is that of the layers, which is never split.
        spec = tuple(specs[path])[path.startswith("encoder/layers") :]
        x, y = 34 + 140 * (index % 3), 166 + 126 * (index // 3)
        canvas.text(x - 20, y - 20, name, "code")
        _cut_array(canvas, x, y, f" {axes}"[-2:], spec if len(axes) == 2 else (None, *spec))
    return canvas


def _cut_array(canvas: Canvas, x: int, y: int, axes: str, spec: tuple) -> None:
    """Draw an array, cut along its two axes, with the part of the first device filled. A blank axis has one entry."""
    sizes = (20 if axes[0] == " " else 72, 88)
    splits = [each if isinstance(each, tuple) else (each,) * (each is not None) for each in (*spec, None, None)[:2]]
    parts = [2 ** len(split) for split in splits]  # each axis of the mesh has two devices
    canvas.text(x + 44, y - 5, axes[1], "soft", "middle")
    canvas.text(x - 6, y + sizes[0] / 2 + 4, axes[0], "soft", "end")
    canvas.box(x, y, sizes[1], sizes[0], "gray")
    canvas.box(x, y, sizes[1] / parts[1], sizes[0] / parts[0], "held")
    for axis, (split, size) in enumerate(zip(splits, sizes)):
        for cut in range(1, parts[axis]):
            at = size * cut / parts[axis]
            start, end = ((x, y + at), (x + sizes[1], y + at)) if axis == 0 else ((x + at, y), (x + at, y + sizes[0]))
            # Of two names, the first one makes the cut in the middle.
            name = split[0] if 2 * cut == parts[axis] else split[-1]
            canvas.line(start, end, style=f"cut {AXIS_COLORS[name]}-line")
    count = parts[0] * parts[1]
    canvas.text(x + 44, y + sizes[0] + 15, f"1/{count}" if count > 1 else "all", "soft", "middle")


def taps(tales: Tales) -> Canvas:
    """The encoder with its taps: values to capture on the left, masks to apply on the right."""
    block = tales.config.model.block
    canvas = Canvas(
        f"One layer of the encoder. On its left what can be captured: {', '.join(block.captures)}. On its right the "
        f"masks that can be applied: {', '.join(block.masks)}.",
        478,
    )
    canvas.text(14, 26, "captured", "head")
    canvas.text(426, 26, "masks", "head", "end")
    canvas.box(118, 84, 178, 362, "page dashed")
    canvas.text(304, 98, "one of L layers", "soft")
    for y, height, part in (
        (40, 28, "embeddings"),
        (104, 74, "dense layers"),
        (194, 26, "softmax"),
        (236, 50, "weighted values"),
        (302, 26, "add, norm"),
        (340, 26, "first dense layer"),
        (378, 26, "second dense layer"),
        (416, 26, "add, norm"),
    ):
        canvas.box(132, y, 150, height, "gray", part)
        if y > 40:
            canvas.line((207, y - (36 if y == 104 else 12)), (207, y - 1), arrow=True)
    canvas.line((207, 442), (207, 470), arrow=True)
    # The place of each name; a name that has none is an error.
    captured = {"queries": 117, "keys": 141, "values": 165, "attention": 207, "context": 276, "feedforward": 353}
    for name in block.captures:
        for y in (54, 460) if name == HIDDEN else (captured[name],):
            canvas.box(14, y - 10, 92, 20, "blue", name, "code")
            canvas.line((106, y), (207 if y == 460 else 132, y))
    masks = {"context_offset": 246, "head_mask": 268, "feedforward_mask": 353, "layer_mask": 429}
    for name in block.masks:
        canvas.box(302, masks[name] - 10, 126, 20, "orange", name, "code")
        canvas.line((302, masks[name]), (284, masks[name]), arrow=True)
    return canvas
