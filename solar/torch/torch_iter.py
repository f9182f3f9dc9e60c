"""torch's own iterators, which also tell how far they are and can begin in the middle of an epoch."""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from solar.torch.position import Draws, Indices, Passage, has_state


class _Counted(_BaseDataLoaderIter):
    """Adds to one of torch's iterators that it counts what it hands out. It draws and yields what torch's does."""

    _sampler_iter: Indices
    _told_base_seed: int | None = None
    _handed_out = 0.0  # the time when the last batch was

    def __init__(self, loader: Any) -> None:
        self._course = loader._course
        loaded = self._course.pending
        if loaded is not None:
            self._told_base_seed = loaded.get("base_seed")
        self._stats = loader._stats
        self._device_transform = loader.device_transform
        self._bar = loader._progress_bar()
        super().__init__(loader)
        self.passage.base_seed = self._base_seed

    @property
    def passage(self) -> Passage:
        return self._sampler_iter.passage

    @property
    def _base_seed(self) -> int:
        """What seeds the workers: as it was when the state was saved that this pass goes on from."""
        return self._drawn_base_seed if self._told_base_seed is None else self._told_base_seed

    @_base_seed.setter
    def _base_seed(self, seed: int) -> None:
        self._drawn_base_seed = seed

    def _next_data(self) -> Any:
        passage = self.passage
        asked = time.perf_counter()
        if self._handed_out:
            self._stats.busy(asked - self._handed_out)
        try:
            data = self._first(passage) if passage.batches == 0 else super()._next_data()
        except StopIteration:
            self._finish(passage)
            raise
        except Exception:  # which was this batch; the next one comes after it
            passage.advance()
            raise
        before = passage.samples
        passage.advance()
        self._stats.batch(passage.samples - before, 0, {})
        if self._bar is not None:
            self._bar.update()
        self._stats.waited("dataset", time.perf_counter() - asked)
        if self._device_transform is not None:
            data = self._device_transform(data)
        self._handed_out = time.perf_counter()
        return data

    def _first(self, passage: Passage) -> Any:
        """The first batch. Of an iterable dataset that keeps no state, those before it are read and thrown away."""
        data: Any = super()._next_data()
        if self._dataset_kind == _DatasetKind.Iterable and not passage.parts:
            for _ in range(passage.before[0]):
                data = super()._next_data()
        return data

    def _finish(self, passage: Passage) -> None:
        if not passage.finished:
            self._stats.epoch()
        self._course.finish(passage)
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class SingleProcessIter(_Counted, _SingleProcessDataLoaderIter, Draws):
    """torch's iterator in this process. A dataset, or its iterator, that has a state keeps it."""

    def __init__(self, loader: Any) -> None:
        dataset, told = loader.dataset, self._told(loader)
        super().__init__(loader)
        iterator: Any = getattr(self._dataset_fetcher, "dataset_iter", None)
        parts = {"dataset": None if iterator is dataset else dataset, "iterator": iterator}
        if "iterator" in told:
            iterator.load_state_dict(told["iterator"])
        self.passage.parts = {name: part for name, part in parts.items() if has_state(part)}

    def _told(self, loader: Any) -> dict[str, Any]:
        return dict((loader._course.pending or {}).get("parts", {}))

    def _restore(self, loader: Any) -> None:
        if "dataset" in (told := self._told(loader)):
            loader.dataset.load_state_dict(told["dataset"])


class WorkersIter(_Counted, _MultiProcessingDataLoaderIter, Draws):
    """torch's iterator over worker processes."""
