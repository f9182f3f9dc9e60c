"""solar's DataLoader in a script that uses Hugging Face Accelerate.

    from solar.integrations.accelerate import prepare

    model, optimizer = accelerator.prepare(model, optimizer)
    loader = prepare(accelerator, loader)

accelerator.prepare(loader) would put torch's loader in its place. prepare keeps the native engine, and gives what
Accelerate gives its own loaders: sharding, placement, gradient accumulation, gather_for_metrics, save_state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.state import GradientState
from accelerate.utils import DistributedType, broadcast_object_list, send_to_device, synchronize_rng_states
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from solar.errors import PlanError
from solar.loader.loader import DataLoader
from solar.samplers.samplers import PlanBatchSampler, PlanSampler

log = logging.getLogger("solar")

_END = object()


def prepare(accelerator: Any, loader: DataLoader[Any], *, device_placement: bool | None = None) -> PreparedLoader:
    """Returns the loader as accelerator.prepare would, but still read by solar, and registered with the accelerator.

    Every process must call it. Shuffled or in order, its batches are those of an Accelerator with
    DataLoaderConfiguration(use_seedable_sampler=True): the order is that of PlanSampler, with Accelerate's `data_seed`,
    the seed of the loader's generator, or torch's seed on process 0. A DistributedSampler is kept; other samplers are
    asked on every process, and Accelerate shards their batches.
    """
    if isinstance(loader, PreparedLoader):
        return loader
    refuse_loader(accelerator, loader)
    rank, ranks = data_parallel_rank(accelerator)
    shard = _shard(accelerator, loader, rank, ranks)
    generator = _shared_generator(accelerator, loader) if isinstance(shard, BatchSamplerShard) else None
    kinds = [kind for kind in accelerator.rng_types or [] if generator is not None or kind != "generator"]
    place = accelerator.device_placement if device_placement is None else device_placement
    changes: dict[str, Any] = {} if shard is None else {"batch_sampler": shard}
    if loader.device_transform is not None:
        changes["device_transform"] = None  # it is for what is on the device, where the prepared loader brings it
    prepared = PreparedLoader(
        remade(type(loader), loader, **changes) if changes else loader,
        device=accelerator.device if place else None,
        non_blocking=accelerator.non_blocking,
        processes=ranks,
        synchronized=(kinds, generator),
        device_transform=loader.device_transform,
    )
    log.info("%s: solar's engine reads for process %d of %d of Accelerate", loader.dataset, rank, ranks)
    accelerator.prepare_data_loader(prepared)
    return prepared


class PreparedLoader(DataLoaderShard):  # Accelerate asks for this type; what builds torch's loader is left out
    """What `prepare` returns: a solar DataLoader with everything that Accelerate expects of its own loaders.

    `state_dict` is the position of the training loop, and Accelerate's save_state and load_state keep it.
    """

    _is_accelerate_prepared = True
    use_stateful_dataloader = True  # save_state asks for state_dict then, and load_state gives it back

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        device: torch.device | None,
        non_blocking: bool,
        processes: int,
        synchronized: tuple[list[Any], torch.Generator | None],
        device_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.base_dataloader = loader
        self.device = device
        self.device_transform = device_transform
        self.rng_types, self.synchronized_generator = synchronized
        self.gradient_state = GradientState()
        self.iteration = 0
        self.skip_batches = 0
        self._non_blocking = non_blocking
        self._processes = processes
        self._drop_last = getattr(loader.batch_sampler, "drop_last", loader.drop_last)
        self._state: dict[str, Any] | None = None  # where the consumer is; the loader itself is a batch ahead

    def __iter__(self) -> Iterator[Any]:
        if self.rng_types:
            synchronize_rng_states(self.rng_types, self.synchronized_generator)
        self.set_epoch(self.iteration)
        self._state = None
        self.begin()
        try:
            yield from self._one_ahead(iter(self.base_dataloader))
        finally:
            self.end()

    def _one_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields each batch when the next one is known, so that the last can be marked as the last."""
        batch = next(batches, _END)
        while batch is not _END:
            if self.device is not None:
                batch = send_to_device(batch, self.device, non_blocking=self._non_blocking)
            if self.device_transform is not None:
                batch = self.device_transform(batch)
            self._state = self._position()
            following = next(batches, _END)
            if following is _END:
                self.set_epoch(self.iteration + 1)
                self.end_of_dataloader = True
            yield batch
            batch = following

    def begin(self) -> None:
        """Tells Accelerate which loader is being iterated, and how many samples of its last batch are no padding."""
        self.reset()
        self.remainder = _remainder(self.base_dataloader, self._processes, self.total_batch_size)
        self.gradient_state._add_dataloader(self)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that is iterated next. Each full iteration moves on to the next by itself."""
        if epoch != self.iteration:
            self._state = None
        super().set_epoch(epoch)
        self.base_dataloader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the training loop: after the last batch that it got."""
        return self._position() if self._state is None else dict(self._state)

    def _position(self) -> dict[str, Any]:
        """Returns the loader's position, without the seeds of worker processes if they differ between processes."""
        state = dict(self.base_dataloader.state_dict())
        if self._processes > 1:
            state.pop("base_seed", None)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next iteration continue from there, also with another number of processes."""
        self.base_dataloader.load_state_dict(dict(state_dict))
        if isinstance(self.batch_sampler, PlanShard):
            self.batch_sampler.load_state_dict(state_dict["order"]["sampler"])  # its seed is for later epochs too
        self.iteration = state_dict["epoch"]
        self._state = None

    @property
    def total_batch_size(self) -> int:
        """The samples of all processes in a step; 0 if the batch sampler does not say."""
        shard = self.batch_sampler
        size = getattr(shard, "batch_size", None) or self.base_dataloader.batch_size or 0
        return size if getattr(shard, "split_batches", False) else size * self._processes

    def __reduce__(self) -> Any:
        raise TypeError("a prepared loader belongs to this process's Accelerator: pickle the loader that was prepared")

    def __enter__(self) -> PreparedLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.base_dataloader.close()


class PlanShard(BatchSampler):
    """This process's batches of a PlanSampler's order, cut as Accelerate's BatchSamplerShard cuts them.

    Process r takes the r-th block of each step's samples; PlanSampler's own ranks take every W-th. So gathered batches
    are in the order of the samples, with the padding at the end, where gather_for_metrics cuts it off.
    """

    sampler: PlanSampler

    def __init__(
        self, sampler: PlanSampler, batch_size: int, drop_last: bool, split_batches: bool, even_batches: bool
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.num_processes, self.process_index = sampler.num_replicas, sampler.rank
        self.split_batches = split_batches
        self.even_batches = even_batches  # Accelerate's join_uneven_inputs sets it for a while
        self._samples = 0  # of the whole order, consumed by the newest iteration
        self._resume: tuple[int, int] | None = None  # the epoch, and the samples of it that are consumed already

    @property
    def _block(self) -> int:
        return self.batch_size // self.num_processes if self.split_batches else self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        epoch, start = self._resume or (self.sampler.epoch, 0)
        if epoch != self.sampler.epoch:
            start = 0
        self._resume, self._samples = None, start
        order, block = self.sampler.order(), self._block
        step = block * self.num_processes
        for number in range(self._steps(len(order) - start)):
            first = start + number * step
            positions = range(first + self.process_index * block, first + (self.process_index + 1) * block)
            if not self.even_batches or self.num_processes == 1:
                positions = positions[: max(0, len(order) - positions.start)]
            self._samples = min(first + step, len(order))
            yield order.take(positions, mode="wrap").tolist()
        self._samples = 0  # where the next one begins

    def __len__(self) -> int:
        return self._steps(len(self.sampler.dataset))  # type: ignore[arg-type]

    def _steps(self, samples: int) -> int:
        """Returns how many batches of this many samples the process takes."""
        block, ranks = self._block, self.num_processes
        if self.drop_last:
            return samples // (block * ranks)
        if self.even_batches:
            return -(-samples // (block * ranks))
        return max(0, -(-(samples - self.process_index * block) // (block * ranks)))

    def state_dict(self) -> dict[str, Any]:
        """Returns the order, and how much of it all processes together have used."""
        return {**self.sampler.state_dict(), "samples": self._samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration, and only that, continue from there."""
        self.sampler.load_state_dict({**state, "samples": 0})
        self._resume = state["epoch"], state["samples"]


