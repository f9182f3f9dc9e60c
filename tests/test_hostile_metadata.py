"""Files made to hurt: what they may cost us, and that we read no dataset that libhdf5 refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from solar import _native
from solar.errors import LayoutError
from solar.io.hdf5.datatype import decode

# --- what a small file cannot make us do ----

GUARDED = """
import resource, sys
import solar
from solar import _native
from solar.errors import LayoutError
with open("/proc/self/statm") as facts:
    held = int(facts.read().split()[0]) * resource.getpagesize()
limit = held + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    found = _native.read_metadata(sys.argv[1])
    print(len(found["datasets"]), len(found["problems"]))
except LayoutError as error:
    print("refused:", error)
"""


def read_with_little_memory(path: Path) -> str:
    """What a process says that may take 256 MiB to read the metadata."""
    done = subprocess.run([sys.executable, "-c", GUARDED, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_many_links_to_one_long_target_are_not_copied_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "targets.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["z"] = h5py.SoftLink("t" * 200_000)
        for i in range(5_000):
            file[f"l{i:05}"] = h5py.SoftLink("q")
    raw = bytearray(path.read_bytes())
    heap = raw.find(b"HEAP")
    target = raw.find(b"t" * 200_000) - int.from_bytes(raw[heap + 24 : heap + 32], "little")
    node = raw.find(b"SNOD")
    while node > 0:
        for entry in range(node + 8, node + 8 + 40 * int.from_bytes(raw[node + 6 : node + 8], "little"), 40):
            raw[entry + 24 : entry + 28] = target.to_bytes(4, "little")
        node = raw.find(b"SNOD", node + 1)
    path.write_bytes(raw)
    assert "than a file of" in read_with_little_memory(path)


def test_many_links_below_a_long_name_are_not_named_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "names.h5"
    with h5py.File(path, "w", libver="latest") as file:
        group = file.create_group("n" * 60_000)
        for i in range(20_000):
            group[f"l{i}"] = h5py.ExternalLink("a", "b")
    assert "than a file of" in read_with_little_memory(path)


@pytest.mark.parametrize("target", ["./" * 400_000 + "nothing", "a/" * 30_000], ids=["one part", "many parts"])
def test_many_links_through_one_long_path_are_not_followed_for_ever(tmp_path: Path, target: str) -> None:
    path = tmp_path / "paths.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["big"] = h5py.SoftLink(target)
        for i in range(2_000):
            file[f"l{i}"] = h5py.SoftLink("big")
    assert "than a file of" in read_with_little_memory(path)


@pytest.mark.slow
def test_datasets_may_share_one_large_datatype(tmp_path: Path) -> None:
    path = tmp_path / "shared.h5"
    fields = np.dtype([(f"{i:03}{'x' * 60}", "i4") for i in range(300)])
    with h5py.File(path, "w", libver="latest") as file:
        file["type"] = fields
        kind, space = file["type"].id, h5py.h5s.create_simple((1,))
        for i in range(3_000):  # as create_dataset does, which makes numpy's type anew each time
            h5py.h5d.create(file.id, f"d{i}".encode(), kind, space)
    assert read_with_little_memory(path) == "3000 0\n"
    found = _native.read_metadata(str(path))["datasets"]
    assert decode(found[0]["datatype"])[0] == fields
    assert all(dataset["datatype"] is found[0]["datatype"] for dataset in found)


# --- what libhdf5 refuses ----


def refused_by_both(path: Path, name: str) -> str:
    """Our refusal of a dataset that libhdf5 refuses too."""
    with pytest.raises((OSError, KeyError, RuntimeError)), h5py.File(path) as file:
        file[name][()]
    try:
        found = _native.read_metadata(str(path), name)["datasets"][0]
        _native.chunk_table(str(path), name)
    except LayoutError as error:
        return str(error)
    return found["problem"] or found["elsewhere"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of old structures, with a chunked dataset of a few chunks."""
    with h5py.File(tmp_path / "old.h5", "w", libver="earliest", track_times=True) as file:
        file.create_dataset("x", data=np.arange(50), chunks=(5,), track_times=True)
        file["y"] = 1
    return tmp_path / "old.h5"


def patch(path: Path, at: int, value: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(value)] = value
    path.write_bytes(raw)


def chunk_tree(path: Path) -> int:
    return path.read_bytes().find(b"TREE\x01")


def test_a_group_with_one_bad_name_is_refused_whole(old: Path) -> None:
    patch(old, old.read_bytes().find(b"SNOD") + 48, (10**6).to_bytes(8, "little"))
    assert "no name at byte 1000000" in refused_by_both(old, "x")


def test_an_old_superblock_with_an_extension_is_refused(old: Path) -> None:
    patch(old, 32, (800).to_bytes(8, "little"))
    assert "extension" in refused_by_both(old, "x")


def test_a_damaged_checksum_of_the_superblock_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "new.h5", "w", libver="latest") as file:
        file["x"] = 1
    patch(tmp_path / "new.h5", 44, b"\0\0\0\0")
    assert "checksum" in refused_by_both(tmp_path / "new.h5", "x")


def test_a_damaged_modification_time_is_refused(old: Path) -> None:
    with h5py.File(old) as file:
        header = h5py.h5o.get_info(file["x"].id).addr
    raw = old.read_bytes()
    at = raw.find(b"\x12\x00\x08\x00", header)
    patch(old, at + 8, b"\x02")
    assert "modification time" in refused_by_both(old, "x")
    patch(old, at, b"\x0e\x00\x08\x00\x00\x00\x00\x00" + b"2024011x")
    assert "modification time" in refused_by_both(old, "x")


def test_a_chunk_node_with_more_entries_than_the_file_allows_is_refused(old: Path) -> None:
    patch(old, chunk_tree(old) + 6, (65).to_bytes(2, "little"))
    assert "too many entries" in refused_by_both(old, "x")


def test_a_chunk_node_without_room_for_all_its_entries_is_refused(old: Path) -> None:
    raw = old.read_bytes()
    node = chunk_tree(old)
    patch(old, len(raw), raw[node : node + 1000])  # moved to the end, where it is too short
    patch(old, 40, (len(raw) + 1000).to_bytes(8, "little"))
    at = raw.find(node.to_bytes(8, "little"))
    patch(old, at, len(raw).to_bytes(8, "little"))
    assert "outside the file" in refused_by_both(old, "x")


def test_two_links_of_one_name_make_a_group_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "twice.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["aa"], file["ab"] = 1, 2
    raw = path.read_bytes()
    patch(path, raw.find(b"ab\0"), b"aa\0")
    found = _native.read_metadata(str(path))
    assert not found["datasets"]
    assert "out of order" in found["problems"][0]
