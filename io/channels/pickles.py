"""Pickles that travel between processes: what a process starts with, what it is sent later, and errors."""

from __future__ import annotations

import copyreg
import io
import multiprocessing
import pickle
import traceback
import types
from collections.abc import Callable, Mapping
from multiprocessing import reduction, spawn
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.errors import SolarError

# Sends an error from one process to another: its type, its message, its traceback.


UNGUARDED = (
    'the script starts its work without `if __name__ == "__main__":`, and its functions are needed in other processes, '
    "which import it again and would start the same work. Put that before it, or the function into a module of its "
    'own, or give multiprocessing_context="fork"'
)
BOOTSTRAPPING = "bootstrapping phase"  # multiprocessing says it at length
PROMPT = (
    "{} of the main module cannot be had in another process: it was defined at a prompt, in a notebook, or below "
    '`if __name__ == "__main__":`. Put it into a module'
)


class Unsendable(SolarError):
    """Something that another process needs cannot be sent to it. Its message says everything."""


def pack_error(error: Exception) -> tuple[bytes, str, str]:
    """Returns an error in the form that travels: its type if that can be pickled, name and traceback."""
    if isinstance(error, Unsendable):
        return b"", "", str(error)
    try:
        kind = pickle.dumps(type(error))
    except Exception:  # a class inside a function, say; whatever its metaclass raises
        kind = b""
    return kind, type(error).__name__, "".join(traceback.format_exception(error))


class _Words(str):
    """A message that KeyError shows without quotes."""

    __repr__ = str.__str__


def rebuild_error(failure: tuple[bytes, str, str], number: int) -> Exception:
    """Returns the error that a process reported, of the same type if a message is enough to make one."""
    kind, name, text = failure
    if not name or BOOTSTRAPPING in text:
        return SolarError(text if not name else UNGUARDED)
    message = f"Caught {name} in transform process {number}.\nOriginal {text}"
    try:
        type_: Any = pickle.loads(kind)
        error = type_(_Words(message) if issubclass(type_, KeyError) else message)
    except Exception:  # the type is not known here, or wants other arguments: whatever its code raises
        return RuntimeError(message)
    # StopIteration would end the caller's loop as if all were well
    plain = isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration)
    return error if plain else RuntimeError(message)


# Pickles the values that a process starts with, and those sent to it later (io/channels/worker_child.py).


Reducers = Mapping[type, Callable[[Any], Any]]


def dump(pickler: pickle.Pickler, reducers: Reducers, value: Any, what: str) -> None:
    """Pickles `value` with our reducers. A TypeError or PicklingError says what could not be pickled, and why."""
    table: Any = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    pickler.dispatch_table = {**table, np.ndarray: _reduce_array, **reducers}
    try:
        pickler.dump(value)
    except MemoryError:
        raise
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else pickle.PicklingError
        raise kind(
            f"{what} (a {type(value).__name__}) cannot be sent to another process: {error}. "
            "What is sent must be picklable: functions and classes at the top level of a module, no open files or locks"
        ) from error


class _Noting(reduction.ForkingPickler):
    """multiprocessing's pickler for what may only be sent at the start. Notes what the main module defines."""

    def __init__(self) -> None:
        self.file, self.of_main = io.BytesIO(), list[str]()
        super().__init__(self.file, 5)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            self.of_main.append(value.__qualname__)
        return NotImplemented


def sealed(value: Any, main: dict[str, str], reducers: Reducers) -> bytes:
    """Returns the pickle of what processes start with. `main` is how they import the main module, if they can."""
    pickler = _Noting()
    dump(pickler, reducers, value, "the work of transform processes")
    if pickler.of_main and not main:
        raise Unsendable(PROMPT.format(pickler.of_main[0]))
    return pickler.file.getvalue()


def _reduce_array(array: NDArray[Any]) -> Any:
    """Reduces an array as numpy does, except that one with gaps is copied once, into a buffer outside of the pickle."""
    if not array.flags.forc and not array.dtype.hasobject:
        array = np.ascontiguousarray(array)
    return array.__reduce_ex__(5)


class Sealed:
    """The values that a process starts with. They stay bytes until opened, when an error can be reported."""

    def __init__(self, value: Any, main: dict[str, str], reducers: Reducers) -> None:
        self._value, self._main, self._reducers = value, main, reducers

    def __reduce__(self) -> Any:
        return _Opened, (sealed(self._value, self._main, self._reducers), self._main)

    def open(self) -> Any:
        return self._value


class _Opened:
    def __init__(self, data: bytes, main: dict[str, str]) -> None:
        self._data, self._main = data, main

    def open(self) -> Any:
        Unpickler.main = self._main
        return Unpickler(io.BytesIO(self._data)).load()


class Unpickler(pickle.Unpickler):
    """Imports the parent's main module only when something of it is needed."""

    main: dict[str, str] = {}  # noqa: RUF012  (of the process: there is one main module)

    def find_class(self, module: str, name: str) -> Any:
        if module in ("__main__", "__mp_main__") and Unpickler.main:
            this: Any = multiprocessing.current_process()
            this._inheriting = True  # whoever starts processes while the main module is imported is told of the guard
            try:
                spawn.prepare(dict(Unpickler.main))
            finally:
                del this._inheriting
            Unpickler.main = {}
        try:
            return super().find_class(module, name)
        except AttributeError:
            if module != "__main__":
                raise
            raise Unsendable(PROMPT.format(name)) from None
