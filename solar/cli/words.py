"""Text for people: colours, and words for types, filters and errors."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from solar.io.system import quantities

if TYPE_CHECKING:
    import numpy as np

    from solar.values import Filter


# Colours and signs, as far as the output has them.


COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
SIGNS = (("│", "|"), ("├─", "|-"), ("└─", "`-"), ("×", "x"), ("·", "-"), ("→", "->"), ("…", "..."), ("–", "-"))


class Paint:
    """Colours and signs, as far as the output can show them."""

    def __init__(self, coloured: bool, unicode: bool, width: int) -> None:
        self.coloured, self.unicode, self.width = coloured, unicode, width

    @classmethod
    def for_stdout(cls) -> Paint:
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        unicode = "utf" in encoding().lower()
        return cls(coloured, unicode, min(shutil.get_terminal_size((120, 24)).columns, 140))

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.coloured and text else text

    def signs(self, text: str) -> str:
        """Returns the text, in ASCII if the output can show no more."""
        if self.unicode:
            return text
        for sign, plain in SIGNS:
            text = text.replace(sign, plain)
        return text.encode("ascii", "backslashreplace").decode()

    def code(self, text: str) -> str:
        """Returns an equivalent line of Python, in ASCII if the output can show no more. No name in it is changed."""
        return text if self.unicode else text.encode("ascii", "backslashreplace").decode()


def encoding() -> str:
    """Returns the encoding of the output."""
    return sys.stdout.encoding or ""


# Types, filters and names in words that people read; figures: solar.io.system.quantities.


INDEXES = {
    "btree1": "B-tree",
    "btree2": "B-tree v2",
    "single": "one chunk",
    "implicit": "implicit index",
    "fixed_array": "fixed array",
    "extensible_array": "extensible array",
}


def files(paths: Sequence[str]) -> str:
    """Returns the number of files, and the first of them."""
    return paths[0] if len(paths) == 1 else f"{quantities.count(len(paths), 'file')}, the first is {paths[0]}"


def times(shape: Iterable[int]) -> str:
    """Returns a shape as 200 x 128 x 128, with the multiplication sign."""
    return " × ".join(str(length) for length in shape)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Returns whether torch has such numbers: none as wide as a long double."""
    widest = {"b": 8, "i": 8, "u": 8, "f": 8, "c": 16}
    return dtype.itemsize <= widest.get(dtype.kind, 0)


def kind(dtype: np.dtype[Any]) -> str:
    """Describes a dtype in a word or two."""
    known: Mapping[str, Any] = dtype.metadata or {}
    if dtype.subdtype is not None:
        return f"{kind(dtype.base)} [{times(dtype.shape)}]"
    if dtype.names is not None:
        fields = [f"{printable(name)}: {kind(dtype[name])}" for name in dtype.names[:4]]
        return "{" + ", ".join(fields) + (", …" if len(dtype.names) > 4 else "") + "}"
    if dtype.kind == "O":
        if "ref" in known:
            return "references"
        vlen = known.get("vlen")
        return "objects" if vlen is None else "text" if isinstance(vlen, type) else f"lists of {kind(vlen)}"
    if dtype.kind == "S":
        return f"text[{dtype.itemsize}]"
    if dtype.kind == "V":
        return f"opaque[{dtype.itemsize}]" if dtype.itemsize else "unknown"
    name = f"enum {dtype.name}" if "enum" in known else dtype.name
    return name if dtype.isnative else f"{name} big-endian"


def filter_name(one: Filter) -> str:
    """Returns a filter's name; deflate with its level."""
    from solar import _native  # here: `solar --help` needs none of it

    name = _native.filter_name(one.id) or f"filter {one.id}"
    return f"{name} {one.values[0]}" if one.id == 1 and one.values else name


def ratio(raw: int, stored: int) -> str:
    """Returns how much smaller stored bytes are: 2.9:1."""
    return f"{raw / stored:.1f}:1" if stored else ""


def error_text_of(error: Exception) -> str:
    """Returns an error's text for people: the system's message after the name of the file."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return printable(f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}")
    return " ".join(map(printable, str(error).splitlines()))


def printable(text: str) -> str:
    """Returns text from a file without anything that would command a terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )
