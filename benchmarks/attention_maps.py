"""Label attention maps by eye, and compare the labels with the rules of `bertjax.analysis.attention_patterns`.

    python -m benchmarks.attention_maps collect MAPS.npz "MODEL;MATERIAL;COUNT" ...
    python -m benchmarks.attention_maps draw MAPS.npz FOLDER --seed=1
    python -m benchmarks.attention_maps score MAPS.npz LABELS.json
    python -m benchmarks.attention_maps sheet MAPS.npz LABELS.json SHEET.png

`collect` draws maps of random examples, layers and heads. `draw` writes contact sheets of 20 maps in a random order;
maps show neither model, layer nor head. Marks at the edges are special tokens. LABELS.json holds one string per order
of sheets, with a letter for each map in that order: v(ertical), d(iagonal), m(ixed: both), b(lock), h(eterogeneous).
`score` prints the agreement of the two readings (Cohen's kappa) and, for the half of the maps on which no threshold was
chosen, the confusion matrix of the first reading and the rules. `sheet` draws all maps on one sheet, by label.
"""

import argparse
import functools
import json
import sys
from pathlib import Path

import jax
import numpy as np

from bertjax.analysis.attention_patterns import CLASSES, FEATURES, classify, features
from bertjax.analysis.material import Corpus, Material, labeled
from bertjax.analysis.subject import captured, open_subjects

LETTERS = "vdmbh"
ROWS, COLUMNS = 4, 5
SHORTEST, LONGEST = 10, 60
# Square roots of weights in 255 steps keep small weights apart.
STEPS = 255.0


def collect(path: Path, sources: list[str]) -> None:
    """Write maps of random examples, layers and heads, the same number of each source in each call."""
    draw, records, cells = np.random.default_rng(0), [], []
    for source in sources:
        name, material_name, count = source.rsplit(";", 2)
        subject = open_subjects([name])[0]
        material: Material = Corpus("corpus", 2000, length=LONGEST, corpus=material_name.partition("=")[2])
        if not material_name.startswith("corpus"):
            material = labeled(material_name, 2000)
        encoded = material.encoded(subject)
        lengths = encoded.ragged.lengths
        fitting = np.flatnonzero((lengths >= SHORTEST) & (lengths <= LONGEST))
        encode = jax.jit(functools.partial(captured, subject.encoder, names=("attention",)))
        chosen = draw.choice(fitting, int(count), replace=False)
        batch = encoded.batch(chosen[:, None], LONGEST)
        attention_LBHTT = np.asarray(encode(subject.params, batch)["attention"])
        for row, index in enumerate(chosen):
            layer, head = draw.integers(subject.encoder.layers), draw.integers(subject.encoder.heads)
            length = int(lengths[index])
            cells.append(attention_LBHTT[layer, row, head, :length, :length].ravel())
            tokens, segments = batch["tokens_BT"][row, :length], batch["segments_BT"][row, :length]
            records.append(
                {
                    "source": f"{subject.label};{material.name}",
                    "layer": int(layer) + 1,
                    "head": int(head) + 1,
                    "length": length,
                    "special": np.flatnonzero(subject.vocabulary.is_special[tokens]).tolist(),
                    "second": int((segments == 0).sum()),
                }
            )
        print(f"{source}: {count} maps", file=sys.stderr)
    steps = np.round(np.sqrt(np.concatenate(cells)) * STEPS).astype(np.uint8)
    np.savez_compressed(path, cells=steps, records=np.array(json.dumps(records)))


def read(path: Path) -> list[tuple[dict, np.ndarray]]:
    """Return the maps of a file with their records; the rows of a map sum to about 1."""
    with np.load(path) as file:
        cells, records = (file["cells"] / STEPS) ** 2, json.loads(str(file["records"]))
    maps, start = [], 0
    for record in records:
        stop = start + record["length"] ** 2
        weights_TT = cells[start:stop].reshape(record["length"], -1)
        maps.append((record, weights_TT / weights_TT.sum(axis=1, keepdims=True)))
        start = stop
    return maps


def features_of(maps: list[tuple[dict, np.ndarray]]) -> np.ndarray:
    """Return the features of maps, float [3, M]."""
    size, count = max(record["length"] for record, _ in maps), len(maps)
    attention, special = np.zeros((count, 1, size, size), np.float32), np.zeros((count, size), bool)
    batch = {name: np.zeros((count, size), np.int32) for name in ("examples_BT", "segments_BT")}
    batch["example_ids_BN"] = np.zeros((count, 1), np.int32)
    for index, (record, weights_TT) in enumerate(maps):
        length = record["length"]
        attention[index, 0, :length, :length] = weights_TT
        special[index, record["special"]] = True
        batch["examples_BT"][index, :length] = 1
        batch["segments_BT"][index, record["second"] : length] = 1
    return np.asarray(jax.jit(features)(attention, batch, special))[:, :, 0, 0]


def order_of(count: int, seed: int) -> np.ndarray:
    """Return the maps in the order of the sheets of a seed."""
    return np.random.default_rng(seed).permutation(count)


