"""The files of `python -m bench.shapes`: frames to take clips from, a volume to cut crops from, a sparse matrix.

Each scene has one HDF5 file, data.h5. Frames are in `u`; the volume is in `u`, with the voxels that crops lie about in
`centres_64`, `centres_96`, ...; the matrix is in `X`, as AnnData writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench import judges

LENGTH = 16  # steps of a clip
CHUNK = 64  # of a volume, along each axis
VALUES, GENES = 1489, 33_000  # of a row of a matrix, on average; columns of it
FROM_ANNDATA = 29_081  # values of a chunk
BOUND = 0.25  # of our codec
BLOCK_NBYTES = 32 << 20  # made at a time


@dataclass(frozen=True)
class Scene:
    name: str
    title: str
    kind: str  # clips, crops, rows
    shape: tuple[int, ...]  # of the dataset; of a matrix: rows, columns
    dtype: str
    variants: tuple[int, ...]  # of clips every so many steps, of crops voxels along an edge, of rows nothing
    batch: int
    peers: tuple[str, ...]
    stored: dict[str, Any] = field(default_factory=dict)  # how, for create_dataset
    filters: str = ""  # blosc: hdf5plugin's, with lz4; codec: ours
    crops: int = 0  # in an epoch
    values: int = VALUES  # of a row of a matrix, on average
    real: str = ""  # where a package of bench.judges has the matrix; and its name there
    storage: str = ""  # "slowed": as disks of a parallel file system; "cold": the page cache is empty; "": it has all

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Of all data, decoded."""
        if self.kind == "rows":
            return self.shape[0] * self.values * (self.itemsize + 4)
        return int(np.prod(self.shape)) * self.itemsize

    def samples(self, variant: int) -> int:
        """In an epoch."""
        if self.kind == "clips":
            return self.shape[0] - (LENGTH - 1) * variant
        return self.crops or self.shape[0]

    def sample_nbytes(self, variant: int) -> int:
        if self.kind == "crops":
            return variant**3 * self.itemsize
        return LENGTH * self.nbytes // self.shape[0] if self.kind == "clips" else self.nbytes // self.shape[0]

    def memory(self, share: float, variant: int, peer: str) -> int:
        """So much of the data; of solar, whose buffer counts batches on their way, three of them beside it."""
        room = 3 * self.batch * self.sample_nbytes(variant) if share and peer.startswith("solar") else 0
        return int(share * self.nbytes) + room

    def what(self, variant: int) -> str:
        """A variant, in words."""
        return {"clips": f"every {variant}", "crops": f"{variant}³", "rows": ""}[self.kind]

    def small(self) -> Scene:
        """For a look."""
        if self.kind == "crops":
            return replace(self, shape=(256,) * 3, crops=self.crops // 4)
        if self.real:
            return self
        return replace(self, shape=(min(self.shape[0] // 4, 10_000), *self.shape[1:]))


def scenes() -> dict[str, Scene]:
    frames, fields, volume, cells = (32_768, 64, 64, 3), (384, 512, 512), (512,) * 3, (40_000, GENES)
    clips = ("solar", "h5py", "memmap", "ram", "lance", "limit")
    crops = ("solar", "h5py", "ram", "b2nd", "zarr")
    rows = ("solar", "h5py", "ram", "anndata", "scdataset", "scdataset_blocks", "annbatch", "annbatch_blocks")
    gzip, anndata = {"compression": "gzip", "compression_opts": 4}, {"chunks": (FROM_ANNDATA,)}
    found = [
        Scene("clips", "64 × 64 × 3 bytes, contiguous", "clips", frames, "u1", (1, 2), 32, clips),
        *(
            Scene(f"clips_gzip_{n}", f"64 × 64 × 3 bytes, {n} to a chunk, gzip", "clips", frames, "u1", (1, 2), 32,
                  with_stage(peer for peer in clips if peer not in ("memmap", "limit")),
                  {"chunks": (n, 64, 64, 3), **gzip})
            for n in (1, 16, 100)
        ),
        Scene("climate", "1 MB, contiguous", "clips", fields, "f4", (1, 2), 4, clips),
        Scene("climate_gzip", "1 MB, one to a chunk, gzip", "clips", fields, "f4", (1,), 4,
              ("solar", "h5py", "ram", "lance"), {"chunks": (1, *fields[1:]), "shuffle": True, **gzip}),
        Scene("crops", "volume, contiguous", "crops", volume, "f4", (96, 64), 8, (*crops, "memmap", "limit"),
              crops=256),
        Scene("crops_gzip", "volume, chunks of 64³, gzip", "crops", volume, "f4", (96, 64), 8, with_stage(crops),
              {"chunks": (CHUNK,) * 3, **gzip}, crops=256),
        Scene("crops_lz4", "volume, chunks of 64³, Blosc with lz4", "crops", volume, "f4", (96, 64), 8,
              with_stage(crops), {"chunks": (CHUNK,) * 3}, "blosc", crops=256),
        Scene("crops_codec", "volume, chunks of 64³, our codec", "crops", volume, "f4", (96, 64), 8, crops,
              {"chunks": (CHUNK,) * 3}, "codec", crops=256),
        Scene("rows", "CSR, as anndata chunks it", "rows", cells, "f4", (0,), 64, (*rows, "limit"), anndata),
        Scene("rows_gzip", "CSR, gzip", "rows", cells, "f4", (0,), 64, with_stage(rows), {**anndata, **gzip}),
        Scene("pbmc68k", "CSR, 700 cells of pbmc68k, gzip", "rows", (700, 765), "f4", (0,), 64, rows, gzip, values=249,
              real="scanpy/datasets/10x_pbmc68k_reduced.h5ad:raw.X"),
    ]  # fmt: skip
    of = {one.name: one for one in found}
    found += [
        replace(of["crops"], name="crops_192", variants=(192,), batch=4, crops=64),
        replace(of["crops_gzip"], name="crops_192_gzip", variants=(192,), batch=4, crops=64),
        replace(
            of["rows"], name="rows_million", title="CSR, a million rows", shape=(1_000_000, GENES),
            peers=tuple(peer for peer in of["rows"].peers if peer != "ram"),
        ),
        on(of["clips"], "slowed", (8192, *frames[1:]), ("solar", "h5py", "lance")),
        on(of["clips_gzip_16"], "slowed", (8192, *frames[1:]), ("solar", "h5py", "lance")),
        on(of["crops_gzip"], "slowed", (256,) * 3, ("solar", "h5py", "b2nd", "zarr")),
        on(of["rows_gzip"], "slowed", (10_000, GENES), ("solar", "h5py", "anndata", "scdataset")),
        on(of["clips"], "cold", of["clips"].shape, clips[:-1]),
        on(of["crops_gzip"], "cold", volume, crops),
        on(of["rows"], "cold", cells, rows[:5]),
    ]  # fmt: skip
    return {one.name: one for one in found}


def with_stage(peers: Iterable[str]) -> tuple[str, ...]:
    """Also solar with a stage on the same disk, which keeps chunks decoded."""
    return tuple(one for peer in peers for one in ((peer, "solar_stage") if peer == "solar" else (peer,)))


def on(scene: Scene, storage: str, shape: tuple[int, ...], peers: tuple[str, ...]) -> Scene:
    """The first variant of a scene, of crops the smallest, of data of this shape on a storage."""
    variants = scene.variants[-1:] if scene.kind == "crops" else scene.variants[:1]
    title = f"{scene.title}, {'disks' if storage == 'slowed' else storage}"
    made = {"name": f"{scene.name}_{storage}", "title": title, "storage": storage, "shape": shape}
    return replace(scene, **made, variants=variants, peers=peers)


def scene_of(job: dict[str, Any]) -> Scene:
    """The scene of a job."""
    found = scenes()[job["scene"]]
    return found.small() if job["quick"] else found


def make(scene: Scene, path: Path) -> None:
    with h5py.File(path, "w") as file:
        if scene.real:
            name, _, group = scene.real.partition(":")
            with h5py.File(judges.shipped(name)) as other:  # as it is, but for how old versions of AnnData tell of it
                other.copy(group, file, "X")
            told = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": scene.shape}
            file["X"].attrs.update(told)
            return
        if scene.kind == "rows":
            make_matrix(scene, file)
            return
        data = file.create_dataset("u", scene.shape, scene.dtype, **scene.stored, **filters_of(scene))
        deep = scene.stored.get("chunks", (1,))[0]
        step = max(1, BLOCK_NBYTES * scene.shape[0] // scene.nbytes // deep) * deep  # whole chunks
        rng = np.random.default_rng(1)
        of_kind = {"u1": frames, "f4": fields}[scene.dtype] if scene.kind == "clips" else slabs
        for first in range(0, scene.shape[0], step):
            data[first : first + step] = of_kind(rng, first, (min(step, scene.shape[0] - first), *scene.shape[1:]))
        for edge in scene.variants if scene.kind == "crops" else ():
            room = np.array(scene.shape) - edge
            file[f"centres_{edge}"] = rng.integers(0, room + 1, (scene.crops, 3)) + edge // 2


def filters_of(scene: Scene) -> dict[str, Any]:
    """Of create_dataset. It also tells libhdf5 of them."""
    if scene.filters == "blosc":
        import hdf5plugin  # only where a scene needs it

        return dict(hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE))
    if scene.filters == "codec":
        from solar.filters import Bounded  # only where a scene needs it

        return dict(Bounded(abs=BOUND))
    return {}


def frames(rng: np.random.Generator, first: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """A pattern that moves, with noise: gzip makes about half of it."""
    count, height, width, colours = shape
    y, x, c = np.ogrid[:height, :width, :colours]
    time = np.arange(first, first + count)[:, None, None, None]
    moving = 100 + 60 * np.sin((x + 2 * time) / 9 + c) + 40 * np.cos((y - time) / 7)
    return (moving + rng.integers(0, 12, shape)).astype("u1")


def fields(rng: np.random.Generator, first: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Waves in kelvins with a hundredth of noise, as a packed file unpacked has them."""
    count, height, width = shape
    y, x = np.ogrid[:height, :width]
    time = np.arange(first, first + count)[:, None, None]
    waves = 280 + 15 * np.sin((x + time) / 40) * np.cos((y - 0.3 * time) / 60)
    return (np.round(100 * waves + 10 * rng.standard_normal(shape, "f4")) / 100).astype("f4")


def slabs(rng: np.random.Generator, first: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """A walk along the last axis in whole numbers: gzip makes about a third of it."""
    return np.cumsum(rng.integers(-3, 4, shape, "i1"), axis=2, dtype="f4")


def make_matrix(scene: Scene, file: h5py.File) -> None:
    rng, (rows, genes) = np.random.default_rng(1), scene.shape
    widest = 2 * genes // (3 * VALUES)  # from a column to the next, so that a row ends before the columns do
    lengths = np.clip(VALUES * rng.lognormal(-0.08, 0.4, rows), 1, genes // widest).astype("i8")
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    group = file.create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, genes]})
    group["indptr"] = indptr
    data, indices = (
        group.create_dataset(name, (int(indptr[-1]),), dtype, **scene.stored)
        for name, dtype in (("data", scene.dtype), ("indices", "i4"))
    )
    step = BLOCK_NBYTES // (8 * VALUES)
    for first in range(0, rows, step):
        own = indptr[first : first + step + 1]
        count = int(own[-1] - own[0])
        data[own[0] : own[-1]] = rng.geometric(0.4, count)
        steps = np.cumsum(rng.integers(1, widest, count))
        begins = np.repeat(np.concatenate([[0], steps])[own[:-1] - own[0]], np.diff(own))
        indices[own[0] : own[-1]] = steps - begins - 1


def blocks(scene: Scene, path: Path) -> Iterator[NDArray[Any]]:
    """The rows of `u` one after another, in blocks of whole chunks: what other formats are made of."""
    filters_of(scene)
    with h5py.File(path) as file:
        data = file["u"]
        deep = data.chunks[0] if data.chunks else 1
        step = max(1, BLOCK_NBYTES * scene.shape[0] // scene.nbytes // deep) * deep
        for first in range(0, len(data), step):
            yield data[first : first + step]
