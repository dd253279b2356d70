"""`hf:NAME[:SPLIT]`: a data set of the Hugging Face hub, or of a local folder, through the `datasets` library."""

import os

from etils import epath

from bertjax import untrusted
from bertjax.data.sources.access import extra, foreign
from bertjax.data.sources.base import Part, no_field
from bertjax.data.sources.tables import ArrowStream
from bertjax.errors import UserError

# A file of the folders that `Dataset.save_to_disk` writes.
_STATE = "state.json"


def parts(name: str, text_field: str) -> list[Part]:
    """Return the files of a split in the cache of `datasets`, which downloads them first if needed.

    Args:
      name: `OWNER/NAME[/CONFIG][:SPLIT]`, or `FOLDER[:SPLIT]` for a local folder; the default split is
        `train`.

    Raises:
      UserError: there is no such data set, configuration, split or field.
    """
    corpus = f"corpus 'hf:{name}'"
    name, _, named_split = name.partition(":")
    split = named_split or "train"
    path, config = _path_and_config(name)
    if os.path.exists(os.path.join(path, _STATE)):
        return _saved_parts(path, corpus, named_split, text_field)
    with extra(corpus):
        import datasets
    with foreign(f"{corpus} cannot be loaded", "name hf:OWNER/NAME[/CONFIG][:SPLIT] or hf:FOLDER[:SPLIT]"):
        splits = datasets.load_dataset(path, config)
    if split not in splits:
        raise UserError(f"{corpus} has no split {split!r}; it has {', '.join(splits)}")
    if text_field not in splits[split].column_names:
        raise no_field(corpus, text_field, splits[split].column_names)
    files = [epath.Path(file["filename"]) for file in splits[split].cache_files]
    names = [f"{split}-{index:05d}-of-{len(files):05d}.arrow" for index in range(len(files))]
    return [Part(file, name, file.stat().length, ArrowStream(text_field)) for file, name in zip(files, names)]


def _saved_parts(folder: str, corpus: str, split: str, text_field: str) -> list[Part]:
    """Return the files of one split that `Dataset.save_to_disk` wrote, which `datasets.load_dataset` does not open."""
    with foreign(f"{corpus} cannot be loaded", f"save the data set again, or delete {_STATE}"):
        state = untrusted.read_json(os.path.join(folder, _STATE))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):
            raise ValueError("its rows are a selection; save it after flatten_indices()")
        if odd := [name for name in names if os.path.basename(name) != name]:
            raise ValueError(f"{odd[0]!r} is not a file in it")
        files = [epath.Path(os.path.join(folder, name)) for name in names]
        sizes = [file.stat().length for file in files]
    if split and split != (own := state.get("_split") or "train"):
        raise UserError(f"{corpus} has no split {split!r}; it has {own}")
    return [Part(file, file.name, size, ArrowStream(text_field)) for file, size in zip(files, sizes, strict=True)]


def _path_and_config(name: str) -> tuple[str, str | None]:
    """Return what `datasets.load_dataset` calls path and name."""
    if name.startswith(("/", "~", ".")) or os.path.isdir(name):
        return os.path.expanduser(name), None
    owner_and_name, config = name.split("/")[:2], name.split("/")[2:]
    return "/".join(owner_and_name), "/".join(config) or None
