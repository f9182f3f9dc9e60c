"""Our codec, one sample a chunk: photon counts off by 0.4 at most, so that rounding gives every count again."""

from __future__ import annotations

from bench.scene import Scene

CODEC = {"plugin": "solar", "options": {"abs": 0.4}}

SCENES = (
    Scene("codec_64k", "64 KB, our codec", 8192, (128, 128), "f4", chunk=1, filters=CODEC),
    Scene("codec_3m", "3 MB, our codec", 384, (3, 512, 512), "f4", chunk=1, filters=CODEC, quick=False),
)
