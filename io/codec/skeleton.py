"""Copies an HDF5 file except for the values of chosen datasets.

It copies groups, links of all kinds, committed types, attributes, fill values, order of creation, and the other
datasets as they are stored. References then point to the copies of their targets, so objects are made first and
attributes last. What cannot be copied is reported, except comments of groups, which h5py cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError
from solar.io.codec.grid import chunk_begins, slabs, spaces, stored_values

H5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)  # h5py raises these for damage and all else
COPIED_AT_ONCE = 32 << 20  # bytes copied at a time, about
OUR_ATTRIBUTES = (
    "solar_bound",
    "solar_verified",
)  # attributes that say what was done to a dataset: not copied to another one
PLAIN_FILTERS = (1, 2, 3, 4, 5, 6, 32000)  # those that make the same of their values when a dataset is made again
HARD, SOFT, EXTERNAL = h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT, h5py.h5l.TYPE_EXTERNAL

ProgressCallback = Callable[[int], object]


class Chosen(Protocol):
    """A dataset whose chunks the caller writes."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def chunk(self) -> tuple[int, ...]: ...
    @property
    def filters(self) -> tuple[tuple[int, tuple[int, ...]], ...]: ...


@dataclass
class _Copy:
    """A copy in progress from one file to another."""

    source: Any  # h5py.File
    target: Any
    chosen: Mapping[str, Chosen]
    progress: ProgressCallback
    moved: bool  # to another folder, where names relative to the file lead nowhere
    homes: dict[int, bytes] = field(default_factory=dict)  # by the address of an object, the path it was made at
    types: dict[int, Any] = field(default_factory=dict)  # the copies of committed types, by the address
    lost: list[str] = field(default_factory=list)


def copy_structure(
    source: Any, target: Any, chosen: Mapping[str, Chosen], progress: ProgressCallback = lambda nbytes: None
) -> list[str]:
    """Copies `source` to the empty file `target`. Returns what could not be kept.

    The chosen datasets, by path, get new chunk shape and filter, but no chunks. `progress` is called with bytes copied.
    """
    moved = Path(source.filename).resolve().parent != Path(target.filename).resolve().parent
    copy = _Copy(source, target, chosen, progress, moved)
    copy.homes[h5py.h5o.get_info(source["/"].id).addr] = b"/"
    pending: list[tuple[bytes, Iterator[tuple[bytes, Any]]]] = [(b"/", iter(links_of(source["/"].id)))]
    while pending:  # no recursion: groups may be nested deeper than Python's stack
        path, links = pending[-1]
        for name, info in links:
            child = path.rstrip(b"/") + b"/" + name
            if _make_link(copy, path, name, info) and info.type == HARD:
                made = h5py.h5o.open(source.id, child)
                if isinstance(made, h5py.h5g.GroupID):
                    pending.append((child, iter(links_of(made))))
                    break
        else:
            pending.pop()
    for path in copy.homes.values():
        _copy_attributes(copy, path)
    return copy.lost


def links_of(group: Any) -> list[tuple[bytes, Any]]:
    """Returns the links of a group (name, h5py's LinkInfo), by order of creation if known, else by name."""
    found: list[tuple[bytes, Any]] = []
    tracked = group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
    by = h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME
    group.links.iterate(lambda name, info: found.append((name, link_facts(info))), idx_type=by, info=True)
    return found


@dataclass(frozen=True)
class _Link:
    type: int
    cset: int


def link_facts(info: Any) -> _Link:
    return _Link(info.type, info.cset)  # h5py uses one object for all links of an iteration


