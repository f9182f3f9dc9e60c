"""The numpy dtype and the storage form of a dataset, or the reason why only h5py can read it.

If the bytes in the file are those in memory, native code reads them directly. If libhdf5 must convert them (odd
precision, strings that end at a zero byte, references, variable length), the reason says so and h5py reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from solar import _native
from solar.errors import LayoutError
from solar.values import Filter, Form

VARIABLE = "its elements have variable length"  # and their values are those of memory
_DEEPEST = 32  # types inside types
_LARGEST = 2**31 - 1  # bytes of an element: numpy's limit


class _Type(NamedTuple):
    dtype: np.dtype[Any]
    reason: str  # why the file's bytes are not those of the dtype; empty if they are
    nbytes: int  # in the file
    grown: int = 0  # extra bytes in libhdf5's memory, which move the members that follow


@dataclass
class _Message:
    """A cursor over the message; `depth` counts the types around the one being read."""

    data: bytes
    at: int = 0
    depth: int = 0

    def take(self, nbytes: int) -> bytes:
        part = self.data[self.at : self.at + nbytes]
        if len(part) != nbytes:
            raise LayoutError("datatype message is cut short")
        self.at += nbytes
        return part

    def number(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "little")

    def name(self, padded: bool) -> bytes:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise LayoutError("datatype message has a name without an end")
        name = self.take(end - self.at)
        self.take((len(name) // 8 + 1) * 8 - len(name) if padded else 1)
        return name


@dataclass(frozen=True)
class _Head:
    """The fields that every type begins with."""

    version: int
    flags: int
    nbytes: int

    @property
    def order(self) -> Literal["<", ">"]:
        return ">" if self.flags & 1 else "<"


def decode(message: bytes) -> tuple[np.dtype[Any], str]:
    """Returns the dtype of a datatype message as h5py gives it, and why h5py must read it (empty if it need not).

    LayoutError for a damaged message, and for types that numpy has no dtype for.

    >>> decode(bytes.fromhex("1008000004000000" "00002000"))
    (dtype('int32'), '')
    """
    found = decode_message(_Message(message))
    return found.dtype, found.reason


def decode_message(message: _Message) -> _Type:
    first = message.number(1)
    head = _Head(first >> 4, message.number(3), message.number(4))
    kind = first & 15
    if not 1 <= head.version <= 5:
        raise LayoutError(f"datatype message has version {head.version}")
    if not 0 < head.nbytes <= _LARGEST:
        raise LayoutError(f"datatype has {head.nbytes} bytes")
    if kind >= len(_TYPE_CLASSES):
        raise LayoutError(f"datatype is of unknown class {kind}")
    message.depth += 1
    if message.depth > _DEEPEST:
        raise LayoutError("datatype is nested too deeply")
    found = _TYPE_CLASSES[kind](message, head)
    message.depth -= 1
    return found


def _bits(message: _Message, head: _Head) -> tuple[int, int]:
    """Returns offset and precision of a number inside its bytes."""
    offset, precision = message.number(2), message.number(2)
    room = 8 * head.nbytes
    if precision == 0 or offset + precision > room:
        raise LayoutError(f"datatype has {precision} bits at bit {offset} of {room}")
    if head.nbytes > 1 and precision < room // 2:
        raise LayoutError(f"datatype has an unusual number of unused bits: {precision} of {room} are used")
    return offset, precision


def whole_bits(head: _Head, bits: tuple[int, int]) -> str:
    return "" if bits == (0, 8 * head.nbytes) else f"its numbers have {bits[1]} of {8 * head.nbytes} bits"


def _integer(message: _Message, head: _Head) -> _Type:
    bits = _bits(message, head)
    return _integer_of(head, "i" if head.flags & 8 else "u", bits)


def _bitfield(message: _Message, head: _Head) -> _Type:
    return _integer_of(head, "u", _bits(message, head))


def _integer_of(head: _Head, sign: str, bits: tuple[int, int]) -> _Type:
    if head.nbytes not in (1, 2, 4, 8):
        raise LayoutError(f"numpy has no integer of {head.nbytes} bytes")
    return _Type(np.dtype(f"{head.order}{sign}{head.nbytes}"), whole_bits(head, bits), head.nbytes)


_IEEE = {  # nbytes: sign, exponent's position and bits, mantissa's position and bits, bias
    2: (15, 10, 5, 0, 10, 15),
    4: (31, 23, 8, 0, 23, 127),
    8: (63, 52, 11, 0, 52, 1023),
}
_INVERTED_BITS = 0x0E  # unused bits that are set to one
_VAX = 0x40
_IMPLIED = 2  # the mantissa's first bit is not stored


def _float(message: _Message, head: _Head) -> _Type:
    bits = _bits(message, head)
    at, exponent, mantissa = head.flags >> 8 & 0xFF, message.take(2), message.take(2)
    bias = message.number(4)
    norm = head.flags >> 4 & 3
    _check_float([(at, 1), tuple(exponent), tuple(mantissa)], sum(bits), norm)
    fields = (at, *exponent, *mantissa, bias)
    if head.flags & _VAX:
        raise LayoutError("numpy has no dtype for VAX floating-point numbers")
    if fields == _IEEE.get(head.nbytes) and norm == _IMPLIED and not whole_bits(head, bits):
        reason = "its unused bits are inverted" if head.flags & _INVERTED_BITS else ""
        return _Type(np.dtype(f"{head.order}f{head.nbytes}"), reason, head.nbytes)
    dtype = _wide_enough(exponent[1], mantissa[1], bias).newbyteorder(head.order)
    return _Type(dtype, "its floating-point numbers are not IEEE half, single or double", head.nbytes)


def _check_float(parts: list[tuple[int, ...]], end: int, norm: int) -> None:
    if norm == 3 or any(nbits == 0 or at + nbits > end for at, nbits in parts):
        raise LayoutError("datatype is a damaged floating-point number")
    if any(at + nbits > after for (at, nbits), (after, _) in pairwise(sorted(parts))):
        raise LayoutError("datatype has parts of a floating-point number that overlap")


def _wide_enough(exponent_bits: int, mantissa_bits: int, bias: int) -> np.dtype[Any]:
    """Returns the smallest float of numpy that holds all values, as h5py chooses it."""
    for kind in (np.float16, np.float32, np.float64, np.longdouble):
        about = np.finfo(kind)
        highest = 2**exponent_bits - bias - 1
        stored = 64 if about.nmant == 63 else about.nmant  # the x87 stores the first bit too
        if stored >= mantissa_bits and about.maxexp >= highest and about.minexp <= 1 - bias:
            return np.dtype(kind)
    raise LayoutError("numpy has no floating-point number wide enough for this datatype")


def refuse_time(message: _Message, head: _Head) -> _Type:
    raise LayoutError("numpy has no dtype for HDF5's time class")


def _string(message: _Message, head: _Head) -> _Type:
    padding, charset = head.flags & 15, head.flags >> 4 & 15
    if padding > 2 or charset > 1:
        raise LayoutError("datatype is a string of unknown padding or character set")
    encoding = ("ascii", "utf-8")[charset]
    dtype = np.dtype(f"S{head.nbytes}", metadata={"h5py_encoding": encoding})
    reasons = ("its strings end at their first zero byte", "", "its strings are padded with spaces")
    return _Type(dtype, reasons[padding], head.nbytes)


def _opaque(message: _Message, head: _Head) -> _Type:
    tag = message.take(head.flags & 0xFF).split(b"\0")[0].decode("latin1")
    if tag.startswith("NUMPY:"):
        return _tag(tag[len("NUMPY:") :], head)
    return _Type(np.dtype(f"V{head.nbytes}"), f"its opaque bytes have the tag {tag!r}" if tag else "", head.nbytes)


_PLAIN = r"[<>|=]?[a-zA-Z]\d*(\[\w+\])?"


def _tag(text: str, head: _Head) -> _Type:
    """Returns the dtype that h5py writes as an opaque type with a tag: dates and time spans."""
    try:
        dtype = np.dtype(text if re.fullmatch(_PLAIN, text) else "no dtype")
    except TypeError:
        raise LayoutError(f"datatype is tagged as numpy's {text!r}, which is no dtype of plain bytes") from None
    if dtype.hasobject or dtype.itemsize != head.nbytes:
        raise LayoutError(f"datatype is tagged as numpy's {text!r}, which cannot be in {head.nbytes} opaque bytes")
    reason = "" if text == dtype.str else f"its opaque bytes have the tag {text!r}"
    return _Type(np.dtype(dtype, metadata={"h5py_opaque": True}), reason, head.nbytes)


class _Member(NamedTuple):
    name: str
    offset: int
    type: _Type


def _compound(message: _Message, head: _Head) -> _Type:
    count = head.flags & 0xFFFF
    if count == 0:
        raise LayoutError("datatype is a compound without members")
    members = [_member(message, head) for _ in range(count)]
    _check_members(members, head.nbytes)
    if (complex_ := _complex_of(members, head.nbytes)) is not None:
        return complex_
    reason = next((f"member {name!r}: {type_.reason}" for name, _, type_ in members if type_.reason), "")
    formats = [type_.dtype for _, _, type_ in members]
    names, offsets, grown = [name for name, _, _ in members], [0] * count, 0
    for i in sorted(range(count), key=lambda i: members[i].offset):
        offsets[i] = members[i].offset + grown
        grown += members[i].type.grown
    try:
        layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": head.nbytes + grown}
        return _Type(np.dtype(layout), reason, head.nbytes, grown)  # type: ignore[call-overload]
    except ValueError as error:
        raise LayoutError(f"datatype is a compound that numpy cannot have: {error}") from None


def _member(message: _Message, head: _Head) -> _Member:
    raw = message.name(padded=head.version < 3)
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise LayoutError(f"datatype has a member whose name is not UTF-8: {raw!r}") from None
    if not raw:
        raise LayoutError("datatype has a member without a name")
    offset = message.number(4 if head.version < 3 else (head.nbytes.bit_length() - 1) // 8 + 1)
    shape: tuple[int, ...] = ()
    if head.version == 1:  # arrays were a property of members
        rank = message.number(1)
        message.take(11)
        sizes = [message.number(4) for _ in range(4)]
        if rank > 4:
            raise LayoutError(f"datatype has a member of {rank} dimensions")
        shape = tuple(sizes[:rank])
    type_ = decode_message(message)
    return _Member(name, offset, _array_of(type_, shape) if shape else type_)


def _check_members(members: list[_Member], nbytes: int) -> None:
    end = 0
    for name, offset, type_ in sorted(members, key=lambda member: member.offset):
        if offset < end:
            raise LayoutError(f"datatype has a member {name!r} that overlaps another")
        end = offset + type_.nbytes
        if end > nbytes:
            raise LayoutError(f"datatype has a member {name!r} outside its compound")


def _complex_of(members: list[_Member], nbytes: int) -> _Type | None:
    """Returns a complex dtype for two equal floats called r and i, as h5py does."""
    if [name for name, _, _ in members] != ["r", "i"]:
        return None
    (_, first, real), (_, second, imaginary) = members
    if real.dtype != imaginary.dtype or real.dtype.kind != "f" or real.dtype.itemsize < 4:
        return None
    dtype = np.dtype(f"{real.dtype.byteorder}c{2 * real.dtype.itemsize}")
    in_order = first == 0 and second == real.nbytes and nbytes == dtype.itemsize
    reason = real.reason or imaginary.reason or ("" if in_order else "its complex numbers have gaps or are reversed")
    return _Type(dtype, reason, nbytes)


def _reference(message: _Message, head: _Head) -> _Type:
    in_memory = {0: 8, 1: 12}.get(head.flags & 15, 64)  # object, region, and those of newer versions
    return _Type(np.dtype(object), "its elements are references", head.nbytes, in_memory - head.nbytes)


def _enum(message: _Message, head: _Head) -> _Type:
    base = decode_message(message)
    count = head.flags & 0xFFFF
    if base.dtype.kind not in "iu" or base.nbytes != head.nbytes:
        raise LayoutError("datatype is an enumeration of something else than its integers")
    names = [message.name(padded=head.version < 3) for _ in range(count)]
    if b"" in names:
        raise LayoutError("datatype is an enumeration with an empty name")
    values = np.frombuffer(message.take(count * base.nbytes), base.dtype).tolist()
    members = {name.decode(errors="surrogateescape"): value for name, value in zip(names, values, strict=True)}
    if members == {"FALSE": 0, "TRUE": 1}:
        reason = base.reason or ("" if base.dtype == np.int8 else "its booleans are not h5py's signed bytes")
        return _Type(np.dtype(bool), reason, head.nbytes)
    return _Type(np.dtype(base.dtype, metadata={"enum": members}), base.reason, head.nbytes)


def _variable(message: _Message, head: _Head) -> _Type:
    kind, charset = head.flags & 15, head.flags >> 8 & 15
    if kind > 1:
        raise LayoutError("datatype is of variable length, but neither sequence nor string")
    base = decode_message(message)
    content = (bytes, str)[charset == 1] if kind == 1 else base.dtype
    dtype = np.dtype(object, metadata={"vlen": content})
    in_memory = 8 if kind == 1 else 16  # a pointer, or a pointer and a length
    as_stored = kind == 1 or (not base.reason and base.nbytes == base.dtype.itemsize)
    reason = (
        VARIABLE if as_stored else f"its elements are arrays of any length, whose values are converted: {base.reason}"
    )
    return _Type(dtype, reason, head.nbytes, in_memory - head.nbytes)


def _array(message: _Message, head: _Head) -> _Type:
    rank = message.number(1)
    if head.version < 3:
        message.take(3)
    if rank > 32:
        raise LayoutError(f"datatype is an array of {rank} dimensions")
    shape = tuple(message.number(4) for _ in range(rank))
    if head.version < 3:
        message.take(4 * rank)
    found = _array_of(decode_message(message), shape)
    if found.nbytes != head.nbytes:
        raise LayoutError(f"datatype is an array of {found.nbytes} bytes, but says {head.nbytes}")
    return found


def _array_of(base: _Type, shape: tuple[int, ...]) -> _Type:
    count = 1
    for size in shape:
        count *= size
    if count == 0 or count * max(base.nbytes, base.dtype.itemsize) > _LARGEST:
        raise LayoutError(f"datatype is an array of shape {shape}")
    return _Type(np.dtype((base.dtype, shape)), base.reason, count * base.nbytes, count * base.grown)


def _complex(message: _Message, head: _Head) -> _Type:
    if head.flags & 0xFF not in (0, 1):
        raise LayoutError("datatype is a complex number in a form that is not supported")
    base = decode_message(message)
    if base.dtype.kind != "f" or base.dtype.itemsize < 4 or head.nbytes != 2 * base.nbytes:
        raise LayoutError("numpy has no dtype for this complex number")
    return _Type(np.dtype(f"{base.dtype.byteorder}c{2 * base.dtype.itemsize}"), base.reason, head.nbytes)


_TYPE_CLASSES: tuple[Callable[[_Message, _Head], _Type], ...] = (
    _integer,
    _float,
    refuse_time,
    _string,
    _bitfield,
    _opaque,
    _compound,
    _reference,
    _enum,
    _variable,
    _array,
    _complex,
)


# How datasets are stored: chunks, filters and fill values, and why these cannot be read directly (if so).


dtype_of = lru_cache(maxsize=1024)(decode)  # by the bytes of the message: alike in many files and datasets


def forms_of(
    datasets: list[_native.Dataset], dtype: np.dtype[Any], per_file: bool
) -> tuple[list[Form], list[int], list[str]]:
    """Returns the different Forms, the Form of each part, and why each cannot be read directly (empty if it can)."""
    forms: list[Form] = []
    reasons: list[str] = []
    numbers: dict[tuple[Any, ...], int] = {}
    part_form = []
    for dataset in datasets:
        key = (
            str(dataset["chunk"]),
            str(dataset["filters"]),
            dataset["fill"],
            dataset["storage"],
            dataset["elsewhere"],
        )
        if (number := numbers.get(key)) is None:
            number = numbers[key] = len(forms)
            forms.append(storage_form(dataset, per_file))
            reasons.append(reason_of(dataset, dtype))
        part_form.append(number)
    return forms, part_form, reasons


def storage_form(dataset: _native.Dataset, per_file: bool) -> Form:
    filters = tuple(Filter(number, flags, tuple(values)) for number, flags, values in dataset["filters"])
    shape = dataset["shape"]
    if dataset["storage"] == "chunked":
        chunk = ((1,) if per_file else ()) + tuple(dataset["chunk"])
    else:
        chunk = (0, *(shape if per_file else shape[1:]))
    return Form(chunk, filters, dataset["fill"])


def reason_of(dataset: _native.Dataset, dtype: np.dtype[Any]) -> str:
    """Returns why a dataset cannot be read natively; empty if it can."""
    if dataset["elsewhere"]:
        return dataset["elsewhere"]
    if why := dtype_of(dataset["datatype"])[1]:
        return why
    if dtype.itemsize != dataset["itemsize"]:
        return f"an element has {dataset['itemsize']} bytes in the file and {dtype.itemsize} in memory"
    if other := next((one for one, *_ in dataset["filters"] if one in _native.zarr_filters()), 0):
        return f"filter {other} has no native decoder"  # it is Zarr's here, and unknown to HDF5
    return _native.unsupported(dataset["filters"], dataset["itemsize"])
