"""The formats that people leave HDF5 for, each by its own reader; run by the Python of build/judges (bench.judges).

lance       Lance, a frame in each row: a list of fixed length, or bytes
b2nd        Blosc2's n-dimensional arrays, chunks of 64³, blocks of 16³ or 32³, lz4
zarr        Zarr 3, chunks of 32³ or 64³, Blosc with lz4
anndata     anndata's own rows of the file as it is; scdataset, scdataset_blocks: scDataset over these, uniform or by
            blocks of 16 rows, as its first steps show it
annbatch    a shuffled collection of Zarr, as its first steps make it, read row by row (an exact shuffle) or, as its
            first steps read it, by blocks of 32; with its Rust codecs, by the Python of build/judges-newer
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench.shapes_data import CHUNK, Scene, blocks
from bench.shapes_part import SLOTS, Fetch, Job, Orders, cut_of, fetched, path_of, scene_of, starts_of

# --- Lance ----


def make_lance(scene: Scene, job: Job, path: Path) -> None:
    import lance
    import pyarrow

    values = int(np.prod(scene.shape[1:]))
    of_one = pyarrow.from_numpy_dtype(np.dtype(scene.dtype))
    fixed = job["form"].endswith("fixed")
    schema = pyarrow.schema([("u", pyarrow.list_(of_one, values) if fixed else pyarrow.large_binary())])

    def batches() -> Iterator[Any]:
        for block in blocks(scene, path_of(job)):
            flat = np.ascontiguousarray(block).reshape(-1)
            if fixed:
                column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), values)
            else:
                offsets = np.arange(len(block) + 1) * (values * scene.itemsize)
                parts = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(flat)]
                column = pyarrow.Array.from_buffers(pyarrow.large_binary(), len(block), parts)
            yield pyarrow.record_batch([column], schema=schema)

    lance.write_dataset(pyarrow.RecordBatchReader.from_batches(schema, batches()), str(path))


def by_lance(job: Job, orders: Orders) -> Iterator[Any]:
    return map(fetch_lance(job), orders.reshape(-1, orders.shape[2]))


def fetch_lance(job: Job) -> Fetch:
    """All rows of a batch at once, each once, in the order of the file."""
    import lance

    scene, (shape, step) = scene_of(job), cut_of(job)
    data = lance.dataset(str(Path(job["folder"]) / job["form"]))
    starts, steps = starts_of(job), np.arange(0, shape[0] * step, step)
    out = np.empty((scene.batch, *shape), scene.dtype)

    def fetch(samples: NDArray[np.int64]) -> Any:
        rows, at = np.unique(starts[samples] + steps, return_inverse=True)
        column = data.take(rows, columns=["u"])["u"].combine_chunks()
        if job["form"].endswith("fixed"):
            found = column.flatten().to_numpy(zero_copy_only=False)
        else:
            begin = np.frombuffer(column.buffers()[1], "i8")[column.offset]
            found = np.frombuffer(column.buffers()[2], scene.dtype, len(rows) * int(np.prod(shape[1:])), begin)
        return np.take(found.reshape(len(rows), *shape[1:]), at.reshape(len(samples), -1), axis=0, out=out, mode="clip")

    return fetch


# --- arrays in boxes ----


def make_b2nd(scene: Scene, job: Job, path: Path) -> None:
    import blosc2

    edge = int(job["form"].rpartition("_")[2])
    coding = {"codec": blosc2.Codec.LZ4, "clevel": 5, "filters": [blosc2.Filter.SHUFFLE], "nthreads": os.cpu_count()}
    volume = np.concatenate([*blocks(scene, path_of(job))])
    blosc2.asarray(volume, chunks=(CHUNK,) * 3, blocks=(edge,) * 3, cparams=coding, urlpath=str(path), mode="w")


def by_b2nd(job: Job, orders: Orders) -> Iterator[Any]:
    import blosc2

    path, threads = str(Path(job["folder"]) / job["form"]), job["setting"]["threads"]
    mapped = {} if job.get("storage") == "slowed" else {"mmap_mode": "r"}  # that mount's files cannot be mapped
    data = blosc2.open(path, mode="r", **mapped, dparams={"nthreads": threads})
    return map(boxes_of(job, data), orders.reshape(-1, orders.shape[2]))


def make_zarr(scene: Scene, job: Job, path: Path) -> None:
    import zarr

    edge = int(job["form"].rpartition("_")[2])
    coding = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
    made = zarr.create_array(
        str(path), shape=scene.shape, chunks=(edge,) * 3, dtype=scene.dtype, compressors=coding, fill_value=0
    )
    made[:] = np.concatenate([*blocks(scene, path_of(job))])


def by_zarr(job: Job, orders: Orders) -> Iterator[Any]:
    import zarr

    data = zarr.open_array(str(Path(job["folder"]) / job["form"]), mode="r")
    return map(boxes_of(job, data), orders.reshape(-1, orders.shape[2]))


def boxes_of(job: Job, data: Any) -> Fetch:
    """Box by box into memory that is used again."""
    (edge, *_), _ = cut_of(job)
    scene, starts = scene_of(job), starts_of(job)
    out = np.empty((scene.batch, *(edge,) * 3), scene.dtype)

    def fetch(samples: NDArray[np.int64]) -> Any:
        for place, corner in enumerate(starts[samples].tolist()):
            out[place] = data[tuple(slice(begin, begin + edge) for begin in corner)]
        return out

    return fetch


# --- rows of sparse matrices ----


class Rows:
    """anndata's matrix in the file, opened in each process that reads it."""

    def __init__(self, job: Job) -> None:
        self.job, self.process, self.matrix = job, -1, None
        self.rows = scene_of(job).shape[0]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: NDArray[np.int64]) -> Any:
        if self.process != os.getpid():
            from anndata.io import sparse_dataset

            cached = self.job["setting"].get("cache")
            more = {} if cached is None else {"rdcc_nbytes": cached, "rdcc_nslots": SLOTS}
            self.matrix = sparse_dataset(h5py.File(path_of(self.job), "r", **more)["X"])
            self.process = os.getpid()
        return self.matrix[rows]


