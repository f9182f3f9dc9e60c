"""PlanSampler and PlanBatchSampler: torch's order over the ranks, which can be resumed and can use each sample once."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeGuard, get_args
from weakref import WeakValueDictionary

import numpy as np

from solar import _native
from solar.errors import PlanError, renamed_arguments
from solar.io.channels import detect
from solar.samplers.orders import EpochOrder
from solar.samplers.orders import Indices as Indices
from solar.samplers.states import check_by, check_order
from solar.samples.torch_bases import MODULE, torch_base

if TYPE_CHECKING:
    import torch
    from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler

    from solar.samplers.mixture import Mixture
    from solar.samplers.order_arguments import Amount, Column, Order, PerClass

    TorchDistributedSampler = DistributedSampler[int]
    TorchBatchSampler = BatchSampler
else:
    TorchDistributedSampler = torch_base("DistributedSampler")
    TorchBatchSampler = torch_base("BatchSampler")

_CALLS = 6  # Accelerate's iterator is two or three calls up


def refuse_second_sharding(ranks: int) -> None:
    """Raises ValueError if Accelerate's BatchSamplerShard wraps a sampler that already shards over `ranks`.

    Each process would take a part of a part, and most samples would never be used.
    """
    frame = sys._getframe(1) if ranks > 1 else None
    for _ in range(_CALLS):
        if frame is None:
            return
        # Compare the code first: reading a frame's variables keeps them alive as long as the frame.
        if frame.f_code.co_qualname.startswith("BatchSamplerShard."):
            processes = getattr(frame.f_locals.get("self"), "num_processes", 1)
            if processes > 1:
                raise ValueError(
                    f"the samples would be sharded twice: by their sampler over {ranks} processes, and once more by "
                    f"Accelerate over {processes}, so that most of them would be left out. Give the loader to "
                    "solar.integrations.accelerate.prepare(accelerator, loader) instead of accelerator.prepare, or "
                    "give it shuffle=True in place of the sampler"
                )
        frame = frame.f_back


Tail = Literal["pad", "drop", "exact"]

STATED = {"epoch", "seed", "shuffle", "length", "samples"}  # of a state
_BLOCK = 4096  # samples made Python ints at a time
_OTHERWISE = 2**32 // 20  # from so many samples on torch shuffles in another way, which is left to it

# The orders that somebody iterates or holds now, by what they are of and seed, so that each is made once.
_orders: WeakValueDictionary[tuple[Any, ...], Indices] = WeakValueDictionary()


class PlanSampler(TorchDistributedSampler):
    """torch's DistributedSampler, index for index, which can be resumed at another number of ranks.

    Without `num_replicas` and `rank`, solar.io.channels.detect finds them: torch.distributed, MPI, launcher, or alone.
    `tail` says what happens if the samples do not divide by the ranks: "pad" repeats some from the start of the order
    (torch's default), "drop" leaves them out (torch's drop_last=True), "exact" gives each sample to exactly one rank.

    All ranks share one order per epoch. Rank r of W takes every W-th sample of it, beginning with the r-th.

    The order is torch's shuffle, or one of these. Each is a function of seed, epoch and position alone, so it is the
    same on any number of ranks, known ahead, and resumed from a state of a few numbers. An epoch has `num_samples`
    samples, or as many as the dataset. Arrays may also be the name of a dataset in the files of an H5Dataset.

    - `weights`: samples are drawn with replacement, each as often as its weight says.
    - `labels`: by class. per_class="equal" has each class equally often, a dict or list of weights as often as they
      say. Every sample of a class comes once before any comes twice, also from epoch to epoch.
    - `groups`: a number or name of each sample's group. Groups are shuffled, all of a group comes in a row.
    - `order`: an array of samples, or a function of the epoch that gives one. order="blocks" or "blocks:4096" shuffles
      blocks of 1,024 or 4,096 samples, and within each: for who has no memory, and far from a shuffle.
    - `order="mixed"`: blocks of `block` neighbouring samples, shuffled, and then the samples of each `window`. For who
      has memory for a window. Both are numbers of samples, bytes ("1MiB") or shares of the data (0.01). A block ends
      where a chunk does. With `groups` whole groups move; with `study` all its jobs have the blocks in one order.
    - `by_length`: how long each sample is, or True for those of Ragged fields. `run` samples of similar length come in
      a row, so that batches need little padding: give the samples of a step, batch_size times the number of ranks.
    - `study`: a number that several jobs have in common, each with its own seed. Each has a shuffle of its own, and all
      want the same samples within a stretch of 5 % of an epoch; study=(7, 0.1): of 10 %.
    - A solar.Mixture as the dataset: its sources by their shares.

    >>> [list(PlanSampler(range(5), ranks, 0, shuffle=False)) for ranks in (1, 2)]
    [[0, 1, 2, 3, 4], [0, 2, 4]]
    >>> [list(PlanSampler(range(5), 2, rank, shuffle=False, tail="exact")) for rank in (0, 1)]
    [[0, 2, 4], [1, 3]]
    """

    by: EpochOrder | None = None  # of those that 0.1.0 pickled, too

    @renamed_arguments(together="groups")
    def __init__(
        self,
        dataset: Dataset[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        tail: Tail | None = None,
        weights: Column = None,
        num_samples: int | None = None,
        labels: Column = None,
        per_class: PerClass = None,
        groups: Column = None,
        order: Order = None,
        by_length: Column | bool = None,
        run: int | None = None,
        study: int | tuple[int, float] | None = None,
        block: Amount = None,
        window: Amount = None,
    ) -> None:
        if tail is not None and tail not in get_args(Tail):
            raise ValueError(f"tail={tail!r}: it is one of {', '.join(map(repr, get_args(Tail)))}")
        if drop_last and tail not in (None, "drop"):
            raise ValueError(f"drop_last=True and tail={tail!r} contradict each other: leave one of them out")
        if num_replicas is None or rank is None:
            world = detect()
            num_replicas = world.ranks if num_replicas is None else num_replicas
            rank = world.rank if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        drop = drop_last if tail is None else tail == "drop"
        # What torch's DistributedSampler sets. It is not called, for it is there only where torch is imported.
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        if not isinstance(seed, SupportsIndex):
            raise TypeError(f"seed={seed!r:.60}: it is a whole number, which all ranks give alike")
        self.epoch, self.drop_last, self.shuffle, self.seed = 0, drop, shuffle, seed
        self.tail: Tail = tail or ("drop" if drop else "pad")
        by = {"weights": weights, "labels": labels, "per_class": per_class, "groups": groups, "order": order}
        by |= {"by_length": by_length, "run": run, "study": study, "block": block, "window": window}
        from solar.samplers.order_arguments import choose_order

        self.by = choose_order(dataset, by, num_samples, shuffle)  # None: torch's shuffle
        self.total_size = self._size(self.length)
        self.num_samples = self.total_size // num_replicas
        if self.tail == "exact":
            self.num_samples = len(range(rank, self.total_size, num_replicas))
        self._start = 0  # position in the order where the next iteration begins
        self._drawn = _Drawn(0)

    @classmethod
    def like(cls, sampler: DistributedSampler[Any]) -> PlanSampler:
        """Returns a PlanSampler that iterates exactly as this torch sampler does now."""
        from torch.utils.data import DistributedSampler  # who has such a sampler has torch

        if type(sampler) is not DistributedSampler:
            raise TypeError(f"{type(sampler).__name__} may iterate otherwise than torch's DistributedSampler")
        ours = cls(
            sampler.dataset, sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed, sampler.drop_last
        )
        ours.set_epoch(sampler.epoch)
        return ours

    def __iter__(self) -> Iterator[int]:
        start, drawn = self._begin()
        order, end = self.order(), start + self._taken(start)
        return self._walk(order, range(start, end, self.num_replicas * _BLOCK), end, drawn)

    def _walk(self, order: Indices, blocks: range, end: int, drawn: _Drawn) -> Iterator[int]:
        ranks = self.num_replicas
        for begin in blocks:
            for index in self._share(order, begin, min(begin + blocks.step, end)).tolist():
                drawn.samples += ranks  # state_dict stops at the end
                yield index
        drawn.samples = len(order)  # what is dropped is not left for later

    @property
    def length(self) -> int:
        """The number of samples in an epoch of all ranks, whatever the tail."""
        return len(self.dataset) if self.by is None else self.by.length  # type: ignore[arg-type]

    def order(self) -> Indices:
        """Returns the read-only order of the present epoch over all ranks, without what the tail changes."""
        samples = len(self.dataset)  # type: ignore[arg-type]
        if self._size(self.length) != self.total_size or (self.by is not None and self.by.samples != samples):
            raise PlanError(
                f"the dataset has {samples} samples now, and had others when the sampler was made for "
                f"total_size={self.total_size} over {self.num_replicas} ranks: make a new sampler"
            )
        seed, epoch = operator.index(self.seed), operator.index(self.epoch)
        # torch's shuffle knows of seed and epoch only their sum.
        key = (samples, seed + epoch if self.shuffle else None) if self.by is None else (self.by, seed, epoch)
        order = _orders.get(key)
        if order is None:
            order = _orders[key] = distributed_order(*key) if self.by is None else self.by.whole(seed, epoch)
        return order

    def counts(self, samples: int | None = None) -> dict[str, int]:
        """Returns how many of each class, or of each source of a mixture, are among the first `samples` of the epoch,
        or all.

        >>> PlanSampler(range(5), labels=[0, 0, 0, 0, 1], per_class="equal", num_samples=8).counts()
        {'0': 4, '1': 4}
        """
        return {} if self.by is None else self.by.counts(self.epoch, self.length if samples is None else samples)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch to iterate next. Changing the epoch cancels a resume."""
        epoch = operator.index(epoch)
        if epoch != self.epoch:
            self._start, self._drawn = 0, _Drawn(0)
        self.epoch = epoch

    def resume(self, samples: int) -> None:
        """Makes only the next iteration begin after the first `samples` of the order of all ranks.

        The present ranks share the rest of the order, however many ranks there were before.
        """
        samples = operator.index(samples)
        if not 0 <= samples <= self.length:
            raise ValueError(f"resume after {samples} samples: an epoch has {self.length}")
        self._start, self._drawn = samples, _Drawn(samples)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the newest iteration, for JSON: equal on ranks that drew equally many."""
        return {
            **self.facts(),
            "length": len(self.dataset),  # type: ignore[arg-type]
            "samples": min(self._drawn.samples, self.length),
        }

    def facts(self) -> dict[str, Any]:
        """Returns what determines the order of the epoch, for JSON."""
        seed, epoch = operator.index(self.seed), operator.index(self.epoch)
        by = {} if self.by is None else self.by.saved_facts(seed, epoch)
        return {"epoch": epoch, "seed": seed, "shuffle": bool(self.shuffle), **by}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores epoch, seed and shuffling from a saved state, and resumes at its position."""
        if not isinstance(state, Mapping):
            raise PlanError(f"this is no state of a PlanSampler, but {type(state).__name__}")
        missing = sorted(STATED - state.keys())
        if missing:
            raise PlanError(f"this is no state of a PlanSampler: it has {sorted(state)}, and lacks {missing}")
        length = len(self.dataset)  # type: ignore[arg-type]
        if state["length"] != length:
            raise PlanError(
                f"the state is of a dataset of {state['length']} samples, this one has {length}: their orders have "
                f"nothing in common. Resume with the dataset that was used, or begin a new run without the state"
            )
        check_order(state, ("seed", "epoch", "samples"))
        epoch, seed = operator.index(state["epoch"]), operator.index(state["seed"])
        check_by(state, {} if self.by is None else self.by.saved_facts(seed, epoch))
        if state["samples"] > self.length:
            raise PlanError(f"the state is damaged: it is behind {state['samples']} samples of {self.length}")
        self.resume(state["samples"])
        self.epoch, self.seed, self.shuffle = epoch, seed, bool(state["shuffle"])

    def _begin(self) -> tuple[int, _Drawn]:
        """Returns the start of the iteration that begins now, and its counter. The next iteration is a full one."""
        refuse_second_sharding(self.num_replicas)
        start, self._start = self._start, 0
        self._drawn = _Drawn(start)
        return start, self._drawn

    def _size(self, samples: int) -> int:
        """Returns how many samples all ranks take together if there are `samples`, padding included."""
        if self.tail == "exact":
            return samples
        ranks = self.num_replicas
        return samples // ranks * ranks if self.tail == "drop" else -(-samples // ranks) * ranks

    def _taken(self, start: int) -> int:
        """Returns how many samples all ranks take together from `start`."""
        return self._size(self.length - start)

    def _share(self, order: Indices, begin: int, end: int) -> Indices:
        """Returns this rank's samples of order[begin:end]. Beyond the end, the order repeats as padding."""
        if end <= len(order):
            return order[begin + self.rank : end : self.num_replicas]
        return order.take(np.arange(begin + self.rank, end, self.num_replicas), mode="wrap")


