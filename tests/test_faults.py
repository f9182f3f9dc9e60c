"""Faults and what becomes of them, as docs/failures.md says: those of reading are met by every way to read."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

pytest.importorskip("torch")

from faults_kit import (
    BATCH,
    SAMPLES,
    TABLE,
    WAYS,
    WIDTH,
    DirectSource,
    check_page,
    engine,
    fault,
    injected,
    outcome,
    reads,
    table_of_the_page,
    truth,
    truth_of,
    written,
)

from solar import DataLoader, H5Dataset, ReadError, compress, inspect
from solar.io.codec import chunk_values
from solar.io.hdf5 import chunk_index
from solar.io.system import atomic_file, profile

HEAD = ["what happens", "what becomes of the epoch"]
OTHERS_HEAD = ["what else happens", "what becomes of it"]
HANGS = 60.0  # seconds that a call does not return, if nobody ends the fault
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
ZIPPED = {"chunks": (2, WIDTH), "compression": "gzip"}  # what is alone is decoded to its place
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


def said_of(name: str, way: DirectSource, folder: Path) -> str:
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


@pytest.mark.slow(
    but=[
        "a read fails (EIO), once",
        "the file is gone (ENOENT)",
        "the file is written to after the first batch",
        "a bit of a chunk with a checksum is wrong",
        "reads bring fewer bytes than were asked for",
    ]
)
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
    check_page(name, found["threads"], HEAD, len(CASES))


# --- what is written, made and read together ----


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New files of ours take no bytes."""

    def opened(*args: Any, **named: Any) -> Any:
        file = open(*args, **named)  # noqa: PTH123, SIM115 - which the patched module does
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fileno())
        os.close(full)
        return file

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "open", opened, raising=False)
        yield


def error_of(act: Callable[[], Any], folder: Path) -> str:
    """How it fails, in the words that the user gets."""
    try:
        act()
    except Exception as error:
        text = re.sub(re.escape(str(folder)) + r"/[\w.-]+", "FILE", str(error))
        return f"`{type(error).__name__}`: {re.sub('[0-9]+ chunks', '… chunks', text)}"
    raise AssertionError("it did not fail")


def no_room_for_the_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path, cache = written(folder, chunks=(1, WIDTH)), folder / "cache"
    monkeypatch.setattr(chunk_index, "WORTH_KEEPING", 1)
    with full_disk(monkeypatch):
        assert inspect(path, "x", cache=cache).digest == inspect(path, "x", cache=None).digest
    assert [*cache.iterdir()] == []
    inspect(path, "x", cache=cache)
    assert len([*cache.iterdir()]) == 1, "with room it is kept"
    return "the file is read all the same; nothing is kept"


def no_room_for_a_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = profile.Profile("/data", "now", "by hand", (), profile.FLASH)
    profile.save(made, folder / "p.json")
    before = (folder / "p.json").read_bytes()
    with full_disk(monkeypatch):
        said = error_of(lambda: profile.save(made, folder / "p.json"), folder)
    assert (folder / "p.json").read_bytes() == before
    assert [one.name for one in folder.iterdir()] == ["p.json"]
    return f"{said}; an older one stays as it is"


