"""A loader's index batches from epoch to epoch: when they are drawn, where they begin, and the state as JSON."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from solar.errors import PlanError
from solar.torch.order.passage import EpochPosition, check_gaps_of
from solar.torch.order.stream import Cuts, IndexStream, Pass
from solar.torch.order.streams import BATCHING, order_of
from solar.torch.states import check_order, check_values

STATE_VERSION = 1
KEYS = {"epoch", "repeat", "length", "drawn", "begun", "batches", "samples", "order"}


class Draws(_BaseDataLoaderIter):
    """The last base before torch's: restores the random state around torch's constructor, which draws from it.

    Several threads may call `next` on one iterator: one at a time is served.
    """

    def __init__(self, loader: Any) -> None:
        self._turns = threading.RLock()
        with loader._course.torchs_draws():
            super().__init__(loader)
        self._base_seed: int = loader._course.base_seed(self._base_seed)
        self._restore(loader)

    def _restore(self, loader: Any) -> None:
        """Called between torch's draws and its first look at the dataset."""

    def __next__(self) -> Any:
        with self._turns:
            return super().__next__()


class Indices:
    """The index batches of one pass. Nothing is drawn before the first is asked for, but what torch draws earlier."""

    def __init__(self, course: SamplerState) -> None:
        self._course = course
        self.passage = EpochPosition(course.order(), course.epoch)
        self.passage.base_seed = course.lasting_base_seed
        course.newest = self.passage
        self._resumed = course.pending
        self._batches = None if self._resumed else self.passage.order.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def _begun(self) -> Iterator[Any]:
        if not self.passage.begun:
            self._batches = self._course.begin(self.passage, self._resumed, self._batches)
        assert self._batches is not None
        return self._batches

    def begin_beside_workers(self) -> None:
        """Begins a pass of random order at once, for torch gives its workers index batches when it begins."""
        if self.passage.order.draws:
            self._batches = self.passage.order.draw_at_once(self._begun())

    def at_once(self) -> Pass | None:
        """All index batches of a pass that is known, in one go, unless one was taken; they count as drawn."""
        batches = self._begun()
        if not isinstance(batches, Cuts) or self.passage.has_gaps:
            return None
        made = batches.at_once()
        self.passage.draw_all(made[1])
        self.passage.order.ended()
        return made

    def __next__(self) -> Any:
        batches = self._batches if self.passage.begun else self._begun()
        assert batches is not None
        try:
            batch = next(batches)
            while not self.passage.draw(batch):
                batch = next(batches)
        except StopIteration:
            self.passage.order.ended()
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
        if type(self.cutter) not in BATCHING:
            return None
        size = int(self.cutter.batch_size)
        return size if samples is None else max(1, min(size, samples))

    @property
    def cutter(self) -> Any:
        """The sampler that cuts the samples into batches, if there is one."""
        return self._samplers[1]

    def order(self) -> IndexStream:
        order = order_of(*self._samplers)
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
        """Tells the sampler. A position that was loaded for another epoch is forgotten."""
        if self.with_epochs is not None:
            self.with_epochs.set_epoch(epoch)
        self._epoch = epoch
        self._last_epoch = None
        if self.pending is not None and self.pending["epoch"] != epoch:
            self.pending = None

    # --- a pass begins and ends ----

    @contextmanager
    def torchs_draws(self) -> Iterator[None]:
        """The context of torch's draws for a new iterator. A resumed pass undoes them: it has drawn already."""
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
        """The seed of workers and transforms: the loaded one, that of persistent workers, or torch's new draw."""
        told = self.lasting_base_seed if self.pending is None else self.pending.get("base_seed")
        seed = drawn if told is None else int(told)
        if self._persistent:
            self.lasting_base_seed = seed
        return seed

    def begin(
        self, passage: EpochPosition, loaded: dict[str, Any] | None, fresh: Iterator[Any] | None
    ) -> Iterator[Any]:
        """Begins a pass. It resumes a loaded state, unless another pass did or the epoch was changed."""
        passage.begun = True
        passage.epoch = self.epoch
        if self._last is not None and self._last.finished:
            self.stride = max(0, passage.epoch - self._last.epoch)
        order, told = passage.order, None
        if loaded is not None and loaded is self.pending:
            self.pending = None
            if loaded["epoch"] == self.epoch or not loaded["begun"]:
                told = loaded["order"]
        if loaded is None or told is None:
            passage.repeat = self._next_repeat()
            order.begin(self._last.order if self._last is not None else None)
            batches = order.start() if fresh is None else fresh
        else:
            passage.resume(loaded)
            passage.repeat = loaded["repeat"] if told.get("epoch", loaded["epoch"]) == self.epoch else 0
            batches = order.resume(told, *passage.before) if loaded["begun"] else order.start_foretold(told)
        self._last, self._last_epoch = passage, (passage.epoch, passage.repeat)
        return batches

    def _next_repeat(self) -> int:
        """How often this epoch was begun before without set_epoch: random transforms treat each as another epoch."""
        return self._last_epoch[1] + 1 if self._last_epoch and self._last_epoch[0] == self.epoch else 0

    def finish(self, passage: EpochPosition) -> None:
        """Notes that the pass came to its end."""
        if not passage.finished:
            passage.order.asked()
            passage.finished = True
            self._epoch = passage.epoch + 1

    def counts(self) -> dict[str, int]:
        """How many samples of each class or source all ranks together have had of the newest epoch."""
        return {} if self.newest is None else self.newest.counts()

    @property
    def taken(self) -> list[int]:
        """The numbers of the samples of the batch handed out last."""
        taken = () if self.newest is None else self.newest.taken
        taken = taken() if callable(taken) else taken
        return [int(one) for one in np.ravel(np.asarray(taken, np.int64))]

    # --- state ----

    def state(self) -> dict[str, Any]:
        """The newest pass's position; if it is over or none has begun, the beginning of the next."""
        if self.pending is not None:
            return dict(self.pending)
        state: dict[str, Any] = {"solar": STATE_VERSION, "epoch": self.epoch, "length": _length(self._dataset)}
        passage = self.newest
        if passage is not None and passage.begun and not passage.finished:
            state |= {"epoch": passage.epoch, "repeat": passage.repeat, "drawn": True, "begun": True, **passage.state()}
            base_seed = passage.base_seed
        else:
            drawn = self.lasting_base_seed
            if passage is not None and not passage.begun:
                drawn = passage.base_seed
            base_seed, told = self.order().foretell(None if self._last is None else self._last.order, drawn)
            state["repeat"] = self._next_repeat()
            if passage is not None and passage.finished:
                state["epoch"] = max(self.epoch, passage.epoch + 1)
            state |= {"drawn": drawn is not None, "begun": False, "batches": 0, "samples": 0, "order": told}
            if passage is not None and (parts := passage.parts(not passage.finished)):
                state["parts"] = parts
        if state["order"]["kind"] != "distributed":  # whose state is the same on all ranks
            state["base_seed"] = base_seed
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Lets the next pass begin where this state was taken; for an empty state, at the beginning."""
        if state or not isinstance(state, dict):
            self._check(state)
            # The state of a finished epoch names the next one. The training loop tells the sampler that epoch.
            # If it has done so already, that stays.
            if state["begun"] or self.epoch != state["epoch"]:
                told = state["epoch"] if state["begun"] else state["order"].get("epoch", state["epoch"])
                self.set_epoch(int(told))
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
        check_order(state["order"], order.told_by_all)
        if "gaps" in state:
            check_gaps_of(order)

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state. A copy in another process begins anew, or at a loaded position."""
        return dict(self.__dict__, newest=None, _last=None, _last_epoch=None, lasting_base_seed=None)


@contextmanager
def undrawn(generator: torch.Generator | None) -> Iterator[None]:
    """Restores the generator at the end, as if nothing had been drawn; None means torch's global one."""
    state = torch.get_rng_state() if generator is None else generator.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(state) if generator is None else generator.set_state(state)


def has_state(part: Any) -> bool:
    """Whether it has torchdata's state_dict and load_state_dict."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