class PlanBatchSampler(TorchBatchSampler):
    """torch's BatchSampler; over a PlanSampler each step of all ranks is one slice of the order.

    Its batches are torch's. With the sampler's tail="exact" each sample is used exactly once, yet all ranks have the
    same number of batches: the last two steps share the remaining samples so that each rank has one in both. Where that
    is impossible (batch_size=1, or fewer samples than ranks) the last batch of some ranks is empty.

    >>> [list(PlanBatchSampler(PlanSampler(range(9), 2, r, False, tail="exact"), 2, False)) for r in (0, 1)]
    [[[0, 2], [4, 6], [7]], [[1, 3], [5], [8]]]
    """

    def __init__(self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool) -> None:
        _check_cutting(batch_size, drop_last)
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last  # as torch's BatchSampler does
        if drop_last and _is_planned(sampler) and sampler.tail == "exact":
            raise ValueError(
                'drop_last=True leaves samples out, and the sampler\'s tail="exact" leaves none out: give drop_last='
                'False, or a sampler with tail="drop"'
            )

    def __iter__(self) -> Iterator[list[int]]:
        if not _is_planned(self.sampler):
            samples = iter(self.sampler)
            while batch := [*islice(samples, self.batch_size)]:
                if len(batch) == self.batch_size or not self.drop_last:
                    yield batch
            return
        for planned in self.arrays():
            yield planned.tolist()

    def arrays(self) -> Iterator[Indices]:
        """Yields the batches over a PlanSampler as arrays, for readers of many samples at once."""
        sampler = self.sampler
        assert _is_planned(sampler)
        start, drawn = sampler._begin()
        order, edges = sampler.order(), self._edges(start)
        for step in range(len(edges) - 1):
            begin, end = int(edges[step]), int(edges[step + 1])
            drawn.samples = end
            yield sampler._share(order, begin, end)
        drawn.samples = len(order)

    def at_once(self) -> tuple[Indices, Indices]:
        """Returns what `arrays` yields in one go: the samples of this rank's batches, and where each batch begins."""
        sampler = self.sampler
        assert _is_planned(sampler)
        start, drawn = sampler._begin()
        order, edges, ranks = sampler.order(), self._edges(start), sampler.num_replicas
        drawn.samples = len(order)
        if ranks == 1:
            return self.of_all(start)
        # But for the last two, steps have equally many samples of each rank.
        even = max(0, len(edges) - 3)
        uneven = [sampler._share(order, *edges[step : step + 2].tolist()) for step in range(even, len(edges) - 1)]
        sizes = np.full(len(edges) - 1, self.batch_size, np.int64)
        sizes[even:] = [len(batch) for batch in uneven]
        samples = np.concatenate([sampler._share(order, int(edges[0]), int(edges[even])), *uneven])
        return samples, np.concatenate(([0], np.cumsum(sizes)))

    def pass_over(self) -> None:
        """Has the PlanSampler begin an iteration, and end it: somebody else draws it."""
        sampler = self.sampler
        assert _is_planned(sampler)
        _, drawn = sampler._begin()
        drawn.samples = sampler.length

    def of_all(self, start: int) -> tuple[Indices, Indices]:
        """Returns the samples of all ranks over a PlanSampler, after the first `start`, and each step's first index in
        them.

        Within a step, rank r of W takes every W-th sample, beginning with the r-th.
        """
        sampler = self.sampler
        assert _is_planned(sampler)
        order, edges = sampler.order(), self._edges(start)
        begin, end = int(edges[0]), int(edges[-1])
        samples = order[begin:end] if end <= len(order) else order.take(np.arange(begin, end), mode="wrap")
        return samples, edges - begin

    def __len__(self) -> int:
        return self._steps(*self._shared(0))

    def bounds(self, start: int = 0) -> Indices:
        """Returns how many samples of the shared order are consumed after 0, 1, 2, ... batches, beginning at `start`.

        Padding does not count. Over a sampler that is not a PlanSampler, the order is what that sampler yields.
        """
        samples = self.sampler.length if _is_planned(self.sampler) else len(self.sampler)  # type: ignore[arg-type]
        if not 0 <= start <= samples:
            raise ValueError(f"bounds from sample {start} on: the order has {samples}")
        return np.minimum(self._edges(start), samples)

    def _shared(self, start: int) -> tuple[int, int]:
        """Returns the number of ranks, and of the samples that they share from `start` on."""
        if _is_planned(self.sampler):
            return self.sampler.num_replicas, self.sampler._taken(start)
        return 1, len(self.sampler) - start  # type: ignore[arg-type]

    def _steps(self, ranks: int, taken: int) -> int:
        step = ranks * self.batch_size
        return taken // step if self.drop_last else -(-taken // step)

    def _edges(self, start: int) -> Indices:
        """Returns the boundaries between steps, in the padded order, of an iteration that begins at `start`."""
        ranks, taken = self._shared(start)
        edges = np.arange(self._steps(ranks, taken) + 1, dtype=np.int64) * (ranks * self.batch_size)
        np.minimum(edges, taken, out=edges)
        exact = _is_planned(self.sampler) and self.sampler.tail == "exact"
        # The last step has too few samples for all ranks, so the step before gives it some.
        if exact and len(edges) > 2 and edges[-1] - edges[-2] < ranks and self.batch_size > 1:
            edges[-2] = taken - ranks
        return edges + start


