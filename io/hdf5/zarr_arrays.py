"""What the metadata of a Zarr array says of versions 2 and 3: shape, type, chunks, codecs, and the names of chunks.

It comes from anywhere: whatever is not exactly as the specification has it is a LayoutError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from solar import _native
from solar.errors import LayoutError
from solar.values import Filter

GZIP, CRC32C, TRANSPOSE = _native.zarr_filters()
DEFLATE, SHUFFLE, FLETCHER32, BLOSC, ZSTD = 1, 2, 3, 32001, 32015  # HDF5's numbers
BLOSC_COMPRESSORS = {"blosclz": 0, "lz4": 1, "lz4hc": 2, "zlib": 4, "zstd": 5}
BLOSC_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
ZARR_TYPES = {
    "bool": "?",
    **{f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": f"f{size}" for size in (2, 4, 8)},
    **{f"complex{8 * size}": f"c{size}" for size in (8, 16)},
}
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MOST_AXES = 32
MOST_FILTERS = 16
MOST_FILTERED = 2**32  # bytes, from which on a filtered chunk is not decoded
KNOWN = {"zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"}
KNOWN |= {"attributes", "dimension_names", "storage_transformers"}
READ_CODECS = (
    "solar reads transpose, bytes, gzip, zstd, blosc, crc32c and sharding_indexed: write the array again with these"
)
READ_COMPRESSORS = "solar reads shuffle, fletcher32, zlib, gzip, zstd and blosc: write the array again with these"
READ_TYPES = (
    "of Zarr solar reads booleans, integers, floats and complex numbers. Store text as numbers, such as those of its "
    "classes, and each column of a structure as an array"
)
LONGEST_TYPE = 40  # characters of the name of a type in a message

Order = Literal["<", ">"]  # of the bytes of a number


class Shards(NamedTuple):
    """How the chunks of an array lie in shards."""

    shape: tuple[int, ...]  # of a shard
    at_end: bool  # where its index lies; else at the beginning
    order: Order  # of the bytes of a number there
    filters: tuple[Filter, ...]  # of the index


class ZarrArray(NamedTuple):
    """An array as its metadata describes it."""

    version: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # in the order of bytes in which it is stored
    chunk: tuple[int, ...]
    filters: tuple[Filter, ...]
    fill: bytes  # empty: zeros
    prefix: str  # of the keys of chunks
    separator: str
    shards: Shards | None

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of what one key has: a chunk, or a shard."""
        return self.chunk if self.shards is None else self.shards.shape

    @property
    def chunk_nbytes(self) -> int:
        """The bytes of a chunk in memory."""
        return math.prod(self.chunk) * self.dtype.itemsize


