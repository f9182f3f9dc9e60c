"""Ranks that read together: each step has torch's samples, each is read once for all, and counts are the plan's."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import h5py
import mpi_kit
import numpy as np
import pytest
from kit import settle
from torch.utils.data import DistributedSampler

from solar import PlanSampler
from solar.samplers.samplers import PlanBatchSampler

PROGRAM = Path(__file__).with_name("together_program.py")
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"chunks": (4, 6, 8)},
    {"chunks": (1, 6, 8), "compression": "gzip"},
    {"chunks": (5, 6, 8), "compression": "gzip"},
    {"chunks": (3, 3, 8), "compression": "gzip", "shuffle": True},
]
BY = ["mpi", "torch"]


def written(path: Path, samples: int, options: dict[str, Any], first: int = 0) -> str:
    """Samples whose first label is their number."""
    rng = np.random.default_rng(samples)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rng.integers(0, 9, (samples, 6, 8)).astype("f4"), **options)
        file.create_dataset("y", data=np.stack([np.arange(first, first + samples)] * 3, axis=1))
    settle(path)
    return str(path)


def case(paths: Sequence[str], **given: Any) -> dict[str, Any]:
    default = {
        "paths": list(paths), "fields": {"x": "x", "y": "y"}, "batch": 4, "seed": 3, "shuffle": True, "tail": "pad",
        "drop_last": False, "buffer": 1 << 20, "exchange": "auto", "balance": None, "known": None, "state": None,
        "begin": 0, "end": 3, "break": None, "samples": 0, "steps": {}, "ragged": {}, "unequal": "ends",
        "crops": {}, "order": {}, "shared": False,
    }  # fmt: skip
    assert given.keys() <= default.keys()
    return default | given


def run(by: str, ranks: int, folder: Path, cases: list[dict[str, Any]], nodes: int = 1) -> list[dict[int, Any]]:
    """For each case what each rank found."""
    folder.joinpath("cases.json").write_text(json.dumps(cases))
    if by == "mpi":
        hosts = [] if nodes == 1 else ["-launcher", "fork", "-hosts", ",".join(f"n{node}" for node in range(nodes))]
        said = mpi_kit.under_mpi(ranks, PROGRAM, by, folder / "cases.json", options=[*hosts], seconds=300)
    else:
        apart = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if nodes == ranks else {}
        assert apart or nodes == 1
        said = mpi_kit.under_gloo(ranks, PROGRAM, by, folder / "cases.json", env=apart, seconds=300)
    found: list[dict[int, Any]] = [{} for _ in cases]
    for one in said:
        found[one["case"]][one["rank"]] = one
    assert all(sorted(each) == list(range(ranks)) for each in found)
    return found


def steps_of(one: dict[str, Any], ranks: int, epoch: int) -> list[list[list[int]]]:
    """torch's batches of an epoch: [step][rank], the samples."""
    data = range(one["samples"])
    each = []
    for rank in range(ranks):
        own = {"num_replicas": ranks, "rank": rank, "seed": one["seed"], "shuffle": one["shuffle"]}
        if one["tail"] == "exact":
            sampler: Any = PlanSampler(data, **own, tail="exact")  # type: ignore[arg-type]
            cutter: Any = PlanBatchSampler(sampler, one["batch"], one["drop_last"])
        else:
            sampler = DistributedSampler(data, **own, drop_last=one["tail"] == "drop")  # type: ignore[arg-type]
            cutter = PlanBatchSampler(PlanSampler.like(sampler), one["batch"], one["drop_last"])
            cutter.sampler.set_epoch(epoch)
        sampler.set_epoch(epoch)
        each.append(list(cutter))
    return [[each[rank][step] for rank in range(ranks)] for step in range(len(each[0]))]