def _check_cutting(batch_size: Any, drop_last: Any) -> None:
    """Raises ValueError, in the words of torch's BatchSampler, for impossible values."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
    if not isinstance(drop_last, bool):
        raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")


def check_no_rank_is_without(cutter: object) -> None:
    """Raises PlanError if the last batch of some rank is empty: an exact end with too few samples for all ranks."""
    if type(cutter) is not PlanBatchSampler or not _is_planned(cutter.sampler) or cutter.sampler.tail != "exact":
        return
    edges = cutter._edges(0)
    if len(edges) > 1 and int(edges[-1] - edges[-2]) < cutter.sampler.num_replicas:
        raise PlanError(
            'with tail="exact" some ranks get an empty batch here (batch_size=1, or fewer samples than ranks), of '
            "which a transform or a collate_fn can make nothing: give batch_size=2 or more, fewer ranks, or "
            'tail="pad"'
        )


@dataclass
class _Drawn:
    """How much of the order an iteration has consumed. The iterator and the sampler's state share it."""

    samples: int


def _is_planned(sampler: object) -> TypeGuard[PlanSampler]:
    """Returns whether the sampler yields its known order. A subclass may have an iteration of its own."""
    return isinstance(sampler, PlanSampler) and type(sampler).__iter__ is PlanSampler.__iter__