def remade(kind: type[DataLoader[Any]], loader: Any, **changes: Any) -> DataLoader[Any]:
    """Returns a loader of this kind with the options of another, except for these changes."""
    options = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    options |= {"multiprocessing_context": loader.multiprocessing_context, **changes}
    batches_given = "batch_sampler" in changes or (loader.batch_sampler is not None and loader.batch_size is None)
    # torch takes either what makes the batches, or what they are to be made of.
    for name in ("batch_size", "sampler", "drop_last") if batches_given else ("batch_sampler",):
        options.pop(name)
    return kind(**options)


def refuse_loader(accelerator: Any, loader: Any) -> None:
    """Raises an error for options that only Accelerate's own loaders support."""
    ours = "accelerator.prepare(loader) does, with torch's loader in place of solar's"
    if not isinstance(loader, DataLoader):
        raise TypeError(f"prepare is for a solar.DataLoader, this is {type(loader).__name__}: use accelerator.prepare")
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError(f"{type(loader.dataset).__name__} is iterable, and solar shards by index: {ours}")
    if accelerator.dispatch_batches:
        raise ValueError(f"dispatch_batches=True has process 0 read for all, solar reads on every process: {ours}")
    if accelerator.distributed_type == DistributedType.XLA:
        raise ValueError(f"solar does not feed XLA devices: {ours}")
    if loader.static:
        raise ValueError(
            "static=True overwrites a batch with the next one, and Accelerate reads one ahead: leave it out"
        )


