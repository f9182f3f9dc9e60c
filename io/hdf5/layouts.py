"""inspect: the Layouts of HDF5 files, from metadata alone."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import LayoutError, SolarError, renamed_arguments
from solar.io.channels.progress import awaited
from solar.io.hdf5.chunk_index import Folder, chunk_arrays, running
from solar.io.hdf5.datatype import dtype_of, forms_of
from solar.io.hdf5.groups import alike_rows, is_pattern
from solar.io.hdf5.paths import Paths, files_of, hint, is_zarr, list_names, naming_stores, naming_writers, nearest
from solar.io.hdf5.virtual import Made, check_group, join_stretches, left_to_libhdf5, parts_of_stretches, resolved
from solar.values import Layout

log = logging.getLogger("solar")

THREADS = 8  # threads that open files at the same time, if there are many
MOST_SURVEYED = 100_000  # datasets of a file that are looked at: each takes some kilobytes of memory
FILES_AT_ONCE = 512  # files, after which it is told how many are open

Samples = Literal["rows", "files"]


def check_whole(files: list[str]) -> None:
    """Raises LayoutError if one of them is no HDF5 file, or is cut off. It reads only the first bytes of each."""
    for file in files:
        if not is_zarr(file):
            check_group(file, "/")


@overload
def inspect(
    path: Paths, field: None = None, *, samples: Samples = "rows", cache: Folder = "auto", collective_open: bool = False
) -> dict[str, Layout]: ...
@overload
def inspect(
    path: Paths, field: str, *, samples: Samples = "rows", cache: Folder = "auto", collective_open: bool = False
) -> Layout: ...
@overload
def inspect(
    path: Paths, field: Any, *, samples: Samples = "rows", cache: Folder = "auto", collective_open: bool = False
) -> Any: ...


@renamed_arguments(together="collective_open")
def inspect(
    path: Paths, field: Any = None, *, samples: Samples = "rows", cache: Folder = "auto", collective_open: bool = False
) -> Any:
    """Returns the Layout of a dataset, of each of several, or (field None) of every dataset, by name.

    `path`: a file, a list of files, a directory (its HDF5 files) or a glob pattern. Files of the last two are sorted by
    the bytes of their paths. Several files make one data set, one after another. Zarr stores and reference files
    are read as HDF5 files are. `field`: a name, or names in a tuple, list or dict (also nested), which make up one
    sample together. The Layouts are returned in the same structure. A name with stars, "/mol/*/energy", means the rows
    of many groups, in order. `samples`: "rows", a sample is an index along axis 0; "files", a sample is the whole
    dataset of one file. `cache`: the folder for the chunk tables of large datasets; "auto" for the user's, None for
    none. `collective_open`: all ranks of MPI or torch.distributed call this with the same arguments. Rank 0 reads the
    metadata and sends it, or its error, to the others. Each rank waits for all. It has no effect in a process without
    other ranks.

    >>> import h5py, numpy, tempfile
    >>> path = tempfile.mkdtemp() + "/scan.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["x"] = numpy.zeros((100, 8, 8), "f4")
    >>> layout = inspect(path, "x")
    >>> layout.shape, layout.storage, layout.reader
    ((100, 8, 8), 'contiguous', 'direct')
    """
    if samples not in ("rows", "files"):
        raise ValueError(f'samples={samples!r}: either "rows" or "files"')
    names: list[str] | None = None if field is None else []
    if names is not None:
        _structure(field, names.append)

    def read() -> list[Layout]:
        files = files_of(path)
        with naming_writers(files):
            return read_layouts(files, names, samples, cache)

    layouts = _open_collectively(path, names, samples, read) if collective_open else read()
    if names is None:
        return {layout.name: layout for layout in layouts}
    waiting = iter(layouts)
    return _structure(field, lambda _: next(waiting))


def _open_collectively(
    path: Paths, names: list[str] | None, samples: Samples, read: Callable[[], list[Layout]]
) -> list[Layout]:
    """Returns what rank 0 reads, on all ranks; in a process without other ranks, what it reads itself."""
    from solar.io.channels.meeting import peers  # only where ranks read together
    from solar.io.hdf5.metadata import read_together

    these = peers()
    if these is None:
        return read()
    if is_zarr(files_of(path)[0]):
        raise LayoutError("collective_open=True: each rank opens Zarr stores for itself: leave collective_open= out")
    if names is not None and any("*" in name for name in names):
        raise LayoutError(
            "collective_open=True: names with stars are looked for by each rank: leave collective_open= out"
        )
    return read_together(these, *describe_inspection(path, names, samples), read)


def describe_inspection(path: Paths, names: list[str] | None, samples: Samples) -> tuple[str, dict[str, Any]]:
    """Describes what is read, for messages, and returns the arguments that must be the same on all ranks."""
    facts = {"fields": names, "samples": samples}
    if isinstance(path, (str, os.PathLike)):
        return str(path), {"path": str(path), **facts}
    paths = [str(one) for one in path]
    named = hashlib.sha256(json.dumps(paths).encode()).hexdigest()  # there may be fifty thousand
    return f"{len(paths)} paths", {"paths": [len(paths), named], **facts}


def read_layouts(files: list[str], names: list[str] | None, samples: Samples, cache: Folder) -> list[Layout]:
    if is_zarr(files[0]):
        from solar.io.hdf5.zarr_layouts import zarr_layouts  # only where there is a Zarr store

        if samples != "rows":
            raise LayoutError(f'{files[0]}: of a Zarr store samples are rows: leave samples="{samples}" out')
        if names is not None:
            layouts = zarr_layouts(files, names, cache)
            check_counts(layouts)
            return layouts
    if names is None:
        found = survey(files, samples=samples, cache=cache)
        for problem in found.problems:
            log.warning("%s: %s", files[0], problem)
        return list(found.layouts.values())
    with naming_stores(files):
        layouts = [_inspect_one(files, name, samples == "files", cache) for name in names]
    check_counts(layouts)
    return layouts


class Survey(NamedTuple):
    """The contents of a file: every dataset by name; behind links, by the name of the link."""

    layouts: dict[str, Layout]
    problems: list[str]  # damaged groups, and links that lead nowhere
    aliases: dict[str, tuple[str, str]]  # groups that links lead to: the file (empty: this one), and the path there
    headers: Mapping[str, int] = MappingProxyType({})  # where each dataset's lies in the first file that holds it


def survey(files: list[str], *, samples: Samples = "rows", cache: Folder = "auto") -> Survey:
    """Returns every dataset of the first file, in all files, in the order of a tree.

    A dataset that cannot be read is included, with reader "none" and the reason.
    """
    if is_zarr(files[0]):
        from solar.io.hdf5.zarr_layouts import survey_stores  # only where there is a Zarr store

        return Survey(survey_stores(files, cache), [], {})
    with naming_writers(files), naming_stores(files):
        first = _native.read_metadata(files[0], most=MOST_SURVEYED)
    datasets = first["datasets"] + first["linked"]
    if first["linked"]:
        datasets.sort(key=lambda dataset: [os.fsencode(part) for part in dataset["name"].split("/")])
    layouts = {}
    for dataset in datasets:
        try:
            if len(files) == 1:
                layout = make_layout(files, [dataset], samples == "files", cache)
            else:
                layout = _inspect_one(files, dataset["name"], samples == "files", cache)
        except SolarError as error:
            reason = str(error).removeprefix(f"{dataset_place(files[0], dataset)}: ")
            layout = _unreadable(files[0], dataset, reason)
        layouts[dataset["name"]] = layout
    aliases = {name: (file, path) for name, file, path in first["aliases"]}
    return Survey(layouts, first["problems"], aliases, {one["name"]: one["header_address"] for one in datasets})


def _structure(field: Any, one: Callable[[str], Any]) -> Any:
    """Returns the structure of `field` with each name replaced by `one` of it."""
    if isinstance(field, str):
        return one(field)
    if isinstance(field, Mapping):
        return {key: _structure(part, one) for key, part in field.items()}
    if isinstance(field, (tuple, list)):
        return tuple(_structure(part, one) for part in field)
    raise TypeError(f"a field is a dataset's name, or names in a tuple, list or dict, not {type(field).__name__}")


def _inspect_one(files: list[str], name: str, per_file: bool, cache: Folder) -> Layout:
    if is_pattern(files[0], name):
        if per_file:
            raise LayoutError(f'{name}: stars mean rows of many groups; with samples="files" name a dataset')
        return alike_rows(files, name, cache)
    try:
        if len(files) == 1:
            found = [_native.read_metadata(files[0], name)]
        else:
            found = []
            with awaited(f"opening for {name}", lambda: len(found), len(files), "files"):
                for begin in range(0, len(files), FILES_AT_ONCE):
                    found += _native.read_metadata_of_many(files[begin : begin + FILES_AT_ONCE], name, THREADS)
    except LayoutError as error:
        raise LayoutError(_with_hint(str(error), files[0], name)) from None
    return make_layout(files, [one["datasets"][0] for one in found], per_file, cache)


def _with_hint(said: str, file: str, name: str) -> str:
    """Returns the error about a name. If the file has no such dataset, it suggests the full paths of similar names."""
    before, missing, what = said.partition(": there is no ")
    group = said.endswith(": it is a group, not a dataset")
    if (not missing and not group) or "; on the way: " in said:  # a link's target is missing: it says which
        return said
    try:
        found = _native.read_metadata(file, most=MOST_SURVEYED)
    except SolarError:  # an error of looking for similar names does not matter here
        return said
    shapes = {one["name"]: one.get("shape", ()) for one in found["datasets"] + found["linked"]}
    asked = "/" + name.strip("/")
    if group:
        inside = {path: shape for path, shape in shapes.items() if path.startswith(asked.rstrip("/") + "/")}
        return f"{said}; {list_names(inside, file)}"
    missed, near, _ = what.partition("; did you mean ")
    if asked in shapes or (near and not nearest(name, shapes)):
        return said
    return f"{before}{missing}{missed}; {hint(name, shapes, file)}"


def check_counts(layouts: list[Layout]) -> None:
    """Raises unless all fields have equally many samples, in each file."""
    if not layouts:
        raise LayoutError("asked for samples of no fields")
    first = layouts[0]
    for other in layouts[1:]:
        if other.shape[:1] != first.shape[:1]:
            raise LayoutError(
                f"{first.files[0]}: fields of one sample differ in length: "
                f"{first.name} has {first.samples} samples, {other.name} has {other.samples}"
            )
        ours, theirs = first.first_of_files, other.first_of_files
        if not np.array_equal(ours, theirs):
            file = first.files[int(np.flatnonzero(np.diff(ours) != np.diff(theirs))[0])]
            raise LayoutError(f"{file}: {first.name} and {other.name} differ in length in this file")


# --- from metadata to a Layout ----


def make_layout(asked: list[str], datasets: list[_native.Dataset], per_file: bool, cache: Folder) -> Layout:
    """Returns the Layout of the datasets with its name in the given files, or in the files that links there lead to."""
    files = [dataset["path"] or file for file, dataset in zip(asked, datasets, strict=True)]
    datasets, made = resolved(files, datasets, per_file)
    first = datasets[0]
    dtype = _check_agreement(asked, datasets, per_file)
    lengths = [1 if per_file or not first["shape"] else dataset["shape"][0] for dataset in datasets]
    row_shape = first["shape"] if per_file else first["shape"][1:]
    total = sum(lengths)
    if total >= 2**63 or math.prod(row_shape) * dtype.itemsize >= 2**63:
        raise LayoutError(
            f"{dataset_place(asked[0], first)}: {total} samples of shape {tuple(row_shape)} are more "
            "than can be counted"
        )
    stored: dict[str, Any] | str = _of_stretches(asked, files, datasets, made, dtype, cache) if made else ""
    if isinstance(stored, str):
        if stored:
            datasets = left_to_libhdf5(datasets, stored)
        stored = _of_datasets(asked, files, datasets, dtype, per_file, cache)
        stored["part_first"] = running(lengths)
    else:
        stored["dataset_first"] = running(lengths)
    storages = {dataset["storage"] for dataset in datasets}
    layout = Layout(
        name=first["name"],
        shape=(total, *row_shape) if per_file or first["shape"] else (),
        dtype=dtype,
        storage=storages.pop() if len(storages) == 1 else "mixed",
        index=first["index"],
        per_file=per_file,
        **stored,
    )
    if layout.far and layout.reader == "h5py":
        raise _not_from_afar(asked[0], first, layout.reason)
    return layout


def _not_from_afar(file: str, dataset: _native.Dataset, reason: str) -> LayoutError:
    return LayoutError(
        f"{dataset_place(file, dataset)}: only libhdf5 could read it ({reason}), and that reads no URLs here: "
        "copy the file to a local disk"
    )


def _of_datasets(
    asked: list[str],
    files: list[str],
    datasets: list[_native.Dataset],
    dtype: np.dtype[Any],
    per_file: bool,
    cache: Folder,
) -> dict[str, Any]:
    """Returns the parts of a Layout, each of which is one of the datasets."""
    forms, part_form, reasons = forms_of(datasets, dtype, per_file)
    reason = next((why for why in reasons if why), "")
    if reason and len(files) > 1:
        reason += f" (in {files[part_form.index(reasons.index(reason))]})"
    return {
        **_files_of(asked, datasets),
        "reader": "h5py" if reason else "direct",
        "reason": reason,
        "forms": tuple(forms),
        "part_file": np.arange(len(files), dtype=np.int32),
        "part_form": np.array(part_form, np.int32),
        **chunk_arrays(files, datasets, cache, wanted=not reason),
    }


def _of_stretches(
    asked: list[str],
    files: list[str],
    datasets: list[_native.Dataset],
    made: list[Made],
    dtype: np.dtype[Any],
    cache: Folder,
) -> dict[str, Any] | str:
    """Returns the parts of a Layout that are stretches of rows of other datasets; or why there are none."""
    stretches = join_stretches(made)
    places = stretches.places
    forms, form_of_place, reasons = forms_of([place.dataset for place in places], dtype, False)
    if wrong := next((why for why in reasons if why), ""):
        return f"{wrong} (in {places[form_of_place.index(reasons.index(wrong))].file})"
    own = set(files)
    others = {place.file: place.stored for place in places if place.file not in own}
    paths = [*files, *others]
    number = {path: number for number, path in reversed([*enumerate(paths)])}
    return {
        **_files_of([*asked, *others], [*datasets, *others.values()]),
        "paths": tuple(paths),
        "reader": "direct",
        "reason": "",
        "forms": tuple(forms),
        "dataset_file": np.arange(len(files), dtype=np.int32),
        **parts_of_stretches(stretches, form_of_place, [number[place.file] for place in places], cache),
    }


def _files_of(asked: list[str], datasets: list[_native.Dataset]) -> dict[str, Any]:
    """Returns the files that hold the datasets; behind links, also names there and the files asked for."""
    linked = any(dataset["target"] for dataset in datasets)
    elsewhere = any(dataset["path"] for dataset in datasets)
    return {
        "paths": tuple(dataset["path"] or file for file, dataset in zip(asked, datasets, strict=True)),
        **_identities(datasets),
        "names": tuple(dataset["target"] or dataset["name"] for dataset in datasets) if linked else (),
        "asked": tuple(asked) if elsewhere else (),
    }


def dataset_place(asked: str, dataset: _native.Dataset) -> str:
    """Describes a dataset in messages: its file, its name there, and the link that led to it from another file."""
    if not dataset["path"]:
        return f"{asked}: {dataset['name']}"
    return f"{dataset['path']}: {dataset['target']} (linked from {asked}: {dataset['name']})"


def _unreadable(file: str, dataset: _native.Dataset, reason: str) -> Layout:
    return Layout(
        name=dataset["name"],
        **_files_of([file], [dataset]),
        shape=tuple(dataset["shape"]),
        dtype=np.dtype("V0"),
        storage=dataset["storage"],
        index=dataset["index"],
        reader="none",
        reason=reason,
    )


def _identities(datasets: list[_native.Dataset]) -> dict[str, NDArray[Any]]:
    """Returns the identities that their files had when they were inspected (native/include/solar/file.hpp)."""
    kinds = {"file_nbytes": np.uint64, "file_mtime_ns": np.int64, "file_inode": np.uint64, "file_ctime_ns": np.int64}
    return {
        name: np.fromiter((one[name] for one in datasets), kind, len(datasets))  # type: ignore[literal-required]
        for name, kind in kinds.items()
    }


def _check_agreement(files: list[str], datasets: list[_native.Dataset], per_file: bool) -> np.dtype[Any]:
    """Returns the dtype of all parts. Raises if one is damaged or differs from the first."""
    first = datasets[0]
    for file, dataset in zip(files, datasets, strict=True):
        where = dataset_place(file, dataset)
        if dataset["problem"]:
            raise LayoutError(f"{where}: {dataset['problem']}")
        if not dataset["datatype"]:
            raise LayoutError(f"{where}: only libhdf5 can find it: {dataset['elsewhere']}")
        if dataset["null_space"]:
            raise LayoutError(f"{where}: its dataspace is null: it has no values")
        if dataset["datatype"] != first["datatype"] and (ours := _dtype_in(file, dataset)) != (
            theirs := _dtype_in(files[0], first)
        ):
            raise LayoutError(f"{where} is of type {ours[0]}, but of type {theirs[0]} in {files[0]}")
        shape, other = dataset["shape"], first["shape"]
        if len(files) > 1 and not per_file and not shape:
            raise LayoutError(f'{where} is a scalar, not rows of samples; with samples="files" each file is one sample')
        if (shape != other) if per_file else (shape[1:] != other[1:] or len(shape) != len(other)):
            raise LayoutError(
                f"{where} has shape {tuple(shape)}, which does not fit shape {tuple(other)} in {files[0]}"
            )
    return _dtype_in(files[0], first)[0]


def _dtype_in(file: str, dataset: _native.Dataset) -> tuple[np.dtype[Any], str]:
    """Returns the dtype of a dataset, and why its bytes cannot be used as they are (empty if they can)."""
    try:
        return dtype_of(dataset["datatype"])
    except LayoutError as error:
        raise LayoutError(f"{dataset_place(file, dataset)}: {error}") from None


# Groups files by their contents: the files of a group can form one data set.


@dataclass(frozen=True)
class FileKind:
    """Files with the same datasets, of the same types and shapes except for the length of axis 0."""

    files: tuple[str, ...]
    problem: str = ""  # why none of these files can be read


def kinds_of(files: Sequence[str]) -> list[FileKind]:
    """Returns all files by kind, the most common kind first."""
    with ThreadPoolExecutor(THREADS) as threads:
        facts = list(threads.map(facts_of_file, files))
    kinds: dict[Hashable, list[str]] = {}
    for file, fact in zip(files, facts, strict=True):
        kinds.setdefault(fact, []).append(file)
    found = [FileKind(tuple(those), fact if isinstance(fact, str) else "") for fact, those in kinds.items()]
    return sorted(found, key=lambda kind: (bool(kind.problem), -len(kind.files)))


def facts_of_file(file: str) -> Hashable:
    """Returns the facts that files of a kind share; a text if the file cannot be read."""
    try:
        found = _native.read_metadata(file, most=MOST_SURVEYED)
    except SolarError as error:
        return str(error).removeprefix(f"{file}: ")
    datasets = found["datasets"] + found["linked"]
    return tuple(
        (one["name"], one["datatype"], len(one["shape"]), tuple(one["shape"][1:]), one["problem"]) for one in datasets
    )
