"""A CUDA device that is not there: native/tests/null_driver.cpp as a library, and streams for torch's side of it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from device_kit import Eager

from solar import _native
from solar.device import ring

SOURCE = Path(__file__).parent.parent / "native" / "tests" / "null_driver.cpp"
Tensor = torch.Tensor


@cache
def library() -> Path:
    """The library, built once for a state of its source."""
    made = SOURCE.parents[2] / "build" / f"null_driver-{SOURCE.stat().st_mtime_ns}.so"
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        fresh = made.with_suffix(f".{id(made)}")
        command = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", str(fresh)]
        subprocess.run(command, check=True, capture_output=True)
        fresh.rename(made)
    return made


@cache
def driver() -> ctypes.CDLL:
    found = ctypes.CDLL(str(library()))
    found.null_stream.restype = ctypes.c_void_p
    for one in (found.null_stream_end, found.null_synchronize):
        one.argtypes = [ctypes.c_void_p]
    found.null_delay.argtypes = [ctypes.c_long]
    found.null_calls.argtypes = [ctypes.c_char_p]
    found.null_calls.restype = found.null_copies.restype = ctypes.c_long
    found.null_copies.argtypes = [ctypes.c_bool]
    found.null_pinned.restype = ctypes.c_size_t
    found.null_fail.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    return found


def calls(function: str) -> int:
    return int(driver().null_calls(function.encode()))


class NullStreams(Eager):
    """Host memory as a device whose copies native code makes. Whoever keeps a tensor may read it: it waits for that."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._side, self.consumer = driver().null_stream(), driver().null_stream()
        self._native = _native.Device(str(library()), 0)
        self.waits = True

    def __del__(self) -> None:
        for stream in (self._side, self.consumer):
            driver().null_synchronize(stream)

    @property
    def side(self) -> int:
        return int(self._side)

    def native(self) -> _native.Device | None:
        return self._native

    def current(self) -> int:
        return int(self.consumer)

    @contextmanager
    def beside(self) -> Iterator[None]:
        before, self.beside_now = self.beside_now, True
        yield
        self.beside_now = before

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        assert self.beside_now, "memory is taken in the consumer's own stream"
        made = torch.empty(shape, dtype=dtype)
        made.untyped_storage().fill_(0xA5)
        return made

    def keep(self, tensor: Tensor) -> None:
        super().keep(tensor)
        if self.waits:
            driver().null_synchronize(self.consumer)


@pytest.fixture
def null_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Has device="cpu" be such a device; gives those that are made, one for each loader."""
    driver().null_reset()
    monkeypatch.setitem(ring.STREAMS, "cpu", NullStreams)
    NullStreams.made = []
    with nullcontext():
        yield NullStreams.made
    driver().null_reset()
