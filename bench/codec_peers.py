"""The codecs that bench/codec.py sets beside solar's, one array at a time; those not installed are left out."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Peer:
    """A way to store an array within an absolute bound; `lossless` ones are for integers only."""

    name: str
    encode: Callable[[Array, float], Any]
    decode: Callable[[Any, Array], Array]  # the second argument is of the type and shape wanted
    nbytes: Callable[[Any], int] = len
    lossless: bool = False


def peers() -> Iterator[Peer]:
    if importlib.util.find_spec("pysz"):
        yield sz3("SZ3 interp", "INTERP_LORENZO")
        yield sz3("SZ3 Lorenzo", "LORENZO_REG")
    if importlib.util.find_spec("zfpy"):
        yield zfp()
    if importlib.util.find_spec("hdf5plugin"):
        yield from through_hdf5()


def sz3(name: str, algorithm: str) -> Peer:
    import pysz

    def settings(like: Array, bound: float) -> Any:
        config = pysz.szConfig(like.shape)
        config.errorBoundMode = pysz.szErrorBoundMode.ABS
        config.absErrorBound = bound
        config.cmprAlgo = getattr(pysz.szAlgorithm, algorithm)
        return config

    def encode(array: Array, bound: float) -> Array:
        stored: Array = pysz.sz.compress(array, settings(array, bound))[0]
        return stored

    def decode(stored: Array, like: Array) -> Array:
        restored: Array = pysz.sz.decompress(stored, like.dtype, like.shape)[0]
        return restored

    return Peer(name, encode, decode)


def zfp() -> Peer:
    import zfpy

    def encode(array: Array, bound: float) -> bytes:
        stored: bytes = zfpy.compress_numpy(array, tolerance=bound)
        return stored

    def decode(stored: bytes, like: Array) -> Array:
        restored: Array = zfpy.decompress_numpy(stored)
        return restored

    return Peer("zfp", encode, decode)


def through_hdf5() -> Iterator[Peer]:
    """hdf5plugin's filters, one chunk in a file in memory; its reading is timed with HDF5's own cost."""
    import hdf5plugin

    numbers = itertools.count()  # names of files that are nowhere

    def peer(name: str, make: Callable[[float], Any], quantise: bool, lossless: bool = False) -> Peer:
        def encode(array: Array, bound: float) -> h5py.File:
            file = h5py.File(f"{next(numbers)}", "w", driver="core", backing_store=False, rdcc_nbytes=0)
            steps = np.rint(array / (2 * bound)).astype(np.int32) if quantise else array
            file.create_dataset("x", data=steps, chunks=steps.shape, **make(bound))
            file.attrs["step"] = 2 * bound
            file.flush()
            return file

        def decode(stored: h5py.File, like: Array) -> Array:
            values: Array = stored["x"][()]
            return (values * stored.attrs["step"]).astype(like.dtype) if quantise else values

        return Peer(name, encode, decode, lambda file: int(file["x"].id.get_storage_size()), lossless)

    yield peer("quantised, bitshuffle+LZ4 (HDF5)", lambda _: hdf5plugin.Bitshuffle(cname="lz4"), True)
    yield peer("quantised, bitshuffle+zstd (HDF5)", lambda _: hdf5plugin.Bitshuffle(cname="zstd", clevel=1), True)
    yield peer("SZ3 (HDF5)", lambda bound: hdf5plugin.SZ3(absolute=bound), False)
    yield peer("ZFP (HDF5)", lambda bound: hdf5plugin.Zfp(accuracy=bound), False)
    yield peer("bitshuffle+LZ4 (HDF5)", lambda _: hdf5plugin.Bitshuffle(cname="lz4"), False, lossless=True)
    yield peer("bitshuffle+zstd (HDF5)", lambda _: hdf5plugin.Bitshuffle(cname="zstd", clevel=3), False, lossless=True)
    yield peer(
        "Blosc2 zstd (HDF5)", lambda _: hdf5plugin.Blosc2(cname="zstd", clevel=5, filters=2), False, lossless=True
    )
    yield peer(
        "gzip+shuffle (HDF5)",
        lambda _: {"compression": "gzip", "compression_opts": 6, "shuffle": True},
        False,
        lossless=True,
    )
