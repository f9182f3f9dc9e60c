"""Faults and what becomes of them: each is met by every way to read, and the outcome is what docs/failures.md says."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import pytest

pytest.importorskip("torch")

from faults_kit import SAMPLES, WAYS, WIDTH, Way, engine, fault, outcome, reads, truth_of, written

PAGE = Path(__file__).parent.parent / "docs" / "failures.md"
TABLE = os.environ.get("SOLAR_FAULT_TABLE")  # a file to which the table goes, for the page
HEAD = ["what happens", "what becomes of the epoch"]
LOOK = 0.12  # seconds after which a change of an open file is seen


class Case(NamedTuple):
    """A fault; and how the file is written, and the loader made, that meets it."""

    faults: Sequence[tuple[Any, ...]] | Callable[[str], Sequence[tuple[Any, ...]]] = ()
    act: Callable[[str], None] | None = None  # after the first batch
    options: Mapping[str, Any] = MappingProxyType({})
    written: Mapping[str, Any] = MappingProxyType({})
    before: Callable[[str], None] | None = None  # the first batch


def truncate(path: str) -> None:
    os.truncate(path, Path(path).stat().st_size // 2)
    time.sleep(LOOK)


def write_over(path: str) -> None:
    with Path(path).open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"?" * 100)
    time.sleep(LOOK)


def replace(path: str) -> None:
    Path(path + ".new").write_bytes(b"?" * Path(path).stat().st_size)
    Path(path + ".new").replace(path)
    time.sleep(LOOK)


def damage(path: str) -> None:
    """A bit of the chunk of sample 17 falls over."""
    with h5py.File(path) as file:
        stored = file["x"].id.get_chunk_info(17)
    facts = Path(path).stat()
    with Path(path).open("r+b") as opened:
        opened.seek(stored.byte_offset + 8)
        byte = opened.read(1)[0]
        opened.seek(stored.byte_offset + 8)
        opened.write(bytes([byte ^ 1]))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


CHUNKED = {"chunks": (1, WIDTH), "fletcher32": True}
ZIPPED = {"chunks": (1, WIDTH), "compression": "gzip"}
NO_MEMORY = [fault("memory", errno.ENOMEM, end=16_000)]
SKIP = {"on_error": "skip"}


def of_sample_17(path: str) -> list[tuple[Any, ...]]:
    with h5py.File(path) as file:
        begin = file["x"].id.get_offset() + 17 * 4 * WIDTH + 8
    return reads(errno.EREMOTEIO, begin=begin, end=begin + 8)


CASES = {
    "reads bring fewer bytes than were asked for": Case(reads(most=1000)),
    "a signal interrupts reads (EINTR)": Case(reads(errno.EINTR, times=3)),
    "reads answer EAGAIN, twice": Case(reads(errno.EAGAIN, times=2)),
    "a read fails (EIO), once": Case(reads(errno.EIO, times=1)),
    "a read fails (ETIMEDOUT), once": Case(reads(errno.ETIMEDOUT, times=1)),
    "the server has forgotten the file (ESTALE), once": Case(reads(errno.ESTALE, times=1)),
    "reads fail for ever (EIO)": Case(reads(errno.EIO)),
    "reads are forbidden (EACCES)": Case(reads(errno.EACCES)),
    "reads take 20 ms longer, five times": Case(reads(times=5, delay=0.02)),
    "reads take longer than `timeout`": Case(reads(times=2, delay=0.4), options={"timeout": 0.1}),
    "opening fails (EMFILE: no descriptors), twice": Case([fault("open", errno.EMFILE, times=2)]),
    "opening fails (ESTALE), once": Case([fault("open", errno.ESTALE, times=1)]),
    "the file is gone (ENOENT)": Case([fault("open", errno.ENOENT)]),
    "the file cannot be mapped": Case([fault("map", errno.ENOMEM)]),
    "there is no memory to decode with": Case(NO_MEMORY, written=ZIPPED),
    "the file is cut short after the first batch": Case(act=truncate),
    "the file is written to after the first batch": Case(act=write_over),
    "the file is replaced after the first batch (renamed over)": Case(act=replace),
    "the file is deleted after the first batch": Case(act=os.unlink),
    "a bit of a chunk with a checksum is wrong": Case(before=damage, written=CHUNKED),
    'a bit of a chunk with a checksum is wrong, `on_error="skip"`': Case(before=damage, written=CHUNKED, options=SKIP),
    'one sample cannot be read (EREMOTEIO), `on_error="skip"`': Case(of_sample_17, options=SKIP),
    'reads are forbidden (EACCES), `on_error="skip"`': Case(reads(errno.EACCES), options=SKIP),
}
SLOW = {"reads fail for ever (EIO)"}  # by one way only; native/tests/faults_test.cpp has the others
NOT_BUFFERED = {name for name, case in CASES.items() if case.act is not None}  # what is there already, comes


def said_of(name: str, way: Way, folder: Path) -> str:
    case = CASES[name]
    path = written(folder, **case.written)
    truth_of(path)
    if case.before is not None:
        case.before(path)
    with engine(way):
        act = None if case.act is None else lambda: case.act(path)  # type: ignore[misc]
        faults = case.faults(path) if callable(case.faults) else case.faults
        found = outcome(path, way, faults, act, **case.options)
    if found.error is None and not found.stats["skipped"]:
        assert found.rows == list(range(SAMPLES))
    assert len(found.rows) == SAMPLES - found.stats["skipped"] or found.error is not None
    return found.said(folder)


def table_of_the_page() -> dict[str, str]:
    lines = PAGE.read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    begin = rows.index(HEAD)
    return {row[0]: row[1] for row in rows[begin + 2 :][: len(CASES)]}


@pytest.mark.parametrize("name", CASES)
def test_what_the_page_says_becomes_of_a_fault_is_what_becomes_of_it(name: str, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for number, way in enumerate(WAYS):
        if (way.buffer and name in NOT_BUFFERED) or (number and name in SLOW):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        found[way.name] = said_of(name, way, folder)
    assert len(set(found.values())) == 1, found
    said = found["threads"]
    if TABLE:
        with Path(TABLE).open("a") as file:
            file.write(f"| {name} | {said} |\n")
    else:
        assert table_of_the_page()[name] == said


def test_the_page_lists_every_fault() -> None:
    if not TABLE:
        assert list(table_of_the_page()) == list(CASES)
