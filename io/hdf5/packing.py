"""Packings: unpacks stored numbers by the attributes of their dataset, following netCDF's CF conventions.

Missing values become NaN, others are multiplied by scale_factor and added to add_offset. The floating-point type, and
which values are missing, are the same as with `xarray.open_dataset(path, decode_times=False)`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, SolarError
from solar.io.hdf5 import datatype
from solar.io.hdf5.paths import is_zarr
from solar.values import Layout

log = logging.getLogger("solar")

MISSING = ("_FillValue", "missing_value")
SCALING = ("scale_factor", "add_offset")
UNSIGNED = "_Unsigned"
MOST_MISSING = 64  # missing values at most; every number is compared with each
PACKING_THREADS = 8  # threads that open files at the same time, if there are many

Attributes = Mapping[str, Any]  # arrays of numbers, or text
Dtype = np.dtype[Any]


@dataclass(frozen=True)
class Packing:
    """How one file's numbers are unpacked: missing ones become NaN, others x * scale + offset."""

    stored: Dtype  # in the machine's byte order
    seen: Dtype  # the type the bytes are read as: an attribute may make integers unsigned
    dtype: Dtype  # after unpacking
    wide: bool = False  # products and sums are computed in float64, and each is rounded to the working type
    missing: tuple[float, ...] = ()  # values that the type represents exactly
    unmet: tuple[float, ...] = ()  # values that it cannot represent, so no number equals them
    scale: float | None = None
    offset: float | None = None

    @property
    def work(self) -> Dtype:
        """The type in which numbers are unpacked."""
        return np.dtype(np.float64 if self.dtype == np.float64 else np.float32)

    @property
    def plain(self) -> bool:
        """Whether numbers keep the type and value with which they are read."""
        return self.scale is None and self.offset is None and not self.missing and self.dtype == self.seen

    def parameters(self, instead: float | None) -> tuple[Any, ...]:
        """Returns the arguments for native code (_native.convert)."""
        return (self.work == np.float64, self.wide, self.missing, self.scale, self.offset, instead)


@dataclass(frozen=True)
class Packings:
    """The packings of the rows of a data set. Each file may have its own."""

    kinds: tuple[Packing, ...]  # of the same types
    first: tuple[int, ...] = (0,)  # row of each stretch of rows
    which: tuple[int, ...] = (0,)  # the number in `kinds` for each stretch

    @property
    def several(self) -> bool:
        return len(self.kinds) > 1

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.array(self.first, np.int64), np.array(self.which, np.int64)

    def runs(self, rows: Sequence[int] | NDArray[Any] | None, samples: int) -> Iterator[tuple[int, int, Packing]]:
        """Yields begin, end and packing of each run of a batch's samples; `rows` are their rows."""
        if not self.several:
            yield 0, samples, self.kinds[0]
            return
        if rows is None or len(rows) != samples:
            raise ValueError("files of different packings: `rows` must say which row each sample is")
        first, which = self._arrays
        kinds = which[np.searchsorted(first, rows, side="right") - 1]
        edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), samples]
        for begin, end in pairwise(edges):
            if begin < end:
                yield begin, end, self.kinds[int(kinds[begin])]


def packings_of(layout: Layout) -> Packings:
    """Returns the packings of the rows of a Layout, from attributes. LayoutError: they are invalid."""
    if is_zarr(layout.files[0]):
        raise LayoutError(f"{layout.files[0]}: {layout.name}: cf=True reads no attributes of Zarr: leave it out")
    stored = layout.dtype.newbyteorder("=")
    # The sources of a virtual dataset have attributes, too, but its own count.
    files = (layout.dataset_file if len(layout.dataset_file) else layout.part_file).tolist()
    paths = [layout.paths[file] for file in files]
    with ThreadPoolExecutor(min(PACKING_THREADS, len(files))) as pool:
        found = list(pool.map(lambda file: packing_of_file(layout, file, stored), files))
    for path, one in zip(paths, found, strict=True):
        if (one.seen, one.dtype) != (found[0].seen, found[0].dtype):
            raise LayoutError(
                f"{path}: {layout.name} is unpacked to {one.dtype} ({words(one)}), but to {found[0].dtype} in "
                f"{paths[0]} ({words(found[0])}): make an H5Dataset of each sort of file"
            )
    for path, one in zip(paths, found, strict=True):
        if one.unmet:
            log.warning(
                "%s: %s: missing values of %s are unpacked as numbers, for %s, in which xarray looks for them, does not"
                " have that value",
                *(path, layout.name, list_numbers(one.unmet), one.work),
            )
            break
    kinds = tuple(dict.fromkeys(found))
    number = {kind: i for i, kind in enumerate(kinds)}
    of_files = [number[one] for one in found]
    new = [i for i, kind in enumerate(of_files) if i == 0 or kind != of_files[i - 1]]
    first = layout.first_of_files
    return Packings(kinds, tuple(int(first[i]) for i in new), tuple(of_files[i] for i in new))


def packing_text(layout: Layout, header: int | None = None) -> str:
    """Describes how a Layout's first file packs its numbers; empty if cf=True would change nothing.

    If its `header` is known, it is not searched for.
    """
    try:
        found = packing_of_file(layout, 0, layout.dtype.newbyteorder("="), header)
    except SolarError:  # it is told where it is asked for
        return ""
    return "" if found.plain and found.seen == found.stored else words(found)


def packing_of_file(layout: Layout, file: int, stored: Dtype, header: int | None = None) -> Packing:
    path, name = layout.paths[file], layout.name_in(file)
    at = () if header is None else (header,)
    found = _native.read_attributes(path, name, [*SCALING, *MISSING, UNSIGNED], *at)
    try:
        return packing_by({key: attribute_of(key, *one) for key, one in found.items()}, stored)
    except ValueError as error:
        raise LayoutError(f"{path}: {name}: {error}") from None


