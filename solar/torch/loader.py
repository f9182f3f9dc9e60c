"""DataLoader: torch's, with a native engine under H5Dataset."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import Sampler, default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory as pin
from torch.utils.data.dataloader import _BaseDataLoaderIter

from solar.errors import ReadError
from solar.torch.beneath import Rows, h5_beneath
from solar.torch.collate import Collation, samples_of
from solar.torch.dataset import H5Dataset, PendingBatch

T = TypeVar("T", covariant=True)
log = logging.getLogger("solar")


class DataLoader(torch.utils.data.DataLoader[T]):
    """torch.utils.data.DataLoader, argument for argument; an H5Dataset is read by native threads instead of workers.

    Batches, their order and every random draw are torch's. On a dataset that is not an H5Dataset it is torch's loader.

    `ahead` is the number of batches read before they are asked for; `num_workers` and `prefetch_factor` are accepted
    and start no process when the native engine runs.

    >>> from solar import DataLoader, H5Dataset
    >>> loader = DataLoader(H5Dataset("scan.h5", {"x": "/x", "y": "/y"}), batch_size=64, shuffle=True)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     batch["x"], batch["y"]
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        ahead: int = 4,
    ) -> None:
        if ahead < 1:
            raise ValueError(f"ahead={ahead}: at least one batch must be read at a time")
        # torch before 2.6 has no in_order: hand it on only when it says something.
        since_2_6: dict[str, Any] = {} if in_order else {"in_order": False}
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **since_2_6,
        )
        self.in_order = in_order
        self.ahead = ahead

    def __iter__(self) -> _BaseDataLoaderIter:
        found = h5_beneath(self.dataset)
        if found is None:
            return super().__iter__()
        log.debug("%s is read by the native engine, %d batches ahead", self.dataset, self.ahead)
        return _NativeIter(self, *found)


class _NativeIter(_BaseDataLoaderIter):
    """One epoch through the native engine. The base class draws from the generators as torch's own iterators do."""

    def __init__(self, loader: DataLoader[Any], dataset: H5Dataset, rows: Rows) -> None:
        super().__init__(loader)
        self._samples = dataset
        self._rows = rows
        self._ahead = loader.ahead
        self._pending: deque[PendingBatch | Exception] = deque()
        self._drained = False
        # torch's own collation is done on the arrays as they were read; any other gets the samples it expects.
        torchs_own = default_collate if self._auto_collation else default_convert
        self._collation = Collation(self._auto_collation) if self._collate_fn is torchs_own else None

    def _next_data(self) -> Any:
        while not self._drained and len(self._pending) < self._ahead:
            self._start_one()
        if not self._pending:
            raise StopIteration
        batch = self._pending.popleft()
        if isinstance(batch, Exception):
            raise batch
        try:
            arrays = batch.wait(self._timeout or None)
        except TimeoutError as error:
            raise ReadError(
                f"batch {self._num_yielded} of {self._samples} did not come in {self._timeout} s"
            ) from error
        if not self._drained:
            self._start_one()
        data = self._collated(arrays)
        return pin(data, self._pin_memory_device) if self._pin_memory else data  # type: ignore[no-untyped-call]

    def _start_one(self) -> None:
        """Starts the next batch; what goes wrong is raised when that batch's turn comes, as in torch."""
        try:
            indices = next(self._sampler_iter)
        except StopIteration:
            self._drained = True
            return
        except Exception as error:
            self._drained = True
            self._pending.append(error)
            return
        try:
            self._pending.append(self._samples.start_batch(self._rows(indices if self._auto_collation else [indices])))
        except Exception as error:
            self._pending.append(error)

    def _collated(self, arrays: Any) -> Any:
        if self._collation is not None:
            return self._collation(arrays)
        samples = samples_of(arrays)
        return self._collate_fn(samples if self._auto_collation else samples[0])