def _make_link(copy: _Copy, path: bytes, name: bytes, info: _Link) -> bool:
    """Makes a link and its target. Returns whether the target is new."""
    here, there = h5py.h5o.open(copy.source.id, path), h5py.h5o.open(copy.target.id, path)
    shown = link_text(path.rstrip(b"/") + b"/" + name)
    how = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    how.set_char_encoding(info.cset)
    if info.type == SOFT:
        there.links.create_soft(name, here.links.get_val(name), how)
    elif info.type == EXTERNAL:
        file, path_there = here.links.get_val(name)
        there.links.create_external(name, file, path_there, how)
        if copy.moved and not Path(link_text(file)).is_absolute():
            copy.lost.append(f"{shown}: a link to {link_text(file)}, looked for beside the new file from now on")
    elif info.type != HARD:
        copy.lost.append(f"{shown}: a link of kind {info.type}, which only the program that made it knows")
    else:
        made = h5py.h5o.open(here, name)
        address = h5py.h5o.get_info(made).addr
        if address in copy.homes:
            there.links.create_hard(name, copy.target.id, copy.homes[address], how)
            return False
        _make_object(copy, made, there, name, how, shown)
        copy.homes[address] = path.rstrip(b"/") + b"/" + name
        return True
    return False


def link_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _make_object(copy: _Copy, made: Any, there: Any, name: bytes, how: Any, shown: str) -> None:
    if isinstance(made, h5py.h5g.GroupID):
        old, plan = (
            made.get_create_plist(),
            h5py.h5p.create(h5py.h5p.GROUP_CREATE),
        )  # a copy would lead to the old links
        plan.set_link_creation_order(old.get_link_creation_order())
        plan.set_attr_creation_order(old.get_attr_creation_order())
        plan.set_attr_phase_change(*old.get_attr_phase_change())
        plan.set_obj_track_times(False)  # the same command twice gives the same bytes
        h5py.h5g.create(there, name, how, plan)
    elif isinstance(made, h5py.h5t.TypeID):
        address = h5py.h5o.get_info(made).addr
        if address in copy.types:
            h5py.h5o.link(copy.types[address], there, name, how)
        else:
            _copy_by_hdf5(made, there, name, how)  # with its time, which a new one would not have
            copy.types[address] = h5py.h5o.open(there, name)
    elif shown in copy.chosen:
        _make_chosen(copy, made, there, name, how, copy.chosen[shown])
    else:
        _copy_dataset(copy, made, there, name, how, shown)


# --- datasets ----


def _make_chosen(copy: _Copy, made: Any, there: Any, name: bytes, how: Any, chosen: Chosen) -> None:
    plan = made.get_create_plist()
    fill = np.zeros((), chosen.dtype)
    defined = plan.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if defined:
        plan.get_fill_value(fill)
    new = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    new.set_attr_creation_order(plan.get_attr_creation_order())
    new.set_attr_phase_change(*plan.get_attr_phase_change())
    new.set_obj_track_times(False)
    new.set_fill_time(plan.get_fill_time())
    new.set_chunk(chosen.chunk)
    if defined:
        new.set_fill_value(fill)
    # Optional: libhdf5 can make such a dataset without our plug-in, but cannot read it without.
    for number, values in chosen.filters:
        new.set_filter(number, h5py.h5z.FLAG_OPTIONAL, values)
    kind = made.get_type()
    native = h5py.h5t.py_create(chosen.dtype)
    h5py.h5d.create(there, name, _type_there(copy, kind) if kind.equal(native) else native, made.get_space(), new, how)


def _type_there(copy: _Copy, kind: Any) -> Any:
    """Returns the type for a new object: the copy of a committed type, or the type itself."""
    if not kind.committed():
        return kind
    return copy.types.get(h5py.h5o.get_info(kind).addr, kind.copy())


