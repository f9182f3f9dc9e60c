"""Datasets behind soft and external links: found where h5py finds them, read from the file that holds them."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import SHARED, same, settle

import solar
from solar import H5Dataset, _native
from solar.cli import main
from solar.errors import LayoutError, ReadError, SolarError
from solar.io.hdf5.chunk_index import chunk_table
from solar.io.hdf5.metadata import pack_layouts, unpacked

External, Soft = h5py.ExternalLink, h5py.SoftLink


def write(path: Path, value: float = 0, **links: Any) -> Path:
    """A file with a few datasets whose values tell which file it is, and these links besides."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", libver=links.pop("libver", None)) as file:
        file["entry/data"] = np.arange(24.0).reshape(6, 4) + value
        file.create_dataset("entry/chunked", data=np.arange(60).reshape(6, 10) + int(value), chunks=(2, 10))
        file["entry/text"] = [f"{value} {i}" for i in range(6)]
        for name, link in links.items():
            file[name.replace("__", "/")] = link
    settle(path)
    return path


def by_h5py(path: Path, name: str) -> Any:
    """What h5py reads, or the words of its refusal."""
    try:
        with h5py.File(path, "r") as file:
            return file[name][()]
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        return f"refused: {error}"


def agree(path: Path, name: str) -> str:
    """That both read the same, or refuse both; our words."""
    theirs = by_h5py(path, name)
    try:
        ours = solar.read(path, name)
    except SolarError as error:
        assert isinstance(theirs, str) and theirs.startswith("refused"), (name, error, theirs)
        return str(error)
    assert same(ours, theirs), (name, ours, theirs)
    return ""


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize("many", [0, 40])
def test_links_of_every_kind_give_h5pys_values(tmp_path: Path, libver: str, many: int) -> None:
    write(tmp_path / "scan.h5", 100, up=Soft("/entry"), back=External("master.h5", "/entry/data"))
    master = tmp_path / "master.h5"
    bounds: Any = libver if libver == "latest" else (libver, "latest")
    with h5py.File(master, "w", libver=bounds) as file:
        file["entry/data"] = np.arange(3)
        group = file.create_group("links")
        for i in range(many):  # many links are stored in another way
            group[f"filler{i}"] = Soft("/nothing")
        links = {
            "absolute": Soft("/entry/data"),
            "relative": Soft("absolute"),
            "dots": Soft("././/absolute/."),
            "group": Soft("/entry"),
            "root": Soft("/"),
            "data": External("scan.h5", "/entry/data"),
            "no_slash": External("./scan.h5", "entry/./data"),
            "chunked": External("scan.h5", "entry/chunked"),
            "text": External("scan.h5", "entry/text"),
            "other": External("scan.h5", "/entry"),
            "other_root": External("scan.h5", "/"),
            "through": External("scan.h5", "up/chunked"),
            "home": External("scan.h5", "back"),
            "itself": External("master.h5", "/links/data"),
            "soft_then_out": Soft("/links/data"),
            "soft_into": Soft("other_root/up/chunked"),
        }
        for name, link in links.items():
            group[name] = link
    for name in ["", "/data", "/up/chunked", "/entry/text", "/back"]:
        for link in links:
            agree(master, f"links/{link}{name}")
    assert agree(master, "/links/./other//data") == ""
    assert solar.inspect(master, "links/home").paths == (str(master),)


def test_old_groups_have_soft_links_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "old.h5", "w", libver="earliest") as file:
        file["a/x"] = np.arange(5)
        file["a/s"], file["t"], file["u"] = Soft("x"), Soft("a"), Soft("/t/s")
    for name in ("a/s", "t/s", "t/x", "u"):
        assert agree(tmp_path / "old.h5", name) == ""
    found = solar.inspect(tmp_path / "old.h5")
    assert list(found) == ["/a/s", "/a/x", "/u"]  # the group is listed by its own name
    assert found["/u"].names == ("/a/x",)


def links_of(file: h5py.File) -> list[str]:
    """Every soft and external link of a file."""
    found: list[str] = []
    file.visititems_links(lambda name, link: found.append(name) if isinstance(link, (Soft, External)) else None)
    return found


