"""Token store spec: the settings that determine its content, and the path that is derived from them."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etils import epath

from bertjax.data import remote, sources, tokenizer
from bertjax.data.config import DataConfig
from bertjax.data.preparation.sample import is_stated
from bertjax.data.tokenizer_config import TokenizerConfig, kept_characters
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, shorten

LONGEST_NAME = 80
# Settings that a spec leaves out if they are off.
_OFF = {"share": 1.0, "filters": [], "near_duplicates": {}, "group_fields": {}, "heldout_field": ""}
# Raise it when the same corpus and settings would give another store.
VERSION = 5


def spec_of(config: DataConfig) -> dict[str, Any]:
    """Return everything that determines a store's content, as JSON values. Paths are not included.

    This hashes the corpus files, unless `data.store` is a single store. Then the spec comes from its manifest.

    Raises:
      UserError: the corpus cannot be read, or the single store was made with other settings.
    """
    # A single store may be on a machine without its corpus, so its own spec is trusted.
    if manifest := _manifest(_folder(config)):
        _check_settings(config, manifest["spec"])
        print(f"data.store={config.store} is one token store; {corpora(config)} is not read", flush=True)
        return manifest["spec"]
    return {"format_version": VERSION, **_spec(config, _fingerprint)}


def _spec(config: DataConfig, fingerprint: Callable[[str, str], str]) -> dict[str, Any]:
    """Return the spec's settings; `fingerprint` identifies a corpus."""
    settings = config.tokenizer
    return {
        "sources": {
            name: [fingerprint(source.corpus, source.text_field), source.text_field]
            for name, source in config.named_sources.items()
        },
        "heldout": fingerprint(config.heldout, config.text_field) if config.heldout else config.heldout_share,
        # A setting that is off is left out, so a new setting does not rename existing stores.
        **({"share": config.share} if config.share < 1 else {}),
        **_cleaning(config),
        **_groups(config),
        # A single corpus has the same field as its held-out file.
        **({"heldout_field": config.text_field} if config.heldout and config.sources else {}),
        **_sample(config),
        "on_bad_document": config.on_bad_document,
        "splitter": config.splitter,
        "tokenizer": tokenizer.from_model(settings.model, settings.lowercase).fingerprint
        if settings.model
        else _trained(settings),
    }


def _cleaning(config: DataConfig) -> dict[str, Any]:
    """Return the settings for enabled filters and near-duplicate removal."""
    near, spec = config.near_duplicates, {}
    if config.filters:  # in a list, for their order
        spec["filters"] = [[name, rule.identity()] for name, rule in config.filters.items()]
    if near.drop:
        spec["near_duplicates"] = {"ngram": near.ngram, "buckets": near.buckets, "hashes": near.hashes}
    return json.loads(json.dumps(spec))  # tuples become lists, as in a manifest


def _groups(config: DataConfig) -> dict[str, Any]:
    """Return the group fields by source; a source without one is left out."""
    fields = {name: source.group_field for name, source in config.named_sources.items() if source.group_field}
    return {"group_fields": fields} if fields else {}


def _sample(config: DataConfig) -> dict[str, Any]:
    """Return how often each source is drawn for the tokenizer's sample, if the configuration sets it."""
    if config.tokenizer.model or not is_stated(config):
        return {}
    draws = {name: [source.weight, source.token_share] for name, source in config.named_sources.items()}
    return {"sample": {"smoothing": config.smoothing, "draws": draws}}


def _trained(settings: TokenizerConfig) -> dict[str, Any]:
    """Return the settings that determine a trained tokenizer. Without kept characters there is no key `keep`."""
    decides = {name: value for name, value in dataclasses.asdict(settings).items() if name not in ("keep", "keep_file")}
    # The characters themselves, so it does not matter in which file they are or whether there is one.
    kept = kept_characters(settings)
    return decides | ({"keep": kept} if kept else {})


def path_of(config: DataConfig, spec: dict[str, Any]) -> epath.Path:
    """Return a store's path: `data.store` if it is a single store, else a subfolder named by a hash over `spec`."""
    folder = _folder(config)
    if _manifest(folder):
        return folder
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return folder / f"{_name(config)}-{digest[:12]}"


def find(config: DataConfig, fingerprint: str) -> epath.Path | None:
    """Find the store with a fingerprint without reading the corpus. Return its path, or None.

    Args:
      config: sets the store folder, and the corpus name that the store's name starts with.
    """
    for path in storage.retry(lambda: _candidates(config), _folder(config)):
        if (manifest := _manifest(path)) and manifest.get("fingerprint") == fingerprint:
            return path
    return None


def corpora(config: DataConfig) -> str:
    """Return the configured corpora as text for a message."""
    return "corpus " + shorten([repr(source.corpus) for source in config.named_sources.values()])


def _candidates(config: DataConfig) -> list[epath.Path]:
    folder = _folder(config)
    named = folder.iterdir() if folder.exists() else ()
    return [folder, *sorted(path for path in named if path.name.startswith(f"{_name(config)}-"))]


def _folder(config: DataConfig) -> epath.Path:
    folder = storage.place_of(config.store)
    return folder if storage.is_remote(folder) else folder.absolute()


def _name(config: DataConfig) -> str:
    """Return the readable first part for a store's name."""
    name = "-".join(sorted(config.sources))
    if not name:
        name = config.corpus if config.corpus.startswith("embedded:") else Path(config.corpus).name.split(".")[0]
    return storage.short_name(re.sub(r"[^\w]+", "-", name).strip("-")[:LONGEST_NAME]) or "corpus"


def _manifest(folder: epath.Path) -> dict[str, Any] | None:
    """Return a store's manifest, None for any other folder. It is not verified; `TokenStore.open` does that."""
    path = folder / remote.SEAL

    def read() -> dict[str, Any] | None:
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return manifest if isinstance(manifest, dict) and "spec" in manifest else None

    return storage.retry(read, path)


def _fingerprint(corpus: str, text_field: str) -> str:
    """Hash the names and contents of all corpus files."""
    parts = [part.fingerprint() for part in sources.parts(corpus, text_field)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _check_settings(config: DataConfig, spec: dict[str, Any]) -> None:
    """Raise UserError if `config` contradicts a single store's spec. The corpus itself is not compared."""
    own, recorded = _OFF | _spec(config, lambda *_: "a file"), _OFF | spec
    recorded["sources"] = {name: ["a file", field] for name, (_, field) in spec["sources"].items()}
    if isinstance(spec["heldout"], str):
        recorded["heldout"] = "a file"
    # Weights may differ, as long as the tokenizer that they gave a sample for is the same.
    pairs = {name: (own[name], recorded[name]) for name in own if name not in ("sample", "tokenizer")}
    if "a file" not in pairs["heldout"]:
        pairs["heldout_share"] = pairs.pop("heldout")
    ours, theirs = own["tokenizer"], recorded["tokenizer"]
    # The spec of an existing tokenizer is its fingerprint; a trained one has a dictionary of settings.
    if isinstance(ours, str):
        pairs["tokenizer"] = ours, theirs
    elif isinstance(theirs, str):
        pairs["tokenizer.model"] = "", f"{config.store}/tokenizer"
    else:
        pairs |= {
            f"tokenizer.{name}": (ours.get(name, value), value) for name, value in ({"keep": ""} | theirs).items()
        }
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            made = f"was made with data.{name}={theirs!r}, and the configuration has {ours!r}"
            remedy = "set the same, or name the folder of the stores"
            raise UserError(f"data.store={config.store} is one token store, which {made}; {remedy}")
