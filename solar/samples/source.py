"""Finds the H5Datasets beneath a torch dataset: through Subset, random_split and ConcatDataset."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from solar.errors import ReadError
from solar.io.system.identity import check_unchanged
from solar.io.system.profile import stored_or_guessed
from solar.io.system.waiting import WaitTimeout, within
from solar.samples.dataset import H5Dataset, alike, start_batch_of
from solar.samples.field_reader import picking
from solar.samples.kinds import layouts_of
from solar.samples.pending import PendingBatch, leaves
from solar.values import Layout, batches_ahead

if TYPE_CHECKING:
    from torch.utils.data import ConcatDataset

Array = np.ndarray[Any, np.dtype[np.int64]]
READING = ("read_batch", "start_batch_of", "start_rows", "checked")  # by which an H5Dataset makes its samples
Locate = Callable[[Sequence[Any] | Array], tuple[Array, Array]]


@dataclass(frozen=True)
class SampleSource:
    """The H5Datasets beneath a dataset. All are alike: the first one's fields and transform hold for all."""

    datasets: list[H5Dataset]
    locate: Locate  # indices of the dataset -> for each index, the number of its H5Dataset and the row there
    plain: bool = field(default=False, kw_only=True)  # the indices are rows of the only H5Dataset

    @property
    def first(self) -> H5Dataset:
        return self.datasets[0]

    def start(self, indices: Sequence[Any], epoch: int) -> tuple[PendingBatch, Array]:
        """Starts reading a batch of an epoch. Gives it, and each sample's number, which is the same in every subset."""
        which, rows = self.locate(indices)
        own = self.numbered(which, rows, epoch)
        if len(self.datasets) == 1:
            return self.datasets[0].start_rows(own), rows
        return start_batch_of(self.datasets, which, own), self.names(which, rows)

    def numbered(self, which: Array | None, rows: Array, epoch: int) -> Array:
        """These samples as an epoch has them, where places are drawn anew in each."""
        if not self.draws:
            return rows
        found = rows.copy()
        for number, dataset in enumerate(self.datasets):
            here = np.full(len(rows), True) if which is None else which == number
            found[here] = dataset.numbered(rows[here], epoch)
        return found

    @property
    def picks(self) -> bool:
        """Whether any field has some of the rows that are read for it."""
        return any(own is not None and own.picks is not None for own in leaves(self.first.extents))

    def picking(self, field: int, which: Array | None, numbers: Array) -> Callable[[Any], Any] | None:
        """Returns what takes the rows that belong to these samples out of those that were read of a field."""
        every = enumerate(self.datasets)
        here = [(one, None if which is None else np.flatnonzero(which == number)) for number, one in every]
        maps = [(leaves(one.extents)[field], numbers if at is None else numbers[at], at) for one, at in here]
        return picking([one for one in maps if len(one[1])], len(numbers))

    def names(self, which: Array, rows: Array) -> Array:
        """Returns the samples' numbers, which are the same in every subset."""
        return rows if len(self.datasets) == 1 else rows + self.firsts[which]

    def rows_of(self, which: Array | None, samples: Array) -> Array:
        """Returns the row that each sample is, or has its place at, in its H5Dataset."""
        rows = np.empty(len(samples), np.int64)
        for number, dataset in enumerate(self.datasets):
            here = np.full(len(samples), True) if which is None else which == number
            rows[here] = dataset.rows_of(samples[here])
        return rows

    def layouts(self) -> list[Layout]:
        """Returns the Layout of each dataset that is read, of each H5Dataset."""
        return [layout for dataset in self.datasets for read in dataset.reads for layout in layouts_of(read)]

    @property
    def batches_ahead(self) -> int:
        """How many are read before they are asked for, where nobody says."""
        return batches_ahead(self.layouts())

    @property
    def ragged(self) -> bool:
        """Whether samples are of unequal length."""
        return any(own is not None and own.lengths is not None for own in leaves(self.first.extents))

    @property
    def boxes(self) -> bool:
        """Whether samples are boxes, in any field."""
        return any(own is not None and own.noun == "boxes" for own in leaves(self.first.extents))

    @property
    def draws(self) -> bool:
        """Whether places of samples are drawn anew in each epoch."""
        return any(dataset.draws for dataset in self.datasets)

    def filters(self) -> set[int]:
        """HDF5's numbers of the filters that reading must undo."""
        return {one.id for layout in self.layouts() for form in layout.forms for one in form.filters}

    def samples_per_chunk(self) -> int:
        """Returns how many samples share a chunk that is decompressed, at most."""
        shared = [
            min(form.chunk[0], layout.samples) for layout in self.layouts() for form in layout.forms if form.filters
        ]
        return max([1, *shared])

    def replaced(self, *, gone: bool) -> ReadError | None:
        """Returns the error if a file was replaced since it was inspected; with `gone`, also if it was deleted."""
        try:
            check_unchanged((layout for one in self.datasets for layout in leaves(one.layouts)), gone=gone)
        except ReadError as error:
            return error.with_traceback(None)
        return None

    def decoded_nbytes(self) -> int:
        """Returns the bytes of a stage that keeps all chunks decoded; 0 if there is a stage, or nothing to decode."""
        if any(one.tier is not None for one in self.datasets):
            return 0
        from solar.io.reading.decoded_stage import decoded_nbytes

        return sum(map(decoded_nbytes, self.layouts()))

    def staging(self) -> str:
        """Returns warnings about the folders of local copies, one per line; none if all is well."""
        tiers = dict.fromkeys(one.tier for one in self.datasets if one.tier is not None)
        if not tiers:
            return ""
        from solar.io.reading.stage import tier_warnings

        return "\n".join(filter(None, map(tier_warnings, tiers)))

    @cached_property
    def firsts(self) -> Array:
        """The number of the first sample of each H5Dataset, counted as if all were concatenated."""
        return np.cumsum([0, *(dataset.numbers for dataset in self.datasets[:-1])])


