"""What tests of boxes share: files of volumes, what their boxes are in numpy, and any boxes by hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from hypothesis import strategies as st
from kit import settle

from solar import Crops, DataLoader, Field, H5Dataset, PlanSampler

Array = np.ndarray[Any, Any]

STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": True},
    "gzip": {"chunks": True, "compression": "gzip", "shuffle": True},
    "lzf and a checksum": {"chunks": True, "compression": "lzf", "fletcher32": True},
}


def written(path: Path, shape: Sequence[int], stored: str, chunk: Sequence[int] = (), **more: Any) -> Array:
    """A file of `u` of this shape, and more; the values of `u`. Some chunks are not written, if there are any."""
    dtype = more.pop("dtype", "f4")
    values = np.random.default_rng(sum(shape)).integers(0, 99, shape).astype(dtype)
    options = dict(STORED[stored])
    with h5py.File(path, "w") as file:
        if options.pop("chunks", False):
            limits, fill = (None,) * len(shape), np.array(7).astype(dtype)[()]
            made = file.create_dataset(
                "u", shape, dtype, chunks=tuple(chunk), maxshape=limits, fillvalue=fill, **options
            )
            values[: chunk[0]] = fill  # of what is not written
            made[chunk[0] :] = values[chunk[0] :]
        else:
            file["u"] = values
        for name, one in more.items():
            file[name] = one
    settle(path)
    return values


def check_resumed(data: H5Dataset, **options: Any) -> None:
    """An epoch that one rank has begun is ended by three, all with these options of the loader."""
    with DataLoader(data, 4, sampler=PlanSampler(data, 1, 0, seed=2), **options) as loader:
        loader.set_epoch(5)
        whole = [*loader]
        loader.set_epoch(5)
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
        del iterator
    left = []
    for rank in range(3):
        sampler = PlanSampler(data, 3, rank, seed=2, tail="exact")
        with DataLoader(data, 4, sampler=sampler, exchange="off", **options) as other:
            other.load_state_dict(state)
            left += [*other]
    for name in ("image", "label"):
        theirs = torch.cat([batch[name] for batch in whole]).flatten(1)
        ours = torch.cat([batch[name] for batch in (*seen, *left)]).flatten(1)
        assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))


def starts(length: int, size: int, overlap: int) -> list[int]:
    """Where boxes of a grid begin along an axis."""
    return sorted({*range(0, length - size, size - overlap), length - size})


def places(shape: Sequence[int], box: Sequence[int], overlap: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(starts, shape, box, overlap))


def cut(values: Array, place: Sequence[int], box: Sequence[int]) -> Array:
    """The box of the last axes that begins at this place."""
    return np.asarray(values[(..., *(slice(a, a + n) for a, n in zip(place, box, strict=True)))])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A volume, how it is stored, and the boxes of a grid of it."""
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 11)) for _ in range(rank))
    k = draw(st.integers(1, rank))
    box = tuple(draw(st.integers(1, n)) for n in shape[-k:])
    return {
        "shape": shape,
        "stored": draw(st.sampled_from(sorted(STORED))),
        "chunk": tuple(draw(st.integers(1, 9)) for _ in shape),
        "dtype": draw(st.sampled_from(["u1", ">i2", "f4", ">f8", "c16", "S3"])),
        "box": box,
        "overlap": tuple(draw(st.integers(0, n - 1)) for n in box),
        "axis": draw(st.integers(-rank, rank - 1)),
        "page_cache": draw(st.sampled_from([None, False])),  # copied out of mapped files, or read past the cache
    }


def dataset_of(folder: Path, stored: str, **given: Any) -> H5Dataset:
    """Images with two channels, and labels, of two files, cropped together."""
    folder.mkdir(exist_ok=True)
    for number in range(2):
        labels = np.random.default_rng(number).integers(0, 5, (9, 10, 11))
        written(folder / f"{number}.h5", (2, 9, 10, 11), stored, (1, 4, 3, 6), label=labels)
    fields = {"image": Field("u", mean=3, std=2), "label": "label"}
    crops = Crops((4, 5, 3), **({"at": "random", "per": 20, "seed": 5} | given))
    return H5Dataset([str(folder / f"{number}.h5") for number in range(2)], fields, samples=crops)