def data_parallel_rank(accelerator: Any) -> tuple[int, int]:
    """Returns this process's data-parallel rank, and their number. Tensor-parallel groups read alike."""
    mesh: Any = getattr(accelerator, "torch_device_mesh", None)
    names = getattr(mesh, "mesh_dim_names", None) or ()
    alike = 1
    for name in {"tp", "cp"}.intersection(names):
        alike *= mesh[name].size()
    return accelerator.process_index // alike, accelerator.num_processes // alike


def _sampler_of(loader: DataLoader[Any]) -> Any:
    return loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)


def _shard(accelerator: Any, loader: DataLoader[Any], rank: int, ranks: int) -> BatchSampler | None:
    """Returns a batch sampler with this process's batches; None if the loader's own is right."""
    batch_sampler: Any = loader.batch_sampler
    sampler = _sampler_of(loader)
    if isinstance(sampler, DistributedSampler):
        if (sampler.rank, sampler.num_replicas) != (rank, ranks):
            raise PlanError(
                f"the loader's sampler shards for rank {sampler.rank} of {sampler.num_replicas}, Accelerate has "
                f"process {rank} of {ranks}: make it with these, or give the loader shuffle=True in its place"
            )
        return None
    plain = type(batch_sampler) in (BatchSampler, PlanBatchSampler)
    if not plain and ranks == 1:
        return None
    if batch_sampler is None:
        raise ValueError(
            "batch_size=None leaves nothing to shard by: give the loader a batch size, or "
            f"sampler=solar.PlanSampler(dataset, num_replicas={ranks}, rank={rank})"
        )
    split, even = accelerator.split_batches, accelerator.even_batches
    size = getattr(batch_sampler, "batch_size", None)
    if split and (size is None or size % ranks):
        raise ValueError(f"split_batches=True: the batch size ({size}) must be a multiple of the {ranks} processes")
    if plain and _is_plain_order(sampler):
        seed = _seed(accelerator, loader) if isinstance(sampler, RandomSampler) else 0
        plan = PlanSampler(loader.dataset, ranks, rank, isinstance(sampler, RandomSampler), seed)
        return PlanShard(plan, batch_sampler.batch_size, batch_sampler.drop_last, split, even)
    return None if ranks == 1 else BatchSamplerShard(batch_sampler, ranks, rank, split, even)


def _is_plain_order(sampler: Any) -> bool:
    """Returns whether a sampler yields each sample of its source once: in order, or shuffled."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _shared_generator(accelerator: Any, loader: DataLoader[Any]) -> torch.Generator | None:
    """Returns the generator of the loader's own sampler, which Accelerate keeps equal on every process."""
    sampler = _sampler_of(loader)
    if hasattr(sampler, "generator") and sampler.generator is None:
        sampler.generator = torch.Generator().manual_seed(_seed(accelerator, loader))
    return getattr(sampler, "generator", None)


def _seed(accelerator: Any, loader: DataLoader[Any]) -> int:
    """Returns one seed for all processes."""
    generator = getattr(_sampler_of(loader), "generator", None) or loader.generator
    seed = getattr(accelerator.dataloader_config, "data_seed", None)
    if seed is None:
        seed = torch.initial_seed() if generator is None else generator.initial_seed()
    seeds = [int(seed) % 2**63]  # the epoch is added, and torch takes 64 bits
    return int(broadcast_object_list(seeds)[0]) if accelerator.num_processes > 1 else seeds[0]


def _remainder(loader: DataLoader[Any], ranks: int, step: int) -> int:
    """Returns how many samples of the last gathered batch come before the padding; 0: a full batch, -1: unknown."""
    shard = loader.batch_sampler
    if getattr(shard, "drop_last", loader.drop_last):
        return 0
    if isinstance(shard, BatchSamplerShard):
        shard = shard.batch_sampler
    sampler: Any = getattr(shard, "sampler", None)
    if type(shard) not in (BatchSampler, PlanBatchSampler, PlanShard) or not hasattr(sampler, "__len__"):
        return -1
    if not isinstance(sampler, DistributedSampler):
        return len(sampler) % step
    samples = sampler.length if isinstance(sampler, PlanSampler) else len(sampler.dataset)  # type: ignore[arg-type]
    if isinstance(shard, PlanShard):
        return samples % step
    if type(sampler) not in (DistributedSampler, PlanSampler):
        return -1
    if sampler.drop_last or getattr(sampler, "tail", "pad") != "pad":
        return 0
    # Each of the last ranks may have repeated one sample; only that of the very last rank is at the end.
    return samples % step if -samples % ranks < 2 else -1
