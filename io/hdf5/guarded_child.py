"""The program of that process; imports no solar.

libhdf5 crashes on some damaged files. It may crash here: the caller sees the conversation end, and reports it.

The messages, sent in the form of io/system/child_end.py:

    request  {"path", "dataset", "rows": count, "memory"}   and rows as int64, ascending and different
                                                            count -1: all of them; -2: a box, begin and end of each axis
                                                            -3: what a dataset is made of whose values are elsewhere;
                                                            with "far": bytes of a file that the caller reads for us
    before   {"wanted": [offset, bytes]}                    of a far file; they are what the caller says next
    an answer
    answer   {"array": DESCRIPTION}                         and the values
             {"shape", "fill", "external": [[FILE, offset, size]], "sources": [{"file", "name", "to", "from"}]}
                                                            fill: as hexadecimal digits, or null if there is none;
                                                            to, from: start, stride, count, block of each axis, or null
                                                            shape: null if its sources say it, which are not read here
             {"error": TEXT, "kind": "layout" | "read"}

The values of an array travel by its DESCRIPTION, {"shape", "dtype"}: plain ones as their bytes; a structured one that
holds objects field by field; objects one after another, each a tag and what the tag needs:

    N                 None
    B, S   u64 bytes  bytes, str (UTF-8, lone surrogates kept)
    A      u64 text   an array: the length of its DESCRIPTION as JSON, that, then its values
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from solar.io.system.child_end import Caller


def load_neighbour(name: str) -> Any:
    """Loads a module of this folder, which is no package in the process."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


external_files = load_neighbour("external_files")
Unreadable: type[Exception] = external_files.Unreadable
LENGTH = struct.Struct("<Q")
ALL_ROWS, BOX, SOURCES = -1, -2, -3


# --- values to bytes and back (the caller decodes with the same functions) ----


def describe(dtype: np.dtype[Any]) -> Any:
    """Returns a dtype as JSON."""
    if dtype.subdtype is not None:
        return {"base": describe(dtype.subdtype[0]), "dims": dtype.subdtype[1]}
    if dtype.names is None:
        return dtype.str
    fields: Any = dtype.fields  # its type has no str for a key
    return {
        "names": dtype.names,
        "formats": [describe(fields[name][0]) for name in dtype.names],
        "offsets": [fields[name][1] for name in dtype.names],
        "itemsize": dtype.itemsize,
    }


def described(description: Any) -> np.dtype[Any]:
    """Returns the dtype that `describe` described."""
    if isinstance(description, str):
        return np.dtype(description)
    if "base" in description:
        return np.dtype((described(description["base"]), tuple(description["dims"])))
    formats = [described(one) for one in description["formats"]]
    made: np.dtype[Any] = np.dtype(dict(description, formats=formats))  # type: ignore[call-overload]
    return made


def append_bytes(array: np.ndarray[Any, Any], out: bytearray) -> None:
    """Appends the bytes of an array's values."""
    if not array.dtype.hasobject:
        out += array.tobytes()
    elif array.dtype.names is not None:
        for name in array.dtype.names:
            append_bytes(array[name], out)
    else:
        for value in array.reshape(-1):
            put_object(value, out)


def put_object(value: Any, out: bytearray) -> None:
    if value is None:
        out += b"N"
    elif isinstance(value, bytes):
        out += b"B" + LENGTH.pack(len(value)) + value
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogateescape")
        out += b"S" + LENGTH.pack(len(text)) + text
    elif isinstance(value, np.ndarray):
        description = json.dumps({"shape": value.shape, "dtype": describe(value.dtype)}).encode()
        out += b"A" + LENGTH.pack(len(description)) + description
        append_bytes(value, out)
    else:
        raise Unreadable(f"it holds values of {type(value).__name__}, and references cannot be samples")


