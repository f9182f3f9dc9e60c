"""IndexStream: the index batches of one epoch, and what is known of those of later ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from solar.errors import PlanError
from solar.samplers.samplers import PlanBatchSampler, PlanSampler
from solar.samplers.states import check_by

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]  # of 32 bits where that is enough
Pass = tuple[Array, Array]  # samples in the order of use; where each batch begins in it, and where the last one ends


class KnownOrder(NamedTuple):
    """How many guesses of the next pass were right in a row, and how many must be before one is used.

    A wrong guess costs a part of a scan, a right one gains more. So a loss that no gain preceded doubles the number of
    right guesses that are needed: however guesses turn out, all such losses together are few.
    """

    right: int
    needed: int

    def after(self, came_true: bool) -> KnownOrder:
        """Returns the record with one more guess."""
        if came_true:
            return KnownOrder(self.right + 1, self.needed)
        return KnownOrder(0, max(1, 2 * self.needed) if self.right == self.needed else self.needed)

    @property
    def suffices(self) -> bool:
        """Whether the next guess is used."""
        return self.right >= self.needed


UNCOUNTED = 4096  # batches to draw beforehand if their number is unknown


class BatchCuts:
    """Index batches of samples that are all known: cut one after another, or all in one go."""

    def __init__(
        self, each: Iterator[Any], make: Callable[[], Pass], pass_over: Callable[[], None] | None = None
    ) -> None:
        self._each, self._make = each, make
        self._made: Pass | None = None
        self.pass_over = pass_over  # has it as drawn, when somebody else draws all batches

    def at_once(self) -> Pass:
        """Returns all batches, unless one was taken; the same ones if it is called again."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._each)


def cut_at(made: Pass) -> Iterator[Array]:
    """Returns the batches of a pass, each cut when it is asked for, which takes less memory than all at once."""
    samples, starts = made
    return (samples[starts[at] : starts[at + 1]] for at in range(len(starts) - 1))


