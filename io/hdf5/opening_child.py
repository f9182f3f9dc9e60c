"""Looks through an HDF5 file, in a process that may crash; imports no solar.

Errors without a crash do not matter here: the next to open the file meets and reports them. It sends {"values": NAME}
before it reads a dataset's values, and {"values": ""} after them, so the caller knows which dataset crashed it. {} is a
sign of life.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solar.io.system.child_end import Caller

TOO_MUCH = 3  # the exit code where memory was short
MOST_PLACES = 1 << 20  # of chunks, stored or not
LARGEST_ATTRIBUTE = 64 << 20  # bytes of an attribute that is read

ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, AssertionError, NotImplementedError)


def objects(file: Any) -> Iterator[Any]:
    """Yields every object that hard links reach from the root, and looks at all other links."""
    import h5py

    seen: set[int] = set()
    pending = [b"/"]  # paths: a million open objects would take a gigabyte
    while pending:
        path = pending.pop()
        with suppress(*ERRORS):
            one = h5py.h5o.open(file.id, path)
            address = h5py.h5o.get_info(one).addr
            if address in seen:
                continue
            seen.add(address)
            yield one
            if isinstance(one, h5py.h5g.GroupID):
                pending += [path.rstrip(b"/") + b"/" + name for name in hard_links(one)]


def hard_links(group: Any) -> list[bytes]:
    """Returns the names of a group's hard links; also looks at the targets of its other links."""
    import h5py

    names: list[bytes] = []
    with suppress(*ERRORS):
        group.links.iterate(names.append)
    found = []
    for name in names:
        with suppress(*ERRORS):
            if group.links.get_info(name).type == h5py.h5l.TYPE_HARD:
                found.append(name)
            else:
                group.links.get_val(name)
    return found


def look_at(one: Any, caller: Caller) -> None:
    """Reads an object's header and attributes."""
    import h5py

    for i in range(h5py.h5a.get_num_attrs(one)):
        with suppress(*ERRORS):
            look_at_attribute(h5py.h5a.open(one, index=i))
    if isinstance(one, h5py.h5g.GroupID):
        one.get_create_plist().get_link_creation_order()
    if isinstance(one, h5py.h5d.DatasetID):
        with suppress(*ERRORS):
            look_at_type(one)
        plan = one.get_create_plist()
        for i in range(plan.get_nfilters()):
            with suppress(*ERRORS):
                plan.get_filter(i)
        one.get_storage_size()
        if plan.get_layout() == h5py.h5d.CHUNKED:
            one.get_num_chunks()  # reads the whole index
        if plan.get_layout() == h5py.h5d.VIRTUAL:
            for i in range(plan.get_virtual_count()):
                plan.get_virtual_filename(i)
        look_at_values(one, caller)


def look_at_values(one: Any, caller: Caller) -> None:
    """Reads values that libhdf5 decodes when the dataset is copied: references and lists behind filters."""
    import h5py
    import numpy as np

    kind, plan = one.get_type(), one.get_create_plist()
    lists = (
        kind.detect_class(h5py.h5t.REFERENCE) or kind.detect_class(h5py.h5t.VLEN) or kind.detect_class(h5py.h5t.STRING)
    )
    if not lists or plan.get_layout() != h5py.h5d.CHUNKED or not plan.get_nfilters():
        return
    caller.send({"values": (h5py.h5i.get_name(one) or b"?").decode("utf-8", "replace")})
    space = one.get_space()
    for begin in begins(one, plan):
        count = tuple(min(c, n - b) for b, c, n in zip(begin, plan.get_chunk(), one.shape, strict=True))
        space.select_hyperslab(begin, count)
        # In its own type: h5py makes nothing of it that might fail.
        values = np.empty(count, np.dtype((np.void, kind.get_size())))
        with suppress(*ERRORS):
            one.read(h5py.h5s.create_simple(count), space, values, kind)
        caller.send({})
    caller.send({"values": ""})


def begins(one: Any, plan: Any) -> Iterator[tuple[int, ...]]:
    """Yields where its chunks begin.

    libhdf5's own list of them is wrong if a later axis is unlimited. Then all chunks that may be stored are listed,
    unless the dataset has room for more than anybody writes.
    """
    import h5py

    sides = [range(0, n, part) for n, part in zip(one.shape, plan.get_chunk(), strict=True)]
    later = h5py.h5s.UNLIMITED in one.get_space().get_simple_extent_dims(True)[1:]
    if later and math.prod(map(len, sides)) <= MOST_PLACES:
        yield from itertools.product(*sides)
        return
    for i in range(one.get_num_chunks()):
        yield one.get_chunk_info(i).chunk_offset


def look_at_type(one: Any) -> None:
    """Reads the type of a dataset, its shape and its fill value."""
    import h5py

    dataset = h5py.Dataset(one)
    if dataset.shape is not None and dataset.dtype is not None:
        _ = dataset.fillvalue


def look_at_attribute(one: Any) -> None:
    """Reads an attribute in its own type: h5py makes lists of region references from uninitialised memory."""
    import numpy as np

    shape, kind = one.shape, one.get_type()
    if one.get_storage_size() <= LARGEST_ATTRIBUTE and 0 not in shape:
        one.read(np.empty(shape, np.dtype((np.void, kind.get_size()))), kind)


def main(caller: Caller, path: str) -> int:
    """Goes through the file. Returns the exit code."""
    import h5py

    caller.allow(Path(path).stat().st_size)
    said = time.monotonic()
    try:
        with suppress(*ERRORS), h5py.File(path, "r", locking=False) as file:
            for one in objects(file):
                with suppress(*ERRORS):
                    look_at(one, caller)
                if time.monotonic() > said + 1:
                    said = time.monotonic()
                    caller.send({})
    except MemoryError:
        return TOO_MUCH
    return 0
