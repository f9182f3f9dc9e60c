"""Virtual datasets and raw files by URL: what lies beside the far file is read as it is here, and nothing else is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from far_kit import Asked, Web, served
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import settle
from virtual_kit import UNLIMITED, Mapping, Taken, view

import solar
from solar import DataLoader, H5Dataset, LayoutError
from solar.io.hdf5 import guarded_reader

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")

SHAPE = (5, 3)  # of a row


def written(path: Path, rows: int, seed: int = 0, **options: Any) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).random((rows, *SHAPE)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, maxshape=(None, *SHAPE), chunks=(1, *SHAPE), **options)
        file["deep/x"] = values
        file["doubles"] = values.astype("f8")
    settle(path)
    return values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sources")
    for number, rows in enumerate((3, 4, 4, 9, 12)):
        written(made / f"s{number}.h5", rows, number, compression="gzip")
    inner = [Mapping(Taken(0, UNLIMITED, 2), "s3.h5", "x", (1, *SHAPE), Taken(0, UNLIMITED))]
    settle(view(made / "inner.h5", (1, *SHAPE), inner, name="x", fill=3))
    return made


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with served(tmp_path) as one:
        yield one


NUMBERS = itertools.count()
starts = st.integers(0, 9)
sources = st.sampled_from(["s0.h5", "./s1.h5", "s3.h5", "s4.h5", "gone.h5", "inner.h5"])
names = st.sampled_from(["x", "/x", "x", "/deep/x", "gone", "doubles"])


@st.composite
def mappings(draw: st.DrawFn) -> Mapping:
    """Fixed ones, ones that grow with their source, and ones whose names are counted."""
    kind, start, rows = draw(st.sampled_from(["fixed", "grows", "counted"])), draw(starts), draw(st.integers(1, 4))
    if kind == "fixed":
        taken = Taken(draw(st.integers(0, 3)), block=rows)
        return Mapping(Taken(start, block=rows), draw(sources), draw(names), (12, *SHAPE), taken)
    stride = rows + draw(st.integers(0, 2))
    to = Taken(start, UNLIMITED, stride, rows)
    if kind == "counted":
        return Mapping(to, "s%b.h5", draw(names), (rows, *SHAPE), Taken(0, block=rows))
    first, step = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    return Mapping(to, draw(sources), draw(names), (1, *SHAPE), Taken(first, UNLIMITED, step))


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(mappings(), min_size=1, max_size=3))
def test_a_url_gives_what_the_path_gives(parts: list[Mapping], folder: Path) -> None:
    path = folder / f"any{next(NUMBERS)}.h5"  # what was there a moment ago is not asked for again
    view(path, (24, *SHAPE), parts, fill=7.5)
    url = f"file://{path}"
    try:
        here = solar.inspect(path, "v")
    except solar.SolarError:  # libhdf5 cannot say how many rows there are
        return
    if here.reader == "h5py" or not here.samples:
        with pytest.raises(LayoutError, match="only libhdf5 could read it"):
            solar.inspect(url, "v")
        return
    there = solar.inspect(url, "v")
    assert (there.shape, there.reader) == (here.shape, "direct")
    np.testing.assert_array_equal(solar.read(url, "v"), solar.read(path, "v"))


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("there", [0, 1, 3, 70])
def test_sources_with_counted_names(there: int, tmp_path: Path, web: Web) -> None:
    values = [written(tmp_path / f"run-{number}.h5", 4, number) for number in range(there)]
    to, taken = Taken(0, UNLIMITED, 4, 4), Taken(0, block=4)
    settle(view(tmp_path / "v.h5", (4, *SHAPE), [Mapping(to, "run-%b.h5", "x", (4, *SHAPE), taken)], name="x"))
    if there:
        data = H5Dataset(web.url("v.h5"), {"x": "x"})
        np.testing.assert_array_equal([data[at]["x"] for at in range(len(data))], np.concatenate(values))
    else:
        with pytest.raises(LayoutError, match="it has no values"):
            H5Dataset(web.url("v.h5"), {"x": "x"})


def test_it_costs_a_look_and_a_piece_of_each_source(tmp_path: Path, web: Web) -> None:
    """What libhdf5 asks of the far file is there already."""
    parts = []
    for number in range(20):
        written(tmp_path / f"s{number}.h5", 4, number)
        parts.append(Mapping(Taken(4 * number, block=4), f"s{number}.h5", "x", (4, *SHAPE), Taken(0, block=4)))
    settle(view(tmp_path / "v.h5", (80, *SHAPE), parts, name="x"))
    data = H5Dataset(web.url("v.h5"), {"x": "x"})
    assert len(web.sent) == 2 * 21
    opened = len(web.data())
    with DataLoader(data, 8, shuffle=True, buffer=0) as loader:
        assert len(np.concatenate([batch["x"] for batch in loader])) == 80
        counts = loader.stats()
    assert counts["requests"] == len(web.data()) - opened  # by the server's own log


def test_the_list_of_the_sources_has_the_same_requests(tmp_path: Path, web: Web) -> None:
    parts, paths = [], []
    for number in range(5):
        paths.append(tmp_path / f"s{number}.h5")
        written(paths[-1], 6, number)
        parts.append(Mapping(Taken(6 * number, block=6), f"s{number}.h5", "x", (6, *SHAPE), Taken(0, block=6)))
    settle(view(tmp_path / "v.h5", (30, *SHAPE), parts, name="x"))
    found = []
    for urls in (web.url("v.h5"), [web.url(path) for path in paths]):
        data = H5Dataset(urls, "x")
        begun = len(web.data())
        with DataLoader(data, 8, sampler=solar.PlanSampler(data, seed=3), buffer=0) as loader:
            batches = [batch.numpy().tobytes() for batch in loader]
        found.append((batches, sorted((one.name, one.first, one.nbytes) for one in web.data()[begun:])))
    assert found[0] == found[1]


# --- where nothing leads ----


def one_of(path: Path, file: str) -> Path:
    path.unlink(missing_ok=True)
    parts = [Mapping(Taken(0, block=4), file, "x", (4, *SHAPE), Taken(0, block=4))]
    return settle(view(path, (8, *SHAPE), parts, name="x", fill=1)) or path


@pytest.mark.parametrize(
    "file", ["../s.h5", "private/../../s.h5", "http://127.0.0.1:1/s.h5", "file:///etc/s.h5", "s#.h5"]
)
def test_sources_are_looked_for_beside_it_alone(file: str, tmp_path: Path, web: Web) -> None:
    one_of(tmp_path / "v.h5", file)
    with pytest.raises(LayoutError, match="does not lie beside it, and from afar nothing leads elsewhere"):
        H5Dataset(web.url("v.h5"), {"x": "x"})
    assert {one.name for one in web.sent} == {"v.h5"}


def test_an_absolute_name_means_the_one_beside_it_or_none(tmp_path: Path, web: Web) -> None:
    """libhdf5 looks there, too; that it is nowhere is no reason for made-up values."""
    private = tmp_path / "private"
    private.mkdir()
    written(private / "s.h5", 4)
    one_of(tmp_path / "v.h5", str(private / "s.h5"))
    with pytest.raises(LayoutError, match="does not lie beside it, and from afar nothing leads there"):
        H5Dataset(web.url("v.h5"), {"x": "x"})
    values = written(tmp_path / "s.h5", 4, seed=3)
    data = H5Dataset(web.url("v.h5"), {"x": "x"})
    np.testing.assert_array_equal([data[at]["x"] for at in range(4)], values)


def test_a_source_that_nobody_may_read_is_not_missing(tmp_path: Path, web: Web) -> None:
    """A missing one has the fill value: of one that is refused that would be wrong data."""
    one_of(tmp_path / "v.h5", "s.h5")
    data = H5Dataset(web.url("v.h5"), {"x": "x"})
    assert {float(data[at]["x"].max()) for at in range(8)} == {1.0}

    def refuses(asked: Asked, before: int) -> bool:
        if "s.h5" not in asked.path:
            return False
        asked.status(403)
        return True

    web.fault = refuses
    with pytest.raises(LayoutError, match=r"s\.h5: .*look at the credentials"):
        H5Dataset(web.url("v.h5"), {"x": "x"})


def test_what_only_libhdf5_follows_is_refused(tmp_path: Path, web: Web) -> None:
    written(tmp_path / "s.h5", 8)
    whole = Mapping(Taken(0, block=8), "s.h5", "doubles", (8, *SHAPE), Taken(0, block=8))
    settle(view(tmp_path / "v.h5", (8, *SHAPE), [whole], name="x"))
    with pytest.raises(LayoutError, match=r"has another type: libhdf5 converts it.*copy the file to a local disk"):
        H5Dataset(web.url("v.h5"), {"x": "x"})


def test_a_file_that_makes_libhdf5_ask_without_an_end(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_of(tmp_path / "v.h5", "s.h5")
    monkeypatch.setattr(guarded_reader, "MOST_WANTED", 3)
    with pytest.raises(solar.ReadError, match=r"v\.h5: libhdf5 wants more of its metadata than there should be"):
        H5Dataset(web.url("v.h5"), {"x": "x"})
    monkeypatch.undo()
    assert len(H5Dataset(web.url("v.h5"), {"x": "x"})) == 8  # by another process


def test_a_far_file_replaced_while_libhdf5_reads_it(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    one_of(tmp_path / "v.h5", "s.h5")
    (tmp_path / "v.h5").write_bytes((tmp_path / "v.h5").read_bytes() + bytes(3 << 20))  # not in one piece
    read = guarded_reader._native.far_read

    def replaced(url: str, was: Any, offset: int, nbytes: int) -> bytes:
        return read(url, (was[0], was[1], was[2] + 2, was[3] + 2), offset, nbytes)

    monkeypatch.setattr(guarded_reader._native, "far_read", replaced)
    with pytest.raises(solar.ReadError, match="changed since it was inspected"):
        solar.inspect(web.url("v.h5"), "x")


# --- raw files ----


def raw(folder: Path, names: list[str]) -> np.ndarray[Any, Any]:
    values = np.arange(len(names) * 20, dtype=">i4").reshape(-1, 2)
    with h5py.File(folder / "r.h5", "w") as file:
        file.create_dataset("x", values.shape, values.dtype, external=[(name, 8, 80) for name in names])
    for number, name in enumerate(names):
        if "/" not in name:
            (folder / name).write_bytes(bytes(8) + values[10 * number :][:10].tobytes())
    settle(folder / "r.h5")
    return values


@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_raw_files_beside_it(buffer: Any, tmp_path: Path, web: Web) -> None:
    values = raw(tmp_path, ["one.raw", "two.raw", "three.raw"])
    data = H5Dataset(web.url("r.h5"), {"x": "x"})
    with DataLoader(data, 4, shuffle=False, buffer=buffer) as loader:
        np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in loader]), values)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/etc/passwd", "does not lie beside it, and from afar nothing leads elsewhere"),
        ("../one.raw", "does not lie beside it, and from afar nothing leads elsewhere"),
        ("gone.raw", "there is no such object"),
        ("short.raw", "is shorter than its share"),
    ],
)
def test_raw_files_that_are_not_read(name: str, said: str, tmp_path: Path, web: Web) -> None:
    raw(tmp_path, ["one.raw", name])
    (tmp_path / "gone.raw").unlink(missing_ok=True)
    (tmp_path / "short.raw").write_bytes(bytes(50))
    with pytest.raises(LayoutError, match=said):
        H5Dataset(web.url("r.h5"), {"x": "x"})