class IndexStream:
    """The source of the index batches of one pass.

    `tell` gives, as JSON, enough for `resume` to continue with the remaining batches.
    """

    kind = "none"
    saved_keys: tuple[str, ...] = ()  # the keys that `tell` gives for every order of this kind
    exhausted = False  # drawn to its end
    as_arrays = False  # if the samples are known beforehand, index batches are arrays instead of lists
    guessed = False  # its later passes follow from what the training does
    fixed = True  # it is the same whether it is drawn now or later
    draws = False  # random numbers from generators of torch's or the user's, when the first batch is drawn
    in_any_order = False  # batches are handed out as workers make them
    in_advance = 0  # index batches that torch's workers are given when a pass begins; 0: there are none
    draws_base_once = False  # persistent workers: torch draws a base seed only once, not for each pass

    def __init__(self, sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> None:
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.generator = generator  # the loader's: torch draws a base seed from it before a pass

    def start(self) -> Iterator[Any]:
        """Returns all index batches, as torch yields them. Random draws are made when torch makes them."""
        return iter(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def begin(self, last: IndexStream | None) -> None:
        """Called just before the first index is drawn; `last` is the order of the loader's previous pass."""

    def draw_at_once(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Draws what torch draws when it gives workers their first index batches. Returns all of the batches."""
        return chain(list(islice(batches, 1)), batches)

    def ended(self) -> None:
        """Called when no index batch is left to draw."""
        self.exhausted = True

    def asked(self) -> None:
        """Called when the consumer gets the next batch, or learns that there is none."""

    def mark(self, batch: Any) -> Any:
        """Returns the order's state right after this index batch was drawn, for `tell`."""

    def tell(self, mark: Any) -> dict[str, Any]:
        """Returns the order as JSON, if the batch of this mark was the last one taken (None: none was)."""
        return {"kind": self.kind}

    def foretell(self, last: IndexStream | None, base_seed: int | None) -> tuple[int, dict[str, Any]]:
        """Predicts the base seed and the order of a pass that would begin now, without drawing anything.

        If a base seed is given, torch has drawn it already.
        """
        from solar.samplers.sampler_streams import copy_generator, draw_torch_seed  # of a loader of torch's

        return draw_torch_seed(copy_generator(self.generator)) if base_seed is None else base_seed, self.tell(None)

    def prepare(self, saved: dict[str, Any], drawn: bool) -> None:
        """Called for a predicted pass before torch's draws. `drawn`: they were made when it was predicted."""

    def start_foretold(self, saved: dict[str, Any]) -> Iterator[Any]:
        """Returns all index batches of a predicted pass. Makes the same draws from the generators as `start`."""
        return self.resume(saved, 0, 0)

    def resume(self, saved: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        """Returns the index batches after the first `samples`; if a user's sampler cuts, after `batches`."""
        return islice(self.start(), batches, None)

    def drawn_at_once(self, batches: int | None) -> int:
        """Returns how many index batches may be drawn before the first is used. A known number gives more than all."""
        return UNCOUNTED if batches is None else batches + 1

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """Returns the following passes, as far as they are known. Each can be made any number of times.

        Nothing is drawn from the user's generators. `stride` is how much the epoch number grows from pass to pass. It
        is called when this pass has been drawn to its end.
        """
        return iter(())

    @property
    def is_foreseen(self) -> bool:
        """Whether the later passes are known for certain."""
        return not self.guessed and type(self).later is not IndexStream.later

    @property
    def is_of_all(self) -> bool:
        """Whether all ranks share one order, of which `of_all` gives the passes."""
        return False

    def of_all(self, begun_at: int) -> Pass | None:
        """Returns the pass of all ranks together that began after `begun_at` samples; None if they share no order."""
        return None

    def later_of_all(self, stride: int) -> Iterator[Callable[[], Pass]]:
        """Returns `later` for the passes of all ranks together."""
        return iter(())

    def facts_of_all(self, epoch: int, begun_at: int) -> dict[str, Any] | None:
        """Returns what `of_all` follows from in an epoch, for JSON; None if that is not known in few words."""
        return None

    def batched(self, samples: Array) -> Pass:
        """Returns the samples of a pass, and where its batches begin, as `cut` cuts them."""
        length, cutter = len(samples), self.batch_sampler
        if cutter is None:
            return samples, np.arange(length + 1)
        if cutter.drop_last:
            length -= length % cutter.batch_size
        return samples[:length], np.append(np.arange(0, length, cutter.batch_size), length)

    def consumed(self, begun_at: int, batches: int, samples: int) -> int:
        """Returns how many samples of the whole order are used if this loader took these of the pass."""
        return begun_at + samples

    def counts(self, epoch: int, samples: int) -> dict[str, int]:
        """Returns how many of each class or source are among the first samples of all ranks; {} if there are none."""
        return {}

    def cut(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Cuts samples into batches, as the loader's own batches are cut."""
        cutter = self.batch_sampler
        if cutter is None:
            return iter(samples)
        if isinstance(samples, np.ndarray):
            return self.cut_late(lambda: samples)
        from torch.utils.data import BatchSampler  # what torch's samplers give one by one is cut by torch

        return iter(BatchSampler(_GivenIndices(samples), cutter.batch_size, cutter.drop_last))

    def cut_late(self, make: Callable[[], Array]) -> BatchCuts:
        """Yields the batches of samples that are made when the first is asked for, as torch draws."""

        def each() -> Iterator[Array]:
            yield from cut_at(self.batched(make()))

        return BatchCuts(each(), lambda: self.batched(make()))


class KnownStream(IndexStream):
    """An order whose samples are all known before the first is asked for."""

    def whole(self) -> Array:
        """Returns all samples of the pass that begins now. Draws what `start` draws when its first is asked for."""
        raise NotImplementedError

    def start(self) -> Iterator[Any]:
        return self.cut_late(self.whole) if self.as_arrays and self.batch_sampler is not None else super().start()


class Distributed(IndexStream):
    """The order of all ranks, of which each takes its part. Any number of ranks can resume it."""

    kind = "distributed"
    saved_keys = ("seed", "shuffle", "epoch")

    def tell(self, mark: Any) -> dict[str, Any]:
        sampler = self.sampler
        if isinstance(sampler, PlanSampler):
            return {"kind": self.kind, **sampler.facts()}
        return {"kind": self.kind, "seed": sampler.seed, "shuffle": sampler.shuffle, "epoch": sampler.epoch}

    def foretell(self, last: IndexStream | None, base_seed: int | None) -> tuple[int, dict[str, Any]]:
        """Predicts the order alone: the samples' random numbers follow from the sampler's seed."""
        return base_seed or 0, self.tell(None)

    def resume(self, saved: dict[str, Any], batches: int, samples: int) -> Iterator[Any]:
        plan = self._plan()
        if (plan.seed, plan.shuffle) != (saved["seed"], saved["shuffle"]):
            raise PlanError(
                f"the state is of an order with seed={saved['seed']}, shuffle={saved['shuffle']}; this loader's "
                f"sampler has seed={plan.seed}, shuffle={plan.shuffle}: make it with those of the state"
            )
        check_by(saved, plan.facts())
        plan.resume(samples)
        return iter(plan) if self.batch_sampler is None else self._cut_plan(plan)

    def start(self) -> Iterator[Any]:
        if not self.as_arrays or self.batch_sampler is None:
            return super().start()

        def each() -> Iterator[Any]:
            yield from self._cut_plan(self._plan())

        return BatchCuts(
            each(), lambda: self._cutter(self._plan()).at_once(), lambda: self._cutter(self._plan()).pass_over()
        )

    def later(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return (partial(self._of_epoch, epoch) for epoch in count(self.sampler.epoch + stride, stride))

    def _of_epoch(self, epoch: int) -> Pass:
        """Returns this rank's part of a whole epoch, from a copy of the sampler."""
        plan = copy.copy(self._plan())
        plan.set_epoch(epoch)
        plan.resume(0)
        if self.batch_sampler is None:
            return self.batched(np.fromiter(plan, np.int64))
        return self._cutter(plan).at_once()

    @property
    def is_of_all(self) -> bool:
        return self.batch_sampler is not None

    def of_all(self, begun_at: int) -> Pass | None:
        return self._of_all(self.sampler.epoch, begun_at) if self.is_of_all else None

    def later_of_all(self, stride: int) -> Iterator[Callable[[], Pass]]:
        return (partial(self._of_all, epoch, 0) for epoch in count(self.sampler.epoch + stride, stride))

    def facts_of_all(self, epoch: int, begun_at: int) -> dict[str, Any] | None:
        plan, cutter = self._plan(), self.batch_sampler
        if cutter is None or (plan.by is not None and not plan.by.digest):  # a function of the user's
            return None
        facts = {**plan.facts(), "epoch": epoch, "first sample": begun_at, "samples": plan.length}
        tail = {"tail": plan.tail, "batch_size": cutter.batch_size, "drop_last": cutter.drop_last}
        return facts | tail | {"ranks": plan.num_replicas}

    def _of_all(self, epoch: int, begun_at: int) -> Pass:
        plan = copy.copy(self._plan())
        plan.set_epoch(epoch)
        return self._cutter(plan).of_all(begun_at)

    def _cutter(self, plan: PlanSampler) -> PlanBatchSampler:
        return PlanBatchSampler(plan, self.batch_sampler.batch_size, self.batch_sampler.drop_last)

    def _cut_plan(self, plan: PlanSampler) -> Iterator[Any]:
        cutter = self._cutter(plan)
        return BatchCuts(cutter.arrays(), cutter.at_once, cutter.pass_over) if self.as_arrays else iter(cutter)

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


class _GivenIndices:
    """An iterator in the form of a sampler, for torch's BatchSampler."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samples)
