"""The sources of a virtual dataset, if they are stacked along axis 0: native code can read them in its place."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from solar.errors import SolarError
from solar.io.layout.hdf5 import inspect
from solar.io.layout.paths import files_of
from solar.io.libhdf5 import slow
from solar.values import Layout


@dataclass(frozen=True)
class Stack:
    """Datasets whose samples, one dataset after another, are those of a virtual dataset."""

    files: tuple[str, ...]
    names: tuple[str, ...]  # of the dataset in each
    samples: Literal["rows", "files"]


def stack_of(layout: Layout) -> Stack | None:
    """The sources of a virtual dataset in the order of its samples; None unless they give each sample exactly once.

    Number, shape and type are checked in the source files.
    """
    if layout.storage != "virtual" or len(layout.paths) != 1 or not layout.shape:
        return None
    try:
        path = layout.paths[0]
        shape, sources = slow.sources_of(path, layout.name_in(0))
        ordered = _ordered(shape, sources)
        if ordered is None:
            return None
        files = tuple(_found(path, source["file"]) for source in ordered)
        names = tuple(source["name"] for source in ordered)
        for samples in ("rows", "files"):
            stack = Stack(files, names, samples)
            if _agrees(stack, layout):
                return stack
    except (SolarError, OSError):  # the list is only a suggestion, so errors of the sources do not matter
        pass
    return None


def _ordered(shape: Sequence[int], sources: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The sources along axis 0; None unless each is whole, and they fill the rows one after another."""
    if not sources or any(source["to"] is None or not source["whole"] for source in sources):
        return None
    ordered = sorted(sources, key=lambda source: source["to"][0])
    row = 0
    for source in ordered:
        (begin, end), *others = source["to"]
        if begin != row or others != [[0, length] for length in shape[1:]]:
            return None
        row = end
    return ordered if row == shape[0] else None


def _found(path: str, named: str) -> str:
    """The path at which libhdf5 finds a source's file; OSError if that is not certain."""
    if named == ".":
        return path
    beside = Path(path).parent / named
    if os.environ.get("HDF5_VDS_PREFIX") or not beside.is_file():
        raise FileNotFoundError(named)
    return str(beside)


def _agrees(stack: Stack, layout: Layout) -> bool:
    """Whether the sources hold the samples of the virtual dataset, according to their files."""
    by_name: dict[str, list[str]] = {}
    for file, name in zip(stack.files, stack.names, strict=True):
        by_name.setdefault(name, []).append(file)
    try:
        found = [inspect(files, name, samples=stack.samples) for name, files in by_name.items()]
    except SolarError:
        return False
    alike = all((one.sample_shape, one.dtype) == (layout.sample_shape, layout.dtype) for one in found)
    return alike and sum(one.samples for one in found) == layout.samples


def pattern_of(files: Sequence[str]) -> str:
    """A glob pattern that matches exactly these files in this order; empty if there is none."""
    folders = {str(Path(file).parent) for file in files}
    if len(folders) != 1 or len(set(files)) != len(files):
        return ""
    names = [Path(file).name for file in files]
    begin = _common(names)
    end = _common([name[len(begin) :][::-1] for name in names])[::-1]
    pattern = f"{glob.escape(folders.pop())}/{glob.escape(begin)}*{glob.escape(end)}"
    return pattern if files_of(pattern) == list(files) else ""


def _common(names: list[str]) -> str:
    """The longest common beginning."""
    first, last = min(names), max(names)
    return next((first[:i] for i, char in enumerate(first) if last[i : i + 1] != char), first)
