"""Figures of a run: from examples to the loss, and what it saves."""

from bertjax.objectives.base import Objective
from bertjax.training.run.workdir import Workdir
from docs.diagrams.canvas import Canvas
from docs.diagrams.tales import Tales


def objective_contract(tales: Tales) -> Canvas:
    """From examples to the loss, by the methods of an objective."""
    host, device, sums = Objective.features.__name__, Objective.logits.__name__, Objective.terms_of.__name__
    weights, factors = Objective.weights.__name__, Objective.loss_weights.__name__
    canvas = Canvas(
        "features makes arrays on the host. On each device logits and terms_of give a sum S, and weights gives W from "
        "the batch. The loss divides the sum of S over all devices by the sum of W.",
        386,
    )
    canvas.text(14, 26, "host", "head")
    canvas.box(14, 38, 84, 36, "gray", "examples")
    canvas.line((98, 56), (138, 56), arrow=True)
    canvas.box(140, 38, 110, 36, "blue", host, "code")
    canvas.line((250, 56), (290, 56), arrow=True)
    canvas.box(292, 38, 134, 36, "gray", "batch")
    canvas.line((359, 74), (359, 86), (114, 86), (114, 114), arrow=True)
    for x, name in ((14, "device 0"), (226, "device 1")):
        canvas.line((x + 100, 86), (x + 100, 114), arrow=True)
        canvas.text(x, 106, name, "head")
        canvas.box(x, 116, 200, 148, "gray")
        canvas.text(x + 10, 134, "rows of this device", "soft")
        canvas.box(x + 12, 144, 98, 26, "blue", device, "code")
        canvas.line((x + 61, 170), (x + 61, 186), arrow=True)
        canvas.box(x + 12, 188, 98, 26, "blue", sums, "code")
        canvas.line((x + 61, 214), (x + 61, 230), arrow=True)
        canvas.box(x + 44, 232, 34, 24, "orange", "S")
        canvas.box(x + 120, 144, 70, 26, "blue", weights, "code")
        canvas.line((x + 155, 170), (x + 155, 230), arrow=True)
        canvas.box(x + 138, 232, 34, 24, "green", "W")
        canvas.line((x + 61, 256), (x + 61, 286), arrow=True)
        canvas.line((x + 155, 256), (x + 155, 286), arrow=True)
    canvas.box(14, 288, 412, 84, "gray")
    canvas.text(26, 326, f"loss  =  sum of {factors}  x")
    canvas.box(276, 296, 140, 30, "orange", "all S of a term")
    canvas.line((270, 331), (422, 331))
    canvas.box(276, 336, 140, 30, "green", "all W of a term")
    canvas.text(26, 350, "W comes first: it needs no parameters", "soft")
    return canvas


def saving(tales: Tales) -> Canvas:
    """What a run writes, in order, and how the next start reads it."""
    workdir = Workdir.at("run")
    canvas = Canvas(
        "A run saves its state with fingerprints, then writes its metrics, then the score of its evaluation. The next "
        "start compares the fingerprints, reads a second time if they differ, and then uses the checkpoint before.",
        330,
    )
    canvas.text(14, 26, "a run writes", "head")
    canvas.text(246, 26, "the next start reads", "head")
    written = (
        ("state", "step, params, opt_state", "gray"),
        ("checkpoint", "arrays and fingerprints", "blue"),
        ("metrics", workdir.metrics.name, "orange"),
        ("evaluation", workdir.evaluations.name, "orange"),
    )
    for index, (name, detail, color) in enumerate(written):
        y = 42 + 70 * index
        canvas.box(14, y, 180, 48, color)
        canvas.text(104, y + 21, name, "", "middle")
        canvas.text(104, y + 38, detail, "soft", "middle")
        if index:
            canvas.line((104, y - 22), (104, y - 2), arrow=True)
    canvas.line((194, 136), (244, 136), arrow=True, style="dashed")
    canvas.box(246, 112, 180, 48, "gray")
    canvas.text(336, 133, "are the fingerprints", "", "middle")
    canvas.text(336, 150, "the same?", "", "middle")
    canvas.line((276, 160), (276, 200), arrow=True)
    canvas.text(270, 184, "yes", "soft", "end")
    canvas.box(246, 202, 72, 40, "green", "continue")
    canvas.line((380, 160), (380, 200), arrow=True)
    canvas.text(388, 184, "no", "soft")
    canvas.box(334, 202, 92, 40, "red", "read again")
    canvas.line((380, 242), (380, 266), arrow=True)
    canvas.text(388, 259, "no", "soft")
    canvas.box(246, 268, 180, 40, "red", "the checkpoint before")
    return canvas
