"""Finds differences between two HDF5 files that should be alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError
from solar.io.codec.grid import chunk_begins, slabs, stored_values
from solar.io.codec.skeleton import H5_ERRORS, OUR_ATTRIBUTES, check_readable, leads_elsewhere
from solar.io.hdf5 import external_files

COMPARED_AT_ONCE = 16 << 20  # bytes of values compared at a time


@dataclass
class _Two:
    """Two files, and the pairs of objects that correspond."""

    here: Any  # h5py.File
    there: Any
    compressed: set[int]  # by the addresses there
    twins: dict[int, int] = field(default_factory=dict)  # by addresses
    paths: dict[int, str] = field(default_factory=dict)


def differences(here: Any, there: Any, compressed: Collection[str]) -> Iterator[str]:
    """Yields the differences, in words. For datasets compressed `there`, values and storage are not compared."""
    two = _Two(here, there, {object_address(there[name]) for name in compressed})
    two.twins[object_address(here["/"])] = object_address(there["/"])
    two.paths[object_address(here["/"])] = "/"
    pending = ["/"]
    while pending:
        path = pending.pop()
        yield from _links(two, path, pending)
    for path in list(two.paths.values()):  # now that all twins are known: references are among them
        yield from _objects(two, path)


def object_address(thing: Any) -> int:
    return int(h5py.h5o.get_info(thing.id).addr)


def _links(two: _Two, path: str, pending: list[str]) -> Iterator[str]:
    ours, theirs = two.here[path], two.there[path]
    names, others = list(ours), list(theirs)
    if names != others:
        missing, more = sorted(set(names) - set(others)), sorted(set(others) - set(names))
        what = f"{missing} are missing, {more} are new" if missing or more else "they are in another order"
        yield f"{path}: its links differ: {what}"
    for name in names:
        if name not in others:
            continue
        child = f"{path.rstrip('/')}/{name}"
        link, other = ours.get(name, getlink=True), theirs.get(name, getlink=True)
        if type(link) is not type(other) or vars(link) != vars(other):
            yield f"{child}: a link that leads elsewhere"
        elif isinstance(link, h5py.HardLink):
            yield from _twins(two, child, ours[name], theirs[name], pending)


def _twins(two: _Two, child: str, ours: Any, theirs: Any, pending: list[str]) -> Iterator[str]:
    address, other = object_address(ours), object_address(theirs)
    if address in two.twins:
        if two.twins[address] != other:
            yield f"{child}: another object than {two.paths[address]}, which it is in the original"
    elif type(ours) is not type(theirs):
        yield f"{child}: a {type(theirs).__name__.lower()}, and a {type(ours).__name__.lower()} in the original"
    elif other in two.twins.values():
        yield f"{child}: the same object as another one, which it is not in the original"
    else:
        two.twins[address], two.paths[address] = other, child
        if isinstance(ours, h5py.Group):
            pending.append(child)


def _objects(two: _Two, path: str) -> Iterator[str]:
    ours, theirs = two.here[path], two.there[path]
    yield from compare_attributes(two, path, ours.id, theirs.id)
    if isinstance(ours, h5py.Datatype) and not ours.id.equal(theirs.id):
        yield f"{path}: another type"
    if isinstance(ours, h5py.Dataset):
        yield from compare_datasets(two, path, ours, theirs)


def compare_attributes(two: _Two, path: str, ours: Any, theirs: Any) -> Iterator[str]:
    skipped = OUR_ATTRIBUTES if h5py.h5o.get_info(theirs).addr in two.compressed or path == "/" else ()
    named, others = ({name for name in _names(of) if name not in skipped} for of in (ours, theirs))
    for name in sorted(named ^ others):
        yield f"{path}: attribute {name_text(name)} is {'missing' if name in named else 'new'}"
    for name in sorted(named & others):
        try:
            stored = name.encode("utf-8", "surrogateescape")
            what = _attribute_differs(two, h5py.h5a.open(ours, stored), h5py.h5a.open(theirs, stored))
        except H5_ERRORS as error:
            what = f"cannot be compared: {error}"
        if what:
            yield f"{path}: attribute {name_text(name)} {what}"


def _attribute_differs(two: _Two, one: Any, other: Any) -> str:
    """Returns how two attributes differ; empty if they do not."""
    space, space2 = one.get_space(), other.get_space()
    alike = (space.get_simple_extent_type(), space.shape) == (space2.get_simple_extent_type(), space2.shape)
    if not alike or not one.get_type().equal(other.get_type()):
        return "is of another type or shape"
    if space.get_simple_extent_type() == h5py.h5s.NULL or 0 in space.shape:
        return ""
    return "" if same_value(two, attribute_value(one), attribute_value(other)) else "has another value"


def _names(thing: Any) -> Iterator[str]:
    for i in range(h5py.h5a.get_num_attrs(thing)):
        try:
            yield h5py.h5a.open(thing, index=i).name.decode("utf-8", "surrogateescape")
        except H5_ERRORS:
            yield f"number {i}"


def name_text(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def attribute_value(one: Any) -> NDArray[Any]:
    """Returns the attribute's value: as it is stored, unless it refers to other places in the file."""
    kind = one.get_type()
    check_readable(kind)
    leads = leads_elsewhere(kind)
    values = np.empty(one.get_space().shape, one.dtype if leads else np.dtype((np.void, kind.get_size())))
    one.read(values) if leads else one.read(values, kind)
    return values


