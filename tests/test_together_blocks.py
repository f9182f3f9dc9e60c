"""Ranks that read together what their samples share: blocks that boxes are cut out of, or rows of unequal number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from crops_kit import STORED
from crops_kit import written as volume
from kit import settle
from ragged_kit import matrix, sparse
from test_together import by_node, case, check, check_counts, run, written

from solar.cli import main

BOXES: list[dict[str, Any]] = [
    {"shape": (4, 5, 3), "at": "random", "per": 35},
    {"shape": (4, 5, 3), "overlap": (2, 1, 0)},
]


def check_reads(one: dict[str, Any], found: dict[int, Any]) -> None:
    """What all ranks of each node have read is what its plan says; of holes between requests at most so many bytes."""
    check_counts(found)
    for ranks in by_node(found):
        counts = [each["counts"] for each in ranks]
        planned = ranks[0]["planned"]
        assert sum(each["bytes"] for each in counts) <= planned[3]
        if len(ranks) == 1:
            assert [counts[0][name] for name in ("reads", "requests", "bytes")] == [planned[0], *planned[2:4]]
        assert sum(each["peak_bytes"] for each in counts) <= one["buffer"] * len(ranks)


def check_plan(
    one: dict[str, Any], found: dict[int, Any], nodes: int, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`solar plan` says what the loaders of all ranks have planned, over all three epochs."""
    if nodes not in (1, len(found)):
        return  # it takes neighbours to be on one node, and these are dealt out in turn
    capsys.readouterr()
    given = [*asked, "--ranks", len(found), "--ranks-per-node", len(found) // nodes, "--memory", one["buffer"]]
    terms = ["--latency", "1ms", "--bandwidth", "100MB/s", "--iops", "500", "--batch-size", "4", "--epochs", "3"]
    assert main(["plan", one["paths"][0], *map(str, given), *terms, "--seed", str(one["seed"]), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    said = {name: first + 2 * answer["policies"]["solar"][name] for name, first in answer["first_epoch"].items()}
    planned = [ranks[0]["planned"] for ranks in by_node(found)]
    for name, place in (("reads", 0), ("requests", 2), ("bytes", 3)):
        assert said[name] == pytest.approx(sum(each[place] for each in planned), abs=2), name


@pytest.mark.slow(but=["2-1"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (3, 1), (4, 2)])
def test_boxes_of_ranks_are_cut_out_of_the_blocks_of_their_node(
    ranks: int, nodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.io.hdf5.box_blocks.BLOCK_NBYTES", 300)  # as the program of the ranks has it
    cases = []
    for number, stored in enumerate(STORED):
        paths = []
        for part in range(2):
            paths.append(str(tmp_path / f"{number}-{part}.h5"))
            volume(Path(paths[-1]), (2, 9, 10, 11), stored, (1, 4, 3, 6), label=np.ones((9, 10, 11), "u1"))
        for crops in BOXES:
            own = 35 if "per" in crops else 4 * 3 * 4
            for files, tail, buffer in ((1, "pad", 400_000), (2, "exact", 23_000), (2, "drop", 19_000)):
                given = {"fields": {"x": "u", "label": "label"}, "crops": crops, "tail": tail, "known": 3}
                cases.append(case(paths[:files], samples=files * own, buffer=buffer * ranks, **given))
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        assert all(len(each["node"]) == ranks // nodes and not each["exchange"] for each in found.values())
        check(one, found, torchs=True)
        check_reads(one, found)
        if len(one["paths"]) == 1:
            places = ["--at", "random", "--per", 35] if "per" in one["crops"] else ["--overlap", "2,1,0"]
            check_plan(one, found, nodes, ["u", "label", "--crop", "4,5,3", *map(str, places)], capsys)


@pytest.mark.slow(but=["2-1", "2-2"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (4, 2)])
def test_ranks_of_a_node_hold_samples_of_unequal_length_together(
    ranks: int, nodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, cases = 70, []
    lengths = np.random.default_rng(0).integers(0, 2000, samples)
    for number, options in enumerate(({}, {"chunks": 4096}, {"chunks": 8192, "compression": "gzip"})):
        path = written(tmp_path / f"{number}.h5", samples, {})
        with h5py.File(path, "r+") as file:
            file.create_dataset("v", data=np.arange(lengths.sum(), dtype="f4"), **options)
            file["ends"] = np.cumsum(lengths)
        settle(Path(path))
        given = {"samples": samples, "fields": {"y": "y"}, "ragged": {"v": "v"}, "known": 3}
        for tail, buffer in (("pad", 2_000_000), ("exact", 2_000_000), ("drop", 500_000)):
            cases.append(case([path], **given, tail=tail, buffer=buffer * ranks))
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        assert all(len(each["node"]) == ranks // nodes and not each["exchange"] for each in found.values())
        check(one, found, torchs=True)
        check_reads(one, found)
        if one["tail"] == "pad":
            check_plan(one, found, nodes, ["y", "--ragged", "v", "--ends", "ends"], capsys)


ROWS = 70  # samples of each kind


def ys(file: h5py.File) -> None:
    """Labels whose first value is their number, as the program of the ranks takes it."""
    file.pop("y", None)
    file["y"] = np.repeat(np.arange(ROWS), 3).reshape(ROWS, 3)


def sparse_rows(path: Path, options: dict[str, Any]) -> None:
    matrix(path, sparse(ROWS, 300), "gzip" if "compression" in options else "chunks" if options else "contiguous")
    with h5py.File(path, "r+") as file:
        ys(file)


def varying_rows(path: Path, options: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        ys(file)
        chunks = {"chunks": (8,), "compression": "gzip"} if "compression" in options else {"chunks": (8,)}
        v = file.create_dataset("v", (ROWS,), h5py.vlen_dtype("f4"), **(chunks if options else {}))
        for number, n in enumerate(np.random.default_rng(1).integers(0, 400, ROWS).tolist()):
            v[number] = np.arange(n, dtype="f4") + number


def groups(path: Path, options: dict[str, Any], alike: bool = False) -> None:
    lengths = [120] * ROWS if alike else np.random.default_rng(2).integers(1, 200, ROWS).tolist()
    with h5py.File(path, "w") as file:
        for number, n in enumerate(lengths):
            group = file.create_group(f"g/{number:03}")
            group["y"] = np.full(3, number)
            values = np.arange(3 * n, dtype="f4").reshape(n, 3) + number
            group.create_dataset("v", data=values, **options | ({"chunks": (n, 3)} if options else {}))


OTHERS: dict[str, Any] = {  # how files of them are made, and what solar plan is asked
    "csr": (sparse_rows, "csr", "v", ["y", "--csr", "X"]),
    "varying": (varying_rows, "varying", "v", ["y", "--ragged", "v"]),
    "groups": (groups, "groups", "v", ["y", "v", "--groups"]),
    "groups alike": (lambda *given: groups(*given, alike=True), "groups", "v", ["y", "v", "--groups"]),
}


@pytest.mark.slow(but=["csr-2-1", "groups-2-1"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("kind", OTHERS)
def test_sparse_rows_groups_and_arrays_of_ranks_are_read_as_planned(
    kind: str, ranks: int, nodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, unequal, field, asked = OTHERS[kind]
    name, cases = "X" if kind == "csr" else field, []
    for number, options in enumerate(({}, {"chunks": True}, {"chunks": True, "compression": "gzip"})):
        path = tmp_path / f"{number}.h5"
        make(path, options)
        settle(path)
        given = {"samples": ROWS, "fields": {"y": "y"}, "ragged": {field: name}, "unequal": unequal, "known": 3}
        for tail, buffer in (("pad", 2_000_000), ("exact", 2_000_000), ("pad", 200_000), ("drop", 200_000)):
            cases.append(case([str(path)], **given, tail=tail, buffer=buffer * ranks))
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        rows = kind == "groups alike"  # which are held as rows are, each by one of the nodes
        assert all(len(each["node"]) == ranks // nodes for each in found.values())
        assert rows or not any(each["exchange"] for each in found.values())
        check(one, found, torchs=not rows or nodes == 1)
        check_reads(one, found)
        if one["tail"] == "pad":
            check_plan(one, found, nodes, asked, capsys)
