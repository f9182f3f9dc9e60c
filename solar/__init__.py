"""solar: a drop-in torch DataLoader for HDF5 that knows the whole shuffled order in advance.

>>> from solar import DataLoader, H5Dataset
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from solar.errors import CodecError, LayoutError, PlanError, ReadError, SolarError

if TYPE_CHECKING:
    from solar.io.codec.store import compress as compress
    from solar.io.codec.verify import verify as verify
    from solar.io.hdf5.layouts import inspect as inspect
    from solar.io.reading.engine import get_num_threads as get_num_threads
    from solar.io.reading.engine import set_num_threads as set_num_threads
    from solar.io.reading.reader import read as read
    from solar.loader.loader import DataLoader as DataLoader
    from solar.samplers.mixture import Mixture as Mixture
    from solar.samplers.samplers import PlanBatchSampler as PlanBatchSampler
    from solar.samplers.samplers import PlanSampler as PlanSampler
    from solar.samples.crops import Crops as Crops
    from solar.samples.dataset import H5Dataset as H5Dataset
    from solar.samples.field import Field as Field
    from solar.samples.ragged import CSR as CSR
    from solar.samples.ragged import Ragged as Ragged
    from solar.samples.windows import Windows as Windows
    from solar.values import Layout as Layout
    from solar.values import World as World

__version__ = "0.1.0"

# Names that cost an import (torch: a second) are fetched when first asked for, so that `solar --help` stays quick.
_LAZY = {
    "CSR": "solar.samples.ragged",
    "Crops": "solar.samples.crops",
    "DataLoader": "solar.loader.loader",
    "Field": "solar.samples.field",
    "H5Dataset": "solar.samples.dataset",
    "Layout": "solar.values",
    "Mixture": "solar.samplers.mixture",
    "PlanBatchSampler": "solar.samplers.samplers",
    "PlanSampler": "solar.samplers.samplers",
    "Ragged": "solar.samples.ragged",
    "Windows": "solar.samples.windows",
    "World": "solar.values",
    "compress": "solar.io.codec.store",
    "get_num_threads": "solar.io.reading.engine",
    "inspect": "solar.io.hdf5.layouts",
    "read": "solar.io.reading.reader",
    "set_num_threads": "solar.io.reading.engine",
    "verify": "solar.io.codec.verify",
}

__all__ = [
    "CSR",
    "CodecError",
    "Crops",
    "DataLoader",
    "Field",
    "H5Dataset",
    "Layout",
    "LayoutError",
    "Mixture",
    "PlanBatchSampler",
    "PlanError",
    "PlanSampler",
    "Ragged",
    "ReadError",
    "SolarError",
    "Windows",
    "World",
    "__version__",
    "compress",
    "get_num_threads",
    "inspect",
    "read",
    "set_num_threads",
    "verify",
]


def _stand_aside(path: list[str]) -> list[str]:
    """Returns where the package's modules are. Python that is started in a clone finds its source folder first, which
    has no native part: then they are those of the solar that is installed, if one is.
    """
    from importlib.machinery import PathFinder

    if PathFinder.find_spec("solar._native", path) is not None:
        return path
    import sys  # these are needed only here
    from pathlib import Path

    here = Path(__file__).resolve().parent.parent
    installed = PathFinder.find_spec("solar", [one for one in sys.path if Path(one).resolve() != here])
    found = None if installed is None or installed.origin is None else installed.submodule_search_locations
    return path if found is None or PathFinder.find_spec("solar._native", found) is None else [*found]


__path__ = _stand_aside(__path__)

import solar.old_names  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'solar' has no attribute {name!r}")
    import gc
    from importlib import import_module

    # What is imported stays, so collections meanwhile free nothing, and each of them would walk through all of PyTorch.
    collects = gc.isenabled()
    gc.disable()
    try:
        value = getattr(import_module(_LAZY[name]), name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch":
            instead = "; solar.arrays.Loader needs none" if name == "DataLoader" else ""
            what = f"solar.{name} needs PyTorch, which is not installed: pip install torch{instead}"
            raise ModuleNotFoundError(what, name="torch") from error
        if error.name == "solar._native" or "_native" in str(error):
            error.add_note(
                "This is solar's source folder, without its native part: run `pip install -e .` in it, or, if solar is "
                "installed already, start Python in another folder."
            )
        raise
    finally:
        if collects:
            gc.enable()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
