"""The sources of a virtual dataset: where libhdf5 finds their files, and what these say of the datasets."""

# There may be thousands of sources, and making a Path takes as long as a stat of its file.
# ruff: noqa: PTH100, PTH114, PTH119, PTH120
from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from solar import _native
from solar.errors import LayoutError, ReadError, SolarError
from solar.io.far.place import beside
from solar.values import is_url

THREADS = 8  # threads that open files at the same time
FAR_THREADS = 64  # and files elsewhere, each of which is waited for
SURVEYED = 16  # datasets of one file, from which on it is read whole

Key = tuple[str, str]  # a file and the name of a dataset in it


def found_in(
    virtual: str, sources: Sequence[Key], failure: type[Exception]
) -> list[tuple[str, _native.Dataset | None]]:
    """The file, and what it says of the dataset, of each source that a virtual dataset of this file names.

    None for those for which there is no file or no dataset: libhdf5 gives the fill value for their rows. `failure` for
    those of which it is not certain what libhdf5 would do.
    """
    if is_url(virtual):
        return _from_afar(virtual, sources, failure)
    files = {name: _file(virtual, name) for name in dict.fromkeys(file for file, _ in sources)}
    places = [(files[file], "/" + name.strip("/")) for file, name in sources]
    by_file: dict[str, list[str]] = {}
    for file, name in places:
        if file is not None:
            by_file.setdefault(file, []).append(name)
    known: dict[Key, _native.Dataset | None] = {}
    by_name: dict[str, list[str]] = {}
    for file, names in by_file.items():
        if len(names) >= SURVEYED:  # each name alone would have the groups read again
            known.update(_survey(file, set(names), failure))
        else:
            for name in names:
                by_name.setdefault(name, []).append(file)
    for name, holding in by_name.items():
        known.update(zip([(file, name) for file in holding], _of_many(holding, name, failure), strict=True))
    found = []
    for file, name in places:
        dataset = None if file is None else known[file, name]
        found.append(((dataset["path"] if dataset else "") or file or "", dataset))
    return found


def _file(virtual: str, name: str) -> str | None:
    """The path at which libhdf5 finds a source's file; None if it does not."""
    return virtual if name == "." else next(filter(os.path.lexists, _candidates(virtual, name)), None)


def _candidates(virtual: str, name: str) -> Iterator[str]:
    """Where libhdf5 looks for a source's file, in this order (its H5F_prefix_open_file)."""
    folder, prefix = os.path.dirname(virtual), os.environ.get("HDF5_VDS_PREFIX", "")
    local = os.path.basename(name) if name.startswith("/") else name
    if name.startswith("/"):
        yield name
    for one in filter(None, prefix.split(":")):
        yield f"{one}/{local}"
    if prefix:
        yield f"{prefix.replace('${ORIGIN}', folder, 1) if prefix.startswith('${ORIGIN}') else prefix}/{local}"
    yield f"{folder}/{local}"
    yield os.path.abspath(local)
    if os.path.islink(virtual):
        yield f"{os.path.dirname(os.path.realpath(virtual))}/{local}"


def _from_afar(
    virtual: str, sources: Sequence[Key], failure: type[Exception]
) -> list[tuple[str, _native.Dataset | None]]:
    """The same of a far file, whose sources lie beside it. One that nobody may read is not missing."""

    def found(source: Key) -> tuple[str, _native.Dataset | None]:
        file, name = source
        # libhdf5 also looks beside it for an absolute name
        url = virtual if file == "." else beside(virtual, file.rpartition("/")[2] if file.startswith("/") else file)
        if url is None:
            raise failure(f"its source {file} does not lie beside it, and from afar nothing leads elsewhere")
        try:
            if url != virtual:
                _native.far_look(url)
        except ReadError as error:
            if error.errno != errno.ENOENT:
                raise failure(f"of its source: {error}") from None
            if file.startswith("/"):
                raise failure(f"its source {file} does not lie beside it, and from afar nothing leads there") from None
            return url, None
        dataset = _one(url, "/" + name.strip("/"), failure)
        return (dataset["path"] if dataset else "") or url, dataset

    with ThreadPoolExecutor(FAR_THREADS) as threads:
        return [*threads.map(found, sources)]


def _survey(file: str, names: set[str], failure: type[Exception]) -> Iterator[tuple[Key, _native.Dataset | None]]:
    try:
        read = _native.read_metadata(file)
    except SolarError as error:
        raise failure(f"of its source: {error}") from None
    there = {one["name"]: one for one in read["datasets"] + read["linked"]}
    for name in names:
        yield (file, name), there[name] if name in there else _one(file, name, failure)


def _of_many(files: list[str], name: str, failure: type[Exception]) -> list[_native.Dataset | None]:
    try:
        return [one["datasets"][0] for one in _native.read_metadata_of_many(files, name, THREADS)]
    except SolarError:  # of one of them at least
        return [_one(file, name, failure) for file in files]


def _one(file: str, name: str, failure: type[Exception]) -> _native.Dataset | None:
    try:
        return _native.read_metadata(file, name)["datasets"][0]
    except SolarError as error:
        said = str(error)
        lost = isinstance(error, LayoutError) and ": there is no " in said and "; on the way: " not in said
        if lost and _is_group(file, name.rpartition("/")[0]):  # where that is missing, too, libhdf5 gives up
            return None
        raise failure(f"of its source: {said}") from None


def _is_group(file: str, name: str) -> bool:
    try:
        check_group(file, name) if name else None
    except SolarError:
        return False
    return True


def check_group(file: str, name: str) -> None:
    """SolarError where this is no group, or the file cannot be read. What it holds is not looked at."""
    try:
        _native.read_metadata(file, name)
    except SolarError as error:
        if str(error).endswith(": it is a group, not a dataset"):
            return
        raise
    raise LayoutError(f"{file}: {name}: it is a dataset, not a group")