@pytest.mark.skipif(not (SHARED / "hdf5-odd").is_dir(), reason="the shared collection of odd HDF5 files is not here")
def test_links_in_other_peoples_files_give_h5pys_values() -> None:
    datasets = 0
    for path in sorted((SHARED / "hdf5-odd").rglob("*.h*5")):
        try:
            with h5py.File(path) as file:
                links = links_of(file)
        except (OSError, RuntimeError, SystemError, TypeError):  # also what h5py says of links of unknown types
            continue
        for name in links:
            theirs = by_h5py(path, name)
            try:
                ours = solar.read(path, name)
            except SolarError:
                assert isinstance(theirs, str), (path, name)
                continue
            assert same(ours, theirs) or (np.asarray(ours).dtype.kind == "f" and np.array_equal(ours, theirs, True))
            assert "/" + name in solar.inspect(path), (path, name)
            datasets += 1
    assert datasets >= 20


# --- which file is meant ----


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Path]]:
    """Writes t.h5 wherever an external link may lead; the master is opened by a symbolic link."""
    for folder in ("absolute", "first", "second", "beside", "working", "real"):
        (tmp_path / folder).mkdir()
    with h5py.File(tmp_path / "real/real.h5", "w") as file:
        file["plain"] = External("t.h5", "entry/data")
        file["absolute"] = External(str(tmp_path / "absolute/t.h5"), "entry/data")
        file["below"] = External("sub/t.h5", "entry/data")
    (tmp_path / "beside/master.h5").symlink_to(tmp_path / "real/real.h5")
    monkeypatch.chdir(tmp_path / "working")
    monkeypatch.setenv("HDF5_EXT_PREFIX", f"{tmp_path}/first::{tmp_path}/second/")

    def write_all(name: str = "t.h5") -> dict[str, Path]:
        order = ["absolute", "first", "second", "beside", "working", "real"]
        return {folder: write(tmp_path / folder / name, i) for i, folder in enumerate(order)}

    return write_all


@pytest.mark.parametrize(
    ("link", "name", "tried"), [("plain", "t.h5", 5), ("absolute", "t.h5", 6), ("below", "sub/t.h5", 5)]
)
def test_a_file_is_looked_for_where_libhdf5_looks(
    tmp_path: Path, places: Callable[..., dict[str, Path]], link: str, name: str, tried: int
) -> None:
    master, left = tmp_path / "beside/master.h5", places(name)
    taken = []
    while agree(master, link) == "":
        (path,) = solar.inspect(master, link).paths
        taken.append(next(folder for folder, place in left.items() if str(place) == path))
        left.pop(taken[-1]).unlink()
    assert taken == ["absolute", "first", "second", "beside", "working", "real"][6 - tried :]
    assert all(str(tmp_path / folder / name) in agree(master, link) for folder in taken)


def test_the_first_file_that_can_be_opened_is_meant_even_if_it_is_none(
    tmp_path: Path, places: Callable[..., dict[str, Path]]
) -> None:
    first, master = places()["first"], tmp_path / "beside/master.h5"
    sound = first.read_bytes()
    for content, words in ((b"no HDF5", "no HDF5 file"), (sound[:-1], "truncated"), (b"", "no HDF5 file")):
        first.write_bytes(content)
        said = agree(master, "plain")
        assert words in said and str(first) in said and str(master) in said
    first.unlink()
    os.mkfifo(first)
    with pytest.raises(ReadError, match="no plain file"):
        solar.read(master, "plain")
    first.unlink()
    first.mkdir()
    assert "directory" in agree(master, "plain")


def test_a_link_in_the_second_file_counts_from_there(tmp_path: Path) -> None:
    write(tmp_path / "raw/deep/b.h5", 7)
    write(tmp_path / "raw/a.h5", 3, on=External("deep/b.h5", "/entry"))
    master = write(tmp_path / "master.h5", 0, scan=External("raw/a.h5", "/on"), up=External("raw/../raw/a.h5", "/"))
    assert agree(master, "scan/data") == agree(master, "up/on/data") == ""
    assert solar.inspect(master, "up/on/data").paths == (str(tmp_path / "raw/deep/b.h5"),)


def test_a_detour_through_a_linked_folder_is_not_cut_short(tmp_path: Path) -> None:
    write(tmp_path / "x/up.h5", 1)
    write(tmp_path / "deep/up.h5", 2)
    write(tmp_path / "x/real/master.h5", 0, link=External("../up.h5", "entry/data"))
    (tmp_path / "deep/folder").symlink_to(tmp_path / "x/real")
    assert agree(tmp_path / "deep/folder/master.h5", "link") == ""


# --- circles, and what is missing ----


