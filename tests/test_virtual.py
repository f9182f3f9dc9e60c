"""Virtual datasets whose rows are those of others: native reads give what h5py gives, as the list of sources would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kit import settle
from virtual_kit import UNLIMITED, Mapping, Taken, view

import solar
from solar import DataLoader, H5Dataset
from solar.io.hdf5 import guarded_reader

SHAPE = (5, 3)  # of a row
STORED: dict[str, dict[str, Any]] = {
    "plain": {},
    "frames": {"chunks": (1, 5, 3), "compression": "gzip"},
    "blocks": {"chunks": (4, 5, 3), "compression": "lzf", "shuffle": True},
    "tiles": {"chunks": (2, 3, 2)},
    "sparse": {"chunks": (2, 5, 3), "compression": "gzip", "fillvalue": -5},
}


def written(path: Path, rows: int = 12, seed: int = 0) -> Path:
    """A source: the same values, stored in all ways; of the sparse one only some rows."""
    values = np.random.default_rng(seed).random((rows, *SHAPE)).astype("f4")
    with h5py.File(path, "w") as file:
        for name, options in STORED.items():
            made = file.create_dataset(name, values.shape, "f4", **options)
            made[: rows // 2 if name == "sparse" else rows] = values[: rows // 2 if name == "sparse" else rows]
        file["doubles"] = values.astype("f8")
        file["frame"] = file["deep/frame"] = values[0]
        file.create_dataset("frame_tiles", data=values[0], chunks=(2, 2), compression="gzip")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sources")
    for number in range(3):
        written(made / f"s{number}.h5", (24, 24, 12)[number], seed=number)
    view(
        made / "inner.h5", (20, *SHAPE), [row_for_row("s0.h5", "plain"), row_for_row("s1.h5", "blocks", 14, 6)], fill=3
    )
    for path in made.iterdir():
        settle(path)
    return made


def row_for_row(file: str, name: str, to: int = 0, rows: int = 12, first: int = 0) -> Mapping:
    return Mapping(Taken(to, block=rows), file, name, (24, *SHAPE), Taken(first, block=rows))


def agrees(path: Path, reader: str | None = None, name: str = "v") -> solar.Layout:
    """Its Layout, after a look whether all reads of it give what h5py gives."""
    with h5py.File(path) as file:
        wanted = file[name][()]
    layout = solar.inspect(path, name)
    assert reader is None or layout.reader == reader, layout.reason
    assert (layout.shape, layout.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(solar.read(path, name), wanted)
    rows = np.random.default_rng(0).integers(0, len(wanted), 2 * len(wanted))
    np.testing.assert_array_equal(solar.read(path, name, rows), wanted[rows])
    if layout.nbytes:
        for buffer in (None, "1MiB"):
            with DataLoader(H5Dataset(path, name), 3, shuffle=True, buffer=buffer) as loader:
                come = np.concatenate([batch.numpy() for _ in range(2) for batch in loader])
            assert sorted(map(bytes, come)) == sorted(map(bytes, [*wanted, *wanted]))
    return layout


# --- any mapping ----

takes = st.builds(Taken, st.integers(0, 5), st.integers(1, 3), st.integers(4, 6), st.integers(1, 4))
files = st.sampled_from(["s0.h5", "./s1.h5", "s2.h5", "gone.h5"])
names = st.sampled_from([*STORED, "/blocks", "plain", "frames", "gone", "doubles"])


@st.composite
def mappings(draw: st.DrawFn) -> Mapping:
    taken = draw(takes)
    rows = taken.count * taken.block
    start = draw(st.integers(0, 27))
    to = draw(st.sampled_from([Taken(start, block=rows), Taken(start, rows, draw(st.integers(1, 3))), taken]))
    if draw(st.integers(0, 4)) == 0:
        taken = Taken(draw(st.integers(0, 3)), block=rows)
        return Mapping(to, "inner.h5", "v", (20, *SHAPE), taken)
    return Mapping(to, draw(files), draw(names), (24, *SHAPE), taken)


def rows_of(taken: Taken) -> set[int]:
    return {taken.start + turn * taken.stride + k for turn in range(taken.count) for k in range(taken.block)}


def expected(parts: list[Mapping], fill: float, folder: Path) -> Any:
    """The slow, obvious way. None if a source is smaller than what was mapped of it."""
    values = np.full((64, *SHAPE), fill, "f4")
    for one in parts:
        if one.file == "gone.h5" or one.name == "gone":
            continue
        with h5py.File(folder / one.file) as file:
            source = file[one.name][()] if one.file != "inner.h5" else None
        if source is None:
            with h5py.File(folder / "s0.h5") as first, h5py.File(folder / "s1.h5") as second:
                source = np.full((20, *SHAPE), 3, "f4")
                source[:12], source[14:] = first["plain"][:12], second["blocks"][:6]
        taken = sorted(rows_of(one.taken))
        if taken[-1] >= len(source):
            return None
        values[sorted(rows_of(one.to))] = source[taken]
    return values


@settings(max_examples=60)
@given(parts=st.lists(mappings(), max_size=5), fill=st.sampled_from([0.0, 7.5]))
def test_any_mapping_gives_what_h5py_gives(parts: list[Mapping], fill: float, folder: Path) -> None:
    path, covered = folder / "any.h5", set[int]()
    parts = [one for one in parts if not covered & rows_of(one.to) and not covered.update(rows_of(one.to))]
    path.unlink(missing_ok=True)
    view(path, (64, *SHAPE), parts, fill=fill)
    wanted, by_h5py = expected(parts, fill, folder), np.empty((64, *SHAPE), "f4")
    layout = solar.inspect(path, "v")
    if wanted is None:  # libhdf5 2.0 reads what lies behind the source, or refuses
        assert layout.reader == "h5py"
        return
    try:  # in another process, for libhdf5 2.0 crashes on some virtual datasets of virtual ones
        guarded_reader.read_into(str(path), "/v", None, by_h5py)
    except solar.ReadError:
        assume(layout.reader == "direct")
    else:
        np.testing.assert_array_equal(by_h5py, wanted)
    np.testing.assert_array_equal(solar.read(path, "v"), wanted)
    rows = np.random.default_rng(0).permutation(64)
    np.testing.assert_array_equal(solar.read(path, "v", rows), wanted[rows])
    natively = all(one.name not in ("doubles", "blocks", "/blocks", "tiles", "sparse", "v") for one in parts)
    assert layout.reader == "direct" or not natively, layout.reason


# --- what is read natively, and what is not ----


def stacked(file: str, name: str, to: int) -> Mapping:
    """A source of one rank less: all of it is a row."""
    return Mapping(Taken(to), file, name, SHAPE, Taken(0, block=SHAPE[0]))


def grid(file: str, name: str, to: int, first: int, rows: int) -> Mapping:
    """Rows of which each is four rows of a source."""
    return Mapping(Taken(to, block=rows), file, name, (24, *SHAPE), Taken(first, block=4 * rows))


NATIVE: dict[str, tuple[tuple[int, ...], list[Mapping]]] = {
    "one after another": ((48, *SHAPE), [row_for_row(f"s{i}.h5", "frames", 24 * i, 24) for i in range(2)]),
    "cut to pieces": ((24, *SHAPE), [row_for_row("s0.h5", "frames", i, 1, 23 - i) for i in range(24)]),
    "gaps": ((40, *SHAPE), [row_for_row("s0.h5", "plain", 3), row_for_row("s1.h5", "blocks", 20, 6, 8)]),
    "files that are missing": ((24, *SHAPE), [row_for_row("gone.h5", "x"), row_for_row("s0.h5", "tiles", 12)]),
    "datasets that are missing": ((24, *SHAPE), [row_for_row("s0.h5", "gone"), row_for_row("s0.h5", "/deep/gone", 12)]),
    "rows that were never written": ((24, *SHAPE), [row_for_row("s0.h5", "sparse", 0, 24)]),
    "virtual ones": ((30, *SHAPE), [Mapping(Taken(5, block=20), "inner.h5", "v", (20, *SHAPE), Taken(0, block=20))]),
    "rows of a file each": ((3, *SHAPE), [stacked(f"s{i}.h5", "frame", i) for i in range(3)]),
    "chunked rows of a file each": ((3, *SHAPE), [stacked(f"s{i}.h5", "frame_tiles", i) for i in range(3)]),
    "a grid": ((6, 4, *SHAPE), [grid("s0.h5", "frames", 0, 0, 4), grid("s1.h5", "blocks", 4, 8, 2)]),
    "a grid of what has no chunks": ((5, 4, *SHAPE), [grid("s0.h5", "plain", 1, 4, 4)]),
}


@pytest.mark.parametrize("what", NATIVE)
def test_whole_rows_are_read_natively(what: str, folder: Path, tmp_path: Path) -> None:
    shape, parts = NATIVE[what]
    parts = [one._replace(file=f"{folder}/{one.file}") for one in parts]
    layout = agrees(view(tmp_path / "v.h5", shape, parts, fill=2.5), "direct")
    assert layout.files == (str(tmp_path / "v.h5"),)
    assert layout.storage == "virtual"


def test_it_is_one_part_of_each_source_as_in_a_list(folder: Path, tmp_path: Path) -> None:
    parts = [row_for_row(f"{folder}/s0.h5", "plain", at, 6, at) for at in (0, 6, 12, 18)]
    assert agrees(view(tmp_path / "v.h5", (24, *SHAPE), parts), "direct").part_first.tolist() == [0, 24]


LEFT: dict[str, tuple[str, list[Mapping]]] = {
    "another type": ("has another type: libhdf5 converts it", [row_for_row("s0.h5", "doubles")]),
    "inside a chunk": ("its rows begin inside a chunk of", [row_for_row("s0.h5", "blocks", 0, 12, 3)]),
    "smaller": ("smaller than what was mapped", [row_for_row("s2.h5", "frames", 0, 24)]),
    "%": ("has a % in its name", [row_for_row("%%.h5", "x")]),
}
BAD = {
    "a folder": ("folder.h5", row_for_row("folder.h5", "x")),
    "no HDF5": ("text.h5", row_for_row("text.h5", "x")),
    "a group": ("s0.h5: deep", row_for_row("s0.h5", "deep")),
    "no group": ("s0.h5: gone/x", row_for_row("s0.h5", "gone/x")),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_is_left_to_libhdf5_says_why(what: str, folder: Path) -> None:
    path = folder / "left.h5"
    path.unlink(missing_ok=True)
    why, parts = LEFT[what]
    view(path, (24, *SHAPE), parts, fill=4)
    layout = solar.inspect(path, "v") if what == "smaller" else agrees(path, "h5py")
    assert layout.reason.startswith("it is a virtual dataset, and ")
    assert why in layout.reason


@pytest.mark.parametrize("what", BAD)
def test_a_source_that_libhdf5_cannot_read_is_named(what: str, folder: Path) -> None:
    (folder / "folder.h5").mkdir(exist_ok=True)
    (folder / "text.h5").write_text("no HDF5" * 1000)
    path = folder / "bad.h5"
    path.unlink(missing_ok=True)
    source, part = BAD[what]
    view(path, (24, *SHAPE), [row_for_row("s1.h5", "plain", 12), part])
    assert solar.inspect(path, "v").reader == "h5py"
    told = rf"(?s)bad\.h5: /v: libhdf5 cannot .* Of its source .*{source}.* Mend it"
    with pytest.raises(solar.SolarError, match=told):
        solar.read(path, "v")


def test_circles_end(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        view(
            tmp_path / f"{one}.h5",
            (12, *SHAPE),
            [Mapping(Taken(0, block=12), f"{other}.h5", "v", (12, *SHAPE), Taken(0, block=12))],
        )
    assert "virtual, too, more than 8 times over" in solar.inspect(tmp_path / "a.h5", "v").reason
    with pytest.raises(solar.SolarError, match=r"a\.h5: /v: its sources are virtual, too, more than 8 times over"):
        solar.read(tmp_path / "a.h5", "v")


@pytest.mark.parametrize("rows", [2**50, 2**60, 2**62])
def test_no_number_of_rows_is_too_large_to_be_told(rows: int, folder: Path) -> None:
    path = folder / "large.h5"
    path.unlink(missing_ok=True)
    view(path, (rows, *SHAPE), [row_for_row("s0.h5", "plain", rows - 24, 24)], fill=2)
    layout = solar.inspect(path, "v")
    assert (layout.samples, layout.reader) == (rows, "direct" if rows == 2**50 else "h5py")
    with h5py.File(path) as file:
        np.testing.assert_array_equal(solar.read(path, "v", [rows - 1, 5]), file["v"][[5, rows - 1]][::-1])


def test_tiles_and_conversions_are_left_to_libhdf5(folder: Path) -> None:
    path = folder / "tiles.h5"
    layout = h5py.VirtualLayout((24, 10, 3), "f4")
    for number in range(2):
        layout[:, 5 * number : 5 * number + 5] = h5py.VirtualSource(f"s{number}.h5", "plain", (24, *SHAPE))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("v", layout)
    assert "its rows are made of several sources, side by side" in agrees(path, "h5py").reason


# --- names that are counted, and sources that grow ----


@pytest.mark.parametrize("there", [0, 1, 3])
def test_sources_with_counted_names(there: int, tmp_path: Path) -> None:
    for number in range(there):
        written(tmp_path / f"run-{number}.h5", 4, number)
    to, taken = Taken(0, UNLIMITED, 4, 4), Taken(0, block=4)
    view(tmp_path / "v.h5", (4, *SHAPE), [Mapping(to, "run-%b.h5", "frames", (4, *SHAPE), taken)], fill=1)
    layout = agrees(tmp_path / "v.h5", "direct") if there else solar.inspect(tmp_path / "v.h5", "v")
    assert layout.samples == 4 * there


@pytest.mark.parametrize("lengths", [(9, 9), (9, 4), (3, 8)])
def test_sources_that_grow(lengths: tuple[int, int], tmp_path: Path) -> None:
    for number, rows in enumerate(lengths):
        with h5py.File(tmp_path / f"s{number}.h5", "w") as file:
            values = np.random.default_rng(number).random((rows, *SHAPE)).astype("f4")
            file.create_dataset("x", data=values, maxshape=(None, *SHAPE), chunks=(1, *SHAPE))
    parts = [
        Mapping(Taken(number, UNLIMITED, 2), f"s{number}.h5", "x", (1, *SHAPE), Taken(0, UNLIMITED))
        for number in range(2)
    ]
    view(tmp_path / "v.h5", (2, *SHAPE), parts, fill=6)
    agrees(tmp_path / "v.h5", "direct")
