"""Files of tensors: reading without PyTorch, and errors."""

import os
import pickle
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


def test_a_zip_that_was_cut(tmp_path):
    path = archive(tmp_path / "whole", tensor("FloatStorage", 12, 0, (12,), (1,)), **{"0": NUMBERS.tobytes()})
    content = path.read_bytes()
    for end in range(0, len(content), 37):
        (tmp_path / "pytorch_model.bin").write_bytes(content[:end])
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


def test_missing_and_split_weights_are_named(tmp_path):
    with pytest.raises(UserError, match="holds neither model.safetensors nor pytorch_model.bin"):
        weights.read(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match=r"are split \(model.safetensors.index.json\)"):
        weights.read(tmp_path)
