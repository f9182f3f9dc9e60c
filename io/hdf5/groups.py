"""The groups of files as samples: where the datasets of each lie, in a few arrays for millions of groups.

If a dataset has one shape in all groups, each group is a row of a Layout whose chunks are those of all of them.
Otherwise its rows are those of one group after another, and each group is a part.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError
from solar.io.channels.progress import awaited
from solar.io.hdf5.chunk_index import SETTLED_NS, Folder, default_folder, keep, kept_file, quietly, running
from solar.io.hdf5.datatype import dtype_of, reason_of
from solar.io.hdf5.paths import Paths, files_of, is_zarr, naming_writers
from solar.values import Filter, Form, Layout
from solar.values import GroupNames as GroupNames

GROUPS_WORTH_KEEPING = 10_000  # groups; fewer are gone through in less than a tenth of a second
GROUPS_VERSION = 1
MOST = 2**62  # rows that can be counted
COLUMN = ("kind", "shape", "first", "chunk_index", "offset", "nbytes", "mask")

Identity = tuple[int, int, int, int]
Array = NDArray[Any]


class Column(NamedTuple):
    """One dataset in all groups of a file (native/include/solar/groups.hpp)."""

    kinds: list[_native.Dataset]
    kind: Array
    shape: Array  # a line for each group
    first: Array
    chunk_index: Array
    offset: Array
    nbytes: Array
    mask: Array


class GroupTable(NamedTuple):
    """The groups of one file."""

    names: GroupNames
    columns: list[Column]
    identity: Identity


class GroupField(NamedTuple):
    """A dataset of all groups."""

    layout: Layout
    lengths: NDArray[np.int64] | None  # rows of each group; None: each is a row of the Layout


def grouped(
    path: Paths, wanted: Sequence[str], pattern: str, ragged: Sequence[bool], cache: Folder
) -> tuple[list[GroupField], GroupNames]:
    """Returns each of these datasets in all groups of the files, and the groups' names. Raises LayoutError if one is
    unreadable.

    `pattern` selects groups by name ("/molecules/*"); empty selects all that have the datasets. `ragged` are the
    datasets whose rows are wanted even if all groups have equally many.
    """
    files = files_of(path)
    tables: list[GroupTable] = []
    with awaited("looking for groups", lambda: len(tables), len(files), "files"):
        tables += (table_of(file, pattern, list(wanted), cache) for file in files)
    for file, table in zip(files, tables, strict=True):
        if not len(table.names):
            where = f"whose names fit {pattern!r}" if pattern else "that have " + ", ".join(wanted)
            raise LayoutError(f"{file}: there are no groups {where}; `solar inspect` lists what there is")
    fields = [
        group_field(files, [table.identity for table in tables], pattern, name, columns, wants_rows)
        for name, wants_rows, *columns in zip(wanted, ragged, *(table.columns for table in tables), strict=True)
    ]
    names = table_names(tables)
    return [own._replace(layout=replace(own.layout, groups=names)) for own in fields], names


def table_names(tables: Sequence[GroupTable]) -> GroupNames:
    begins = [table.names.begins for table in tables]
    behind = running([len(table.names.text) for table in tables]).astype(np.uint64)
    whole = [one[:-1] + at for one, at in zip(begins, behind[:-1], strict=True)]
    return GroupNames(b"".join(table.names.text for table in tables), np.concatenate((*whole, behind[-1:])))


# --- a dataset of all groups as a Layout ----


def group_field(
    files: list[str], identities: list[Identity], pattern: str, name: str, columns: list[Column], wants_rows: bool
) -> GroupField:
    dtype = _dtype(files, columns)
    shape = np.concatenate([column.shape for column in columns])
    if (shape.size and int(shape.max()) > MOST) or float(shape[:, :1].sum(dtype=float)) > MOST:
        raise LayoutError(f"{files[0]}: {name}: groups have more rows than can be counted")
    lengths = shape.astype(np.int64)
    alike = bool((lengths == lengths[0]).all())
    if wants_rows and not lengths.shape[1]:
        raise LayoutError(f"{columns[0].kinds[0]['name']} is a scalar; samples of unequal length are rows")
    made = _as_rows if wants_rows or not alike else _as_samples
    arrays = made(files, name, columns, lengths)
    nbytes, mtime_ns, inode, ctime_ns = zip(*identities, strict=True)
    storages = {one["storage"] for column in columns for one in column.kinds}
    first = running([len(column.kind) for column in columns]) if made is _as_samples else _rows_of_files(columns)
    spread = len(arrays["part_file"]) != len(files)
    layout = Layout(
        name=f"{pattern or '*'}/{name}",
        paths=tuple(files),
        file_nbytes=np.array(nbytes, np.uint64),
        file_mtime_ns=np.array(mtime_ns, np.int64),
        file_inode=np.array(inode, np.uint64),
        file_ctime_ns=np.array(ctime_ns, np.int64),
        dtype=dtype,
        storage=storages.pop() if len(storages) == 1 else "mixed",
        index="",
        reader="direct",
        reason="",
        dataset_file=np.arange(len(files) if spread else 0, dtype=np.int32),
        dataset_first=first if spread else np.empty(0, np.int64),
        **arrays,
    )
    return GroupField(layout, None if made is _as_samples else lengths[:, 0].copy())


def _rows_of_files(columns: list[Column]) -> NDArray[np.int64]:
    return running([int(column.shape[:, 0].sum()) for column in columns])


def _dtype(files: list[str], columns: list[Column]) -> np.dtype[Any]:
    """Returns the dtype of all groups. Raises LayoutError if they differ, or if native code cannot read one."""
    first = columns[0].kinds[0]
    every = [(file, one) for file, column in zip(files, columns, strict=True) for one in column.kinds]
    dtype = dtype_of(first["datatype"])[0]
    for file, one in every:
        try:
            own = dtype_of(one["datatype"])[0]
        except LayoutError as error:
            raise LayoutError(f"{file}: {one['name']}: {error}") from None
        if own != dtype or len(one["shape"]) != len(first["shape"]):
            raise LayoutError(
                f"{file}: {one['name']} is {own} of {len(one['shape'])} axes, and {first['name']} in {files[0]} is "
                f"{dtype} of {len(first['shape'])}: groups are samples where their datasets are of one type"
            )
        if why := reason_of(one, dtype):
            raise LayoutError(f"{file}: {one['name']} cannot be read natively, and groups can only so: {why}")
    return dtype


def _forms(files: list[str], columns: list[Column], make: Any) -> tuple[tuple[Form, ...], Array, Array]:
    """Returns the Forms of all groups, and for each group its Form and its file."""
    numbers: dict[Form, int] = {}
    own = []
    for column in columns:
        of_kind = [numbers.setdefault(make(one), len(numbers)) for one in column.kinds]
        own.append(np.array(of_kind, np.int32)[column.kind])
    of_group = np.repeat(np.arange(len(files), dtype=np.int32), [len(column.kind) for column in columns])
    return tuple(numbers), np.concatenate(own), of_group


def _make_form(one: _native.Dataset, chunk: tuple[int, ...]) -> Form:
    filters = tuple(Filter(number, flags, tuple(values)) for number, flags, values in one["filters"])
    return Form(chunk, filters, one["fill"])


def chunk_entries(columns: list[Column]) -> dict[str, Array]:
    """Returns offsets, bytes and masks of all chunks, and how many each group has."""
    return {
        "counts": np.concatenate([np.diff(column.first) for column in columns]),
        "chunk_index": np.concatenate([column.chunk_index for column in columns]),
        "chunk_offset": np.concatenate([column.offset for column in columns]),
        "chunk_nbytes": np.concatenate([column.nbytes for column in columns]),
        "chunk_mask": np.concatenate([column.mask for column in columns]),
    }


def _as_samples(files: list[str], name: str, columns: list[Column], shapes: Array) -> dict[str, Any]:
    """Returns a Layout in which each group is a row, whose chunks are those of its dataset.

    A part is a run of groups of one file and Form.
    """
    shape = tuple(shapes[0].tolist())

    def make(one: _native.Dataset) -> Form:
        return _make_form(one, (1, *(one["chunk"] if one["storage"] == "chunked" else shape)))

    forms, form, file = _forms(files, columns, make)
    entries = chunk_entries(columns)
    counts = entries.pop("counts")
    begins = np.flatnonzero(np.concatenate(([True], (form[1:] != form[:-1]) | (file[1:] != file[:-1]))))
    part_first = np.concatenate((begins, [len(form)]))
    tiles = np.array([count_tiles(shape, one.chunk[1:]) for one in forms], np.int64)[form]
    within = np.arange(len(form)) - np.repeat(begins, np.diff(part_first))
    entries["chunk_index"] = entries["chunk_index"] + np.repeat(within * tiles, counts).astype(np.uint64)
    if np.array_equal(counts, tiles):  # all there are
        entries["chunk_index"] = np.empty(0, np.uint64)
    return {
        "shape": (len(form), *shape),
        "forms": forms,
        "part_file": file[begins],
        "part_form": form[begins],
        "part_first": part_first,
        "part_chunks": running(counts)[part_first],
        **entries,
    }


def count_tiles(shape: tuple[int, ...], chunk: tuple[int, ...]) -> int:
    return int(np.prod([-(-n // c) if c else 0 for n, c in zip(shape, chunk, strict=True)], dtype=np.int64))


def _as_rows(files: list[str], name: str, columns: list[Column], shapes: Array) -> dict[str, Any]:
    """Returns a Layout with the rows of one group after another; each group is a part."""
    others = np.flatnonzero((shapes[:, 1:] != shapes[0, 1:]).any(axis=1))
    if len(others):
        raise LayoutError(
            f"{files[0]}: {name} has shape {tuple(shapes[0].tolist())} in the first group, and "
            f"{tuple(shapes[others[0]].tolist())} in group {others[0]:,}: samples may differ along the first axis only"
        )
    row = tuple(shapes[0, 1:].tolist())

    def make(one: _native.Dataset) -> Form:
        return _make_form(one, tuple(one["chunk"]) if one["storage"] == "chunked" else (0, *row))

    forms, form, file = _forms(files, columns, make)
    entries = chunk_entries(columns)
    counts = entries.pop("counts")
    if not entries["chunk_index"].any() and int(counts.max(initial=0)) < 2:
        entries["chunk_index"] = np.empty(0, np.uint64)
    part_first = running(shapes[:, 0])
    return {
        "shape": (int(part_first[-1]), *row),
        "forms": forms,
        "part_file": file,
        "part_form": form,
        "part_first": part_first,
        "part_chunks": running(counts),
        **entries,
    }


# --- from the file, or from the cache ----


def table_of(file: str, pattern: str, wanted: list[str], cache: Folder) -> GroupTable:
    kept = cache_path(file, pattern, wanted, cache)
    if kept is not None and (found := quietly(lambda: _load(kept))) is not None:
        return found
    with naming_writers([file]):
        text, begins, columns, identity = _native.read_groups(file, pattern, wanted)
    made = [
        Column(kinds, kind, shape.reshape(len(begins) - 1, rank), first, index, offset, nbytes, mask)
        for kinds, kind, rank, shape, first, index, offset, nbytes, mask in columns
    ]
    table = GroupTable(GroupNames(text, begins), made, identity)
    settled = time.time_ns() - identity[1] > SETTLED_NS
    # As it was opened: else the key names another file's contents.
    if (
        kept is not None
        and settled
        and len(table.names) >= GROUPS_WORTH_KEEPING
        and kept == cache_path(file, pattern, wanted, cache)
    ):
        quietly(lambda: keep(kept, lambda out: write_table(table, out)))
    return table


def cache_path(file: str, pattern: str, wanted: list[str], cache: Folder) -> Path | None:
    """Returns where the cache keeps the table."""
    if cache is None:
        return None
    now = quietly(lambda: Path(file).stat())
    if now is None:
        return None
    identity = (now.st_size, now.st_mtime_ns, now.st_ino, now.st_ctime_ns)
    facts = ["groups", GROUPS_VERSION, os.path.realpath(file), *identity, pattern, wanted]
    key = json.dumps(facts, separators=(",", ":"))
    folder = default_folder() if cache == "auto" else Path(cache)
    return folder / f"{hashlib.blake2b(key.encode('utf-8', 'surrogateescape'), digest_size=32).hexdigest()}.index"


def write_table(table: GroupTable, out: BinaryIO) -> None:
    """Writes a table as a .npz (io/FORMAT.md)."""
    header = {
        "identity": table.identity,
        "kinds": [[extent_as_json(one) for one in column.kinds] for column in table.columns],
    }
    arrays: dict[str, Any] = {
        "told": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "names": np.frombuffer(table.names.text, np.uint8),
        "begins": table.names.begins,
    }
    for number, column in enumerate(table.columns):
        arrays.update({f"{number}.{name}": getattr(column, name) for name in COLUMN})
    np.savez(out, **arrays)


def _load(kept: Path) -> GroupTable:
    try:
        with kept_file(kept) as file, np.load(file, allow_pickle=False) as arrays:  # a CRC-32 of each is checked
            header = json.loads(arrays["told"].tobytes())
            columns = [
                Column([parse_extent(one) for one in kinds], *(arrays[f"{number}.{name}"] for name in COLUMN))
                for number, kinds in enumerate(header["kinds"])
            ]
            nbytes, mtime_ns, inode, ctime_ns = header["identity"]
            names = GroupNames(arrays["names"].tobytes(), arrays["begins"])
        return GroupTable(names, columns, (nbytes, mtime_ns, inode, ctime_ns))
    except (zipfile.BadZipFile, LookupError, TypeError, EOFError) as error:
        raise ValueError(f"damaged: {error}") from None


def extent_as_json(one: _native.Dataset) -> dict[str, Any]:
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in one.items()}


def parse_extent(facts: dict[str, Any]) -> Any:
    return {key: bytes.fromhex(value) if key in ("datatype", "fill") else value for key, value in facts.items()}


# The rows of datasets of many groups as one Layout: "/mol/*/positions".


class GroupRows(NamedTuple):
    """The rows of a dataset of all groups, group after group."""

    layout: Layout
    rows: NDArray[np.int64]  # of each group
    heights: NDArray[np.int64] | None  # of a row along its first axis in each group, where they differ; None: all alike


def group_rows(files: list[str], name: str, cache: Folder) -> GroupRows:
    """Returns the rows of all datasets that a name with stars means: "/mol/*/positions".

    Rows whose first axes differ from group to group, such as atoms of molecules, are rows of the Layout one by one.
    Raises LayoutError if a dataset cannot be read so.
    """
    pattern, own = split_pattern(name)
    tables = [table_of(file, pattern, [own], cache) for file in files]
    for file, table in zip(files, tables, strict=True):
        if not len(table.names):
            raise LayoutError(
                f"{file}: there are no groups whose names fit {pattern!r}, as {name!r} asks; `solar inspect` lists "
                "what there is"
            )
    columns = [table.columns[0] for table in tables]
    shapes = np.concatenate([column.shape for column in columns])
    if shapes.shape[1] == 0:
        raise LayoutError(f"{files[0]}: {columns[0].kinds[0]['name']} is a scalar, and a scalar has no rows")
    heights = None
    if shapes.shape[1] > 1 and (shapes[:, 1] != shapes[0, 1]).any():
        heights = shapes[:, 1].astype(np.int64)
        columns = [_flatten(file, column) for file, column in zip(files, columns, strict=True)]
    found = group_field(files, [table.identity for table in tables], pattern, own, columns, True)
    layout = replace(found.layout, name=f"{pattern}/{own}", groups=table_names(tables))
    return GroupRows(layout, shapes[:, 0].astype(np.int64), heights)


def alike_rows(files: list[str], name: str, cache: Folder) -> Layout:
    """Returns the Layout of such rows. Raises LayoutError if they differ in shape from group to group."""
    found = group_rows(files, name, cache)
    if found.heights is not None:
        least, most = int(found.heights.min()), int(found.heights.max())
        raise LayoutError(
            f"{files[0]}: {name}: rows have {least} to {most} along their first axis, by group, and so are ragged: "
            f"H5Dataset takes them as they are; on the command line say --ragged {name!r}"
        )
    return found.layout


def split_pattern(name: str) -> tuple[str, str]:
    """Returns the pattern of groups in a name with stars, and the name of the dataset in each of them.

    >>> split_pattern("/data/demo_*/obs/image")
    ('/data/demo_*', 'obs/image')
    """
    parts = name.strip("/").split("/")
    last = max(number for number, part in enumerate(parts) if "*" in part)
    if last + 1 == len(parts):
        raise LayoutError(
            f"{name!r}: stars stand for groups, and the last part of a name is that of the dataset in each of them: "
            '"/demo_*/actions"'
        )
    return "/" + "/".join(parts[: last + 1]), "/".join(parts[last + 1 :])


def is_pattern(file: str, name: Any) -> bool:
    """Returns whether a name means datasets of many groups: it has a star, and is not the name of a dataset."""
    if not isinstance(name, str) or "*" not in name or is_zarr(file):
        return False
    try:
        _native.read_metadata(file, name)
    except LayoutError:
        return True
    return False


def _flatten(file: str, column: Column) -> Column:
    """Returns the column with the first two axes of its datasets joined: their bytes are the same."""
    shape = column.shape.copy()
    if (np.multiply(shape[:, 0], shape[:, 1], dtype=float) > MOST).any():
        raise LayoutError(f"{file}: {column.kinds[0]['name']}: groups have more rows than can be counted")
    kinds = []
    for number, kind in enumerate(column.kinds):
        one = kind.copy()
        one["shape"] = [0, *one["shape"][2:]]
        if one["storage"] == "chunked":
            high = shape[column.kind == number, 1]
            if (high != one["chunk"][1]).any():
                raise LayoutError(
                    f"{file}: {one['name']}: rows differ in shape from group to group, and its chunks, "
                    f"{tuple(one['chunk'])}, cut rows of {int(high[high != one['chunk'][1]][0])} in parts: take each "
                    "group as a sample, or write the chunks as long as a row along its first axis"
                )
            one["chunk"] = [one["chunk"][0] * one["chunk"][1], *one["chunk"][2:]]
        kinds.append(one)
    flat = np.column_stack((shape[:, 0] * shape[:, 1], shape[:, 2:]))
    return column._replace(kinds=kinds, shape=flat)