def check(one: dict[str, Any], found: dict[int, Any], *, torchs: bool) -> None:
    """Each step's samples are torch's; rank for rank, or of all ranks together."""
    ranks = len(found)
    for at, epoch in enumerate(range(one["begin"], one["end"])):
        wanted = steps_of(one, ranks, epoch)
        got = [found[rank]["epochs"][at] for rank in range(ranks)]
        if one["break"] is None:
            assert {len(each) for each in got} == {len(wanted)}
        for step, each in enumerate(zip(*got, strict=True)):
            if torchs:
                assert list(each) == wanted[step]
            assert sorted(chain(*each)) == sorted(chain(*wanted[step]))
            if one["balance"] != "uneven":
                assert sorted(map(len, each)) == sorted(map(len, wanted[step]))
    if one["balance"] == "uneven":
        for rank in range(ranks):
            taken = [len(batch) for batches in found[rank]["epochs"] for batch in batches]
            steps = [steps_of(one, ranks, epoch) for epoch in range(one["begin"], one["end"])]
            of_all = [sum(map(len, step)) for each_epoch in steps for step in each_epoch]
            assert found[rank]["weights"] == [own * ranks / all_ for own, all_ in zip(taken, of_all, strict=True)]


def check_counts(found: dict[int, Any], *, at_end: bool = True) -> None:
    """On each node all reads together are the plan's, which all of its ranks made alike.

    Where the run is not `at_end` of what it was handed, it has begun with some of what is left, and may be amid it.
    """
    for ranks in by_node(found):
        assert len({tuple(one["planned"]) for one in ranks}) == 1 or not at_end
        planned = max(one["planned"][0] for one in ranks) + sum(one["alone"][0] for one in ranks)
        reads = sum(one["counts"]["reads"] for one in ranks)
        assert reads == planned if at_end else 0 < reads <= planned


@pytest.mark.slow(but=["2-mpi"])
@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_a_node_have_torchs_batches_and_one_plan(by: str, ranks: int, tmp_path: Path) -> None:
    samples, cases = 70, []
    for number, options in enumerate(LAYOUTS):
        path = written(tmp_path / f"{number}.h5", samples, options)
        for tail in ("pad", "drop", "exact"):
            cases.append(case([path], samples=samples, tail=tail, buffer=400_000 * ranks, known=3))
    for one, found in zip(cases, run(by, ranks, tmp_path, cases), strict=True):
        assert all(each["node"] == list(range(ranks)) for each in found.values())
        check(one, found, torchs=True)
        check_counts(found)


@pytest.mark.slow(but=["auto-torch-2"])
@pytest.mark.parametrize(("by", "ranks"), [("mpi", 2), ("torch", 2), ("mpi", 3)])
@pytest.mark.parametrize("exchange", ["read", "auto"])
def test_each_node_reads_its_home_and_steps_have_the_same_samples(
    by: str, ranks: int, exchange: str, tmp_path: Path
) -> None:
    samples, cases = 70, []
    for number, options in enumerate(LAYOUTS):
        path = written(tmp_path / f"{number}.h5", samples, options)
        for tail in ("pad", "drop", "exact"):
            cases.append(case([path], samples=samples, tail=tail, buffer=400_000, exchange=exchange))
    for one, found in zip(cases, run(by, ranks, tmp_path, cases, nodes=ranks), strict=True):
        assert {each["exchange"] for each in found.values()} == {by if exchange == "auto" else "read"}
        check(one, found, torchs=False)


@pytest.mark.slow(but=["2-1", "2-2"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (4, 2)])
def test_windows_are_shared_and_sent_as_rows_are(ranks: int, nodes: int, tmp_path: Path) -> None:
    samples, cases = 70, []
    fields = {"x": "x", "y": "y", "z": "x"}
    steps = {"x": [-3, -2, -1, 0], "z": [1, 3]}
    for number, options in enumerate(LAYOUTS):
        path = written(tmp_path / f"{number}.h5", samples, options)
        for exchange, balance in (("auto", None), ("read", None), ("auto", "uneven")):
            given = {
                "samples": samples,
                "exchange": exchange,
                "balance": balance,
                "fields": fields,
                "steps": steps,
            }
            cases.append(case([path], **given, buffer=500_000 * ranks, known=3))
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        check(one, found, torchs=nodes == 1 and one["balance"] is None)
        check_counts(found)


WORLDS = [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 4)]  # ranks, nodes