def no_room_for_a_compressed_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path, out = written(folder, chunks=(1, WIDTH)), folder / "out.h5"
    compress(path, folder / "whole.h5", "lossless", threads=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "whole.h5").stat().st_size // 2, limits[1]))
    try:
        said = error_of(lambda: compress(path, out, "lossless", threads=1), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not out.exists()
    compress(path, out, "lossless", threads=1)
    assert out.read_bytes() == (folder / "whole.h5").read_bytes()
    assert not [*folder.glob(".*")]
    return said


def storage_that_hangs_while_a_file_is_compressed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path, out = written(folder), folder / "out.h5"
    compress(path, folder / "whole.h5", "lossless", threads=1)
    with injected(reads(delay=HANGS, begin=SAMPLES * WIDTH * 2)), monkeypatch.context() as patched:
        patched.setattr(chunk_values, "READ_WITHIN", 0.3)
        said = error_of(lambda: compress(path, out, "lossless", threads=1), folder)
    assert not out.exists()
    compress(path, out, "lossless", threads=1)
    assert out.read_bytes() == (folder / "whole.h5").read_bytes()
    said = re.sub("sample [0-9]+, offset [0-9]+", "sample …, offset …", said)
    return said.replace("0.3 s", f"{chunk_values.READ_WITHIN:g} s")


def a_thread_that_throws(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path, rows = written(folder), []
    expected = truth(path)

    def transform(sample: Any) -> Any:
        if (sample == expected[17]).all():
            raise ArithmeticError("the transform's own words")
        return sample

    def act() -> None:
        data = H5Dataset(path, "x", transform=transform, thread_safe=True)
        with DataLoader(data, BATCH, num_workers=2) as loader:
            for batch in loader:
                rows.extend(batch.numpy())

    said = error_of(act, folder)
    assert (np.stack(rows) == expected[:16]).all(), "the batches before it come"
    return said.partition("\n")[0]


def a_rank_that_ends(folder: Path, _: pytest.MonkeyPatch) -> str:
    signals, path = [signal.SIGKILL, signal.SIGTERM], written(folder)
    specs = [
        {"path": path, "seed": 1, "ranks": 2, "victim": 1, "apart": False, "store": f"file://{path}.{number}",
         "moment": "batch", "count": 3, "delay": 0.0, "signal": number}
        for number in signals
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("together_kills_program.py")], input=json.dumps([specs, 2]),
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    trials = json.loads(done.stdout)
    assert [trial["status"][1] for trial in trials] == [-number for number in signals], trials
    errors = [one["error"] for trial in trials for one in trial["said"] if "error" in one]
    assert len(errors) == 2, trials
    assert all("rank 1 of 2" in error for error in errors), errors
    [kind] = {error.partition(":")[0] for error in errors}
    return f"`{kind}` on every other rank, which names it"


OTHERS: dict[str, Callable[[Path, pytest.MonkeyPatch], str]] = {
    "the disk is full (ENOSPC): index cache": no_room_for_the_index,
    "the disk is full (ENOSPC): profile of a storage": no_room_for_a_profile,
    "there is no more room for a file (EFBIG): `solar compress`": no_room_for_a_compressed_file,
    "the storage hangs: `solar compress`": storage_that_hangs_while_a_file_is_compressed,
    "a thread throws: your transform": a_thread_that_throws,
    "a rank is killed (SIGKILL), or told to end (SIGTERM)": a_rank_that_ends,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_page_says_of_other_faults_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_page(name, OTHERS[name](tmp_path, monkeypatch), OTHERS_HEAD, len(OTHERS))


def test_the_page_lists_every_fault() -> None:
    if not TABLE:
        assert list(table_of_the_page(HEAD, len(CASES))) == list(CASES)
        assert list(table_of_the_page(OTHERS_HEAD, len(OTHERS))) == list(OTHERS)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_file_system_that_hangs_when_files_are_looked_at_is_waited_for_as_long_as_timeout_says(
    way: DirectSource, tmp_path: Path
) -> None:
    """The check that files are unchanged is no call of the consumer's thread: that would hang with the system."""
    path = written(tmp_path)
    data = H5Dataset(path, {"x": "x"}, page_cache=way.page_cache)
    with engine(way), DataLoader(data, batch_size=BATCH, buffer=way.buffer, timeout=0.3) as loader:
        with injected([fault("look", delay=HANGS)]):
            began = time.monotonic()
            with pytest.raises(ReadError, match=r"did not come in 0\.3 s: .*the file system of .*scan"):
                next(iter(loader))
            assert time.monotonic() - began < HANGS / 2
        batches = [batch["x"].numpy() for batch in loader]
    assert np.array_equal(np.concatenate(batches), truth_of(path))
