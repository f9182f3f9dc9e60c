"""Where a loader is in its epoch: what it draws from its samplers, what it has handed out, and its state in JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from solar.errors import PlanError
from solar.torch.orders import Order, order_of

VERSION = 1


class Passage:
    """One pass over the samples: how it began, and how far the consumer is, who is behind what has been drawn."""

    def __init__(self, order: Order, epoch: int) -> None:
        self.order = order
        self.epoch = epoch
        self.base_seed: int | None = None
        self.begun = False  # the first index was drawn
        self.finished = False
        self.before = (0, 0)  # batches and samples consumed before it began, when it was resumed
        self.batches = 0
        self.samples = 0
        # The states that the dataset has itself: now, or (False) as an epoch would begin now.
        self.parts: Callable[[bool], dict[str, Any]] = lambda begun: {}
        self._drawn: deque[tuple[int, Any]] = deque()  # samples and order's mark of batches on their way
        self._mark: Any = None

    def draw(self, batch: Any) -> None:
        """An index batch was drawn."""
        self._drawn.append((len(batch) if hasattr(batch, "__len__") else 1, self.order.mark(batch)))

    def advance(self) -> None:
        """The next batch was handed out."""
        self.batches += 1
        if self._drawn:
            samples, self._mark = self._drawn.popleft()
            self.samples += samples

    def state(self) -> dict[str, Any]:
        batches, samples = self.before
        state = {
            "batches": batches + self.batches,
            "samples": self.order.consumed(samples, self.batches, self.samples),
            "order": self.order.tell(self._mark),
        }
        parts = self.parts(True)
        return state | {"parts": parts} if parts else state


class Draws(_BaseDataLoaderIter):
    """The last base before torch's: surrounds what torch draws for a new iterator, and nothing else of its making."""

    def __init__(self, loader: Any) -> None:
        with loader._course.torchs_draws():
            super().__init__(loader)
        self._restore(loader)

    def _restore(self, loader: Any) -> None:
        """Called between torch's draws and its first look at the dataset."""


