"""A mixed order is planned, buffered, shared and shown like a shuffle: run, storage and `solar plan` agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from test_one_door import DISK, SEED, job, least_of, slowed, summed, tabled, written
from test_orders_planned import EPOCHS, asked, read_as_planned
from test_together import case
from test_together import run as run_together
from test_together import written as written_together
from torch.utils.data import DataLoader as TorchLoader

from solar import CSR, Crops, DataLoader, Field, H5Dataset, PlanSampler, Ragged, Windows
from solar.cli import main
from solar.planning import spread, torch_shuffles
from solar.planning.job import NodePlan, plan_node, predicted
from solar.planning.units import uniform
from solar.samplers.mixed_blocks import BlockMix, by_mixed_blocks
from solar.values import Storage

__all__ = ["slowed"]  # a fixture
LAYOUTS = {"contiguous": 4, "deflate, four samples": 8, "several files": 8}  # and blocks


def mixed(data: Any, block: Any, window: Any, seed: int = SEED, **more: Any) -> PlanSampler:
    return PlanSampler(data, 1, 0, seed=seed, order="mixed", block=block, window=window, **more)


def plan_of(layout: str, paths: list[str], fields: dict[str, str], share: float) -> tuple[NodePlan, int]:
    """The plan of a training in a mixed order, with memory for a share of the data; and that memory."""
    by = mixed(H5Dataset(paths, fields), LAYOUTS[layout], 40).by
    assert by is not None
    empty = replace(job(asked(layout), paths, fields, 1), order=torch_shuffles.sampler_order(by, seed=SEED))
    memory = least_of(empty) + int(share * sum(piece.units.total_nbytes for piece in empty.pieces))
    return plan_node(replace(empty, memory=memory)), memory


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_storage_counts_what_was_planned_for_a_mixed_order(
    layout: str, slowed: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mount, folder = slowed
    own = folder / f"mixed {layout}"
    own.mkdir()
    paths, fields = written(own, layout)
    plan, memory = plan_of(layout, paths, fields, 0.15)
    wanted = summed(plan, EPOCHS)
    far = [str(mount.path / Path(path).relative_to(folder)) for path in paths]
    data = H5Dataset(far, fields)
    sampler = mixed(data, LAYOUTS[layout], 40)
    with DataLoader(data, 8, sampler=sampler, buffer=memory, epochs=EPOCHS, storage=DISK) as loader:
        read_as_planned(loader, mount, wanted)
    order = {"order": "--order=mixed", "block": f"--block={LAYOUTS[layout]}", "window": "--window=40"}
    table = tabled(asked(layout), own, fields | order, memory, capsys)
    first, ours = table["first_epoch"], table["policies"]["solar"]
    for count in ("requests", "bytes"):
        assert first[count] + (EPOCHS - 1) * ours[count] == getattr(wanted, count)
    chunks = {} if layout == "contiguous" else {"chunk": 4}
    assert table["mixed"] == {"block": LAYOUTS[layout], "window": 40, **chunks}


# Batches, whatever samples are


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kinds") / "kinds.h5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        values = rng.integers(0, 90, (400, 64)).astype("f4")
        file["x"], file["good"] = values, np.arange(400) % 3 > 0
        file.create_dataset("z", data=values, chunks=(10, 64), compression="gzip")
        lengths = np.arange(400) % 7 + 1
        file["ends"] = np.cumsum(lengths)
        hits = rng.integers(0, 90, (int(lengths.sum()), 4)).astype("f4")
        file.create_dataset("hits", data=hits, chunks=(50, 4), compression="gzip")
        volume = rng.integers(0, 90, (64, 16, 16)).astype("f4")
        file.create_dataset("volume", data=volume, chunks=(8, 8, 8), compression="gzip")
        sparse, counts = file.create_group("X"), np.arange(400) % 5
        sparse.attrs.update({"encoding-type": "csr_matrix", "shape": (400, 9)})
        sparse["indptr"] = np.concatenate(([0], np.cumsum(counts)))
        sparse.create_dataset("indices", data=np.concatenate([np.arange(n) for n in counts]), chunks=(40,))
        sparse.create_dataset("data", data=np.arange(float(counts.sum())), chunks=(40,), compression="gzip")
    settle(str(path))
    return str(path)


KINDS: dict[str, Any] = {
    "rows": ("x", {}),
    "chunks": ("z", {}),
    "a mask": ("z", {"where": "good"}),
    "windows": (Field("z", steps=(0, 1, 2)), {"samples": Windows(every=2)}),
    "boxes": ("volume", {"samples": Crops((4, 4, 4))}),
    "ragged": (Ragged("hits", ends="ends", batch="flat"), {}),
    "a sparse matrix": (CSR("X", dense=True), {}),
}


def flat(batch: Any) -> list[torch.Tensor]:
    return [*batch] if isinstance(batch, tuple) else [batch]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("buffer", [0, 60_000])
def test_batches_are_those_of_the_samples_and_go_on_where_they_were(kinds: str, kind: str, buffer: int) -> None:
    field, more = KINDS[kind]
    data = H5Dataset(kinds, field, **more)
    options = {"buffer": buffer, "epochs": 2, "storage": DISK}
    with DataLoader(data, 8, sampler=mixed(data, 10, 60), **options) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            whole = [flat(batch) for batch in loader]
        loader.set_epoch(1)
        batches = iter(loader)
        found = [flat(next(batches)) for _ in range(5)]
        state = json.loads(json.dumps(loader.state_dict()))
        del batches
    with DataLoader(data, 8, sampler=mixed(data, 10, 60), **options) as rest:
        rest.load_state_dict(state)
        found += [flat(batch) for batch in rest]
    other = mixed(data, 10, 60)
    other.set_epoch(1)
    order = other.order().tolist()
    assert sorted(order) == [*range(len(data))]
    assert len(found) == len(whole) == -(-len(data) // 8)
    for one, two in zip(found, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    for place, batch in enumerate(whole):
        wanted = data.read_batch(order[8 * place : 8 * place + 8])
        if kind not in ("ragged", "a sparse matrix"):
            assert np.array_equal(batch[0].numpy(), wanted)
    if kind in ("rows", "chunks", "a mask", "windows"):
        theirs = [flat(batch) for batch in TorchLoader(data, 8, sampler=other)]
        assert all(torch.equal(a[0], b[0]) for a, b in zip(whole, theirs, strict=True))


def test_a_chunk_is_decoded_little_more_than_once_in_an_epoch_where_memory_holds_two_windows(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 2**32, (4000, 64), np.uint32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(10, 64), compression="gzip")
    settle(str(tmp_path / "a.h5"))
    data = H5Dataset(tmp_path / "a.h5", "x")
    decoded = {}
    for name, sampler in (("mixed", mixed(data, 10, 200)), ("exact", PlanSampler(data, 1, 0))):
        with DataLoader(data, 8, sampler=sampler, buffer=120_000, epochs=1, storage=DISK) as loader:
            assert sum(len(batch) for batch in loader) == 4000
            decoded[name] = loader.stats()["bytes_decoded"] / values.nbytes
    assert decoded["mixed"] < 1.3
    assert decoded["exact"] > 3 * decoded["mixed"]


def test_ranks_of_a_node_have_the_plan_of_the_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any number of ranks makes the same steps, as `solar digest` has them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4800).reshape(480, 10), chunks=(8, 10), compression="gzip")
    settle(str(tmp_path / "a.h5"))
    found = []
    for more in (["--batch-size", "8"], ["--batch-size", "2", "--ranks", "4"], ["--batch-size", "8", "--buffer", "0"]):
        order = ["--order", "mixed", "--block", "320B", "--window", "10%"]
        assert main(["digest", str(tmp_path / "a.h5"), "x", "--json", *order, *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["epochs"][0]["digest"])
    assert len(set(found)) == 1
    assert main(["digest", str(tmp_path / "a.h5"), "x", "--json", "--batch-size", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"][0]["digest"] != found[0]
    order = ["--order", "mixed", "--block", "8", "--window", "48"]
    assert main(["rehearse", str(tmp_path / "a.h5"), "x", "--batch-size", "8", "--json", *order]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 480


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_ranks_read_what_was_planned_of_a_mixed_order(nodes: int, tmp_path: Path) -> None:
    """On one node, which they share, and on two, which send each other samples; each batch is compared there."""
    path = written_together(tmp_path / "a.h5", 700, {"chunks": (10, 6, 8), "compression": "gzip"})
    order = {"order": "mixed", "block": 20, "window": 100}
    asked = case([path], samples=700, tail="pad", buffer=400_000, known=3, order=order)
    exact = case([path], samples=700, tail="pad", buffer=400_000, known=3)
    found, usual = run_together("torch", 2, tmp_path, [asked, exact], nodes)
    ranks = [found[0], found[1]]
    wanted = mixed(H5Dataset(path, {"x": "x", "y": "y"}), 20, 100, seed=asked["seed"])
    for epoch in range(3):
        wanted.set_epoch(epoch)
        steps = [of_rank["epochs"][epoch] for of_rank in ranks]
        taken = sorted(int(one) for of_rank in steps for step in of_rank for one in step)
        assert taken == [*range(700)]
        first = {int(one) for of_rank in steps for one in of_rank[0]}
        assert first == {*wanted.order()[:8].tolist()}
    reads = [sum(one["counts"]["reads"] for one in ranks), sum(one["counts"]["reads"] for one in usual.values())]
    planned = [*ranks[0]["planned"]] if nodes == 1 else np.sum([one["planned"] for one in ranks], axis=0).tolist()
    assert reads[0] == planned[0]


# What it reads and how random it is


def test_a_small_memory_reads_a_few_scans_where_an_exact_shuffle_reads_many() -> None:
    """The figures of docs/orders.md: 2 GiB of 64 KiB, disks."""
    samples, nbytes = 32_768, 1 << 16
    units, disks = uniform(samples, nbytes), Storage(1e-3, 1e9, 500)
    for share, most, exact in ((0.02, 2.2, 9.2), (0.05, 1.9, 8.0), (0.1, 1.45, 4.4)):
        order = by_mixed_blocks(BlockMix(samples, 16, int(share * samples / 2)))
        orders = (torch_shuffles.sampler_order(order), torch_shuffles.distributed(samples))
        terms: dict[str, Any] = {"batch": 64, "memory": int(share * samples * nbytes), "epochs": 3}
        ours, theirs = (predicted(one, units, disks, **terms).scans for one in orders)
        assert ours <= most
        assert theirs >= exact


@pytest.fixture
def slow_spread() -> Iterator[Any]:
    def measured(first: list[int], second: list[int], step: int) -> tuple[float, float, float]:
        samples = max(first + second) + 1
        steps = [first[begin : begin + step] for begin in range(0, len(first), step)]
        whole = [one for one in steps if len(one) == step] or steps
        regions = np.mean([len({sample * spread.REGIONS // samples for sample in one}) for one in whole])
        at = {sample: place for place, sample in enumerate(first)}
        lie = [at[sample] for sample in sorted(at)]
        later = {sample: place // step for place, sample in enumerate(second)}
        pairs = [(a, b) for one in steps for a in one for b in one if a != b]
        again = np.mean([later[a] == later[b] for a, b in pairs])
        return float(regions), float(np.median(np.abs(np.diff(lie)))), float(again)

    yield measured


@pytest.mark.parametrize(("samples", "step"), [(60, 7), (256, 16), (8, 8)])
def test_the_spread_is_what_a_slow_count_says(samples: int, step: int, slow_spread: Any) -> None:
    rng = np.random.default_rng(samples)
    first, second = rng.permutation(samples), rng.permutation(samples)
    wanted = slow_spread(first.tolist(), second.tolist(), step)
    assert spread.spread_of(first, second, step) == pytest.approx(wanted)


def plan(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    capsys.readouterr()
    sizes = ["--samples", "8192", "--sample-bytes", "64KiB", "--batch-size", "16"]
    assert main(["plan", *sizes, *options]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    return json.loads(out) if "--json" in options else out


DISKS = ["--latency", "1ms", "--bandwidth", "1GB/s", "--iops", "500"]
NVME = ["--latency", "100us", "--bandwidth", "3GB/s", "--iops", "100000"]


def test_solar_plan_shows_windows_and_advises_the_cheapest_that_keeps_a_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    memory = ["--memory", "30MiB", "--order", "mixed"]
    told = plan(capsys, *memory, *DISKS, "--json")
    exact, *others = told["windows"]
    assert exact["window"] is None
    assert told["block"] == 16
    assert told["gains"]
    assert {one["window"] for one in others} >= {told["largest_window"]}
    keeping = [one for one in others if one["regions"] >= 0.5 * exact["regions"]]
    assert told["advised"] == min(keeping, key=lambda one: one["seconds"])["window"] == told["mixed"]["window"]
    ours = next(one for one in others if one["window"] == told["advised"])
    assert told["policies"]["solar"]["requests"] == ours["requests"] < exact["requests"]
    assert ours["again"] >= exact["again"]
    assert ours["apart"] < exact["apart"]
    more = plan(capsys, *memory, *DISKS, "--spread", "80%", "--json")
    assert more["advised"] > told["advised"]
    said = plan(capsys, *memory, *DISKS)
    assert f'PlanSampler(data, order="mixed", block=16, window={told["advised"]})' in said
    assert "exact shuffle" in said
    assert "Blocks of 16 samples (1 MiB)." in said


def test_solar_plan_says_when_nothing_is_gained_and_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    memory = ["--memory", "60MiB", "--order", "mixed"]
    assert "Nothing is gained by a mixed order here" in plan(capsys, *memory, *NVME)
    said = plan(capsys, *memory, *DISKS, "--window", "50%")
    fits = plan(capsys, *memory, *DISKS, "--window", "50%", "--json")["largest_window"]
    assert f"The largest window that fits is --window {fits}." in said
    assert "4,096 (256 MiB) *" in said
    alone = plan(capsys, *memory, *DISKS, "--window", str(fits))
    assert "parts of a window are read again" not in alone
    kept = plan(capsys, *memory, *DISKS, "--spread", "100%", "--block", "256")
    assert "No window here keeps 100% of the exact shuffle's spread" in kept
    bare = plan(capsys, "--memory", "0", "--order", "mixed", *DISKS, "--json")
    assert bare["largest_window"] == 0


def test_jobs_of_a_study_read_the_blocks_of_a_mixed_order_once(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ["--memory", "120MiB", *DISKS, "--jobs", "4", "--order", "mixed", "--window", "400", "--json"]
    apart, study = plan(capsys, *jobs), plan(capsys, *jobs, "--study")
    assert study["policies"]["solar"]["requests"] < 0.5 * apart["policies"]["solar"]["requests"]
    assert (study["order"], study["stretch"]) == ("study", 400 / 8192)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--window", "5%"], "--window 0.05 is of a mixed order: give --order mixed, too"),
        (["--block", "5"], "--block 5 is of a mixed order"),
        (["--order", "mixed", "--window", "8"], "a window mixes several blocks"),
        (["--order", "mixed", "--window", "auto"], "an order must not follow from the machine"),
        (["--order", "mixed", "--window", "32x"], "is not a size such as"),
        (["--order", "mixed", "--weights", "w.npy"], "--order mixed and --weights are two orders"),
        (["--order", "mixed", "--jobs", "2"], "give --window, too"),
        (["--order", "mixed", "--jobs", "2", "--window", "500", "--study", "0.2"], "the windows are the stretches"),
    ],
)
def test_what_makes_no_sense_is_said(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--samples", "8192", "--sample-bytes", "64KiB", "--batch-size", "16", "--memory", "60MiB"]
    assert main(["plan", *sizes, *options]) != 0
    assert said in capsys.readouterr().err
    assert main(["digest", "x.h5", "--batch-size", "8", "--order", "mixed"]) != 0


def test_a_window_of_a_field_is_told_from_that_of_an_order(kinds: str, capsys: pytest.CaptureFixture[str]) -> None:
    order = ["--order", "mixed", "--block", "10", "--window", "60", "--window", "z=0:3", "--every", "2"]
    assert main(["plan", kinds, "--memory", "60k", "--batch-size", "8", *order, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["mixed"] == {"block": 10, "window": 60, "chunk": 5} and told["chunk"] == 5
    assert told["samples"] == 199
    with pytest.raises(SystemExit):
        main(["plan", kinds, "--window", "z=x"])
    assert "z=x" in capsys.readouterr().err


# What a report says


def test_a_report_says_when_a_mixed_order_would_be_read_in_half_the_time(tmp_path: Path) -> None:
    disks = Storage(1e-3, 1e9, 500)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.random.default_rng(0).integers(0, 2**32, (4096, 4096), np.uint32)
    settle(str(tmp_path / "a.h5"))
    data = H5Dataset(tmp_path / "a.h5", "x")

    def reported(sampler: Any, memory: int, storage: Storage = disks) -> str:
        with DataLoader(data, 16, sampler=sampler, buffer=memory, epochs=2, storage=storage) as loader:
            assert sum(1 for _ in loader) == 256
            loader._stats.waited("storage", 300.0)  # or there is nothing to say
            return str(loader.report())

    exact = reported(PlanSampler(data, 1, 0), 7 << 20)
    assert 'PlanSampler(data, order="mixed", block=64, window=' in exact
    assert "16 samples would come from" in exact
    assert "of 128 parts of the data instead of 15" in exact
    assert "mixed" not in reported(PlanSampler(data, 1, 0), 7 << 20, Storage(1e-4, 3e9, 100_000))  # nothing is gained
    assert "mixed" not in reported(PlanSampler(data, 1, 0, weights=np.ones(4096)), 7 << 20)
    assert "mixed" not in reported(mixed(data, 64, 200), 7 << 20)
    large = reported(mixed(data, 64, 1000), 7 << 20)
    assert "A window of the mixed order has 1,000 samples, and memory has room for" in large
