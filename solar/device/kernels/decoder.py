"""Decoder: decodes chunks on a device to a batch there, bit for bit as the host decodes them."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from solar import _native
from solar.device.kernels.heads import Heads, Inspector
from solar.errors import PlanError

log = logging.getLogger("solar")

_HALVES = (torch.float16, torch.bfloat16)
_DECODED_TYPES = (
    torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32,
    torch.int64, torch.uint64,
)  # fmt: skip


class Decoder:
    """Decodes batches of one field's chunks, each of one sample, where they lie.

    On a CUDA device Triton's kernels decode, in the current stream, without waiting for anything; on the host the
    native decoder does. Call `inspect` before the copy to the device: it checks what a kernel could not report.
    """

    def __init__(
        self, dtype: torch.dtype, shape: tuple[int, ...], tables: bytes | None, device: torch.device, out: torch.dtype
    ) -> None:
        if dtype not in _DECODED_TYPES or (out != dtype and not (dtype == torch.float32 and out in _HALVES)):
            raise PlanError(
                f"chunks of {dtype} cannot be decoded into {out}: ask for {dtype} (or, of float32, for float16 or "
                "bfloat16), and cast the batch"
            )
        self._like = torch.empty(0, dtype=dtype).numpy()
        self._shape, self._out, self._device = tuple(shape), out, device
        self._nbytes = math.prod(shape) * dtype.itemsize
        self._tables = tables or b""
        self._inspector = Inspector(self._like, self._nbytes, self._tables)
        self._launch = _launch(device, dtype, out, self._tables) if _by_kernels(device) else None

    def inspect(self, host: NDArray[np.uint8], lengths: NDArray[np.int64], checked: bool = False) -> Heads:
        """Returns what decoding needs to know about the chunks at the start of these rows. Raises CodecError for a
        damaged one.

        Rows of an encoded view (io/reading/encoded.py) were `checked` when they were read, and are not checked again.
        The inside of tiles is covered by the checksum alone. A chunk made with bad intent gives wrong values on the
        device, where the host's decoder refuses it; it never reaches beyond its row or its sample.
        """
        return self._inspector(host, lengths, checked)

    def decode(self, encoded: torch.Tensor, lengths: NDArray[np.int64], heads: Heads, out: torch.Tensor) -> None:
        """Fills `out` [batch, *shape] from the chunk at the start of each row of `encoded`, described by `heads`."""
        self._check(encoded, heads, out)
        if self._nbytes == 0 or len(out) == 0:
            return
        if self._launch is None:
            self._decode_here(encoded, lengths, out)
        else:
            self._launch.decode(encoded, heads, out)

    def _decode_here(self, encoded: torch.Tensor, lengths: NDArray[np.int64], out: torch.Tensor) -> None:
        chunks = [row[:length].tobytes() for row, length in zip(encoded.numpy(), lengths, strict=True)]
        if self._out != torch.bfloat16:
            return _native.decode_many(chunks, out.numpy(), self._tables)
        wide = np.empty(out.shape, np.float32)
        _native.decode_many(chunks, wide, self._tables)
        out.view(torch.int16).numpy().view(np.uint16)[...] = _bfloat16_of(wide.view(np.uint32))

    def _check(self, encoded: torch.Tensor, heads: Heads, out: torch.Tensor) -> None:
        if encoded.dtype != torch.uint8 or encoded.dim() != 2 or not encoded.is_contiguous():
            raise TypeError(f"encoded chunks are rows of uint8, not {encoded.dtype} {list(encoded.shape)}")
        if encoded.device.type != self._device.type or out.device != encoded.device:
            raise ValueError(f"this decodes on {self._device}, not from {encoded.device} into {out.device}")
        if encoded.shape[1] % 16 or encoded.data_ptr() % 16:
            raise ValueError(f"rows of encoded chunks must begin at multiples of 16 bytes, not of {encoded.shape[1]}")
        asked = (len(encoded), *self._shape)
        if out.dtype != self._out or tuple(out.shape) != asked or not out.is_contiguous():
            raise ValueError(f"a contiguous {self._out} {list(asked)} is filled, not {out.dtype} {list(out.shape)}")
        if len(heads.sets) != len(encoded):
            raise ValueError(f"what was inspected is of {len(heads.sets)} chunks, and {len(encoded)} are given")


def _by_kernels(device: torch.device) -> bool:
    # Triton's own switch: its interpreter runs the kernels on the host, to test them without a GPU.
    interpreted = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")
    if device.type == "cpu":
        return interpreted
    if device.type != "cuda":
        raise PlanError(
            f"chunks cannot be decoded on {device}, only on CUDA devices and the host: decode before the copy"
        )
    return True


def _launch(device: torch.device, dtype: torch.dtype, out: torch.dtype, tables: bytes) -> Any:
    if importlib.util.find_spec("triton") is None:
        raise PlanError(f"decoding on {device} needs triton, which is not installed: {_get_triton()}")
    if torch.version.hip is not None:
        log.warning(
            "the kernels that decode on %s compile for AMD's GPUs, but were never run on one: compare some batches "
            "with those of decode=None first (docs/gpu.md)", device,
        )  # fmt: skip
    from solar.device.kernels.launch import Launch  # imports triton, which nothing else needs and takes a second

    return Launch(device, dtype, out, tables)


def _get_triton() -> str:
    """Says how to get what decodes on this device."""
    if torch.version.hip is None:
        how = "pip install 'solar[gpu]' (torch's own wheels for CUDA on Linux bring it)"
    else:
        how = "install torch for ROCm by its own wheels, which bring it"
    return f"{how}, or decode before the copy"


def _bfloat16_of(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Returns the nearest bfloat16, ties to even; a NaN keeps the bits that fit (native/src/codec/half.cpp)."""
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(nan, bits >> 16 | 0x40, rounded).astype(np.uint16)
