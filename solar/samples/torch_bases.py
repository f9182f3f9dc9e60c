"""Makes classes subclasses of torch's as soon as torch is imported, so that they need no torch themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Generic, TypeVar

MODULE = "torch.utils.data"

Item = TypeVar("Item", covariant=True)

_waiting: list[Callable[[], None]] = []  # what is done when torch.utils.data has been imported


class TorchFinder:
    """Stands before the other finders of modules until torch.utils.data is imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        others = (one for one in sys.meta_path if one is not self)
        spec = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if spec is not None and (loader := spec.loader) is not None:
            run = loader.exec_module

            def run_and_tell(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                while _waiting:
                    _waiting.pop(0)()

            loader.exec_module = run_and_tell  # type: ignore[method-assign]
        return spec


class StandIn(Generic[Item]):
    """Stands for a class of torch's. Generic, as those are: Python replaces a base only by one of the same layout."""


def with_torch(act: Callable[[], None]) -> None:
    """Calls `act` once torch.utils.data is imported: now if it is, else when the program imports it."""
    if MODULE in sys.modules:
        import_module(MODULE)  # waits for another thread that is in the midst of importing it
        act()
        return
    if not _waiting:
        sys.meta_path.insert(0, TorchFinder())
    _waiting.append(act)


def torch_base(name: str) -> Any:
    """Returns torch.utils.data's class of this name, or an empty class in whose place that one comes with torch."""
    if MODULE in sys.modules:
        return getattr(import_module(MODULE), name)
    stand_in = type(name, (StandIn,), {"__doc__": f"Stands for torch.utils.data.{name} while torch is not imported."})

    def replace() -> None:
        of_torch = getattr(sys.modules[MODULE], name)
        kinds: list[type] = stand_in.__subclasses__()
        for kind in kinds:
            kind.__bases__ = tuple(of_torch if base is stand_in else base for base in kind.__bases__)

    with_torch(replace)
    return stand_in