def draw(path: Path, folder: Path, seed: int) -> None:
    """Write contact sheets."""
    from matplotlib.figure import Figure

    maps = read(path)
    order, folder = order_of(len(maps), seed), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for sheet in range(0, len(order), ROWS * COLUMNS):
        figure = Figure(figsize=(13, 11), layout="constrained")
        axes = list(figure.subplots(ROWS, COLUMNS).flat)
        for place, (panel, index) in enumerate(zip(axes, order[sheet : sheet + ROWS * COLUMNS])):
            record, weights_TT = maps[index]
            panel.imshow(weights_TT, cmap="gray_r", vmin=0, vmax=max(np.percentile(weights_TT, 99), 1e-3))
            panel.set_xticks(record["special"], [])
            panel.set_yticks(record["special"], [])
            panel.set_title(str(sheet + place + 1), fontsize=9, pad=2)
        figure.savefig(folder / f"sheet{sheet // (ROWS * COLUMNS) + 1:02}.png", dpi=72)


def labels_of(path: Path, count: int) -> dict[int, np.ndarray]:
    """Return {seed: the class of each map} of the readings in a file."""
    readings = {}
    for seed, letters in json.loads(path.read_text())["readings"].items():
        labels = np.empty(count, np.int64)
        labels[order_of(count, int(seed))] = [LETTERS.index(letter) for letter in "".join(letters)]
        readings[int(seed)] = labels
    return readings


def halves(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the maps on which thresholds are chosen, and the others."""
    order = np.random.default_rng(12345).permutation(count)
    return order[: count // 2], order[count // 2 :]


def confusion(labels: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return the number of maps of each label (rows) and answer (columns)."""
    table = np.zeros((len(CLASSES), len(CLASSES)), np.int64)
    np.add.at(table, (labels, answers), 1)
    return table


def score(path: Path, labels_path: Path) -> dict:
    """Return agreement and confusion matrices."""
    from sklearn.metrics import cohen_kappa_score, f1_score

    maps = read(path)
    answers = np.asarray(classify(features_of(maps)))
    first, second = labels_of(labels_path, len(maps)).values()
    chosen, others = halves(len(maps))

    def of(part: np.ndarray) -> dict:
        return {
            "maps": len(part),
            "accuracy": float(np.mean(first[part] == answers[part])),
            "kappa": float(cohen_kappa_score(first[part], answers[part])),
            "macro_f1": float(f1_score(first[part], answers[part], average="macro", zero_division=0.0)),
            "confusion": confusion(first[part], answers[part]).tolist(),
        }

    both = np.flatnonzero(first == second)
    return {
        "classes": CLASSES,
        "features": FEATURES,
        "readings": {
            "agreement": float(np.mean(first == second)),
            "kappa": float(cohen_kappa_score(first, second)),
            "confusion": confusion(first, second).tolist(),
        },
        "half_with_thresholds_chosen": of(chosen),
        "other_half": of(others),
        "other_half_where_readings_agree": of(np.intersect1d(others, both)),
    }


def sheet(path: Path, labels_path: Path, out: Path, columns: int = 24, side: int = 44) -> None:
    """Write all maps on one sheet, one class of the first reading below the other.

    A thick line ends a class. A frame marks a map that the rules put into another class.
    """
    from PIL import Image

    maps = read(path)
    first, _ = labels_of(labels_path, len(maps)).values()
    answers, rows = np.asarray(classify(features_of(maps))), []
    for number in range(len(CLASSES)):
        members = np.flatnonzero(first == number)
        for start in range(0, len(members), columns):
            row = np.full((side + 6, columns * (side + 6), 3), 255, np.uint8)
            for place, index in enumerate(members[start : start + columns]):
                _, weights_TT = maps[index]
                left = place * (side + 6)
                frame = (220, 0, 0) if answers[index] != number else (200, 200, 200)
                row[1:-1, left + 1 : left + side + 5] = frame
                darkness = np.minimum(weights_TT / max(np.percentile(weights_TT, 99), 1e-3), 1.0)
                cells = np.arange(side) * len(weights_TT) // side
                picture = (255 * (1 - darkness[np.ix_(cells, cells)])).astype(np.uint8)
                row[3:-3, left + 3 : left + side + 3] = picture[..., None]
            rows.append(row)
        rows.append(np.full((4, rows[-1].shape[1], 3), 0, np.uint8))
    image = Image.fromarray(np.concatenate(rows[:-1])).convert("P", palette=Image.Palette.ADAPTIVE, colors=32)
    image.save(out, optimize=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("collect", "draw", "score", "sheet"))
    parser.add_argument("maps", type=Path)
    parser.add_argument("rest", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.action == "collect":
        collect(args.maps, args.rest)
    elif args.action == "draw":
        draw(args.maps, Path(args.rest[0]), args.seed)
    elif args.action == "sheet":
        sheet(args.maps, *map(Path, args.rest))
    else:
        print(json.dumps(score(args.maps, Path(args.rest[0])), indent=1))


if __name__ == "__main__":
    main()
