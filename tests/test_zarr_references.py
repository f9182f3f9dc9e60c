"""References into HDF5 files, as kerchunk and VirtualiZarr write them: the values are those of h5py, bit for bit."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch
from far_kit import Web, served
from hypothesis import given
from hypothesis import strategies as st
from kit import settle
from references_kit import references_of, written
from serve_kit import serving
from test_zarr import ODD, places_in

import solar
from solar import Crops, DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.cli import main
from solar.errors import LayoutError, ReadError, SolarError

SHAPE = (30, 7, 5)
STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (4, 7, 2)},
    "gzip": {"chunks": (4, 7, 2), "compression": "gzip", "shuffle": True},
    "fletcher32": {"chunks": (4, 3, 5), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "shuffle alone": {"chunks": (5, 7, 5), "shuffle": True},
}
TYPES = ["<f4", ">f8", "<i2", ">u4", "|i1", "<i8"]


def values_of(dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 100, SHAPE).astype(dtype)


def made_file(path: Path, dtype: str = "<f4", seed: int = 0) -> None:
    """A dataset stored in each way, some of which have no rows 8 to 15, and one in groups."""
    values = values_of(dtype, seed)
    with h5py.File(path, "w") as file:
        for name, options in STORED.items():
            dataset = file.create_dataset(name, SHAPE, dtype, fillvalue=3, **options)
            dataset[:8], dataset[16:] = values[:8], values[16:]
        file["entry/data/y"] = np.arange(SHAPE[0])
    settle(path)


def same_bits(ours: Any, theirs: Any) -> bool:
    theirs = theirs.astype(theirs.dtype.newbyteorder("="))
    return ours.dtype.newbyteorder("=") == theirs.dtype and ours.astype(theirs.dtype).tobytes() == theirs.tobytes()


@pytest.fixture
def references(tmp_path: Path) -> str:
    made_file(tmp_path / "scan.h5")
    return written(tmp_path / "refs.json", references_of(tmp_path / "scan.h5", [*STORED, "entry/data/y"]))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with served(tmp_path) as one:
        yield one


# --- the oracles ----


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_those_of_h5py(dtype: str, tmp_path: Path) -> None:
    made_file(tmp_path / "scan.h5", dtype)
    path = written(tmp_path / "refs.json", references_of(tmp_path / "scan.h5", STORED))
    with h5py.File(tmp_path / "scan.h5") as file:
        for name in STORED:
            theirs = file[name][:]
            data = H5Dataset(path, name)
            assert same_bits(solar.read(path, name), theirs)
            assert all(same_bits(data[i], theirs[i]) for i in (0, 9, 29))
            if theirs.dtype.kind == "u":
                continue
            order = torch.randperm(30, generator=torch.Generator().manual_seed(4)).tolist()
            for options in ({}, {"buffer": 0}, {"buffer": "96KiB", "epochs": 2}):
                loader = DataLoader(data, batch_size=7, sampler=order, **options)
                for _ in range(2):
                    assert same_bits(torch.cat(list(loader)).numpy(), theirs[order])


@pytest.mark.parametrize("inline", [0, 100_000])
def test_values_are_those_of_what_kerchunk_writes(inline: int, tmp_path: Path) -> None:
    kerchunk = pytest.importorskip("kerchunk.hdf", reason="kerchunk, which makes references, is not installed")
    path = tmp_path / "scan.h5"
    made_file(path)
    with h5py.File(path, "a") as file:
        del file["fletcher32"]  # which kerchunk does not know
        file.create_dataset("zstd", data=values_of("<f4"), chunks=(3, 7, 5), **hdf5plugin.Zstd())
        file.create_dataset("blosc", data=values_of("<i4"), chunks=(3, 7, 5), **hdf5plugin.Blosc(cname="lz4"))
        file["number"] = 5.5
    settle(path)
    made = kerchunk.SingleHdf5ToZarr(str(path), inline_threshold=inline).translate()
    refs = written(tmp_path / "refs.json", made)
    with h5py.File(path) as file:
        for name in [*(set(STORED) - {"fletcher32"}), "entry/data/y", "zstd", "blosc", "number"]:
            assert same_bits(np.asarray(solar.read(refs, name)), np.asarray(file[name][()])), name
    assert "/blosc" in solar.inspect(refs)


def test_several_files_are_one_array(tmp_path: Path) -> None:
    refs: dict[str, Any] = {}
    for number in range(3):
        made_file(tmp_path / f"{number}.h5", seed=number)
        one = references_of(tmp_path / f"{number}.h5", ["gzip"])["refs"]
        node = json.loads(one["gzip/.zarray"]) | {"shape": (96, 7, 5)}
        refs["gzip/.zarray"] = json.dumps(node)
        for key, value in one.items():
            place = key.removeprefix("gzip/").split(".")
            if place[0].isdigit():
                refs[f"gzip/{int(place[0]) + 8 * number}.{place[1]}.{place[2]}"] = value
    data = H5Dataset(written(tmp_path / "refs.json", {"version": 1, "refs": refs}), "gzip")
    theirs = []
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5") as file:
            theirs.append(file["gzip"][:])
    same = DataLoader(data, batch_size=5, sampler=[70, 0, 31, 95 - 3, 33, 64])
    wanted = [theirs[2][6], theirs[0][0], None, theirs[2][28], theirs[1][1], theirs[2][0]]
    for ours, one in zip(torch.cat(list(same)).numpy(), wanted, strict=True):
        assert one is None or np.array_equal(ours, one)


def test_values_that_stand_in_the_file_itself(tmp_path: Path) -> None:
    node = {"zarr_format": 2, "shape": [6], "chunks": [2], "dtype": "<i4", "order": "C", "compressor": None,
            "filters": None, "fill_value": 9}  # fmt: skip
    (tmp_path / "raw.bin").write_bytes(np.array([50, 51], "<i4").tobytes())
    refs = {
        "x/.zarray": node,
        "x/0": "base64:" + base64.b64encode(np.array([10, 11], "<i4").tobytes()).decode(),
        "x/1": "abcd\u0001\u0002\u0003\u0004",
        "y/.zarray": json.dumps(node),
        "y/2": ["raw.bin"],
        "z/.zarray": node,
        "z/0": ["{{own}}", 0, 8],
        "z/1": ["{{ folder }}/raw.bin", 0, 8],
        "z/2": "abcdefgh",
    }
    templates = {"own": "raw.bin", "folder": "."}
    path = written(tmp_path / "refs.json", {"version": 1, "templates": templates, "refs": refs})
    abcd = int.from_bytes(b"abcd", "little")
    for _ in range(2):
        assert list(H5Dataset(path, "x", cache=tmp_path).read_batch(range(6))) == [10, 11, abcd, 0x04030201, 9, 9]
    kept = [one for one in tmp_path.iterdir() if one.suffix == ".values"]
    assert len(kept) == 1
    data = H5Dataset(path, "x", cache=tmp_path)
    kept[0].unlink()
    kept[0].write_bytes(bytes(24))  # whatever became of it, it is not read
    with pytest.raises(ReadError, match="changed since it was inspected"):
        data[0]
    assert list(H5Dataset(path, "x", cache=tmp_path).read_batch(range(6))) == [10, 11, abcd, 0x04030201, 9, 9]
    assert list(solar.read(path, "y")) == [9, 9, 9, 9, 50, 51]
    assert list(solar.read(path, "z"))[:4] == [50, 51, 50, 51]
    with pytest.raises(LayoutError, match="stand in the reference file itself, and cache=None"):
        H5Dataset(path, "x", cache=None)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(LayoutError, match="give cache= a folder that only you can write to"):
        H5Dataset(path, "x", cache=tmp_path / "open")


# --- what works as with HDF5 ----


def test_what_else_works(references: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "scan.h5") as file:
        values = file["gzip"][:]
    windows = H5Dataset(references, Field("gzip", steps=range(3)), samples=Windows(every=2))
    assert all(np.array_equal(windows[i], values[2 * i : 2 * i + 3]) for i in range(len(windows)))
    assert np.array_equal(H5Dataset(references, "gzip", samples=Crops((4, 4, 4)))[0], values[:4, :4, :4])
    assert np.array_equal(H5Dataset(references, "gzip", where=("entry/data/y", lambda y: y > 20))[0], values[21])
    (tmp_path / "stage").mkdir()
    data = H5Dataset(references, "gzip", stage=tmp_path / "stage", stage_size="64MiB")
    assert np.array_equal(np.stack(list(data)), values)
    loader = DataLoader(H5Dataset(references, "gzip"), batch_size=9, num_workers=2)
    assert np.array_equal(torch.cat(list(loader)).numpy(), values)
    with serving(references, where=tmp_path) as service:
        sampler = PlanSampler(H5Dataset(references, "gzip"), seed=5)
        loader = DataLoader(H5Dataset(references, "gzip"), batch_size=4, sampler=sampler, service=str(service.path))
        assert np.array_equal(torch.cat(list(loader)).numpy(), values[list(sampler)])
    assert main(["inspect", references, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["datasets"]
    assert {one["name"] for one in found} == {*(f"/{name}" for name in STORED), "/entry/data/y"}
    assert {one["reader"] for one in found} == {"direct"}
    assert main(["plan", references, "gzip", "--batch-size", "8", "--memory", "64KiB"]) == 0
    both = H5Dataset([references, references], "gzip")
    assert np.array_equal(both[31], values[1])


def test_a_file_that_was_written_again_is_noticed(references: str, tmp_path: Path) -> None:
    data = H5Dataset(references, "gzip")
    assert len(data[0])
    made_file(tmp_path / "scan.h5", seed=1)
    with pytest.raises(ReadError, match="changed since it was inspected"):
        data[0]


def test_far_references_take_a_request_and_one_for_each_file(web: Web, tmp_path: Path) -> None:
    made_file(tmp_path / "scan.h5")
    own = f"http://127.0.0.1:{web.port}"
    names = ["scan.h5", f"{own}/scan.h5"]
    for url in names:
        written(tmp_path / "refs.json", references_of(tmp_path / "scan.h5", ["gzip"], url))
        log: list[str] = []
        web.fault = lambda one, _, log=log: log.append(f"{one.command} {one.path}")  # type: ignore[misc]
        data = H5Dataset(f"{own}/refs.json", "gzip")
        assert log == ["GET /refs.json", "HEAD /scan.h5"]
        log.clear()
        with h5py.File(tmp_path / "scan.h5") as file:
            with DataLoader(data, 7, sampler=range(30), buffer="1MiB", epochs=1) as loader:
                assert np.array_equal(torch.cat(list(loader)).numpy(), file["gzip"][:])
            assert len([one for one in log if one.startswith("GET")]) == loader.stats()["requests"]
            if url == "scan.h5":
                assert same_bits(solar.read(f"file://{tmp_path}/refs.json", "gzip"), file["gzip"][:])
        time.sleep(2.1)  # what was looked at a moment ago is not asked again
    os.utime(tmp_path / "scan.h5", (10**9, 10**9))
    with pytest.raises(ReadError, match="changed since it was inspected"):
        data[0]


# --- what is refused ----


def altered(path: str, **changes: Any) -> str:
    """The reference file with other references, or without those that are None."""
    found = json.loads(Path(path).read_text())
    for key, value in changes.items():
        if key in ("version", "refs", "gen", "templates"):
            found[key] = value
        else:
            found["refs"][f"chunks/{key.removeprefix('_')}".replace("_", ".")] = value
    return written(Path(path), found)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"version": 0}, "version 1.*write the references again"),
    ({"version": None}, "version 1"),
    ({"refs": []}, "version 1"),
    ({"templates": 3}, "version 1"),
    ({"gen": [{"key": "x"}]}, "generated"),
    ({"_0_0_0": ["{{nothing}}", 0, 224]}, "no template 'nothing'"),
    ({"_0_0_0": ["{{f(x=1)}}", 0, 224]}, "a template that computes"),
    ({"_0_0_0": 3}, "neither text nor"),
    ({"_0_0_0": []}, "neither text nor"),
    ({"_0_0_0": [3]}, "neither text nor"),
    ({"_0_0_0": ["scan.h5", 0]}, "neither text nor"),
    ({"_0_0_0": ["scan.h5", -1, 224]}, "neither text nor"),
    ({"_0_0_0": ["scan.h5", 0.5, 224]}, "neither text nor"),
    ({"_0_0_0": ["scan.h5", True, 224]}, "neither text nor"),
    ({"_0_0_0": ["scan.h5", 2**64, 224]}, "neither text nor"),
    ({"_0_0_0": ["scan.h5", None, None]}, "neither text nor"),
    ({"_0_0_0": ["scan.h5", 2**61, 224]}, "leave.*scan.h5.*another one"),
    ({"_0_0_0": ["scan.h5", 0, 2**61]}, "leave"),
    ({"_0_0_0": ["scan.h5", 0, 223]}, "a chunk has 223 bytes where 224"),
    ({"_0_0_0": ["scan.h5"]}, "bytes where 224"),
    ({"_0_0_0": ["gone.h5", 0, 224]}, "refs.json leads there"),
    ({"_0_0_0": ["", 0, 224]}, "neither text nor"),
    ({"_0_0_0": [".", 0, 224]}, "is not in"),
    ({"_0_0_0": ["pipe", 0, 224]}, "no plain file"),
    ({"_0_0_0": ["folder", 0, 224]}, "no plain file"),
    ({"_0_0_0": ["../secret.bin", 0, 224]}, "is not in.*move the reference file"),
    ({"_0_0_0": ["folder/../../secret.bin", 0, 224]}, "is not in"),
    ({"_0_0_0": ["link", 0, 224]}, "is not in"),
    ({"_0_0_0": ["/etc/passwd", 0, 224]}, "is not in"),
    ({"_0_0_0": ["file:///etc/passwd", 0, 224]}, "is not in"),
    ({"_0_0_0": ["file:///%65tc/passwd", 0, 224]}, "is not in"),
    ({"_0_0_0": ["a\0b", 0, 224]}, "is not in"),
    ({"_0_0_0": ["http://169.254.169.254/latest", 0, 224]}, "only on the server"),
    ({"_0_0_0": ["unversioned+https://example.org/a", 0, 224]}, "may name https://"),
    ({"_0_0_0": ["ftp://example.org/a", 0, 224]}, "ftp:// is not read"),
    ({"_0_0_0": ["https://me:key@example.org/a", 0, 224]}, "a user's name or password"),
    ({"_0_0_0": "base64:!"}, "no text that can be decoded"),
    ({"_0_0_0": "base64:é"}, "no text that can be decoded"),
    ({"_0_0_0": "\ud800"}, "no text that can be decoded"),
    ({"_0_0_0": ""}, "a chunk of no bytes"),
    ({"_0_0_0": "abc"}, "a chunk has 3 bytes where 224"),
    ({"_.zarray": ["scan.h5", 0, 9]}, "metadata lie in another file"),
    ({"_.zarray": "base64:e30="}, "another version"),
]


@pytest.mark.parametrize(("changes", "said"), BAD)
def test_references_that_are_wrong_are_refused(changes: dict[str, Any], said: str, references: str) -> None:
    folder = Path(references).parent
    (folder.parent / f"{folder.name}-secret.bin").write_bytes(bytes(224))
    secret = folder / "inside" / "secret.bin"
    secret.parent.mkdir()
    secret.write_bytes(bytes(224))
    inside = secret.parent / "refs"
    inside.mkdir()
    (inside / "folder").mkdir()
    os.mkfifo(inside / "pipe")
    (inside / "link").symlink_to(secret)
    for name in ("scan.h5", "refs.json"):
        (folder / name).rename(inside / name)
    with pytest.raises((LayoutError, ReadError), match=said) as raised:
        H5Dataset(altered(str(inside / "refs.json"), **changes), "chunks", cache=folder)
    assert "key@" not in str(raised.value)


def test_far_references_lead_to_no_file_of_this_machine(web: Web, tmp_path: Path) -> None:
    made_file(tmp_path / "scan.h5")
    (tmp_path / "below").mkdir()
    for name in (str(tmp_path / "scan.h5"), f"file://{tmp_path}/scan.h5", "../scan.h5"):
        written(tmp_path / "below" / "refs.json", references_of(tmp_path / "scan.h5", ["gzip"], name))
        with pytest.raises(LayoutError, match="from afar nothing leads to files of this machine"):
            H5Dataset(f"http://127.0.0.1:{web.port}/below/refs.json", "gzip")


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "[1]", "nan", '{"version": ' + "9" * 5000 + "}", "{}", '{"version": 1, "refs": null}']
)
def test_json_that_is_none_is_refused(text: str, references: str) -> None:
    Path(references).write_text(text)
    with pytest.raises(LayoutError, match=r"refs\.json"):
        H5Dataset(references, "gzip")
    assert main(["inspect", references]) == 1


def test_references_without_end_are_refused(references: str) -> None:
    with Path(references).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(LayoutError, match="no file of at most"):
        H5Dataset(references, "gzip")
    Path(references).unlink()
    os.mkfifo(references)
    with pytest.raises(LayoutError, match="no file of at most"):
        H5Dataset(references, "gzip")


def test_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "refs.parq").mkdir()
    (tmp_path / "refs.parq" / ".zmetadata").write_text("{}")
    with pytest.raises(LayoutError, match=r"references as Parquet.*write them as JSON"):
        H5Dataset(tmp_path / "refs.parq", "x")


def test_many_files_are_refused(references: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.io.hdf5.zarr_references.MOST_FILES", 1)
    with pytest.raises(LayoutError, match="more than 1 files"):
        H5Dataset(altered(references, _0_0_0=["other.h5", 0, 224]), "chunks")


@given(data=st.data())
def test_whatever_references_say_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    made_file(folder / "scan.h5")
    found = references_of(folder / "scan.h5", ["gzip", "contiguous"])
    *above, last = data.draw(st.sampled_from([place for place in places_in(found) if place != ("refs",)]))
    inner = found
    for key in above:
        inner = inner[key]
    inner[last] = data.draw(ODD | st.sampled_from(["base64:AAAA", "scan.h5", "/", "..", '{"zarr_format": 2}', "\0"]))
    path = written(folder / "refs.json", found)
    begin = time.monotonic()
    for name in ("gzip", "contiguous"):
        try:
            whole = H5Dataset(path, name, cache=folder)
            [whole[i] for i in range(min(100, len(whole)))]
        except SolarError:
            pass
    assert time.monotonic() - begin < 20
