"""A kvikio that is not there: CuFile with its signatures and its manners, whose devices are host memory."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch


class IOFuture:
    """Bytes that come only when they are waited for; once, as those of a std::future."""

    def __init__(self, come: Callable[[], int]) -> None:
        self._come: Callable[[], int] | None = come

    def get(self) -> int:
        if self._come is None:
            raise RuntimeError("std::future_error: No associated state")
        come, self._come = self._come, None
        return come()

    def done(self) -> bool:
        return False


class Kvikio:
    """What was asked of it, and how it is to go wrong."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.asked: list[tuple[str, int, int]] = []  # file, offset, bytes
        self.unwaited = 0
        self.most = 1 << 60  # bytes that come at once
        self.fail: Callable[[str, str, int], None] = lambda what, path, offset: None

    def module(self) -> types.ModuleType:
        made = types.ModuleType("kvikio")
        made.__spec__ = ModuleSpec("kvikio", None)
        kit = self

        class CuFile:
            def __init__(self, file: Any, flags: str = "r") -> None:
                kit.fail("open", str(file), 0)
                assert flags == "r"
                self.path, self.number = str(file), os.open(file, os.O_RDONLY)
                kit.opened.append(self.path)

            def close(self) -> None:
                os.close(self.number)
                self.number = -1
                kit.closed.append(self.path)

            def pread(
                self, buf: torch.Tensor, size: int | None = None, file_offset: int = 0, task_size: int | None = None
            ) -> IOFuture:
                assert buf.is_contiguous(), "Array must be contiguous"
                nbytes = buf.nbytes if size is None else size
                assert nbytes <= buf.nbytes, "Size is greater than the size of the buffer"
                kit.fail("pread", self.path, file_offset)
                kit.asked.append((self.path, file_offset, nbytes))
                kit.unwaited += 1

                def come() -> int:
                    kit.unwaited -= 1
                    kit.fail("get", self.path, file_offset)
                    return os.preadv(self.number, [memoryview(buf.numpy())[: min(nbytes, kit.most)]], file_offset)

                return IOFuture(come)

        made.CuFile = CuFile  # type: ignore[attr-defined]
        return made


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> Kvikio:
    """An importable kvikio."""
    kit = Kvikio()
    monkeypatch.setitem(sys.modules, "kvikio", kit.module())
    return kit
