"""Models of the Hugging Face Hub by name: `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`, a branch, tag or commit."""

import logging
import os
import re
from pathlib import Path

from bertjax.config import export
from bertjax.interop import huggingface
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, printable, reason

log = logging.getLogger(__name__)

PREFIX = "hf:"
_NAME = re.compile(rf"{PREFIX}((?:[\w.-]+/)?[\w.-]+)(?:@([\w./-]+))?")
# Converted models, each for one commit of its repository and one format of exports.
_CONVERTED = "~/.cache/bertjax/models"
# Configuration, tokenizer and weights; not the copies for other frameworks that many repositories have.
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
_PYTORCH = ("*.bin",)
_OTHERS = ("onnx/*", "openvino/*", "coreml/*", "training_args.bin", "optimizer.bin")
# {error of huggingface_hub: what it means}. By name, as versions differ in where and whether they define them.
_MEANINGS = {
    "GatedRepoError": "its owner grants access on the Hub, after `hf auth login`",
    "RepositoryNotFoundError": "the Hub has no public model of this name",
    "RevisionNotFoundError": "the model has no such revision",
    "OfflineModeIsEnabled": "it is not in the cache, and HF_HUB_OFFLINE is set",
    "LocalEntryNotFoundError": "it is not in the cache, and the Hub does not answer",
}


def _repository(text: str) -> tuple[str, str]:
    """Return the repository and the revision, which is empty for the default one, of a name.

    Raises:
      UserError: the text has another form.
    """
    match = _NAME.fullmatch(text)
    if not match:
        raise UserError(f"{printable(text)} is not {PREFIX}OWNER/NAME or {PREFIX}OWNER/NAME@REVISION; correct it")
    return match[1], match[2] or ""


def is_name(text: str | os.PathLike) -> bool:
    """Return whether a text names a model of the Hub rather than a path."""
    return os.fspath(text).startswith(PREFIX)


def downloaded(text: str) -> Path:
    """Return the folder with the files of a model, in the cache of `huggingface_hub`; they are downloaded if needed.

    Raises:
      UserError: the name is malformed, `huggingface_hub` is not installed, or the files cannot be had; the message has
        the command that downloads them elsewhere.
    """
    repository, revision = _repository(text)
    try:
        import huggingface_hub  # optional: folders need nothing
    except ImportError as error:
        raise UserError(
            f"{text} needs huggingface_hub; pip install '.[hub]', or name a folder with the files of the model"
        ) from error

    def fetch(files: tuple[str, ...]) -> Path:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=list(files), ignore_patterns=list(_OTHERS)
        )
        return Path(folder)

    try:
        folder = fetch(_FILES)
        return folder if list(folder.glob("*.safetensors")) else fetch((*_FILES, *_PYTORCH))
    except Exception as error:  # of the library, its HTTP client or its own checks
        kinds, cause = [], error
        while cause is not None:  # an error and what it was raised from
            kinds += [kind.__name__ for kind in type(cause).__mro__]
            cause = cause.__cause__
        why = next((meaning for kind, meaning in _MEANINGS.items() if kind in kinds), reason(error))
        raise UserError(
            f"{text} cannot be downloaded: {why}; on a machine that can, run hf download {repository}"
            f"{f' --revision {revision}' * bool(revision)} --local-dir DIR, and here python -m bertjax convert "
            "--from=DIR --to=MODEL"
        ) from error


def converted(text: str) -> Path:
    """Return an export folder of a model of the Hub, converted once for each commit and format of exports.

    Raises:
      UserError: as for `downloaded` and `huggingface.read`.
    """
    files = downloaded(text)
    # The cache of the library names a snapshot by its commit. A version of bertjax with another format converts again,
    # instead of refusing the folder.
    folder = f"{_repository(text)[0].replace('/', '--')}@{files.name}.v{export.FORMAT_VERSION}"
    target = Path(_CONVERTED).expanduser() / folder
    if not target.is_dir():
        model, notes = huggingface.read(files)
        for note in notes:
            log.info("%s: %s", text, printable(note))
        try:
            with storage.whole_folder(target) as draft:
                export.write(draft, model)
        except OSError:
            if not target.is_dir():  # another process of this machine was faster
                raise
    return target
