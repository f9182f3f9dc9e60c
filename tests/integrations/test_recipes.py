"""The recipes of examples/recipes: each runs on the real package, and its readers see the same samples.

Packages that are not there are named by the skips, with how to install them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from absent_kit import pretended
from processes_kit import gone

ROOT = Path(__file__).parents[2]
ABSENT = {  # of PhysicsNeMo's many packages those that its datapipes import and do not need
    "physicsnemo_pipe": ("nvtx", "s3fs", "timm", "torchvision", "treelib", "warp"),
}
NEEDS = {  # to import, and how to get it
    "well": ("the_well", "make integrations, or pip install --no-deps the_well and einops, fsspec, pyyaml"),
    "anndata_cells": ("anndata", "pip install anndata scdataset; both are large with what they need"),
    "physicsnemo_pipe": ("physicsnemo", "make integrations, or pip install nvidia-physicsnemo"),
    "lightning_trainer": ("lightning", "pip install 'solar[integrations]'"),
    "accelerate_loop": ("accelerate", "pip install 'solar[integrations]'"),
    "hf_trainer": ("transformers", "pip install 'solar[integrations]'"),
    "ray_train": ("ray", "pip install 'ray[train]', which is large"),
    "dlio_run": ("dlio_benchmark", "make integrations; docs/recipes.md says how without"),
}
SMALL = {"well": 4, "anndata_cells": 256, "dlio_run": 16}  # samples; of frames 128
IN_PROCESS = ("well", "anndata_cells", "physicsnemo_pipe", "lightning_trainer", "accelerate_loop", "hf_trainer")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recipes can be imported, after an installed solar; threads and Accelerate's state are left as they were."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def words(name: str, out: Path) -> list[str]:
    """A small run."""
    samples = SMALL.get(name, 128)
    batch = 1 if name == "dlio_run" else 16
    return [f"--samples={samples}", "--epochs=2", f"--batch-size={batch}", "--out", str(out)]


def recipe(name: str) -> Any:
    package, how = NEEDS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: {how}")
    with warnings.catch_warnings(), pretended(*ABSENT.get(name, ())):
        warnings.simplefilter("ignore")  # what they import warns of much
        return importlib.import_module(f"examples.recipes.{name}")


@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_recipe_runs_and_learns_the_same_with_every_reader(name: str, tmp_path: Path) -> None:
    module, told, losses = recipe(name), tmp_path / "told.json", {}
    readers = getattr(module, "READERS", module.side_by_side.READERS)
    for reader in readers:
        if reader == "scdataset" and importlib.util.find_spec("scdataset") is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert module.main([*words(name, tmp_path), "--reader", reader, "--told", str(told)]) == 0
        losses[reader] = json.loads(told.read_text())["losses"]
    ours = losses["solar"]
    losses.pop("scdataset", None)  # it has an order of its own
    assert all(one == ours for one in losses.values())
    assert len(ours) >= 8
    assert ours[-1] < ours[0]


@pytest.mark.parametrize("name", ["well", "anndata_cells"])
def test_the_readers_of_a_recipe_give_the_same_samples(name: str, tmp_path: Path) -> None:
    module = recipe(name)
    if name == "anndata_cells":
        pytest.importorskip("scdataset", reason="scdataset is not installed: pip install --no-deps scdataset")
    module.main([*words(name, tmp_path), "--reader", "solar"])
    data = next(path for path in tmp_path.iterdir() if path.name.startswith(name))
    asked = type("Asked", (), {"samples": SMALL[name], "reader": "solar", "epochs": 1, "batch_size": 16, "setting": {}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module.alike(data, asked())


def test_the_well_refuses_what_it_would_read_otherwise(tmp_path: Path) -> None:
    module = recipe("well")
    import h5py

    module.main([*words("well", tmp_path), "--reader", "solar"])
    data = tmp_path / "well-4"
    with pytest.raises(ValueError, match="windows of one stride"):
        module.SolarWell(str(data), max_dt_stride=2)
    for file in data.iterdir():
        with h5py.File(file, "a") as opened:
            opened["t0_fields/dye"].attrs["time_varying"] = False
    with pytest.raises(ValueError, match="dye does not vary along all axes"):
        module.SolarWell(str(data))


@pytest.mark.parametrize("name", ["ray_train", "dlio_run"])
def test_a_recipe_with_processes_of_its_own_runs_with_both_readers(name: str, tmp_path: Path) -> None:
    module = recipe(name)
    other = "h5py" if name == "ray_train" else "dlio"
    told = [module.side_by_side.run(name, [*words(name, tmp_path), "--reader", one]) for one in ("solar", other)]
    assert all(one["last_epoch"] > 0 for one in told)
    assert told[0]["losses"] == told[1]["losses"]
    assert len(told[0]["losses"]) == (8 if name == "ray_train" else 0)  # two ranks, two epochs; DLIO trains nothing


def test_a_comparison_names_the_readers_their_whole_runs_and_whether_they_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side_by_side = importlib.import_module("examples.recipes.side_by_side")
    asked = type(
        "Asked", (), {"readers": {"h5py": "theirs", "solar": "ours"}, "rounds": 2, "samples": 8, "epochs": 2}
    )()
    asked.batch_size, asked.out, asked.flags, asked.limit = 4, tmp_path, [], 9.0
    runs: list[list[str]] = []

    def run(_: str, words: list[Any], limit: float) -> dict[str, Any]:
        assert limit == 9.0
        runs.append([*map(str, words)])
        return {"losses": [2.0, 1.0] if "solar" in words or len(runs) < 3 else [2.0, 1.5], "last_epoch": 10.0}

    monkeypatch.setattr(side_by_side, "run", run)
    found = side_by_side.compared("any", asked, {"h5py": {"workers": 2}}, None)
    assert [words[words.index("--reader") + 1] for words in runs] == ["h5py", "solar"] * 2
    assert json.loads(runs[0][runs[0].index("--setting") + 1]) == {"workers": 2}
    assert found["same"] is False
    assert len(found["readers"]["h5py"]["seconds"]) == 2
    found["readers"]["h5py"]["median"], found["readers"]["solar"]["median"] = 6.0, 2.0
    text = side_by_side.table(found)
    assert "theirs" in text and "3.00 x" in text and "workers 2" in text
    assert "They did not see the same samples!" in text


def test_a_run_that_does_not_end_is_stopped_with_what_it_has_begun_and_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side_by_side = importlib.import_module("examples.recipes.side_by_side")
    folder = tmp_path / "examples" / "recipes"
    folder.mkdir(parents=True)
    # It says who it began, which holds its output, and neither ends by itself.
    (folder / "endless.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(f'began {child.pid}', flush=True)\n"
        "child.wait()\n"
    )
    (folder / "failing.py").write_text("raise SystemExit('no such frames')\n")
    monkeypatch.setattr(side_by_side, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match=r"no such frames\Z"):
        side_by_side.run("failing", [], 60.0)
    with pytest.raises(RuntimeError, match="no end in 5 s, so it was stopped; give it longer by --limit") as stopped:
        side_by_side.run("endless", [], 5.0)  # its start takes less
    [begun] = re.findall(r"began (\d+)", str(stopped.value))
    assert gone(int(begun))
