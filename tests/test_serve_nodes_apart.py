"""Fields with samples of their own: services of several nodes read them as one, and send each field by itself."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import limits_groups
import numpy as np
import pytest
from kit import settle
from limits_kit import BESIDE_RANK, KERNEL
from ragged_kit import matrix, sparse
from ragged_kit import written as ragged
from serve_kit import alone, check, job, soon
from serve_nodes_kit import Services
from test_serve_kinds import KINDS
from test_serve_mixed import peak
from test_serve_nodes import _travelled, on_nodes, read_by_one_and_two
from test_serve_together import SLOW, counts_of, nodes_of, planned, shared

from solar import CSR, Crops, DataLoader, H5Dataset, PlanSampler, Ragged
from solar.errors import SolarError
from solar.planning.pass_uses import SampleUses
from solar.planning.sweep import total
from solar.service.shared_data import SharedData
from solar.service.window import shares_of

# What a service's MPI maps and has on its way, and what malloc keeps in an arena for each of its threads: together with
# what a rank has, 28 MiB on an idle machine, and more where threads wait long for a core.
OF_MPI = 20 << 20
Memory = list[list[list[Any]]]  # of each step and field what lies at each place: a data set's number, and a row


def cells(path: Path) -> H5Dataset:
    matrix(path, sparse(6000, 300), "contiguous")
    return H5Dataset(path, {"x": CSR("X"), "y": "y"})


def points(path: Path) -> H5Dataset:
    lengths = np.random.default_rng(0).integers(0, 60, 4000)
    ragged(path, lengths.tolist(), "gzip", row=(16,))
    return H5Dataset(path, {"v": Ragged("v", ends="ends", batch="flat"), "y": "y"})


def boxes(path: Path) -> H5Dataset:
    values = np.random.default_rng(1).integers(0, 99, (160, 160, 160))
    with h5py.File(path, "w") as file:
        for name, kind in (("u", "f4"), ("w", ">i2")):
            file.create_dataset(name, data=values.astype(kind), chunks=(8, 8, 8), compression="gzip")
    settle(path)
    return H5Dataset(path, {"u": "u", "w": "w"}, samples=Crops((12, 12, 12)))


def once(path: Path) -> H5Dataset:
    """All rows lie in one chunk, so that one node has nothing of them."""
    ragged(path, [0, 3, 1, 0, 0, 2] * 20, "contiguous")
    return H5Dataset(path, {"v": Ragged("v", ends="ends"), "y": "y"})


MADE = {"a matrix": cells, "unequal": points, "boxes": boxes, "all of a field in one place": once}


# --- what is planned, and where it lies ----


@pytest.mark.slow(every=8)
@pytest.mark.parametrize("seeds", [[[1], [1]], [[1, 2], [], [2, 4]]], ids=str)
@pytest.mark.parametrize("kind", MADE)
def test_each_job_finds_its_samples_of_each_field_in_the_memory_of_its_node(
    kind: str, seeds: list[list[int]], tmp_path: Path
) -> None:
    nodes = nodes_of(MADE[kind](tmp_path / "x.h5"), seeds, 64 << 20)
    data, windows = nodes[0][0].opened, planned(nodes)
    assert data.apart == len(data.fields) > 1
    travelled = np.zeros(data.apart, np.int64)
    for number in windows[0].passes.segments:
        parts = [window.passes.segment(number) for window in windows]
        memory = [provided(data, part.planned, part.sizes) for part in parts]
        sent: dict[tuple[int, int, int], list[Any]] = {}
        for rank, part in enumerate(parts):
            assert part.parcels.letters == data.apart
            for letter, to, begin, end in part.parcels.sent.tolist():
                step, field = divmod(letter, data.apart)
                sent.setdefault((letter, rank, to), []).extend(memory[rank][step][field][begin:end])
        for rank, part in enumerate(parts):
            for letter, of, place in part.parcels.come.tolist():
                step, field = divmod(letter, data.apart)
                assert memory[rank][step][field][place] is None
                memory[rank][step][field][place] = sent[letter, of, rank].pop(0)
                travelled[field] += 1
        assert not any(sent.values())
        for rank, (part, (_, here)) in enumerate(zip(parts, nodes, strict=True)):
            shares = shares_of(data, here, number * windows[0].length, len(part.sizes))
            assert sum(map(len, shares)) > 0 or not here
            for step, own in enumerate(shares):
                for share in own:
                    uses = share.member.order.stretch(share.number, share.number + 1)
                    fields = uses.which // (len(data.pieces) // data.apart)
                    found = zip(fields.tolist(), share.places.tolist(), strict=True)
                    lies = [memory[rank][step][field][place] for field, place in found]
                    assert lies == list(zip(uses.which.tolist(), uses.rows.tolist(), strict=True))
    assert travelled.sum() > 0


def provided(data: SharedData, uses: SampleUses, sizes: Any) -> Memory:
    """What a node's own reads put into the memory of its steps."""
    found: Memory = [[[None] * size for _ in data.fields] for size in sizes.tolist()]
    assert uses.which is not None and uses.places is not None
    steps = np.repeat(np.arange(len(sizes)), uses.sizes).tolist()
    for step, which, row, place in zip(
        steps, *(one.tolist() for one in (uses.which, uses.rows, uses.places)), strict=True
    ):
        field = which // (len(data.pieces) // data.apart)
        assert found[step][field][place] is None
        found[step][field][place] = which, row
    return found


