"""torch's own iterators, which know their position and can begin in the middle of an epoch."""

from __future__ import annotations

import io
import logging
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.utils.data._utils.worker as torchs_worker
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.worker import _IterableDatasetStopIteration
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from solar.loader.batch import profiling
from solar.loader.batch_queue import ITERATOR_CLOSED
from solar.loader.iterator import Draws
from solar.loader.stats import FOLDED
from solar.samplers.epoch_position import EpochPosition, Indices, has_state


def stateful_parts(fetcher: Any) -> dict[str, Any]:
    """A fetcher's dataset and its iterator, if they have states. A dataset that is its own iterator counts once."""
    dataset, iterator = fetcher.dataset, getattr(fetcher, "dataset_iter", None)
    parts = {"dataset": None if iterator is dataset else dataset, "iterator": iterator}
    return {name: part for name, part in parts.items() if has_state(part)}


def fetcher_states(fetcher: Any) -> dict[str, Any]:
    states: dict[str, Any] = {name: part.state_dict() for name, part in stateful_parts(fetcher).items()}
    # An iterator that came to its end may say that it is at its beginning: the fetcher knows better.
    return states | {"ended": True} if states and getattr(fetcher, "ended", False) else states


def restore_iterator(fetcher: Any, states: dict[str, Any]) -> None:
    """Restores the iterator's state, after the fetcher was made. The dataset's own state is restored before."""
    if "iterator" in states:
        fetcher.dataset_iter.load_state_dict(states["iterator"])
    if "ended" in states:
        fetcher.ended = True


# --- in the worker process ----


@dataclass
class CarriedBatch:
    """A batch from a worker, with the states there right after it was made.

    The states are pickled at once, for the dataset goes on. So tensors in them need no shared memory.
    """

    data: Any
    worker: int
    states: bytes

    def pin_memory(self) -> CarriedBatch:
        return CarriedBatch(pin_memory(self.data), self.worker, self.states)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class EndedIterator(_IterableDatasetStopIteration):
    """torch's message that a worker's iterable dataset came to its end, with the states after it."""

    states: bytes


class StateCarrier:
    """The worker's init function. After the user's, it makes batches carry the state of a dataset that has one.

    Else it leaves everything as torch made it. `states` are the states in which the workers begin.
    """

    def __init__(self, users: Callable[[int], None] | None, states: list[bytes | None]) -> None:
        self._users = users
        self._states = states

    def __call__(self, worker: int) -> None:
        if self._users is not None:
            self._users(worker)
        pickled = self._states[worker]
        states: dict[str, Any] = _unpickle(pickled) or {}
        dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]
        torchs: Callable[..., Any] = _DatasetKind.create_fetcher

        def create_fetcher(kind: Any, of: Any, *options: Any) -> Any:
            if of is not dataset:  # it belongs to a loader inside this dataset
                return torchs(kind, of, *options)
            if "dataset" in states:
                dataset.load_state_dict(states["dataset"])
            fetcher = torchs(kind, of, *options)
            restore_iterator(fetcher, states)
            states.clear()  # persistent workers come here again for the next epoch
            return _Fetcher(fetcher, worker) if stateful_parts(fetcher) else fetcher

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]


class _Fetcher:
    """torch's fetcher, whose batches carry the states."""

    def __init__(self, torchs: Any, worker: int) -> None:
        self._torchs = torchs
        self._worker = worker
        self._states = b""
        torchs_worker._IterableDatasetStopIteration = self._end  # type: ignore[assignment,misc]

    def fetch(self, index: Any) -> CarriedBatch:
        try:
            data = self._torchs.fetch(index)
        except StopIteration:
            self._states = pickle.dumps(fetcher_states(self._torchs))
            raise
        return CarriedBatch(data, self._worker, pickle.dumps(fetcher_states(self._torchs)))

    def _end(self, worker: int) -> EndedIterator:
        return EndedIterator(worker, self._states)


# --- in the loader's process ----


