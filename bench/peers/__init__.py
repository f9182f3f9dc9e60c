"""The peers: one module each, all of this shape.

    LABEL: str                       as the report names it
    ORDER: "given" | "own"           follows the order it is given, or shuffles in its own way
    lacking(scene) -> str            why it cannot run here; "" when it can
    settings(scene) -> list[dict]    what is tried before the rounds; the best is kept
    prepare(scene, folder)           makes its own format of the scene in folder, untimed; most make nothing
    batches(scene, folder, order, setting) -> Iterator    one array or tensor [batch, *sample] after another

The limits have, besides `batches` (for the check of their samples), what is timed:

    rate(scene, folder, order, setting, seconds) -> tuple[int, float]    samples and seconds

A peer keeps nothing between two calls of `batches`: no open file, no mapping (it would keep pages in the
cache), no process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

LIMITS = ("limit_pread", "limit_decode")
READERS = ("solar_loader", "solar_read", "torch_h5py", "torch_h5py_sorted", "h5py_read_direct")  # of the file as it is
OTHERS = (
    "memmap", "ffcv_loader", "dali_numpy", "tensorstore_zarr", "litdata_stream", "webdataset_tar", "mosaic_mds",
    "spdl_threads", "grain_loader", "h5torch_items",
)  # fmt: skip


def names(kind: str) -> tuple[str, ...]:
    return LIMITS + READERS + (OTHERS if kind == "all" else ())


def load(name: str) -> ModuleType:
    return importlib.import_module(f"bench.peers.{name}")


def missing(distribution: str) -> str:
    """Why a distribution cannot be used; "" when it is installed."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} is not installed"
    return ""
