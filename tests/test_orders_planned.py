"""Orders with repeats are planned like shuffles: run, storage and `solar plan --weights` agree on each byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import settle
from test_one_door import DISK, SAMPLES, SEED, Asked, job, least_of, slowed, summed, tabled, taken, written
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import WeightedRandomSampler

from solar import DataLoader, H5Dataset, Mixture, PlanError, PlanSampler
from solar.cli import main
from solar.planning import torch_shuffles
from solar.planning.job import NodePlan, plan_node

__all__ = ["slowed"]  # a fixture
LAYOUTS = ["contiguous", "deflate, one sample", "deflate, four samples", "our codec", "several files"]
EPOCHS = 3


def weights() -> np.ndarray[Any, Any]:
    """A tenth of the data comes ten times as often as the rest."""
    often = np.random.default_rng(2).permutation(SAMPLES) < SAMPLES // 10
    return np.where(often, 10.0, 1.0)


def asked(layout: str) -> Asked:
    return Asked(layout, 0.1, 8, None, "planned", EPOCHS, DISK)


def plan_of(layout: str, paths: list[str], fields: dict[str, str], share: float) -> tuple[NodePlan, int]:
    """The plan of a training by these weights, with memory for a share of the data; and that memory."""
    empty = replace(job(asked(layout), paths, fields, 1), order=torch_shuffles.weighted_order(weights(), seed=SEED))
    memory = least_of(empty) + int(share * sum(piece.units.total_nbytes for piece in empty.pieces))
    return plan_node(replace(empty, memory=memory)), memory


def loader_of(paths: list[str], fields: dict[str, str], memory: int) -> Any:
    data = H5Dataset(paths, fields)
    sampler = PlanSampler(data, 1, 0, seed=SEED, weights=weights())
    return DataLoader(data, 8, sampler=sampler, buffer=memory, epochs=EPOCHS, storage=DISK)


def read_as_planned(loader: Any, mount: Any, wanted: Any) -> dict[str, Any]:
    """The loader's counts, after so many epochs in which it asked the storage of `mount` for what was planned."""
    before = mount.counts()
    taken(loader, EPOCHS)
    run, stats = loader._buffered.running.counts(), loader.stats()
    loader._buffered.close()
    after = mount.counts()
    requests, nbytes = (after[name] - before[name] for name in ("requests", "bytes"))
    assert (run["reads"], run["requests"], run["bytes"]) == (wanted.reads, wanted.requests, wanted.bytes)
    assert nbytes == stats["bytes"] == wanted.bytes
    assert requests <= wanted.requests + 2 + (after["pieces"] - before["pieces"]) // 20
    return dict(stats)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("share", [0.1, 0.4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_storage_counts_what_was_planned_for_weights(layout: str, share: float, slowed: tuple[Any, Path]) -> None:
    mount, folder = slowed
    own = folder / f"{layout} {share}"
    own.mkdir()
    paths, fields = written(own, layout)
    paths = [str(mount.path / Path(path).relative_to(folder)) for path in paths]
    plan, memory = plan_of(layout, paths, fields, share)
    wanted = summed(plan, EPOCHS)
    with loader_of(paths, fields, memory) as loader:
        stats = read_as_planned(loader, mount, wanted)
    assert stats["buffer_hits"] == EPOCHS * SAMPLES - wanted.reads > 0  # repeats above all


def test_solar_plan_says_what_weights_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths, fields = written(tmp_path, "contiguous")
    plan, memory = plan_of("contiguous", paths, fields, 0.2)
    with h5py.File(paths[0], "a") as file:
        file["weight"] = weights()
    settle(paths[0])
    np.save(tmp_path / "w.npy", weights())
    for name in ("/weight", str(tmp_path / "w.npy")):
        table = tabled(asked("contiguous"), tmp_path, fields | {"weights": f"--weights={name}"}, memory, capsys)
        first, ours, wanted = table["first_epoch"], table["policies"]["solar"], summed(plan, EPOCHS)
        assert table["weights"] == name
        for count in ("requests", "bytes"):
            assert first[count] + (EPOCHS - 1) * ours[count] == getattr(wanted, count)
    capsys.readouterr()
    files = [paths[0], "/x", "--memory", "200k", "--weights", "/weight"]
    assert main(["plan", *files]) == 0
    assert "drawn by weights" in capsys.readouterr().out
    for wrong, said in (("/x", "a number for each is needed"), ("no.npy", "no.npy"), ("/none", "/none")):
        assert main(["plan", *files[:-1], wrong]) != 0
        assert said in capsys.readouterr().err


def test_two_sources_of_unlike_size_and_storage_share_one_buffer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, numbers = {}, 0
    for name, size, options in (("a", 200, {}), ("b", 50, {"chunks": (5, 40), "compression": "gzip"})):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            values = np.arange(numbers, numbers + size)[:, np.newaxis].repeat(40, 1).astype("f4")
            file.create_dataset("x", data=values, **options)
        settle(tmp_path / f"{name}.h5")
        made[name], numbers = H5Dataset(tmp_path / f"{name}.h5", {"x": "x"}), numbers + size
    of = Mixture({"a": (made["a"], 0.3), "b": (made["b"], 0.7)}, epoch=240)
    sampler = PlanSampler(of, 1, 0, seed=SEED)
    with DataLoader(of, 8, sampler=sampler, buffer=40_000, epochs=EPOCHS, storage=DISK) as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            assert [int(row[0]) for batch in loader for row in batch["x"]] == sampler.order().tolist()
        run, said = loader._buffered.running.counts(), loader._buffered.planned
        assert (run["reads"], run["requests"], run["bytes"]) == (said.reads, said.requests, said.bytes)
        assert loader.stats()["buffer_hits"] > 240
    named = ["--mixture", f"{tmp_path}/a.h5=0.3", "--mixture", f"{tmp_path}/b.h5=0.7", "--mixture-epoch", "240"]
    run = ["--batch-size", "8", "--memory", "40000", "--epochs", str(EPOCHS), "--seed", str(SEED), "--ranks", "1"]
    on = ["--latency", f"{DISK.latency}s", "--bandwidth", str(DISK.bandwidth), "--iops", str(DISK.iops)]
    assert main(["plan", "/x", *named, *run, *on]) == 0
    assert "mixed, 240 of them an epoch" in capsys.readouterr().out
    assert main(["plan", "/x", *named, *run, *on, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    first, later = table["first_epoch"], table["policies"]["solar"]
    assert table["mixture"] == {f"{tmp_path}/a.h5": 0.3, f"{tmp_path}/b.h5": 0.7}
    for count in ("reads", "requests", "bytes"):
        assert first[count] + (EPOCHS - 1) * later[count] == pytest.approx(getattr(said, count), abs=1e-6)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["x"] = np.zeros((9, 3))
    wrong = (
        (["/x", "--mixture", f"{tmp_path}/a.h5=0.3", "--mixture", f"{tmp_path}/c.h5=1"], "cannot stand in one batch"),
        (["/x", "--mixture", f"{tmp_path}/a.h5=0"], "above 0"),
        (["/x", *named, "--weights", "/x"], "leave out --weights"),
        (["/x", *named[:2], *named[:2]], "given twice"),
    )
    for asked_for, words in wrong:
        assert main(["plan", *asked_for, "--memory", "40000"]) != 0
        assert words in capsys.readouterr().err


# --- torch's own sampler by weights ----


def drawn(kind: Any, data: Any, more: dict[str, Any], disturbed: bool) -> list[list[int]]:
    """The samples of four epochs; with a generator that the program may draw from, too."""
    generator = torch.Generator().manual_seed(3)
    sampler = WeightedRandomSampler(weights(), 250, True, generator)
    loader = kind(data, 8, sampler=sampler, **more)
    found = []
    for epoch in range(4):
        found += [batch["x"].tolist() for batch in loader]
        if disturbed and epoch == 1:
            torch.rand(3, generator=generator)
    told = getattr(loader, "_buffered", None)
    found.append([told is not None and len(told.planned_run.window.segments)])
    return found


@pytest.mark.parametrize("disturbed", [False, True])
def test_torchs_weighted_sampler_is_torchs_and_known_for_epochs_ahead(tmp_path: Path, disturbed: bool) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(SAMPLES)
    settle(tmp_path / "x.h5")
    data = H5Dataset(tmp_path / "x.h5", {"x": "x"})
    ours = drawn(DataLoader, data, {"buffer": 20_000, "epochs": 4, "storage": DISK}, disturbed)
    theirs = drawn(TorchLoader, data, {}, disturbed)
    assert ours[:-1] == theirs[:-1]
    if not disturbed:
        assert ours[-1] == [4]  # all epochs are planned together


def test_weighted_plans_of_any_ranks_are_the_samplers() -> None:
    for ranks in (1, 3, 8):
        of = torch_shuffles.weighted_order(weights(), seed=SEED, ranks=ranks)
        whole = of.of(2).tolist()
        for rank in range(ranks):
            one = PlanSampler(range(SAMPLES), ranks, rank, seed=SEED, weights=weights())
            one.set_epoch(2)
            assert list(one) == whole[rank::ranks]
    with pytest.raises(PlanError, match="all 2 are 0"):
        torch_shuffles.weighted_order(np.zeros(2))
