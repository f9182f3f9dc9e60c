"""What tests of a stage need: data sets of all kinds with and without one, epochs side by side, and what lies there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from kit import settle
from ragged_kit import plainly

from solar import Crops, DataLoader, Field, H5Dataset, PlanSampler, Ragged
from solar.io.reading import stage

SAMPLES, SHAPE, BATCH, SEED = 300, (37, 41), 7, 5  # samples of 6,068 bytes, which share blocks
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (4, *SHAPE)},
    "gzip": {"chunks": (3, *SHAPE), "compression": "gzip", "fletcher32": True},
    "tiles": {"chunks": (1, 20, 15), "compression": "gzip"},
}


def ready(path: Path, layout: str = "contiguous", samples: int = SAMPLES, seed: int = 0) -> None:
    """`written`, unless it is there: a second data set is of the same file."""
    if not path.exists():
        written(path, layout, samples, seed)


def written(path: Path, layout: str = "contiguous", samples: int = SAMPLES, seed: int = 0) -> np.ndarray[Any, Any]:
    """A file of `x` and `y`; the values of `x`."""
    values = np.random.default_rng(seed).integers(0, 99, (samples, *SHAPE)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, **LAYOUTS[layout])
        file["y"] = np.arange(samples)
    settle(path)
    return values


def _ragged(folder: Path, **stage: Any) -> Any:
    if not (folder / "ragged.h5").exists():
        _write_ragged(folder)
    return H5Dataset(str(folder / "ragged.h5"), {"x": Ragged("v", ends="ends")}, **stage)


def _write_ragged(folder: Path) -> None:
    lengths = np.random.default_rng(0).integers(0, 999, 30)
    with h5py.File(folder / "ragged.h5", "w") as file:
        file.create_dataset("v", data=np.arange(lengths.sum() * 2).reshape(-1, 2), chunks=(100, 2), compression="gzip")
        file["ends"] = np.cumsum(lengths)
    settle(folder / "ragged.h5")


def _virtual(folder: Path, **stage: Any) -> Any:
    if not (folder / "virtual.h5").exists():
        _write_virtual(folder)
    return H5Dataset(str(folder / "virtual.h5"), {"x": "x"}, **stage)


def _write_virtual(folder: Path) -> None:
    view = h5py.VirtualLayout((SAMPLES, *SHAPE), "f4")
    for part in range(2):
        written(folder / f"part{part}.h5", samples=SAMPLES // 2, seed=part)
        view[part::2] = h5py.VirtualSource(folder / f"part{part}.h5", "x", (SAMPLES // 2, *SHAPE))
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", view)
    settle(folder / "virtual.h5")


def _of(layout: str, fields: Any, **options: Any) -> Callable[..., Any]:
    def made(folder: Path, **stage: Any) -> Any:
        ready(folder / "one.h5", layout)
        return H5Dataset(str(folder / "one.h5"), fields, **options, **stage)

    return made


def _several(folder: Path, **stage: Any) -> Any:
    for part in range(3):
        ready(folder / f"{part}.h5", samples=SAMPLES // 3, seed=part)
    return H5Dataset([str(folder / f"{part}.h5") for part in range(3)], {"x": "x", "y": "y"}, **stage)


KINDS: dict[str, Callable[..., Any]] = {
    **{layout: _of(layout, {"x": "x", "y": "y"}) for layout in LAYOUTS},
    "windows": _of("contiguous", {"x": Field("x", steps=(0, 2)), "next": Field("x", steps=(3,))}),
    "crops": _of("gzip", {"x": "x"}, samples=Crops((5, 16, 16))),
    "crops of contiguous data": _of("contiguous", {"x": "x"}, samples=Crops((5, 16, 16))),
    "ragged": _ragged,
    "virtual": _virtual,
    "several files": _several,
}


def loader_of(data: Any, buffer: Any = 0, epochs: int = 3, **options: Any) -> Any:
    order = {"sampler": PlanSampler(data, seed=SEED)} if "sampler" not in options else {}
    return DataLoader(data, BATCH, buffer=buffer, epochs=epochs if buffer else None, **order, **options)


def same_batches(one: Any, other: Any) -> None:
    one, other = plainly(one), plainly(other)
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for ours, theirs in zip(one, other, strict=True):
            same_batches(ours, theirs)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


def side_by_side(staged: Any, plain: Any, epochs: int = 3) -> list[dict[str, int]]:
    """Goes through both loaders, whose batches must be the same: what each epoch of the first read, and from where."""
    found = []
    for epoch in range(epochs):
        for loader in (staged, plain):
            loader.set_epoch(epoch)
        before = staged.stats()
        for one, other in zip(staged, plain, strict=True):
            same_batches(one, other)
        found.append(afar(before, staged.stats()))
    return found


def afar(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """What was read between two looks at the counts."""
    more = {name: after[name] - before[name] for name in ("bytes", "requests", "stage_bytes", "stage_requests")}
    assert after["bytes_mapped"] == before["bytes_mapped"]
    return {
        "far": more["bytes"] - more["stage_bytes"],
        "far_requests": more["requests"] - more["stage_requests"],
        "near": more["stage_bytes"],
        "written": after["stage_written"] - before["stage_written"],
    }


def epoch(data: Any, values: np.ndarray[Any, Any], buffer: Any = 0) -> dict[str, int]:
    """What one epoch over `x` reads, whose samples must be these."""
    with loader_of(data, buffer, 1) as loader:
        samples = list(PlanSampler(data, seed=SEED))
        got = np.concatenate([batch["x"].numpy() for batch in loader])
        assert np.array_equal(got, values[samples])
        return afar(dict.fromkeys(loader.stats(), 0), loader.stats())


def as_a_new_process() -> None:
    """Forgets what this process knows of stages, so that all that is read back is checked again."""
    stage.became_of_tiers.clear()


def own(folder: Path) -> Path:
    """The folder of ours in it."""
    return folder / f"solar-stage-{os.geteuid()}"


def stage_files(folder: Path) -> list[Path]:
    return sorted(own(folder).glob("*.stage"))


def taken(folder: Path) -> int:
    """Bytes of the disk that stage files take."""
    return sum(path.stat().st_blocks * 512 for path in stage_files(folder))
