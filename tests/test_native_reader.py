"""The native reader through its Python boundary: real HDF5 files, compared with h5py."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import BACKENDS, forgotten, resident
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, ReadError


def source_of(path: Path, name: str, bypass: float = 0.0) -> _native.Source:
    """A Source made with h5py's own low-level calls."""
    with h5py.File(path) as file:
        dataset = file[name]
        assert isinstance(dataset, h5py.Dataset)
        grid: list[tuple[int, int, int, int]] = []
        filters: list[tuple[int, int, list[int]]] = []
        if dataset.chunks is None:
            chunk = (0, *dataset.shape[1:])
            if (offset := dataset.id.get_offset()) is not None:
                grid.append((0, offset, dataset.id.get_storage_size(), 0))
        else:
            chunk = dataset.chunks
            counts = [-(-n // c) for n, c in zip(dataset.shape, chunk, strict=True)]
            for i in range(dataset.id.get_num_chunks()):
                info = dataset.id.get_chunk_info(i)
                at = [o // c for o, c in zip(info.chunk_offset, chunk, strict=True)]
                grid.append((int(np.ravel_multi_index(at, counts)), info.byte_offset, info.size, info.filter_mask))
            grid.sort()
            plist = dataset.id.get_create_plist()
            for i in range(plist.get_nfilters()):
                code, flags, values, _ = plist.get_filter(i)
                filters.append((code, flags, list(values)))
        fill = np.asarray(dataset.fillvalue, dataset.dtype).tobytes()
        columns = list(zip(*grid, strict=True)) or [(), (), (), ()]
        return _native.Source(
            name,
            [str(path)],
            np.array([path.stat().st_size], np.uint64),
            np.array([path.stat().st_mtime_ns], np.int64),
            dataset.dtype.itemsize,
            dataset.dtype.itemsize if dataset.dtype.byteorder == ">" else 0,
            list(dataset.shape[1:]),
            [(list(chunk), filters, fill)],
            np.zeros(1, np.int32),
            np.zeros(1, np.int32),
            np.array([0, dataset.shape[0]], np.int64),
            np.array([0, len(grid)], np.int64),
            np.array(columns[0], np.uint64),
            np.array(columns[1], np.uint64),
            np.array(columns[2], np.uint64),
            np.array(columns[3], np.uint32),
            bypass,
        )


def read(reader: _native.Reader, source: _native.Source, rows: NDArray[np.int64], out: NDArray[Any]) -> NDArray[Any]:
    assert reader.wait(reader.submit(source, rows, out), 60)
    return out


def contiguous(path: Path, rows: int = 20) -> tuple[_native.Source, NDArray[np.float32]]:
    values = np.random.default_rng(1).random((rows, 5, 7), np.float32)
    with h5py.File(path, "w") as file:
        file["x"] = values
    return source_of(path, "x"), values


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "storage",
    [
        {},
        {"chunks": (1, 13, 11)},
        {"chunks": (16, 13, 11)},
        {"chunks": (7, 4, 5)},
        {"chunks": True, "maxshape": (None, 13, 11)},
        {"chunks": (1, 13, 11), "compression": "gzip"},
        {"chunks": (8, 13, 11), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (5, 6, 4), "compression": "lzf"},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1"])
def test_rows_are_those_of_h5py(tmp_path: Path, storage: dict[str, Any], dtype: str, backend: str) -> None:
    random = np.random.default_rng(3)
    values = random.integers(0, 200, (50, 13, 11)).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, **storage)
    source = source_of(tmp_path / "a.h5", "x")
    assert source.row_nbytes == values[0].nbytes
    reader = _native.Reader(2, 16, 512, backend)
    assert reader.backend == backend
    for count in (0, 1, 64):
        rows = random.integers(0, 50, count)
        out = read(reader, source, rows, np.empty((count, 13, 11), values.dtype.newbyteorder("=")))
        np.testing.assert_array_equal(out, values[rows])


@pytest.mark.parametrize("storage", [{}, {"chunks": (4, 3)}, {"chunks": (4, 3), "compression": "gzip"}], ids=str)
def test_what_was_never_written_is_the_fill_value(tmp_path: Path, storage: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", (10, 5), ">i4", fillvalue=-7, **storage)
        if storage:
            dataset[0:4, 0:3] = 1
        wanted = dataset[:]
    reader = _native.Reader(1, 1, 0, "auto")
    out = read(reader, source_of(tmp_path / "a.h5", "x"), np.arange(10), np.empty((10, 5), np.int32))
    np.testing.assert_array_equal(out, wanted)


def test_any_writable_contiguous_memory_will_do_and_no_other(tmp_path: Path) -> None:
    source, values = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(1, 1, 0, "auto")
    rows = np.array([3, 1])
    raw = bytearray(values[rows].nbytes)
    assert reader.wait(reader.submit(source, rows, raw), 60)
    assert bytes(raw) == values[rows].tobytes()
    record = np.empty(2, np.dtype([("a", ">f4", (5, 7))]))
    assert read(reader, source, rows, record).tobytes() == values[rows].tobytes()
    with pytest.raises(ValueError, match="contiguous"):
        reader.submit(source, rows, np.empty((2, 5, 14), np.float32)[:, :, ::2])
    read_only = np.empty((2, 5, 7), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        reader.submit(source, rows, read_only)
    with pytest.raises(ValueError, match="do not fit"):
        reader.submit(source, rows, np.empty((3, 5, 7), np.float32))
    with pytest.raises(TypeError):
        reader.submit(source, rows.astype(np.int32), np.empty((2, 5, 7), np.float32))
    with pytest.raises(IndexError, match="row 20 of 20"):
        reader.submit(source, np.array([0, 20]), np.empty((2, 5, 7), np.float32))


def test_the_output_of_a_ticket_lives_until_it_was_waited_for(tmp_path: Path) -> None:
    source, _ = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(1, 1, 0, "auto")
    out = np.empty((20, 5, 7), np.float32)
    base = sys.getrefcount(out)
    ticket = reader.submit(source, np.arange(20), out)
    assert sys.getrefcount(out) > base
    assert reader.wait(ticket, 60)
    assert sys.getrefcount(out) == base
    reader.submit(source, np.arange(20), np.empty((20, 5, 7), np.float32))
    del reader, source
    gc.collect()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_read_past_the_page_cache_are_the_same(tmp_path: Path, backend: str) -> None:
    values = np.random.default_rng(4).random((40, 33, 65), np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["plain"] = values
        file.create_dataset("chunks", data=values, chunks=(3, 33, 20))
        file.create_dataset("packed", data=values, chunks=(2, 33, 65), compression="gzip")
    sources = [source_of(tmp_path / "a.h5", name, bypass=1.0) for name in ("plain", "chunks", "packed")]
    refused = forgotten(tmp_path / "a.h5")
    reader = _native.Reader(2, 16, 512, backend)
    rows = np.array([39, 0, 17, 18, 39, 5])
    for source in sources:
        out = read(reader, source, rows, np.empty((6, 33, 65), np.float32))
        np.testing.assert_array_equal(out, values[rows])
    stats = reader.stats()
    assert stats["requests"] > 0
    assert stats["bypassed"] == (0 if refused else stats["requests"])
    assert refused or resident(tmp_path / "a.h5") == 0


BESIDE = """
import sys
from pathlib import Path
import numpy as np
from test_native_reader import source_of
from solar import _native

def held():
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) << 10

source = source_of(Path(sys.argv[1]), "x", bypass=1.0)
reader = _native.Reader(2, 64, 0, sys.argv[2], int(sys.argv[3]))
out = np.full((48, 1_000_001), 1, "u1")
before = held()
for _ in range(2):
    assert reader.wait(reader.submit(source, np.random.default_rng(0).permutation(48), out), 60)
print(held() - before, reader.stats()["bypassed"])
"""


@pytest.mark.slow(every=2)
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="ASan keeps what was freed for a while")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_on_its_way_past_the_page_cache_keeps_to_the_memory_it_is_given(tmp_path: Path, backend: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.random.default_rng(4).integers(0, 256, (48, 1_000_001), "u1")  # none begins a page
    found = []
    for scratch in (2 << 20, 64 << 20):
        if refused := forgotten(tmp_path / "a.h5"):
            pytest.skip(refused)
        command = [sys.executable, "-c", BESIDE, str(tmp_path / "a.h5"), backend, str(scratch)]
        said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
        nbytes, bypassed = map(int, said.split())
        assert bypassed > 0
        found.append(nbytes)
    assert found[0] < 2 * (2 << 20) + (3 << 20), found  # and the reader's own lists
    if backend == "uring":
        assert found[1] > 16 << 20, "so many are in flight where they may"


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_go_to_their_positions_and_others_share_the_output(tmp_path: Path, backend: str) -> None:
    source, values = contiguous(tmp_path / "a.h5")
    other, others = contiguous(tmp_path / "b.h5", 7)
    reader = _native.Reader(2, 8, 0, backend)
    out = np.full((6, 5, 7), -1, np.float32)
    first = reader.submit(source, np.array([4, 19, 5]), out, np.array([5, 0, 2]))
    second = reader.submit(other, np.array([6, 6]), out, positions=np.array([1, 3]))
    assert reader.wait(first, 60) and reader.wait(second, 60)
    np.testing.assert_array_equal(out[[5, 0, 2, 1, 3]], [*values[[4, 19, 5]], *others[[6, 6]]])
    assert (out[4] == -1).all()


def test_positions_are_one_place_for_each_row(tmp_path: Path) -> None:
    source, _ = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(1, 1, 0, "auto")
    out = np.empty((4, 5, 7), np.float32)
    rows = np.array([3, 1])
    for wrong, said in (
        ([0, 4], "position 4 in an output of 4 rows"),
        ([-1, 0], "position -1 in"),
        ([2, 2], "position 2 is given twice"),
        ([2], "1 positions for 2 rows"),
    ):
        with pytest.raises(ValueError, match=said):
            reader.submit(source, rows, out, np.array(wrong))
    with pytest.raises(ValueError, match="do not fit"):
        reader.submit(source, rows, np.empty(71, np.float32), np.array([0, 1]))
    with pytest.raises(TypeError):
        reader.submit(source, rows, out, np.array([0, 1], np.int32))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tickets_counts_are_its_own_and_add_up_to_the_readers(tmp_path: Path, backend: str) -> None:
    values = np.random.default_rng(4).random((40, 33, 65), np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["plain"] = values
        file.create_dataset("packed", data=values, chunks=(2, 33, 65), compression="gzip")
    reader = _native.Reader(2, 16, 0, backend)
    plain, packed = (source_of(tmp_path / "a.h5", name) for name in ("plain", "packed"))
    out = [np.empty((3, 33, 65), np.float32) for _ in range(2)]
    first = reader.submit(plain, np.array([3, 9, 30]), out[0])
    second = reader.submit(packed, np.array([3, 8, 9]), out[1])
    of_packed = dict(zip(_native.count_names(), reader.wait(second, 60) or (), strict=True))
    of_plain = dict(zip(_native.count_names(), reader.wait(first, 60) or (), strict=True))
    assert (of_plain["rows"], of_plain["requests"], of_plain["bytes_read"]) == (3, 3, 3 * values[0].nbytes)
    assert of_plain["chunks_decoded"] == of_plain["decode_ns"] == 0 < of_plain["read_ns"]
    assert (of_packed["rows"], of_packed["chunks_decoded"], of_packed["bytes_decoded"]) == (3, 2, 4 * values[0].nbytes)
    assert {name: of_plain[name] + of_packed[name] for name in _native.count_names()} == reader.stats()


def test_a_ticket_that_is_done_or_unknown_waits_for_nothing(tmp_path: Path) -> None:
    source, _ = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(1, 1, 0, "auto")
    ticket = reader.submit(source, np.array([0]), np.empty((1, 5, 7), np.float32))
    assert reader.wait(ticket, 60)
    assert reader.waiting_for(ticket) == reader.waiting_for(12345) == ""
    assert reader.close(60)


def test_a_foreign_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    source, _ = contiguous(tmp_path / "a.h5")
    with (tmp_path / "a.h5").open("ab") as file:
        file.write(b"more")
    reader = _native.Reader(1, 1, 0, "auto")
    with pytest.raises(
        ReadError, match=r"a\.h5: changed since it was inspected: size \d+ -> \d+; make the H5Dataset again"
    ):
        read(reader, source, np.array([0]), np.empty((1, 5, 7), np.float32))


def test_a_missing_file_has_its_errno(tmp_path: Path) -> None:
    source, _ = contiguous(tmp_path / "a.h5")
    (tmp_path / "a.h5").unlink()
    reader = _native.Reader(1, 1, 0, "auto")
    with pytest.raises(ReadError, match=r"a\.h5") as caught:
        read(reader, source, np.array([0]), np.empty((1, 5, 7), np.float32))
    assert caught.value.errno == 2


def test_an_extent_beyond_its_file_is_a_layout_error(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"0" * 100)

    def make(offset: int) -> _native.Source:
        zero, one = np.zeros(1, np.int32), np.array([0, 1], np.int64)
        files = (np.array([100], np.uint64), np.array([path.stat().st_mtime_ns], np.int64))
        parts = (zero, zero, np.array([0, 10], np.int64), one)
        extent = (np.array([offset], np.uint64), np.array([80], np.uint64))
        chunks = (np.empty(0, np.uint64), *extent, np.zeros(1, np.uint32))
        return _native.Source("x", [str(path)], *files, 8, 0, [], [([0], [], b"")], *parts, *chunks)

    assert make(20).row_nbytes == 8
    for offset in (21, 2**64 - 1, 2**63):
        with pytest.raises(LayoutError, match=r"a\.h5"):
            make(offset)


def test_waiting_ends(tmp_path: Path) -> None:
    source, _ = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(1, 1, 0, "auto")
    with pytest.raises(ValueError, match="ticket"):
        reader.wait(5, 1)
    with pytest.raises(ValueError, match="number"):
        reader.wait(5, float("nan"))
    reader.close()
    reader.close()
    with pytest.raises(ReadError, match="closed"):
        reader.wait(1, 1)
    with pytest.raises(ReadError, match="closed"):
        reader.submit(source, np.array([0]), np.empty((1, 5, 7), np.float32))
    with pytest.raises(ValueError, match="backend"):
        _native.Reader(1, 1, 0, "smoke signals")
    with pytest.raises(ValueError, match="threads"):
        _native.Reader(0, 1, 0, "auto")


def in_child(reader: _native.Reader, source: _native.Source) -> None:
    out = np.empty((1, 5, 7), np.float32)
    try:
        reader.submit(source, np.array([0]), out)
    except ReadError as error:
        assert "make a new Reader" in str(error)
    else:
        raise AssertionError("no error")
    fresh = _native.Reader(2, 4, 0, "auto")
    read(fresh, source, np.array([0]), out)
    batch = _native.take(3 << 20)
    batch[:] = 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_its_own_reader(tmp_path: Path) -> None:
    source, values = contiguous(tmp_path / "a.h5")
    reader = _native.Reader(2, 4, 0, "auto")
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(reader, source))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    out = read(reader, source, np.array([7]), np.empty((1, 5, 7), np.float32))
    np.testing.assert_array_equal(out[0], values[7])


def test_many_python_threads_share_a_reader(tmp_path: Path) -> None:
    source, values = contiguous(tmp_path / "a.h5", 500)
    reader = _native.Reader(2, 8, 0, "auto")
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(50):
            rows = random.integers(0, 500, 30)
            out = read(reader, source, rows, np.empty((30, 5, 7), np.float32))
            if not np.array_equal(out, values[rows]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert reader.stats()["rows"] == 4 * 50 * 30


def test_batch_memory_comes_back_when_its_last_view_is_gone() -> None:
    before = _native.pool_stats()["in_use"]
    batch = _native.take(5 << 20)
    assert batch.shape == (5 << 20,) and batch.dtype == np.uint8 and batch.flags.writeable
    address = batch.ctypes.data
    view = batch.view(np.float32)[10:]
    del batch
    assert _native.pool_stats()["in_use"] >= before + (5 << 20)
    view[:] = 1
    del view
    assert _native.pool_stats()["in_use"] == before
    assert _native.take(5 << 20).ctypes.data == address
    with pytest.raises(MemoryError):
        _native.take(1 << 60)


def test_the_process_ends_quietly_with_work_in_flight(tmp_path: Path) -> None:
    contiguous(tmp_path / "a.h5")
    code = f"""
import sys; sys.path[:0] = {sys.path!r}
import importlib.util, pathlib, numpy as np
from solar import _native
spec = importlib.util.spec_from_file_location("t", {__file__!r})
t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)
source = t.source_of(pathlib.Path({str(tmp_path / "a.h5")!r}), "x")
reader = _native.Reader(2, 8, 0, "auto")
keep = [_native.take(20 * 140) for _ in range(50)]
for out in keep: reader.submit(source, np.arange(20), out)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
