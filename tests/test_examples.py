"""The trainings of examples/: both loaders give the same losses to the bit, these fall, and the physics is right."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kit import SHARED
from ready_kit import python, torchrun

from solar import PlanSampler

ROOT = Path(__file__).parent.parent
SMALL = {
    "ptychonn": "--samples 128 --size 32 --width 4 --epochs 3 --batch-size 8 --rate 5e-3",
    "autophasenn": "--samples 32 --size 16 --width 2 --epochs 3 --batch-size 4 --rate 5e-3 --compression gzip",
    "cosmoflow": "--samples 48 --size 32 --width 2 --epochs 6 --batch-size 4 --rate 5e-3 --compression lzf",
    "flow": "--samples 8 --size 32 --width 8 --epochs 3 --batch-size 4 --rate 5e-3 --compression lzf",
    "segmentation": "--samples 8 --size 32 --width 4 --epochs 4 --batch-size 4 --rate 1e-2 --compression gzip",
    "cells": "--samples 640 --size 200 --width 8 --epochs 3 --batch-size 32 --rate 2e-2 --compression gzip",
}
INPUT = {"flow": "t0_fields/vorticity", "segmentation": "image", "cells": "X/data"}  # of the others: counts
EACH = pytest.mark.parametrize("name", SMALL)


@pytest.fixture(autouse=True)
def _root_on_the_path_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The examples can be imported, after an installed solar; sums are added up in one order."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def part(name: str) -> Any:
    return importlib.import_module(f"examples.{name}")


def trained(name: str, loader: str, out: Path, more: str = "") -> tuple[int, dict[str, Any]]:
    """The exit status and the curve of a small run."""
    arguments = f"{SMALL[name]} --loader {loader} --out {out} {more}".split()
    status = part(f"{name}.train").main(arguments)
    return status, json.loads((out / f"{name}-{loader}.json").read_text())


@pytest.mark.slow
@EACH
def test_both_loaders_give_the_same_losses_to_the_bit_and_these_fall(name: str, tmp_path: Path) -> None:
    reached, ours = trained(name, "solar", tmp_path, "--level 1e9")
    missed, theirs = trained(name, "torch", tmp_path, "--level 0")
    for losses in ("steps", "training", "held_out"):
        assert ours[losses] == theirs[losses]
    assert len(ours["steps"]) > len(ours["training"]) > 1
    assert ours["training"][-1] < 0.97 * ours["training"][0]
    assert (reached, ours["reached"], missed, theirs["reached"]) == (0, True, 1, False)


@pytest.mark.slow
def test_a_buffer_leaves_the_losses_as_they_are(tmp_path: Path) -> None:
    _, plain = trained("autophasenn", "solar", tmp_path)
    _, buffered = trained("autophasenn", "solar", tmp_path, "--buffer 400KiB")
    assert buffered == plain


@pytest.mark.slow
def test_two_ranks_share_the_samples_and_both_loaders_give_the_same_losses(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\n"
        "from examples.ptychonn.train import main\n"
        "raise SystemExit(main())\n"
    )
    command = [*torchrun(2), *python(), str(program)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    curves = []
    for loader in ("solar", "torch"):  # one after another: a second process group on torchrun's store meets the first's
        options = f"{SMALL['ptychonn']} --epochs 1 --level 1e9 --loader {loader} --out {tmp_path}".split()
        ended = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        curves.append(json.loads((tmp_path / f"ptychonn-{loader}.json").read_text()))
    ours, theirs = curves
    assert ours["ranks"] == theirs["ranks"] == 2
    assert len(ours["steps"]) == 112 // (2 * 8)
    for losses in ("steps", "training", "held_out"):
        assert ours[losses] == theirs[losses]


@pytest.mark.slow(every=5)
@EACH
def test_a_seed_makes_the_same_samples_and_another_one_others(name: str, tmp_path: Path) -> None:
    write = part(f"{name}.data").write
    made = {}
    for file, seed, compression in (("a", 1, None), ("b", 1, "lzf"), ("c", 2, None)):
        write(tmp_path / file, 3, size=32, seed=seed, compression=compression)
        with h5py.File(tmp_path / file) as opened:
            values = opened[INPUT.get(name, "counts")][()]
            made[file] = np.split(values, opened["X/indptr"][1:-1]) if name == "cells" else [*values]
    assert len(made["a"]) == 3
    for one, same in zip(made["a"], made["b"], strict=True):
        np.testing.assert_array_equal(one, same)
    assert not np.array_equal(made["a"][0], made["c"][0])
    assert not np.array_equal(made["a"][0], made["a"][1])


def test_an_empty_beam_brings_all_its_photons_to_the_detector() -> None:
    data = part("ptychonn.data")
    expected = data.diffract(np.ones((2, 32, 32)), data.make_probe(32))
    np.testing.assert_allclose(expected.sum(axis=(1, 2)), data.PHOTONS)


def test_the_far_field_that_autophasenn_learns_through_is_that_of_its_data() -> None:
    data = part("autophasenn.data")
    crystal = data.make_crystal(np.random.default_rng(5), 32)
    modelled = part("autophasenn.model").far_field(torch.from_numpy(crystal)[None])[0].numpy() ** 2
    expected = data.diffract(crystal)
    np.testing.assert_allclose(modelled / modelled.sum(), expected / expected.sum(), rtol=1e-6, atol=1e-12)


def test_a_prediction_that_is_shifted_mirrored_and_turned_lies_on_the_truth_once_aligned() -> None:
    truth = part("autophasenn.data").make_crystal(np.random.default_rng(5), 32)
    moved = np.exp(2j) * np.roll(np.conj(truth[::-1, ::-1, ::-1]), (1, 2, -3), (0, 1, 2))
    np.testing.assert_allclose(part("autophasenn.train").align(moved, truth), truth, atol=1e-9)


def test_universes_grow_as_they_should_and_have_the_spectrum_asked_for() -> None:
    data = part("cosmoflow.data")
    assert data.growth(3.0, 1.0) == pytest.approx(1 / 4)  # without a cosmological constant, as the scale factor
    assert data.growth(3.0, 0.3) == pytest.approx(0.32, abs=0.01)
    smooth, rough = (
        data.make_universe(np.random.default_rng(1), 32, data.MEANS * [1, strength, 1, 1]) for strength in (0.7, 1.3)
    )
    assert smooth[..., 0].mean() == pytest.approx(data.PARTICLES, rel=0.01)
    assert smooth[..., 0].std() < rough[..., 0].std()
    assert rough[..., 3].std() < rough[..., 0].std()


def test_the_flow_is_not_compressed_keeps_its_dye_and_loses_its_spin(tmp_path: Path) -> None:
    data = part("flow.data")
    fields, velocity = data.make_flow(np.random.default_rng(3), 32)
    square = data.Square(32)
    u, v = np.fft.rfft2(np.moveaxis(velocity.astype("f8"), -1, 0))
    assert np.abs(np.fft.irfft2(1j * square.x * u + 1j * square.y * v)).max() < 1e-5 * np.abs(velocity).max() * 32
    curl = np.fft.irfft2(1j * square.x * v - 1j * square.y * u)
    np.testing.assert_allclose(curl, fields[:, 0], atol=1e-4)
    np.testing.assert_allclose(fields[:, 1].mean(axis=(1, 2)), fields[0, 1].mean(), atol=1e-6)
    spin = (fields[:, 0] ** 2).mean(axis=(1, 2))
    assert (np.diff(spin) < 0).all()
    assert spin[-1] > 0.2 * spin[0]
    data.write(tmp_path / "flow.h5", 2, size=32, seed=0, compression=None)
    with h5py.File(tmp_path / "flow.h5") as file:
        for name, order in (("t0_fields/vorticity", 0), ("t0_fields/dye", 0), ("t1_fields/velocity", 1)):
            trajectories, steps = file.attrs["n_trajectories"], len(file["dimensions/time"])
            assert file[name].shape == (trajectories, steps, 32, 32, *(2,) * order)


def test_cells_lie_as_anndata_has_them_and_rare_types_come_as_often_as_others(tmp_path: Path) -> None:
    data, train = part("cells.data"), part("cells.train")
    data.write(tmp_path / "cells.h5ad", 640, size=200, seed=0, compression=None)
    cells = train.cells(tmp_path / "cells.h5ad", "train")
    assert (len(cells), len(train.cells(tmp_path / "cells.h5ad", "test"))) == (560, 80)
    shares = np.bincount([int(cells[index]["type"]) for index in range(len(cells))]) / len(cells)
    np.testing.assert_allclose(shares, [*data.SHARES.values()], atol=0.06)
    counts = PlanSampler(cells, 1, 0, labels=train.TYPE, per_class="equal").counts()
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == len(data.SHARES)
    anndata = pytest.importorskip("anndata")
    read = anndata.read_h5ad(tmp_path / "cells.h5ad")
    assert read.shape == (640, 200)
    assert read.obs["cell_type"].cat.categories.tolist() == [*data.SHARES]
    np.testing.assert_array_equal(read.X[5].toarray()[0], cells[5]["cell"].dense())


def test_crops_of_the_segmentation_are_those_of_h5py_and_other_ones_in_each_epoch(tmp_path: Path) -> None:
    data, train = part("segmentation.data"), part("segmentation.train")
    data.write(tmp_path / "volumes.h5", 3, size=16, seed=0, compression=None)
    with h5py.File(tmp_path / "volumes.h5") as file:
        images, labels = file["image"][()], file["label"][()]
    assert set(np.unique(labels)) == {0, 1, 2}
    assert images[labels > 0].mean() - images[labels == 0].mean() == pytest.approx(1, abs=0.2)
    whole = train.all_crops(tmp_path / "volumes.h5", 8)
    np.testing.assert_array_equal(whole[9]["label"], labels[1, :8, :8, 8:])
    drawn = train.random_crops(tmp_path / "volumes.h5", 8, 0)
    assert len(drawn) == 3 * train.PER
    before = drawn[0]["image"].copy()
    drawn.set_epoch(1)
    assert not np.array_equal(drawn[0]["image"], before)


@pytest.mark.slow
def test_a_rollout_goes_on_from_what_the_network_made_and_the_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    train = part("flow.train")
    past = torch.randn(2, 2, 4, 4)
    made = train.rollout(lambda steps: steps.sum(dim=1), past, 3)
    torch.testing.assert_close(made[1], past[1] + (past[0] + past[1]))
    torch.testing.assert_close(made[2], made[0] + made[1])
    for name in ("flow", "segmentation", "cells"):
        trained(name, "solar", tmp_path, "--epochs 1")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_without_the_measured_frames_their_example_is_skipped_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOLAR_SHARED", str(tmp_path))
    assert part("ptychonn.measured").main(["--out", str(tmp_path)]) == 0
    assert f"skipped: no {tmp_path}" in capsys.readouterr().out


@pytest.mark.slow
def test_ptychonn_learns_on_the_measured_frames(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = part("ptychonn.measured")
    monkeypatch.setenv("SOLAR_SHARED", str(SHARED.parent))
    monkeypatch.setattr(measured, "STEPS", 4)
    assert shared == SHARED
    assert measured.main(f"--epochs 1 --width 2 --level 1e9 --out {tmp_path}".split()) == 0
    steps = json.loads((tmp_path / "measured-solar.json").read_text())["steps"]
    assert np.mean(steps[-10:]) < np.mean(steps[:10])
    with h5py.File(tmp_path / "measured-64-0.h5") as file:
        assert file["counts"].shape == (1600, 64, 64)
        assert file["truth"].shape == (1600, 2, 64, 64)


@pytest.mark.slow
def test_frames_are_explained_by_their_own_places_and_not_by_mirrored_ones(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = part("ptychonn.measured")
    monkeypatch.setattr(measured, "STEPS", 4)
    frames, mask, places, fresnel = measured.scan(shared.parent / measured.FRAMES)
    assert fresnel == pytest.approx(0.0896, abs=1e-4)  # pixel^2 over wavelength x distance, from the file's metres
    misplaced = []
    for where in (places, places.max(axis=0) - places):
        measured.reconstruct(frames, mask, where, fresnel, 0)
        misplaced.append(float(re.findall(r"([0-9.]+) of the light", capsys.readouterr().out)[-1]))
    assert misplaced[0] < 0.7 * misplaced[1]
