"""Files of tensors: reading without PyTorch, and errors."""

import collections
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from safetensors import TensorSpec, serialize_file

from bertjax.errors import UserError
from bertjax.interop import pickles, weights

MAGIC, PROTOCOL, SYSTEM = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}


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
        for key, content in data.items():
            file.writestr(f"archive/data/{key}", content)
    return path


def sequence(path, pickled: bytes):
    """Write the container format from before PyTorch 1.6."""
    path.write_bytes(b"".join(map(pickle.dumps, (MAGIC, PROTOCOL, SYSTEM))) + pickled + pickle.dumps([]))
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


REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
NUMBERS = np.arange(12, dtype=np.float32)


def test_a_view_of_a_storage(tmp_path):
    pickled = tensor("FloatStorage", 12, 1, (2, 3), (1, 4))
    archive(tmp_path / "pytorch_model.bin", pickled, **{"0": NUMBERS.tobytes()})
    tensors = weights.read(tmp_path)
    assert tensors.keys() == {"a"}
    np.testing.assert_array_equal(tensors["a"], [[1, 5, 9], [2, 6, 10]])


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    upper = (np.array([1.0, -2.5, 3e38], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    expected = (upper.astype(np.uint32) << 16).view(np.float32)
    pickled = tensor("BFloat16Storage", 3, 0, (3,), (1,))
    archive(tmp_path / "pytorch_model.bin", pickled, **{"0": upper.tobytes()})
    np.testing.assert_array_equal(weights.read(tmp_path)["a"], expected)
    spec = TensorSpec(dtype="bfloat16", shape=(3,), data_ptr=upper.ctypes.data, data_len=upper.nbytes)
    serialize_file({"a": spec}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(weights.read(tmp_path)["a"], expected)


@pytest.mark.parametrize("container", [archive, sequence])
@pytest.mark.parametrize("function, named", [(os.system, "posix.system"), (eval, "builtins.eval"), (open, "io.open")])
def test_a_pickle_that_runs_something_is_refused_and_runs_nothing(tmp_path, container, function, named):
    witness = tmp_path / "witness"
    argument = {os.system: f"touch {witness}", eval: f"open({str(witness)!r}, 'w')", open: str(witness)}[function]
    arguments = (argument, "w") if function is open else (argument,)
    container(tmp_path / "pytorch_model.bin", pickle.dumps({"a": Call(function, *arguments)}))
    with pytest.raises(UserError, match=f"asks to run {named} while it is read, which bertjax does not do"):
        weights.read(tmp_path)
    assert not witness.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        tensor("FloatStorage", 12, 1, (2, 3), (1, 5)),  # ends one number beyond
        tensor("FloatStorage", 12, -1, (2,), (1,)),
        tensor("FloatStorage", 12, 0, (2, 2), (1, -1)),
        tensor("FloatStorage", 12, 0, (2, 2), (1,)),
        pickle.dumps([1]),
        pickle.dumps({"a": 1}),
        pickle.dumps({"a": 1})[:-3],
        b"",
        b"garbage",
    ],
)
def test_a_damaged_pickle_is_one_line(tmp_path, pickled):
    archive(tmp_path / "pytorch_model.bin", pickled, **{"0": NUMBERS.tobytes()})
    with pytest.raises(UserError, match="is not a readable PyTorch state dict") as caught:
        weights.read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps(MAGIC), pickle.dumps(MAGIC + 1)])
def test_files_of_neither_format_are_refused(tmp_path, content):
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(UserError, match="is not a readable PyTorch state dict"):
        pickles.read(tmp_path / "pytorch_model.bin")


def test_building_does_not_reach_a_function(tmp_path):
    """BUILD sets attributes of the object below it, also of a function."""
    before = dict(vars(pickles._rebuild_tensor)), pickles._rebuild_tensor.__defaults__
    state = b"(N}" + value("__defaults__") + value((1, 2)) + b"st"
    archive(tmp_path / "pytorch_model.bin", b"\x80\x02}" + REBUILD + state + b"b0.")
    with pytest.raises(UserError, match="is not a readable PyTorch state dict"):
        weights.read(tmp_path)
    assert (dict(vars(pickles._rebuild_tensor)), pickles._rebuild_tensor.__defaults__) == before