class WorkerStates:
    """Each worker's states with its last batch that was handed out, and which worker's turn it is.

    They are plain values in a loader's state, and pickled in here. None: a worker that has sent nothing yet.
    """

    def __init__(self, workers: int, initial: dict[str, Any], own: bool, lasting: bool) -> None:
        self.next: int = initial.get("next", 0)
        self.handed_out = [_pickle(states) for states in initial.get("workers", [None] * workers)]
        self._received = list(self.handed_out)  # is ahead of what was handed out
        self.worker_batches = [0] * workers  # batches that each worker gave in this epoch and that were handed out
        self.last = 0  # the worker that gave the last of them
        self._own = own  # the dataset itself has a state
        self._lasting = lasting  # the workers are persistent

    def receive(self, data: Any) -> None:
        """Takes note of what came from a worker."""
        if isinstance(data, CarriedBatch):
            self._received[data.worker] = data.states
        elif isinstance(data, EndedIterator):
            self._received[data.worker_id] = data.states

    def hand_out(self, data: Any, *worker: int) -> Any:
        """Returns the batch itself, which came from `worker`. torch before 2.6 does not give the worker."""
        carried = isinstance(data, CarriedBatch)
        last = data.worker if carried else worker[0] if worker else self.next
        self.next, self.last = (last + 1) % len(self.handed_out), last
        self.worker_batches[last] += 1
        if not carried:
            return data
        self.handed_out[last] = data.states
        return data.data

    def begin_again(self) -> None:
        """Called when persistent workers have begun another epoch."""
        self.handed_out = [_pickle(states) for states in self._again()]
        self.worker_batches = [0] * len(self.worker_batches)

    def state(self, begun: bool) -> dict[str, Any]:
        """Returns all states; if not `begun`, those in which these workers would begin an epoch now."""
        if begun:
            states = [_unpickle(pickled) for pickled in self.handed_out]
        else:  # Workers that are not persistent are gone; the next are made from the dataset in this process.
            states = self._again() if self._lasting else []
        return {"workers": states, "next": self.next if begun else 0} if any(states) else {}

    def _again(self) -> list[dict[str, Any] | None]:
        """The states before a new iterator is made of the datasets."""
        newest = [_unpickle(pickled) or {} for pickled in self._received]
        last = [states.get("dataset", states.get("iterator")) if self._own else None for states in newest]
        return [None if state is None else {"dataset": state} for state in last]


def _pickle(states: dict[str, Any] | None) -> bytes | None:
    return None if states is None else pickle.dumps(states)


def _unpickle(pickled: bytes | None) -> dict[str, Any] | None:
    return None if pickled is None else _Unpickler(io.BytesIO(pickled)).load()


class _Unpickler(pickle.Unpickler):
    """Unpickles tensors, too, without the warning of torch before 2.6 about its own pickles."""

    def find_class(self, module: str, name: str) -> Any:
        whole = (module, name) == ("torch.storage", "_load_from_bytes")
        return load_storage if whole else super().find_class(module, name)


def load_storage(pickled: bytes) -> Any:
    return torch.load(io.BytesIO(pickled), weights_only=True)


log = logging.getLogger("solar")

MADE_BY_DATASET = ("made_by_dataset",)  # the only count of a batch that torch's engine made


