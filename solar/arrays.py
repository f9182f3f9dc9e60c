"""Loader: batches of an H5Dataset as numpy arrays, in a program that needs no torch.

>>> from solar import H5Dataset
>>> from solar.arrays import Loader
"""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np

from solar.buffer.buffer import LoaderBuffer, begin_pass
from solar.buffer.buffer_memory import AheadSpec
from solar.buffer.buffer_size import Profile, Size
from solar.errors import PlanError, ReadError, refuse_arguments
from solar.io.system.waiting import SAID_AFTER, until
from solar.loader.batch_queue import BatchFuture, BatchQueue, begin_epoch, failed_batch
from solar.loader.batch_sources import Assemble, DirectSource, assembly, direct_source
from solar.loader.stats import FOLDED, Stats
from solar.samplers.epoch_position import EpochPosition, Indices, SamplerState
from solar.samplers.samplers import PlanBatchSampler, PlanSampler
from solar.samples.dataset import H5Dataset
from solar.samples.field_checks import BFLOAT16
from solar.samples.pending import NBYTES_AHEAD, TENSOR_KINDS, PendingBatch, leaves, samples_of
from solar.samples.source import SampleSource, sample_source
from solar.samples.transform import takes_rng, transformed_by_key
from solar.values import World

if TYPE_CHECKING:
    from solar.buffer.buffered_pass import BufferedPass


# What DataLoader takes and Loader does not, and what to do instead. A false value asks for nothing, and is allowed.
TRANSFORMS = "give the dataset a transform, or change batches in the loop"
NOT_OF_ARRAYS = {
    "num_workers": "native threads of this process read; solar.set_num_threads says how many. Leave it out",
    "prefetch_factor": "give ahead=, a number of batches",
    "persistent_workers": "there are no worker processes: leave it out",
    "worker_init_fn": "there are no worker processes: leave it out",
    "multiprocessing_context": "there are no worker processes: leave it out",
    "in_order": "batches always come in order: leave it out",
    "pin_memory": "arrays are in plain memory; jax.device_put(batch) copies one while the step before computes",
    "pin_memory_device": "arrays are in plain memory: leave it out",
    "device": "jax.device_put(batch), or solar.DataLoader(..., device=) with torch",
    "device_transform": "call it with the batch in the loop, or use solar.DataLoader with torch",
    "collate_fn": TRANSFORMS,
    "transform": TRANSFORMS,
    "batch_sampler": "give batch_size=, and sampler=solar.PlanSampler(...) for another order",
    "generator": "give seed=, a number",
    "exchange": "use solar.DataLoader, with torch",
    "service": "use solar.DataLoader, with torch",
    "num_replicas": "give world=solar.World(rank, ranks)",
    "rank": "give world=solar.World(rank, ranks)",
    "tail": "give sampler=solar.PlanSampler(dataset, tail=...)",
    "drop_remainder": "give drop_last=True",
}