@pytest.mark.slow(every=6)
@pytest.mark.parametrize("seeds", [[[1], [1]], [[1], [2]]], ids=str)
@pytest.mark.parametrize(("kind", "share"), [("a matrix", 0.5), ("unequal", 2), ("boxes", 2)])
def test_what_all_plan_to_read_is_what_one_service_of_all_the_memory_would(
    kind: str, share: float, seeds: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.service.shared_data.profile.stored_or_guessed", lambda _: (SLOW, False))
    data = MADE[kind](tmp_path / "x.h5")
    memory = int(share * shared(data).nbytes)
    together = nodes_of(data, seeds, memory // 2)
    alone = nodes_of(data, [[seed for own in seeds for seed in own]], memory)
    both, one = (total(counts_of(planned(nodes))) for nodes in (together, alone))
    assert abs(both.reads / one.reads - 1) < 0.05 and both.bytes < 1.1 * one.bytes


# --- what is read, sent, and held, by services under mpiexec ----


@pytest.mark.slow(but=["boxes, gzip"])
@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_two_nodes_have_the_batches_that_they_would_have_alone(kind: str, tmp_path: Path) -> None:
    data = [KINDS[kind](tmp_path) for _ in range(4)]
    with Services(*tmp_path.glob("*.h5"), where=tmp_path / "s", memory="512MiB") as services:
        found = on_nodes(data, services)
        assert soon(lambda: _travelled(services)), services.status()
        status = services.status()
    check(data, found)
    assert sum(counts["alone"] for _, counts in found.values()) <= 4  # each reads one while it joins
    assert [one["nodes"] for one in status] == [2, 2]
    there = [one["read_bytes"] > 0 for one in status]
    assert there == [one["sent_samples"] > 0 for one in status]
    assert all(there) or (kind == "boxes" and any(there))  # of which each field is one block, at the home of one node


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("kind", ["a matrix", "unequal", "boxes"])
def test_both_nodes_together_read_what_one_service_for_all_reads(
    kind: str, seeds: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    data = MADE[kind](path)
    stored = path.stat().st_size
    read, both = read_by_one_and_two(path, data, seeds, 2 * shared(data).nbytes, tmp_path, monkeypatch)
    assert 0.8 * stored <= sum(both) < min(1.2 * read, 1.7 * stored)  # holes are read along; the rest is metadata
    assert max(both) < stored


@pytest.mark.slow
def test_services_hold_no_more_than_their_memory(tmp_path: Path) -> None:
    """Both, with what Python and MPI take beside, in a control group that may have less than the data."""
    path, nbytes, found = tmp_path / "x.h5", 24 << 20, dict[int, Any]()
    ragged(path, np.random.default_rng(0).integers(0, 9, 2500).tolist(), row=(4096,))
    data = H5Dataset(path, {"v": Ragged("v", ends="ends", batch="flat"), "y": "y"})
    limit = 2 * (nbytes + BESIDE_RANK + KERNEL + OF_MPI)
    with ExitStack() as stack:
        group = stack.enter_context(limits_groups.made())
        enters = f"limits_groups.enter(pathlib.Path({str(group)!r}), {limit})" if group else ""
        before = f"import pathlib, limits_groups, solar.cli.serve, solar.service.service\n{enters}\n"
        services = stack.enter_context(Services(path, where=tmp_path / "s", memory=str(nbytes), before=before))
        jobs = [threading.Thread(target=job, args=(data, n, 2, services.socket(n), found)) for n in range(4)]
        for one in jobs:
            one.start()
        for one in jobs:
            one.join(90)
        if group is not None:
            assert limits_groups.killed(group) == 0
            assert peak(group) <= limit < path.stat().st_size
        status = services.status()
    assert [found[seed][0] for seed in range(4)] == [alone(data, seed, 2) for seed in range(4)]
    assert all(counts["served"] > 2000 for _, counts in found.values())
    assert all(one["held_bytes"] <= nbytes and one["sent_samples"] > 0 for one in status)
    if group is None:
        pytest.skip("the batches are right; no control group of memory can be made here, so the cap was not tried")


@pytest.mark.slow
def test_a_damaged_chunk_of_a_field_is_an_error_of_the_jobs_that_want_it_on_both_nodes(tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    ragged(path, [5] * 400, "gzip")
    with h5py.File(path, "r+") as file:
        file["v"].id.write_direct_chunk((5 * 310,), b"this is no deflate stream")  # a sample is a chunk
    settle(path)
    data = H5Dataset(path, {"v": Ragged("v", ends="ends", batch="flat"), "y": "y"})
    found: dict[int, tuple[int, str]] = {}

    def one(number: int, service: str | None = None) -> tuple[int, str]:
        order, seen = PlanSampler(data, seed=number), 0
        with DataLoader(data, 4, sampler=order, service=service, buffer=0) as loader:
            try:
                for _batch in loader:
                    seen += 1
            except SolarError as error:
                return seen, str(error)
        return seen, ""

    with Services(path, where=tmp_path / "s") as services:
        jobs = [
            threading.Thread(target=lambda n: found.update({n: one(n, services.socket(n))}), args=(n,)) for n in (0, 1)
        ]
        for of in jobs:
            of.start()
        for of in jobs:
            of.join(60)
        status = services.status()
    assert [found[number][0] for number in (0, 1)] == [one(number)[0] for number in (0, 1)]
    assert all("/v, block 310, " in said for _, said in found.values())  # of a buffer's error the block is the place
    assert all(of["sent_samples"] > 0 for of in status)