def node_of(text: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object that describes an array or a group."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{where}: it is no JSON that can be read: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise LayoutError(f"{where}: it is no JSON object")
    return found


def array_of_node(node: dict[str, Any], where: str) -> ZarrArray:
    """Returns the array that this metadata describes; `where` is the file with it, for messages."""
    version = node.get("zarr_format")
    if version not in (2, 3) or isinstance(version, bool):
        _refuse(where, f"zarr_format is {version!r:.40}: solar reads versions 2 and 3")
    array = (_of_version_2 if version == 2 else _of_version_3)(node, where)
    if len(array.chunk) != len(array.shape) or len(array.stored) != len(array.shape):
        _refuse(where, "its chunks have another number of axes than its shape")
    if array.shards and any(own % inner for own, inner in zip(array.stored, array.chunk, strict=True)):
        _refuse(where, "its chunks do not divide its shards")
    cells = math.prod(-(-size // chunk) for size, chunk in zip(array.shape, array.chunk, strict=True))
    if max(cells, math.prod(array.shape) * array.dtype.itemsize, math.prod(array.stored)) >= 2**62:
        _refuse(where, "its shape or the shape of its chunks is too large to exist")
    if array.chunk_nbytes >= (MOST_FILTERED if array.filters else 2**62):
        _refuse(where, f"a chunk of {array.chunk_nbytes:,} bytes is too large: write the array with smaller chunks")
    return array


def _refuse(where: str, what: str) -> NoReturn:
    raise LayoutError(f"{where}: {what}")


def _type_in_words(type_: Any) -> str:
    """Returns the name of a type that is not read: of text, of a structure, or of an extension.

    >>> _type_in_words({"name": "fixed_length_utf32", "configuration": {}}), _type_in_words([["a", "<f4"]])
    ("'fixed_length_utf32'", 'a structure')
    """
    if isinstance(type_, list):
        return "a structure"
    name = type_.get("name") if isinstance(type_, dict) else type_
    return repr(name) if isinstance(name, str) and len(name) <= LONGEST_TYPE else "none that is known"


def _read_sizes(value: Any, least: int, where: str, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_AXES or not all(_is_integer_from(one, least) for one in value):
        _refuse(where, f"{what} is no list of at most {MOST_AXES} integers from {least} on")
    return tuple(value)


def _is_integer_from(value: Any, least: int, most: int = 2**62) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _read_extension(one: Any, where: str, what: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the configuration of an extension point of version 3."""
    facts = {"name": one} if isinstance(one, str) else one if isinstance(one, dict) else {}
    name, configuration = facts.get("name"), facts.get("configuration", {})
    if not isinstance(name, str) or not isinstance(configuration, dict):
        _refuse(where, f"{what} has no name, or a configuration that is no object")
    return name, configuration


# --- version 3 ----


def _of_version_3(node: dict[str, Any], where: str) -> ZarrArray:
    for key, value in node.items():
        if key not in KNOWN and not (isinstance(value, dict) and value.get("must_understand") is False):
            _refuse(where, f"it has {key!r:.60}, which solar does not know")
    if node.get("storage_transformers"):
        _refuse(where, "it has storage transformers, which solar does not read")
    shape = _read_sizes(node.get("shape"), 0, where, "shape")
    type_ = node.get("data_type")
    if not isinstance(type_, str) or type_ not in ZARR_TYPES:
        _refuse(where, f"its data type is {_type_in_words(type_)}: {READ_TYPES}")
    grid, facts = _read_extension(node.get("chunk_grid"), where, "chunk_grid")
    if grid != "regular":
        _refuse(where, f"its chunk grid {grid!r:.60} is not regular")
    stored = _read_sizes(facts.get("chunk_shape"), 1, where, "chunk_shape")
    prefix, separator = _keys(node.get("chunk_key_encoding"), where)
    codecs = node.get("codecs")
    order, chunk, filters, shards = _codecs(codecs, stored, np.dtype(ZARR_TYPES[type_]), where)
    dtype = np.dtype(ZARR_TYPES[type_]).newbyteorder(order)
    fill = fill_bytes(node.get("fill_value"), dtype, where)
    return ZarrArray(3, shape, dtype, chunk, filters, fill, prefix, separator, shards)


def _keys(encoding: Any, where: str) -> tuple[str, str]:
    name, facts = _read_extension(encoding, where, "chunk_key_encoding")
    separator = facts.get("separator", "/" if name == "default" else ".")
    if name not in ("default", "v2") or separator not in ("/", "."):
        _refuse(where, f"its chunk keys are encoded by {name!r:.60} with {separator!r:.60}, which solar does not know")
    return "c" if name == "default" else "", separator


def _codecs(
    codecs: Any, stored: tuple[int, ...], dtype: np.dtype[Any], where: str
) -> tuple[Order, tuple[int, ...], tuple[Filter, ...], Shards | None]:
    """Returns the order of bytes, the shape of chunks, their filters, and the shards that codecs make."""
    if not isinstance(codecs, list) or not 0 < len(codecs) <= MOST_AXES:
        _refuse(where, f"codecs is no list of 1 to {MOST_AXES} codecs")
    pairs = [_read_extension(one, where, "a codec") for one in codecs]
    transposes: list[Filter] = []
    axes = stored
    while pairs and pairs[0][0] == "transpose":
        order = _order_of_axes(pairs.pop(0)[1], axes, where)
        transposes += _transpose(order, axes, dtype)
        axes = tuple(axes[axis] for axis in order)
    name, facts = pairs[0] if pairs else ("", {})
    if name == "sharding_indexed":
        if transposes:
            _refuse(where, "its shards are transposed as wholes: solar reads single chunks of them")
        if len(pairs) > 1:
            _refuse(
                where, f"its shards are encoded as wholes, by {pairs[1][0]!r:.60}: solar reads single chunks of them"
            )
        return _sharding(facts, stored, dtype, where)
    return (
        _order(name, facts, dtype, where), stored,
        (*transposes, *(_filter_of_codec(*one, dtype, where) for one in pairs[1:])), None,
    )  # fmt: skip


def _sharding(
    facts: dict[str, Any], stored: tuple[int, ...], dtype: np.dtype[Any], where: str
) -> tuple[Order, tuple[int, ...], tuple[Filter, ...], Shards]:
    inner = _read_sizes(facts.get("chunk_shape"), 1, where, "chunk_shape of sharding_indexed")
    if len(inner) != len(stored):
        _refuse(where, "its chunks have another number of axes than its shards")
    location = facts.get("index_location", "end")
    if location not in ("start", "end"):
        _refuse(where, f"index_location {location!r:.60} is neither start nor end")
    order, chunk, filters, nested = _codecs(facts.get("codecs"), inner, dtype, where)
    if nested is not None:
        _refuse(where, "its shards hold shards: solar reads one level of them")
    of_index = facts.get("index_codecs", [{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"])
    own, _, sums, odd = _codecs(of_index, (*stored, 2), np.dtype("u8"), where)
    if odd is not None or any(one.id != CRC32C for one in sums):
        _refuse(where, "the index of its shards has other codecs than bytes and crc32c")
    return order, chunk, filters, Shards(stored, location == "end", own, sums)


def _order_of_axes(facts: dict[str, Any], shape: tuple[int, ...], where: str) -> list[int]:
    order = facts.get("order")
    if not isinstance(order, list) or sorted(map(repr, order)) != sorted(map(repr, range(len(shape)))):
        _refuse(where, "the order of its codec transpose is no permutation of its axes")
    return order


def _transpose(order: Sequence[int], shape: Sequence[int], dtype: np.dtype[Any]) -> list[Filter]:
    """Returns the filter that undoes a transpose of a chunk of this shape; none where all bytes stay in their places.

    >>> _transpose((1, 0), (5, 7), np.dtype("f4"))[0].values, _transpose((1, 0), (1, 7), np.dtype("f4"))
    ((4, 2, 1, 0, 5, 7), [])
    """
    long = [axis for axis in order if shape[axis] > 1]
    if long == sorted(long) or math.prod(shape) * dtype.itemsize >= MOST_FILTERED:  # which is refused later
        return []
    return [Filter(TRANSPOSE, 0, (dtype.itemsize, len(shape), *order, *shape))]


def _order(name: str, facts: dict[str, Any], dtype: np.dtype[Any], where: str) -> Order:
    if name != "bytes":
        _refuse(where, f"its codec {name!r:.60} is none that solar knows here; {READ_CODECS}")
    endian = facts.get("endian")
    if endian not in ("little", "big") and not (endian is None and dtype.itemsize == 1):
        _refuse(where, f"the endian {endian!r:.60} of its codec bytes is neither little nor big")
    return ">" if endian == "big" else "<"


def _filter_of_codec(name: str, facts: dict[str, Any], dtype: np.dtype[Any], where: str) -> Filter:
    """Returns the filter that undoes a codec of bytes."""
    if name == "crc32c":
        return Filter(CRC32C, 0)
    if name == "gzip" and _is_integer_from(facts.get("level"), 0, 9):
        return Filter(GZIP, 0)
    if (
        name == "zstd"
        and _is_integer_from(facts.get("level"), -(2**31))
        and facts.get("checksum") in (False, True, None)
    ):
        return Filter(ZSTD, 0, ())
    if name == "blosc":
        shuffle = facts.get("shuffle")
        number = BLOSC_SHUFFLES.get(shuffle, -1) if isinstance(shuffle, str) else -1
        return _blosc_filter(facts, number, facts.get("typesize", 1), where)
    if name in ("gzip", "zstd"):
        _refuse(where, f"its codec {name} has a wrong configuration")
    _refuse(where, f"its codec {name!r:.60} is none that solar knows; {READ_CODECS}")


def _blosc_filter(facts: dict[str, Any], shuffle: int, itemsize: Any, where: str) -> Filter:
    compressor, level, block = facts.get("cname"), facts.get("clevel"), facts.get("blocksize", 0)
    if compressor == "snappy":
        _refuse(
            where, "its codec blosc compresses by snappy, which solar does not decode: write the array again with zstd"
        )
    number = BLOSC_COMPRESSORS.get(compressor, -1) if isinstance(compressor, str) else -1
    sizes = _is_integer_from(itemsize, 0, 2**31) and _is_integer_from(block, 0, 2**31)
    if number < 0 or not 0 <= shuffle <= 2 or not sizes or not isinstance(level, int) or not 0 <= level <= 9:
        _refuse(where, "its codec blosc has a wrong configuration")
    return Filter(BLOSC, 0, (2, 2, itemsize, 0, int(level), shuffle, number))


# --- version 2 ----


def _of_version_2(node: dict[str, Any], where: str) -> ZarrArray:
    shape = _read_sizes(node.get("shape"), 0, where, "shape")
    chunk = _read_sizes(node.get("chunks"), 1, where, "chunks")
    type_ = node.get("dtype")
    if not isinstance(type_, str) or not re.fullmatch(r"[<>|](b1|[iu][1248]|f[248]|c(8|16))", type_):
        _refuse(where, f"its dtype is {_type_in_words(type_)}: {READ_TYPES}")
    written = node.get("filters") or []
    if not isinstance(written, list) or len(written) > MOST_FILTERS:
        _refuse(where, f"its filters are no list of at most {MOST_FILTERS}")
    order, separator = node.get("order"), node.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        _refuse(where, f"its order {order!r:.40} or its dimension_separator {separator!r:.40} is not known")
    dtype = np.dtype(type_)
    value = node.get("fill_value")
    fill = b"" if value is None else fill_bytes(value, dtype, where)
    turned = _transpose(range(len(chunk))[::-1], chunk, dtype) if order == "F" else []
    if node.get("compressor") is not None:
        written = [*written, node["compressor"]]
    filters = (*turned, *(_filter_of_2(one, dtype, where) for one in written))
    return ZarrArray(2, shape, dtype, chunk, filters, fill, "", separator, None)


def _filter_of_2(facts: Any, dtype: np.dtype[Any], where: str) -> Filter:
    """Returns the filter that undoes a codec of numcodecs, which version 2 names as filter or as compressor."""
    name = facts.get("id") if isinstance(facts, dict) else None
    if name == "shuffle" and _is_integer_from(size := facts.get("elementsize", 4), 1, 255):
        return Filter(SHUFFLE, 0, (size,))
    if name == "fletcher32":
        return Filter(FLETCHER32, 0)
    if name == "blosc" and _is_integer_from(shuffle := facts.get("shuffle", 1), -1, 2):
        return _blosc_filter(facts, max(0, shuffle), dtype.itemsize, where)
    level = facts.get("level", 1) if isinstance(facts, dict) else None
    if name == "zstd" and _is_integer_from(level, -(2**31), 2**31):
        return Filter(ZSTD, 0, ())
    if name == "gzip" and _is_integer_from(level, -1, 9):
        return Filter(GZIP, 0)
    if name == "zlib" and _is_integer_from(level, -1, 9):
        return Filter(DEFLATE, 0, (6,))  # decoding does not depend on the level
    if name in ("shuffle", "blosc", "zstd", "zlib", "gzip"):
        _refuse(where, f"its codec {name} has a wrong configuration")
    _refuse(where, f"its filter or compressor {name!r:.60} is none that solar knows; {READ_COMPRESSORS}")


# --- fill values ----


def fill_bytes(value: Any, dtype: np.dtype[Any], where: str) -> bytes:
    """Returns the fill value as a chunk would have it; empty where that is zeros.

    >>> fill_bytes("0x7fc00001", np.dtype(">f4"), "").hex(), fill_bytes([1, "NaN"], np.dtype("<c8"), "").hex()
    ('7fc00001', '0000803f0000c07f')
    """
    if dtype.kind == "c":
        part = np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}")
        values: Sequence[Any] = value if isinstance(value, list) and len(value) == 2 else (value, 0.0)
        made = b"".join(_scalar_bytes(one, part, where) for one in values)
    else:
        made = _scalar_bytes(value, dtype, where)
    return made if any(made) else b""


def _scalar_bytes(value: Any, dtype: np.dtype[Any], where: str) -> bytes:
    if dtype.kind == "b" and (isinstance(value, bool) or value in (0, 1)):
        return bytes([bool(value)])
    if dtype.kind in "iu" and isinstance(value, (int, float)) and not isinstance(value, bool) and value % 1 == 0:
        limits = np.iinfo(dtype)
        if limits.min <= value <= limits.max:
            return np.array(int(value), dtype).tobytes()
    if dtype.kind == "f":
        if isinstance(value, str) and re.fullmatch(rf"0x[0-9a-fA-F]{{{2 * dtype.itemsize}}}", value):
            return bytes.fromhex(value[2:])[:: 1 if dtype.byteorder == ">" else -1]
        number = NOT_FINITE.get(value) if isinstance(value, str) else value
        if isinstance(number, float) or (isinstance(number, int) and _is_integer_from(number, -(2**1023), 2**1023)):
            with np.errstate(over="ignore"):
                return np.array(float(number), dtype).tobytes()
    raise LayoutError(f"{where}: its fill value {value!r:.60} is none of type {dtype}")
