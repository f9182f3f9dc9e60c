"""Sends an error from one process to another: its type, its message, its traceback."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from solar.errors import SolarError

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
    """Something needed in another process cannot be sent there. Its message alone says all."""


def told(error: Exception) -> tuple[bytes, str, str]:
    """An error as it travels: its type if that can be pickled, its name, its traceback; of ours the words alone."""
    if isinstance(error, Unsendable):
        return b"", "", str(error)
    try:
        kind = pickle.dumps(type(error))
    except Exception:  # a class inside a function, say; whatever its metaclass raises
        kind = b""
    return kind, type(error).__name__, "".join(traceback.format_exception(error))


class _Words(str):
    """A message that KeyError shows as it is, not quoted."""

    __repr__ = str.__str__


def rebuilt(failure: tuple[bytes, str, str], number: int) -> Exception:
    """The error that a process reported, of the same type if a message is enough to make one."""
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
