"""The scenes: what lies in the file, and in what cache state it is read. Every scene is read in random order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.scene import Scene

SMALL = Scene("contiguous_64k", "64 KB, contiguous", 8192, (128, 128), "f4", peers="all")
MIDDLE = Scene("contiguous_3m", "3 MB, contiguous", 384, (3, 512, 512), "f4", peers="all")
LARGE = Scene("contiguous_17m", "17 MB, contiguous", 72, (4, 128, 128, 128), "i2", batch=8)
CODEC = {"plugin": "solar", "options": {"abs": 0.4}}  # photon counts off by less than a half: rounding gives them again


def kb64(name: str, title: str, samples: int = 4096, **facts: Any) -> Scene:
    """Samples of 64 KB, for those that read the file as it is."""
    return Scene(name, f"64 KB, {title}", samples, SMALL.shape, "f4", **facts)


def chunk1(name: str, title: str, **filters: Any) -> Scene:
    """One sample per chunk: nothing is decoded in vain, and the limit is what the decoders alone reach."""
    return kb64(f"chunk1_{name}", f"one-sample chunks{title}", chunk=1, filters=filters)


DEFLATE = {"compression": "gzip", "shuffle": True}
SCENES = (
    # A sample is one run of bytes, and the limit is what `pread` alone reaches.
    SMALL,
    MIDDLE,
    LARGE,
    replace(SMALL, name="cold_64k", title="64 KB, contiguous, cold", samples=16384, cache="cold", epochs=1,
            peers="hdf5"),
    replace(MIDDLE, name="cold_3m", title="3 MB, contiguous, cold", samples=448, batch=16, cache="cold", epochs=1,
            peers="hdf5"),
    replace(LARGE, name="cold_17m", title="17 MB, contiguous, cold", samples=80, batch=4, cache="cold", epochs=1),
    chunk1("plain", ""),
    Scene("chunk1_3m", "3 MB, one-sample chunks", 384, (3, 512, 512), "f4", chunk=1),
    chunk1("deflate", ", shuffle + deflate", **DEFLATE),
    chunk1("lzf", ", lzf", compression="lzf"),
    chunk1("zstd", ", zstd", plugin="Zstd"),
    chunk1("lz4", ", lz4", plugin="LZ4"),
    chunk1("bslz4", ", bitshuffle + lz4", plugin="Bitshuffle", options={"cname": "lz4"}),
    chunk1("bszstd", ", bitshuffle + zstd", plugin="Bitshuffle", options={"cname": "zstd"}),
    chunk1("blosc", ", blosc (lz4)", plugin="Blosc", options={"cname": "lz4"}),
    chunk1("blosc2", ", blosc2 (zstd)", plugin="Blosc2", options={"cname": "zstd"}),
    # h5py reads or decodes a whole chunk for each of its samples.
    kb64("chunk16_plain", "16-sample chunks", samples=8192, chunk=16),
    kb64("chunk64_plain", "64-sample chunks", samples=8192, chunk=64),
    kb64("chunk16_deflate", "16-sample chunks, shuffle + deflate", chunk=16, filters=DEFLATE),
    kb64("chunk64_deflate", "64-sample chunks, shuffle + deflate", chunk=64, filters=DEFLATE),
    # What `chunks=True` and `compression="gzip"` choose: (512, 8, 8), and each sample lies in 256 chunks.
    kb64("auto_plain", "h5py's automatic chunks", samples=8192, chunk="auto", epochs=5),
    kb64("auto_gzip", "h5py's automatic chunks, gzip", samples=8192, chunk="auto", epochs=5,
         filters={"compression": "gzip"}),
    kb64("many_files", "one sample per file", files=4096, epochs=5),  # opening is the work
    kb64("codec_64k", "our codec", samples=8192, chunk=1, filters=CODEC),
    Scene("codec_3m", "3 MB, our codec", 384, (3, 512, 512), "f4", chunk=1, filters=CODEC),
    kb64("virtual_64k", "virtual, of 8 files", samples=8192, sources=8, epochs=5),
    kb64("listed_64k", "these 8 files as a list", samples=8192, sources=8, listed=True, epochs=5),
)  # fmt: skip


def all_scenes(quick: bool = False) -> dict[str, Scene]:
    """By name, in the order of the report; the quick ones are small."""
    return {scene.name: scene.small() if quick else scene for scene in SCENES}
