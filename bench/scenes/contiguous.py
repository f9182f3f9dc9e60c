"""Contiguous data: a sample is one run of bytes, and the limit is what `pread` alone reaches."""

from __future__ import annotations

from dataclasses import replace

from bench.scene import Scene

SMALL = Scene("contiguous_64k", "64 KB, contiguous", 8192, (128, 128), "f4", peers="all")
MIDDLE = Scene("contiguous_3m", "3 MB, contiguous", 384, (3, 512, 512), "f4", peers="all", quick=False)
LARGE = Scene("contiguous_17m", "17 MB, contiguous", 72, (4, 128, 128, 128), "i2", batch=8, quick=False)

SCENES = (
    SMALL,
    MIDDLE,
    LARGE,
    replace(SMALL, name="cold_64k", title="64 KB, contiguous, cold", samples=16384, cache="cold", peers="hdf5"),
    replace(MIDDLE, name="cold_3m", title="3 MB, contiguous, cold", samples=448, batch=16, cache="cold", peers="hdf5"),
    replace(LARGE, name="cold_17m", title="17 MB, contiguous, cold", samples=80, batch=4, cache="cold"),
)
