"""The lines of Python that `solar inspect` prints."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from solar.cli import words
from solar.io.hdf5.packing import packing_text
from solar.values import Layout

FIELDS_SHOWN = 6  # fields of a sample that are told by name
IMPORTS = {
    "solar": ("CSR", "Crops", "Field", "H5Dataset", "Ragged", "Windows"),
    "solar.integrations": ("worldmodel",),
}


class Shape(NamedTuple):
    """A kind of samples that the file seems to have."""

    kind: str  # "groups" "csr" "ragged" "windows" "crops" "keys" "missing" "files" "steps" "table" "robots"
    parts: list[str]  # datasets that are no fields by themselves, for they tell of others
    words: str
    python: str  # empty where nothing reads it yet


def call(asked: str, fields: Mapping[str, str], more: str = "", most: int = FIELDS_SHOWN) -> str:
    """Returns the line that makes a data set of the first of these fields, by the names of their datasets."""
    few = dict(list(fields.items())[:most])
    return dataset_call(asked, dict(zip(keys_of(few), few.values(), strict=True)), more)


def dataset_call(asked: str, fields: Mapping[str, str], more: str = "") -> str:
    """Returns the line that makes a data set of these fields."""
    named = ", ".join(f"{quoted(key)}: {text}" for key, text in fields.items())
    return f"H5Dataset({quoted(asked)}, {{{named}}}{f', {more}' if more else ''})"


def keys_of(names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Returns the last part of each name if it is unique; else the whole name."""
    times = Counter(map(last_of, names))
    return [name.strip("/") if times[last_of(name)] > 1 else last_of(name) for name in names]


def field_line(name: str, layout: Layout) -> str:
    """Returns a field as an argument of H5Dataset."""
    return f"Field({quoted(name)}, cf=True)" if packing_text(layout) else quoted(name)


def quoted(value: str) -> str:
    """Returns a value as Python writes it."""
    return json.dumps(value, ensure_ascii=False)


def last_of(name: str) -> str:
    """Returns the last part of a name."""
    return name.rpartition("/")[2]


def rows_of(layout: Layout) -> int:
    """Returns how many rows it has in the first file."""
    return int(layout.first_of_files[1]) if len(layout.first_of_files) > 1 else layout.samples


def imports_of(lines: Iterable[str]) -> str:
    """Returns the imports that these lines need, as one line; empty if there are no lines."""
    used = set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"(\\.|[^"\\])*"', "", " ".join(lines))))
    found = {module: [name for name in names if name in used] for module, names in IMPORTS.items()}
    return "; ".join(f"from {module} import {', '.join(names)}" for module, names in found.items() if names)


def once_each(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Returns each dataset once: by its own name, or else by the first link to it."""
    first: dict[object, str] = {}
    for name, one in sorted(layouts.items(), key=lambda item: bool(item[1].names)):
        first.setdefault((one.paths, one.names or (one.name,) * len(one.paths)), name)
    once = set(first.values())
    return {name: one for name, one in layouts.items() if name in once}


def numeric_fields(layouts: Mapping[str, Layout]) -> list[str]:
    """Returns the names of those with numbers that native code reads."""
    return [name for name, one in layouts.items() if words.is_number(one.dtype) and one.reader == "direct"]