def _copy_dataset(copy: _Copy, made: Any, there: Any, name: bytes, how: Any, shown: str) -> None:
    kind, plan = made.get_type(), made.get_create_plist()
    if kind.detect_class(h5py.h5t.REFERENCE):
        _copy_references(copy, made, there, name, how, shown)
        return
    layout = plan.get_layout()
    # libhdf5's own copy would be simpler, but its copies of some old files cannot be opened.
    known = not kind.committed() or h5py.h5o.get_info(kind).addr in copy.types
    if known and _in_pieces(plan) and not leads_elsewhere(kind):
        plan.set_obj_track_times(False)
        fill = _copy_chunks if layout == h5py.h5d.CHUNKED else _copy_slabs
        with suppress(ValueError, RuntimeError):  # of a filter that this libhdf5 only reads, say
            out = h5py.h5d.create(there, name, _type_there(copy, kind), made.get_space(), plan, how)
            if fill(copy, made, out):
                return
            there.unlink(name)
    elsewhere = range(plan.get_virtual_count() if layout == h5py.h5d.VIRTUAL and copy.moved else 0)
    for file in {plan.get_virtual_filename(i) for i in elsewhere}:
        if not Path(file).is_absolute() and file != ".":
            copy.lost.append(f"{shown}: values in {file}, which is looked for beside the new file from now on")
    _copy_by_hdf5(made, there, name, how)
    copy.progress(made.get_storage_size())
    if kind.committed():
        copied = h5py.h5d.open(there, name).get_type()
        copy.types.setdefault(h5py.h5o.get_info(kind).addr, copied)


def _in_pieces(plan: Any) -> bool:
    """Returns whether a dataset can be made by the same plan, and then filled."""
    if plan.get_layout() == h5py.h5d.CONTIGUOUS:
        return not plan.get_external_count()
    return plan.get_layout() == h5py.h5d.CHUNKED and all(
        plan.get_filter(i)[0] in PLAIN_FILTERS for i in range(plan.get_nfilters())
    )


def _copy_by_hdf5(made: Any, there: Any, name: bytes, how: Any) -> None:
    flags = h5py.h5p.create(h5py.h5p.OBJECT_COPY)
    flags.set_copy_object(h5py.h5o.COPY_WITHOUT_ATTR_FLAG)
    h5py.h5o.copy(made, b".", there, name, flags, how)


def leads_elsewhere(kind: Any) -> bool:
    """Returns whether values of this type point to data elsewhere: references, and values of variable length."""
    if kind.detect_class(h5py.h5t.REFERENCE) or kind.detect_class(h5py.h5t.VLEN):
        return True
    return bool(kind.detect_class(h5py.h5t.STRING)) and bool(kind.dtype.hasobject)


def check_readable(kind: Any, within: bool = False) -> None:
    """Raises TypeError for lists that h5py 3.16 reads wrongly: of big-endian numbers, and of region references."""
    if within and kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT) and not kind.dtype.isnative:
        raise TypeError("h5py cannot read lists of big-endian numbers")
    if kind.get_class() == h5py.h5t.REFERENCE and within and kind.equal(h5py.h5t.STD_REF_DSETREG):
        raise TypeError("h5py cannot read lists of region references")
    if kind.get_class() == h5py.h5t.COMPOUND:
        for i in range(kind.get_nmembers()):
            check_readable(kind.get_member_type(i), within)
    elif kind.get_class() in (h5py.h5t.VLEN, h5py.h5t.ARRAY):
        check_readable(kind.get_super(), within or kind.get_class() == h5py.h5t.VLEN)


def _copy_chunks(copy: _Copy, made: Any, out: Any) -> bool:
    """Copies the stored bytes of every chunk. Returns False if h5py cannot read them."""
    try:
        begins = chunk_begins(made)
    except LayoutError:
        return False
    for at in begins:
        try:
            mask, stored = made.read_direct_chunk(at)
        except (OSError, RuntimeError):  # where those at the edge are stored without filters
            return False
        out.write_direct_chunk(at, stored, mask)
        copy.progress(len(stored))
    return True