def ascending(samples: int) -> Indices:
    """Returns 0, 1, 2, …, in 32 bits if that is enough."""
    return np.arange(samples, dtype=np.int32 if samples < 1 << 31 else np.int64)


def permutation(samples: int, generator: torch.Generator) -> Indices:
    """Returns torch.randperm, in 32 bits if that is enough: torch draws the same numbers for both kinds of integers."""
    import torch  # of a generator of torch's, or for so many samples that torch shuffles in another way

    dtype = torch.int32 if samples < 1 << 31 else torch.int64
    made: Indices = torch.randperm(samples, generator=generator, dtype=dtype, device="cpu").numpy()
    return made


def seeded(samples: int, seed: int) -> Indices:
    """Returns the `permutation` of a new generator with this seed. Native code makes it in a third of the time."""
    if 0 < samples < _OTHERWISE and 0 <= seed < 2**63 and (MODULE not in sys.modules or _as_torch()):
        found: Indices = _native.randperm(samples, seed)
        return found
    try:
        import torch  # which draws in another way for so many
    except ModuleNotFoundError:
        raise PlanError(
            f"to shuffle {samples:,} samples with seed={seed} needs PyTorch: pip install torch, or give "
            "a seed from 0 on, and fewer than 214 million samples"
        ) from None

    return permutation(samples, torch.Generator("cpu").manual_seed(seed))


@cache
def _as_torch() -> bool:
    """Returns whether this torch still shuffles as the native code does, by a small and a large example."""
    import torch  # the program has imported it

    numbers = [(1, 0), (2, 1), (1000, 2**40 + 3)]
    return all(
        np.array_equal(_native.randperm(*one), permutation(one[0], torch.Generator("cpu").manual_seed(one[1])))
        for one in numbers
    )


def distributed_order(samples: int, seed: int | None) -> Indices:
    """Returns the order of torch's DistributedSampler; without a seed, 0, 1, 2, …"""
    order = ascending(samples) if seed is None else seeded(samples, seed)
    order.setflags(write=False)
    return order


def is_mixture(dataset: object) -> TypeGuard[Mixture]:
    """Returns whether it is a solar.Mixture, without importing that module, which needs torch."""
    module = sys.modules.get("solar.samplers.mixture")
    return module is not None and isinstance(dataset, module.Mixture)
