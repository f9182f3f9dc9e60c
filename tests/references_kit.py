"""References into HDF5 files as kerchunk writes them, made here by h5py from what a file says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py


def of_dataset(dataset: Any, url: str) -> dict[str, Any]:
    """The references of one dataset: its metadata, and where each of its chunks lies."""
    chunks = dataset.chunks or dataset.shape
    filters: list[dict[str, Any]] = []
    if dataset.shuffle:
        filters.append({"id": "shuffle", "elementsize": dataset.dtype.itemsize})
    if dataset.compression == "gzip":
        filters.append({"id": "zlib", "level": dataset.compression_opts})
    if dataset.fletcher32:
        filters.append({"id": "fletcher32"})
    fill = dataset.fillvalue.item() if hasattr(dataset.fillvalue, "item") else dataset.fillvalue
    node = {
        "zarr_format": 2, "shape": dataset.shape, "chunks": chunks, "dtype": dataset.dtype.str, "order": "C",
        "compressor": None, "filters": filters or None, "fill_value": fill,
    }  # fmt: skip
    name = dataset.name.strip("/")
    found: dict[str, Any] = {f"{name}/.zarray": json.dumps(node), f"{name}/.zattrs": "{}"}
    if dataset.chunks is None:
        if dataset.id.get_offset() is not None:
            key = ".".join("0" * len(dataset.shape)) or "0"
            found[f"{name}/{key}"] = [url, dataset.id.get_offset(), dataset.nbytes]
        return found
    for number in range(dataset.id.get_num_chunks()):
        info = dataset.id.get_chunk_info(number)
        place = (begin // size for begin, size in zip(info.chunk_offset, chunks, strict=True))
        found[f"{name}/{'.'.join(map(str, place))}"] = [url, info.byte_offset, info.size]
    return found


def references_of(path: Path, names: Iterable[str], url: str | None = None) -> dict[str, Any]:
    """A reference file of version 1."""
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    with h5py.File(path) as file:
        for name in names:
            for depth in range(1, name.strip("/").count("/") + 1):
                refs["/".join(name.strip("/").split("/")[:depth]) + "/.zgroup"] = '{"zarr_format": 2}'
            refs |= of_dataset(file[name], path.name if url is None else url)
    return {"version": 1, "refs": refs}


def written(to: Path, found: dict[str, Any]) -> str:
    to.write_text(json.dumps(found))
    return str(to)
