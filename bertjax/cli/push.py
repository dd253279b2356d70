"""Publish a model on the Hugging Face Hub, in the files of transformers, with a model card.

The files contain no path of this machine. A new repository is private. The files of a model that is there
are replaced, and others stay. Set HF_TOKEN, or log in with `hf auth login`.

examples:
  python -m bertjax push runs/tiny --to=hub:me/tiny-bert --language=en --license=apache-2.0
  python -m bertjax push runs/tiny@500 --to=hub:me/tiny-bert@step-500
  python -m bertjax push runs/tiny --to=hub:me/tiny-bert --every-kept --public
"""

import dataclasses
import re
import tempfile
from pathlib import Path

from bertjax.config.opening import SavedModel
from bertjax.interop import card, huggingface
from bertjax.runtime import command_line, platform, storage
from bertjax.runtime.errors import UserError, printable, say
from bertjax.runtime.storage import split_name
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.workdir import Workdir, read_jsonl

_MAIN = "main"
_TARGET = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def run(source: str, target: str, about: card.About, every_kept: bool = False, public: bool = False) -> list[str]:
    """Publish a model; creates the repository and its branches if needed.

    Args:
      source: an export folder, a workdir `RUN` (its export, or its newest checkpoint if it has none) or `RUN@STEP`.
      target: repository and branch, `hub:OWNER/NAME[@REVISION]`.
      about: facts that the author adds to the model card.
      every_kept: whether to also publish each checkpoint of a workdir, on a branch `step-N`.
      public: whether the repository may be public; a new one is created public.

    Returns:
      URLs of the commits.

    Raises:
      UserError: the source is not a model, transformers has no class for it, `huggingface_hub` is not installed, the
        Hub refuses the upload, or the repository is public although `public` is False.
      Unavailable: the Hub cannot be reached.
    """
    if not (match := _TARGET.fullmatch(target)):
        raise UserError(
            f"--to={target} is not hub:OWNER/NAME or hub:OWNER/NAME@REVISION; write for example hub:me/bert"
        )
    try:
        # Optional: the other commands work without it.
        import huggingface_hub
    except ImportError as error:
        raise UserError("bertjax push needs huggingface_hub, which is not installed; pip install '.[hub]'") from error
    repository, path, step = match[1], *split_name(source)
    # A finished run has an export, whose numbers go into the card; its checkpoints have none.
    finished = Path(path) / "export"
    pushed = [(str(finished) if not step and finished.is_dir() else source, match[2] or _MAIN)]
    if every_kept:
        if step or not (Path(path) / "checkpoints").is_dir():
            raise UserError(f"--every-kept publishes the checkpoints of a workdir, and {source} is not one; remove it")
        steps = Checkpoints(Workdir.at(path).checkpoints).steps()
        pushed += [(f"{path}@{number}", f"step-{number}") for number in steps]
    about = dataclasses.replace(about, repository=repository, commit=_commit(Path(path)))
    hub, addresses = huggingface_hub.HfApi(library_name="bertjax"), []
    for name, revision in pushed:
        # The upload takes everything in its folder, so use one that holds nothing but the model.
        with tempfile.TemporaryDirectory() as folder:
            saved = SavedModel(name)
            saved.note_unfinished("published")
            huggingface.write(folder, saved.export, about)
            addresses.append(_upload(hub, Path(folder), repository, revision, public))
    return addresses


def _upload(hub, folder: Path, repository: str, revision: str, public: bool) -> str:
    """Replace the model in a branch; the repository's other files stay."""
    try:
        hub.create_repo(repository, private=not public, exist_ok=True)
        # An existing repository keeps its visibility, so it is checked before anything is uploaded.
        if not public and not hub.repo_info(repository).private:
            raise UserError(
                f"hub:{repository} is public; add --public to publish there, or make it private in its settings "
                "on the Hub"
            )
        if revision != _MAIN:
            hub.create_branch(repository, branch=revision, exist_ok=True)
        message = "Model trained with bertjax"
        done = hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            revision=revision,
            commit_message=message,
            # Deleted in the same commit, unless a new file has the same name.
            delete_patterns=list(huggingface.MODEL_FILES),
        )
    # Raised above, with its own remedy.
    except UserError:
        raise
    except Exception as error:  # of the library, its HTTP client or its own checks
        remedy = "log in with `hf auth login` or set HF_TOKEN to a token that may write there"
        raise storage.user_error(error, f"cannot publish hub:{repository}@{revision}", remedy) from error
    return done.commit_url


def _commit(path: Path) -> str:
    """Return the bertjax commit at a run's last start, given its workdir or export; empty if unknown."""
    # An export is a subfolder of its workdir.
    folder = next((folder for folder in (path, path.parent) if (folder / "starts.jsonl").exists()), None)
    starts = read_jsonl(Workdir.at(folder).starts) if folder else []
    return printable(str(starts[-1].get("versions", {}).get("bertjax", ""))) if starts else ""


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = command_line.ArgumentParser("push", __doc__)
    parser.add_argument("source", metavar="RUN[@STEP]", help="workdir, one of its checkpoints, or export folder")
    parser.add_flags({"--to=hub:OWNER/NAME[@REVISION]": "repository, and a branch if it is not main"}, required=True)
    parser.add_flags(
        {
            "--every-kept": "also publish each checkpoint, on a branch step-N",
            "--public": "make a new repository public, and accept a public one",
        },
        action="store_true",
    )
    parser.add_flags(
        {
            "--language=CODE": "language of the text in the card, such as ko",
            "--license=NAME": "license in the card, such as apache-2.0",
            "--widget=TEXT": "example for the page of the model; [MASK] hides a piece",
        }
    )
    args = parser.parse_args(argv)
    platform.configure("cpu")  # JAX only reads checkpoints here
    about = card.About(language=args.language, license=args.license, widget=args.widget)
    for address in run(args.source, args.to, about, args.every_kept, args.public):
        say(f"published {address}")
    return 0
