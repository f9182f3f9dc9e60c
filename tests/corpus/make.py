"""Writes the seeds of the fuzzers: small files and chunks of every kind, made here. docs/fuzzing.md says of what.

python tests/corpus/make.py  # needs hdf5plugin
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.filters import filter_values
from solar.io.codec.codec import Codec

HERE = Path(__file__).parent
FILTERS = (1, 2, 3, 5, 6, 32000, 32001, 32004, 32008, 32015, 32026, 333, 4)  # as fuzz_filters.cpp numbers them


def write(target: str, name: str, data: bytes) -> None:
    (HERE / target).mkdir(exist_ok=True)
    (HERE / target / name).write_bytes(data)


def files() -> Iterator[tuple[str, bytes]]:
    """HDF5 files: old and new structures, each chunk index, groups of all kinds."""
    small = np.arange(24, dtype="i2").reshape(6, 4)
    indexes: dict[str, dict[str, Any]] = {
        "contiguous": {},
        "chunked": {"chunks": (2, 2)},
        "single": {"chunks": (6, 4)},
        "grows": {"chunks": (2, 4), "maxshape": (None, 4)},
        "grows-twice": {"chunks": (2, 2), "maxshape": (None, None)},
        "filtered": {"chunks": (3, 4), "compression": "gzip", "shuffle": True, "fletcher32": True},
        "filtered-grows-twice": {"chunks": (3, 2), "maxshape": (None, None), "compression": "lzf"},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        for libver in ("earliest", "latest"):
            for name, options in indexes.items():
                with h5py.File(path, "w", libver=libver) as file:
                    file.create_dataset("x", data=small, **options)
                yield f"{name}-{libver}.h5", path.read_bytes()
            with h5py.File(path, "w", libver=libver) as file:
                group = file.create_group("g/h")
                group["scalar"] = 1.5
                file["soft"], file["out"] = h5py.SoftLink("/g/h/scalar"), h5py.ExternalLink("b.h5", "x")
                file["named"] = np.dtype([("a", "i4"), ("b", "S3")])
                file.create_dataset("fields", (2,), file["named"])
                file.create_dataset("text", (1,), h5py.string_dtype())
                file.create_dataset("none", data=h5py.Empty("f4"))
            yield f"groups-{libver}.h5", path.read_bytes()
            with h5py.File(path, "w", libver=libver) as file:
                for number in range(10):  # more than a header takes: a heap, and a tree of names
                    file[f"link{number}"] = h5py.SoftLink("x")
            yield f"links-{libver}.h5", path.read_bytes()
            with h5py.File(path, "w", libver=libver) as file:
                for number in range(4):  # samples, each with values of its own number
                    group = file.create_group(f"molecules/m{number}")
                    group["energy"], group["coords"] = 0.5 * number, small[: number % 3]
            yield f"molecules-{libver}.h5", path.read_bytes()
            with h5py.File(path, "w", libver=libver) as file:
                hits = file.create_dataset("hits", (7,), h5py.vlen_dtype("i4"))
                for number in (1, 5, 2, 3, 6):  # in heaps; two were never written
                    hits[number] = np.arange(3 * number)
            yield f"varying-{libver}.h5", path.read_bytes()
            for many in (0, 10):
                yield f"external-{many}-{libver}.h5", external(path, libver, many)


def external(path: Path, libver: str, more: int) -> bytes:
    """A file with links out of itself and back: the fuzzer's input is descriptor 3 to 5, and beside others of them."""
    with h5py.File(path, "w", libver=libver) as file:
        file["x"] = np.arange(3)
        for number in range(3, 6):
            file[f"in{number}"] = h5py.ExternalLink(str(number), "x")
            file[f"round{number}"] = h5py.ExternalLink(f"/proc/self/fd/{number}", f"/round{number}")
            file[f"root{number}"] = h5py.ExternalLink(str(number), "/")
        for number in range(more):
            file[f"gone{number}"] = h5py.ExternalLink(f"gone{number}.h5", "x")
        file["soft"], file["dir"] = h5py.SoftLink("root3/x"), h5py.ExternalLink("/", "x")
    return path.read_bytes()