def _copy_slabs(copy: _Copy, made: Any, out: Any) -> bool:
    """Copies the values in their own type, so that no bit changes."""
    if made.get_storage_size() == 0:
        return True
    kind = made.get_type()
    for begin, count in slabs(made.shape, kind.get_size(), COPIED_AT_ONCE // 4):
        values = stored_values(made, begin, count)
        out.write(*spaces(made, begin, count), values, kind)
        copy.progress(values.nbytes)
    return True


def _copy_references(copy: _Copy, made: Any, there: Any, name: bytes, how: Any, shown: str) -> None:
    """Makes the dataset without values. They are written at the end, when all targets of references exist."""
    plan = made.get_create_plist()
    plan.set_obj_track_times(False)
    h5py.h5d.create(there, name, _type_there(copy, made.get_type()), made.get_space(), plan, how)


def _write_references(copy: _Copy, path: bytes, made: Any) -> None:
    check_readable(made.get_type())
    there = h5py.Dataset(h5py.h5o.open(copy.target.id, path))
    here = h5py.Dataset(made)
    if not here.shape:
        there[()] = _there(copy, np.asarray(here[()], here.dtype))[()]
        return
    for begin, count in slabs(here.shape, here.dtype.itemsize, COPIED_AT_ONCE // 16):
        box = tuple(slice(b, b + c) for b, c in zip(begin, count, strict=True))
        there[box] = _there(copy, here[box])


# --- attributes, and references anywhere ----


def _copy_attributes(copy: _Copy, path: bytes) -> None:
    here, there = h5py.h5o.open(copy.source.id, path), h5py.h5o.open(copy.target.id, path)
    shown = path.decode("utf-8", "surrogateescape")
    if isinstance(here, h5py.h5d.DatasetID) and here.get_type().detect_class(h5py.h5t.REFERENCE):
        try:
            _write_references(copy, path, here)
        except H5_ERRORS as error:
            copy.lost.append(f"{shown}: its references: {error}")
    tracked = not isinstance(here, h5py.h5t.TypeID) and here.get_create_plist().get_attr_creation_order()
    by = h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME
    for i in range(h5py.h5a.get_num_attrs(here)):
        name = f"number {i}"
        try:
            one = h5py.h5a.open(here, index=i, index_type=by)
            name = one.name.decode("utf-8", "replace")
            if shown not in copy.chosen or name not in OUR_ATTRIBUTES:
                _copy_attribute(copy, one, there)
        except H5_ERRORS as error:
            copy.lost.append(f"{shown}: attribute {name}: {error}")


def _copy_attribute(copy: _Copy, one: Any, there: Any) -> None:
    kind, space = one.get_type(), one.get_space()
    new = h5py.h5a.create(there, one.name, _type_there(copy, kind), space)
    if space.get_simple_extent_type() == h5py.h5s.NULL or 0 in space.shape:
        return
    if leads_elsewhere(kind):
        check_readable(kind)
        values = np.empty(space.shape, one.dtype)
        one.read(values)
        new.write(_there(copy, values) if kind.detect_class(h5py.h5t.REFERENCE) else values)
    else:  # in its own type, whatever that is: not a bit changes
        memory = np.empty(space.shape, np.dtype((np.void, kind.get_size())))
        one.read(memory, kind)
        new.write(memory, kind)


def _there(copy: _Copy, values: NDArray[Any]) -> NDArray[Any]:
    """Returns the values with references to the corresponding objects in the other file."""
    out = values.copy()
    if values.dtype.names:
        for name in values.dtype.names:
            if values.dtype[name].hasobject:
                out[name] = _there(copy, values[name])
    elif values.dtype.kind == "O":
        for place in np.ndindex(values.shape):
            out[place] = _reference_there(copy, values[place])
    return out


def _reference_there(copy: _Copy, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _there(copy, value) if value.dtype.hasobject else value
    if not isinstance(value, h5py.h5r.Reference) or not value:
        return value
    path = None
    with suppress(*H5_ERRORS):  # a reference to nothing
        path = copy.homes.get(h5py.h5o.get_info(h5py.h5r.dereference(value, copy.source.id)).addr)
    if path is None:
        copy.lost.append("a reference to something that no group leads to")
        return type(value)()
    if isinstance(value, h5py.h5r.RegionReference):
        region = h5py.h5r.get_region(value, copy.source.id)
        return h5py.h5r.create(copy.target.id, path, h5py.h5r.DATASET_REGION, region)
    return h5py.h5r.create(copy.target.id, path, h5py.h5r.OBJECT)
