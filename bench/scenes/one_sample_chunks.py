"""One sample per chunk: nothing is decoded in vain, and the limit is what the decoders alone reach."""

from __future__ import annotations

from typing import Any

from bench.scene import Scene

SHAPE = (128, 128)


def chunked(name: str, title: str, quick: bool = False, **filters: Any) -> Scene:
    return Scene(f"chunk1_{name}", f"64 KB, {title}", 4096, SHAPE, "f4", chunk=1, filters=filters, quick=quick)


SCENES = (
    chunked("plain", "one-sample chunks"),
    Scene("chunk1_3m", "3 MB, one-sample chunks", 384, (3, 512, 512), "f4", chunk=1, quick=False),
    chunked("deflate", "one-sample chunks, shuffle + deflate", True, compression="gzip", shuffle=True),
    chunked("lzf", "one-sample chunks, lzf", compression="lzf"),
    chunked("zstd", "one-sample chunks, zstd", True, plugin="Zstd"),
    chunked("lz4", "one-sample chunks, lz4", plugin="LZ4"),
    chunked("bslz4", "one-sample chunks, bitshuffle + lz4", plugin="Bitshuffle", options={"cname": "lz4"}),
    chunked("bszstd", "one-sample chunks, bitshuffle + zstd", True, plugin="Bitshuffle", options={"cname": "zstd"}),
    chunked("blosc", "one-sample chunks, blosc (lz4)", plugin="Blosc", options={"cname": "lz4"}),
    chunked("blosc2", "one-sample chunks, blosc2 (zstd)", plugin="Blosc2", options={"cname": "zstd"}),
)