class _Counted(_BaseDataLoaderIter):
    """Makes one of torch's iterators count what it hands out. Its draws and batches stay torch's."""

    _sampler_iter: Indices
    _turns: Any  # of Draws, which is a base class beside it
    _handed_out: float = 0.0  # the time when the last batch was
    _came = True  # torch has given a batch, or the error in its place, since it was asked for the next
    _number: int | None = None  # of that batch; None: the next in order
    _worker = 0  # that it came from
    _passing: list[int] | None = None  # batches that are still passed over; None: nobody has looked

    def __init__(self, loader: Any) -> None:
        self._sampler_state = loader._sampler_state
        loaded = self._sampler_state.pending
        self._loaded_states = _worker_states(loaded or {}, loader.num_workers)
        self._given: list[int] = (loaded or {}).get("given", [])  # batches of each worker, before it was resumed
        self._stats = loader._stats
        self._device_transform = loader.device_transform
        self._landing = loader._on_device.landing(loader.dataset, loader._stats)
        self._bar = loader._progress_bar()
        super().__init__(loader)
        self.position.base_seed = int(self._base_seed)

    @property
    def position(self) -> EpochPosition:
        return self._sampler_iter.position

    def __next__(self) -> Any:
        """Returns the next batch. It is torch's method without the profiler range while the profiler is off."""
        if self._dataset_kind != _DatasetKind.Map or profiling():
            return super().__next__()
        with self._turns:
            data = self._next_data()
            self._num_yielded += 1
            return data

    def _next_data(self) -> Any:
        position, stats = self._sampler_iter.position, self._stats
        asked_at = time.perf_counter()
        busy = asked_at - self._handed_out if self._handed_out else 0.0
        self._came = self._num_workers == 0
        try:
            data = self._next_of_torch(position)
        except StopIteration:
            stats.busy(busy)
            self._finish(position)
            raise
        except Exception:  # which was this batch; the next one comes after it
            stats.busy(busy)
            if self._came:
                position.advance(self._number)
            raise
        samples, came = position.advance(self._number), time.perf_counter()
        # Counting is left to Stats, which does it when it is asked or after several batches.
        stats.noted.append((busy, came - asked_at, 0.0, 0.0, samples, 0, MADE_BY_DATASET, (1,)))
        if len(stats.noted) >= FOLDED:
            stats.fold()
        if self._bar is not None:
            self._bar.update()
        if self._landing is not None:
            data = self._landing.handed_out(self._landing.land(data))
            stats.waited("device copy", time.perf_counter() - came)
        if self._device_transform is not None:
            data = self._device_transform(data)
        self._handed_out = time.perf_counter()
        return data

    def _next_of_torch(self, position: EpochPosition) -> Any:
        """Returns the next batch that was not handed out before the pass was resumed, or the error in its place."""
        data: Any = super()._next_data()
        if position.batches == 0 and self._passing is None:
            self._passing = self._skip_batches(position.before[0])
        while self._passing and self._passes_over(self._passing):
            data = super()._next_data()
        return data

    def _passes_over(self, left: list[int]) -> bool:
        """Returns whether a batch was handed out before. `left` are those of each worker, or of all."""
        worker = self._worker if len(left) > 1 else 0
        left[worker] -= 1
        return left[worker] >= 0

    def _skip_batches(self, batches: int) -> list[int]:
        """Returns how many batches of each worker, or of all, are read again: an iterable dataset may have no state."""
        if self._dataset_kind != _DatasetKind.Iterable or self._loaded_states or not batches:
            return []
        log.warning(
            "%s goes on without a state: the %d batches handed out before are read again and passed over; "
            "with state_dict and load_state_dict on it or on its iterator they need not be",
            type(self._dataset).__name__,
            batches,
        )
        given, workers = self._given, max(1, self._num_workers)
        if given and len(given) != workers:
            log.warning(
                "the loaded state was taken with %s, and this loader has num_workers=%d: an iterable dataset may give "
                "other batches then, so samples may be lost or come twice; make the loader with as many workers",
                f"num_workers={len(given)}" if len(given) > 1 else "at most one worker",
                self._num_workers,
            )
        return list(given) if len(given) == workers else [batches]

    def _finish(self, position: EpochPosition) -> None:
        if not position.finished:
            self._stats.epoch()
        self._sampler_state.finish(position)
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class SingleProcessIter(_Counted, _SingleProcessDataLoaderIter, Draws):
    """torch's iterator in this process. It saves the state of a dataset, or of its iterator, that has one."""

    _closed = False

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._adopted = loader._adopted_pass(self._dataset_fetcher, self.position)
        restore_iterator(self._dataset_fetcher, self._loaded_states)
        given = self.position.all_batches if self._dataset_kind == _DatasetKind.Iterable else list
        self.position.carried = partial(carried_states, partial(begin_states, self._dataset_fetcher), given)

    def _next_index(self) -> Any:
        if self._adopted is None:
            return super()._next_index()  # type: ignore[no-untyped-call]
        return self._adopted.next_batch(self._sampler_iter)

    def _next_of_torch(self, position: EpochPosition) -> Any:
        if self._closed and not position.finished:
            raise RuntimeError(ITERATOR_CLOSED)
        if self._adopted is None or self._adopted.adopted.left_alone:
            if self._passing == []:
                return _SingleProcessDataLoaderIter._next_data(self)  # type: ignore[no-untyped-call]
            return super()._next_of_torch(position)
        with self._adopted:
            return super()._next_of_torch(position)

    def close(self) -> None:
        """Ends the iterator: it yields no more."""
        self._closed = True

    def _restore(self, loader: Any) -> None:
        if "dataset" in self._loaded_states:
            loader.dataset.load_state_dict(self._loaded_states["dataset"])


