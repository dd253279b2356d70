"""Files of tensors: safetensors and pickles of PyTorch, whole and in shards, and errors."""

import importlib.util
import json
import os
import pickle
import random
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from safetensors import TensorSpec, serialize_file

from bertjax.interop import weights
from bertjax.runtime.errors import UserError
from tests.faults import mutations

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="reading a pickle needs the extra [interop]")
MAGIC, PROTOCOL, SYSTEM = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}
NUMBERS = np.arange(12, dtype=np.float32)


class Call:
    """An object whose pickle is a function call."""

    def __init__(self, function, *arguments):
        self.made_by = (function, arguments)

    def __reduce__(self):
        return self.made_by


def archive(path, pickled: bytes, **data: bytes):
    """Write the container format since PyTorch 1.6."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", "3\n")
        for key, content in data.items():
            file.writestr(f"archive/data/{key}", content)
    return path


def sequence(path, pickled: bytes):
    """Write the container format from before PyTorch 1.6."""
    path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in (MAGIC, PROTOCOL, SYSTEM)) + pickled)
    return path


def value(obj) -> bytes:
    """Return the pickle of an object without its header and stop."""
    return pickle.dumps(obj, protocol=2)[2:-1]


def tensor(storage: str, length: int, offset: int, shape: tuple, strides: tuple) -> bytes:
    """Return the pickle of {"a": a view of the storage "0"}, in the opcodes that torch.save writes."""
    named = (
        b"(" + value("storage") + f"ctorch\n{storage}\n".encode() + b"".join(map(value, ("0", "cpu", length))) + b"tQ"
    )
    arguments = b"(" + named + b"".join(map(value, (offset, shape, strides, False, {}))) + b"t"
    return b"\x80\x02}" + value("a") + b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"Rs."


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    upper = (np.array([1.0, -2.5, 3e38], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    expected = (upper.astype(np.uint32) << 16).view(np.float32)
    spec = TensorSpec(dtype="bfloat16", shape=(3,), data_ptr=upper.ctypes.data, data_len=upper.nbytes)
    serialize_file({"a": spec}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(weights.read(tmp_path)["a"], expected)


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_pytorch_a_pickle_is_one_line_with_the_remedies(tmp_path):
    archive(tmp_path / "pytorch_model.bin", tensor("FloatStorage", 12, 0, (12,), (1,)), **{"0": NUMBERS.tobytes()})
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    with pytest.raises(UserError) as caught:
        weights.read(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/pytorch_model.bin is a pickle, which only PyTorch reads; pip install '.[interop]', or download "
        "model.safetensors, or convert it where transformers is installed: "
        f"transformers.BertForMaskedLM.from_pretrained('{tmp_path}').save_pretrained(NEW)"
    )


@needs_torch
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_state_dict_of_pytorch(tmp_path, is_zip):
    import torch

    numbers = torch.arange(12.0)
    state = {
        "a view": numbers.reshape(3, 4).T[1:3],
        "a parameter": torch.nn.Parameter(numbers[:3]),
        "tied": numbers[:3],
        **{str(dtype): numbers[:4].to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool)},
    }
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    tensors = weights.read(tmp_path)
    assert tensors.keys() == state.keys()
    for name, expected in state.items():
        np.testing.assert_array_equal(tensors[name], expected.detach().float().numpy())
    assert tensors["torch.bfloat16"].dtype == np.float32


@needs_torch
@pytest.mark.parametrize("container", [archive, sequence])
@pytest.mark.parametrize("function", [os.system, eval, open])
def test_a_pickle_that_runs_something_is_refused_and_runs_nothing(tmp_path, container, function):
    witness = tmp_path / "witness"
    argument = {os.system: f"touch {witness}", eval: f"open({str(witness)!r}, 'w')", open: str(witness)}[function]
    arguments = (argument, "w") if function is open else (argument,)
    container(tmp_path / "pytorch_model.bin", pickle.dumps({"a": Call(function, *arguments)}, protocol=2))
    with pytest.raises(
        UserError, match=rf"asks to run '(\S+\.)?{function.__name__}', which bertjax does not do; [^\n]*$"
    ):
        weights.read(tmp_path)
    assert not witness.exists()


@needs_torch
@pytest.mark.parametrize(
    "pickled",
    [
        tensor("FloatStorage", 12, 1, (2, 3), (1, 5)),  # ends one number beyond
        tensor("FloatStorage", 12, -1, (2,), (1,)),
        tensor("FloatStorage", 2**40, 0, (2**40,), (1,)),  # longer than the data
        tensor("FloatStorage", 12, 0, (2**40,), (0,)),  # one number, repeated
        tensor("FloatStorage", 12, 0, (2**62, 2**62), (0, 0)),
        tensor("FloatStorage", 12, 0, (1.5,), (1,)),
        pickle.dumps([1], protocol=2),
        pickle.dumps({"a": 1}, protocol=2),
        pickle.dumps({"a": 1}, protocol=4),
        pickle.dumps({"a": 1}, protocol=2)[:-3],
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",  # nested deeply
        b"",
        b"garbage",
    ],
)
def test_a_damaged_pickle_is_one_line(tmp_path, pickled):
    path = archive(tmp_path / "pytorch_model.bin", pickled, **{"0": NUMBERS.tobytes()})
    problem = r"is (damaged|not a PyTorch state dict \([^\n]*\))"
    with pytest.raises(UserError, match=f"^{path} {problem}; download it again"):
        weights.read(tmp_path)


@needs_torch
def test_a_thousand_views_of_one_storage_are_refused(tmp_path):
    import torch

    large = torch.zeros(1 << 20)
    torch.save({f"{index}": large for index in range(1000)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="would take more than 8 times the size of the file"):
        weights.read(tmp_path)


@needs_torch
def test_mutated_pickles_load_or_end_in_one_line(tmp_path):
    import torch

    path, outcomes = tmp_path / "pytorch_model.bin", set()
    for seed in range(200):
        torch.save({"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5)}, path)
        mutations.pickle_of(path, random.Random(seed))
        try:
            weights.read(tmp_path)
            outcomes.add("loads")
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000, (seed, error)
            outcomes.add(str(error))
    assert "loads" in outcomes and len(outcomes) > 3


BOMB = b"\x80\x02c__builtin__\nbytearray\nJ\x00\x00\xc0\x12\x85R."  # 300 MiB from one call
DOUBLED = b"\x80\x02" + b"c_codecs\nencode\n" * 8 + value("a") + (value("hex") + b"\x86R") * 8 + b"."


@needs_torch
@pytest.mark.parametrize("write", [archive, sequence])
@pytest.mark.parametrize("pickled, name", [(BOMB, "__builtin__.bytearray"), (DOUBLED, "_codecs.encode")])
def test_functions_that_fill_the_memory_are_refused_before_they_run(tmp_path, write, pickled, name):
    """PyTorch allows them with `weights_only`."""
    write(tmp_path / "pytorch_model.bin", pickled)
    tracemalloc.start()
    with pytest.raises(UserError, match=f"asks to run '{name}', which bertjax does not do"):
        weights.read(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@needs_torch
def test_archives_that_torch_never_writes_are_refused(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as file:
            file.writestr("archive/data.pkl", tensor("FloatStorage", 12, 0, (12,), (1,)))
            file.writestr("archive/data/0", bytes(1 << 20))
        with pytest.raises(UserError, match="is compressed or encrypted, which torch.save never does"):
            weights.read(tmp_path)
    archive(path, pickle.dumps({}), **{"0": bytes(5000), "1": bytes(5000)})  # its parts overlap
    changed = bytearray(path.read_bytes())
    for at in range(changed.index(b"PK\x01\x02") + 1, len(changed) - 46):
        if changed[at : at + 4] == b"PK\x01\x02":
            changed[at + 20 : at + 28] = struct.pack("<II", 10**9, 10**9)
    path.write_bytes(changed)
    with pytest.raises(UserError, match="its parts are larger than the file"):
        weights.read(tmp_path)


@needs_torch
def test_a_pytorch_that_may_run_a_file_is_refused(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    archive(tmp_path / "pytorch_model.bin", b"")
    with pytest.raises(UserError, match="PyTorch 2.5.1.cpu does not read .* safely; pip install --upgrade torch$"):
        weights.read(tmp_path)


def test_a_safetensors_file_that_was_cut_or_has_another_type(tmp_path):
    with pytest.raises(UserError, match="holds neither model.safetensors nor pytorch_model.bin"):
        weights.read(tmp_path)
    weights.write(tmp_path / "model.safetensors", {"a": NUMBERS.reshape(3, 4).T})
    np.testing.assert_array_equal(weights.read(tmp_path)["a"], NUMBERS.reshape(3, 4).T)
    content = (tmp_path / "model.safetensors").read_bytes()
    for end in (0, 5, 40, len(content) - 1):
        (tmp_path / "model.safetensors").write_bytes(content[:end])
        with pytest.raises(UserError, match=r"model.safetensors is damaged or cut short \(.*\); download it again"):
            weights.read(tmp_path)
    odd = np.zeros(4, np.uint8)
    spec = TensorSpec(dtype="float8_e4m3fn", shape=(4,), data_ptr=odd.ctypes.data, data_len=odd.nbytes)
    serialize_file({"a": spec}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="'a' holds F8_E4M3, which bertjax does not read; save float32"):
        weights.read(tmp_path)


@needs_torch
@pytest.mark.parametrize("is_zip", [True, False])
def test_the_model_in_a_checkpoint_of_training_is_named(tmp_path, is_zip):
    import torch

    state = {"epoch": 3, "model": {"a": torch.ones(12)}}
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(UserError, match=r"a checkpoint of training.* part 'model'; .*weights_only=True\)\['model'\]"):
        weights.read(tmp_path)


def indexed(folder, name: str, shard_of: dict) -> None:
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": shard_of}))


def test_shards_are_one_checkpoint(tmp_path):
    first, second = {"a": NUMBERS, "b": NUMBERS[:3]}, {"c": NUMBERS.reshape(3, 4)}
    weights.write(tmp_path / "one", first)
    weights.write(tmp_path / "two", second)
    indexed(tmp_path, "model.safetensors", {"a": "one", "b": "one", "c": "two"})
    tensors = weights.read(tmp_path)
    assert tensors.keys() == {"a", "b", "c"}
    for name, expected in (first | second).items():
        np.testing.assert_array_equal(tensors[name], expected)
    (tmp_path / "model.safetensors.index.json").unlink()
    if HAS_TORCH:  # shards of pickles run nothing either
        indexed(tmp_path, "pytorch_model.bin", {"a": "pytorch_model-1.bin"})
        shard = tmp_path / "pytorch_model-1.bin"
        archive(shard, tensor("FloatStorage", 12, 0, (12,), (1,)), **{"0": NUMBERS.tobytes()})
        np.testing.assert_array_equal(weights.read(tmp_path)["a"], NUMBERS)
        archive(shard, pickle.dumps({"a": Call(os.system, "false")}, protocol=2))
        with pytest.raises(UserError, match="pytorch_model-1.bin asks to run '.*system'"):
            weights.read(tmp_path)


@pytest.mark.parametrize(
    "shard_of, refused",
    [
        ({"a": "one", "b": "one"}, "one and model.safetensors.index.json differ in 'b'; download"),
        ({"b": "one"}, "one and model.safetensors.index.json differ in 'a'; download"),
        ({}, None),
        ({"a": "one", "b": "two"}, "two, which model.safetensors.index.json names, does not exist"),
        ({"a": "../one"}, "shard '../one' is not a file beside it"),
        ({"a": "/etc/passwd"}, "shard '/etc/passwd' is not a file beside it"),
        ({"a": ""}, "one checkpoint|not a file|is damaged"),
        ({"a": 1}, "is not a readable index"),
        ({"a": ["one"]}, "is not a readable index"),
        ([], "is not a readable index"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, shard_of, refused):
    weights.write(tmp_path / "one", {"a": NUMBERS})
    indexed(tmp_path, "model.safetensors", shard_of)
    if refused is None:
        assert weights.read(tmp_path) == {}
        return
    with pytest.raises(UserError, match=refused) as caught:
        weights.read(tmp_path)
    assert "\n" not in str(caught.value)
