"""Decides which raw files a file may refer to. slow_child.py loads it, in its process and in the caller's; it imports
no solar.

Any file can be a raw file: through one, an HDF5 file from elsewhere could show the bytes of any file of yours. So a raw
file must lie in the folder of the HDF5 file or below, or in the folder that HDF5_EXTFILE_PREFIX names, with all links
followed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_NESTED = 8  # virtual datasets within each other
MOST_COUNTED = 100_000  # sources whose names are counted


class Unreadable(Exception):
    """The dataset is of a kind that cannot be read at all."""


def raw_file(holder: str, name: str) -> Path:
    """Returns the path at which libhdf5 opens a raw file that a dataset of the file `holder` names; Unreadable if it
    must not.

    >>> raw_file("/data/run/scan.h5", "/data/run/raw/1.bin").name
    '1.bin'
    >>> raw_file("/data/run/scan.h5", "/etc/passwd")
    Traceback (most recent call last):
    ...
    solar.io.hdf5.external_files.Unreadable: its values are said to be in the raw file /etc/passwd, which is not in ...
    """
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "")
    if prefix.startswith("${ORIGIN}"):
        prefix = str(Path(holder).absolute().parent) + prefix.removeprefix("${ORIGIN}")
    place, folder = Path(prefix, name), Path(holder).resolve().parent
    allowed = [folder, *([Path(prefix).resolve()] if prefix else [])]
    real = place.resolve()
    if not any(real.is_relative_to(one) for one in allowed):
        raise Unreadable(
            f"its values are said to be in the raw file {real}, which is not in {folder} or below: an HDF5 file from "
            "elsewhere could read any file of yours so. If you trust it, move the raw file there, or name the raw "
            "file's folder by the environment variable HDF5_EXTFILE_PREFIX"
        )
    return place


def check_all(dataset: Any, depth: int = 0) -> None:
    """Raises Unreadable if libhdf5 would read a forbidden raw file for this dataset, or for one of its sources."""
    import h5py

    holder = dataset.file.filename
    for name, *_ in dataset.external or ():
        raw_file(holder, name)
    if not dataset.is_virtual:
        return
    if depth == MOST_NESTED:
        raise Unreadable(f"its sources are virtual, too, more than {MOST_NESTED} times over")
    for file, name in _sources(holder, dataset):
        try:
            with h5py.File(file, "r", locking=False) as source:
                inner = source[name]
                if isinstance(inner, h5py.Dataset) and (inner.is_virtual or inner.external):
                    check_all(inner, depth + 1)
        except (OSError, KeyError, ValueError, RuntimeError):  # libhdf5 cannot read it either
            continue


def _sources(holder: str, dataset: Any) -> Iterator[tuple[Path, str]]:
    """Yields every file that may be meant, and the dataset in it."""
    for one in dataset.virtual_sources():
        if "%" not in one.file_name + one.dset_name:
            yield from ((place, one.dset_name) for place in source_paths(holder, one.file_name))
            continue
        for number in itertools.count():
            file, name = (text.replace("%b", str(number)).replace("%%", "%") for text in (one.file_name, one.dset_name))
            places = list(source_paths(holder, file))
            yield from ((place, name) for place in places)
            if not places or ("%b" not in one.file_name and number >= len(dataset)):
                break
            if number == MOST_COUNTED:
                raise Unreadable(f"it counts more than {MOST_COUNTED:,} sources")


def source_paths(holder: str, name: str) -> Iterator[Path]:
    """Returns where libhdf5 looks for a source's file, as far as something is there."""
    local = Path(name).name if name.startswith("/") else name
    own = [Path(holder).parent, Path(holder).resolve().parent]
    folders = [*map(Path, os.environ.get("HDF5_VDS_PREFIX", "").split(":")), *own]
    found = [Path(holder)] if name == "." else [Path(name), *(Path(folder, local) for folder in folders)]
    return (place for place in dict.fromkeys(found) if place.is_file())