def any_case(rng: np.random.Generator, ranks: int, folder: Path, number: int) -> dict[str, Any]:
    samples = int(rng.integers(24, 120))
    files = int(rng.integers(1, 3))
    options = [LAYOUTS[int(rng.integers(len(LAYOUTS)))] for _ in range(files)]
    cuts = [0, samples // 3, samples] if files == 2 else [0, samples]
    parts = [(*cut, one) for cut, one in zip(pairwise(cuts), options, strict=True)]
    paths = [written(folder / f"{number}-{b}.h5", e - b, one, b) for b, e, one in parts]
    end = int(rng.integers(1, 4))
    return case(
        paths, samples=samples, batch=int(rng.integers(2, 9)), seed=int(rng.integers(99)),
        shuffle=bool(rng.random() < 0.8), tail=str(rng.choice(["pad", "drop", "exact"])),
        buffer=int(rng.integers(150_000, 800_000)) * ranks, exchange=str(rng.choice(["auto", "read", "mpi"])),
        balance=[None, "torch", "equal", "uneven"][int(rng.integers(4))], end=end,
        known=None if rng.random() < 0.5 else end,
    )  # fmt: skip


@pytest.mark.slow(but=["2-2"])
@pytest.mark.parametrize(("ranks", "nodes"), WORLDS)
def test_any_configuration_has_each_steps_samples(ranks: int, nodes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([ranks, nodes])
    cases = [any_case(rng, ranks, tmp_path, number) for number in range(9)]
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        balance = one["balance"] or ("torch" if nodes == 1 else "equal")
        assert len({tuple(each["node"]) for each in found.values()}) == nodes
        check(one, found, torchs=balance == "torch")
        check_counts(found, at_end=one["known"] is not None)


@pytest.mark.slow(but=["2-1"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (4, 2)])
def test_all_that_fits_is_read_once_by_one_rank(ranks: int, nodes: int, tmp_path: Path) -> None:
    samples = 96
    paths = [written(tmp_path / f"{number}.h5", samples, options) for number, options in enumerate(LAYOUTS)]
    cases = [case([path], samples=samples, buffer=2 << 20, end=4) for path in paths]
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        check(one, found, torchs=nodes == 1)
        check_counts(found)
        reads = sum(each["counts"]["reads"] for each in found.values())
        assert reads <= 2 * samples  # of two fields; lines of chunks are fewer


def by_node(found: dict[int, Any]) -> list[list[dict[str, Any]]]:
    nodes = defaultdict(list)
    for one in found.values():
        nodes[tuple(one["node"])].append(one)
    return list(nodes.values())


@pytest.mark.slow(but=["2-2"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (4, 2)])
def test_ranks_that_leave_an_epoch_begin_the_next_and_go_on_from_a_state(
    ranks: int, nodes: int, tmp_path: Path
) -> None:
    samples = 90
    path = written(tmp_path / "a.h5", samples, LAYOUTS[3])
    whole = case([path], samples=samples, end=2, buffer=300_000 * ranks)
    left = whole | {"break": [0, 2]}
    [first] = run("mpi", ranks, tmp_path, [left], nodes)
    for rank in range(ranks):
        assert len(first[rank]["epochs"][0]) == 3
        assert len(first[rank]["epochs"][1]) > 3
    states = {json.dumps(each["state"]) for each in first.values()}
    assert len(states) == 1
    amid = whole | {"end": 1, "break": [0, 2]}
    [stopped] = run("mpi", ranks, tmp_path, [amid], nodes)
    resumed = whole | {"state": stopped[0]["state"]}
    for others, apart in ((ranks, nodes), (3, 1)):
        [found] = run("mpi", others, tmp_path, [resumed], apart)
        got = [sorted(chain(*(found[rank]["epochs"][0][step] for rank in range(others))))
               for step in range(len(found[0]["epochs"][0]))]  # fmt: skip
        before = [chain(*(stopped[rank]["epochs"][0][step] for rank in range(ranks))) for step in range(3)]
        seen = [*chain(*before), *chain(*got)]
        assert sorted(set(seen)) == list(range(samples))
        assert len(seen) <= samples + others  # padding


def test_ranks_that_differ_are_told_which_in_what(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", 40, {})
    program = f"""
import mpi4py.MPI, json
from solar import DataLoader, H5Dataset, PlanError
from solar.io.channels import detect
from torch.utils.data import DistributedSampler
rank = detect().rank
dataset = H5Dataset({path!r}, {{"x": "x", "y": "y"}})
for given in ({{"batch_size": 4 + (rank == 2)}}, {{"batch_size": 4, "drop_last": rank == 1}}):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset, 3, rank), buffer="1MB", **given)
    try:
        next(iter(loader))
        print(json.dumps("no error"))
    except PlanError as error:
        print(json.dumps(str(error)))
loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset, 3, rank, seed=rank), buffer="1MB")
try:
    next(iter(loader))
    print(json.dumps("no error"))
except PlanError as error:
    print(json.dumps(str(error)))
"""
    said = mpi_kit.under_mpi(3, program)
    assert len(said) == 9
    assert all("rank 2" in text and "batch_size" in text for text in said[::3])
    assert all("rank 1" in text and "drop_last" in text for text in said[1::3])
    assert all("order" in text for text in said[2::3])


@pytest.mark.slow(but=["2-2"])
@pytest.mark.parametrize(("ranks", "nodes"), [(3, 1), (2, 2)])
def test_an_epoch_may_be_shorter_than_a_step(ranks: int, nodes: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", 25, LAYOUTS[2])
    cases = [case([path], samples=25, batch=32, tail=tail, buffer=2 << 20) for tail in ("exact", "pad", "drop")]
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        check(one, found, torchs=nodes == 1)
        check_counts(found)


def said_by(ranks: int, program: str, *args: object, options: Sequence[str] = ()) -> list[Any]:
    """What ranks say of a program that sees `data`, `rank`, `ranks`, and `attempt`, which gives an error's text."""
    head = """
import json, sys
import mpi4py.MPI
from torch.utils.data import DistributedSampler, Subset
from solar import DataLoader, H5Dataset, PlanError, PlanSampler
from solar.io.channels import detect
data = H5Dataset(sys.argv[1], {"x": "x", "y": "y"}, transform=lambda sample: sample, thread_safe=True)
rank, ranks = detect().rank, detect().ranks

def attempt(**given):
    given = {"dataset": data, "batch_size": 4} | given
    try:
        loader = DataLoader(sampler=PlanSampler(given["dataset"], ranks, rank), **given)
        return [sum(1 for _ in loader) for _ in range(2)]
    except PlanError as error:
        return str(error)

"""
    return mpi_kit.under_mpi(ranks, head + program, *args, options=options)


def test_a_buffer_too_small_for_one_node_is_an_error_on_all(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", 60, {})
    apart = ["-launcher", "fork", "-hosts", "n0:2,n1:1"]
    program = """
import re
enough = int(re.search("at least buffer=([0-9]+)", attempt(buffer=1))[1])
enough = mpi4py.MPI.COMM_WORLD.bcast(enough, 2)  # for one rank
print(json.dumps(attempt(buffer=enough * 8 // 5)))
"""
    texts = said_by(3, program, path, options=apart)
    assert ["ranks 0, 1 cannot take part in the plan of a new run" in text for text in texts] == [False, False, True]
    assert all("too small" in text for text in texts[:2])


def test_ranks_with_other_subsets_are_told(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", 60, {})
    program = "print(json.dumps(attempt(dataset=Subset(data, list(range(rank, 50 + rank))), buffer='1MB')))"
    for apart in ([], ["-launcher", "fork", "-hosts", "n0,n1"]):
        assert all("Subset" in text for text in said_by(2, program, path, options=apart))


def test_without_a_buffer_asked_for_a_rank_may_look_at_a_batch_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", 60, {})
    program = "print(json.dumps(attempt() if rank == 0 else 'nothing'))"
    assert said_by(2, program, path) == [[8, 8], "nothing"]


@pytest.mark.slow(but=["node"])
@pytest.mark.parametrize("apart", [[], ["-launcher", "fork", "-hosts", "n0,n1"]], ids=["node", "nodes"])
def test_all_may_leave_shortly_before_the_end_whatever_threads_have_taken_ahead(
    apart: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path / "a.h5", 96, {})
    program = """
import time
loader = DataLoader(data, 4, sampler=PlanSampler(data, ranks, rank), buffer="1MB", num_workers=2)
counts = []
for epoch in range(4):
    loader.set_epoch(epoch)
    for number, _ in enumerate(loader):
        time.sleep(0.02 * rank)
        if number == 12 - 2 - epoch % 2:
            break
    counts.append(number)
print(json.dumps(counts))
"""
    assert said_by(2, program, path, options=apart) == [[10, 9, 10, 9]] * 2
