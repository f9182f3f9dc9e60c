"""Filters for writing HDF5 with h5py: solar's own, hdf5plugin's, and zstd."""

from __future__ import annotations

import difflib
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError, PlanError
from solar.io.codec.codec import FILTER, FILTER_CHOICES, OUR_FILTER, Codec, span_of

NAMES = ("zstd", "bitshuffle-zstd")
VERSION = zstandard.__version__  # chunks depend on it
SHUFFLE, BITSHUFFLE, ZSTD = 2, 32008, 32015
_LEVEL = 3
_FORMAT, _BY_ZSTD = (0, 4), 3  # of bitshuffle: the version its filter has written for years, and its number for zstd
_BITSHUFFLE_BLOCK = 8192  # bytes of a bitshuffle block, about, as its own writers have them
# Transposes the 8 x 8 bits of a word: swaps single bits, then blocks of 2 x 2, then of 4 x 4.
_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))


def filters(name: str, itemsize: int, known: bool) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Number and values of each filter. `known`: libhdf5 has the filter, which then says version and size itself."""
    if name == "zstd":
        return ((SHUFFLE, ()), (ZSTD, (_LEVEL,)))
    return ((BITSHUFFLE, (*(() if known else (*_FORMAT, itemsize)), 0, _BY_ZSTD, _LEVEL)),)


def chunk(name: str, values: NDArray[np.generic]) -> bytes:
    """Returns the chunk of these values."""
    items = np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize)
    coder = zstandard.ZstdCompressor(level=_LEVEL)
    if name == "zstd":
        return coder.compress(np.ascontiguousarray(items.T).data.cast("B"))
    made = [struct.pack(">QI", values.nbytes, _block_items(values.itemsize) * values.itemsize)]
    for block in _bit_blocks(items):
        frame = coder.compress(block.data)
        made += (struct.pack(">I", len(frame)), frame)
    made.append(items[len(items) // 8 * 8 :].tobytes())  # the last few items are not shuffled
    return b"".join(made)


def _block_items(itemsize: int) -> int:
    return max(_BITSHUFFLE_BLOCK // itemsize // 8 * 8, 128)


def _bit_blocks(items: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    length, whole = _block_items(items.shape[1]), len(items) // 8 * 8
    last = whole // length * length
    if last > 0:
        yield from _bit_planes(items[:last].reshape(-1, length, items.shape[1]))
    if last < whole:
        yield from _bit_planes(items[None, last:whole])


def _bit_planes(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the bits of each block [block, item, byte] regrouped: the first bit of all items, and so on."""
    words = blocks.transpose(0, 2, 1).copy().view("<u8")  # a copy even where it lies so already: it is changed
    for shift, mask in _SWAPS:
        moved = (words ^ (words >> np.uint64(shift))) & np.uint64(mask)
        words ^= moved ^ (moved << np.uint64(shift))
    count, items, itemsize = blocks.shape
    rows = words.view(np.uint8).reshape(count, itemsize, items // 8, 8).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(rows).reshape(count, -1)


FOLDER = str(Path(_native.__file__).resolve().parent / "plugins")
SEARCHED = "HDF5_PLUGIN_PATH"
MOST_VALUES = 256  # of a filter: with more, h5py and netCDF4 fail to open the data set (H5Pget_filter refuses)

_ASKED = 7  # values that a writer needs, beside the lengths of a chunk
_MOST_KEPT = 16 + 8  # marks and limits, of two values each
_TYPE_NUMBERS = {"f4": 1, "f8": 2, "i1": 3, "u1": 4, "i2": 5, "u2": 6, "i4": 7, "u4": 8, "i8": 9, "u8": 10}
_CODERS = {"auto": 0, "pack": 1, "dense": 2}
_PREDICTORS = {"auto": 255, "none": 0, "x": 1, "xy": 3, "xyz": 7, "interpolation": 8, "patches": 16}


def register() -> str:
    """Gives the plug-in's folder, where h5py's libhdf5, those loaded later, and child processes now look first."""
    if not any(Path(FOLDER).glob("lib*.so")):
        raise ImportError(f"{FOLDER} has no plug-in for HDF5: solar was built without it; install it again")
    searched = [h5py.h5pl.get(i) for i in range(h5py.h5pl.size())]
    if FOLDER.encode() not in searched:
        h5py.h5pl.prepend(FOLDER.encode())
    # The variable replaces a library's own folder, so that is added behind ours.
    others = os.environ.get(SEARCHED) or os.pathsep.join(map(os.fsdecode, searched))
    if FOLDER not in others.split(os.pathsep):
        os.environ[SEARCHED] = os.pathsep.join([FOLDER, others] if others else [FOLDER])
    return FOLDER


def registered() -> bool:
    """Tells libhdf5 where our plug-in is, and gives whether it finds it."""
    with suppress(ImportError):  # solar was built without it
        register()
    return bool(h5py.h5z.filter_avail(FILTER))


def readable(filters: Iterable[int]) -> bool:
    """Returns whether libhdf5 has all of these filters, after it was told where to look."""
    registered()
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401  (its import makes the filters known to libhdf5)
    return all(h5py.h5z.filter_avail(number) for number in filters)


def has_room(codec: Codec, axes: int) -> bool:
    """Returns whether a filter's values have room for a codec's tables, and for type and shape of such chunks."""
    kept = 2 + 2 * _MOST_KEPT if codec.marks or codec.limits else 0
    return len(codec.filter_values) + _ASKED + axes + kept <= MOST_VALUES


def filter_values(codec: Codec, dtype: np.dtype[Any] | None = None, chunk: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Returns the values of a dataset's filter message: tables, and how chunks of this type and shape are encoded.

    If type and shape are left out, libhdf5 fills them in when it makes the dataset. With them it can check a chunk's
    size before it allocates memory, so give them if you know them. The codec's bound must be absolute.
    """
    if codec.kind == "rel":
        raise ValueError(f"the filter sees one chunk at a time and needs an absolute bound, not rel={codec.bound}")
    if dtype is not None and dtype.str not in {f"{np.dtype(code).str}" for code in _TYPE_NUMBERS}:
        raise CodecError(f"arrays of {dtype} cannot be encoded, only little-endian floats and integers")
    number = 0 if dtype is None else _TYPE_NUMBERS[dtype.str[1:]]
    bound = struct.unpack("<II", struct.pack("<d", codec.bound))
    kept = mark_words(codec, dtype) if codec.marks or codec.limits else ()
    asked = (2 if kept else 1, number, _CODERS[codec.coder], _PREDICTORS[codec.predictor], *bound, len(chunk), *chunk)
    values = codec.filter_values + asked + kept
    if len(values) > MOST_VALUES:
        raise CodecError(
            f"tables of {len(codec.tables)} bytes make {len(values)} filter values, and HDF5's tools read no more than "
            f"{MOST_VALUES}; encode without them"
        )
    return values


def mark_words(codec: Codec, dtype: np.dtype[Any] | None) -> tuple[int, ...]:
    """Marks and limits, each as the low and the high word of its bits."""
    if dtype is None:
        raise ValueError("marks are numbers of a type, and none is given")
    said: list[int] = []
    for numbers in (codec.marks, codec.limits):
        bits = np.frombuffer(numbers, f"<u{dtype.itemsize}").astype("<u8")
        said += [len(bits), *bits.view("<u4").tolist()]
    return tuple(said)


class Bounded(h5py.filters.FilterRefBase):  # type: ignore[misc]  # h5py has no types
    """Arguments of h5py's create_dataset for numbers within an error bound.

    Give one of abs (the largest error of a value), rel (a share of `span`, which is a number, or an array whose range
    counts) and lossless. A chunk should be a sample, of 16 KiB or more.

    >>> Bounded(abs=1e-3)["compression"]
    333
    """

    filter_id = FILTER

    def __init__(
        self,
        *,
        abs: float | None = None,
        rel: float | None = None,
        lossless: bool = False,
        span: float | NDArray[Any] | None = None,
        coder: str = "auto",
        predictor: str = "auto",
    ) -> None:
        if (abs is not None) + (rel is not None) + lossless != 1:
            raise TypeError("say one of abs=, rel= and lossless=True")
        if (span is None) is (rel is not None):
            raise TypeError("rel= needs span=, the range that it is relative to; abs= and lossless= have none")
        kind, bound = ("abs", abs) if abs is not None else ("rel", rel) if rel is not None else ("lossless", 0.0)
        assert bound is not None
        codec = Codec(kind, bound, coder, predictor)
        if span is not None:
            codec = codec.absolute(span_of(span) if isinstance(span, np.ndarray) else span)
        self.codec = codec
        self.filter_options = filter_values(codec)

    def __repr__(self) -> str:
        return f"Bounded({self.codec})"


# --- hdf5plugin's ----

_LEVELS = {"blosc2": (5, 0, 9), "bitshuffle-lz4": (0, 0, 0), "bitshuffle-zstd": (3, 1, 22), "zstd": (3, 1, 22)}
NAMED = tuple(name for name in FILTER_CHOICES if name != OUR_FILTER)


def named(
    name: str, *, level: int | None = None, abs: float | None = None, dtype: np.dtype[Any] | None = None
) -> dict[str, Any]:
    """Arguments of h5py's create_dataset for a filter of hdf5plugin.

    All are lossless except zfp, which needs `abs` and `dtype`. zfp's bound is not guaranteed: it holds for finite
    floats if it is above some 1e-8 of the largest value nearby. NaN, infinities and values such as 1e20 change, and
    spoil up to 4 x 4 x 4 values around them. solar reads zfp through libhdf5, not directly.
    """
    if name not in NAMED:
        near = difflib.get_close_matches(name, NAMED, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"there is no filter {name!r}, only {', '.join(NAMED)}{hint}")
    if name == "zfp":
        _check_zfp(abs, dtype)
    elif abs is not None:
        raise TypeError(f"{name} keeps every bit; abs= is for zfp")
    return _arguments(_hdf5plugin(name), name, _level(name, level), abs)


def _check_zfp(abs: float | None, dtype: np.dtype[Any] | None) -> None:
    if abs is None or dtype is None:
        raise TypeError("zfp needs abs=, the bound, and dtype=, the type of the numbers")
    if not (np.isfinite(abs) and abs > 0):
        raise ValueError(f"zfp's bound must be a number above 0, not {abs}")
    # zfp accepts integers of 32 and 64 bits but ignores the bound, and misreads big-endian numbers.
    if np.dtype(dtype).str not in {np.dtype("f4").str, np.dtype("f8").str}:
        raise CodecError(f"zfp keeps its bound for float32 and float64 of this machine's byte order, not for {dtype}")


def _level(name: str, level: int | None) -> int:
    usual, least, most = _LEVELS.get(name, (0, 0, 0))
    if level is None:
        return usual
    if not least <= level <= most or least == most:
        raise ValueError(f"{name} has " + (f"levels {least} to {most}, not {level}" if most else "no levels"))
    return level


def _arguments(plugin: Any, name: str, level: int, abs: float | None) -> dict[str, Any]:
    # Shuffling bytes or bits first makes numbers 1.2 to 1.3 times smaller than zstd alone.
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "blosc2": lambda: {**plugin.Blosc2("zstd", level, plugin.Blosc2.BITSHUFFLE)},
        "bitshuffle-lz4": lambda: {**plugin.Bitshuffle(cname="lz4")},
        "bitshuffle-zstd": lambda: {**plugin.Bitshuffle(cname="zstd", clevel=level)},
        "zstd": lambda: {"shuffle": True, **plugin.Zstd(level)},
        "zfp": lambda: {**plugin.Zfp(accuracy=abs)},
    }
    return makers[name]()


def _hdf5plugin(name: str) -> Any:
    try:
        import hdf5plugin  # not everybody has it
    except ImportError:
        raise ImportError(f"{name} is written by hdf5plugin, which is not here: pip install 'solar[filters]'") from None
    return hdf5plugin


# --- chunks for `solar compress` ----


def filter_packages(codecs: Iterable[Codec | None]) -> dict[str, str]:
    """Returns the other packages that make the chunks, with their versions. PlanError if one is needed and missing."""
    needed = {codec.filter for codec in codecs if codec is not None} - {OUR_FILTER}
    found = {"zstandard": VERSION} if needed & {*NAMES} else {}
    try:
        if others := sorted(needed - {*NAMES}):
            found["hdf5plugin"] = str(_hdf5plugin(" and ".join(others)).version)
    except ImportError as error:
        raise PlanError(str(error)) from None
    return found


def pipeline(codec: Codec, dtype: np.dtype[Any], chunk: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns the filters of a dataset with chunks of this codec: number and values of each."""
    if codec.filter == OUR_FILTER:
        return ((FILTER, filter_values(codec, dtype, chunk)),)
    if codec.filter in NAMES:
        return filters(codec.filter, dtype.itemsize, bool(h5py.h5z.filter_avail(BITSHUFFLE)))
    said = named(codec.filter, abs=codec.bound, dtype=dtype) if codec.filter == "zfp" else named(codec.filter)
    return ((said["compression"], tuple(said["compression_opts"])),)


def encode_chunk(codec: Codec, values: NDArray[Any]) -> bytes:
    """Returns the chunk of these values; values that another filter does not shrink stay as they are."""
    if codec.filter == OUR_FILTER:
        return codec.encode(values)
    if codec.filter in NAMES:
        made = chunk(codec.filter, values)
        return made if len(made) < values.nbytes else values.tobytes()
    if codec.filter == "zfp" and values.dtype.kind == "f" and not np.isfinite(values).all():
        raise CodecError(
            "zfp takes no NaN and no infinity: lossless, or solar's own filter, which keeps them as they are"
        )
    mask, made, back = _by_libhdf5(pipeline(codec, values.dtype, values.shape), values)
    if mask or len(made) >= values.nbytes:
        return values.tobytes()
    if codec.filter == "zfp":
        _check_kept(codec, values, back)
        beyond, _, largest = _native.compare(values, back, codec.bound)
        if beyond:
            raise CodecError(
                f"zfp does not keep {codec.bound:g} for {beyond:,} of {values.size:,} values, which are off by up to "
                f"{largest:g}: it is too small beside the largest of them; take solar's own filter, or a larger bound"
            )
    return made


def _check_kept(codec: Codec, values: NDArray[Any], back: NDArray[Any]) -> None:
    marks, limits = (np.frombuffer(numbers, values.dtype) for numbers in (codec.marks, codec.limits))
    bits = f"u{values.itemsize}"
    changed = int(
        (
            (np.isin(values, marks) | np.isin(back, marks))
            & (np.ascontiguousarray(values).view(bits) != back.view(bits))
        ).sum()
    )
    if changed:
        said = ", ".join(f"{mark:g}" for mark in marks)
        raise CodecError(
            f"zfp changes {changed:,} values that say that nothing was measured ({said}), or makes some: lossless, or "
            "solar's own filter, which keeps them as they are"
        )
    if any(((values < limit) != (back < limit)).any() for limit in limits):
        raise CodecError(
            "zfp moves values past the limits of what is valid (valid_min, valid_max, valid_range): lossless, or "
            "solar's own filter, which does not"
        )


def _by_libhdf5(
    filters: tuple[tuple[int, tuple[int, ...]], ...], values: NDArray[Any]
) -> tuple[int, bytes, NDArray[Any]]:
    """Returns the mask and the bytes of a chunk, and the values libhdf5 reads from it, by a file in memory."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk(values.shape)
    for number, said in filters:
        plan.set_filter(number, h5py.h5z.FLAG_OPTIONAL, said)
    # No cache of chunks: what is written goes through the filters, and so does what is read.
    name = f"chunk {id(values)}"  # libhdf5 takes two of the same name, in two threads, for one file
    with h5py.File(name, "w", driver="core", backing_store=False, rdcc_nbytes=0) as file:
        kind, space = h5py.h5t.py_create(values.dtype), h5py.h5s.create_simple(values.shape)
        dataset = h5py.h5d.create(file.id, b"x", kind, space, plan)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))
        mask, chunk = dataset.read_direct_chunk((0,) * values.ndim)
        back = np.empty_like(values, order="C")
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, back)
    return mask, chunk, back