@pytest.mark.parametrize("links", [16, 17])
def test_as_many_links_are_followed_as_libhdf5_follows(tmp_path: Path, links: int) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["s0"] = file["e0"] = file["x"] = np.arange(3)
        file["me"], file["out"] = Soft("/"), External("x.h5", "/")
        for i in range(links):
            file[f"s{i + 1}"], file[f"e{i + 1}"] = Soft(f"s{i}"), External("x.h5", f"e{i}")
        file["path"] = Soft("me/" * (links - 1) + "x")
    names = [f"s{links}", f"e{links}", "me/" * links + "x", "out/" * links + "x", "path"]
    names += ["me/" + "out/" * (links - 2) + "s1"]
    for name in names:
        assert ("too many links" in agree(path, name)) == (links == 17)


def test_circles_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    circle = External("a.h5", "/circle")
    write(tmp_path / "b.h5", 1, circle=circle, a=External("a.h5", "/"))
    path = write(tmp_path / "a.h5", 0, loop=Soft("/loop"), circle=External("b.h5", "/circle"), b=External("b.h5", "/"))
    for name in ("loop", "circle"):
        assert "too many links" in agree(path, name)
    found = solar.inspect(path)
    assert [name for name in found if name.startswith("/b/")] == ["/b/entry/chunked", "/b/entry/data", "/b/entry/text"]
    assert main(["inspect", str(path)]) == 0
    assert "/loop is a soft link to /loop that leads nowhere" in " ".join(capsys.readouterr().out.split())


def test_what_is_missing_is_said_with_the_link_that_led_there(tmp_path: Path) -> None:
    scan = write(tmp_path / "scan.h5", on=Soft("/entry/dta"))
    master = write(
        tmp_path / "master.h5",
        file=External("gone.h5", "/entry/data"),
        object=External("scan.h5", "/entry/dta"),
        group=External("scan.h5", "/entry"),
        on=External("scan.h5", "/on"),
    )
    said = agree(master, "file")
    assert said.startswith(f"{master}: /file: there is no file gone.h5; it was looked for as {tmp_path}/gone.h5")
    assert said.endswith(f"; on the way: the link /file in {master} leads to gone.h5:/entry/data")
    said = agree(master, "object")
    assert said.startswith(f"{master}: /object: {scan}: there is no dta; did you mean data?")
    assert said.endswith(f"; on the way: the link /object in {master} leads to scan.h5:/entry/dta")
    assert f"the link /on in {master} leads to scan.h5:/on, the link /on in {scan} leads to /entry/dta" in agree(
        master, "on"
    )
    assert "no dat; did you mean data?" in agree(master, "group/dat")
    assert "it is a group" in agree(master, "group")


@pytest.mark.parametrize(("at", "byte"), [(0, 0x01), (0, 0x10), (9, ord("x")), (21, ord("x")), (1, 0), (10, 0)])
def test_a_link_whose_value_is_damaged_costs_no_other_dataset(tmp_path: Path, at: int, byte: int) -> None:
    path = write(tmp_path / "a.h5", link=External("other.h5", "/entry/data"))
    write(tmp_path / "other.h5")
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"\0other.h5\0/entry/data\0") + at] = byte
    path.write_bytes(raw)
    found = _native.read_metadata(str(path))
    assert len(found["datasets"]) == 3 and "/link is damaged" in found["problems"][0]
    with pytest.raises(LayoutError, match="external link /link is damaged"):
        solar.inspect(path, "link")