class Values:
    """Reads values from the bytes that `append_bytes` made."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, nbytes: int) -> memoryview:
        if nbytes < 0 or nbytes > len(self._data) - self._at:
            raise ValueError("the answer is cut short")
        self._at += nbytes
        return self._data[self._at - nbytes : self._at]

    def array(self, description: Any) -> np.ndarray[Any, Any]:
        made = np.empty(tuple(description["shape"]), described(description["dtype"]))
        self.fill(made)
        return made

    def fill(self, array: np.ndarray[Any, Any]) -> None:
        if not array.dtype.hasobject:
            array[...] = np.frombuffer(self.take(array.nbytes), array.dtype).reshape(array.shape)
        elif array.dtype.names is not None:
            for name in array.dtype.names:
                self.fill(array[name])
        else:
            cells = array[np.newaxis]  # an element of an array without dimensions cannot be set to an array
            for position in np.ndindex(cells.shape):
                cells[position] = self._object()

    def _object(self) -> Any:
        tag = bytes(self.take(1))
        if tag == b"N":
            return None
        data = self.take(LENGTH.unpack(self.take(LENGTH.size))[0])
        if tag == b"B":
            return bytes(data)
        if tag == b"S":
            return str(data, "utf-8", "surrogateescape")
        return self.array(json.loads(bytes(data)))


# --- reading ----


class FarFile(io.RawIOBase):
    """A remote file of known size; `fill` fetches bytes from an offset on into a buffer."""

    def __init__(self, nbytes: int, fill: Callable[[int, memoryview], None]) -> None:
        self._nbytes, self._fill, self._at = nbytes, fill, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._nbytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        view = memoryview(out).cast("B")
        nbytes = max(0, min(len(view), self._nbytes - self._at))
        if nbytes:
            self._fill(self._at, view[:nbytes])
            self._at += nbytes
        return nbytes


class OpenDataset:
    """The dataset that was read last, kept open because successive batches read the same one."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._sources: dict[Path, Any] = {}  # sources and their identities when opened: libhdf5 keeps them open, too
        self._file: Any = None
        self.dataset: Any = None
        self._checked = False

    def of(self, path: str, name: str) -> Any:
        import h5py

        key = (path, name, identity_of(Path(path)))
        if key != self._key or any(identity_of(place) != was for place, was in self._sources.items()):
            self._key, self.dataset = (), None
            if self._file is not None:
                self._file.close()
            self._file = h5py.File(path, "r", locking=False, rdcc_nbytes=64 << 20)
            self.dataset = self._file[name.encode("utf-8", "surrogateescape")]
            if not isinstance(self.dataset, h5py.Dataset):
                raise Unreadable("it is a group, not a dataset")
            self._sources = {place: identity_of(place) for place in checked_sources(path, self.dataset)}
            self._key, self._checked = key, False
        return self.dataset

    def check(self) -> None:
        """Raises Unreadable if its values, or those of its sources, lie in forbidden files."""
        self._checked = self._checked or external_files.check_all(self.dataset) is None


def identity_of(place: Path) -> tuple[int, ...]:
    """Returns the identity of the file at this place; empty if there is none."""
    try:
        facts = place.stat()
    except OSError:
        return ()
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


def checked_sources(path: str, dataset: Any) -> list[Path]:
    """Returns the paths that may hold the values. Raises Unreadable if one is no regular file.

    libhdf5 would wait for a FIFO for ever. libhdf5 itself refuses a folder, and "." is a virtual dataset's own file.
    """
    places = []
    raw = [external_files.raw_file(dataset.file.filename, one[0]) for one in dataset.external or ()]
    names = [one.file_name for one in dataset.virtual_sources()] if dataset.is_virtual else []
    for name in dict.fromkeys([*raw, *names]):
        for place in (Path(name), Path(path).parent / name):
            if place.exists() and not (place.is_file() or place.is_dir()):
                raise Unreadable(f"its values are to be in {place}, which is no plain file")
            places.append(place)
    return places


def read(dataset: Any, rows: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    """Returns all of a dataset, or some rows, or the box that pairs in `rows` mean, as h5py does."""
    if dataset.shape is None:
        raise Unreadable("its dataspace is null: it has no values")
    if rows is None:
        return swapped(dataset[...], dataset.dtype)
    if rows.ndim == 2:
        return swapped(dataset[tuple(slice(int(begin), int(end)) for begin, end in rows)], dataset.dtype)
    value = np.empty((len(rows), *dataset.shape[1:]), dataset.dtype)
    starts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2) != 1)
    for first, last in zip(starts, np.append(starts[1:], len(rows)), strict=True):
        value[first:last] = dataset[int(rows[first]) : int(rows[last - 1]) + 1]
    return swapped(value, dataset.dtype)


