"""Weight files of a checkpoint: safetensors or a PyTorch pickle, in one file or in shards."""

import importlib.util
import io
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, deserialize

from bertjax.config.export import write_tensors
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, quoted, reason

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"
# Opcodes of a pickle that name a function or a class, and the names that `torch.save` writes for tensors.
_NAMING = ("GLOBAL", "INST", "STACK_GLOBAL")
_NAMES_OF_TENSORS = ("collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter")
# Other formats: (file pattern, what the file is, how to convert it). `{path}` is the file, `{folder}` its folder and
# `{model}` the model's class.
_OLDER = "with transformers 4.57: transformers.{model}.from_pretrained({folder!r}, from_FLAG=True).save_pretrained(NEW)"
_MERGED = "with peft: AutoPeftModel.from_pretrained({folder!r}).merge_and_unload().save_pretrained(NEW)"
_OF_OTHERS = ("*.ot", "*.onnx", "openvino_model.*", "*.pb", "*.gguf")
_OTHER_NAME = "a file with another name"
_OTHERS = (
    ("tf_model*.h5", "weights of TensorFlow", _OLDER.replace("FLAG", "tf")),
    ("flax_model*.msgpack", "weights of Flax", _OLDER.replace("FLAG", "flax")),
    (
        "*.ckpt*.index",
        "a checkpoint of TensorFlow, as google-research publishes them",
        "with transformers 4.57 and TensorFlow: transformers.BertForPreTraining.from_pretrained({path!r}, "
        "from_tf=True, config=transformers.BertConfig.from_json_file(CONFIG)).save_pretrained(NEW)",
    ),
    ("adapter_model.*", "an adapter of PEFT without its model", _MERGED),
    (
        "*.ckpt",
        "a checkpoint of Lightning",
        'in PyTorch: torch.save(torch.load({path!r}, weights_only=True)["state_dict"], "pytorch_model.bin")',
    ),
    ("zero_to_fp32.py", "a checkpoint of DeepSpeed", "run its author's script: python {path} {folder} NEW"),
    ("*.distcp", "shards of FSDP", "accelerate merge-weights {folder} NEW"),
    *((pattern, "a model for another library", f"download {SAFETENSORS}") for pattern in _OF_OTHERS),
    ("*.safetensors", _OTHER_NAME, f"rename it to {SAFETENSORS} if it holds the whole model"),
    ("*.bin", _OTHER_NAME, f"rename it to {PICKLE} if it holds the whole model"),
    *((pattern, _OTHER_NAME, f"save its state dict as {PICKLE}") for pattern in ("*.pt", "*.pth")),
)
# Files that transformers' Trainer saves beside the weights.
_OF_TRAINING = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
# Name components that wrappers add: torch.compile, (Distributed)DataParallel, FSDP, activation checkpointing.
_WRAPPERS = re.compile(r"(^|\.)(?:(?:_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+")
# Memory that the tensors of a pickle may take, in file sizes. Tied weights share memory, and bfloat16 is widened.
_MOST_COPIES = 8
_DTYPES = {
    "BF16": jnp.bfloat16,
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "u1",
    "BOOL": "?",
}


