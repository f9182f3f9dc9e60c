"""Launches the kernels: decides how many programs, how much scratch memory, which tables."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch

from solar import _native
from solar.device.kernels.entropy import entropy
from solar.device.kernels.heads import Heads
from solar.device.kernels.tables import frequencies, places
from solar.device.kernels.tiles import restore

LAUNCH_SCRATCH = 256 << 20  # bytes a launch may take beside what it reads and writes; larger batches go in parts
TABLE_PLACES = 17 * 1024  # of a set of tables
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# How programs are cut; the bits that come out do not depend on it. On a GPU short steps and few registers leave room
# for more tiles at once, and wide rows are read in fewer pieces (docs/measured.md has what others gave on an H200).
# Triton's interpreter is slow by calls, not by values. Triton may fuse nothing by itself.
WARP: dict[str, Any] = {"num_warps": 1, "enable_fp_fusion": False}
WIDE: dict[str, dict[str, Any]] = {
    "cuda": {"LENGTH": 512, "ROWS": 8, "COLUMNS": 128, "num_warps": 4, "maxnreg": 64, "enable_fp_fusion": False},
    "cpu": {"LENGTH": 2048, "ROWS": 64, "COLUMNS": 64},
}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "cuda": {"AT_ONCE": 64, "num_warps": 8, "enable_fp_fusion": False},
    "cpu": {"AT_ONCE": 1024},
}
# Triton's compiler for AMD's GPUs refuses a number of registers.
WIDE["hip"] = {name: value for name, value in WIDE["cuda"].items() if name != "maxnreg"}
PLACEMENTS["hip"] = PLACEMENTS["cuda"]


def kind_of(device: torch.device) -> str:
    """Returns whose compiler makes the kernels for a device: torch for ROCm names AMD's GPUs "cuda", too."""
    return "hip" if device.type == "cuda" and torch.version.hip is not None else device.type


class Launch:
    """Launches on one device for one field: its types and its tables."""

    def __init__(self, device: torch.device, dtype: torch.dtype, out: torch.dtype, tables: bytes) -> None:
        self._device = device
        self._kind = kind_of(device)
        self._out = BITS[out.itemsize]
        self._types = {"SIZE": dtype.itemsize, "REAL": dtype.is_floating_point, "HALF": 0}
        if out != dtype:
            self._types["HALF"] = 1 if out == torch.float16 else 2
        sets = [_native.codec_places(), _native.codec_places(tables)]  # of none: the built-in ones again
        self._places = torch.from_numpy(np.concatenate(sets).view(np.int32)).to(device)
        self._uniform = [torch.full((1,), one, dtype=torch.int32, device=device) for one in range(2)]

    def decode(self, encoded: torch.Tensor, heads: Heads, out: torch.Tensor) -> None:
        room = heads.values * (2 if heads.twice else 1) + heads.values // 32
        each = 4 * heads.tiles * room
        at_once = max(1, LAUNCH_SCRATCH // each)
        bits = out.view(self._out).view(len(out), -1)
        words, halves = encoded.view(torch.int32), encoded.view(torch.int16)
        with torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext():
            scratch = torch.empty(min(len(out), at_once) * each // 4, dtype=torch.int32, device=self._device)
            for first in range(0, len(out), at_once):
                part = slice(first, first + at_once)
                self._decode_part(words[part], halves[part], heads, heads.sets[part], bits[part], scratch, room)

    def _decode_part(
        self, words: torch.Tensor, halves: torch.Tensor, heads: Heads, sets: Any, out: torch.Tensor,
        scratch: torch.Tensor, room: int,
    ) -> None:  # fmt: skip
        programs, stride = (len(out) * heads.tiles,), words.shape[1]
        if heads.dense:
            of_chunks, step, made = self._tables_of(words, sets)
            entropy[programs](
                words, halves, stride, heads.tiles, of_chunks, step, made, room, room - heads.values // 32, scratch,
                ITEMSIZE=self._types["SIZE"], **WARP,
            )  # fmt: skip
        restore[programs](
            words,
            stride,
            heads.tiles,
            out,
            out.shape[1],
            scratch,
            room,
            heads.values,
            **self._types,
            **WIDE[self._kind],
        )

    def _tables_of(self, words: torch.Tensor, sets: Any) -> tuple[torch.Tensor, int, torch.Tensor]:
        """Returns the set of each chunk, the distance from one set to the next, and the places of all sets."""
        if (sets == sets[0]).all() and sets[0] < 2:
            return self._uniform[sets[0]], 0, self._places
        inside = sets >= 2
        own = np.where(inside, np.cumsum(inside) + 1, sets)  # counted from 2 on in this part
        of_chunks = torch.from_numpy(own.astype(np.int32)).to(self._device, non_blocking=True)
        if not inside.any():
            return of_chunks, 1, self._places
        chunks, stride = len(words), words.shape[1]
        made = torch.empty((2 + int(inside.sum())) * TABLE_PLACES, dtype=torch.int32, device=self._device)
        made[: 2 * TABLE_PLACES] = self._places
        found = torch.zeros(chunks * 17 * 256, dtype=torch.int32, device=self._device)
        frequencies[(chunks,)](words, stride, of_chunks, 1, 2, found, **WARP)
        places[(chunks, 17)](found, of_chunks, 1, 2, made, **PLACEMENTS[self._kind])
        return of_chunks, 1, made
