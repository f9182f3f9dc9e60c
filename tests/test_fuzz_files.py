"""Files and arguments that anybody may have made: an error of ours, in one line, or an answer; never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import settle
from test_plugin_library import REVERSE, field, filtered

import solar
from solar import cli
from solar.errors import CodecError, LayoutError, PlanError, SolarError
from solar.filters import FILTER, filter_values
from solar.io.codec import unfinished
from solar.io.codec import verify as audit
from solar.io.codec.codec import Codec
from solar.io.codec.store import compress
from solar.io.hdf5 import chunk_index
from solar.io.system import atomic_file, profile

often = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DEEP = b"[" * 50_000  # an attribute has at most 64 KiB


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to write to, which is also where relative names lead."""
    folder, before = tmp_path_factory.mktemp("hostile"), Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """Bytes of a file, cut, overwritten or mixed up in a few places."""
    raw = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        part = draw(st.one_of(st.binary(max_size=9), st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x01\0\0\0"])))
        match draw(st.integers(0, 3)):
            case 0:
                raw[at : at + len(part)] = part
            case 1:
                raw[at:at] = part
            case 2:
                del raw[at:]
            case _:
                raw[at : at + 8] = raw[draw(st.integers(0, len(raw))) :][:8]
    return bytes(raw)


# --- the command line ----


def run(*arguments: str) -> tuple[int | str | None, str]:
    """The exit code of a command and what it said, or else answered, in what UTF-8 can say, as a terminal has it."""
    out, said = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            code = cli.main(arguments)
            out.flush()
            return code, said.getvalue() or out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        except SystemExit as end:
            return end.code, said.getvalue()


OPTIONS = {
    "inspect": ["--json"],
    "plan": [
        "--samples", "--sample-bytes", "--samples-per-chunk", "--batch-size", "--memory", "--epochs", "--compute",
        "--seed", "--profile", "--latency", "--bandwidth", "--iops", "--decode", "--json", "--plot", "--ranks-per-node",
    ],
    "verify": ["--json", "--threads"],
    "compress": ["--abs", "--rel", "--lossless", "--field", "--coder", "--threads", "--chunk-samples", "--force"],
    "digest": ["--batch-size", "--ranks", "--seed", "--epochs", "--json"],
    "rehearse": ["--batch-size", "--buffer", "--compute", "--exchange", "--seed"],
    "probe": ["--seconds", "--size", "--json"],
}  # fmt: skip
VALUES = [
    "", "0", "1", "-1", "7", "1e3", "1e999", "nan", "inf", "10M", "9" * 30, "1kB", "2ms", "1GB/s", "25%", "x:abs=1e-3",
    "junk.h5", "none.h5", "sound.h5", "x", "/", "//", ".", "..", "a/b", "*.h5", "[", "-", "--", "µs", "\udcff",
    "\x1b[31m", "{0}", "%s",
]  # fmt: skip
words = st.one_of(st.sampled_from(VALUES), st.binary(max_size=6).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(OPTIONS)))
    line = [command, *draw(st.lists(words, max_size=2))]
    for option in draw(st.lists(st.sampled_from(OPTIONS[command]), max_size=4)):
        line += [option, *draw(st.lists(words, max_size=1))]
    return line


@pytest.fixture(scope="module")
def files(place: Path) -> Path:
    """A sound file and one that is none, where command lines find them."""
    with h5py.File(place / "sound.h5", "w") as file:
        file.create_dataset("x", data=np.arange(24.0).reshape(6, 4), chunks=(2, 4), compression="gzip")
        file["g/label"] = np.arange(6)
    (place / "junk.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(range(200)))
    return place


@often
@given(line=command_lines())
def test_any_command_line_ends_in_an_answer_or_in_one_error(files: Path, line: list[str]) -> None:
    if line[0] == "probe" and any(Path(word).exists() for word in line[1:]):
        return  # it would measure for seconds
    code, said = run(*line)
    assert code in (0, 1, 2), (line, code)
    if code == 1 and line[0] != "verify":  # of several files `inspect` answers which of them cannot be read
        unread = line[0] == "inspect" and re.search(r'Cannot be read: |"problem": "[^"]', said)
        assert said.startswith("solar: ") or unread


@pytest.mark.parametrize(
    ("given_as", "says"),
    [
        (["--seed", "-5"], "no seed"),
        (["--seed", "9" * 26], "no seed"),
        (["--ranks", "10T"], "too large"),
        (["--samples-per-chunk", "1000000T"], "too large"),
        (["--batch-size", "2147483648"], "too large"),
    ],
)
def test_numbers_that_no_plan_can_have_are_usage_errors(given_as: list[str], says: str) -> None:
    code, said = run("plan", "--samples", "100", "--sample-bytes", "1k", "--memory", "1MiB", *given_as)
    assert code == 2
    assert says in said


def test_bytes_that_no_storage_has_are_refused() -> None:
    code, said = run("plan", "--samples", "1000", "--sample-bytes", "1000P", "--memory", "1GiB")
    assert code == 1
    assert "are too many" in said


@pytest.fixture(scope="module")
def sound(files: Path) -> dict[str, bytes]:
    """Small files of old and of new structures."""
    made = {}
    for libver in ("earliest", "latest"):
        path = files / f"{libver}.h5"
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("x", data=np.arange(60).reshape(15, 4), chunks=(2, 4), maxshape=(None, 4))
            file["g/label"] = np.arange(15)
            file["g"].attrs["a"] = "b"
        made[libver] = path.read_bytes()
        path.unlink()
    return made


@often
@given(data=st.data(), libver=st.sampled_from(["earliest", "latest"]))
def test_a_damaged_file_is_shown_or_refused(
    files: Path, sound: dict[str, bytes], data: st.DataObject, libver: str
) -> None:
    (files / "damaged.hdf").write_bytes(data.draw(damaged(sound[libver])))
    code, _ = run("inspect", "damaged.hdf")
    assert code in (0, 1)
    with contextlib.suppress(SolarError):
        assert len(solar.read("damaged.hdf", "x")) < 10**6


# --- what we keep beside the data ----


@pytest.fixture(scope="module")
def kept(place: Path) -> Iterator[tuple[str, Path, bytes]]:
    """A file with a chunk table that was kept, the cache's file, and its bytes."""
    path = place / "large.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(400).reshape(100, 4), chunks=(1, 2), compression="gzip")
    settle(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_index, "WORTH_KEEPING", 50)
        solar.inspect(str(path), "x", cache=place / "cache")
        (cache,) = (place / "cache").iterdir()
        yield str(path), cache, cache.read_bytes()


@often
@given(data=st.data())
def test_a_damaged_cache_changes_nothing(kept: tuple[str, Path, bytes], data: st.DataObject) -> None:
    path, cache, sound_bytes = kept
    cache.write_bytes(data.draw(st.one_of(damaged(sound_bytes), st.binary(max_size=200))))
    layout = solar.inspect(path, "x", cache=cache.parent)
    assert layout.digest == solar.inspect(path, "x", cache=None).digest
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    assert [*cache.parent.iterdir()] == [cache]


@often
@given(data=st.data())
def test_a_damaged_profile_is_read_or_refused(place: Path, data: st.DataObject) -> None:
    good = json.dumps({"solar_storage": 1, "latency": 0.001, "bandwidth": 1e9, "iops": 500, "depth": 8}).encode()
    (place / "p.json").write_bytes(data.draw(st.one_of(damaged(good), st.binary(max_size=60))))
    with contextlib.suppress(PlanError):
        assert profile.load(place / "p.json").bandwidth > 0


@pytest.fixture(scope="module")
def journal(place: Path) -> Iterator[tuple[Path, Path, bytes]]:
    """A target, the journal of a run that left it unfinished, and the journal's bytes."""
    target = place / "target.h5"
    writing = unfinished.Unfinished.begin(target, {"first": 0, "options": {}})
    writing.record(bytes(100), 0)
    path = writing.journal
    writing.leave()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    yield target, path, path.read_bytes()


@often
@given(data=st.data())
def test_a_damaged_journal_is_of_use_or_is_none(journal: tuple[Path, Path, bytes], data: st.DataObject) -> None:
    target, path, sound_bytes = journal
    path.write_bytes(data.draw(st.one_of(damaged(sound_bytes), st.just(DEEP), st.binary(max_size=60))))
    for one in unfinished.leftovers(target):
        assert one.path.parent == target.parent
        one.close()


@pytest.mark.parametrize("lines", [b"", b"junk\n", bytes(26)])
def test_a_journal_without_a_whole_line_is_of_use(journal: tuple[Path, Path, bytes], lines: bytes) -> None:
    target, path, sound_bytes = journal
    path.write_bytes(sound_bytes[: sound_bytes.index(b"\n") + 1] + lines)
    (found,) = unfinished.leftovers(target)
    found.close()


def test_a_bound_that_makes_no_sense_is_an_error_of_the_file(place: Path) -> None:
    original, restored = place / "original.h5", place / "restored.h5"
    with h5py.File(original, "w") as file:
        file["x"] = field(4, 50)
    compress(original, restored, "abs=1e-3")
    for said in (DEEP, b"7", b'{"bound": 1' + b"0" * 400 + b', "kind": "abs"}', b'{"bound": "x"}', b"\xff"):
        with h5py.File(restored, "r+") as file:
            file["x"].attrs[audit.BOUND_ATTRIBUTE] = np.bytes_(said)
        with pytest.raises(LayoutError, match="makes no sense"):
            audit.verify(original, restored)


# --- what is no plain file ----


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A FIFO that nobody writes to. Should somebody wait for that, it has an end, and the test fails."""
    path = tmp_path / "fifo.h5"
    os.mkfifo(path)
    freed: list[int] = []
    timer = threading.Timer(60, lambda: freed.append(os.open(path, os.O_RDWR)))
    timer.start()
    yield path
    timer.cancel()
    assert not freed, "somebody has waited for a FIFO"


def test_a_fifo_where_a_file_should_be_is_refused_and_not_waited_for(fifo: Path) -> None:
    with pytest.raises(SolarError, match=r"fifo\.h5: is no plain file"):
        solar.inspect(fifo, "x")
    with pytest.raises(LayoutError, match="is no plain file"):
        compress(fifo, fifo.with_name("out.h5"), "lossless")
    with pytest.raises(PlanError, match="not a plain file"):
        profile.load(fifo)
    for command in (["inspect"], ["verify"], ["digest", "--batch-size", "4"]):
        code, said = run(command[0], str(fifo), *command[1:])
        assert (code, "no plain file" in said) == (1, True), said


def test_a_fifo_in_place_of_a_kept_chunk_table_changes_nothing(
    kept: tuple[str, Path, bytes], fifo: Path, tmp_path: Path
) -> None:
    path, cache, _ = kept
    (tmp_path / "cache").mkdir(mode=0o700)
    os.link(fifo, tmp_path / "cache" / cache.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_index, "store_table", lambda *_: None)
        found = solar.inspect(path, "x", cache=tmp_path / "cache").digest
    assert found == solar.inspect(path, "x", cache=None).digest


def test_fifos_in_place_of_what_an_ended_run_left_are_of_no_use(fifo: Path) -> None:
    target = fifo.with_name("target.h5")
    os.link(fifo, fifo.with_name(".target.h5.solar-00.journal"))
    assert unfinished.leftovers(target) == []
    writing = unfinished.Unfinished.begin(target, {"first": 0, "options": {}})
    writing.record(bytes(100), 0)
    writing.path.unlink()
    os.link(fifo, writing.path)
    writing.leave()
    [found] = unfinished.leftovers(target)
    assert found.take(0) is None
    found.discard()


@pytest.mark.parametrize("kind", ["raw", "virtual"])
def test_values_that_are_to_be_in_a_fifo_are_refused(kind: str, fifo: Path) -> None:
    path = fifo.with_name("names.h5")
    with h5py.File(path, "w") as file:
        if kind == "raw":
            file.create_dataset("x", (8, 4), "f4", external=[(str(fifo), 0, 128)])
        else:
            layout = h5py.VirtualLayout((8, 4), "f4")
            layout[:] = h5py.VirtualSource(fifo.name, "x", (8, 4))
            file.create_virtual_dataset("x", layout)
    with pytest.raises(LayoutError, match=r"its values are to be in .*fifo\.h5, which is no plain file"):
        solar.read(path, "x")


def test_what_killed_writers_left_goes_when_the_next_one_writes(tmp_path: Path) -> None:
    stale, fresh = tmp_path / f"{atomic_file.PREFIX}1", tmp_path / f"{atomic_file.PREFIX}2"
    for path in (stale, fresh):
        path.write_bytes(b"half of it")
    an_age_ago = time.time() - 2 * atomic_file.STALE
    os.utime(stale, (an_age_ago, an_age_ago))
    atomic_file.sweep(tmp_path)
    assert [*tmp_path.iterdir()] == [fresh], "somebody may still write to it"
    with pytest.raises(KeyboardInterrupt), atomic_file.write_file(tmp_path / "made") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == [fresh]
    with atomic_file.write_file(tmp_path / "made") as file:
        file.write(b"all")
    assert (tmp_path / "made").read_bytes() == b"all"
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o600


# --- what the filter's values ask for ----


@pytest.mark.parametrize("told", [None, "f4", "i4"])
def test_a_chunk_of_other_numbers_than_the_data_set_is_refused_and_named(told: str | None, tmp_path: Path) -> None:
    values = () if told is None else tuple(filter_values(Codec("lossless", 0.0), np.dtype(told), (1, 6, 4)))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", (2, 6, 4), "f4", chunks=(1, 6, 4), compression=FILTER, compression_opts=values)
        for place, kind in enumerate(("f4", "i4")):
            made.id.write_direct_chunk((place, 0, 0), Codec("lossless", 0.0).encode(np.ones((1, 6, 4), kind)))
    settle(tmp_path / "a.h5")
    assert (solar.read(tmp_path / "a.h5", "x", slice(0, 1)) == 1).all()
    words = r"a\.h5: /x, sample 1, offset \d+: filter \d+ \(solar\): the chunk holds int32 in a data set of float32"
    with pytest.raises(CodecError, match=words):
        solar.read(tmp_path / "a.h5", "x", [0, 1])
    code, _ = run("verify", str(tmp_path / "a.h5"))
    assert code == 1


def test_the_plug_in_takes_no_memory_on_the_word_of_the_filters_values() -> None:
    values: list[Any] = list(filter_values(Codec("abs", 1e-2), np.dtype("f4"), (40, 50)))
    chunk = filtered(0, tuple(values), field(40, 50).tobytes())
    assert chunk is not None
    assert filtered(REVERSE, tuple(values), chunk) is not None
    values[-2:] = 2**31, 2**31
    before = peak()
    assert filtered(REVERSE, tuple(values), chunk) is None
    assert peak() - before < 1 << 20


def peak() -> int:
    """The most address space that this process has had, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmPeak"))
    return int(line.split()[1]) << 10
