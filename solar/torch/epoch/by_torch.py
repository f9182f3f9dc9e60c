"""torch's own iterators, extended: they know their position and can begin in the middle of an epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from solar.torch.epoch.carried import Carrying, WorkerStates, parts_of, restore_iterator, states_of
from solar.torch.order.passage import EpochPosition
from solar.torch.order.position import Draws, Indices, has_state

log = logging.getLogger("solar")


class _Counted(_BaseDataLoaderIter):
    """Makes one of torch's iterators count what it hands out. Its draws and batches stay torch's."""

    _sampler_iter: Indices
    _handed_out: float = 0.0  # the time when the last batch was
    _came = True  # torch has given a batch, or the error in its place, since it was asked for the next
    _number: int | None = None  # of that batch; None: the next in order
    _worker = 0  # that it came from
    _passing: list[int] | None = None  # batches that are still passed over; None: nobody has looked

    def __init__(self, loader: Any) -> None:
        self._course = loader._course
        loaded = self._course.pending
        self._told_parts = _told_parts(loaded or {}, loader.num_workers)
        self._given: list[int] = (loaded or {}).get("given", [])  # batches of each worker, before it was resumed
        self._stats = loader._stats
        self._device_transform = loader.device_transform
        self._landing = loader._on_device.landing(loader.dataset, loader._stats)
        self._bar = loader._progress_bar()
        super().__init__(loader)
        self.passage.base_seed = int(self._base_seed)

    @property
    def passage(self) -> EpochPosition:
        return self._sampler_iter.passage

    def _next_data(self) -> Any:
        passage = self.passage
        asked = time.perf_counter()
        if self._handed_out:
            self._stats.busy(asked - self._handed_out)
        self._came = self._num_workers == 0
        try:
            data = self._next_of_torch(passage)
        except StopIteration:
            self._finish(passage)
            raise
        except Exception:  # which was this batch; the next one comes after it
            if self._came:
                passage.advance(self._number)
            raise
        self._stats.batch(passage.advance(self._number), 0, {})
        if self._bar is not None:
            self._bar.update()
        came = time.perf_counter()
        self._stats.waited("dataset", came - asked)
        if self._landing is not None:
            data = self._landing.handed_out(self._landing.land(data))
            self._stats.waited("device copy", time.perf_counter() - came)
        if self._device_transform is not None:
            data = self._device_transform(data)
        self._handed_out = time.perf_counter()
        return data

    def _next_of_torch(self, passage: EpochPosition) -> Any:
        """The next batch that was not handed out before the pass was resumed, or the error in its place."""
        data: Any = super()._next_data()
        if passage.batches == 0 and self._passing is None:
            self._passing = self._passed_over(passage.before[0])
        while self._passing and self._passes_over(self._passing):
            data = super()._next_data()
        return data

    def _passes_over(self, left: list[int]) -> bool:
        """Whether the batch that came was handed out before. `left` are those of each worker, or of all together."""
        worker = self._worker if len(left) > 1 else 0
        left[worker] -= 1
        return left[worker] >= 0

    def _passed_over(self, batches: int) -> list[int]:
        """How many batches of each worker, or of all, are read again: an iterable dataset may have no state."""
        if self._dataset_kind != _DatasetKind.Iterable or self._told_parts or not batches:
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

    def _finish(self, passage: EpochPosition) -> None:
        if not passage.finished:
            self._stats.epoch()
        self._course.finish(passage)
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class SingleProcessIter(_Counted, _SingleProcessDataLoaderIter, Draws):
    """torch's iterator in this process. It saves the state of a dataset, or of its iterator, that has one."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        restore_iterator(self._dataset_fetcher, self._told_parts)
        self.passage.parts = partial(_parts, self._dataset_fetcher)
        if self._dataset_kind == _DatasetKind.Iterable:
            self.passage.given = self.passage.all_batches

    def _restore(self, loader: Any) -> None:
        if "dataset" in self._told_parts:
            loader.dataset.load_state_dict(self._told_parts["dataset"])


class WorkersIter(_Counted, _MultiProcessingDataLoaderIter, Draws):
    """torch's iterator over worker processes. It saves the states of datasets, or of their iterators, there."""

    _users_init_fn: Callable[[int], None] | None
    _cycle: Iterator[int]

    def _restore(self, loader: Any) -> None:
        own = has_state(loader.dataset)
        # Only the worker, which makes the iterator, can see whether that has a state.
        self._may_carry = own or self._dataset_kind == _DatasetKind.Iterable
        self._carried = WorkerStates(loader.num_workers, self._told_parts, own, loader.persistent_workers)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._carried.next = 0
        super()._reset(loader, first_iter)
        if not first_iter:
            self._carried.begin_again()
        self.passage.parts = self._carried.state
        self.passage.in_any_order = not getattr(self, "_in_order", True)
        if self._dataset_kind == _DatasetKind.Iterable:
            self.passage.given = self._carried.given.copy

    @property
    def _worker_init_fn(self) -> Callable[[int], None] | None:
        """The init function that torch gives its workers."""
        return Carrying(self._users_init_fn, self._carried.handed_out) if self._may_carry else self._users_init_fn

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
        if self.passage.in_any_order and self._dataset_kind == _DatasetKind.Map:
            self._number = self.passage.number_of(self._sent)  # torch hands out what came last
        data = self._carried.hand_out(data, *worker)
        self._worker = self._carried.last
        return super()._process_data(data, *worker)  # type: ignore[no-untyped-call]


def _told_parts(loaded: dict[str, Any], workers: int) -> dict[str, Any]:
    """The dataset's own states in a loaded state, if the number of processes is the same."""
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


def _parts(fetcher: Any, begun: bool) -> dict[str, Any]:
    """The states of a dataset in this process. A new epoch begins with a new iterator."""
    if begun:
        return states_of(fetcher)
    return {name: part.state_dict() for name, part in parts_of(fetcher).items() if name == "dataset"}
