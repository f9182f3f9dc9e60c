"""The chunks that bench/decoders.py decodes: decoders x data x what lies under the coder x sizes."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import zstandard

from bench.codec_fields import all_sets

TOTAL, KIB = 1 << 20, 1 << 10  # bytes of all chunks of a case, so that no branch is learnt by heart
MADE, MEASURED = ("counts16", "counts32", "field32", "field64", "text"), ("ptycho_counts", "tooth", "femm_f64")
SIZES = (16, 64, 256, 1024)
BITSHUFFLE_BLOCK = 8 * KIB


@dataclass(frozen=True)
class Case:
    family: str
    name: str
    decoder: str
    itemsize: int
    stored: list[bytes]
    raw: list[bytes]


@functools.cache
def bytes_of(data: str) -> tuple[bytes, int]:
    """TOTAL bytes of a set, and the size of its items."""
    rng, sets = np.random.default_rng(1), all_sets()
    if data == "counts16":
        values = np.concatenate(sets["ptycho_sim"]()).astype(np.uint16)
    elif data == "counts32":
        values = rng.poisson(0.7, TOTAL // 4).astype(np.uint32)
    elif data == "field32":
        values = np.concatenate(sets["turb64"]())
    elif data == "field64":
        values = np.round(np.concatenate(sets["turb64"]()).astype(np.float64), 4)
    elif data == "text":
        rows = enumerate(zip(*rng.normal(0, 1, (3, 50_000)), strict=True))
        lines = (f"{i / 4:.2f},{x:.3f},{y:.4f},{z:.3e}\n" for i, (x, y, z) in rows)
        values = np.frombuffer("".join(lines).encode(), np.uint8)
    else:
        values = np.concatenate([sample.reshape(-1) for sample in sets[data]()])
    return np.resize(values.reshape(-1), TOTAL // values.itemsize).tobytes(), values.itemsize


def shuffled(raw: bytes, itemsize: int) -> bytes:
    return np.frombuffer(raw, np.uint8).reshape(-1, itemsize).T.tobytes()


def bitshuffled(raw: bytes, itemsize: int) -> bytes:
    bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, itemsize), axis=1, bitorder="little")
    return np.packbits(bits.T, bitorder="little").tobytes()


def parts(raw: bytes, nbytes: int) -> list[bytes]:
    return [raw[at : at + nbytes] for at in range(0, len(raw) // nbytes * nbytes, nbytes)]


def lz4_block(raw: bytes) -> bytes:
    import lz4.block  # here, for it may be absent

    return bytes(lz4.block.compress(raw, store_size=False))


CODERS: dict[str, Callable[[bytes], bytes]] = {
    "inflate": lambda raw: zlib.compress(raw, 4),
    "zstd": lambda raw: zstandard.ZstdCompressor(level=3).compress(raw),
    "lz4": lz4_block,
}
BLOSC = {1: "numcodecs", 2: "blosc2"}  # the package that makes chunks of this version


def lacking() -> list[str]:
    """The packages that make chunks, and the measured data, that are not here: their cases are left out."""
    packages = [one for one in ("lz4", *BLOSC.values()) if importlib.util.find_spec(one) is None]
    return [*packages, *(one for one in MEASURED if one not in all_sets())]


def container(raw: bytes, itemsize: int, coder: str) -> bytes:
    """A chunk of the filter bitshuffle."""
    made = [struct.pack(">QI", len(raw), BITSHUFFLE_BLOCK)]
    for block in parts(raw, BITSHUFFLE_BLOCK):
        stored = CODERS[coder](bitshuffled(block, itemsize))
        made += (struct.pack(">I", len(stored)), stored)
    return b"".join(made)


def blosc(raw: bytes, itemsize: int, version: int, codec: str, shuffle: str) -> bytes:
    if version == 1:
        import numcodecs

        number = ("none", "shuffle", "bitshuffle").index(shuffle)
        return bytes(numcodecs.Blosc(codec, 5, number).encode(np.frombuffer(raw, f"u{itemsize}")))
    import blosc2

    one = blosc2.Filter["NOFILTER" if shuffle == "none" else shuffle.upper()]
    chosen = {"codec": blosc2.Codec[codec.upper()], "clevel": 5, "typesize": itemsize, "filters": [one], "nthreads": 1}
    return bytes(blosc2.compress2(raw, **chosen))


Label = tuple[str, str, str]  # family, name, decoder
Maker = Callable[[bytes, int], bytes]  # of a chunk and the size of its items


def labels() -> Iterator[tuple[Label, str, int, int, Maker]]:
    """Each case, with its data, the KiB of a chunk, the size of its items (0: of the data's) and what makes one."""
    absent = lacking()
    sets = [one for one in (*MADE, *MEASURED) if one not in absent]
    coders = {name: encode for name, encode in CODERS.items() if name not in absent}
    for itemsize, size in itertools.product((2, 4, 8), SIZES):
        yield (f"byte unshuffle, items of {itemsize}", f"{size} KiB", "unshuffle"), "field32", size, itemsize, shuffled
        label = "bit unshuffle", f"items of {itemsize}, {size} KiB", "bitunshuffle"
        yield label, "field32", size, itemsize, bitshuffled
    for (coder, encode), data, size in itertools.product(coders.items(), sets, SIZES):
        yield (coder, f"{data}, {size} KiB", coder), data, size, 0, lambda raw, n, encode=encode: encode(raw)
        if data != "text":  # its items are bytes
            under = f"{data} byte-shuffled, {size} KiB"
            yield (coder, under, coder), data, size, 0, lambda raw, n, encode=encode: encode(shuffled(raw, n))
    for coder, data in itertools.product([one for one in ("lz4", "zstd") if one in coders], sets):
        encode = coders[coder]
        label = f"{coder} of bit-shuffled bytes, without the shuffle", f"{data}, 8 KiB", coder
        yield label, data, 8, 0, lambda raw, n, encode=encode: encode(bitshuffled(raw, n))
        for size in SIZES:
            label = f"{coder} under bitshuffle", f"{data}, {size} KiB", f"bitshuffle {coder}"
            yield label, data, size, 0, functools.partial(container, coder=coder)
    versions = [version for version, package in BLOSC.items() if package not in absent]
    kinds = itertools.product(versions, ("blosclz", "lz4", "lz4hc", "zlib", "zstd"), sets)
    for (version, codec, data), shuffle in itertools.product(kinds, ("none", "shuffle", "bitshuffle")):
        label = f"blosc{version} {codec}", f"{data} {shuffle}, 512 KiB", "blosc"
        yield label, data, 512, 0, functools.partial(blosc, version=version, codec=codec, shuffle=shuffle)


def cases(words: list[str]) -> Iterator[Case]:
    """All; with words, those in whose family or name each is."""
    for (family, name, decoder), data, size, itemsize, make in labels():
        if all(word in f"{family}, {name}" for word in words):
            whole, n = bytes_of(data)
            n = itemsize or n
            raw = parts(whole, size * KIB)
            stored = [make(one, n) for one in raw]
            # What lies under the coder is not undone by it alone.
            if decoder in CODERS and "shuffled" in f"{family} {name}":
                before = shuffled if "byte-shuffled" in name else bitshuffled
                raw = [before(one, n) for one in raw]
            yield Case(family, name, decoder, n, stored, raw)