def compare_datasets(two: _Two, path: str, ours: Any, theirs: Any) -> Iterator[str]:
    if (ours.shape, ours.maxshape) != (theirs.shape, theirs.maxshape):
        yield f"{path}: of shape {theirs.shape} (at most {theirs.maxshape}), not {ours.shape} ({ours.maxshape})"
        return
    kind, other = ours.id.get_type(), theirs.id.get_type()
    if object_address(theirs) in two.compressed:
        if not kind.equal(other) and ours.dtype.newbyteorder("<") != theirs.dtype:
            yield f"{path}: of type {theirs.dtype}, not {ours.dtype}"
        elif fill_value(ours, theirs.dtype) != fill_value(theirs, theirs.dtype):
            yield f"{path}: another fill value"
        return
    if not kind.equal(other):
        yield f"{path}: of another type"
        return
    if ours.shape is None or 0 in ours.shape or ours.is_virtual:
        return
    try:
        for one in (ours, theirs):
            external_files.check_all(one)
        if not _same_values(two, ours, theirs):
            yield f"{path}: its values differ"
    except (LayoutError, external_files.Unreadable) as error:
        yield f"{path}: its values cannot be compared: {error}"
    except H5_ERRORS as error:
        if ours.id.get_storage_size() != theirs.id.get_storage_size():  # what nobody here can read
            yield f"{path}: its values cannot be compared: {error}"


def fill_value(dataset: Any, dtype: np.dtype[Any]) -> bytes:
    plan = dataset.id.get_create_plist()
    if plan.fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
        return b""
    value = np.zeros((), dtype)
    plan.get_fill_value(value)
    return value.tobytes()


def _same_values(two: _Two, ours: Any, theirs: Any) -> bool:
    """Returns whether the written values are equal. The rest is the fill value, compared elsewhere."""
    kind = ours.id.get_type()
    written = _write(ours)
    if ours.chunks and written != _write(theirs):
        return False
    if not leads_elsewhere(kind):
        if _is_stored_alike(ours, theirs, [begin for begin, _ in written]):
            return True
        return all(
            stored_values(ours.id, begin, count).tobytes() == stored_values(theirs.id, begin, count).tobytes()
            for begin, count in written
        )
    check_readable(kind)
    for begin, count in written:
        box = tuple(slice(b, b + c) for b, c in zip(begin, count, strict=True))
        if not same_value(two, np.asarray(ours[box]), np.asarray(theirs[box])):
            return False
    return True


def _is_stored_alike(ours: Any, theirs: Any, begins: list[tuple[int, ...]]) -> bool:
    """Returns whether filtered chunks have the same stored bytes. Damaged ones could not be decoded to compare."""
    plans = [one.id.get_create_plist() for one in (ours, theirs)]
    filters = [[plan.get_filter(i)[:3:2] for i in range(plan.get_nfilters())] for plan in plans]
    if ours.chunks is None or not filters[0] or filters[0] != filters[1] or ours.chunks != theirs.chunks:
        return False
    if h5py.version.version_tuple[:2] < (3, 16) and any(len(values) > 16 for _, values in filters[0]):
        return False  # older h5py invents a filter's values from the 17th on
    try:
        return all(ours.id.read_direct_chunk(begin) == theirs.id.read_direct_chunk(begin) for begin in begins)
    except H5_ERRORS:  # chunks at the edge may be stored without filters
        return False


def _write(dataset: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns the boxes (begin, count) that may hold other values than the fill value."""
    if dataset.id.get_storage_size() == 0 and not dataset.external:
        return []
    if not dataset.chunks:
        return list(slabs(dataset.shape, dataset.id.get_type().get_size(), COMPARED_AT_ONCE))
    sides = list(zip(dataset.chunks, dataset.shape, strict=True))
    return [
        (begin, tuple(min(part, n - b) for b, (part, n) in zip(begin, sides, strict=True)))
        for begin in chunk_begins(dataset.id)
    ]


def same_value(two: _Two, ours: Any, theirs: Any) -> bool:
    """Returns whether two values are the same. References must lead to corresponding objects."""
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        if ours.dtype.names and ours.dtype.hasobject:
            return all(same_value(two, ours[name], theirs[name]) for name in ours.dtype.names)
        if ours.dtype.hasobject:
            return ours.shape == theirs.shape and all(
                same_value(two, one, other) for one, other in zip(ours.ravel(), theirs.ravel(), strict=True)
            )
        return ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
    if isinstance(ours, h5py.h5r.Reference):
        return _same_reference(two, ours, theirs)
    return bool(ours == theirs)


def _same_reference(two: _Two, ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs) or bool(ours) is not bool(theirs):
        return False
    if not ours:
        return True
    one, other = h5py.h5r.dereference(ours, two.here.id), h5py.h5r.dereference(theirs, two.there.id)
    if two.twins.get(h5py.h5o.get_info(one).addr) != h5py.h5o.get_info(other).addr:
        return False
    if not isinstance(ours, h5py.h5r.RegionReference):
        return True
    region, region2 = h5py.h5r.get_region(ours, two.here.id), h5py.h5r.get_region(theirs, two.there.id)
    return bool(
        region.get_select_npoints() == region2.get_select_npoints()
        and region.get_select_bounds() == region2.get_select_bounds()
    )
