"""The chunks that bench/decoders.py decodes: decoders x items x blocks x data, encoded by the libraries."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.codec_fields import all_sets

TOTAL = 1 << 20
KIB = 1 << 10
SETS = ("climate", "femm_f64", "tooth", "ptycho_counts", "neutron_counts", "turb64")  # some measured, one generated
BITSHUFFLE = 32008


@dataclass(frozen=True)
class Case:
    decoder: str
    data: str
    itemsize: int
    block: int  # bytes of a chunk, or of a block in it
    how: str  # what was done to the bytes before, or what a blosc chunk is made of
    stored: list[bytes]
    raw: list[bytes]
    block_items: int = 0  # of a bitshuffle container

    @property
    def labels(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("decoder", "data", "itemsize", "block", "how")}

    @property
    def name(self) -> str:
        return named(self.decoder, self.data, self.itemsize, self.block, self.how)

    def fits(self, kind: str) -> bool:
        """Whether a library of this kind reads it: blosc 1 knows no chunks of blosc 2."""
        return kind != "lib_blosc" or self.how.startswith("blosc1")


def named(decoder: str, data: str, itemsize: int, block: int, how: str) -> str:
    return f"{decoder} {data} {itemsize}B {block // KIB}K {how}".strip()


@functools.cache
def bytes_of(data: str) -> tuple[bytes, int]:
    """About TOTAL bytes of a set, and the size of its items."""
    rng = np.random.default_rng(1)
    simple: dict[str, Callable[[], NDArray[Any]]] = {
        "random": lambda: rng.integers(0, 256, TOTAL, np.uint8).view(np.float32),
        "zeros": lambda: np.zeros(TOTAL // 4, np.float32),
        "counts": lambda: rng.poisson(0.7, TOTAL // 4).astype(np.int32),
        "counts16": lambda: rng.poisson(3, TOTAL // 2).astype(np.uint16),
    }
    if data in simple:
        values = simple[data]()
    else:
        values = np.concatenate([sample.reshape(-1) for sample in all_sets()[data]()])
        middle = max(0, values.size // 2 - TOTAL // values.itemsize // 2)
        values = np.resize(values[middle:], TOTAL // values.itemsize)
    return values.tobytes(), values.itemsize


def shuffled(raw: bytes, itemsize: int) -> bytes:
    items = len(raw) // itemsize
    body = np.frombuffer(raw, np.uint8, items * itemsize).reshape(items, itemsize).T
    return body.tobytes() + raw[items * itemsize :]


def bitshuffled(raw: bytes, itemsize: int) -> bytes:
    bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, itemsize), axis=1, bitorder="little")
    return np.packbits(bits.T, bitorder="little").tobytes()


BEFORE: dict[str, Callable[[bytes, int], bytes]] = {
    "": lambda raw, itemsize: raw, "shuffled": shuffled, "bitshuffled": bitshuffled,
}  # fmt: skip


def parts(raw: bytes, nbytes: int) -> list[bytes]:
    return [raw[at : at + nbytes] for at in range(0, len(raw) // nbytes * nbytes, nbytes)]


def cases(words: list[str]) -> Iterator[Case]:
    """All of them; with words, those in whose name each is."""
    for make in (shuffles, coders, containers, bloscs):
        for label, encode in make():
            name = named(*label)
            if all(word in name.split() for word in words):
                yield Case(*label, *encode())


Label = tuple[str, str, int, int, str]
Made = Iterator[tuple[Label, Callable[[], tuple[Any, ...]]]]


def shuffles() -> Made:
    raw = bytes_of("random")[0]
    for itemsize, block in itertools.product((2, 3, 4, 6, 8, 12, 16, 24, 32), (4, 16, 64, 256, 1024)):
        whole = parts(raw, block * KIB // (8 * itemsize) * 8 * itemsize)
        yield (
            ("unshuffle", "random", itemsize, block * KIB, ""),
            lambda whole=whole, n=itemsize: ([shuffled(one, n) for one in whole], whole),
        )
    for itemsize, block in itertools.product((1, 2, 4, 8), (8, 64, 1024)):
        # The library has blocks of its own where it is given none: of 8 KiB, and what it makes of a larger chunk.
        whole = parts(raw, block * KIB)
        yield (
            ("bitunshuffle", "random", itemsize, block * KIB, ""),
            lambda whole=whole, n=itemsize: ([_bitshuffled_blocks(one, n) for one in whole], whole),
        )


def _bitshuffled_blocks(raw: bytes, itemsize: int) -> bytes:
    return bitshuffled(raw, itemsize)


def coders() -> Made:
    import lz4.block
    import zstandard

    encoders: dict[str, Callable[[bytes], bytes]] = {
        "lz4": lambda raw: lz4.block.compress(raw, store_size=False),
        "zstd": lambda raw: zstandard.ZstdCompressor(level=3).compress(raw),
        "inflate": lambda raw: zlib.compress(raw, 4),
    }
    for decoder, data, how in itertools.product(encoders, (*SETS, "counts", "counts16", "random", "zeros"), BEFORE):
        if data == "random" and how:
            continue
        for block in (8, 64, 1024):

            def encode(decoder: str = decoder, data: str = data, block: int = block, how: str = how) -> tuple[Any, ...]:
                raw, itemsize = bytes_of(data)
                whole = [BEFORE[how](one, itemsize) for one in parts(raw, block * KIB)]
                return [encoders[decoder](one) for one in whole], whole

            yield (decoder, data, bytes_of(data)[1], block * KIB, how), encode


def containers() -> Made:
    """Chunks of HDF5's bitshuffle filter, as hdf5plugin writes them: blocks of 8 KiB unless it is told."""
    for name, data, block in itertools.product(("lz4", "zstd"), (*SETS, "counts", "counts16", "zeros"), (8, 64)):
        itemsize = bytes_of(data)[1]

        def encode(name: str = name, data: str = data, items: int = block * KIB // itemsize) -> tuple[Any, ...]:
            raw, itemsize = bytes_of(data)
            whole = parts(raw, 256 * KIB)
            return [_bitshuffle(one, itemsize, name, items) for one in whole], whole, items

        yield (f"bitshuffle {name}", data, itemsize, block * KIB, ""), encode


def _bitshuffle(raw: bytes, itemsize: int, name: str, items: int) -> bytes:
    import h5py
    import hdf5plugin

    values = np.frombuffer(raw, f"V{itemsize}")
    with h5py.File(f"chunk {id(raw)}", "w", driver="core", backing_store=False) as file:
        options = hdf5plugin.Bitshuffle(nelems=items, cname=name)
        stored = file.create_dataset("x", data=values, chunks=values.shape, **options)
        file.flush()
        return bytes(stored.id.read_direct_chunk((0,))[1])


def bloscs() -> Made:
    """Chunks of both formats, by codec and shuffle; blocks as the library chooses."""
    names, shuffles = ("blosclz", "lz4", "lz4hc", "zlib", "zstd"), ("none", "shuffle", "bitshuffle")
    chosen = ("climate", "tooth", "ptycho_counts", "femm_f64", "counts", "zeros", "random")
    for version, name, shuffle, data in itertools.product((1, 2), names, shuffles, chosen):
        if data == "random" and (name, shuffle) != ("lz4", "shuffle"):
            continue

        def encode(version: int = version, name: str = name, shuffle: str = shuffle, data: str = data) -> Any:
            raw, itemsize = bytes_of(data)
            whole = parts(raw, TOTAL // 2)
            return [_blosc(version, one, itemsize, name, shuffle) for one in whole], whole

        yield ("blosc", data, bytes_of(data)[1], TOTAL // 2, f"blosc{version} {name} {shuffle}"), encode


def _blosc(version: int, raw: bytes, itemsize: int, name: str, shuffle: str) -> bytes:
    import blosc2
    import numcodecs

    if version == 1:
        number = {"none": 0, "shuffle": 1, "bitshuffle": 2}[shuffle]
        return bytes(numcodecs.Blosc(name, 5, number).encode(np.frombuffer(raw, f"V{itemsize}").view(f"u{itemsize}")))
    filters = {"none": blosc2.Filter.NOFILTER, "shuffle": blosc2.Filter.SHUFFLE, "bitshuffle": blosc2.Filter.BITSHUFFLE}
    codec = getattr(blosc2.Codec, name.upper())
    parameters = {"codec": codec, "clevel": 5, "typesize": itemsize, "filters": [filters[shuffle]], "nthreads": 1}
    return bytes(blosc2.compress2(raw, **parameters))
