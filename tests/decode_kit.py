"""Chunks of every coder and predictor for the decoders of a device, and what they must be decoded to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from solar.device.kernels import Decoder
from solar.io.codec.codec import Codec

GOLDEN = Path(__file__).parent / "golden" / "codec"
CPU = torch.device("cpu")
GUARD = 4096  # bytes before and behind the array that is filled


def rows_of(chunks: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Chunks as a reader hands them on: a row each, as long as the longest and some more, the rest zero."""
    stride = -(-max(map(len, chunks)) // 16) * 16
    rows = np.zeros((len(chunks), stride), np.uint8)
    for row, chunk in zip(rows, chunks, strict=True):
        row[: len(chunk)] = np.frombuffer(chunk, np.uint8)
    return rows, np.array([len(chunk) for chunk in chunks])


class Case:
    """Chunks of one field, and what they are decoded into."""

    def __init__(self, dtype: Any, shape: list[int], chunks: list[bytes], tables: bytes = b"", out: str = "") -> None:
        self.dtype, self.shape, self.chunks, self.tables = np.dtype(dtype).name, list(shape), chunks, tables
        self.out = out or self.dtype
        self.flips: list[tuple[int, int]] = []

    def decoder(self, device: torch.device = CPU) -> Decoder:
        dtype, out = getattr(torch, self.dtype), getattr(torch, self.out)
        return Decoder(dtype, tuple(self.shape), self.tables, device, out)

    def here(self) -> NDArray[np.uint8]:
        """The bytes as the host's decoder gives them."""
        return self.made(*rows_of(self.chunks), torch.from_numpy)

    def made(
        self, rows: NDArray[np.uint8], lengths: NDArray[np.int64], place: Callable[[NDArray[np.uint8]], torch.Tensor]
    ) -> NDArray[np.uint8]:
        """The bytes that are decoded of rows where `place` has put them; nothing is written beside them.

        Bytes that `flips` names are changed after the chunks were inspected.
        """
        inspector = self.decoder()
        heads = inspector.inspect(rows, lengths)
        for at, value in self.flips:  # what inspect could not see
            rows[0, at] ^= value
        there, shape = place(rows), (len(rows), *self.shape)
        decoder = inspector if there.device == CPU else self.decoder(there.device)
        dtype = getattr(torch, self.out)
        nbytes = math.prod(shape) * dtype.itemsize
        whole = torch.full((nbytes + 2 * GUARD,), 0xA5, dtype=torch.uint8, device=there.device)
        filled = whole[GUARD : GUARD + nbytes]
        decoder.decode(there, lengths, heads, filled.view(dtype).view(shape))
        guards = torch.cat([whole[:GUARD], whole[GUARD + nbytes :]])
        assert bool((guards == 0xA5).all()), "written beside the array"
        return filled.cpu().numpy()


def encoded(array: NDArray[Any], *codecs: Codec, tables: bytes = b"", out: str = "") -> Case:
    return Case(array.dtype, list(array.shape), [codec.encode(array) for codec in codecs], tables, out)


def golden() -> dict[str, Case]:
    index = json.loads((GOLDEN / "index.json").read_text())
    index = {name: of for name, of in index.items() if not name.startswith("learned")}  # nobody reads them any more
    read = {name: (GOLDEN / f"{name}.chunk").read_bytes() for name in index}
    return {
        name: Case(of["type"], of["shape"], [read[name]], bytes.fromhex(of["tables"])) for name, of in index.items()
    }


def special(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A smooth field with everything that is kept bit for bit: alone, in a row, and in a block."""
    rng = np.random.default_rng(len(shape))
    field = np.asarray(rng.normal(size=shape).cumsum(-1), np.float32)
    marks = np.array([0x7FC00001, 0xFFA12345, 0x7F800000, 0xFF800000, 0x80000000, 0x00000007], np.uint32)
    field.view(np.uint32).flat[rng.integers(0, field.size, 40)] = rng.choice(marks, 40)
    field.reshape(-1)[field.size // 3 : field.size // 2] = np.nan
    return field


def made() -> dict[str, Case]:
    rng = np.random.default_rng(7)
    space = np.asarray(rng.normal(size=(18, 14, 70)).cumsum(0).cumsum(1).cumsum(2), np.float32)
    plane = np.asarray(rng.normal(size=(131, 150)).cumsum(0).cumsum(1), np.float32)
    small = np.ascontiguousarray(space[:, :5, :7])
    trained = Codec("abs", 0.01, "dense").trained([small])
    doubles = space[:17, :9, :9].astype(np.float64) * 1e-9
    heavy = np.asarray(rng.standard_t(1.3, 500) * 30, np.float32)
    counts = rng.poisson(3, (2, 3, 2, 9, 5)).astype(np.uint16)
    pack = [Codec("abs", 0.01, "pack", predictor) for predictor in ("none", "x", "xy", "xyz", "interpolation")]
    halves = special((3, 40, 33))
    halves.reshape(-1)[:12] = [65519, 65520, 6e-8, 2.98e-8, 2.99e-8, 1e-7, 6.1e-5, 70000, -65520, 2049, 2051, -1e-9]
    masked, flat = np.where(plane > 0, np.float32(-9999), plane), np.where(plane > 0, np.float32(-9999), np.float32(7))
    missing = np.float32(-9999).tobytes()
    cases = {
        "marks": encoded(masked, *(Codec("abs", 0.01, coder, marks=missing) for coder in ("pack", "dense"))),
        "marks-over-a-constant": encoded(flat, Codec("abs", 0.01, marks=missing)),
        "tiles-in-space": encoded(space, pack[1], *pack[3:]),
        "tiles-in-a-plane": encoded(plane, pack[2], pack[4]),
        "tiles-of-a-line": encoded(special((16500,)), Codec("abs", 0.01, "pack", "x")),
        "five-axes-of-counts": encoded(counts, Codec("lossless"), Codec("abs", 2, "pack", "xyz")),
        "bytes": encoded((counts % 7).astype(np.int8), Codec("lossless", 0.0, "pack"), Codec("abs", 1)),
        "beyond-32-bits": encoded(np.asarray([2**64 - 1, 0, 2**63, 5] * 9, np.uint64), Codec("lossless")),
        "doubles": encoded(doubles, Codec("abs", 1e-12, "pack", "xyz"), Codec("abs", 1e-12, "pack", "interpolation"),
                           Codec("lossless")),
        "special-doubles": encoded(np.where(doubles > 0, np.nan, doubles), Codec("abs", 1e-10, "pack", "xy")),
        "float16": encoded(halves, Codec("abs", 1e-3, "pack"), Codec("lossless", 0.0, "pack"), out="float16"),
        "bfloat16": encoded(halves, Codec("abs", 1e-3, "pack"), Codec("lossless", 0.0, "pack"), out="bfloat16"),
        "raw-to-half": encoded(np.frombuffer(rng.bytes(4000), np.float32), Codec("lossless"), out="float16"),
        "constant-to-half": encoded(np.full((9, 9), 1 / 3, np.float32), Codec("lossless"), out="bfloat16"),
        "tables-of-all-kinds": encoded(
            small, trained, Codec("abs", 0.01, "dense", "interpolation"), Codec("abs", 10, "dense", "xyz"),
            Codec("abs", 0.01, "pack"), tables=trained.tables,
        ),
        "escapes-and-lowest-bits": encoded(heavy, Codec("abs", 0.5, "dense", "none"), Codec("abs", 1e-5, "dense", "x")),
        "patches": encoded(space[:9, :13, :21], *(Codec("abs", 1.0, coder, "patches") for coder in ("pack", "dense"))),
        "patches-of-a-plane": encoded(plane[:45, :51], Codec("abs", 1.0, "pack", "patches")),
        "patches-of-noise": encoded(special((21, 30)), Codec("abs", 2.0, "pack", "patches")),
        "one-value": encoded(np.float32(2.5).reshape(()), Codec("abs", 0.1)),
    }  # fmt: skip
    return cases


CASES = golden() | made()
FORGED = {"forged-pack": "tiles-in-space", "forged-dense": "tables-of-all-kinds"}
LITTLE_SCRATCH = 300_000  # bytes, for launch.LAUNCH_SCRATCH: some batches go in parts then


def forged(case: Case, seed: int) -> Case:
    """The same, with bytes changed inside the first chunk's tiles, where only the checksum would tell."""
    rng = np.random.default_rng(seed)
    chunk = case.chunks[0]
    tables, first_tile = 80 + int.from_bytes(chunk[12:16], "little"), 0
    first_tile = 4 * int.from_bytes(chunk[tables : tables + 4], "little")
    broken = Case(case.dtype, case.shape, [chunk], case.tables)
    at = {*range(first_tile, first_tile + 8), *rng.integers(first_tile, len(chunk) - 8, 60).tolist()}
    broken.flips = [(one, int(rng.integers(1, 256))) for one in sorted(at)]
    return broken


def case_of(name: str) -> Case:
    """The case of this name, of CASES or of FORGED."""
    return forged(CASES[FORGED[name]], len(name)) if name in FORGED else CASES[name]