def read(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors in `model.safetensors`, or else in `pytorch_model.bin`, by name; bfloat16 becomes float32.

    Either file may be split into shards, with `FILE.index.json` to name each tensor's shard.

    Raises:
      UserError: there are no weights, a file is damaged or holds more than tensors, or PyTorch is needed to read it.
    """
    # As in transformers, safetensors wins if a folder has both.
    for name, read_file in ((SAFETENSORS, _read_safetensors), (PICKLE, _read_pickle)):
        if (folder / name).exists():
            return read_file(folder / name)
        if (folder / f"{name}{_INDEX}").exists():
            return _read_shards(folder / f"{name}{_INDEX}", read_file)
    if other := other_format(folder):
        raise UserError(other)
    raise UserError(f"{folder} holds neither {SAFETENSORS} nor {PICKLE}; download the weights beside its config.json")


def other_format(folder: Path) -> str:
    """Return an error line if a folder has weights in another format: what they are and how to convert them."""
    for pattern, what, how in _OTHERS:
        paths = (path for path in sorted(folder.glob(pattern)) if not path.name.startswith(_OF_TRAINING))
        if path := next(paths, None):
            remedy = how.format(path=str(path), folder=str(folder), model=_class_of(folder))
            return f"{path} is {what}, and bertjax reads {SAFETENSORS} and {PICKLE}; {remedy}"
    return ""


def _class_of(folder: Path) -> str:
    """Return the model class in a `config.json`, or `AutoModel`."""
    try:
        return str(untrusted.read_json(folder / "config.json")["architectures"][0])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return "AutoModel"


def unwrapped(
    tensors: dict[str, np.ndarray], root: str, landmarks: Iterable[str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Strip the prefixes of modules around a model from tensor names; return the tensors and notes.

    `torch.compile`, data parallel and FSDP wrap modules. Lightning and many scripts have the model as a field.

    Args:
      tensors: tensors of a checkpoint by name.
      root: the family's prefix of encoder names.
      landmarks: names in the encoder, without `root`. Whatever precedes them, but for `root`, belongs to wrappers.
    """
    plain = {_WRAPPERS.sub(r"\1", name): tensor for name, tensor in tensors.items()}
    notes = ["names have parts of torch.compile or of a parallel wrapper, which are left out"] * (
        plain.keys() != tensors.keys()
    )
    before = {name.removesuffix(end) for end in landmarks for name in plain if f".{name}".endswith(f".{end}")}
    prefixes = {prefix.removesuffix(root) if f".{prefix}".endswith(f".{root}") else prefix for prefix in before}
    # Two encoders, such as a student beside its teacher, have two prefixes, and neither is ours to choose.
    prefix = prefixes.pop() if len(prefixes) == 1 else ""
    stripped = {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
    if not prefix or len(stripped) < len(plain):
        return plain, notes
    return stripped, [*notes, f"names start with {quoted(prefix)}, which is left out"]


def _read_shards(index: Path, read_file: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the tensors of all shards in an index."""
    try:
        shard_of = untrusted.read_json(index)["weight_map"].copy()
        names = sorted(set(shard_of.values()))
        # An index of somebody else must not make us read files outside of its folder.
        if odd := [name for name in names if name in ("", "..") or Path(name).name != name]:
            raise ValueError(f"the shard {quoted(odd[0])} is not a file beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is not a readable index of shards ({reason(error)}); download it again") from None
    tensors = {}
    for name in names:
        if not (path := index.parent / name).exists():
            raise UserError(f"{path}, which {index.name} names, does not exist; download it beside the others")
        shard = read_file(path)
        expected = {tensor for tensor, shard_name in shard_of.items() if shard_name == name}
        if differing := sorted(expected ^ shard.keys()):
            raise UserError(f"{path} and {index.name} differ in {quoted(differing[0])}; download both again")
        tensors |= shard
    return tensors


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return {name: _array(path, name, tensor) for name, tensor in deserialize(untrusted.read_bytes(path))}
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut short ({reason(error)}); download it again") from None


def _array(path: Path, name: str, tensor: dict) -> np.ndarray:
    if tensor["dtype"] not in _DTYPES:
        raise UserError(f"{path}: {quoted(name)} holds {tensor['dtype']}, which bertjax does not read; save float32")
    array = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array


def _read_pickle(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a state dict that `torch.save` wrote. Nothing that the file names is run."""
    if importlib.util.find_spec("torch") is None:
        how = f"transformers.{_class_of(path.parent)}.from_pretrained({str(path.parent)!r}).save_pretrained(NEW)"
        raise UserError(
            f"{path} is a pickle, which only PyTorch reads; pip install '.[interop]', or download {SAFETENSORS}, or "
            f"convert it where transformers is installed: {how}"
        )
    import torch

    # Before 2.6, a file could run code in spite of `weights_only` (CVE-2025-32434).
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise UserError(f"PyTorch {torch.__version__} does not read {path} safely; pip install --upgrade torch")
    try:
        content = untrusted.read_bytes(path)
        if called := _called(content):
            raise UserError(f"{path} asks to run {quoted(called)}, which bertjax does not do; get it as {SAFETENSORS}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return _arrays(state, len(content), path)
    except UserError:
        raise
    except OSError as error:
        problem = f"cannot be read ({reason(error)})"
    except ValueError as error:
        problem = f"is not a PyTorch state dict ({reason(error)})"
    except Exception as error:  # PyTorch raises whatever its reader meets in a damaged file
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise UserError(f"{path} does not fit into memory; free some, or get it as {SAFETENSORS}") from None
        # Its message is not shown: it advises `weights_only=False`, which runs what the file names.
        problem = "is damaged"
    raise UserError(f"{path} {problem}; download it again, or get the checkpoint as {SAFETENSORS}")


def _called(content: bytes) -> str:
    """Return the first function or class that a file of `torch.save` names beyond those of tensors; empty if none.

    `weights_only` also allows `bytearray`, `_codecs.encode` and others, with which a kilobyte fills the memory.

    Raises:
      ValueError: the file is compressed or encrypted, or its parts are larger than it is.
    """
    for pickled in _pickles(content):
        for opcode, argument, _ in pickletools.genops(pickled):
            is_storage = re.fullmatch(r"torch \w+Storage", str(argument))
            if opcode.name in _NAMING and argument not in _NAMES_OF_TENSORS and not is_storage:
                return str(argument or opcode.name).replace(" ", ".")
    return ""


def _pickles(content: bytes) -> Iterator[bytes | io.BytesIO]:
    file = io.BytesIO(content)
    if not zipfile.is_zipfile(file):  # before PyTorch 1.6: five pickles in a row, then the numbers
        file.seek(0)
        yield from [file] * 5
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 for member in members):
            raise ValueError("it is compressed or encrypted, which torch.save never does")
        if sum(member.file_size for member in members) > len(content):
            raise ValueError("its parts are larger than the file")
        yield from (archive.read(member) for member in members if member.filename.endswith(".pkl"))


def _arrays(state: Any, size: int, path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a state dict as arrays; bfloat16, which numpy lacks, becomes float32.

    Raises:
      UserError: a part of it is the state dict.
      ValueError: it is not a state dict, or its tensors take much more memory than their file of `size` bytes. One
        number of the file may be repeated (strides of 0), and many tensors may be the same part of it.
    """
    import torch

    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}")
    if odd := {key: value for key, value in state.items() if not isinstance(value, torch.Tensor)}:
        # Trainers often save {"model": state dict, "optimizer": ..., "epoch": ...}.
        models = (key for key, value in odd.items() if isinstance(value, dict) and value)
        models = (key for key in models if all(isinstance(tensor, torch.Tensor) for tensor in odd[key].values()))
        if key := next(models, None):
            raise UserError(
                f"{path} is a checkpoint of training, whose model may be its part {quoted(key)}; save that alone, in "
                f"PyTorch: torch.save(torch.load({str(path)!r}, weights_only=True)[{quoted(key)}], NEW)"
            )
        raise ValueError(f"it holds a {type(next(iter(odd.values()))).__name__} among the tensors")
    if not all(isinstance(name, str) for name in state):
        raise ValueError("it has names that are not text")
    if sum(tensor.numel() * max(4, tensor.itemsize) for tensor in state.values()) > _MOST_COPIES * size:
        raise ValueError(f"its tensors would take more than {_MOST_COPIES} times the size of the file")
    return {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
        for name, tensor in state.items()
    }


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file that transformers' PyTorch and Flax classes open."""
    write_tensors(path, tensors, metadata={"format": "pt"})
