"""Unions by `kind`: registered classes have a short name; user classes are named `module:Class`.

Importing a module runs its code. Configuration files and command lines may name any module, because the user wrote
them. Other files, such as exports, may only name modules that this process has already imported.
"""

import contextlib
import dataclasses
import difflib
import functools
import importlib
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.runtime.errors import Untrusted, UserError, reason
from bertjax.runtime.setting import marked


class Choice(NamedTuple):
    """A union as `bertjax.config.typed.build` reads it.

    Attributes:
      class_of: function from a kind (None if unset) to its class.
      kinds: registered kinds, to search for a setting that another kind lacks.
    """

    class_of: Callable[[str | None], type]
    kinds: Collection[str] = ()


@dataclasses.dataclass(frozen=True)
class Kind:
    """Base class of union members that know their kind.

    Attributes:
      kind: name in a configuration. A registered class sets its short name as the default; the kind of a user class is
        `module:Class`.
    """

    kind: str = dataclasses.field(init=False)

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        # Not inherited: a user class derived from `BertBlock` must not be saved as BERT's.
        if "kind" not in vars(cls):
            cls.kind = f"{cls.__module__}:{cls.__qualname__}"  # pyrefly: ignore[read-only] - frozen are its instances


@dataclasses.dataclass(frozen=True)
class Union:
    """Classes that a setting such as `objective={"kind": "mlm", ...}` chooses from.

    Attributes:
      setting: setting name, for messages.
      base: common base class, see also `Kind`.
      default: kind to build if none is set.
      kinds: {kind: `module:Class`} for registered classes; a module is imported when its class is used.
    """

    setting: str
    base: type
    default: str
    kinds: Mapping[str, str]

    def choice(self, trust_code: bool = False) -> Choice:
        """Return the union for `typed.build`; `trust_code` allows importing the modules of user classes."""
        return Choice(functools.partial(self.class_of, trust_code=trust_code), tuple(self.kinds))

    def class_of(self, kind: str | None = None, trust_code: bool = False) -> type:
        """Return the class for a kind.

        Args:
          kind: a registered kind, or `module:Class`; None for the default.
          trust_code: allow importing the module in `module:Class`.

        Raises:
          UserError: the kind is unknown, cannot be imported, or is not a subclass of `base`.
          Untrusted: its module is not imported, and `trust_code` is False.
        """
        kind = kind or self.default
        choice = f"{self.setting}{'.kind' * bool(self.kinds)}={kind!r}"  # hooks have no kinds of bertjax
        if kind not in self.kinds and ":" not in kind:
            raise UserError(f"{choice} is unknown; choose one of {', '.join(self.kinds)}, or name module:Class")
        module_name, _, class_name = self.kinds.get(kind, kind).partition(":")
        # Registered kinds are bertjax's own modules and always trusted.
        module = module_of(choice, module_name, trust_code or kind in self.kinds)
        registered = vars(module).get(class_name)  # not getattr: a module may import others when it is asked for a name
        if registered is None:
            members = vars(module).items()
            known = [name for name, each in members if isinstance(each, type) and issubclass(each, self.base)]
            near = difflib.get_close_matches(class_name, known, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]!r}?" if near else "correct the name"
            raise UserError(f"{choice} cannot be used: {module_name} has no class {class_name!r}; {remedy}")
        if not (isinstance(registered, type) and issubclass(registered, self.base)):
            base = f"{self.base.__module__}.{self.base.__qualname__}"
            raise UserError(f"{choice} is not a subclass of {self.base.__name__}; derive it from {base}")
        # A class whose own kind differs would be written to config.json under a name that does not load it.
        if issubclass(registered, Kind) and (own := registered.kind) != kind:
            raise UserError(f"{choice} names a class whose own kind is {own!r}; make them the same")
        return registered

    def marked(self, *marks: Mapping[str, bool]) -> set[str]:
        """Return the settings of all registered classes that have one of the marks of `bertjax.runtime.setting`."""
        return set().union(*(marked(self.class_of(kind), *marks) for kind in self.kinds))

    def kind_of(self, value: Any) -> str:
        """Return an instance's kind, so that `class_of(kind_of(x)) is type(x)`."""
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        return next((kind for kind, registered in self.kinds.items() if registered == name), name)


def module_of(choice: str, name: str, trust_code: bool) -> types.ModuleType:
    """Return a module that a setting names.

    Args:
      choice: setting and value, for messages.
      name: module name.
      trust_code: allow importing it.

    Raises:
      UserError: it cannot be imported.
      Untrusted: it is not imported, and `trust_code` is False.
    """
    # An imported module has run already, so looking up a class in it runs nothing new.
    if not trust_code and name not in sys.modules:
        raise Untrusted(
            f"{choice} asks to import the module {name!r}, which runs its code; if you trust its author, add "
            "--trust-code, which predict, evaluate, analyze, probe, report and compress have (in Python pass "
            "trust_code=True, or import the module first)"
        )
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the module is a program and may fail in any way, or end itself
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):  # the module itself, or a package that it is in
            is_file = "/" in name or name.endswith(".py")
            dotted = name.removesuffix(".py").strip("./").replace("/", ".")
            remedy = f"a module is written {dotted}" if is_file else "is its folder on PYTHONPATH?"
            raise UserError(f"{choice} cannot be imported: {error}; {remedy}") from error
        line = line_of(error)
        remedy = "correct the file" if line else "name an importable module"
        cause = f"{type(error).__name__}: {reason(error)}"
        raise UserError(f"{choice} cannot be imported: {line + ': ' if line else ''}{cause}; {remedy}") from error


_PATHS = sysconfig.get_paths()
# Code that is not the user's: bertjax, the standard library and installed packages.
_OTHERS = tuple(
    Path(folder).resolve()
    for folder in (Path(__file__).parents[1], *(_PATHS[k] for k in ("stdlib", "purelib", "platlib")))
)


def line_of(error: BaseException) -> str:
    """Return `FILE:LINE in FUNCTION` of the innermost frame in the user's code, or "" if there is none."""
    # A file that does not parse has no frame of its own in the traceback.
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f"{error.filename}:{error.lineno}"
    # The innermost frame is often in JAX or NumPy; the user can change only the last one of their own.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not frames:
        return ""
    function = "" if frames[-1].name == "<module>" else f" in {frames[-1].name}"
    return f"{frames[-1].filename}:{frames[-1].lineno}{function}"


def _is_users(filename: str) -> bool:
    path = Path(filename)
    # Frames such as `<string>` have no file that a user could open.
    return path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in _OTHERS)


@contextlib.contextmanager
def user_errors(setting: str, remedy: str = "correct it", is_theirs: bool = False) -> Iterator[None]:
    """Turn an exception from the user's code into an error of one line, with the file and line.

    Args:
      setting: the setting that names the code.
      remedy: what the user can do.
      is_theirs: whether an exception without a line of the user's code has its cause there all the same. Otherwise it
        is a defect of bertjax, which needs its traceback.

    Raises:
      UserError: the code has raised any exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        line = line_of(error)
        if not line and not is_theirs:
            raise
        where = f"{line}: " if line else ""
        raise UserError(f"{setting} fails: {where}{type(error).__name__}: {reason(error)}; {remedy}") from error