class Indices:
    """The index batches of one pass. Nothing is drawn before the first is asked for, but what torch draws earlier."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self.passage = Passage(course.order(), course.epoch)
        course.newest = self.passage
        self._resumed = course.pending
        self._batches = None if self._resumed else self.passage.order.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.passage.begun:
            self._batches = self._course.begin(self.passage, self._resumed, self._batches)
        assert self._batches is not None
        batch = next(self._batches)
        self.passage.draw(batch)
        return batch


class Course:
    """A loader's index sampler over all its epochs. It belongs to the loader and its iterators, and knows neither.

    It is what torch's iterators take for the sampler, so that they can begin in the middle of an epoch.
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
        self._persistent = persistent  # workers that are, are seeded once
        self._epoch = 0  # counted here where no sampler knows it
        self.pending: dict[str, Any] | None = None  # a loaded state that no pass has begun with
        self.newest: Passage | None = None
        self.as_arrays = False  # what known orders give, where the native engine asks
        self.lasting_base_seed: int | None = None  # of persistent workers, which are seeded once
        self._last: Order | None = None  # of the pass begun last

    def __iter__(self) -> Indices:
        return Indices(self)

    def __len__(self) -> int:
        sampler, batch_sampler, _ = self._samplers
        return len(sampler if batch_sampler is None else batch_sampler)

    def order(self) -> Order:
        order = order_of(*self._samplers)
        order.draws_base_once, order.as_arrays = self._persistent, self.as_arrays
        return order

    @property
    def with_epochs(self) -> Any:
        """The sampler that is told epochs, if there is one: it has set_epoch, as torch's DistributedSampler has."""
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
        if self.pending is not None and self.pending["epoch"] != epoch:
            self.pending = None

    # --- a pass begins and ends ----

    @contextmanager
    def torchs_draws(self) -> Iterator[None]:
        """Surrounds what torch draws for a new iterator: nothing, if it goes on with a pass that has drawn already."""
        loaded, generator = self.pending, self._samplers[2]
        if loaded is None:
            yield
        else:
            if not loaded["begun"]:
                self.order().prepare(loaded["order"], loaded["drawn"])
            with undrawn(generator) if loaded["drawn"] else nullcontext():
                yield

    def begin(self, passage: Passage, loaded: dict[str, Any] | None, fresh: Iterator[Any] | None) -> Iterator[Any]:
        """Begins a pass; as the loaded state says unless another pass did, or its epoch was left."""
        passage.begun = True
        passage.epoch = self.epoch
        order, told = passage.order, None
        if loaded is not None and loaded is self.pending:
            self.pending = None
            if loaded["epoch"] == self.epoch or not loaded["begun"]:
                told = loaded["order"]
        if loaded is None or told is None:
            order.begin(self._last)
            batches = order.start() if fresh is None else fresh
        else:
            passage.before = loaded["batches"], loaded["samples"]
            passage.base_seed = loaded.get("base_seed", passage.base_seed)
            batches = order.resume(told, *passage.before) if loaded["begun"] else order.start_foretold(told)
        self._last = order
        return batches

    def finish(self, passage: Passage) -> None:
        """The pass came to its end."""
        if not passage.finished:
            passage.finished = True
            self._epoch = passage.epoch + 1

    # --- state ----

    def state(self) -> dict[str, Any]:
        """Where the newest pass is; when it is over or none has begun, the beginning of the next."""
        if self.pending is not None:
            return dict(self.pending)
        state: dict[str, Any] = {"solar": VERSION, "epoch": self.epoch, "length": _length(self._dataset)}
        passage = self.newest
        if passage is not None and passage.begun and not passage.finished:
            state |= {"epoch": passage.epoch, "drawn": True, "begun": True, **passage.state()}
            base_seed = passage.base_seed
        else:
            drawn = self.lasting_base_seed
            if passage is not None and not passage.begun:
                drawn = passage.base_seed
            base_seed, told = self.order().foretell(self._last, drawn)
            if passage is not None and passage.finished:
                state["epoch"] = max(self.epoch, passage.epoch + 1)
            state |= {"drawn": drawn is not None, "begun": False, "batches": 0, "samples": 0, "order": told}
            if passage is not None and (parts := passage.parts(not passage.finished)):
                state["parts"] = parts
        if state["order"]["kind"] != "distributed":  # whose state is the same on all ranks
            state["base_seed"] = base_seed
        return state

    def load(self, state: dict[str, Any]) -> None:
        """The next pass begins where this state was taken. An empty state means: at a beginning."""
        if state:
            self._check(state)
            # Of a finished epoch the state names the next one. The sampler is told that by whoever counts epochs.
            self.set_epoch(int(state["epoch"] if state["begun"] else state["order"].get("epoch", state["epoch"])))
            self._epoch = int(state["epoch"])
        self.newest = None
        self.pending = state or None

    def _check(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("solar") != VERSION:
            found = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise PlanError(f"this is no state of solar's DataLoader, version {VERSION}: found {found}")
        length, kind = _length(self._dataset), self.order().kind
        if state["length"] != length:
            raise PlanError(f"the state is of a dataset of {state['length']} samples; this one has {length}")
        if state["order"]["kind"] != kind:
            raise PlanError(
                f"the state is of a loader whose order is {state['order']['kind']}; this one's is {kind}: "
                "make it with the same sampler and shuffle"
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process begins anew, or where a loaded state says."""
        return dict(self.__dict__, newest=None, _last=None, lasting_base_seed=None)


@contextmanager
def undrawn(generator: torch.Generator | None) -> Iterator[None]:
    """Draws within are as if they had not been; None means torch's global generator."""
    state = torch.get_rng_state() if generator is None else generator.get_state()
    yield
    torch.set_rng_state(state) if generator is None else generator.set_state(state)


def has_state(part: Any) -> bool:
    """Whether it has torchdata's protocol of a state."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
