"""Mutations of files, each a function of a seed: what damage, chance and malice make of a model's folder."""

import copy
import hashlib
import json
import os
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Modules that nothing imports by itself.
MODULES = ("evil", "this", "antigravity", "idlelib.idle")
_DEEP = 100_000
_ODD = (
    *(None, True, -1, 0, 1, 3, 1e308, 10**12, 2**31, 2**63, -(2**63), 0.5),
    *("", "x", "a\nb", "\ud800", "\x00", "..", "/etc/passwd", "~", "a/b", "=" * 2000, ":", "evil:X", "x:", ":X"),
    *(f"{module}:X" for module in MODULES),
    *([], {}, [[]], [None], {"": {}}, {"kind": "evil:X"}, {"kind": []}, {"a\nb": {"kind": "mlm"}}, [0] * 50),
)
# Texts that are put in place of a value of JSON.
_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "9" * 5000)
_ODD_TEXTS = (*_NUMBERS, "[" * 50 + "]" * 50, "[" * 900 + "]" * 900)
_TOKEN = "odd text to put here"


def nodes(value: Any, path: tuple = ()) -> list[tuple]:
    """Return the paths of all values in nested dicts and lists, except its own."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [inner for key, entry in items for inner in ((*path, key), *nodes(entry, (*path, key)))]


def json_of(content: bytes, draw: random.Random) -> bytes:
    """Return JSON with other values, keys or nesting."""
    try:
        value = json.loads(content)
    except ValueError:
        return bytes_of(content, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        paths = nodes(value)
        if not paths:
            break
        path = _choose(paths, draw)
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        _change(parent, path[-1], value, paths, draw)
    text = json.dumps(value)
    if draw.random() < 0.05:  # one key, twice
        text = text.replace("{", '{"kind": "evil:X", "format_version": 1, "version": null, ', 1)
    deep = "[" * _DEEP + "]" * _DEEP if draw.random() < 0.3 else draw.choice(_ODD_TEXTS)
    return text.replace(json.dumps(_TOKEN), deep).encode()


def _choose(paths: list[tuple], draw: random.Random) -> tuple:
    """Return a path; each level is as probable as any other, although vocabularies have thousands of entries."""
    level = draw.choice(sorted({len(path) for path in paths}))
    at_level = [path for path in paths if len(path) == level]
    parents = sorted({path[:-1] for path in at_level}, key=str)
    parent = draw.choice(parents)
    return draw.choice([path for path in at_level if path[:-1] == parent])


def _change(parent: Any, key: Any, root: Any, paths: list[tuple], draw: random.Random) -> None:
    how = draw.randrange(8)
    if how < 4:
        parent[key] = copy.deepcopy(draw.choice(_ODD))
    elif how == 4:
        del parent[key]
    elif how == 5 and isinstance(parent, dict):
        parent[draw.choice((f"{key}s", "kind", "", "a\nb", "../x"))] = parent.pop(key)
    elif how == 6:
        other = root
        for step in draw.choice(paths):
            other = other[step]
        parent[key] = json.loads(json.dumps(other))
    else:
        parent[key] = _TOKEN


def bytes_of(content: bytes, draw: random.Random) -> bytes:
    """Return bytes of which some were flipped, cut, repeated, blanked or added."""
    changed, size = bytearray(content), len(content)
    how = draw.randrange(7) if size else 6
    start = draw.randrange(size) if size else 0
    stop = min(size, start + draw.choice((1, 4, 8, 64, 1000)))
    if how < 2:
        for _ in range(draw.choice((1, 2, 10, 100))):
            changed[draw.randrange(min(size, draw.choice((16, 300, size))))] ^= 1 << draw.randrange(8)
    elif how == 2:
        del changed[start:]
    elif how == 3:
        del changed[start:stop]
    elif how == 4:
        changed[start:stop] = bytes(stop - start)
    elif how == 5:
        changed[start:start] = changed[start:stop] * draw.choice((1, 3))
    else:
        changed[start:start] = draw.randbytes(draw.choice((1, 8, 100)))
    return bytes(changed)


def safetensors_of(content: bytes, draw: random.Random) -> bytes:
    """Return a safetensors file with another header or other bytes."""
    if draw.random() < 0.3:
        return bytes_of(content, draw)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    for _ in range(draw.choice((1, 1, 2))):
        name = draw.choice(names)
        entry = header[name]
        how = draw.randrange(9)
        if how == 0:
            entry["dtype"] = draw.choice(("F16", "BF16", "F64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "X", "I64"))
        elif how == 1:
            shape = entry["shape"]
            entry["shape"] = draw.choice(([], [2**62, 4], [0], [-1], shape[::-1], [*shape, 1], [1] * 99))
        elif how == 2:
            others = header[draw.choice(names)]["data_offsets"]
            entry["data_offsets"] = draw.choice(([0, 2**63], [5, 1], [-1, 4], others))
        elif how == 3:
            renamed = draw.choice((f"{name}/x", name.rpartition("/")[0], "", "/", "heads/x/word", "a\nb"))
            header[renamed] = header.pop(name)
            names = [name for name in header if name != "__metadata__"]
        elif how == 4:
            other = draw.choice(names)
            header[name], header[other] = header[other], header[name]
        elif how == 5:  # narrower numbers in as many bytes
            entry["dtype"], entry["shape"] = "F16", [*entry["shape"][:-1], 2 * (entry["shape"] or [1])[-1]]
        elif how == 6 and len(names) > 1:
            del header[name]
            names.remove(name)
        elif how == 7:
            header["__metadata__"] = draw.choice(({}, {"a": 1}, [], {"format": "\x00"}))
        else:
            changed = json_of(json.dumps(header).encode(), random.Random(draw.random()))
            return struct.pack("<Q", len(changed)) + changed + data
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) + draw.choice((0, 0, 0, 1, -1, 2**40))) + encoded + data


def pickle_of(path: Path, draw: random.Random) -> None:
    """Change the pickle in a `pytorch_model.bin`, the sizes of its members, or its bytes."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    how = draw.randrange(6)
    method = draw.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)) if how == 0 else zipfile.ZIP_STORED
    record = next(name for name in members if name.endswith("data.pkl"))
    if how in (1, 2):
        members[record] = bytes_of(members[record], draw)
    elif how == 3:  # an opcode of any kind, with an argument
        at = draw.randrange(2, len(members[record]))
        opcode = bytes([draw.randrange(256)]) + draw.choice((b"", b"\x00", b"\xff" * 4, b"os\nsystem\n", b"\x01a"))
        members[record] = members[record][:at] + opcode + members[record][at:]
    elif how == 4:
        name = draw.choice(sorted(members))
        members[draw.choice((f"{name}x", "byteorder", "archive/byteorder", "../../x", "/x"))] = members.pop(name)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    if how == 5:
        path.write_bytes(bytes_of(path.read_bytes(), draw))