class Loader:
    """Goes through the samples of an H5Dataset in batches of numpy arrays. It imports no torch.

    Batches are those of `DataLoader(dataset, batch_size, sampler=PlanSampler(dataset, shuffle=shuffle, seed=seed))`,
    bit for bit, as arrays where those have tensors: dicts and tuples of them as the dataset's fields say, lists of
    text. Each batch has memory of its own. `jax.numpy.from_dlpack`, `torch.from_dlpack` and CuPy take an array without
    a copy.

    `sampler` is a PlanSampler, for any other order it can make, or for another end than padding; `shuffle` and `seed`
    are then its own. `world` says which rank of how many this process is; None asks MPI, torch.distributed or the
    launcher. `drop_last` leaves out a last batch that is smaller. `buffer`, `ahead`, `epochs`, `storage` and `timeout`
    are those of DataLoader. A `transform` of the dataset is called in this process, and what it gives is stacked.

    An error ends the epoch. The next iteration after `load_state_dict(loader.state_dict())` begins at the batch that
    failed.

    >>> import h5py, numpy, tempfile
    >>> from solar import H5Dataset
    >>> path = tempfile.mkdtemp() + "/scan.h5"
    >>> with h5py.File(path, "w") as file:
    ...     file["x"], file["y"] = numpy.zeros((100, 8, 8), "f4"), numpy.arange(100)
    >>> loader = Loader(H5Dataset(path, {"image": "x", "label": "y"}), batch_size=25, shuffle=True, seed=3)
    >>> [batch["image"].shape for batch in loader]
    [(25, 8, 8), (25, 8, 8), (25, 8, 8), (25, 8, 8)]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        sampler: PlanSampler | None = None,
        world: World | None = None,
        buffer: Size = None,
        ahead: int | None = None,
        epochs: int | None = None,
        storage: Profile = None,
        timeout: float = 0,
        **others: Any,
    ) -> None:
        refuse_arguments("solar.arrays.Loader", others, NOT_OF_ARRAYS, signature(Loader).parameters)
        if not isinstance(ahead, SupportsIndex | None):
            raise TypeError(f"ahead={ahead!r:.60}: it is a number of batches, or None")
        if not isinstance(timeout, int | float):
            raise TypeError(f"timeout={timeout!r:.60}: it is a number of seconds, or 0 for no limit")
        if not isinstance(world, World | None):
            raise TypeError(f"world={world!r:.60}: it is a solar.World, such as World(rank, ranks), or None")
        if isinstance(found := sample_source(dataset), str):
            raise TypeError(f"solar.arrays.Loader reads H5Datasets, and {found}: make one, H5Dataset(path, fields)")
        if sampler is None:
            ranks, rank = (None, None) if world is None else (world.ranks, world.rank)
            sampler = PlanSampler(dataset, ranks, rank, shuffle, seed)
        elif type(sampler) is not PlanSampler:
            raise TypeError(f"sampler={type(sampler).__name__}: it is a solar.PlanSampler, or None")
        elif shuffle or seed or world is not None:
            raise ValueError("shuffle, seed and world belong to the sampler where one is given: give them to that")
        if ahead is not None and operator.index(ahead) < 1:
            raise ValueError(f"ahead={ahead}: at least one batch must be read at a time")
        if timeout < 0:
            raise ValueError(f"timeout={timeout}: it is a number of seconds, or 0 for no limit")
        self.dataset, self.sampler, self.batch_size = dataset, sampler, batch_size
        self._ahead, self._timeout = ahead, timeout
        cutter = PlanBatchSampler(sampler, batch_size, drop_last)
        self._sampler_state = SamplerState(sampler, cutter, None, dataset)
        self._sampler_state.as_arrays = True
        self._stats = Stats()
        self._buffered = LoaderBuffer(buffer, epochs, storage, self._stats)

    def __len__(self) -> int:
        """The number of batches of an epoch on this rank."""
        return len(self._sampler_state)

    def __iter__(self) -> Iterator[Any]:
        """Goes through an epoch, or through the rest of the one that a loaded state is in."""
        source = sample_source(self.dataset)
        assert isinstance(source, SampleSource), "the loader was made for it"
        return _epoch(source, self._sampler_state, self._buffered, self._stats, (self._ahead, self._timeout))

    def __repr__(self) -> str:
        sampler = self.sampler
        ranks = f", rank {sampler.rank} of {sampler.num_replicas}" if sampler.num_replicas > 1 else ""
        return f"Loader({self.dataset}, batch_size={self.batch_size}, shuffle={bool(sampler.shuffle)}{ranks})"

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch to go through next. A loaded position is kept if it is of this epoch, else forgotten."""
        self._sampler_state.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as small JSON, the same on all ranks. It counts batches handed out, not those ahead."""
        return self._sampler_state.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration resume where this state was taken, also by a DataLoader with a PlanSampler."""
        self._sampler_state.load(state)

    def stats(self) -> dict[str, Any]:
        """Returns counts since the loader was made: samples, bytes, requests, memory, and seconds waited by cause."""
        return self._stats.as_dict()

    def close(self) -> None:
        """Gives the memory of the buffer back. A new iteration begins another."""
        self._buffered.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _epoch(
    source: SampleSource, state: SamplerState, buffered: LoaderBuffer, stats: Stats, limits: tuple[int | None, float]
) -> Iterator[Any]:
    """Yields the batches of an epoch: as they are read for as long as they need nothing else, then from a queue."""
    (ahead, timeout), indices, asked = limits, Indices(state), time.perf_counter()
    pace = AheadSpec(ahead or source.batches_ahead, 0)
    passes: list[BufferedPass] = []  # one, if batches come from the buffer

    def begin(replaced: ReadError | None) -> None:
        passes.extend(filter(None, [begin_pass(buffered, source, indices, state, pace, replaced)]))
        for one in passes:
            one.draw()
        if not passes:
            queue.indices = indices.known()

    queue = BatchQueue(indices, indices.position, partial(_begin_batch, source, passes, indices.position), stats,
                       pace.ahead, NBYTES_AHEAD if ahead is None else sys.maxsize)  # fmt: skip
    try:
        begin_epoch(begin, source, source, buffered, queue.position, timeout, gone=True)
        stats.waited("plan" if passes else "start", time.perf_counter() - asked)
        assemble = _assembly(source)
        one_pass, limits = (passes[0] if passes else None), (queue.ahead, queue.ahead_nbytes)
        found = assemble and direct_source(one_pass, queue.indices, source, state.batch_size or 0, limits, lent=False)
        for one in passes:
            queue.indices, queue.ahead, queue.ahead_nbytes = one, one.ahead, sys.maxsize  # the buffer has a size
        if assemble and found:
            try:
                yield from _direct_batches(found, assemble, queue.position, stats, timeout)
            finally:
                begun = [_batch(source, queue.position, *one) for one in found.leave()]
                queue.go_on(begun, found.indices, found.begun)
        yield from _queued_batches(queue, source.first, timeout)
        state.finish(queue.position)
        state.set_epoch(queue.position.epoch + 1)
        stats.epoch()
    finally:
        queue.clear()
        for one in passes:
            one.leave()


def _assembly(source: SampleSource) -> Assemble | None:
    """Returns what makes batches that need nothing but to be read; None if they need more."""
    if source.first.transform is not None or any(field is not None for field in leaves(source.first.fields)):
        return None
    return assembly(source, lambda dtype, _: dtype.kind in TENSOR_KINDS, tuple)


