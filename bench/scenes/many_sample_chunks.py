"""Many samples per chunk: h5py reads or decodes a whole chunk for each of them."""

from __future__ import annotations

from bench.scene import Scene

SHAPE = (128, 128)
DEFLATE = {"compression": "gzip", "shuffle": True}

SCENES = (
    Scene("chunk16_plain", "64 KB, 16-sample chunks", 8192, SHAPE, "f4", chunk=16, quick=False),
    Scene("chunk64_plain", "64 KB, 64-sample chunks", 8192, SHAPE, "f4", chunk=64),
    Scene("chunk16_deflate", "64 KB, 16-sample chunks, shuffle + deflate", 4096, SHAPE, "f4", chunk=16,
          filters=DEFLATE, quick=False),
    Scene("chunk64_deflate", "64 KB, 64-sample chunks, shuffle + deflate", 4096, SHAPE, "f4", chunk=64,
          filters=DEFLATE, quick=False),
)  # fmt: skip