def special_file(path: Path, draw: random.Random) -> None:
    """Put something else in the place of a file: nothing, a folder, a link, a pipe, a device."""
    how = draw.randrange(8)
    copy = path.read_bytes()
    path.unlink()
    if how == 0:
        return
    if how == 1:
        path.mkdir()
    elif how == 2:
        path.symlink_to(path.name)
    elif how == 3:
        path.symlink_to("nowhere")
    elif how == 4:
        path.symlink_to("/dev/zero")
    elif how == 5:
        os.mkfifo(path)
    elif how == 6:
        path.write_bytes(b"")
    else:  # a link to the file, which is as good
        path.with_name("elsewhere").write_bytes(copy)
        path.symlink_to("elsewhere")


def sealed(folder: Path) -> None:
    """Write the fingerprint of a changed model into the record of its tokenizer folder, as its author could."""
    record_path = folder / "bertjax_tokenizer.json"
    try:
        record = json.loads(record_path.read_bytes()) if record_path.is_file() else {}
        if not (folder / record["model_file"]).is_file():  # a device has no end
            return
        model = (folder / record["model_file"]).read_bytes()
        choices = f"{record['normalizer']}\0" if record["model_file"] == "tokenizer.model" else ""
        record["fingerprint"] = hashlib.sha256(choices.encode() + model).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    record_path.write_text(json.dumps(record))


def mutate(folder: Path, seed: int) -> str:
    """Change one or two files of a folder, and return what was changed."""
    draw = random.Random(seed)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    changed = []
    for path in draw.sample(files, draw.choice((1, 1, 1, 2))):
        how, name = draw.random(), str(path.relative_to(folder))
        if how < 0.1:
            special_file(path, draw)
            changed.append(f"{name} replaced")
            continue
        changed.append(f"{name} changed")
        of: Callable[[bytes, random.Random], bytes] = {".json": json_of, ".safetensors": safetensors_of}.get(
            path.suffix, bytes_of
        )
        path.write_bytes((bytes_of if how < 0.2 else of)(path.read_bytes(), draw))
        if path.parent.name == "tokenizer" and draw.random() < 0.8:
            sealed(path.parent)
    return ", ".join(changed)


def copied(folder: Path, target: Path) -> Path:
    """Return an empty place with a copy of a folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target
