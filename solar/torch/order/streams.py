"""The orders of torch's and our samplers. A few JSON values describe each, and each can resume in its middle."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _InfiniteConstantSampler

from solar.errors import PlanError
from solar.torch.order.by_generator import ShuffledByGenerator
from solar.torch.order.draws import check_drawing, copied, digest, draw, drawing, shuffle, shuffled, skip
from solar.torch.order.stream import UNCOUNTED, Array, Cuts, IndexStream, KnownStream, Pass, Trust
from solar.torch.samplers import PlanBatchSampler, PlanSampler, in_order, seeded
from solar.torch.states import check_by

FEW = 65  # random numbers that others may draw between two passes: a loader draws two, four if it shuffles
STATIC = (list, tuple, range, SubsetRandomSampler, WeightedRandomSampler, SequentialSampler, RandomSampler)
DRAWING = (SubsetRandomSampler, WeightedRandomSampler, RandomSampler)
BATCHING = (BatchSampler, PlanBatchSampler)  # we know how these cut samples into batches


def order_of(sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> IndexStream:
    """The IndexStream for these samplers of a loader."""
    if batch_sampler is not None and type(batch_sampler) not in BATCHING:
        return Custom(sampler, batch_sampler, generator)
    given = sampler if batch_sampler is None else batch_sampler.sampler
    kinds: dict[type, type[IndexStream]] = {
        SequentialSampler: Sequential,
        _InfiniteConstantSampler: EndlessStream,
        DistributedSampler: Distributed,
        PlanSampler: Distributed,
        RandomSampler: Shuffled if getattr(given, "generator", None) is None else ShuffledByGenerator,
        WeightedRandomSampler: Custom if getattr(given, "generator", None) is None else DrawnByGenerator,
    }
    return kinds.get(type(given), Custom)(given, batch_sampler, generator)


class EndlessStream(IndexStream):
    """The order of an iterable dataset, which has no indices."""

    kind = "stream"

    def resume(self, told: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        return self.start()


class Sequential(KnownStream):
    """The samples in the order of the dataset."""

    kind = "sequential"

    def whole(self) -> Array:
        return in_order(len(self.sampler))

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return repeat(lambda: self.batched(self.whole()))

    def resume(self, told: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        left = self.whole()[samples:]
        return self.cut(left if self.as_arrays else left.tolist())


class Shuffled(KnownStream):
    """torch's shuffle by a seed that it draws from the global generator for every pass."""

    kind = "shuffled"
    told_by_all = ("seed", "replacement", "draws")
    guessed = draws = True
    _seed: int | None = None
    _drawn: int | None = None  # the seed of a new pass, once it is drawn
    _resumed = False
    _after: torch.Generator | None = None  # the global generator, right after it gave the seed
    _between: int | None = None  # numbers that others drew from it since the previous pass, if few
    _guess: int | None = None  # the seed of the next pass, if others draw as many again
    _trust = Trust(0, 1)

    def start(self) -> Iterator[Any]:
        return super().start() if self._permutes() else IndexStream.start(self)

    def whole(self) -> Array:
        return self._permutation(draw(None) if self._drawn is None else self._drawn)

    def draw_at_once(self, batches: Iterator[Any]) -> Iterator[Any]:
        if not isinstance(batches, Cuts):
            return super().draw_at_once(batches)
        if not self._resumed:
            self._drawn = draw(None)
        return batches

    def _permutes(self) -> bool:
        return not self.sampler.replacement and self.sampler.num_samples == len(self.sampler.data_source)

    def _permutation(self, seed: int) -> Array:
        return seeded(len(self.sampler.data_source), seed)

    def begin(self, last: IndexStream | None) -> None:
        self._after = copied(None)
        self._seed = draw(self._after)
        if isinstance(last, Shuffled) and last._after is not None:
            tried = range(FEW)
            self._between = next(
                (few for few in tried if self._seed_after(copied(last._after), few) == self._seed), None
            )
            self._trust = last._trust.after(last._guess == self._seed)
        self._guess = next(self._foreseen(), None)

    def _seed_after(self, generator: torch.Generator, between: int) -> int:
        """The seed that the next pass draws, if others draw `between` numbers before it."""
        skip(generator, between)
        if self.generator is None and not self.draws_base_once:
            draw(generator)
        return draw(generator)

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """A guess: others draw as many numbers as since the last pass. The caller compares it with the real pass.

        None before such a guess came true: with one epoch known less is read than with a wrong guess of the next.
        """
        seeds = self._foreseen() if self._trust.suffices else ()
        return (partial(self._shuffled_by, seed) for seed in seeds)

    def _foreseen(self) -> Iterator[int]:
        """The seeds of the passes to come, if others draw as many numbers before each as before this one."""
        if self._after is None or self._between is None:
            return
        generator = copied(self._after)
        while True:
            yield self._seed_after(generator, self._between)

    def _shuffled_by(self, seed: int) -> Pass:
        if self._permutes():
            return self.batched(self._permutation(seed))
        return self.batched(shuffled(self.sampler, torch.Generator().manual_seed(seed)))

    def tell(self, mark: Any) -> dict[str, Any]:
        return {"kind": self.kind, "seed": self._seed, **drawing(self.sampler)}

    def foretell(self, last: IndexStream | None, base_seed: int | None) -> tuple[int, dict[str, Any]]:
        ahead = copied(None)
        if base_seed is None:
            base_seed = draw(ahead if self.generator is None else copied(self.generator))
        self._seed = draw(ahead)
        return base_seed, self.tell(None)

    def start_foretold(self, told: dict[str, Any]) -> Iterator[Any]:
        draw(None)
        return super().start_foretold(told)

    def resume(self, told: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        check_drawing(self.sampler, told)
        self._seed, self._resumed = int(told["seed"]), True
        if self._permutes():
            left = self._permutation(self._seed)[samples:]
            return self.cut(left if self.as_arrays else left.tolist())
        generator = torch.Generator().manual_seed(self._seed)
        return self.cut(islice(shuffle(self.sampler, generator), samples, None))


class Distributed(IndexStream):
    """The order of all ranks, of which each takes its part. Any number of ranks can resume it."""

    kind = "distributed"
    told_by_all = ("seed", "shuffle", "epoch")

    def tell(self, mark: Any) -> dict[str, Any]:
        sampler = self.sampler
        if isinstance(sampler, PlanSampler):
            return {"kind": self.kind, **sampler.facts()}
        return {"kind": self.kind, "seed": sampler.seed, "shuffle": sampler.shuffle, "epoch": sampler.epoch}

    def resume(self, told: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        plan = self._plan()
        if (plan.seed, plan.shuffle) != (told["seed"], told["shuffle"]):
            raise PlanError(
                f"the state is of an order with seed={told['seed']}, shuffle={told['shuffle']}; this loader's sampler "
                f"has seed={plan.seed}, shuffle={plan.shuffle}: make it with those of the state"
            )
        check_by(told, plan.facts())
        plan.resume(samples)
        return iter(plan) if self.batch_sampler is None else self._cut_plan(plan)

    def start(self) -> Iterator[Any]:
        if not self.as_arrays or self.batch_sampler is None:
            return super().start()

        def each() -> Iterator[Any]:
            yield from self._cut_plan(self._plan())

        return Cuts(each(), lambda: self._cutter(self._plan()).at_once())

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return (partial(self._of_epoch, epoch) for epoch in count(self.sampler.epoch + stride, stride))

    def _of_epoch(self, epoch: int) -> Pass:
        """This rank's part of a whole epoch, by a copy of the sampler."""
        plan = copy.copy(self._plan())
        plan.set_epoch(epoch)
        plan.resume(0)
        if self.batch_sampler is None:
            return self.batched(np.fromiter(plan, np.int64))
        return self._cutter(plan).at_once()

    def of_all(self, begun_at: int) -> Pass | None:
        return self._of_all(self.sampler.epoch, begun_at) if self.batch_sampler is not None else None

    def later_of_all(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return (partial(self._of_all, epoch, 0) for epoch in count(self.sampler.epoch + stride, stride))

    def _of_all(self, epoch: int, begun_at: int) -> Pass:
        plan = copy.copy(self._plan())
        plan.set_epoch(epoch)
        return self._cutter(plan).of_all(begun_at)

    def _cutter(self, plan: PlanSampler) -> PlanBatchSampler:
        return PlanBatchSampler(plan, self.batch_sampler.batch_size, self.batch_sampler.drop_last)

    def _cut_plan(self, plan: PlanSampler) -> Iterator[Any]:
        cutter = self._cutter(plan)
        return Cuts(cutter.arrays(), cutter.at_once) if self.as_arrays else iter(cutter)

    def consumed(self, begun_at: int, batches: int, samples: int) -> int:
        plan = self._plan()
        if plan.tail == "exact" and self.batch_sampler is not None:
            return int(self._cutter(plan).bounds(begun_at)[batches])
        return min(plan.length, begun_at + samples * plan.num_replicas)

    def counts(self, epoch: int, samples: int) -> dict[str, int]:
        by = self._plan().by
        return {} if by is None else by.counts(epoch, samples)

    def _plan(self) -> PlanSampler:
        return self.sampler if isinstance(self.sampler, PlanSampler) else PlanSampler.like(self.sampler)


class Custom(IndexStream):
    """Any other sampler. If it has a state, that is saved; else resuming draws again and skips what was taken."""

    kind = "custom"

    def __init__(self, sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> None:
        super().__init__(sampler, batch_sampler, generator)
        self._cuts = batch_sampler is None or type(batch_sampler) in BATCHING
        self._source = sampler if self._cuts else batch_sampler
        # The user's sampler may depend on the training so far: what it gives depends on when it is drawn.
        self.fixed, self.draws = type(self._source) in STATIC, type(self._source) in DRAWING
        self._items: Iterator[Any] | None = None  # the source's iterator, which may have a state, too
        self._checksum = 0
        self._at_start: dict[str, Any] | None = None

    def begin(self, last: IndexStream | None) -> None:
        self._at_start = self._states() or {"checksum": 0}

    def start(self) -> Iterator[Any]:
        if self._cuts and self.batch_sampler is not None:
            return self.cut(self._begun_late())
        self._items = iter(self._source)
        return self._items

    def drawn_at_once(self, batches: int | None) -> int:
        """How many batches may be drawn ahead: each is marked with the state after it, which may be large."""
        return UNCOUNTED if self._states() else super().drawn_at_once(batches)

    def _begun_late(self) -> Iterator[Any]:
        """The batches. As in BatchSampler, the sampler's iterator is made when the first is asked for."""
        self._items = iter(self._source)
        yield from self._items

    def mark(self, batch: Any) -> Any:
        if states := self._states():
            return states
        self._checksum = _checksum(self._checksum, batch)
        return {"checksum": self._checksum}

    def _states(self) -> dict[str, Any]:
        parts = {"sampler": self._source, "iterator": self._items}
        return {name: part.state_dict() for name, part in parts.items() if hasattr(part, "state_dict")}

    def tell(self, mark: Any) -> dict[str, Any]:
        if mark is None:
            mark = self._states() if self._at_start is None else self._at_start
        return {"kind": self.kind, **mark}

    def start_foretold(self, told: dict[str, Any]) -> Iterator[Any]:
        """All index batches. A sampler that remembers its end is iterated once more, as it would have been."""
        batches = self.resume(told, 0, 0)
        try:
            return chain([next(batches)], batches)
        except StopIteration:
            return self.start()

    def resume(self, told: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        if "sampler" in told:
            self._source.load_state_dict(told["sampler"])
        self._items = iter(self._source)
        if "iterator" in told:
            self._items.load_state_dict(told["iterator"])  # type: ignore[union-attr]
        if "sampler" not in told and "iterator" not in told:
            for item in islice(self._items, samples if self._cuts else batches):
                self._checksum = _checksum(self._checksum, item)
            if self._checksum != told.get("checksum", 0):
                warnings.warn(
                    f"{type(self._source).__name__} gave other samples than before the state was saved, so this epoch "
                    "will not hold every sample once: seed its random numbers as they were, or use solar.PlanSampler",
                    stacklevel=2,
                )
        self._at_start = self._states() or {"checksum": self._checksum}
        return self.cut(self._items) if self._cuts else self._items


class DrawnByGenerator(Custom):
    """torch's WeightedRandomSampler by a generator of the user's: a copy of it draws the passes to come."""

    _trust = Trust(0, 0)  # it is the user's own, so mostly nobody else draws from it
    _guess = ""  # the generator as the next pass will find it

    def begin(self, last: IndexStream | None) -> None:
        super().begin(last)
        if isinstance(last, DrawnByGenerator) and last._guess:
            self._trust = last._trust.after(digest(self.sampler.generator) == last._guess)

    def ended(self) -> None:
        super().ended()
        self._guess = digest(self._before_the_next(copied(self.sampler.generator)))

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return self._drawn_by(copied(self.sampler.generator)) if self._trust.suffices else iter(())

    def _drawn_by(self, generator: torch.Generator) -> Iterator[Callable[[], Pass]]:
        while True:
            ahead = self._before_the_next(generator)
            copy_ = WeightedRandomSampler(
                self.sampler.weights,
                self.sampler.num_samples,
                self.sampler.replacement,
                ahead,
            )
            yield partial(self.batched, np.fromiter(copy_, np.int32, self.sampler.num_samples))

    def _before_the_next(self, generator: torch.Generator) -> torch.Generator:
        """After torch's draw before a pass, if that is from the generator that also draws the samples."""
        if self.generator is self.sampler.generator and not self.draws_base_once:
            draw(generator)
        return generator


def _checksum(before: int, drawn: Any) -> int:
    """A checksum over all integers drawn so far; other kinds of indices have none."""
    try:
        indices = np.asarray(drawn)
    except (TypeError, ValueError):
        return before
    return zlib.crc32(indices.astype(np.int64).tobytes(), before) if indices.dtype.kind in "iu" else before
