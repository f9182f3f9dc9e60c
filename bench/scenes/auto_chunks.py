"""`chunks=True` and `compression="gzip"` without more: h5py chooses (512, 8, 8), and each sample lies in 256 chunks."""

from __future__ import annotations

from bench.scene import Scene

SHAPE = (128, 128)

SCENES = (
    Scene("auto_plain", "64 KB, h5py's automatic chunks", 8192, SHAPE, "f4", chunk="auto"),
    Scene("auto_gzip", "64 KB, h5py's automatic chunks, gzip", 8192, SHAPE, "f4", batch=8, chunk="auto",
          filters={"compression": "gzip"}, quick=False),
)  # fmt: skip
