"""EpochPosition: how far an epoch is, and its state as JSON."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from solar.errors import PlanError
from solar.samplers.index_stream import Array, BatchCuts, Distributed, IndexStream, Pass, cut_at
from solar.samplers.samplers import PlanBatchSampler, PlanSampler
from solar.samplers.states import check_order, check_values

if TYPE_CHECKING:
    import torch

_NO_GAPS: dict[str, Any] = {"of": 0, "left": []}


def check_gaps_of(order: IndexStream) -> None:
    """Raises PlanError for an order that ranks share: with gaps of their own, ranks would have different states."""
    ranks = getattr(order.sampler, "num_replicas", 1) if order.kind == "distributed" else 1
    if ranks > 1:
        raise PlanError(
            f"in_order=False with workers, and a sampler over {ranks} ranks: each rank hands out its batches in an "
            "order of its own, and the state says only how many samples all ranks have had, so batches would be lost. "
            "Make the loader with in_order=True, or take its state when the epoch is over"
        )


class DrawnBatches:
    """The index batches of a pass that were drawn and not handed out, and how many were.

    They are numbered in the order in which they are drawn, and are mostly handed out in that order. Batches handed out
    before an earlier one (in_order=False) are kept in `early`, so that a state says exactly which are left.
    """

    def __init__(self) -> None:
        self.first = self.samples = 0  # batches that were handed out without a gap, and their samples
        self.mark: Any = None  # of the last of these
        self.early: set[int] = set()  # numbers above `first` that were handed out
        self._waiting: deque[tuple[int, Any, Any]] = deque()  # batches from `first` on: size, mark, samples
        self._gaps = _NO_GAPS  # of the state that the pass was resumed from
        self.starts: Array | None = None  # of all batches of the pass, drawn in one go: they have no marks

    def resume(self, gaps: dict[str, Any]) -> None:
        """Begins with the batches that a state says were handed out early."""
        self._gaps = gaps
        self.early = set(range(gaps["of"])).difference(gaps["left"])

    def append(self, samples: int, mark: Any, batch: Any) -> bool:
        """Counts a batch as drawn. Returns whether it is still to be handed out."""
        number = self.first + len(self._waiting)
        self._waiting.append((samples, mark, batch))
        if self.early:
            self._close_gap()
        return number >= self._gaps["of"] or number in self._gaps["left"]

    def number_of(self, sent: int) -> int:
        """Returns the number of the batch that was given out as number `sent`."""
        left: list[int] = self._gaps["left"]
        return left[sent] if sent < len(left) else self._gaps["of"] + sent - len(left)

    def hand_out(self, number: int | None) -> tuple[int, Any] | None:
        """Takes the next batch, or the one with this number. Returns its size and samples; None if none was drawn."""
        if not self._waiting:
            return None
        if number is None and not self.early:  # as nearly always
            samples, self.mark, batch = self._waiting.popleft()
            self.samples += samples
            self.first += 1
            return samples, batch
        number = self.first if number is None else number
        samples, _, batch = self._waiting[number - self.first]
        self.early.add(number)
        self._close_gap()
        return samples, batch

    def _close_gap(self) -> None:
        while self.first in self.early and self._waiting:
            self.early.remove(self.first)
            samples, self.mark, _ = self._waiting.popleft()
            self.samples += samples
            self.first += 1

    def gaps(self) -> dict[str, Any] | None:
        """Returns which batches before the last one handed out are left; None if all were handed out in order."""
        if not self.early:
            return None
        behind = range(self.first, max(self.early))
        left = [number - self.first for number in behind if number not in self.early]
        return {"of": max(self.early) + 1 - self.first, "left": left}


class EpochPosition:
    """One pass over the samples: how it began, and how far the consumer has come. Drawing is ahead of the consumer.

    Any thread may advance it and ask for its state.
    """

    def __init__(self, order: IndexStream, epoch: int) -> None:
        self.order = order
        self.epoch = epoch
        self.repeat = 0  # how often in a row this epoch was begun before
        self.base_seed: int | None = None
        self.begun = self.finished = False  # the first index was drawn; the last batch was handed out
        self.before = (0, 0)  # batches and samples consumed before it began, when it was resumed
        self.batches = 0  # handed out
        self.taken: Any = ()  # the samples of the batch handed out last
        # Entries of the state about the dataset: as it is now, or (False) as a new epoch would begin.
        self.carried: Callable[[bool], dict[str, Any]] = lambda begun: {}
        self._drawn = DrawnBatches()
        self._lock = threading.Lock()

    def resume(self, loaded: dict[str, Any]) -> None:
        """Begins after a loaded state."""
        self.before = loaded["batches"], loaded["samples"]
        self._drawn.resume(loaded.get("gaps", _NO_GAPS))

    def draw(self, batch: Any) -> bool:
        """Counts a drawn index batch. Returns whether it is still to be handed out."""
        samples = 1 if self.order.batch_sampler is None else len(batch)
        with self._lock:
            # The native engine knows its batches by itself, and an epoch of lists would take much memory.
            return self._drawn.append(samples, self.order.mark(batch), () if self.order.as_arrays else batch)

    def draw_all(self, starts: Array) -> None:
        """Counts all index batches as drawn."""
        self._drawn.starts = starts

    @property
    def has_gaps(self) -> bool:
        """Whether some batches are to be passed over, because they were handed out before others."""
        return bool(self._drawn.early)

    def number_of(self, sent: int) -> int:
        """Returns the number of the index batch that was given out as number `sent`."""
        return self._drawn.number_of(sent)

    def advance(self, number: int | None = None) -> int:
        """Counts a batch as handed out: the next, or the one with this number. Returns how many samples it has."""
        self.order.asked()
        with self._lock:
            drawn = self._drawn
            if drawn.starts is not None:
                drawn.first += 1
                self.batches += 1
                begin, drawn.samples = drawn.samples, int(drawn.starts[min(drawn.first, len(drawn.starts) - 1)])
                return drawn.samples - begin
            found = drawn.hand_out(number)
            if found is None:  # what failed was the sampler
                return 0
            self.batches += 1
            samples, self.taken = found
            return samples

    def counts(self) -> dict[str, int]:
        """Returns how many samples of each class or source all ranks together have had in this epoch."""
        consumed = self.order.consumed(self.before[1], self._drawn.first, self._drawn.samples)
        return self.order.counts(self.epoch, consumed)

    def state(self) -> dict[str, Any]:
        if self.order.in_any_order:
            check_gaps_of(self.order)
        batches, samples = self.before
        with self._lock:
            state = {
                "batches": batches + self._drawn.first,
                "samples": self.order.consumed(samples, self._drawn.first, self._drawn.samples),
                "order": self.order.tell(self._drawn.mark),
            }
            if (gaps := self._drawn.gaps()) is not None:
                state["gaps"] = gaps
        return state | self.carried(True)

    def all_batches(self) -> list[int]:
        """The batches handed out since the epoch began, as one number."""
        return [self.before[0] + self.batches]


# A loader's index batches from epoch to epoch: when they are drawn, where they begin, and the state as JSON.


STATE_VERSION = 1
KEYS = {"epoch", "repeat", "length", "drawn", "begun", "batches", "samples", "order"}


class Indices:
    """The index batches of one pass. Before the first is asked for, only what torch draws earlier is drawn."""

    def __init__(self, sampler_state: SamplerState) -> None:
        self._sampler_state = sampler_state
        self.position = EpochPosition(sampler_state.order(), sampler_state.epoch)
        self.position.base_seed = sampler_state.lasting_base_seed
        sampler_state.newest = self.position
        self._resumed = sampler_state.pending
        self._batches = None if self._resumed else self.position.order.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def _has_begun(self) -> Iterator[Any]:
        if not self.position.begun:
            self._batches = self._sampler_state.begin(self.position, self._resumed, self._batches)
        assert self._batches is not None
        return self._batches

    def begin_beside_workers(self) -> None:
        """Begins a pass of random order at once, because torch gives workers their index batches when it begins."""
        if self.position.order.draws:
            self._batches = self.position.order.draw_at_once(self._has_begun())

    def at_once(self) -> Pass | None:
        """Returns all index batches of a known pass, unless one was taken already. They count as drawn."""
        batches = self._has_begun()
        if not isinstance(batches, BatchCuts) or self.position.has_gaps:
            return None
        made = batches.at_once()
        self.position.draw_all(made[1])
        self.position.order.ended()
        return made

    def begin(self) -> None:
        """Begins the pass: after that it is known where it begins."""
        self._has_begun()

    def can_pass_over(self) -> bool:
        """Returns whether somebody else may draw all batches of a pass that has begun: see `pass_over`."""
        batches = self._batches
        return isinstance(batches, BatchCuts) and batches.pass_over is not None and not self.position.has_gaps

    def pass_over(self, starts: Array) -> None:
        """Counts all index batches as drawn. `starts` says where each begins, and where the last one ends."""
        batches = self._batches
        assert isinstance(batches, BatchCuts) and batches.pass_over is not None, "can_pass_over() says so"
        batches.pass_over()
        self.position.draw_all(starts)
        self.position.order.ended()

    def known(self) -> Iterator[Any]:
        """Returns the batches cut from one array if all samples of the pass are known now, else these batches.

        The position then need not be told of each batch that is drawn.
        """
        made = None if self._sampler_state.cutter is None else self.at_once()
        return self if made is None else cut_at(made)

    def __next__(self) -> Any:
        batches = self._batches if self.position.begun else self._has_begun()
        assert batches is not None
        try:
            batch = next(batches)
            while not self.position.draw(batch):
                batch = next(batches)
        except StopIteration:
            self.position.order.ended()
            raise
        return batch


class SamplerState:
    """A loader's index sampler over all its epochs. Loader and iterators refer to it; it refers to neither.

    torch's iterators use it as their sampler, so that they can begin in the middle of an epoch.
    """

    def __init__(
        self,
        sampler: Any,
        batch_sampler: Any,
        generator: torch.Generator | None,
        dataset: Any,
        persistent: bool = False,
    ) -> None:
        self._samplers = sampler, batch_sampler, generator
        self._dataset = dataset
        self._persistent = persistent  # persistent workers are seeded once
        self._epoch = 0  # counted here if no sampler counts it
        self._last_epoch: tuple[int, int] | None = None  # epoch and repeat of the last pass; None: the epoch was set
        self.pending: dict[str, Any] | None = None  # a loaded state that no pass has used yet
        self.newest: EpochPosition | None = None
        self.in_advance = 0  # index batches that torch's workers would be given when a pass begins
        self.as_arrays = False  # known orders give arrays, for the native engine
        self.lasting_base_seed: int | None = None  # of persistent workers, which are seeded once
        self._last: EpochPosition | None = None  # the pass begun last
        self.stride = 1  # how much the epoch grew from the last whole pass to the next

    def __iter__(self) -> Indices:
        return Indices(self)

    def __len__(self) -> int:
        sampler, batch_sampler, _ = self._samplers
        return len(sampler if batch_sampler is None else batch_sampler)

    @property
    def batches(self) -> int | None:
        """The number of batches in a whole epoch, if known."""
        return _length(self)

    @property
    def batch_size(self) -> int | None:
        """The most samples in a batch, if known."""
        if self.cutter is None:
            return 1
        samples = _length(getattr(self.cutter, "sampler", None))
        if not _cuts_evenly(self.cutter):
            return None
        size = int(self.cutter.batch_size)
        return size if samples is None else max(1, min(size, samples))

    @property
    def cutter(self) -> Any:
        """The sampler that cuts the samples into batches, if there is one."""
        return self._samplers[1]

    def order(self) -> IndexStream:
        order = _stream_of(*self._samplers)
        order.draws_base_once, order.as_arrays = self._persistent, self.as_arrays
        order.in_advance = self.in_advance if self.as_arrays else 0
        return order

    @property
    def with_epochs(self) -> Any:
        """The sampler with a set_epoch, like torch's DistributedSampler, if there is one."""
        sampler, batch_sampler, _ = self._samplers
        candidates = (sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        return next((one for one in candidates if hasattr(one, "set_epoch")), None)

    @property
    def epoch(self) -> int:
        known = getattr(self.with_epochs, "epoch", None)
        return known if isinstance(known, int) else self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the sampler's epoch. A position that was loaded for another epoch is forgotten."""
        if self.with_epochs is not None:
            self.with_epochs.set_epoch(epoch)
        self._epoch = epoch
        self._last_epoch = None
        if self.pending is not None and self.pending["epoch"] != epoch:
            self.pending = None

    # --- a pass begins and ends ----

    @contextmanager
    def torchs_draws(self) -> Iterator[None]:
        """Returns the context for torch's draws of a new iterator. A resumed pass undoes them: it has drawn already."""
        loaded, generator = self.pending, self._samplers[2]
        if loaded is None:
            drawn = self.lasting_base_seed is not None
        else:
            # A sampler that is gone through once more is seeded as it was: before torch drew.
            drawn = loaded["drawn"] and not (loaded["begun"] and "checksum" in loaded["order"])
            if not loaded["begun"]:
                self.order().prepare(loaded["order"], drawn)
        with undrawn(generator) if drawn else nullcontext():
            yield

    def base_seed(self, drawn: int) -> int:
        """Returns the seed of workers and transforms: the loaded one, persistent workers', or a new draw."""
        saved = self.lasting_base_seed if self.pending is None else self.pending.get("base_seed")
        seed = drawn if saved is None else int(saved)
        if self._persistent:
            self.lasting_base_seed = seed
        return seed

    def begin(
        self, position: EpochPosition, loaded: dict[str, Any] | None, fresh: Iterator[Any] | None
    ) -> Iterator[Any]:
        """Begins a pass. It resumes a loaded state, unless another pass did or the epoch was changed."""
        position.begun = True
        position.epoch = self.epoch
        if self._last is not None and self._last.finished:
            self.stride = max(0, position.epoch - self._last.epoch)
        order, saved = position.order, None
        if loaded is not None and loaded is self.pending:
            self.pending = None
            if loaded["epoch"] == self.epoch or not loaded["begun"]:
                saved = loaded["order"]
        if loaded is None or saved is None:
            position.repeat = self._next_repeat()
            order.begin(self._last.order if self._last is not None else None)
            batches = order.start() if fresh is None else fresh
        else:
            position.resume(loaded)
            position.repeat = loaded["repeat"] if saved.get("epoch", loaded["epoch"]) == self.epoch else 0
            batches = order.resume(saved, *position.before) if loaded["begun"] else order.start_foretold(saved)
        self._last, self._last_epoch = position, (position.epoch, position.repeat)
        return batches

    def _next_repeat(self) -> int:
        """Returns how often this epoch began without set_epoch: random transforms differ each time."""
        return self._last_epoch[1] + 1 if self._last_epoch and self._last_epoch[0] == self.epoch else 0

    def finish(self, position: EpochPosition) -> None:
        """Notes that the pass has ended."""
        if not position.finished:
            position.order.asked()
            position.finished = True
            self._epoch = position.epoch + 1

    def counts(self) -> dict[str, int]:
        """Returns how many samples of each class or source all ranks together have had in the newest epoch."""
        return {} if self.newest is None else self.newest.counts()

    @property
    def taken(self) -> list[int]:
        """The numbers of the samples of the batch handed out last."""
        taken = () if self.newest is None else self.newest.taken
        taken = taken() if callable(taken) else taken
        return [int(one) for one in np.ravel(np.asarray(taken, np.int64))]

    # --- state ----

    def state(self) -> dict[str, Any]:
        """Returns the newest pass's position; if it is over or none has begun, the beginning of the next."""
        if self.pending is not None:
            return dict(self.pending)
        state: dict[str, Any] = {"solar": STATE_VERSION, "epoch": self.epoch, "length": _length(self._dataset)}
        position = self.newest
        if position is not None and position.begun and not position.finished:
            state |= {
                "epoch": position.epoch,
                "repeat": position.repeat,
                "drawn": True,
                "begun": True,
                **position.state(),
            }
            base_seed = position.base_seed
        else:
            drawn = self.lasting_base_seed
            if position is not None and not position.begun:
                drawn = position.base_seed
            base_seed, saved = self.order().foretell(None if self._last is None else self._last.order, drawn)
            state["repeat"] = self._next_repeat()
            if position is not None and position.finished:
                state["epoch"] = max(self.epoch, position.epoch + 1)
            state |= {"drawn": drawn is not None, "begun": False, "batches": 0, "samples": 0, "order": saved}
            carried = {} if position is None else position.carried(not position.finished)
            state |= {"parts": carried["parts"]} if "parts" in carried else {}
        if state["order"]["kind"] != "distributed":  # whose state is the same on all ranks
            state["base_seed"] = base_seed
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Makes the next pass begin where this state was taken; for an empty state, at the beginning."""
        if state or not isinstance(state, dict):
            self._check(state)
            # The state of a finished epoch names the next one. The training loop tells the sampler that epoch.
            # If it has done so already, that stays.
            if state["begun"] or self.epoch != state["epoch"]:
                saved = state["epoch"] if state["begun"] else state["order"].get("epoch", state["epoch"])
                self.set_epoch(int(saved))
            self._epoch = int(state["epoch"])
        self.newest, self.lasting_base_seed = None, None
        self.pending = state or None

    def _check(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("solar") != STATE_VERSION:
            found = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise PlanError(f"this is no state of solar's DataLoader, version {STATE_VERSION}: found {found}")
        if missing := sorted(KEYS - state.keys()):
            raise PlanError(f"this state of solar's DataLoader is not whole: it lacks {', '.join(missing)}")
        check_values(state)
        length, order = _length(self._dataset), self.order()
        if state["length"] != length:
            raise PlanError(f"the state is of a dataset of {state['length']} samples; this one has {length}")
        if state["order"]["kind"] != order.kind:
            raise PlanError(
                f"the state is of a loader whose order is {state['order']['kind']}; this one's is {order.kind}: "
                "make it with the same sampler and shuffle"
            )
        check_order(state["order"], order.saved_keys)
        if "gaps" in state:
            check_gaps_of(order)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process begins anew, or at a loaded position."""
        return dict(self.__dict__, newest=None, _last=None, _last_epoch=None, lasting_base_seed=None)


@contextmanager
def undrawn(generator: torch.Generator | None) -> Iterator[None]:
    """Restores the generator at the end, as if nothing had been drawn; None is torch's global one."""
    import torch  # whose iterators draw

    state = torch.get_rng_state() if generator is None else generator.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(state) if generator is None else generator.set_state(state)


def _stream_of(sampler: Any, batch_sampler: Any, generator: torch.Generator | None) -> IndexStream:
    """Returns the IndexStream for these samplers of a loader. For a PlanSampler no torch is needed."""
    if type(batch_sampler) is PlanBatchSampler and type(batch_sampler.sampler) is PlanSampler:
        return Distributed(batch_sampler.sampler, batch_sampler, generator)
    from solar.samplers.sampler_streams import stream_of  # knows torch's samplers

    return stream_of(sampler, batch_sampler, generator)


def _cuts_evenly(cutter: Any) -> bool:
    """Returns whether the sampler is known to cut samples into batches of one size."""
    if type(cutter) is PlanBatchSampler:
        return True
    from solar.samplers.sampler_streams import BATCHING  # knows torch's samplers

    return type(cutter) in BATCHING


def has_state(part: Any) -> bool:
    """Returns whether it has torchdata's state_dict and load_state_dict."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
