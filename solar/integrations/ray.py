"""read_hdf5: HDF5 files as a Ray Dataset, which solar's native threads read on Ray's workers.

    from solar.integrations.ray import read_hdf5

    dataset = read_hdf5("s3://bucket/runs/", {"image": "/entry/data", "label": "/entry/label"})

For Ray Train without Ray Data use solar's DataLoader with a PlanSampler: docs/integrations.md says which is better.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from ray.data import DataContext, Dataset, Datasource, ReadTask, read_datasource
from ray.data.block import BlockMetadata
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray, ArrowVariableShapedTensorType

from solar import H5Dataset, set_num_threads
from solar.errors import PlanError, refuse_arguments
from solar.io.hdf5.paths import Paths
from solar.samples.pending import PendingBatch, leaves
from solar.samples.protocol import nbytes_in
from solar.samples.ragged_batch import RaggedBatch
from solar.values import Layout

PATH = "path"  # the column that `include_paths` adds, as with Ray's own readers
RAY_BLOCK_NBYTES = 128 << 20  # of a block where Ray does not say
TEXT_NBYTES = 32  # of a text of variable length, about
# What H5Dataset, other readers of Ray and torch's loader take and read_hdf5 does not, and what to do instead.
NOT_OF_RAY = {
    "transform": "use Dataset.map",
    "thread_safe": "it belongs to transform: use Dataset.map",
    "collective_open": "only the driver opens files: leave it out",
    "reader": "Ray's workers read natively: leave it out",
    "parallelism": "give override_num_blocks=, as Ray's own readers have it now",
    "columns": "name the datasets to read as fields, the second argument",
    "num_cpus": "give ray_remote_args={'num_cpus': ...}",
    "num_gpus": "reading needs none: leave it out",
    "memory": "give ray_remote_args={'memory': ...}",
    "filesystem": "URLs say where files are: s3://, gs://, az://, https:// (docs/remote.md)",
    "arrow_open_stream_args": "URLs say where files are: s3://, gs://, az://, https:// (docs/remote.md)",
    "file_extensions": "give a pattern as the path, such as 'runs/*.h5'",
    "partitioning": "give include_paths=True, and make columns of the path by Dataset.map",
    "partition_filter": "give the paths to read, or a pattern",
    "ignore_missing_paths": "give the paths that exist",
    "shuffle": "use Dataset.random_shuffle, or randomize_block_order",
    "batch_size": "give it to Dataset.iter_batches or map_batches",
    "num_workers": "give concurrency=, or override_num_blocks=",
    "buffer": "Ray's object store holds blocks: leave it out",
}

Places = NDArray[np.int64]


def read_hdf5(
    paths: Paths,
    fields: Any,
    *,
    include_paths: bool = False,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
    **options: Any,
) -> Dataset:
    """Returns the samples of HDF5 files as a Ray Dataset with a row for each.

    `paths` and `fields` are those of H5Dataset, as are all further arguments (`samples`, `where`, `stage`,
    `page_cache`, ...). Each field is a column: named by its key in a dict, else by its dataset, and by several names
    with slashes between them where dicts are nested. Numbers are a plain column; arrays are tensors, of variable shape
    where samples differ in length; text is bytes, as it is stored. `include_paths` adds a column "path" with the file
    of each sample.

    Only this process reads the files' metadata. Each of Ray's tasks reads its own rows, in blocks of Ray's target size
    that begin where a chunk does. `override_num_blocks`, `concurrency` and `ray_remote_args` are those of Ray's
    readers; there are fewer blocks than you ask for if the files have fewer chunks. A task reads with as many threads
    as Ray assigns it cores, unless SOLAR_THREADS says otherwise. Its errors are solar's, as well as Ray's RayTaskError.
    """
    names = signature(read_hdf5).parameters.keys() | signature(H5Dataset).parameters.keys()
    foreign = {name: value for name, value in options.items() if name in NOT_OF_RAY or name not in names}
    refuse_arguments("read_hdf5", foreign, NOT_OF_RAY, names - NOT_OF_RAY.keys())
    options = {name: value for name, value in options.items() if name not in foreign}
    source = H5Datasource(H5Dataset(paths, fields, **options), names_of(fields), include_paths)
    return read_datasource(
        source, override_num_blocks=override_num_blocks, concurrency=concurrency, ray_remote_args=ray_remote_args
    )


def names_of(fields: Any, above: str = "") -> list[str]:
    """Returns the names of the columns, in the order of `leaves`.

    >>> names_of({"image": "/a/x", "labels": {"phase": "/b", "good": "/c"}}), names_of(("/a/x", "/b"))
    (['image', 'labels/phase', 'labels/good'], ['a/x', 'b'])
    """
    if isinstance(fields, Mapping):
        names = [name for key, part in fields.items() for name in names_of(part, f"{above}{key}/")]
    elif isinstance(fields, tuple | list):
        parts = [(part, above) if not above else (part, f"{above}{i}/") for i, part in enumerate(fields)]
        names = [name for part, prefix in parts for name in names_of(part, prefix)]
    else:
        names = [above.rstrip("/") or getattr(fields, "name", fields).strip("/")]
    if not above and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(f"two fields would be a column {twice!r}: name the fields by a dict")
    return names


class H5Datasource(Datasource):
    """An H5Dataset as Ray's Datasource. Ray pickles it; it has no open file."""

    def __init__(self, dataset: H5Dataset, names: list[str], include_paths: bool = False) -> None:
        super().__init__()
        if include_paths and PATH in names:
            raise PlanError(f"include_paths=True adds a column {PATH!r}, and a field has this name: name it otherwise")
        self._dataset, self._columns = dataset, Columns(tuple(names), include_paths)
        none = np.empty(0, np.int64)
        values = _values(dataset.start_batch(none))  # nothing is read: types and shapes
        self._schema = self._columns.table(dataset, none, values).schema
        self._nbytes_of_row = _nbytes_of_row(dataset, values)

    def get_name(self) -> str:
        """Returns the name of its tasks."""
        return "HDF5"

    def estimate_inmemory_data_size(self) -> int:
        """Returns the bytes of all rows; of samples of unequal length by their average, of text a guess."""
        return len(self._dataset) * self._nbytes_of_row

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Returns at most this many tasks, each with the blocks that it reads."""
        block_nbytes = (data_context or DataContext.get_current()).target_max_block_size or RAY_BLOCK_NBYTES
        bounds = block_bounds(self._dataset, max(1, block_nbytes // self._nbytes_of_row), parallelism)
        blocks = len(bounds) - 1
        tasks = np.linspace(0, blocks, min(max(1, parallelism), blocks) + 1).astype(int).tolist()
        shared = ray.put(self._dataset)  # once, not with each task: the places of many chunks are large
        return [self._task(shared, bounds[first : last + 1], per_task_row_limit) for first, last in pairwise(tasks)]

    def _task(self, shared: Any, bounds: Places, limit: int | None) -> ReadTask:
        rows = int(bounds[-1] - bounds[0])
        facts = BlockMetadata(
            num_rows=rows,
            size_bytes=rows * self._nbytes_of_row,
            input_files=_files_of_task(self._dataset, bounds),
            exec_stats=None,
        )
        read = partial(read_blocks, shared, self._columns, bounds.tolist())
        return ReadTask(read, facts, schema=self._schema, per_task_row_limit=limit)


class Columns(NamedTuple):
    """What a block has: a column for each field, and the file of each sample."""

    names: tuple[str, ...]
    include_paths: bool

    def table(self, dataset: H5Dataset, samples: Places, values: list[Any]) -> pa.Table:
        """Returns the values of the fields of these samples as a block, without a copy where Arrow allows."""
        columns = dict(zip(self.names, map(arrow_column, values), strict=True))
        if self.include_paths:
            files = dataset.locate(samples).file if len(samples) else []
            columns[PATH] = pa.array(files, pa.string())
        return pa.table(columns)


def read_blocks(shared: Any, columns: Columns, bounds: list[int]) -> Iterator[pa.Table]:
    """Yields the blocks of a task. While Ray takes one, the next is read."""
    if "SOLAR_THREADS" not in os.environ:
        # An AssertionError is Ray's in the driver, where nothing is assigned; a PlanError means that an earlier task
        # has read in this process.
        with suppress(AssertionError, PlanError):
            cores = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
            set_num_threads(max(1, math.ceil(cores)))
    dataset: H5Dataset = ray.get(shared)
    begun: list[tuple[Places, PendingBatch]] = []
    for begin, end in pairwise(bounds):
        samples = np.arange(begin, end)
        begun.append((samples, dataset.start_batch(samples)))
        if len(begun) > 1:
            yield _make_table(dataset, columns, *begun.pop(0))
    yield _make_table(dataset, columns, *begun.pop())


def _make_table(dataset: H5Dataset, columns: Columns, samples: Places, pending: PendingBatch) -> pa.Table:
    return columns.table(dataset, samples, _values(pending))


def _values(pending: PendingBatch) -> list[Any]:
    """Waits for a batch and returns the values of its fields: arrays, and batches of samples of unequal length."""
    return leaves(pending.converted(pending.arrived(), lambda values: values))


def arrow_column(values: Any) -> pa.Array:
    """Returns the values of a field as a column."""
    if isinstance(values, RaggedBatch):
        return _ragged_column(values)
    if not isinstance(values, np.ndarray):
        raise PlanError("rows of a sparse matrix are no column: give CSR(..., dense=True)")
    if values.dtype.kind in "SO" and values.ndim == 1:
        return pa.array([bytes(one) for one in values], pa.binary())
    if values.dtype.kind not in "biuf":
        raise PlanError(
            f"values of {values.dtype} with the shape {values.shape[1:]} are no column of Arrow's: read a part of them "
            'by Field(name, column=...), or with another type by Field(name, dtype="float32")'
        )
    return pa.array(values) if values.ndim == 1 else ArrowTensorArray.from_numpy(values)


def _ragged_column(batch: RaggedBatch) -> pa.Array:
    if batch.form.batch != "jagged":
        what = f"leave batch={batch.form.batch!r} out"
        raise PlanError(f"samples of unequal length are tensors of variable shape: {what}")
    if len(batch) == 0:
        return pa.array([], ArrowVariableShapedTensorType(pa.from_numpy_dtype(batch.values.dtype), batch.values.ndim))
    return ArrowVariableShapedTensorArray.from_numpy([np.asarray(one) for one in batch])


def block_bounds(dataset: H5Dataset, rows: int, blocks: int) -> Places:
    """Returns where blocks begin, and at last where they end: at chunks of the largest field if samples are rows.

    Blocks have about this many `rows` at most, and there are at least so many, unless chunks are larger or fewer.
    """
    count = len(dataset)
    blocks = min(max(blocks, -(-count // rows), 1), max(1, count))
    bounds = np.linspace(0, count, blocks + 1).astype(np.int64)
    kinds = zip(leaves(dataset.layouts), leaves(dataset.extents), strict=True)
    in_rows = [layout for layout, own in kinds if own is None]
    chunked = [layout for layout in in_rows if len(layout.part_file) and not layout.per_file]
    if len(bounds) > 2 and chunked:
        inside = dataset.checked(bounds[1:-1])
        inside = nearest_chunks(max(chunked, key=lambda layout: layout.stored_nbytes), inside)
        bounds[1:-1] = inside if dataset.chosen is None else np.searchsorted(dataset.chosen, inside)
    return np.unique(bounds)


def nearest_chunks(layout: Layout, rows: Places) -> Places:
    """Returns for each row the nearest at which a chunk begins, or a file."""
    part = np.searchsorted(layout.part_first, rows, side="right") - 1
    chunk = np.array([max(1, form.chunk[0]) if form.chunk else 1 for form in layout.forms])[layout.part_form[part]]
    first, end = layout.part_first[part], layout.part_first[part + 1]
    nearest: Places = first + (rows - first + chunk // 2) // chunk * chunk
    return np.minimum(nearest, end)


def _nbytes_of_row(dataset: H5Dataset, values: list[Any]) -> int:
    """Returns the average bytes of a row in memory, at least 1. The values are those of no samples."""
    if len(dataset) == 0:
        return 1
    kinds = zip(leaves(dataset.layouts), leaves(dataset.extents), strict=True)
    unequal = [nbytes_in(own, layout) for layout, own in kinds if own is not None and own.lengths is not None]
    return max(1, sum(unequal) + sum(map(_value_nbytes, values)))


def _value_nbytes(values: Any) -> int:
    """Returns the bytes of a value of a field; 0 if they differ in length, which `nbytes_in` knows."""
    if not isinstance(values, np.ndarray):
        return 0
    return TEXT_NBYTES if values.dtype.hasobject else math.prod(values.shape[1:]) * values.itemsize


def _files_of_task(dataset: H5Dataset, bounds: Places) -> tuple[str, ...]:
    """Returns the files of a task's samples."""
    if bounds[0] == bounds[-1]:
        return ()
    first, last = dataset.lines(dataset.checked([bounds[0], bounds[-1] - 1])).files
    return dataset._first()[0].files[first : last + 1]