def test_random_damage_to_links_is_an_error_or_a_description(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    other, path = write(tmp_path / "other.h5", up=Soft("/entry"), back=External("a.h5", "/")), tmp_path / "a.h5"
    for libver in ("earliest", "v108"):
        with h5py.File(path, "w", libver=(libver, "v108")) as file:
            file["x"] = np.arange(4)
            for i in range(12 if libver == "v108" else 3):
                file[f"l{i}"] = External("other.h5", "/up/data") if i % 2 else Soft(f"l{i + 1}")
            file["all"] = External("other.h5", "/")
        sound = path.read_bytes()
        at = [i for i in range(len(sound)) if sound[i : i + 5] in (b"other", b"/up/d")]
        for _ in range(200):
            damaged = bytearray(sound)
            for _ in range(rng.integers(1, 4)):
                damaged[max(0, int(rng.choice(at)) + rng.integers(-12, 20))] = rng.integers(256)
            path.write_bytes(damaged)
            try:
                found = _native.read_metadata(str(path))
            except LayoutError:
                continue
            for dataset in found["linked"]:
                held = Path(dataset["path"] or path)
                assert held in (path, other) and dataset["file_nbytes"] == held.stat().st_size


# --- what is read, kept and said is of the file that holds it ----


@pytest.fixture
def scans(tmp_path: Path) -> list[str]:
    """Master files, each with a link to a scan of its own, which is called otherwise in each."""
    masters = []
    for i in range(3):
        with h5py.File(write(tmp_path / f"raw/scan{i}.h5", 100 * i), "a") as file:
            file.move("entry", f"entry{i}")
        settle(tmp_path / f"raw/scan{i}.h5")
        write(tmp_path / f"master{i}.h5", -1, scan=External(f"raw/scan{i}.h5", f"/entry{i}"))
        masters.append(str(tmp_path / f"master{i}.h5"))
    return masters


def test_master_files_make_one_data_set(tmp_path: Path, scans: list[str]) -> None:
    fields = {"x": "scan/data", "c": "scan/chunked", "t": "scan/text", "own": "entry/data"}
    data = H5Dataset(scans, fields)
    assert data.layouts["x"].paths == tuple(str(tmp_path / f"raw/scan{i}.h5") for i in range(3))
    assert data.layouts["x"].names == tuple(f"/entry{i}/data" for i in range(3))
    assert data.layouts["x"].asked == tuple(scans)
    assert data.layouts["t"].reader == "h5py"
    order = [17, 0, 6, 6, 11, 5]
    batch = data.read_batch(order)
    for key, name in fields.items():
        wanted = np.concatenate([by_h5py(Path(path), name) for path in scans])[order]
        found = np.array(batch[key], wanted.dtype)
        np.testing.assert_array_equal(found, wanted)
    loader = solar.DataLoader(H5Dataset(scans, {"x": "scan/data"}), batch_size=4)
    assert sum(len(batch["x"]) for batch in loader) == 18
    again = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(again.read_batch(order)["x"], batch["x"])


def test_an_error_names_both_files(tmp_path: Path, scans: list[str]) -> None:
    held = tmp_path / "raw/scan1.h5"
    for name in ("scan/data", "scan/text"):
        data = H5Dataset(scans[1], name)
        os.utime(held, (1, 1))
        with pytest.raises(ReadError, match=r"scan1\.h5.* changed"):
            data.read_batch([0])
        settle(held)
    with h5py.File(held, "a") as file:
        del file["entry1/data"]
        file["entry1/data"] = np.arange(6).astype("f4").reshape(6, 1)
    with pytest.raises(
        LayoutError, match=rf"raw/scan1\.h5: /entry1/data \(linked from {scans[1]}: /scan/data\) is of type"
    ):
        solar.inspect(scans, "scan/data")


def test_a_damaged_chunk_is_told_with_the_link_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file.create_dataset("x", data=np.arange(60).reshape(6, 10), chunks=(2, 10), compression="gzip")
    master = write(tmp_path / "master.h5", link=External("scan.h5", "x"))
    raw = bytearray((tmp_path / "scan.h5").read_bytes())
    layout = solar.inspect(master, "link")
    at = int(layout.chunk_offset[1])
    raw[at : at + 8] = bytes(8)
    (tmp_path / "scan.h5").write_bytes(raw)
    with pytest.raises(SolarError, match=rf"scan\.h5: /x \(linked from {master}: /link\)"):
        solar.read(master, "link")


def test_the_digest_and_the_kept_index_are_those_of_the_file_that_holds_it(tmp_path: Path) -> None:
    held = write(tmp_path / "scan.h5", 1)
    master = write(tmp_path / "master.h5", link=External("scan.h5", "/entry/chunked"))
    digest = solar.inspect(master, "link").digest
    settle(write(master, link=External("scan.h5", "/entry/chunked"), more=Soft("/")))
    assert solar.inspect(master, "link").digest == digest
    os.utime(held, (5, 5))
    assert solar.inspect(master, "link").digest != digest
    (found,) = _native.read_metadata(str(master), "link")["datasets"]
    assert (found["path"], found["target"]) == (str(held), "/entry/chunked")
    assert chunk_table(str(held), found).nbytes.tolist() == [160] * 3
    soft = write(tmp_path / "soft.h5", s=Soft("/entry/data"))
    assert solar.inspect(soft, "s").names == ("/entry/data",)


def test_a_layout_travels_to_other_ranks_with_its_links(tmp_path: Path, scans: list[str]) -> None:
    layouts = [solar.inspect(scans, name) for name in ("scan/data", "entry/data", "scan/text")]
    for sent, came in zip(layouts, unpacked(pack_layouts(layouts)), strict=True):
        assert (came.digest, came.names, came.asked) == (sent.digest, sent.names, sent.asked)


def test_a_virtual_dataset_behind_a_link_takes_its_sources_beside_itself(tmp_path: Path) -> None:
    write(tmp_path / "raw/a.h5", 1)
    layout = h5py.VirtualLayout((6, 4), "f8")
    layout[:] = h5py.VirtualSource("a.h5", "entry/data", (6, 4))
    with h5py.File(tmp_path / "raw/virtual.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    master = write(tmp_path / "master.h5", link=External("raw/virtual.h5", "v"))
    assert agree(master, "link") == ""
    layout = solar.inspect(master, "link")
    assert (layout.reader, layout.files) == ("direct", (str(master),))
    assert layout.paths == (str(tmp_path / "raw/virtual.h5"), str(tmp_path / "raw/a.h5"))


# --- commands ----


def test_listing_goes_through_links_and_says_where_they_lead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "scan.h5", 100, up=Soft("/entry"), back=External("master.h5", "/entry"))
    master = write(
        tmp_path / "master.h5",
        data=External("scan.h5", "/entry/data"),
        scan=External("scan.h5", "/"),
        soft=Soft("/entry/data"),
        same=Soft("/entry"),
        lost=External("gone.h5", "/x"),
    )
    names = list(solar.inspect(master))
    own = ["/entry/chunked", "/entry/data", "/entry/text"]
    assert names == ["/data", *own, *(f"/scan{name}" for name in own), "/soft"]
    assert main(["inspect", str(master)]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = {line.strip("├└─│ ").split("  ")[0]: line for line in lines}
    assert said["data"].count("→ scan.h5:/entry/data") == 1
    assert "→ scan.h5:/" in said["scan/"] and "→ scan.h5:/entry" in said["up/"]
    assert "→ /entry/data" in said["soft"] and "→ /entry" in said["same/"] and "→ /entry" in said["back/"]
    assert any("/lost is an external link to gone.h5:/x" in line for line in lines)
    assert main(["inspect", str(master), "scan/entry/data"]) == 0
    assert "→ scan.h5:/entry/data" in capsys.readouterr().out


def test_what_has_two_names_is_one_field_of_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "scan.h5", 1)
    twice = {"a": External("scan.h5", "/entry/data"), "b": External("scan.h5", "/entry/data"), "c": Soft("/entry/data")}
    assert main(["plan", str(write(tmp_path / "m.h5", **twice)), "--memory", "1MiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["datasets"] == ["/a", "/entry/chunked", "/entry/data", "/entry/text"]


@pytest.mark.slow
def test_solar_bench_reads_through_links(tmp_path: Path) -> None:
    write(tmp_path / "scan.h5", 100)
    master = str(write(tmp_path / "master.h5", data=External("scan.h5", "/entry/data")))
    assert main(["bench", master, "data", "--batch-size", "2", "--seconds", "0.05", "--workers", "0", "--json"]) == 0


def test_commands_read_through_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "scan.h5", 100)
    master = str(write(tmp_path / "master.h5", data=External("scan.h5", "/entry/data"), soft=Soft("/entry/data")))
    assert main(["plan", master, "data", "--batch-size", "2", "--memory", "1MiB", "--json"]) == 0
    assert main(["digest", master, "data", "--batch-size", "2"]) == 0
    assert main(["verify", master]) == 0
    new = str(tmp_path / "new.h5")
    assert main(["compress", master, new, "--lossless", "--quiet"]) == 0
    with h5py.File(new) as file:
        assert file.get("data", getlink=True).path == "/entry/data"
    assert main(["compress", master, str(tmp_path / "b.h5"), "--field", "data:rel=1e-3", "--quiet"]) != 0
    assert f"/data is a link to {tmp_path}/scan.h5: /entry/data" in capsys.readouterr().err


def test_a_link_within_the_file_names_the_dataset_that_it_leads_to(tmp_path: Path) -> None:
    master, new = str(write(tmp_path / "master.h5", soft=Soft("/entry/data"))), str(tmp_path / "new.h5")
    assert main(["compress", master, new, "--field", "soft:lossless", "--quiet"]) == 0
    with h5py.File(master) as old, h5py.File(new) as file:
        assert file.get("soft", getlink=True).path == "/entry/data"
        assert file["entry/data"].id.get_create_plist().get_nfilters() == 1
        np.testing.assert_array_equal(file["soft"][()], old["soft"][()])
