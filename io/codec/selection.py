"""Selects which datasets of a file are compressed and how, and says why the others are not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, SolarError
from solar.io.codec.codec import FILTER, OUR_FILTER, Codec, rounded_down
from solar.io.codec.filters import encode_chunk, pipeline
from solar.io.codec.grid import Grid, chunk_shape
from solar.io.codec.marks import labelled, marks_of
from solar.io.codec.skeleton import H5_ERRORS, links_of
from solar.io.hdf5.paths import hint

SMALL_SKIPPED = 64 << 10  # bytes; smaller datasets are not worth compressing
LONG_AXIS = 16 << 20  # bytes; smaller datasets with a single axis are labels, times, positions
SPARSE = 4  # a dataset is sparse if all its values would take so many times the bytes written
COMPRESSED = "solar compressed it already"
NOT_SMALLER = "it would not be smaller"
SMALL, ONE_AXIS = (
    "it is small",
    "it has a single axis",
)  # and nobody named it
REST = None  # the key in a Mapping of codecs for all datasets it does not name

Codecs = Mapping[str | None, Codec | None]


@dataclass(frozen=True)
class Part:
    """A dataset to be compressed, or compressed already."""

    name: str  # its path, from the root
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # as it will be stored: little-endian
    chunk: tuple[int, ...]
    codec: Codec  # first as asked, later with absolute bound and trained tables
    asked: Codec
    stored_rows: int  # of a chunk of the original
    stored_nbytes: int  # of the original
    span: Fraction = Fraction(0)  # of its measured numbers, as they are stored, if the bound was relative
    unit: Fraction = Fraction(1)  # a bound is this many times that of the stored numbers: see in_stored_unit
    why: str = ""  # the reason if it is lossless although a bound was asked for

    @property
    def grid(self) -> Grid:
        """Its chunks."""
        return Grid(self.shape, self.chunk, self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """The bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bound(self) -> float:
        """Returns its bound in the unit in which it was asked for; 0 while it is relative."""
        if self.asked.kind == "abs":
            return self.asked.bound
        return rounded_down(Fraction(self.codec.bound) * self.unit) if self.codec.kind != "rel" else 0.0

    @property
    def promise(self) -> dict[str, Any]:
        """Returns the text of its attribute about its bound: `bound` is that of the stored numbers."""
        asked = self.asked
        how = ("coder", asked.coder) if asked.filter == OUR_FILTER else ("filter", asked.filter)
        said: dict[str, Any] = dict([("version", 1), ("kind", asked.kind), ("bound", self.codec.bound), how])
        if asked.kind == "rel":
            said |= {"asked": asked.bound, "range": rounded_down(self.span)}
        elif asked.kind == "abs":
            said |= {"asked": asked.bound, "unit": "stored" if asked.stored else "unpacked"}
        return said

    @property
    def filters(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Returns the filters in its filter message: number and values of each."""
        return pipeline(self.codec, self.dtype, self.chunk)

    def encoded(self, values: NDArray[Any]) -> bytes:
        """Returns the chunk of these values."""
        return encode_chunk(self.codec, values)

    def mask_of(self, chunk: bytes) -> int:
        """Returns HDF5's filter mask of a chunk: no filter skipped, or all if the values stay as they are."""
        as_it_was = self.codec.filter != OUR_FILTER and len(chunk) == self.grid.chunk_nbytes
        return (1 << len(self.filters)) - 1 if as_it_was else 0


@dataclass(frozen=True)
class Left:
    """A dataset that is copied as it is, and why."""

    name: str
    reason: str
    nbytes: int  # as it is stored
    unread: bool = False  # its values cannot be read, so the stored bytes are copied with their damage


def select(file: Any, codecs: Codecs, chunk_samples: int | None = None) -> tuple[list[Part], list[Left]]:
    """Returns the datasets of an open file to compress, and those to leave as they are, in the order of the file's
    links.

    Datasets that are labels by their attributes are compressed losslessly, unless named with a bound. `codecs` gives
    the codec of each named dataset (None: leave it); under REST, that of all others with samples.
    """
    found = datasets_of(file)
    named = {_check_known(name, found, file.filename): codec for name, codec in codecs.items() if name is not REST}
    parts, left = [], []
    for name, dataset in found.items():
        codec = named.get(name, codecs.get(REST))
        must = name in named and codec is not None
        unread = False
        try:
            reason = why_not_compressed(dataset) or ("" if must else _not_samples(dataset))
        except H5_ERRORS as error:
            reason, unread = f"it cannot be read: {error}", True
        if must and reason:
            raise LayoutError(f"{file.filename}: {name} cannot be compressed: {reason}; leave it out of the fields")
        if codec is None:
            reason = "you said so" if name in named else "not among the fields named"
        exact = "" if must or codec is None or reason else _exact(dataset, codec)
        if exact and codec is not None and codec.filter != OUR_FILTER:
            reason = f"{exact}, which {codec.filter} would change: name it to have it compressed another way"
        if codec is None or reason:
            left.append(Left(name, reason, dataset.id.get_storage_size(), unread))
        else:
            kept = replace(codec, kind="lossless", bound=0.0) if exact else codec
            parts.append(replace(make_part(name, dataset, kept, chunk_samples), why=exact))
    return parts, left


def datasets_of(file: Any, broken: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns every dataset that hard links reach from the root, by the first path to it.

    A dataset that libhdf5 cannot open is a LayoutError; if `broken` is given, it is put there with the reason.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    pending: list[Iterator[bytes]] = [iter([b""])]
    while pending:
        if (path := next(pending[-1], None)) is None:
            pending.pop()
            continue
        name = path.decode("utf-8", "surrogateescape") or "/"
        try:
            made = h5py.h5o.open(file.id, path or b"/")
            address = h5py.h5o.get_info(made).addr
            if address not in seen and isinstance(made, h5py.h5d.DatasetID):
                found[name] = h5py.Dataset(made)
            elif address not in seen and isinstance(made, h5py.h5g.GroupID):
                hard = [child for child, info in links_of(made) if info.type == h5py.h5l.TYPE_HARD]
                pending.append(iter([path + b"/" + child for child in hard]))
            seen.add(address)
        except H5_ERRORS as error:
            why = str(error.args[0]) if error.args else str(error)  # a KeyError's own text has quotes
            if broken is None:
                all_of_them = f"`solar verify {file.filename}` names all that cannot be read"
                raise LayoutError(f"{file.filename}: {name}: libhdf5 cannot open it: {why}; {all_of_them}") from error
            broken[name] = why
    return found


def _check_known(name: str | None, found: Mapping[str, Any], file: str) -> str:
    path = "/" + (name or "").strip("/")
    if path in found:
        return path
    other, target = _behind_link(file, path)
    if not other and target in found:
        return target  # the link stays one
    if target:
        led = f"{other or file}: {target}"
        raise LayoutError(f"{file}: {path} is a link to {led}, and stays one: compress what it leads to")
    meant = hint(path, {name: one.shape or () for name, one in found.items()}, file)
    raise LayoutError(f"{file}: there is no dataset {path} to be compressed; {meant}")


def _behind_link(file: str, name: str) -> tuple[str, str]:
    """Returns the other file, if it is another, and the dataset that a link leads to; empty if this name is no link."""
    try:
        (dataset,) = _native.read_metadata(file, name)["datasets"]
    except SolarError:
        return "", ""
    return dataset["path"] or "", dataset["target"] or ""


def why_not_compressed(dataset: Any) -> str:
    """Returns why a dataset cannot be compressed; empty if it can."""
    kind = dataset.id.get_type()
    if kind.get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        return "its values are no numbers"
    try:
        dtype = dataset.dtype
    except (KeyError, TypeError, ValueError) as error:
        return f"its type is none that h5py knows: {error}"
    if dtype.kind not in "iuf" or dtype.str[1:] == "f2" or dtype.itemsize > 8 or h5py.check_dtype(enum=dtype):
        return f"its values are of type {dtype}: the codec takes float32, float64 and integers of 8 to 64 bits"
    if not kind.equal(h5py.h5t.py_create(dtype)):
        return "its numbers are of an unusual form"
    if dataset.shape == ():
        return "it is a single value"
    if dataset.shape is None or 0 in dataset.shape:
        return "it has no values"
    return ""


def _not_samples(dataset: Any) -> str:
    """Returns why a dataset that nobody named is left as it is; empty if it holds samples."""
    plan = dataset.id.get_create_plist()
    layout = plan.get_layout()
    if has_our_chunks(dataset):
        return COMPRESSED
    if layout == h5py.h5d.VIRTUAL or plan.get_external_count():
        return "its values lie in other files"
    if dataset.is_scale or dataset.attrs.get("CLASS") in (b"DIMENSION_SCALE", "DIMENSION_SCALE"):
        return "it is the scale of an axis"
    nbytes = dataset.size * dataset.dtype.itemsize
    if nbytes < SMALL_SKIPPED:
        return SMALL
    if dataset.ndim == 1 and nbytes < LONG_AXIS:
        return ONE_AXIS
    stored = dataset.id.get_storage_size()
    if stored == 0:
        return "nothing was written to it"
    if layout == h5py.h5d.CHUNKED:
        written = dataset.id.get_num_chunks() * math.prod(dataset.chunks) * dataset.dtype.itemsize
        if nbytes > SPARSE * written:
            return "most of it was never written"
    return ""


def _exact(dataset: Any, codec: Codec) -> str:
    """Returns why a dataset that nobody named is compressed bit for bit although a bound is asked for; else empty."""
    return "" if codec.kind == "lossless" else labelled(dataset) or marks_of(dataset).too_many


def has_our_chunks(dataset: Any) -> bool:
    """Returns whether its chunks are in our own format."""
    plan = dataset.id.get_create_plist()
    try:
        return any(plan.get_filter(i)[0] == FILTER for i in range(plan.get_nfilters()))
    except AssertionError:  # h5py, of a filter with more than 256 values
        found = _native.read_metadata(dataset.file.filename, dataset.name)["datasets"]
        return any(number == FILTER for number, _, _ in found[0]["filters"])


def make_part(name: str, dataset: Any, codec: Codec, chunk_samples: int | None) -> Part:
    dtype = dataset.dtype.newbyteorder("<")
    chunk = chunk_shape(dataset.shape, dtype.itemsize, chunk_samples)
    rows = dataset.chunks[0] if dataset.chunks else 1
    stored = dataset.id.get_storage_size()
    return Part(name, dataset.shape, np.dtype(dtype), chunk, codec, codec, rows, stored)
