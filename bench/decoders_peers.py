"""The functions that bench/decoders.py times: ours, and those of libraries by their exported names."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.decoders_cases import Case

ROOT = Path(__file__).parents[1]
# As `enum Kind` of bench/decoders.cpp.
KINDS = (
    "solar_unshuffle", "solar_bitunshuffle", "solar_lz4", "solar_zstd", "solar_inflate", "solar_blosc",
    "solar_bitshuffle", "lib_unshuffle", "lib_bitunshuffle", "lib_lz4", "lib_zstd", "lib_deflate", "lib_zlib",
    "lib_blosc", "lib_blosc2", "lib_bitshuffle",
)  # fmt: skip
# Where a library is: a module and what to look for in its folder, or the name of a system's library.
PLACES = {
    "blosc2": ("blosc2", "lib/libblosc2.so"),
    "h5bshuf": ("hdf5plugin", "plugins/libh5bshuf.so"),
    "h5blosc": ("hdf5plugin", "plugins/libh5blosc.so"),
    "h5blosc2": ("hdf5plugin", "plugins/libh5blosc2.so"),
    "h5zstd": ("hdf5plugin", "plugins/libh5zstd.so"),
    "pip lz4": ("lz4", "block/_block*.so"),
    "numcodecs": ("numcodecs", "blosc*.so"),
    "liblz4": (None, "lz4"),
    "libzstd": (None, "zstd"),
    "libdeflate": (None, "deflate"),
    "zlib": (None, "z"),
}
# Which functions of which libraries do the same as one of ours.
PEERS = {
    "unshuffle": [("lib_unshuffle", "blosc2", "blosc2_unshuffle"), ("lib_unshuffle", "h5blosc2", "blosc2_unshuffle")],
    "bitunshuffle": [("lib_bitunshuffle", "h5bshuf", "bshuf_bitunshuffle")],
    "lz4": [("lib_lz4", name, "LZ4_decompress_safe") for name in ("liblz4", "pip lz4", "blosc2", "h5bshuf")],
    "zstd": [("lib_zstd", name, "ZSTD_decompressDCtx") for name in ("libzstd", "blosc2", "h5zstd")],
    "inflate": [("lib_deflate", "libdeflate", "libdeflate_zlib_decompress"), ("lib_zlib", "zlib", "uncompress")],
    "blosc": [
        ("lib_blosc", "h5blosc", "blosc_decompress_ctx"),
        ("lib_blosc", "numcodecs", "blosc_decompress_ctx"),
        ("lib_blosc2", "blosc2", "blosc2_decompress_ctx"),
        ("lib_blosc2", "h5blosc2", "blosc2_decompress_ctx"),
    ],
    "bitshuffle lz4": [("lib_bitshuffle", "h5bshuf", "bshuf_decompress_lz4")],
    "bitshuffle zstd": [("lib_bitshuffle", "h5bshuf", "bshuf_decompress_zstd")],
}
COMPRESSORS = {"bitshuffle lz4": 2, "bitshuffle zstd": 3}


class Call(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("itemsize", ctypes.c_int32), ("compressor", ctypes.c_int32),
        ("block_items", ctypes.c_int32), ("function", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


@functools.cache
def build() -> ctypes.CDLL:
    """bench/decoders.cpp, with the decoders as the extension has them: linked with what it was made of."""
    core = max(ROOT.glob("build/cp3*/libsolar_core.a"), key=lambda path: path.stat().st_mtime, default=None)
    if core is None:
        raise SystemExit("there is no build/cp3*/libsolar_core.a: `make .venv/.installed` makes it")
    source = ROOT / "bench/decoders.cpp"
    key = hashlib.sha256(source.read_bytes() + core.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"solar-bench-decoders-{os.getuid()}-{key}.so"
    if not library.exists():
        partial = library.with_suffix(f".{os.getpid()}")
        compiler = shutil.which(os.environ.get("CXX", "c++")) or "g++"
        flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wl,--exclude-libs,ALL"]
        command = [compiler, *flags, f"-I{ROOT / 'native/include'}", "-o", str(partial), str(source), str(core)]
        subprocess.run(command, check=True)
        partial.replace(library)
    loaded = ctypes.CDLL(str(library))
    loaded.decode_once.restype = ctypes.c_bool
    loaded.measure.restype = None
    loaded.measure.argtypes = [
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    ]  # fmt: skip
    return loaded


@functools.cache
def load(name: str) -> ctypes.CDLL | None:
    module, where = PLACES[name]
    if module is None:
        path = ctypes.util.find_library(where)
    else:
        spec = importlib.util.find_spec(module)
        folders = (spec.submodule_search_locations or []) if spec else []
        path = next((str(found) for folder in folders for found in Path(folder).glob(where)), None)
    return ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND) if path else None


def missing() -> list[str]:
    return [name for name in PLACES if load(name) is None]


@functools.cache
def context(kind: str, name: str) -> int | None:
    """What the function of this kind keeps from call to call."""
    library = load(name)
    assert library is not None
    makers = {"lib_zstd": "ZSTD_createDCtx", "lib_deflate": "libdeflate_alloc_decompressor"}
    if kind in makers:
        maker = library[makers[kind]]
        maker.restype = ctypes.c_void_p
        return maker()
    if kind == "lib_blosc2":
        library.blosc2_init()
        maker = library["blosc2_create_dctx"]
        maker.restype, maker.argtypes = ctypes.c_void_p, [DecompressionParameters]
        return maker(DecompressionParameters(1, None, None, None, -1))
    return None


class DecompressionParameters(ctypes.Structure):
    """blosc2_dparams."""

    _fields_ = (
        ("nthreads", ctypes.c_int), ("schunk", ctypes.c_void_p), ("postfilter", ctypes.c_void_p),
        ("postparams", ctypes.c_void_p), ("typesize", ctypes.c_int32),
    )  # fmt: skip


def calls(case: Case) -> dict[str, Call]:
    """Ours first, and those of the libraries that are here."""
    what, itemsize, items = case.decoder, case.itemsize, case.block_items
    ours = KINDS.index("solar_" + what.split()[0])
    made = {"solar": Call(ours, itemsize, COMPRESSORS.get(what, 0), items, None, None)}
    for kind, name, function in PEERS[what]:
        library = load(name)
        if library is None or (what == "blosc" and not case.fits(kind)) or not hasattr(library, function):
            continue
        address = ctypes.cast(library[function], ctypes.c_void_p).value
        made[name] = Call(KINDS.index(kind), itemsize, 0, items, address, context(kind, name))
    return made