def look_at_files(
    files: SampleSource, source: SampleSource, buffered: Any, seconds: float, *, gone: bool
) -> ReadError | None:
    """Returns what `files.replaced` gives, and all else that is asked of file systems before the first batch of an
    epoch.

    With a limit it is asked in a thread of its own, for a call of the system does not return from a file system that
    hangs. ReadError after so many seconds.
    """
    if not seconds:
        return files.replaced(gone=gone)

    def look() -> ReadError | None:
        if (replaced := files.replaced(gone=gone)) is None:
            paths = {layout.paths[0] for layout in source.layouts()}
            buffered.storage = buffered.storage or {path: stored_or_guessed(path) for path in paths}
            for dataset in source.datasets:
                dataset.opened()
        return replaced

    first, *others = dict.fromkeys(path for layout in source.layouts() for path in layout.paths)
    more = f" and {len(others)} more files" if others else ""
    try:
        return within(seconds, look, f"still waiting for the file system of {first}{more}")
    except WaitTimeout as error:
        text = f"the first batch of {source.datasets[0]} did not come in {seconds:g} s: {error}"
        raise ReadError(text) from None


def sample_source(dataset: Any) -> SampleSource | str:
    """Returns the H5Datasets beneath the dataset, or the reason why only torch's own loader can read it.

    Only classes that take samples as torch's and ours do are looked into. A subclass with its own __getitem__ is read
    by calling that.
    """
    if isinstance(dataset, H5Dataset) and _takes_as(dataset, H5Dataset, *READING):
        locate = lambda asked: (np.zeros(len(asked), np.int64), dataset.checked(asked))  # noqa: E731
        return SampleSource([dataset], locate, plain=dataset.chosen is None)
    torchs = sys.modules.get("torch.utils.data")  # a program without torch has none of its datasets
    if torchs is not None and isinstance(dataset, torchs.Subset) and _takes_as(dataset, torchs.Subset):
        found = sample_source(dataset.dataset)
        if isinstance(found, str):
            return found
        indices, inner = dataset.indices, found.locate
        return SampleSource(found.datasets, lambda asked: inner(chosen_indices(indices, asked)))
    if torchs is not None and isinstance(dataset, torchs.ConcatDataset) and _takes_as(dataset, torchs.ConcatDataset):
        return _concatenated(dataset)
    if isinstance(dataset, H5Dataset):
        return f"{type(dataset).__name__} makes its samples itself"
    return f"{type(dataset).__name__} is not an H5Dataset"


def chosen_indices(indices: Any, numbers: Any) -> Any:
    """Returns the indices of a Subset at these positions, as it takes them itself."""
    if isinstance(numbers, np.ndarray):
        if isinstance(indices, np.ndarray):
            return indices[numbers]
        numbers = numbers.tolist()
    return [indices[i] for i in numbers]


def _concatenated(dataset: ConcatDataset[Any]) -> SampleSource | str:
    parts = []
    for part in dataset.datasets:
        found = sample_source(part)
        if isinstance(found, str):
            return found
        parts.append(found)
    every = [one for part in parts for one in part.datasets]
    if not all(alike(every[0], one) for one in every[1:]):
        return "the parts of the ConcatDataset differ in shape, dtype, fields or transform"
    firsts = np.cumsum([0, *(len(part.datasets) for part in parts)])
    ends = np.asarray(dataset.cumulative_sizes, np.int64)

    def locate(asked: Sequence[Any] | Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        positions = _in_range(np.asarray(asked, np.int64), int(ends[-1]))
        part_of = np.searchsorted(ends, positions, side="right")
        which, rows = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for number in np.unique(part_of).tolist():
            here = part_of == number
            begin = ends[number - 1] if number else 0
            inner, rows[here] = parts[number].locate((positions[here] - begin).tolist())
            which[here] = inner + firsts[number]
        return which, rows

    return SampleSource(every, locate)


def _in_range(positions: np.ndarray[Any, Any], samples: int) -> np.ndarray[Any, Any]:
    """Positions from 0; those out of range raise what ConcatDataset raises."""
    if positions.size and int(positions.min()) < -samples:
        raise ValueError("absolute value of index should not exceed dataset length")
    if positions.size and int(positions.max()) >= samples:
        raise IndexError(f"sample {int(positions.max())} of a ConcatDataset of {samples}")
    return np.where(positions < 0, positions + samples, positions)


def _takes_as(dataset: Any, kind: type, *names: str) -> bool:
    names = ("__getitem__", "__getitems__", *names)
    return all(getattr(type(dataset), name, None) is getattr(kind, name, None) for name in names)