def test_the_metadata_that_pytorch_builds_into_a_state_dict_is_dropped(tmp_path):
    state = collections.OrderedDict()
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    tensors = tensor("FloatStorage", 12, 0, (12,), (1,))[2:-1]
    made = pickle.dumps(state, protocol=2)
    assert b"_metadata" in made and made.endswith(b"b.")
    update = value("a") + tensors[1:].removeprefix(value("a")).removesuffix(b"s") + b"s"
    archive(tmp_path / "pytorch_model.bin", made[:-1] + update + b".", **{"0": NUMBERS.tobytes()})
    np.testing.assert_array_equal(weights.read(tmp_path)["a"], NUMBERS)


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cbertjax.interop.pickles\n_KNOWN\n",
        b"ccollections\nOrderedDict\n)\x81",  # NEWOBJ
        b"(ios\nsystem\n",  # INST
        b"\x82\x01",  # EXT1
        b"(i",
        b"P1\n",  # PERSID
        b"\x8f",  # EMPTY_SET
        b"\x97",  # NEXT_BUFFER
        value("storage") + value("os") + b"\x86Q",
    ],
)
def test_opcodes_beyond_those_of_a_state_dict_are_refused(tmp_path, opcodes):
    archive(tmp_path / "pytorch_model.bin", b"\x80\x02" + opcodes + b".")
    with pytest.raises(UserError) as caught:
        weights.read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",  # nested deeply
        # A key whose hash, or whose text, takes 2^60 steps.
        b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
        b"\x80\x02}" + value("a") + b")" + b"q\x00h\x00\x86" * 60 + b"Q" + b"s.",
        tensor("FloatStorage", 12, 0, (2**40,), (0,)),  # one number, repeated
        tensor("FloatStorage", 12, 0, (2**62, 2**62), (0, 0)),
        tensor("FloatStorage", 12, 0, (1.5,), (1,)),
        tensor("FloatStorage", 12, 0, (1,) * 100, (1,) * 100),
    ],
)
def test_what_would_take_forever_is_one_line(tmp_path, pickled):
    archive(tmp_path / "pytorch_model.bin", pickled, **{"0": NUMBERS.tobytes()})
    with pytest.raises(UserError) as caught:
        weights.read(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_tied_weights_share_a_storage_and_a_thousand_views_do_not(tmp_path):
    one = tensor("FloatStorage", 12, 0, (12,), (1,))[3 + len(value("a")) : -2]
    for count in (2, 1000):
        named = b"".join(value(f"{index}") + one + b"s" for index in range(count))
        archive(tmp_path / "pytorch_model.bin", b"\x80\x02}" + named + b".", **{"0": NUMBERS.tobytes()})
        if count == 2:
            assert weights.read(tmp_path).keys() == {"0", "1"}
    large = np.zeros(1 << 20, np.float32)
    one = tensor("FloatStorage", len(large), 0, (len(large),), (1,))[3 + len(value("a")) : -2]
    named = b"".join(value(f"{index}") + one + b"s" for index in range(1000))
    archive(tmp_path / "pytorch_model.bin", b"\x80\x02}" + named + b".", **{"0": large.tobytes()})
    with pytest.raises(UserError, match="would take more than 8 times the size of the file"):
        weights.read(tmp_path)


def test_a_compressed_or_encrypted_archive_is_refused(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    pickled = tensor("FloatStorage", 12, 0, (12,), (1,))
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as file:
            file.writestr("archive/data.pkl", pickled)
            file.writestr("archive/data/0", bytes(1 << 20))
        with pytest.raises(UserError, match="is compressed or encrypted, which torch.save never does"):
            weights.read(tmp_path)
    content = bytearray(archive(path, pickled, **{"0": NUMBERS.tobytes()}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flags in the directory
    path.write_bytes(content)
    with pytest.raises(UserError, match="is compressed or encrypted"):
        weights.read(tmp_path)


def test_members_that_overlap_are_refused(tmp_path):
    path = archive(tmp_path / "pytorch_model.bin", pickle.dumps({}), **{"0": bytes(5000), "1": bytes(5000)})
    content = path.read_bytes()
    directory = content.index(b"PK\x01\x02")
    sizes = [at for at in range(directory, len(content) - 46) if content[at : at + 4] == b"PK\x01\x02"]
    changed = bytearray(content)
    for at in sizes[1:]:
        changed[at + 20 : at + 28] = struct.pack("<II", 10**9, 10**9)
    path.write_bytes(changed)
    with pytest.raises(UserError, match="its parts are larger than the file"):
        weights.read(tmp_path)


def test_a_zip_that_was_cut(tmp_path):
    path = archive(tmp_path / "whole", tensor("FloatStorage", 12, 0, (12,), (1,)), **{"0": NUMBERS.tobytes()})
    content = path.read_bytes()
    cuts = [content[:end] for end in range(0, len(content), 37)]
    for cut in (*cuts, b"PK\x03\x04\n"):  # the last one is an opcode of a pickle, with its argument
        (tmp_path / "pytorch_model.bin").write_bytes(cut)
        with pytest.raises(UserError, match="is not a readable PyTorch state dict"):
            weights.read(tmp_path)


def test_a_safetensors_file_that_was_cut(tmp_path):
    weights.write(tmp_path / "model.safetensors", {"a": NUMBERS.reshape(3, 4).T})
    np.testing.assert_array_equal(weights.read(tmp_path)["a"], NUMBERS.reshape(3, 4).T)
    content = (tmp_path / "model.safetensors").read_bytes()
    for end in (0, 5, 40, len(content) - 1):
        (tmp_path / "model.safetensors").write_bytes(content[:end])
        with pytest.raises(UserError, match=r"model.safetensors is damaged or cut short \(.*\); download it again"):
            weights.read(tmp_path)


def test_a_type_that_is_not_read_is_named(tmp_path):
    content = np.zeros(4, np.uint8)
    spec = TensorSpec(dtype="float8_e4m3fn", shape=(4,), data_ptr=content.ctypes.data, data_len=content.nbytes)
    serialize_file({"a": spec}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="^a holds F8_E4M3, which bertjax does not read; save the weights as float32"):
        weights.read(tmp_path)


@pytest.mark.parametrize("container", [archive, sequence])
def test_the_model_in_a_checkpoint_of_training_is_named(tmp_path, container):
    inner = tensor("FloatStorage", 12, 0, (12,), (1,))[2:-1]
    pickled = b"\x80\x02}" + value("epoch") + value(3) + b"s" + value("model") + inner + b"s."
    container(tmp_path / "pytorch_model.bin", pickled)
    with pytest.raises(UserError, match=r"a checkpoint of training.* part 'model'; .*weights_only=False\)\['model'\]"):
        weights.read(tmp_path)


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(UserError, match="holds neither model.safetensors nor pytorch_model.bin"):
        weights.read(tmp_path)


def indexed(folder, name: str, shard_of: dict) -> None:
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": shard_of}))


def test_shards_are_one_checkpoint(tmp_path):
    first, second = {"a": NUMBERS, "b": NUMBERS[:3]}, {"c": NUMBERS.reshape(3, 4)}
    weights.write(tmp_path / "model-00001-of-00002.safetensors", first)
    weights.write(tmp_path / "model-00002-of-00002.safetensors", second)
    names = {name: f"model-0000{number}-of-00002.safetensors" for number, name in ((1, "a"), (1, "b"), (2, "c"))}
    indexed(tmp_path, "model.safetensors", names)
    tensors = weights.read(tmp_path)
    assert tensors.keys() == {"a", "b", "c"}
    for name, expected in (first | second).items():
        np.testing.assert_array_equal(tensors[name], expected)


def test_shards_of_pickles_run_nothing_either(tmp_path):
    archive(tmp_path / "pytorch_model-1.bin", tensor("FloatStorage", 12, 0, (12,), (1,)), **{"0": NUMBERS.tobytes()})
    indexed(tmp_path, "pytorch_model.bin", {"a": "pytorch_model-1.bin"})
    np.testing.assert_array_equal(weights.read(tmp_path)["a"], NUMBERS)
    archive(tmp_path / "pytorch_model-1.bin", pickle.dumps({"a": Call(os.system, "false")}, protocol=2))
    with pytest.raises(UserError, match="pytorch_model-1.bin asks to run .*system"):
        weights.read(tmp_path)


@pytest.mark.parametrize(
    "shard_of, refused",
    [
        ({"a": "one", "b": "one"}, "one and model.safetensors.index.json differ in 'b'; download"),
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