def swapped(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the values with arrays of variable length in this machine's byte order.

    h5py returns their bytes as they are in the file, and calls them native.
    """
    metadata: Any = dtype.base.metadata or {}
    held = metadata.get("vlen")
    for name in dtype.names or ():
        swapped(values[name], dtype[name])
    if not isinstance(held, np.dtype):
        return values
    flat = values.reshape(-1)  # a view, or else a copy of a member, whose arrays are swapped in place
    for place, one in enumerate(flat):
        if not isinstance(one, np.ndarray):
            continue
        if held.hasobject:
            swapped(one, held)
        elif held.kind in "iufc" and not held.isnative and one.dtype.isnative:
            flat[place] = one.byteswap(inplace=one.flags.writeable)
    return values


def sources_in_file(dataset: Any, far: bool = False) -> dict[str, Any]:
    """Returns the raw files or the sources of a dataset whose values are elsewhere."""
    import h5py

    creation = dataset.id.get_create_plist()
    sources = [
        {"file": one.file_name, "name": one.dset_name, "to": sides(one.vspace), "from": sides(one.src_space)}
        for one in (dataset.virtual_sources() if dataset.is_virtual else [])
    ]
    grows = any(h5py.h5s.UNLIMITED in axis for one in sources for axis in one["to"] or ())
    # Asked for a shape that grows, libhdf5 opens the sources, and of a far file it would take itself for them.
    shape = None if far and grows else dataset.shape
    filled = (grows or dataset.shape) and not dataset.dtype.hasobject
    filled = filled and creation.fill_value_defined() != h5py.h5d.FILL_VALUE_UNDEFINED
    return {
        "shape": shape,
        "fill": np.asarray(dataset.fillvalue, dataset.dtype).tobytes().hex() if filled else None,
        "external": dataset.external or [],
        "sources": sources,
    }


def made_of_far(caller: Caller, nbytes: int, name: str) -> dict[str, Any]:
    """Returns what `sources_in_file` returns, for a dataset in a remote file."""
    import h5py

    def fill(at: int, out: memoryview) -> None:
        caller.send({"wanted": [at, len(out)]})
        caller.receive()
        caller.fill(out)

    with h5py.File(FarFile(nbytes, fill), "r", locking=False) as file:
        return sources_in_file(file[name.encode("utf-8", "surrogateescape")], far=True)


def sides(space: Any) -> list[list[int]] | None:
    """Returns start, stride, count and block of a selection along each axis, if it is regular."""
    import h5py

    if space.get_select_type() == h5py.h5s.SEL_ALL:  # of a source, it has no extent
        return [[0, 1, 1, length] for length in space.get_simple_extent_dims()]
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return None
    return [list(map(int, axis)) for axis in zip(*space.get_regular_hyperslab(), strict=True)]


def missing_filters(dataset: Any) -> list[str]:
    """Returns the filters of a dataset for which libhdf5 has no plug-in."""
    import h5py

    creation = dataset.id.get_create_plist()
    filters = [creation.get_filter(i) for i in range(creation.get_nfilters())]
    return [
        f"filter {number} ({name.decode(errors='replace').strip() or 'no name'})"
        for number, _, _, name in filters
        if not h5py.h5z.filter_avail(number)
    ]


def bad_source(path: str, dataset: Any) -> str:
    """Describes the first source that cannot be opened, if that is an error, and what to do; else empty."""
    import h5py

    for name, _, _ in dataset.external or ():
        if not Path(name).exists():
            return f". Its raw file {Path(name).absolute()} is missing: put it there, or set HDF5_EXTFILE_PREFIX"
    for one in dataset.virtual_sources() if dataset.is_virtual else []:
        for place in (Path(one.file_name), Path(path).parent / one.file_name):
            try:
                if one.file_name != "." and place.exists():
                    with h5py.File(place, "r", locking=False) as file:
                        file[one.dset_name].shape  # noqa: B018  (of a dataset only)
            except Exception as error:
                return (
                    f". Of its source {place}: {one.dset_name}: {error}. Mend it, or move it away: what a missing file "
                    "would hold comes as the fill value"
                )
    return ""


def plainly(error: BaseException, path: str, dataset: Any) -> dict[str, Any]:
    """Returns the answer for an error: what is wrong, and what to do."""
    if isinstance(error, Unreadable):
        return {"error": str(error), "kind": "layout"}
    if isinstance(error, MemoryError):
        return {"error": "it needs more memory than its size justifies", "kind": "read"}
    text = str(error).strip("'\"")
    if dataset is not None and (missing := missing_filters(dataset)):
        text = (
            f"{' and '.join(missing)} cannot be undone here: no plug-in. pip install hdf5plugin (the [filters] extra)"
        )
        if "hdf5plugin" in sys.modules:
            text = f"{' and '.join(missing)} cannot be undone here: neither hdf5plugin nor a plug-in of libhdf5 has it"
        return {"error": text, "kind": "layout"}
    sort = "read" if isinstance(error, OSError) else "layout"
    more = "" if dataset is None else bad_source(path, dataset)
    return {"error": f"libhdf5 cannot read it: {text or type(error).__name__}{more}", "kind": sort}


def answer_request(
    caller: Caller, request: dict[str, Any], kept: OpenDataset
) -> tuple[dict[str, Any], bytes | bytearray]:
    payload, dataset = caller.take(caller.nbytes), None
    try:
        caller.allow(request["memory"])
        if request.get("far"):
            return made_of_far(caller, request["far"], request["dataset"]), b""
        dataset = kept.of(request["path"], request["dataset"])
        if request["rows"] == SOURCES:
            return sources_in_file(dataset), b""
        kept.check()
        rows = np.frombuffer(payload, np.int64) if request["rows"] != ALL_ROWS else None
        if rows is not None and request["rows"] == BOX:
            rows = rows.reshape(-1, 2)
        array = read(dataset, rows)
        description = {"shape": array.shape, "dtype": describe(array.dtype)}
        if not array.dtype.hasobject:
            return {"array": description}, array.tobytes()
        values = bytearray()
        append_bytes(array, values)
        return {"array": description}, values
    except Exception as error:
        return plainly(error, request["path"], dataset), b""


def main(caller: Caller, plugins: str) -> None:
    """Answers until the caller is gone."""
    import h5py

    h5py.h5pl.prepend(os.fsencode(plugins))  # solar's own filter
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401  (its import makes the filters known to libhdf5)
    kept = OpenDataset()
    while True:
        caller.send(*answer_request(caller, caller.receive(), kept))
