"""Zarr stores by URL: the values are those of the folder, and a server's log says how many requests they take."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from far_kit import Asked, Web, served
from serve_kit import serving

import solar
from solar import Crops, DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.cli import main
from solar.errors import LayoutError, ReadError, SolarError
from solar.io.remote import fetch

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
zarr = pytest.importorskip("zarr", reason="zarr-python, the oracle, is not installed")

ROWS = 40
WAYS: dict[str, dict[str, Any]] = {
    "3, a chunk in an object": {"chunks": (3, 4, 5)},
    "3, shards": {"chunks": (3, 4, 5), "shards": (6, 8, 5)},
    "3, another separator": {"chunks": (3, 9, 5), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "2": {"chunks": (3, 4, 5), "zarr_format": 2},
    "2, in folders": {"chunks": (3, 4, 5), "zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "web").mkdir()
    with served(tmp_path / "web") as one:
        yield one


def store_in(folder: Path, way: str, *, consolidated: bool = False, name: str = "scan.zarr") -> np.ndarray[Any, Any]:
    """Makes a store of "in/x", of which rows 12 to 17 are not written, of "y", and of a number "z"."""
    options = dict(WAYS[way])
    path, version = str(folder / name), options.pop("zarr_format", 3)
    group = zarr.open_group(path, mode="w", zarr_format=version)
    values = np.random.default_rng(1).integers(0, 1000, (ROWS, 9, 11)).astype("i4")
    values[12:18] = 7
    x = group.require_group("in").create_array("x", shape=values.shape, dtype="i4", fill_value=7, **options)
    x[:12], x[18:] = values[:12], values[18:]
    group.create_array("y", data=np.arange(ROWS), chunks=(10,))
    group.create_array("z", shape=(), dtype="f8")[...] = 0.5
    if consolidated:
        with pytest.warns(UserWarning) if version == 3 else nullcontext():
            zarr.consolidate_metadata(path)
    return values


def log_of(web: Web) -> list[str]:
    """What is asked for from here on, found or not."""
    asked: list[str] = []

    def note(one: Asked, _: int) -> bool:
        asked.append(f"{one.command} {one.path}")
        return False

    web.fault = note
    return asked


def at(web: Web, name: str = "scan.zarr") -> str:
    return f"http://127.0.0.1:{web.port}/{name}"


def same_epochs(data: Any, values: np.ndarray[Any, Any]) -> None:
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(3)).tolist()
    for options in ({}, {"buffer": 0}, {"buffer": "128KiB", "epochs": 2}):
        loader = DataLoader(data, batch_size=7, sampler=order, **options)
        for _ in range(2):
            assert np.array_equal(torch.cat(list(loader)).numpy(), values[order])


@pytest.mark.slow(every=12)
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_values_are_those_of_the_folder(way: str, consolidated: bool, web: Web, tmp_path: Path) -> None:
    values = store_in(web.folder, way, consolidated=consolidated)
    theirs = zarr.open_group(str(web.folder / "scan.zarr"), mode="r")["in/x"][:]
    assert np.array_equal(theirs, values)
    for url in (at(web), f"{at(web)}/", f"file://{web.folder}/scan.zarr", f"unversioned+{at(web)}"):
        data = H5Dataset(url, "in/x")
        assert np.array_equal(solar.read(url, "in/x"), values)
        same_epochs(data, values)
    assert float(solar.read(at(web), "z")) == 0.5
    assert np.array_equal(H5Dataset(f"{at(web)}/in", "x")[3], values[3])
    windows = H5Dataset(at(web), Field("in/x", steps=range(3)), samples=Windows(every=2))
    assert all(np.array_equal(windows[i], values[2 * i : 2 * i + 3]) for i in (0, 5, 18))
    crops = H5Dataset(at(web), "in/x", samples=Crops((4, 4, 4)))
    assert np.array_equal(crops[0], values[:4, :4, :4])
    assert np.array_equal(H5Dataset(at(web), "in/x", where=("/y", lambda y: y > 30))[0], values[31])


def test_consolidated_metadata_take_one_request_and_each_shard_two(web: Web) -> None:
    values = store_in(web.folder, "3, shards", consolidated=True)
    shards = [path for path in (web.folder / "scan.zarr/in/x/c").rglob("*") if path.is_file()]
    log = log_of(web)
    data = H5Dataset(at(web), {"x": "in/x", "y": "y"})
    found = Counter(one.partition(" /scan.zarr/")[2] for one in log)
    grid = 7 * 2 * 3  # of shards, and of "y" four chunks: of those that are there the index of a shard, too
    assert found == Counter(
        ["zarr.json", *[f"in/x/c/{i}/{j}/{k}" for i in range(7) for j in range(2) for k in range(3)]]
        + [f"y/c/{i}" for i in range(4)]
        + [str(path.relative_to(web.folder / "scan.zarr")) for path in shards]
    )
    assert len(log) == 1 + grid + 4 + len(shards)
    log.clear()
    loader = DataLoader(data, batch_size=8, shuffle=True, buffer="1MiB", epochs=2)
    for _ in range(2):
        assert sum(len(batch["y"]) for batch in loader) == len(values)
    looks = [one for one in log if one.startswith("HEAD")]
    assert set(looks) <= {"HEAD /scan.zarr/zarr.json"}  # no look at any chunk: each answer says of which object it is
    assert len(log) - len(looks) == loader.stats()["requests"]


def test_metadata_that_are_not_consolidated_take_two_requests(web: Web) -> None:
    store_in(web.folder, "3, a chunk in an object")
    log = log_of(web)
    H5Dataset(at(web), "y")
    assert [one for one in log if "/y/c/" not in one] == ["GET /scan.zarr/zarr.json", "GET /scan.zarr/y/zarr.json"]
    store_in(web.folder, "2", name="old.zarr")
    log.clear()
    H5Dataset(at(web, "old.zarr"), "y")
    assert len([one for one in log if one.startswith("GET")]) == 4  # neither of version 3, nor consolidated


def test_a_plan_knows_the_requests(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    store_in(web.folder, "3, a chunk in an object", consolidated=True)
    words = ["--batch-size", "8", "--epochs", "2", "--memory", "1MiB", "--json"]
    assert main(["plan", at(web), "in/x", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    data = H5Dataset(at(web), "in/x")
    log = log_of(web)
    with DataLoader(data, 8, sampler=PlanSampler(data, seed=0), buffer="1MiB", epochs=2) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            list(loader)
    first = said["first_epoch"] or said["policies"]["solar"]
    assert len([one for one in log if one.startswith("GET")]) == round(first["requests"])  # the buffer has all of it


def test_a_chunk_that_was_written_again_is_noticed(web: Web) -> None:
    values = store_in(web.folder, "3, a chunk in an object")
    for url in (at(web), f"file://{web.folder}/scan.zarr"):
        data = H5Dataset(url, "in/x")
        chunk = web.folder / "scan.zarr/in/x/c/0/0/0"
        stored = chunk.read_bytes()
        chunk.unlink()
        chunk.write_bytes(stored)
        with pytest.raises(ReadError, match=r"changed since it was inspected.*make the H5Dataset again"):
            data[0]
        assert np.array_equal(data[20], values[20])
        chunk.unlink()
        with pytest.raises(ReadError, match="no such object"):
            data[0]
        chunk.write_bytes(stored)


def test_a_stage_a_service_ranks_and_workers(web: Web, tmp_path: Path) -> None:
    values = store_in(web.folder, "3, shards", consolidated=True)
    (tmp_path / "stage").mkdir()
    data = H5Dataset(at(web), "in/x", stage=tmp_path / "stage", stage_size="64MiB")
    same_epochs(data, values)
    log = log_of(web)
    assert np.array_equal(np.stack([data[i] for i in range(ROWS)]), values)
    assert not [one for one in log if "/in/x/c/" in one]
    half = [DataLoader(H5Dataset(at(web), "in/x"), 4, sampler=PlanSampler(data, 2, rank, seed=1)) for rank in (0, 1)]
    rows = np.concatenate([torch.cat(list(loader)).numpy() for loader in half])
    assert sorted(one.tobytes() for one in rows) == sorted(one.tobytes() for one in values)
    loader = DataLoader(H5Dataset(at(web), "in/x"), batch_size=9, num_workers=2)
    assert np.array_equal(torch.cat(list(loader)).numpy(), values)
    with serving(at(web), where=tmp_path) as service:
        sampler = PlanSampler(H5Dataset(at(web), "in/x"), seed=5)
        loader = DataLoader(H5Dataset(at(web), "in/x"), batch_size=4, sampler=sampler, service=str(service.path))
        assert np.array_equal(torch.cat(list(loader)).numpy(), values[list(sampler)])
    assert "A service read" in str(loader.report())


def test_several_stores_and_patterns(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    values = [store_in(web.folder, way, name=f"{number}.zarr") for number, way in enumerate(list(WAYS)[:2])]
    both = np.concatenate(values)
    same_epochs(H5Dataset([at(web, "0.zarr"), at(web, "1.zarr")], "in/x"), both)
    same_epochs(H5Dataset(f"file://{web.folder}/*.zarr", "in/x"), both)
    same_epochs(H5Dataset([at(web, "0.zarr"), str(web.folder / "1.zarr")], "in/x"), both)
    with pytest.raises(LayoutError, match="no store matches"):
        H5Dataset(f"file://{web.folder}/x*.zarr", "in/x")
    with pytest.raises(LayoutError, match="only the last name"):
        H5Dataset(f"file://{web.folder}/*/x.zarr", "in/x")
    assert main(["inspect", f"file://{web.folder}/0.zarr", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["datasets"]
    assert [one["name"] for one in found] == ["/in/x", "/y", "/z"]


def test_what_a_web_server_does_not_tell(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    store_in(web.folder, "3, a chunk in an object")
    with pytest.raises(LayoutError, match=r"web server does not tell.*name its arrays"):
        solar.inspect(at(web))
    with pytest.raises(LayoutError, match=r"no such array, and its names cannot be told: a web server does not tell"):
        H5Dataset(at(web), "x")
    monkeypatch.setattr("solar.io.hdf5.zarr_far.MOST_LOOKED_FOR", 20)
    log = log_of(web)
    with pytest.raises(LayoutError, match="126 chunks would take too long: name the store by s3://"):
        H5Dataset(at(web), "in/x")
    assert len(log) == 2
    shutil.rmtree(web.folder / "scan.zarr")
    with pytest.raises(LayoutError, match=r"there is no Zarr store: .* web server .* look at the URL again"):
        H5Dataset(at(web), "x")


def test_a_mistyped_url_is_an_error_that_says_what_lies_there(
    web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "there is no Zarr store: asked for zarr.json, .zarray and .zgroup, and found none; "
    store_in(web.folder, "2", name="other.zarr")
    store_in(web.folder, "2")
    for url, meant in (
        (at(web, "scann.zarr"), "a web server does not tell what lies there, so look at the URL again"),
        (f"file://{web.folder}/scann.zarr", f"did you mean file://{web.folder}/scan.zarr?"),
        (f"file://{web.folder}/scan.zarr/inn", f"did you mean file://{web.folder}/scan.zarr/in?"),
        (f"file://{web.folder}/1234567.zarr/", f"file://{web.folder} has other.zarr, scan.zarr"),
    ):
        assert main(["inspect", url]) == 1
        shown = capsys.readouterr()
        assert not shown.out and f"{url.rstrip('/')}: {asked}{meant}" in shown.err
        with pytest.raises(LayoutError, match="there is no Zarr store"):
            H5Dataset(url, "x")


def test_a_mistyped_name_of_an_array_gets_a_suggestion(web: Web) -> None:
    store_in(web.folder, "3, shards", consolidated=True)
    for url in (at(web), f"file://{web.folder}/scan.zarr"):
        with pytest.raises(LayoutError, match=r"in/xx: there is no such array; did you mean /in/x"):
            H5Dataset(url, "in/xx")


def test_a_store_whose_name_does_not_tell_is_named_by_its_metadata(
    web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    values = store_in(web.folder, "3, shards", consolidated=True, name="scan")
    store_in(web.folder, "2", consolidated=True, name="old")
    for name, mark in (("scan", "zarr.json"), ("old", ".zgroup")):
        for above in (at(web, ""), f"file://{web.folder}/"):
            with pytest.raises(LayoutError, match=f"a Zarr store.*give {above}{name}/{mark}$"):
                H5Dataset(f"{above}{name}", "in/x")
            same_epochs(H5Dataset(f"{above}{name}/{mark}", "in/x"), values)
    with pytest.raises(LayoutError, match=f"give file://{web.folder}/scan/zarr.json"):
        H5Dataset(f"file://{web.folder}/scan/", "in/x")
    assert main(["inspect", at(web, "scan")]) == 1
    assert f"give {at(web, 'scan')}/zarr.json" in capsys.readouterr().err

    def page(one: Asked, _: int) -> bool:  # as servers that show what a folder has, without a mark of its version
        if one.path in ("/scan", "/nothing"):
            one.send_response(200)
            one.send_header("Content-Length", "20")
            one.end_headers()
        return one.path in ("/scan", "/nothing")

    web.fault = page
    with pytest.raises(LayoutError, match="a Zarr store"):
        H5Dataset(at(web, "scan"), "in/x")
    with pytest.raises(ReadError, match="neither ETag nor"):
        H5Dataset(at(web, "nothing"), "in/x")


# --- zip files ----


def zipped(folder: Path, way: str, padding: int = 0) -> np.ndarray[Any, Any]:
    """Makes scan.zip of a store; `padding` are bytes behind each head, which the directory does not tell of."""
    values = store_in(folder, way)
    with zipfile.ZipFile(folder / "scan.zip", "w") as made:
        for path in sorted(one for one in (folder / "scan.zarr").rglob("*") if one.is_file()):
            info = zipfile.ZipInfo(str(path.relative_to(folder / "scan.zarr")))
            info.extra = struct.pack("<HH", 0x9999, padding) + bytes(padding) if padding else b""
            made.writestr(info, path.read_bytes())
            info.extra = b""
    shutil.rmtree(folder / "scan.zarr")
    return values


@pytest.mark.parametrize("way", ["3, a chunk in an object", "3, shards", "2, in folders"])
def test_zip_files_are_read_by_url(way: str, web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = zipped(web.folder, way, padding=300)
    local = solar.read(web.folder / "scan.zip", "in/x")
    assert np.array_equal(local, values)
    for near in (0, 4000, 1 << 18):
        monkeypatch.setattr("solar.io.hdf5.zarr_stores.ZIP_NEAR_NBYTES", near)
        for url in (at(web, "scan.zip"), f"file://{web.folder}/scan.zip"):
            assert np.array_equal(solar.read(url, "in/x"), values)
    same_epochs(H5Dataset(at(web, "scan.zip"), "in/x"), values)
    same_epochs(H5Dataset(f"file://{web.folder}/*.zip", "in/x"), values)
    (tmp_path / "stage").mkdir()
    same_epochs(H5Dataset(at(web, "scan.zip"), "in/x", stage=tmp_path / "stage", stage_size="64MiB"), values)
    assert [*solar.inspect(at(web, "scan.zip"))] == ["/in/x", "/y", "/z"]
    with pytest.raises(LayoutError, match="did you mean /in/x"):
        H5Dataset(at(web, "scan.zip"), "in/xx")


def test_a_far_zip_file_takes_few_requests(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    zipped(web.folder, "3, a chunk in an object")
    data = H5Dataset(at(web, "scan.zip"), "in/x")
    log = log_of(web)
    data = H5Dataset(at(web, "scan.zip"), "in/x")
    # Its identity, its end, the head and the text of the metadata, and the heads of chunks, which lie near each other.
    assert log == ["HEAD /scan.zip"] + ["GET /scan.zip"] * 4
    log.clear()
    with DataLoader(data, batch_size=8, shuffle=True, buffer="1MiB", epochs=2) as loader:
        assert sum(len(batch) for batch in loader) == ROWS
    assert len([one for one in log if one.startswith("GET")]) == loader.stats()["requests"]
    monkeypatch.setattr("solar.io.hdf5.zarr_stores.ZIP_NEAR_NBYTES", 0)
    monkeypatch.setattr("solar.io.hdf5.zarr_stores.MOST_LOOKED_FOR", 20)
    with pytest.raises(LayoutError, match="chunks would take too long: write the array in shards"):
        H5Dataset(at(web, "scan.zip"), "in/x")


def test_a_far_zip_file_that_changed_or_is_none_is_an_error(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    zipped(web.folder, "3, a chunk in an object")
    path = web.folder / "scan.zip"
    data, stored = H5Dataset(at(web, "scan.zip"), "in/x"), path.read_bytes()
    path.unlink()
    path.write_bytes(stored)
    with pytest.raises(ReadError, match="changed since it was inspected"):
        data[0]
    with pytest.raises(ReadError, match="no such object"):
        H5Dataset(at(web, "other.zip"), "in/x")
    monkeypatch.setattr("solar.io.hdf5.zarr_stores.MOST_DIRECTORY", 100)
    with pytest.raises(LayoutError, match="no zip file that can be read: its directory has more than 100 bytes"):
        H5Dataset(at(web, "scan.zip"), "in/x")
    monkeypatch.undo()
    rng = np.random.default_rng(3)
    for _ in range(60):
        wrong, place = bytearray(stored), rng.integers(max(0, len(stored) - 9000), len(stored))
        wrong[place] ^= 1 << rng.integers(8)
        path.write_bytes(wrong[: rng.integers(len(wrong)) if rng.random() < 0.2 else None])
        with suppress(SolarError):
            solar.read(at(web, "scan.zip"), "in/x")


def test_metadata_that_are_wrong_are_refused(web: Web) -> None:
    store_in(web.folder, "3, a chunk in an object", consolidated=True)
    root = web.folder / "scan.zarr/zarr.json"
    node = json.loads(root.read_text())
    wrongs = (
        (5, "no JSON object"),
        ({}, "neither an array"),
        ({"zarr_format": 2, "node_type": "array"}, "another version"),
    )
    for wrong, said in wrongs:
        node["consolidated_metadata"]["metadata"]["in/x"] = wrong
        root.write_text(json.dumps(node))
        with pytest.raises(LayoutError, match=said):
            H5Dataset(at(web), "in/x")
    for text in ("?", "[" * 100_000, "[1]"):
        root.write_text(text)
        with pytest.raises(LayoutError, match=r"zarr\.json"):
            H5Dataset(at(web), "in/x")
    with root.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ReadError, match="where at most 16,777,216 are read"):
        H5Dataset(at(web), "in/x")


@pytest.mark.parametrize("seed", range(8))
def test_shards_and_metadata_that_are_damaged_are_errors(seed: int, web: Web) -> None:
    store_in(web.folder, "3, shards", consolidated=True)
    rng = np.random.default_rng(seed)
    paths = [path for path in sorted((web.folder / "scan.zarr").rglob("*")) if path.is_file()]
    for _ in range(5):
        path = paths[rng.integers(len(paths))]
        stored = bytearray(path.read_bytes())
        stored[rng.integers(len(stored))] ^= 1 << rng.integers(8)
        path.write_bytes(stored[: rng.integers(len(stored)) if rng.random() < 0.2 else None])
    with suppress(SolarError):
        solar.read(at(web), "in/x")


def test_missing_credentials_are_told() -> None:
    from obstore.exceptions import GenericError

    said = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1s - 403 Forbidden"
    with (
        pytest.raises(ReadError, match=r"no credentials were found.*docs/remote.md.*AWS_SKIP_SIGNATURE=true"),
        fetch.as_read_error("s3://bucket/x.h5"),
    ):
        raise GenericError(said)


def test_marks_of_listings_and_answers_are_the_same() -> None:
    """Azure lists marks of objects without the quotes that its answers have."""
    one = {"size": 5, "e_tag": '"0x8D"', "last_modified": None}
    assert fetch.object_identity(one, "az://a/b") == fetch.object_identity({**one, "e_tag": "0x8D"}, "az://a/b")