def attribute_of(key: str, message: bytes, values: int, stored: bytes, problem: str) -> Any:
    """Returns an attribute's numbers, or its text."""
    if problem:
        raise ValueError(f"its attribute {key} cannot be read: {problem}")
    dtype, reason = datatype.decode(message)
    if dtype.kind in "OS":
        return stored.split(b"\0")[0].decode("utf-8", "replace")
    if reason or dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise ValueError(f"its attribute {key} is of {dtype}{reason and f' ({reason})'}, which is no number here")
    return np.ndarray((values,), dtype, stored).astype(dtype.newbyteorder("="))


# --- xarray's rules ----


def packing_by(attributes: Attributes, stored: Dtype) -> Packing:
    """Returns the Packing that these attributes describe for a dtype. Raises ValueError if they are invalid."""
    if stored.kind not in "iuf" or stored.itemsize > 8 or stored.subdtype is not None:
        raise ValueError(f"cf=True is for numbers, and it is of {stored}: leave cf out")
    if text := next((key for key in (*SCALING, *MISSING) if isinstance(attributes.get(key), str)), ""):
        raise ValueError(f"its attribute {text} is the text {attributes[text]!r}, where cf=True needs a number")
    seen = _see(stored, attributes.get(UNSIGNED))
    scale, offset = (_scaling(key, attributes.get(key)) for key in SCALING)
    known = {key: attributes[key] for key in MISSING if key in attributes}
    real = {key: values[~np.isnan(values)] for key, values in known.items()}
    fills = [(key, value) for key, values in real.items() for value in values]
    if len(fills) > MOST_MISSING:
        raise ValueError(f"{len(fills)} values are called missing; cf=True looks for {MOST_MISSING} at most")
    packed = scale is not None or offset is not None
    # If only NaN is missing, numbers are unpacked in their own type. No integer is NaN.
    as_is = bool(known) and not fills and stored.kind == "f"
    dtype = seen if as_is or not (packed or fills) else unpacked_dtype(seen, scale, offset)
    if packed and dtype not in (np.float32, np.float64):
        raise ValueError(
            f"{packing_as_text(scale, offset)} would be worked out in {dtype}; cf=True does it in float32 or float64"
        )
    packing = Packing(stored, seen, dtype)
    terms = [term for term in (scale, offset) if term is not None]
    return replace(
        packing,
        wide=dtype == np.float32 and any(np.result_type(dtype, term.dtype) == np.float64 for term in terms),
        **missing_values(fills, packing),
        scale=None if scale is None else float(scale),
        offset=None if offset is None else float(offset),
    )


def _see(stored: Dtype, unsigned: Any) -> Dtype:
    """Returns the type to read numbers as. netCDF-3 has no unsigned types, so files use an attribute."""
    kind = {("i", "true"): "u", ("u", "false"): "i"}.get((stored.kind, unsigned), stored.kind)
    return np.dtype(f"{kind}{stored.itemsize}")


def _scaling(key: str, values: Any) -> Any:
    if values is None:
        return None
    if values.size != 1:
        raise ValueError(f"its attribute {key} has {values.size} values, where there should be one")
    if not np.isfinite(values[0]):
        raise ValueError(f"its attribute {key} is {values[0]}: nothing can be unpacked by that")
    return values[0]


def unpacked_dtype(seen: Dtype, scale: Any, offset: Any) -> Dtype:
    if scale is None and offset is None:
        if seen.kind == "f":
            return seen
        return np.dtype(np.float32 if seen.itemsize <= 2 else np.float64)
    if scale is not None and offset is not None and scale.dtype == offset.dtype and scale.dtype.str[1:] in ("f4", "f8"):
        return np.dtype(np.float64) if seen.itemsize == 4 and seen.kind in "iu" else scale.dtype
    return np.dtype(np.float64) if scale is None or offset is not None else scale.dtype


def missing_values(fills: list[tuple[str, Any]], packing: Packing) -> dict[str, Any]:
    """Returns the missing values that the searched type can represent, and those that it cannot."""
    missing, unmet = set(), set()
    for key, fill in fills:
        value = float(fill)
        if packing.seen != packing.stored and key == "_FillValue":  # what is stored there, seen as all is
            seen = np.array(fill).astype(packing.stored).view(packing.seen)
            value = float(seen.astype(packing.work)) if packing.seen.kind == "u" else float(seen)
        with np.errstate(all="ignore"):
            stored = np.array(fill).astype(packing.stored)
            if float(packing.work.type(value)) == value:
                missing.add(value)
            elif np.isfinite(stored) and (stored == fill or packing.stored.kind == "f"):
                unmet.add(value)
    return {"missing": tuple(sorted(missing)), "unmet": tuple(sorted(unmet))}


def packing_as_text(scale: Any, offset: Any) -> str:
    given = zip(SCALING, (scale, offset), strict=True)
    return " and ".join(f"{key} {value} of {value.dtype}" for key, value in given if value is not None)


def words(packing: Packing) -> str:
    """Describes the packing of the attributes; empty if there is none."""
    said = {"scale_factor": packing.scale, "add_offset": packing.offset}
    parts = [f"{key} {value:g}" for key, value in said.items() if value is not None]
    if packing.missing:
        parts.append(f"missing {list_numbers(packing.missing)}")
    if packing.unmet:
        parts.append(f"missing but never met {list_numbers(packing.unmet)}")
    if packing.seen != packing.stored:
        parts.append(f"seen as {packing.seen}")
    return ", ".join(parts)


def list_numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.9g}" for value in values)