def chunk_of(array: NDArray[Any], **options: Any) -> tuple[list[tuple[int, tuple[int, ...]]], bytes]:
    """The filters of a dataset of one chunk, and the chunk as it is stored."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", data=array, chunks=array.shape, **options)
        plan = dataset.id.get_create_plist()
        filters = [plan.get_filter(i) for i in range(plan.get_nfilters())]
        _, stored = dataset.id.read_direct_chunk((0,) * array.ndim)
        return [(number, values) for number, _, values, _ in filters], stored


def chunks() -> Iterator[tuple[str, bytes]]:
    """Chunks through each filter, in the layout of fuzz_filters.cpp."""
    array = (np.arange(300, dtype="f4") * 0.25).reshape(10, 30).round()
    whole = array.astype("i4")
    ways: dict[str, dict[str, Any]] = {
        "deflate": {"compression": "gzip"},
        "shuffled-summed": {"compression": "gzip", "shuffle": True, "fletcher32": True},
        "lzf": {"compression": "lzf"},
        "lz4": dict(hdf5plugin.LZ4(nbytes=128)),
        "bitshuffle": dict(hdf5plugin.Bitshuffle(cname="none")),
        "bitshuffle-lz4": dict(hdf5plugin.Bitshuffle()),
        "bitshuffle-zstd": dict(hdf5plugin.Bitshuffle(cname="zstd")),
        "zstd": dict(hdf5plugin.Zstd(19)),
        **{f"blosc-{name}": dict(hdf5plugin.Blosc(name)) for name in ("blosclz", "lz4", "zlib", "zstd")},
        **{f"blosc2-{name}": dict(hdf5plugin.Blosc2(name)) for name in ("blosclz", "lz4", "zstd")},
        "blosc-bits": dict(hdf5plugin.Blosc("lz4", 5, 2)),
        "blosc2-delta": dict(hdf5plugin.Blosc2("zstd", 5, 3)),
    }
    made = {name: (array, options) for name, options in ways.items()}
    made["scaleoffset"] = (whole, {"scaleoffset": 0})
    made["scaleoffset-real"] = (array, {"scaleoffset": 2})
    for name, (values, options) in made.items():
        filters, stored = chunk_of(values, **options)
        head = bytes([len(filters) - 1])
        for number, parameters in filters:
            head += bytes([FILTERS.index(number), len(parameters)]) + struct.pack(f"<{len(parameters)}I", *parameters)
        yield name, head + bytes([values.itemsize - 1]) + struct.pack("<IB", values.nbytes, 0) + stored


def plug_in() -> Iterator[tuple[str, bytes]]:
    """Values and chunks for the plug-in, in the layout of fuzz_plugin.cpp."""
    array = np.cumsum(np.arange(200, dtype="f4") % 7).reshape(10, 20)
    tables = _native.train([array], 0.01)
    for name, codec, given in (("plain", Codec("abs", 1e-2), b""), ("trained", Codec("abs", 1e-2), tables)):
        asked = filter_values(codec, array.dtype, array.shape)
        values = (1, len(given), *np.frombuffer(given, "<u4").tolist(), *asked[2:])
        head = struct.pack(f"<H{len(values)}I", len(values), *values)
        chunk = _native.encode(array, 0.01, "dense", "auto", given)
        yield f"{name}-decode", head + b"\0\1" + chunk
        yield f"{name}-encode", head + b"\1\0" + array.tobytes()


def main() -> None:
    """Writes all of them."""
    for target, made in (("metadata", files()), ("filters", chunks()), ("plugin", plug_in())):
        for name, data in made:
            write(target, name, data)


if __name__ == "__main__":
    main()
