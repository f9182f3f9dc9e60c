"""What tests of faults need: faults at the one door to the system, the ways to read, and what comes of both."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import kit
import numpy as np
import pytest
from kit import settle, uring_works

from solar import DataLoader, H5Dataset, _native

SAMPLES, WIDTH, BATCH = 40, 750, 4
EVER = 2**64 - 1
PAGE = Path(__file__).parent.parent / "docs" / "failures.md"
TABLE = os.environ.get("SOLAR_FAULT_TABLE")  # a file to which the table goes, for the page

if not hasattr(_native, "_inject_faults"):
    pytest.skip("the extension is older than these tests: build it again", allow_module_level=True)


def fault(
    call: str, code: int = 0, *, times: int = EVER, after: int = 0, most: int = EVER, delay: float = 0.0,
    begin: int = 0, end: int = EVER,
) -> tuple[Any, ...]:  # fmt: skip
    """One kind of call that is answered so (native/include/solar/faults.hpp)."""
    return (call, "", begin, end, after, times, code, most, delay)


def reads(code: int = 0, **facts: Any) -> list[tuple[Any, ...]]:
    """The same for a plain read and for io_uring's: what fails there is read again by a plain call."""
    return [fault("read", code, **facts), fault("ring", code, **facts)]


@contextmanager
def injected(faults: Sequence[tuple[Any, ...]]) -> Iterator[None]:
    """These faults, for so long."""
    _native._inject_faults(list(faults))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _native._inject_faults([])  # type: ignore[attr-defined]


@dataclass(frozen=True)
class DirectSource:
    """A way by which bytes come."""

    name: str
    backend: str
    page_cache: bool | None = None
    buffer: Any = 0


WAYS = [
    DirectSource("threads", "pread"),
    DirectSource("past the page cache", "pread", False),
    DirectSource("into the buffer", "pread", None, "4MiB"),
    *([DirectSource("io_uring", "uring", False)] if uring_works() else []),
]


def engine(way: DirectSource) -> AbstractContextManager[None]:
    """A new engine of one thread, so that which calls it makes is known."""
    return kit.engine(1, way.backend)


def written(folder: Path, **options: Any) -> str:
    path = folder / "scan.h5"
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(3).integers(0, 9, (SAMPLES, WIDTH)).astype("f4")
        file.create_dataset("x", data=values, **options)
    settle(path)
    return str(path)


def truth(path: str) -> np.ndarray[Any, Any]:
    with h5py.File(path) as file:
        return np.asarray(file["x"])


@dataclass
class Outcome:
    """What a user saw of an epoch: rows handed out, counts, and the error."""

    rows: list[int]
    stats: dict[str, Any]
    error: Exception | None

    def said(self, folder: Path) -> str:
        """In a few words, for the table."""
        if self.error is not None:
            text = re.sub(re.escape(str(folder)) + r"/[\w.]+", "FILE", str(self.error))
            text = re.sub(r"\b(sample|offset|batch|size|of) \d+( -> \d+)?", r"\1 …", text)
            text = re.sub(r"after [\d.]+ s", "after … s", text)
            text = re.sub(r"H5Dataset\(.*?\)", "…", text)
            return f"`{type(self.error).__name__}`: {text}"
        if self.stats["skipped"]:
            left = f"all but {self.stats['skipped']} unreadable sample{'s' * (self.stats['skipped'] > 1)}"
            return f"the batches come with {left}, each counted and logged"
        return "every batch comes" + (", and `retries` counts" if self.stats["retries"] else "")


def outcome(
    path: str,
    way: DirectSource,
    faults: Sequence[tuple[Any, ...]],
    act: Callable[[], None] | None = None,
    **options: Any,
) -> Outcome:
    """An epoch with faults; `act` happens after the first batch. What is handed out is right, or this fails."""
    expected, rows, error = truth_of(path), [], None
    dataset = H5Dataset(path, "x", page_cache=way.page_cache)
    with injected(faults), DataLoader(dataset, BATCH, buffer=way.buffer, ahead=1, **options) as loader:
        try:
            for batch in loader:
                for sample in batch.numpy():
                    [found] = np.flatnonzero((expected == sample).all(axis=1))
                    rows.append(int(found))
                if act is not None:
                    act()
                    act = None
        except Exception as found_error:
            error = found_error.with_traceback(None)
        assert rows == sorted(rows)
        return Outcome(rows, loader.stats(), error)


_TRUTH: dict[str, np.ndarray[Any, Any]] = {}


def truth_of(path: str) -> np.ndarray[Any, Any]:
    """What the file held when it was first asked for, before it was damaged."""
    if path not in _TRUTH:
        _TRUTH[path] = truth(path)
    return _TRUTH[path]


def table_of_the_page(head: list[str], length: int) -> dict[str, str]:
    lines = PAGE.read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    begin = rows.index(head)
    return {row[0]: row[1] for row in rows[begin + 2 :][:length]}


def check_page(name: str, said: str, head: list[str], length: int) -> None:
    """That the page says this of the fault; or the page is to be written anew: then it is told."""
    if TABLE:
        with Path(TABLE).open("a") as file:
            file.write(f"| {name} | {said} |\n")
    else:
        assert table_of_the_page(head, length)[name] == said
