"""Our own reading of HDF5 metadata, against h5py's: names, shapes, storage, filters, addresses; and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5f, h5p, h5s, h5t
from kit import SHARED

import solar
from solar import _native
from solar.errors import LayoutError, ReadError, SolarError
from solar.io.hdf5.datatype import decode

UNDEFINED = 2**64 - 1


def fill(file: h5py.File) -> None:
    """One dataset of each storage, index and kind of message, in flat, deep and crowded groups."""
    values = np.arange(100, dtype="i4").reshape(10, 10)
    for name, kwargs in {
        "single": {"chunks": (10, 10)},
        "fixed": {"chunks": (3, 10)},
        "extensible": {"chunks": (3, 10), "maxshape": (None, 10)},
        "btree": {"chunks": (3, 4), "maxshape": (None, None)},
    }.items():
        file.create_dataset(name, data=values, **kwargs)
        file.create_dataset(f"{name}_gzip", data=values, compression="gzip", shuffle=True, **kwargs)
    file["contiguous"] = values.astype(">f8")
    file["scalar"] = np.float32(3)
    file["null"] = h5py.Empty("f4")
    file.create_dataset("empty", shape=(0, 5), dtype="i2")
    file.create_dataset("unwritten", shape=(4,), dtype=">f8", fillvalue=2.5)
    plist = h5p.create(h5p.DATASET_CREATE)  # create_dataset has no fill_time before h5py 3.12
    plist.set_fill_time(h5d.FILL_TIME_NEVER)
    plist.set_fill_value(np.array(7, "i4"))
    plist.set_chunk((5,))
    h5d.create(file.id, b"never", h5t.STD_I32LE, h5s.create_simple((10,)), plist)
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_layout(h5d.COMPACT)
    compact = h5d.create(file.id, b"compact", h5t.STD_I16BE, h5s.create_simple((7,)), plist)
    compact.write(h5s.ALL, h5s.ALL, np.arange(7, dtype="i2"))
    file["type"] = np.dtype([("a", "i4"), ("b", ">f8", (2, 3))])
    file.create_dataset("committed", (4,), dtype=file["type"])
    crowded = file.create_group("crowded")
    for i in range(100):
        crowded[f"d{i:03d}{'x' * (i % 40)}"] = i
    attributes = file.create_group("attributes").create_dataset("a", data=np.arange(3))
    for i in range(40):
        attributes.attrs[f"attribute {i}"] = np.arange(i)
    deep: Any = file
    for i in range(30):
        deep = deep.create_group(f"deep{i}")
    deep["leaf"] = np.arange(5)
    deep["up"] = file["crowded"]  # a circle, once `crowded` has the way down
    crowded["down"] = deep
    file["été"] = 1
    file["soft"] = h5py.SoftLink("/attributes/a")
    file["relative"] = h5py.SoftLink("crowded/down/leaf")
    file["broken"] = h5py.SoftLink("/nothing")
    file["loop"] = h5py.SoftLink("/loop")
    file["outside"] = h5py.ExternalLink("other.h5", "/y")


def datasets_of(file: h5py.File) -> dict[str, h5py.Dataset]:
    found: dict[str, h5py.Dataset] = {}
    file.visititems(lambda name, thing: found.update({"/" + name: thing}) if isinstance(thing, h5py.Dataset) else None)
    return found


def filters_of(dataset: h5py.Dataset) -> list[tuple[int, int, list[int]]]:
    plist = dataset.id.get_create_plist()
    filters = (plist.get_filter(i) for i in range(plist.get_nfilters()))
    return [(number, flags, list(values)) for number, flags, values, _ in filters]


def compare(found: _native.Dataset, dataset: h5py.Dataset, raw: bytes) -> None:
    assert (found["problem"], found["elsewhere"]) == ("", "")
    dtype, reason = decode(found["datatype"])
    assert dtype == dataset.dtype
    assert (None if found["null_space"] else tuple(found["shape"])) == dataset.shape
    assert (tuple(found["chunk"]) or None) == dataset.chunks
    assert found["filters"] == filters_of(dataset)
    layout = {"compact": h5d.COMPACT, "contiguous": h5d.CONTIGUOUS, "chunked": h5d.CHUNKED}[found["storage"]]
    assert layout == dataset.id.get_create_plist().get_layout()
    if dataset.shape is None:
        return
    maxshape = found["maxshape"] or found["shape"]
    assert tuple(None if n == UNDEFINED else n for n in maxshape) == dataset.maxshape
    if found["address"] != UNDEFINED and not reason:
        stored = raw[found["address"] : found["address"] + found["nbytes"]]
        values = np.frombuffer(stored, dtype.base).reshape((*dataset.shape, *dtype.shape))
        np.testing.assert_array_equal(values, dataset[()])


@pytest.mark.parametrize("track_order", [False, True])
@pytest.mark.parametrize("userblock", [0, 1024])
@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "latest"])
def test_files_of_all_versions_are_read_as_h5py_reads_them(
    tmp_path: Path, libver: str, userblock: int, track_order: bool
) -> None:
    path = tmp_path / "all.h5"
    bounds: Any = (libver, "latest") if libver != "latest" else libver
    with h5py.File(path, "w", libver=bounds, userblock_size=userblock, track_order=track_order) as file:
        fill(file)
    found = _native.read_metadata(str(path))
    raw = path.read_bytes()
    with h5py.File(path) as file:
        expected = datasets_of(file)
        assert [dataset["name"] for dataset in found["datasets"]] == list(expected)
        for dataset in found["datasets"]:
            compare(dataset, expected[dataset["name"]], raw)
    assert [problem.split()[0] for problem in found["problems"]] == ["/broken", "/loop", "/outside"]


def test_narrow_addresses_are_read(tmp_path: Path) -> None:
    path = tmp_path / "narrow.h5"
    plist = h5p.create(h5p.FILE_CREATE)
    plist.set_sizes(4, 4)
    with h5py.File(h5f.create(os.fsencode(path), h5f.ACC_TRUNC, plist)) as file:
        file["x"] = np.arange(12.0).reshape(3, 4)
        file.create_dataset("y", data=np.arange(100), chunks=(7,))
    found = {dataset["name"]: dataset for dataset in _native.read_metadata(str(path))["datasets"]}
    with h5py.File(path) as file:
        for name, dataset in found.items():
            compare(dataset, file[name], path.read_bytes())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        fill(file)
    return tmp_path / "file.h5"


@pytest.mark.parametrize("name", ["soft", "/relative", "crowded/down/leaf", "/crowded/down/up/d001x", "./contiguous//"])
def test_a_name_may_be_a_path_through_links(path: Path, name: str) -> None:
    (found,) = _native.read_metadata(str(path), name)["datasets"]
    with h5py.File(path) as file:
        compare(found, file[name.strip("/")], path.read_bytes())


@pytest.mark.parametrize(
    ("name", "message"),
    [("contigous", "did you mean contiguous"), ("crowded", "group"), ("loop", "too many links"), ("broken", "nothing")],
)
def test_a_name_that_is_no_dataset_is_refused_in_words(path: Path, name: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        _native.read_metadata(str(path), name)


def test_what_only_libhdf5_can_read_is_said(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "far.h5", "w", libver="latest") as file:
        layout = h5py.VirtualLayout((4,), "i4")
        layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", (4,), "i4", external=[("raw.bin", 0, 16)])
        file["link"] = h5py.ExternalLink("other.h5", "/x")
    found = {dataset["name"]: dataset for dataset in _native.read_metadata(str(tmp_path / "far.h5"))["datasets"]}
    assert {name: dataset["storage"] for name, dataset in found.items()} == {
        "/external": "external",
        "/virtual": "virtual",
    }
    assert all(dataset["elsewhere"] for dataset in found.values())
    with pytest.raises(LayoutError, match=r"no file other\.h5.* the link /link in .*far\.h5 leads to other\.h5:/x"):
        _native.read_metadata(str(tmp_path / "far.h5"), "link")


def test_many_files_are_read_in_order_and_the_first_bad_one_is_the_error(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i}.h5") for i in range(20)]
    for i, each in enumerate(paths):
        with h5py.File(each, "w") as file:
            file["x"] = np.zeros(i)
    found = _native.read_metadata_of_many(paths, "x", 4)
    assert [one["datasets"][0]["shape"] for one in found] == [[i] for i in range(20)]
    Path(paths[7]).write_bytes(b"no HDF5")
    Path(paths[12]).unlink()
    with pytest.raises(LayoutError, match=r"7\.h5"):
        _native.read_metadata_of_many(paths, "x", 4)
    with pytest.raises(ReadError, match=r"12\.h5"):
        _native.read_metadata_of_many(paths[8:], "x", 4)


def test_a_truncated_file_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LayoutError, match="truncated"):
        _native.read_metadata(str(path))


def test_random_damage_is_an_error_or_a_description_and_nothing_else(path: Path) -> None:
    rng = np.random.default_rng(11)
    sound = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(sound[: rng.integers(1, len(sound)) if rng.random() < 0.1 else None])
        for _ in range(rng.integers(1, 5)):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            for dataset in _native.read_metadata(str(path))["datasets"]:
                assert dataset["address"] == UNDEFINED or dataset["address"] + dataset["nbytes"] <= len(damaged)
        except SolarError:
            pass


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for folder in ("hdf5-odd", "hdf5-corrupt"):
        lines = SHARED / folder / "expected.jsonl"
        for line in lines.read_text().splitlines() if lines.exists() else ():
            expected = json.loads(line)
            yield f"{folder}/{expected['file']}", expected


ODD = list(manifests())


@pytest.mark.skipif(not ODD, reason="the shared collection of odd HDF5 files is not here")
@pytest.mark.parametrize(("file", "expected"), ODD, ids=[file for file, _ in ODD])
def test_other_peoples_files_are_read_as_h5py_reads_them(file: str, expected: dict[str, Any]) -> None:
    try:
        found = {dataset["name"]: dataset for dataset in _native.read_metadata(str(SHARED / file))["datasets"]}
    except SolarError:
        assert expected["status"] != "ok"
        return
    assert expected["status"] != "unreadable"
    for name, wanted in expected["dsets"].items():
        if "shape" not in wanted:
            assert name not in found or not is_direct(found[name]), wanted["error"]
        else:
            check_odd(found[name], wanted)


def is_direct(found: _native.Dataset) -> bool:
    try:
        return not (found["problem"] or found["elsewhere"] or decode(found["datatype"])[1])
    except LayoutError:
        return False


def check_odd(found: _native.Dataset, wanted: dict[str, Any]) -> None:
    if wanted.get("sha256") or "error" not in wanted:
        assert not found["problem"]
    if found["storage"] != "virtual":  # the shape of a virtual dataset follows its sources
        assert found["shape"] == (wanted["shape"] or [])
    assert wanted.get("layout", found["storage"]) == found["storage"] or found["storage"] == "external"
    assert wanted.get("chunk", found["chunk"]) == found["chunk"]
    assert wanted.get("index", found["index"]).replace("-", "_") == found["index"]
    if wanted.get("dtype") and wanted.get("sha256"):
        dtype, _ = decode(found["datatype"])
        assert wanted["dtype"] in (str(dtype)[:200], dtype.str)


def test_names_and_paths_need_not_be_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xff.h5")
    with h5py.File(path, "w") as file:
        file[b"caf\xff"] = np.arange(6.0).reshape(3, 2)
        file.create_dataset(b"chunked\xff", data=np.arange(6), chunks=(2,))
        strings = file.create_dataset(b"texts\xff", (3,), h5py.string_dtype())
        strings[...] = ["a", "b", "c"]
    assert set(solar.inspect(path)) == {"/caf\udcff", "/chunked\udcff", "/texts\udcff"}
    assert solar.read(path, "caf\udcff", [2, 0]).tolist() == [[4, 5], [0, 1]]
    assert solar.read(path, "chunked\udcff", slice(1, 4)).tolist() == [1, 2, 3]
    assert solar.read(path, "texts\udcff", slice(1, 3)).tolist() == [b"b", b"c"]
    assert len(_native.read_metadata_of_many([path, path], "caf\udcff", 2)) == 2
    with pytest.raises(LayoutError, match="nothing\udcff"):
        _native.read_metadata(path, "nothing\udcff")


def test_a_chunk_table_by_address_is_the_one_by_name(path: Path) -> None:
    found = {dataset["name"]: dataset for dataset in _native.read_metadata(str(path))["datasets"]}
    address = found["/fixed"]["header_address"]
    by_name, by_address = (_native.chunk_table(str(path), "/fixed", *at) for at in ((), (address,)))
    assert [column.tolist() for column in by_name] == [column.tolist() for column in by_address]


def test_an_address_that_is_no_dataset_is_refused(path: Path) -> None:
    for address in (0, 7, 96, path.stat().st_size - 1, path.stat().st_size, 2**63, 2**64 - 2):
        with pytest.raises(LayoutError, match="/x"):
            _native.chunk_table(str(path), "/x", address)
