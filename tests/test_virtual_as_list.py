"""Virtual datasets and raw files outside are read as the list of what they are made of: counts, errors, words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle
from virtual_kit import Mapping, Taken, view

import solar
from solar import DataLoader, Field, H5Dataset, ReadError, Windows
from solar.cli import main
from solar.io.hdf5.metadata import pack_layouts, unpacked

FILES, ROWS, SHAPE = 6, 8, (16, 3)
VALUES = np.random.default_rng(0).random((FILES * ROWS, *SHAPE)).astype("f4")
STORED: list[dict[str, Any]] = [
    {},
    {"chunks": (1, *SHAPE), "compression": "gzip"},
    {"chunks": (4, *SHAPE), "compression": "lzf"},
    {"chunks": (2, 7, 2)},
]


def sources(folder: Path, **options: Any) -> list[Path]:
    """The same values as files, and in v.h5 as a virtual dataset of them."""
    paths = [folder / f"s{number}.h5" for number in range(FILES)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=VALUES[number * ROWS :][:ROWS], **options)
        settle(path)
    shape = (ROWS, *SHAPE)
    parts = [
        Mapping(Taken(i * ROWS, block=ROWS), path.name, "x", shape, Taken(0, block=ROWS))
        for i, path in enumerate(paths)
    ]
    (folder / "v.h5").unlink(missing_ok=True)
    settle(view(folder / "v.h5", VALUES.shape, parts, name="x"))
    return paths


@pytest.mark.parametrize("buffer", [None, "14KiB", "1MiB"])
@pytest.mark.parametrize("number", range(len(STORED)))
def test_the_same_requests_and_bytes_as_of_the_list(number: int, buffer: str | None, tmp_path: Path) -> None:
    counts = []
    paths = sources(tmp_path, **STORED[number])
    for path in (tmp_path / "v.h5", paths):
        data = H5Dataset(path, "x", page_cache=False)
        with DataLoader(data, 5, sampler=solar.PlanSampler(data, seed=3), buffer=buffer, epochs=2) as loader:
            batches = [[batch.numpy() for batch in loader] for _ in range(2)]
            stats = loader.stats()
        counts.append({key: value for key, value in stats.items() if isinstance(value, int)})
        order = [np.concatenate(epoch) for epoch in batches]
        assert all(sorted(map(bytes, epoch)) == sorted(map(bytes, VALUES)) for epoch in order)
    assert counts[0] == counts[1]
    assert counts[0]["requests"] > 0


def test_windows_reach_from_source_to_source(tmp_path: Path) -> None:
    paths = sources(tmp_path)
    whole, listed = (
        H5Dataset(path, {"x": Field("x", steps=range(3))}, samples=Windows()) for path in (tmp_path / "v.h5", paths)
    )
    assert (len(whole), len(listed)) == (FILES * ROWS - 2, FILES * (ROWS - 2))
    np.testing.assert_array_equal(whole[ROWS - 1]["x"], VALUES[ROWS - 1 : ROWS + 2])


def test_fields_may_be_cut_to_sources_differently(tmp_path: Path) -> None:
    sources(tmp_path)
    with h5py.File(tmp_path / "v.h5", "a") as file:
        file["y"] = np.arange(len(VALUES))
    data = H5Dataset(tmp_path / "v.h5", ("x", "y"))
    values, number = data[20]
    assert number == 20
    np.testing.assert_array_equal(values, VALUES[20])


def test_a_list_of_virtual_datasets_and_plain_ones(tmp_path: Path) -> None:
    paths = sources(tmp_path)
    layout = solar.inspect([tmp_path / "v.h5", paths[0], tmp_path / "v.h5"], "x")
    assert (layout.reader, layout.samples, len(layout.files)) == ("direct", 2 * len(VALUES) + ROWS, 3)
    assert layout.first_of_files.tolist() == [0, len(VALUES), len(VALUES) + ROWS, 2 * len(VALUES) + ROWS]
    wanted = np.concatenate([VALUES, VALUES[:ROWS], VALUES])
    np.testing.assert_array_equal(solar.read([tmp_path / "v.h5", paths[0], tmp_path / "v.h5"], "x"), wanted)
    (come,) = unpacked(pack_layouts([layout]))  # as it goes from rank 0 to the others
    assert (come.digest, come.files) == (layout.digest, layout.files)


def test_what_is_wrong_with_a_source_names_it_and_the_virtual_dataset(tmp_path: Path) -> None:
    paths = sources(tmp_path, **STORED[1])
    layout = solar.inspect(paths[2], "x")
    with paths[2].open("r+b") as file:
        file.seek(int(layout.chunk_offset[3]))
        file.write(bytes(8))
    settle(paths[2])
    said = rf"{paths[2]}: /x \(of virtual storage in {tmp_path}/v\.h5\), sample 19, offset"
    with pytest.raises(solar.SolarError, match=said):
        solar.read(tmp_path / "v.h5", "x", [19])
    sources(tmp_path)
    data = H5Dataset(tmp_path / "v.h5", "x")
    paths[4].unlink()
    with pytest.raises(ReadError, match=re.escape(f"{paths[4]}")):
        list(DataLoader(data, 8))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("cwd", ["", "one"])
@pytest.mark.parametrize("prefix", ["", "{}/one", "{}/gone:{}/two", "${{ORIGIN}}/one"])
def test_sources_are_looked_for_where_libhdf5_looks(
    prefix: str, cwd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, folder in enumerate(("one", "two", "here")):
        (tmp_path / folder).mkdir()
        with h5py.File(tmp_path / folder / "a.h5", "w") as file:
            file["x"] = np.full((4, 2), number, "f4")
    monkeypatch.setenv("HDF5_VDS_PREFIX", prefix.format(tmp_path, tmp_path))
    monkeypatch.chdir(tmp_path / cwd)
    (tmp_path / "link.h5").symlink_to("here/v.h5")
    for path, name in (("v.h5", "a.h5"), ("here/v.h5", "a.h5"), ("w.h5", "/gone/a.h5")):
        view(tmp_path / path, (4, 2), [Mapping(Taken(0, block=4), name, "x", (4, 2), Taken(0, block=4))], fill=9)
    paths = [str(tmp_path / name) for name in ("v.h5", "here/v.h5", "w.h5", "link.h5")]
    program = f"import h5py\nfor path in {paths!r}: print(h5py.File(path)['v'][0, 0])"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    for path, by_h5py in zip(paths, told, strict=True):
        assert solar.read(path, "v")[0, 0] == float(by_h5py), path
        assert solar.inspect(path, "v").reader == "direct"


# --- raw files ----


def raw(folder: Path, sizes: list[tuple[int, int]], rows: int = 12) -> Path:
    """A dataset whose bytes are in raw files of these offsets and sizes, in rows of 8 bytes."""
    values = np.arange(2 * rows, dtype=">i4").reshape(rows, 2)
    external, at = [], 0
    for number, (offset, nbytes) in enumerate(sizes):
        path = folder / f"raw{number}.bin"
        path.write_bytes(bytes(offset) + values.tobytes()[at : at + nbytes] + b"more")
        settle(path)
        external.append((str(path), offset, nbytes))
        at += nbytes
    with h5py.File(folder / "e.h5", "w") as file:
        file.create_dataset("x", (rows, 2), ">i4", external=external)
    settle(folder / "e.h5")
    return folder / "e.h5"


@pytest.mark.parametrize("sizes", [[(0, 96)], [(16, 40), (0, 56)], [(3, 8), (7, 80), (0, 8)], [(8, 960)]])
def test_raw_files_are_read_natively(sizes: list[tuple[int, int]], tmp_path: Path) -> None:
    path = raw(tmp_path, sizes)
    if sizes == [(8, 960)]:
        (tmp_path / "raw0.bin").write_bytes((tmp_path / "raw0.bin").read_bytes() + bytes(900))
    layout = solar.inspect(path, "x")
    assert (layout.reader, layout.storage) == ("direct", "external"), layout.reason
    with h5py.File(path) as file:
        wanted = file["x"][()]
    np.testing.assert_array_equal(solar.read(path, "x"), wanted)
    rows = np.random.default_rng(0).permutation(12)
    np.testing.assert_array_equal(solar.read(path, "x", rows), wanted[rows])
    with DataLoader(H5Dataset(path, "x"), 5) as loader:
        np.testing.assert_array_equal(np.concatenate([batch.numpy() for batch in loader]), wanted)
        (tmp_path / "raw0.bin").write_bytes(b"other")
        with pytest.raises(ReadError, match=r"raw0\.bin: changed since it was inspected"):
            next(iter(loader))


@pytest.mark.parametrize("what", ["within a row", "short", "missing", "prefix"])
def test_raw_files_that_are_left_to_libhdf5(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = raw(tmp_path, [(0, 44), (0, 52)] if what == "within a row" else [(0, 96)])
    if what == "short":
        (tmp_path / "raw0.bin").write_bytes(bytes(range(40)))
    elif what == "missing":
        (tmp_path / "raw0.bin").unlink()
    elif what == "prefix":
        monkeypatch.setenv("HDF5_EXTFILE_PREFIX", "/elsewhere")
    layout = solar.inspect(path, "x")
    why = {"within a row": "ends within a row", "short": "gives zeros", "missing": "no file", "prefix": "is set"}[what]
    assert layout.reader == "h5py"
    assert why in layout.reason
    if what == "missing":
        with pytest.raises(ReadError, match=r"e\.h5: /x: libhdf5 cannot read it: .*raw0\.bin is missing: put it there"):
            solar.read(path, "x")
        return
    with h5py.File(path) as file:
        np.testing.assert_array_equal(solar.read(path, "x"), file["x"][()])


# --- words ----


def test_what_was_found_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sources(tmp_path, **STORED[1])
    paths[5].unlink()
    raw(tmp_path, [(0, 48), (8, 48)])
    assert main(["inspect", str(tmp_path / "v.h5")]) == 0
    told = capsys.readouterr().out
    assert "virtual: 40 samples from 5 files, read natively: " in told
    assert f"{paths[0]}, {paths[1]}, {paths[2]} and 2 more · 8 samples that nothing holds, of the fill value" in told
    assert 'H5Dataset("' in told
    assert main(["inspect", str(tmp_path / "e.h5")]) == 0
    assert "external: 12 samples from 2 files, read natively" in capsys.readouterr().out


def test_its_digest_is_that_of_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources(tmp_path)
    said = []
    for path in (tmp_path / "v.h5", tmp_path / "s*.h5"):
        assert main(["digest", str(path), "x", "--batch-size", "5"]) == 0
        said.append(re.findall(r"[0-9a-f]{32,}", capsys.readouterr().out))
    assert said[0] == said[1]