class WorkersIter(_Counted, _MultiProcessingDataLoaderIter, Draws):
    """torch's iterator over worker processes. It saves the states of datasets, or of their iterators, there."""

    _users_init_fn: Callable[[int], None] | None
    _cycle: Iterator[int]
    _adopting: Callable[[Any], Callable[[int], None]] | None

    def _restore(self, loader: Any) -> None:
        own = has_state(loader.dataset)
        # Only the worker, which makes the iterator, can see whether that has a state.
        self._may_carry = own or self._dataset_kind == _DatasetKind.Iterable
        self._carried = WorkerStates(loader.num_workers, self._loaded_states, own, loader.persistent_workers)
        self._adopting = None if own else loader._adopting_workers()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._carried.next = 0
        super()._reset(loader, first_iter)
        if not first_iter:
            self._carried.begin_again()
        given = self._carried.worker_batches.copy if self._dataset_kind == _DatasetKind.Iterable else list
        self.position.carried = partial(carried_states, self._carried.state, given)
        self.position.order.in_any_order = not getattr(self, "_in_order", True)

    @property
    def _worker_init_fn(self) -> Callable[[int], None] | None:
        """The init function that torch gives its workers."""
        if self._may_carry:
            return StateCarrier(self._users_init_fn, self._carried.handed_out)
        return self._users_init_fn if self._adopting is None else self._adopting(self._users_init_fn)

    @_worker_init_fn.setter
    def _worker_init_fn(self, users: Callable[[int], None] | None) -> None:
        self._users_init_fn = users

    @property
    def _worker_queue_idx_cycle(self) -> Any:
        """The workers in turn, from the one whose turn it is."""
        return self._cycle

    @_worker_queue_idx_cycle.setter
    def _worker_queue_idx_cycle(self, cycle: Any) -> None:
        self._cycle = islice(cycle, self._carried.next, None)

    def _get_data(self) -> Any:
        index, data = super()._get_data()  # type: ignore[no-untyped-call]
        self._carried.receive(data)
        self._sent = index
        return index, data

    def _process_data(self, data: Any, *worker: int) -> Any:
        self._came = True
        if self.position.order.in_any_order and self._dataset_kind == _DatasetKind.Map:
            self._number = self.position.number_of(self._sent)  # torch hands out what came last
        data = self._carried.hand_out(data, *worker)
        self._worker = self._carried.last
        return super()._process_data(data, *worker)  # type: ignore[no-untyped-call]


def _worker_states(loaded: dict[str, Any], workers: int) -> dict[str, Any]:
    """Returns the dataset's own states in a loaded state, if the number of processes is the same."""
    parts = dict(loaded.get("parts", {}))
    before = len(parts.get("workers", []))
    if not parts or before == workers:
        return parts
    log.warning(
        "the loaded state holds the dataset's own with num_workers=%d; this loader has num_workers=%d, so the dataset "
        "begins without: make the loader with as many workers to give it back",
        before,
        workers,
    )
    return {}


def carried_states(
    states: Callable[[bool], dict[str, Any]], given: Callable[[], list[int]], begun: bool
) -> dict[str, Any]:
    """Returns what a loader's state says about its dataset: the states of its parts, else the batches it has given.

    `given` returns the batches of each worker of an iterable dataset. A new epoch, where `begun` is False, has none.
    """
    if parts := states(begun):
        return {"parts": parts}
    counts = given() if begun else []
    return {"given": counts} if sum(counts) else {}


def begin_states(fetcher: Any, begun: bool) -> dict[str, Any]:
    """Returns the states of a dataset in this process. A new epoch begins with a new iterator."""
    if begun:
        return fetcher_states(fetcher)
    return {name: part.state_dict() for name, part in stateful_parts(fetcher).items() if name == "dataset"}
