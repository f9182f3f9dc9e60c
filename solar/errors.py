"""The exceptions that solar raises, in one class tree; and a warning for arguments that have another name now.

    SolarError(Exception)
      LayoutError(SolarError, ValueError)   the file does not match the request, or is damaged
      PlanError(SolarError, ValueError)     the reads cannot be planned
      ReadError(SolarError, OSError)        reading failed: errno, path, offset
      CodecError(SolarError, ValueError)    stored bytes cannot be decoded, or a checksum is wrong

A message says what was asked, what was found, in which file, and what to do. A mistake in a call raises TypeError,
ValueError or IndexError, as everywhere in Python, not a SolarError. An argument that another library has in its place
is a PlanError that says what to give instead.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SolarError(Exception):
    """Something outside the program is wrong: a file, its bytes, the memory given."""


class LayoutError(SolarError, ValueError):
    """The file does not match the request: not HDF5, no such dataset, damaged, or of a kind that cannot be read."""


class PlanError(SolarError, ValueError):
    """The reads cannot be planned with the given arguments."""


class ReadError(SolarError, OSError):
    """Reading failed. `errno` is the system's error code where there is one."""


class CodecError(SolarError, ValueError):
    """Stored bytes cannot be decoded, or do not match their checksum."""


def refuse_arguments(of: str, given: Mapping[str, Any], instead: Mapping[str, str], names: Iterable[str]) -> None:
    """Raises an error for arguments that `of` does not take: PlanError with what to do `instead`, or else TypeError.

    Others take those that `instead` has. A false value asks for nothing there, and is allowed. `names` are arguments
    that may have been meant.
    """
    for word, value in given.items():
        if word in instead:
            if value is None or (isinstance(value, (int, float, str, list, tuple, dict)) and not value):
                continue
            raise PlanError(f"{of} takes no {word}={value!r:.60}: {instead[word]}")
        from difflib import get_close_matches  # only where something is wrong

        near = get_close_matches(word, list(names), 1)
        raise TypeError(f"{of} takes no {word}={f'; did you mean {near[0]}=?' if near else ''}")


def renamed_arguments(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a function take arguments by their old names, too: `renamed_arguments(old="new")`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def with_old_names(*args: P.args, **arguments: P.kwargs) -> T:
            for old in names.keys() & arguments.keys():
                new = names[old]
                if new in arguments:
                    raise TypeError(f"{new}= and {old}=: {old} is the old name of {new}; leave it out")
                warnings.warn(f"{old}= is called {new}= now", DeprecationWarning, stacklevel=2)
                arguments[new] = arguments.pop(old)
            return function(*args, **arguments)

        return with_old_names

    return decorate
