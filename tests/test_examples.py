"""The surrogates of examples/: both loaders give the same losses to the bit, these fall, and the physics is right."""

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

ROOT = Path(__file__).parent.parent
SMALL = {
    "ptychonn": "--samples 128 --size 32 --width 4 --epochs 3 --batch-size 8 --rate 5e-3",
    "autophasenn": "--samples 32 --size 16 --width 2 --epochs 3 --batch-size 4 --rate 5e-3 --compression gzip",
    "cosmoflow": "--samples 48 --size 32 --width 2 --epochs 6 --batch-size 4 --rate 5e-3 --compression lzf",
}
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


@EACH
def test_a_seed_makes_the_same_samples_and_another_one_others(name: str, tmp_path: Path) -> None:
    write = part(f"{name}.data").write
    made = {}
    for file, seed, compression in (("a", 1, None), ("b", 1, "lzf"), ("c", 2, None)):
        write(tmp_path / file, 3, size=32, seed=seed, compression=compression)
        with h5py.File(tmp_path / file) as opened:
            made[file] = opened["counts"][()]
    np.testing.assert_array_equal(made["a"], made["b"])
    assert (made["a"] != made["c"]).any()
    assert (made["a"][0] != made["a"][1]).any()


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
