"""Packages that a framework imports and no test uses: those that are not installed are pretended meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


class _Pretended(MetaPathFinder, Loader):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MagicMock(__path__=[], __spec__=spec)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def pretended(*names: str) -> Iterator[None]:
    """Packages of these names can be imported; those that are not installed are gone again afterwards."""
    absent = {name for name in names if find_spec(name) is None}
    finder = _Pretended(absent)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in absent]:
            del sys.modules[name]