def by_anndata(job: Job, orders: Orders) -> Iterator[Any]:
    return fetched(fetch_anndata, job, orders.reshape(-1, orders.shape[2]))


def fetch_anndata(job: Job) -> Fetch:
    rows = Rows(job)

    def fetch(samples: NDArray[np.int64]) -> Any:
        order = np.argsort(samples)
        return rows[samples[order]][np.argsort(order)]

    return fetch


def by_scdataset(job: Job, orders: Orders, block: int = 1) -> Iterator[Any]:
    """Its own order of each epoch: rows, or blocks of them, shuffled; so many batches are fetched at once."""
    from scdataset import BlockShuffling, scDataset
    from torch.utils.data import DataLoader

    setting = job["setting"]
    made = scDataset(
        Rows(job), BlockShuffling(block_size=block), orders.shape[2], fetch_factor=setting["fetch"], drop_last=True
    )
    workers = setting.get("workers", 0)
    more = {"prefetch_factor": setting["fetch"] + 1, "multiprocessing_context": "fork"} if workers else {}
    for _ in orders:
        yield from DataLoader(made, batch_size=None, num_workers=workers, collate_fn=as_is, **more)


def by_scdataset_blocks(job: Job, orders: Orders) -> Iterator[Any]:
    return by_scdataset(job, orders, 16)


def make_annbatch(scene: Scene, job: Job, path: Path) -> None:
    import pandas
    import zarr
    from annbatch import DatasetCollection
    from anndata.io import write_elem

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    with h5py.File(path.with_suffix(".h5ad"), "w") as file:  # what it wants of a file beside the matrix
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for name, length in zip(("obs", "var"), scene.shape, strict=True):
            write_elem(file, name, pandas.DataFrame(index=np.arange(length).astype(str)))
        file["X"] = h5py.ExternalLink(path_of(job).name, "/X")
    made = DatasetCollection(zarr.open_group(str(path), mode="w"))
    made.add_adatas([path.with_suffix(".h5ad")], dataset_size="2GB", rng=np.random.default_rng(1))


def by_annbatch(job: Job, orders: Orders, block: int = 1) -> Iterator[Any]:
    """Its own order of each epoch: rows, or blocks of them, shuffled; so many batches are fetched at once."""
    import anndata
    import zarr
    from annbatch import DatasetCollection, Loader

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    made, batch = DatasetCollection(zarr.open_group(str(Path(job["folder"]) / job["form"]), mode="r")), orders.shape[2]
    loader = Loader(
        batch_size=batch, chunk_size=block, preload_nchunks=max(1, job["setting"]["fetch"] * batch // block),
        shuffle=True, drop_last=True, preload_to_gpu=False, rng=np.random.default_rng(1),
    )  # fmt: skip
    loader.add_datasets([anndata.io.sparse_dataset(group["X"]) for group in made])
    for _ in orders:
        yield from (one["X"] for one in loader)


def by_annbatch_blocks(job: Job, orders: Orders) -> Iterator[Any]:
    return by_annbatch(job, orders, 32)


def as_is(batch: Any) -> Any:
    return batch