def _direct_batches(
    found: DirectSource, assemble: Assemble, position: EpochPosition, stats: Stats, timeout: float
) -> Iterator[Any]:
    """Yields batches as they come, until one needs more or fails; the queue goes on with that one."""
    held, handed_out = (found.ahead + 1) * found.nbytes, 0.0  # the next is begun before one is handed out
    stats.held(held)
    try:
        while True:
            asked = time.perf_counter()
            try:
                came = found.take(0.0) or until(found.take, min(timeout or SAID_AFTER, SAID_AFTER))
            except Exception:  # whatever it is, the queue meets it
                return
            if came is None:
                return
            parts, counts = came
            busy = asked - handed_out if handed_out else 0.0
            handed_out = time.perf_counter()
            stats.noted.append((busy, handed_out - asked, 0.0, 0.0, found.samples, found.nbytes, found.names, counts))
            position.advance()
            if found.ended:
                stats.whole()
            elif len(stats.noted) >= FOLDED:
                stats.fold()
            yield assemble(parts)
            del parts, came  # or their memory would stay until the next is there
    finally:
        stats.held(-held)


def _queued_batches(queue: BatchQueue, dataset: H5Dataset, timeout: float) -> Iterator[Any]:
    """Yields batches that are converted, transformed or cut when they are there."""

    def wait(future: BatchFuture) -> Any:
        try:
            return future.wait(timeout or None)
        finally:
            del future  # or it and an error, whose traceback has this frame, would keep each other alive

    handed_out = 0.0
    while True:
        asked = time.perf_counter()
        queue.stats.busy(asked - handed_out if handed_out else 0.0)
        queue.fill()
        if not queue:
            return
        one, batch = queue.take(wait, dataset, timeout)
        handed_out = time.perf_counter()
        pending, seconds = one.pending, (one.transform_seconds, one.collate_seconds)
        queue.stats.handed_out(one.samples, pending.nbytes, pending.counts(), handed_out - asked, *seconds)
        if queue.drained and not queue:
            queue.stats.whole()
        del one, pending  # or their memory would stay while the batch is used
        yield batch
        del batch


def _begin_batch(
    source: SampleSource, passes: list[BufferedPass], position: EpochPosition, indices: Any, number: int
) -> BatchFuture:
    start = passes[0].start if passes else source.start
    return _batch(source, position, *start(indices, position.epoch))


def _batch(
    source: SampleSource, position: EpochPosition, pending: PendingBatch | Exception, called: Any
) -> BatchFuture:
    if isinstance(pending, Exception):
        return failed_batch(pending, called)
    return BatchFuture(pending, len(called), partial(_make, source.first, position, called))


def _make(dataset: H5Dataset, position: EpochPosition, called: Any, future: BatchFuture, seconds: float | None) -> Any:
    """Waits for a batch, and transforms its samples."""
    pending, transform = future.pending, dataset.transform
    try:
        arrived = pending.arrived(seconds)
        if transform is None:
            return pending.converted(arrived, as_arrays)
        began = time.perf_counter()
        seed = operator.index(position.order.sampler.seed)
        keys = (seed, position.epoch, position.repeat), called
        samples = samples_of(pending.converted(arrived, field_array))
        samples = transformed_by_key(transform, samples, keys, dataset.thread_safe, takes_rng(transform))
        transformed_at = time.perf_counter()
        batch = stacked(samples)
        future.transform_seconds = transformed_at - began
        future.collate_seconds = time.perf_counter() - transformed_at
        return batch
    finally:
        del future, pending


def as_arrays(values: Any) -> Any:
    """Returns the values of a field as numpy has them: an array, a list of text, or the arrays of a ragged batch."""
    return field_array(values) if isinstance(values, np.ndarray) else values.arrays()


def field_array(values: Any) -> Any:
    """Returns arrays of numbers, lists of all else, and batches of samples of unequal length as they are."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype == BFLOAT16:
        try:
            from ml_dtypes import bfloat16  # JAX has it, and numpy lacks it
        except ImportError:
            raise PlanError(
                'a Field has dtype="bfloat16", which numpy lacks: install ml_dtypes (JAX has it), or give another dtype'
            ) from None
        return values.view(bfloat16)
    return values if values.dtype.kind in TENSOR_KINDS else list(values)


def stacked(samples: list[Any]) -> Any:
    """Returns samples as one batch: numbers and arrays in an array, text in a list, dicts and tuples part by part."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: stacked([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(stacked(list(parts)) for parts in zip(*samples, strict=True))
    if hasattr(first, "form") or hasattr(first, "columns"):
        from solar.samples.ragged_batch import batch_of  # only where samples are of unequal length

        return batch_of(samples).arrays()
    if isinstance(first, str | bytes):
        return samples
    try:
        return np.stack(samples)
    except ValueError as error:
        raise ValueError(
            f"samples of the dataset's transform do not make one array ({error}): give it one that makes them "
            "alike, or one that returns a dict of arrays that are"
        ) from None
