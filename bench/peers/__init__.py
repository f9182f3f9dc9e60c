"""The peers: one module each, all of this shape. In brackets: what is taken where a module does not say it.

    LABEL: str                       as the report names it
    ORDER: str                       "given": follows the order it is given; "own": shuffles in its own way [given]
    NEEDS: str                       the distribution that it needs [solar]
    lacking(scene) -> str            why it cannot run in the scene; "" when it can [""]
    settings(scene) -> list[dict]    what is tried before the runs; the best is kept [one, without words]
    best(scene, folder, timed)       instead: the best setting, and what was tried
    prepare(scene, folder)           makes its own format of the scene in folder, untimed [nothing]
    batches(scene, folder, order, setting) -> Iterator    one array or tensor [batch, *sample] after another
    epochs(scene, folder, setting) -> Iterator    endlessly, an iterable of the batches of each epoch, shuffled by its
                                     own loader: what whole runs are made of [batches, in orders that it is given]

The limits have, besides `batches` (for the check of their samples), what is timed:

    rate(scene, folder, order, setting, seconds) -> tuple[int, float]    samples and seconds

A peer keeps nothing between two calls of `batches`: no open file, no mapping (it would keep pages in the
cache), no process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

from bench.scene import Scene

LIMITS = ("limit_pread", "limit_decode")
READERS = (  # of the file as it is
    "solar_loader", "solar_buffer_0", "solar_direct", "torch_h5py", "ram_copy", "memmap",
)  # fmt: skip
OTHERS = (
    "ffcv_loader", "dali_numpy", "tensorstore_zarr", "litdata_stream", "webdataset_tar", "mosaic_mds",
    "spdl_threads", "grain_loader", "h5torch_items",
)  # fmt: skip


def names(kind: str) -> tuple[str, ...]:
    return LIMITS + READERS + (OTHERS if kind == "all" else ())


DEFAULTS = {
    "ORDER": "given", "NEEDS": "solar", "lacking": lambda scene: "", "settings": lambda scene: [{}],
    "prepare": lambda scene, folder: None,
}  # fmt: skip


def load(name: str) -> ModuleType:
    module = importlib.import_module(f"bench.peers.{name}")
    for attribute, default in DEFAULTS.items():
        if not hasattr(module, attribute):
            setattr(module, attribute, default)
    return module


def lacking(peer: ModuleType, scene: Scene) -> str:
    """Why a peer cannot run; "" when it can."""
    try:
        importlib.metadata.version(peer.NEEDS)
    except importlib.metadata.PackageNotFoundError:
        return f"{peer.NEEDS} is not installed"
    return str(peer.lacking(scene))


def not_contiguous(scene: Scene) -> str:
    return "the data are not contiguous" if scene.chunk or scene.files > 1 or scene.sources else ""
