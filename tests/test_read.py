"""solar.read gives what h5py gives, in the order asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import same

import solar
from solar import ReadError, inspect
from solar.io.reading.reader import Rows

UNREADABLE = {"null", "reference"}
INDICES = {
    "an integer": 3,
    "a negative integer": -1,
    "a slice": slice(2, 9, 3),
    "a backward slice": slice(None, None, -2),
    "a list out of order, with repeats": [4, 1, 1, -10, 9],
    "an array": np.array([7, 0], np.uint8),
    "booleans": np.arange(10) % 3 == 0,
    "nothing": [],
}


def names(path: str) -> list[str]:
    with h5py.File(path) as file:
        return [name for name in file if name not in UNREADABLE]


def test_every_kind_of_dataset_is_read_whole_as_h5py_reads_it(zoo: str) -> None:
    with h5py.File(zoo) as file:
        for name in names(zoo):
            assert same(solar.read(zoo, name), file[name][()]), name


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_samples_are_chosen_as_numpy_chooses_along_axis_0(zoo: str, index: Any) -> None:
    with h5py.File(zoo) as file:
        for name in names(zoo):
            if file[name].shape[:1] == (10,):
                whole = file[name][...]
                theirs = (
                    whole[np.array(index, int) if index == [] else index] if isinstance(index, list) else whole[index]
                )
                assert same(solar.read(zoo, name, index), theirs), name


def test_large_and_odd_chunks_agree_with_h5py_for_random_selections(make: Callable[..., str]) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for trial in range(20):
        shape = tuple(rng.integers(1, 40, rng.integers(1, 4)).tolist())
        chunks = tuple(int(rng.integers(1, length + 1)) for length in shape)
        data = rng.integers(0, 255, shape).astype(rng.choice(["u1", ">i2", "<f4", ">f8"]))
        options = [
            {},
            {"chunks": chunks},
            {"chunks": chunks, "compression": "gzip", "shuffle": True, "fletcher32": True},
        ]
        path = make(f"{trial}.h5", x=(data, options[trial % 3]))
        index = rng.integers(-shape[0], shape[0], 25)
        assert same(solar.read(path, "x"), data), (seed, trial)
        assert same(solar.read(path, "x", index), data[index]), (seed, trial)


def test_values_are_written_to_out(zoo: str) -> None:
    theirs = h5py.File(zoo)["contiguous"][...]
    out = np.empty((10, 6, 5), "f4")
    assert solar.read(zoo, "contiguous", out=out) is out
    assert np.array_equal(out, theirs)
    strided = np.empty((4, 6, 5), "f4")[::2]
    assert solar.read(zoo, "contiguous", [1, 0], out=strided) is strided
    assert np.array_equal(strided, theirs[[1, 0]])


def test_an_out_that_does_not_fit_is_refused_before_reading(zoo: str) -> None:
    for out in (np.empty((10, 6), "f4"), np.empty((10, 6, 5), "f8"), [0]):
        with pytest.raises(ValueError, match=r"out must be an array of float32 of shape \(10, 6, 5\)"):
            solar.read(zoo, "contiguous", out=out)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [10, -11, [0, 10], np.zeros(9, bool)])
def test_what_is_out_of_range_is_an_index_error(zoo: str, index: Any) -> None:
    with pytest.raises(IndexError):
        solar.read(zoo, "contiguous", index)


@pytest.mark.parametrize("index", [1.5, "1", (1, 2), [[1], [2]]])
def test_what_is_no_index_is_a_type_error(zoo: str, index: Any) -> None:
    with pytest.raises(TypeError):
        solar.read(zoo, "contiguous", index)


def test_what_has_no_values_is_a_layout_error_that_says_why(zoo: str) -> None:
    with pytest.raises(solar.LayoutError, match=r"zoo\.h5.*null"):
        solar.read(zoo, "null")
    with pytest.raises(solar.LayoutError, match=r"zoo\.h5.*reference"):
        solar.read(zoo, "reference")


def test_several_files_are_one_array(make: Callable[..., str], tmp_path: Path) -> None:
    parts = [np.arange(12).reshape(4, 3), np.arange(6).reshape(2, 3) + 100, np.arange(9).reshape(3, 3) - 50]
    options = [{}, {"chunks": (1, 2)}, {"chunks": (2, 3), "compression": "gzip"}]
    for i, (part, option) in enumerate(zip(parts, options, strict=True)):
        make(f"{i}.h5", x=(part, option))
    whole = np.concatenate(parts)
    assert np.array_equal(solar.read(tmp_path, "x"), whole)
    order = np.random.default_rng(0).permutation(len(whole))
    assert np.array_equal(solar.read(tmp_path, "x", order), whole[order])


def test_a_file_that_changed_after_inspection_is_an_error(make: Callable[..., str]) -> None:
    from solar.io.reading.reader import Rows

    path = make("a.h5", direct=np.arange(10), slow=["text"] * 10)
    opened = [Rows(solar.inspect(path, name)) for name in ("direct", "slow")]
    with Path(path).open("ab") as file:
        file.write(b"more")
    for rows in opened:
        with pytest.raises(solar.SolarError, match=r"a\.h5.*changed"):
            rows.start(np.arange(3)).wait()


def test_a_damaged_checksum_is_a_codec_error(make: Callable[..., str]) -> None:
    path = make("a.h5", x=(np.arange(100, dtype="i4"), {"chunks": (100,), "fletcher32": True}))
    offset = int(solar.inspect(path, "x").chunk_offset[0])
    with Path(path).open("r+b") as file:
        file.seek(offset + 8)
        file.write(b"\xff")
    with pytest.raises(solar.CodecError, match=r"a\.h5"):
        solar.read(path, "x")


def test_more_than_the_memory_of_the_machine_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1 << 30, 1 << 20), "f8", chunks=(1, 1 << 10))
    with pytest.raises(solar.ReadError, match="read fewer at a time"):
        solar.read(path, "x")
    assert not solar.read(path, "x", [12345]).any()


def test_a_file_cut_short_under_a_warm_mapping_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.h5"
    data = np.arange(4000 * 64, dtype="i4").reshape(4000, 64)
    with h5py.File(path, "w") as file:
        file["x"] = data
    rows = Rows(inspect(str(path), "x"))
    wanted = np.arange(0, 4000, 7)
    assert np.array_equal(rows.start(wanted).wait(), data[wanted])
    with path.open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(ReadError, match=r"cut\.h5.*(ends|changed)"):
        rows.start(wanted).wait()


@pytest.mark.parametrize("name", ["contiguous", "deflate", "big_endian", "struct", "text", "virtual", "array"])
@pytest.mark.parametrize("native_order", [False, True])
def test_rows_of_any_reader_go_to_their_positions(zoo: str, name: str, native_order: bool) -> None:
    with h5py.File(zoo) as file:
        values = file[name][...]
    rows = Rows(inspect(zoo, name), native_order)
    out = rows.room(8)
    out[...] = np.zeros((), out.dtype)
    first = rows.start(np.array([9, 0, 9]), out, np.array([7, 1, 0]))
    second = rows.start(np.array([4, 5]), out, np.array([3, 2]))
    assert first.wait() is out and second.wait() is out
    np.testing.assert_array_equal(out[[7, 1, 0, 3, 2]], values[[9, 0, 9, 4, 5]])
    np.testing.assert_array_equal(out[[4, 5, 6]], np.zeros(3, out.dtype) if out.ndim == 1 else np.zeros_like(out[:3]))
    assert (first.nbytes, second.nbytes) == (out.nbytes // 8 * 3, out.nbytes // 8 * 2)
    assert first.counts["rows"] == 3 and second.counts["rows"] == 2


@pytest.mark.parametrize("name", ["contiguous", "text", "empty_rows"])
def test_positions_are_checked_whoever_reads(zoo: str, name: str) -> None:
    rows = Rows(inspect(zoo, name))
    whole = rows.start(np.arange(10)).wait()
    out = np.empty((4, *whole.shape[1:]), whole.dtype)
    with pytest.raises(ValueError, match="1 positions for 2 rows"):
        rows.start(np.array([1, 2]), out, np.array([0]))
    with pytest.raises(ValueError, match="positions are places in `out`"):
        rows.start(np.array([1, 2]), positions=np.array([0, 1]))
    with pytest.raises(ValueError, match="out must be an array"):
        rows.start(np.array([1, 2]), out)
    if out.nbytes:
        with pytest.raises(ValueError, match="contiguous"):
            rows.start(np.array([1, 2]), np.empty((4, *whole.shape[1:]), whole.dtype)[::2])
        for wrong, said in (([0, 4], "position 4 in an output of 4 rows"), ([-1, 0], "position -1"), ([3, 3], "twice")):
            with pytest.raises(ValueError, match=said):
                rows.start(np.array([1, 2]), out, np.array(wrong))


def test_what_reading_took_is_counted_of_each_request(make: Callable[..., str]) -> None:
    data = np.arange(400, dtype="f4").reshape(10, 40)
    path = make("a.h5", packed=(data, {"chunks": (5, 40), "compression": "gzip"}), text=["a"] * 10)
    pending = Rows(inspect(path, "packed")).start(np.array([1, 2, 9]))
    pending.wait()
    assert pending.nbytes == 3 * 160
    assert (pending.counts["rows"], pending.counts["chunks_decoded"], pending.counts["bytes_decoded"]) == (3, 2, 1600)
    slowly = Rows(inspect(path, "text")).start(np.array([1, 2]))
    slowly.wait()
    assert slowly.counts == {"rows": 2}
    nothing = Rows(inspect(path, "packed")).start(np.empty(0, np.int64))
    assert len(nothing.wait()) == nothing.nbytes == nothing.counts["rows"] == 0
