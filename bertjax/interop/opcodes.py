"""A pickle interpreter that never imports or calls what the pickle names.

`pickle.Unpickler` calls functions and sets attributes on their results. `load` has its own stack and knows only the
opcodes that `torch.save` writes for a state dict: numbers, strings, tuples, lists, dicts and the caller's records.
"""

import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any

# A state dict of BERT-large has about 20,000 opcodes.
_MOST_OPCODES = 1 << 20
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT")
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING")
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

Function = Callable[..., Any]


class Refused(Exception):
    """The pickle asks for something that no state dict needs."""


def load(file: IO[bytes], names: Mapping[tuple[str, str], Any], persistent: Function) -> Any:
    """Return the object in the pickle at the file's position, and leave the file after it.

    Args:
      file: the file.
      names: {(module, name): value} of all names that the pickle may use; it may call those that are functions.
      persistent: maps a persistent id to an object.

    Raises:
      Refused: the pickle uses any other name, or an unknown opcode.
      ValueError, IndexError, KeyError, TypeError: it is damaged.
    """
    machine = _Machine(names, persistent)
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if count == _MOST_OPCODES:
            raise ValueError(f"its pickle has more than {_MOST_OPCODES:,} opcodes")
        machine.step(opcode.name, argument)
    return machine.stack.pop()


class _Machine:
    """The state of a pickle machine.

    Attributes:
      stack: objects since the last mark.
      marked: the stacks below each mark.
      memo: objects by number.
    """

    def __init__(self, names: Mapping[tuple[str, str], Any], persistent: Function):
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self._names, self._persistent = names, persistent

    def step(self, name: str, argument: Any) -> None:
        """Execute one opcode, by its name in `pickletools`."""
        stack = self.stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _NUMBERS or name in _TEXTS:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            named = (stack.pop(-2), stack.pop()) if name == "STACK_GLOBAL" else tuple(argument.split(" ", 1))
            stack.append(self._named(*map(_text, named)))
        elif name == "MARK":  # the objects up to the next TUPLE, APPENDS or SETITEMS belong together
            self.marked.append(stack)
            self.stack = []
        elif name == "TUPLE":
            self._to_mark().append(tuple(stack))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else stack
            _of(list, (stack if name == "APPEND" else self._to_mark())[-1]).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else stack
            target = _of(dict, (stack if name == "SETITEM" else self._to_mark())[-1])
            target.update({_text(key): value for key, value in zip(items[::2], items[1::2], strict=True)})
        elif name == "REDUCE":
            # Only functions of `names` can be on the stack, so nothing else is ever called.
            function, arguments = stack.pop(-2), _of(tuple, stack.pop())
            if not callable(function):
                raise Refused("a call of something that is not a function")
            stack.append(function(*arguments))
        elif name == "BUILD":  # PyTorch writes the attribute `_metadata` of a state dict, which nothing here needs
            stack.pop()
            _of(dict, stack[-1])
        elif name == "BINPERSID":
            stack.append(self._persistent(_of(tuple, stack.pop())))
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise Refused(f"the opcode {name}")

    def _named(self, module: str, name: str) -> Any:
        if (module, name) not in self._names:
            raise Refused(f"{module}.{name}")
        return self._names[module, name]

    def _to_mark(self) -> list[Any]:
        """Drop all objects since the last mark; return the stack below it."""
        self.stack = self.marked.pop()
        return self.stack


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"it has a {type(value).__name__} in the place of a {kind.__name__}")
    return value


def _text(value: Any) -> str:
    return _of(str, value)  # hashing or printing a tuple of tuples of tuples may take forever
