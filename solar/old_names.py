"""Modules that have another name now: files that were pickled by an earlier version name them, and so may scripts."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Old module: the new one. A pickle names the modules of the classes in it, and of nothing else.
MOVED = {
    "solar.blocks": "solar.samples.row_blocks",
    "solar.boxes": "solar.samples.boxes",
    "solar.extents": "solar.samples.row_windows",
    "solar.group_names": "solar.values",
    "solar.io.constants": "solar.samples.constants",
    "solar.io.crops": "solar.samples.crops",
    "solar.io.field": "solar.samples.field",
    "solar.io.layout": "solar",
    "solar.io.layout.packing": "solar.io.hdf5.packing",
    "solar.io.ragged": "solar.samples.ragged",
    "solar.io.read": "solar",
    "solar.io.read.stage": "solar.io.reading.stage",
    "solar.io.windows": "solar.samples.windows",
    "solar.orders": "solar",
    "solar.orders.epoch_order": "solar.samplers.orders",
    "solar.orders.sources": "solar.samplers.orders",
    "solar.torch": "solar",
    "solar.torch.batch": "solar",
    "solar.torch.batch.constants": "solar.samples.constants",
    "solar.torch.dataset": "solar.samples.dataset",
    "solar.torch.loader": "solar.loader.loader",
    "solar.torch.mixture": "solar.samplers.mixture",
    "solar.torch.on_device": "",
    "solar.torch.samplers": "solar.samplers.samplers",
}
# Old names of classes and functions in these modules: the new ones.
RENAMED = {
    "Columns": "RaggedRows",
    "Extents": "RowWindows",
    "_alike": "similar_length_order",
    "_called": "call_order",
    "_drawn": "draw_weighted",
    "_rounds": "rounds_order",
}
NO_LOADER = (
    "this is a pickled DataLoader of solar 0.1.0, which this version cannot make again: pickle its H5Dataset and its "
    "sampler instead, and keep loader.state_dict(); those load in any version"
)


class OldNames(MetaPathFinder, Loader):
    """Finds a module by its old name. It is asked last, so a name that exists costs nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, MOVED[module.__name__]
        if not new:
            raise ImportError(NO_LOADER)

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {old!r} has no attribute {name!r}")
            if old == "solar.torch":
                warnings.warn(f"solar.torch is solar now: from solar import {name}", DeprecationWarning, stacklevel=2)
            return getattr(import_module(new), RENAMED.get(name, name))

        module.__getattr__ = find  # type: ignore[method-assign]


sys.meta_path.append(OldNames())
