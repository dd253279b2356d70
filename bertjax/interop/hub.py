"""Models of the Hugging Face Hub by name: `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`, a branch, tag or commit."""

import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

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


class Name(NamedTuple):
    """A repository and its revision; empty for the default one."""

    repository: str
    revision: str

    @classmethod
    def parse(cls, text: str) -> "Name":
        """Parse `hf:OWNER/NAME[@REVISION]`.

        Raises:
          UserError: the text has another form.
        """
        match = _NAME.fullmatch(text)
        if not match:
            raise UserError(f"{printable(text)} is not {PREFIX}OWNER/NAME or {PREFIX}OWNER/NAME@REVISION; correct it")
        return cls(match[1], match[2] or "")

    @property
    def download(self) -> str:
        """The command that downloads the files into a folder."""
        return f"hf download {self.repository}{f' --revision {self.revision}' * bool(self.revision)} --local-dir DIR"


def is_name(text: str | os.PathLike) -> bool:
    """Return whether a text names a model of the Hub rather than a path."""
    return os.fspath(text).startswith(PREFIX)


def downloaded(text: str) -> Path:
    """Return the folder with the files of a model, in the cache of `huggingface_hub`; they are downloaded if needed.

    Raises:
      UserError: the name is malformed, `huggingface_hub` is not installed, or the files cannot be had; the message has
        the command that downloads them elsewhere.
    """
    name = Name.parse(text)
    try:
        import huggingface_hub  # optional: folders need nothing
    except ImportError as error:
        raise UserError(
            f"{text} needs huggingface_hub; pip install '.[hub]', or name a folder with the files of the model"
        ) from error

    def fetch(files: tuple[str, ...]) -> Path:
        folder = huggingface_hub.snapshot_download(
            name.repository, revision=name.revision or None, allow_patterns=list(files), ignore_patterns=list(_OTHERS)
        )
        return Path(folder)

    try:
        folder = fetch(_FILES)
        return folder if list(folder.glob("*.safetensors")) else fetch((*_FILES, *_PYTORCH))
    except Exception as error:  # of the library, its HTTP client or its own checks
        kinds = [kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__]
        why = next((meaning for kind, meaning in _MEANINGS.items() if kind in kinds), reason(error))
        raise UserError(
            f"{text} cannot be downloaded: {why}; on a machine that can, run {name.download}, and here python -m "
            "bertjax convert --from=DIR --to=MODEL"
        ) from error


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error and what it was raised from."""
    causes: list[BaseException] = []
    while error is not None:
        causes.append(error)
        error = error.__cause__
    return causes


def converted(text: str) -> Path:
    """Return an export folder of a model of the Hub, converted once for each commit and format of exports.

    Raises:
      UserError: as for `downloaded` and `huggingface.read`.
    """
    files = downloaded(text)
    # The cache of the library names a snapshot by its commit. A version of bertjax with another format converts again,
    # instead of refusing the folder.
    folder = f"{Name.parse(text).repository.replace('/', '--')}@{files.name}.v{export.FORMAT_VERSION}"
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
