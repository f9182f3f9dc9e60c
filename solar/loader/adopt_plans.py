"""AdoptedPlans: epochs of a user's Dataset whose rows are planned, shared and served as those of an H5Dataset are.

If rules explain every row that the samples of a Dataset read by h5py, the rows of an epoch are known before it begins.
They then make an H5Dataset, whose batches come from the loader's buffer, from other ranks or from a service. The
Dataset makes its samples itself, and its calls of h5py get their values from these batches.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data.dataloader import _DatasetKind

from solar.buffer.buffer import LoaderBuffer
from solar.buffer.buffer_memory import AheadSpec, refuse_small, those_of
from solar.buffer.buffer_size import ranks_here
from solar.errors import ReadError, SolarError
from solar.io.reading import h5py_calls
from solar.io.reading.h5py_calls import H5pyCalls
from solar.io.system.waiting import RANKS_PATIENCE, WaitTimeout
from solar.loader import held_blocks
from solar.loader.adopt import AdoptedReads
from solar.loader.batch import BatchMaker
from solar.loader.batch_queue import BatchFuture
from solar.loader.held_blocks import BlockSource, HeldBlock, RowSource, is_one_block
from solar.loader.sample_reads import TABLE_NBYTES, SampleReads, locate_leaves
from solar.samplers.epoch_position import has_state
from solar.samplers.index_stream import IndexStream
from solar.samples.dataset import H5Dataset, alike, dataset_of_rows
from solar.samples.pending import PendingBatch
from solar.samples.row_windows import RowWindows, windows_at
from solar.samples.source import SampleSource, look_at_files
from solar.values import Layout

if TYPE_CHECKING:
    from solar.io.channels.meeting import Peers

log = logging.getLogger("solar")

Array = NDArray[np.int64]

BESIDE = 8  # what is the same for all samples takes at most 1/8 of the buffer
NOT_YET, NEVER = -1, -2  # what a rank tells if it cannot plan this epoch, and if it cannot plan any
NOT_LEARNED = "it is not known yet what its samples read"
ALL_FIT = "there is memory for all that it reads"


class FieldRows(NamedTuple):
    """The rows that each sample reads of a dataset in one call."""

    source: int  # the number of the dataset
    starts: Array
    rows: int


@dataclass(frozen=True)
class PlannedRows:
    """What the samples of a Dataset read: for each of the Datasets beneath, an H5Dataset and the rows of its fields."""

    datasets: list[H5Dataset]
    fields: list[list[FieldRows]]
    number_of: Array  # of each Dataset beneath, among those that have samples
    constants: list[int]  # the numbers of datasets of which every sample reads the same
    digest: str

    @property
    def nbytes(self) -> int:
        """The bytes of all datasets, decoded."""
        layouts = {_name(layout): layout for one in self.datasets for layout in one.layouts}
        return sum(layout.nbytes for layout in layouts.values())


def planned_rows(reads: SampleReads, layouts: Sequence[Layout], most: int) -> PlannedRows | str:
    """Returns the rows of all samples if rules say them, else why an epoch cannot be planned.

    `layouts` are those of the datasets, by number. The numbers of rows may take up to `most` bytes.
    """
    try:
        used = np.unique(locate_leaves(reads.dataset, np.arange(len(reads.dataset)))[0])
    except (TypeError, NotImplementedError, IndexError, ValueError, OverflowError):
        return "it does not say how many samples it has"
    fields, constants, samples = [], set[int](), 0
    for leaf in used.tolist():
        if leaf not in reads.rules:
            return NOT_LEARNED
        if not reads.explains(leaf):
            return "not all that its samples read follows from a rule"
        try:
            samples += len(reads.leaves[leaf]) * len(reads.rules[leaf])
            if 8 * samples > most:
                return "a list of the rows of all samples takes a large part of the buffer"
            every = np.arange(len(reads.leaves[leaf]))
            found = [FieldRows(rule.source, rule.starts(every), rule.rows) for rule in reads.rules[leaf]]
        except (TypeError, NotImplementedError, IndexError, ValueError, OverflowError):
            return "a rule does not hold for all of its samples"
        same = {one.source for one in found if one.starts[0] == one.starts[-1] and np.ptp(one.starts) == 0}
        varying = [one for one in found if one.source not in same]
        if not all(is_one_block(layouts[source]) for source in same) or not varying:
            return "its samples read the same rows of large datasets"
        constants |= same
        fields.append(sorted(varying, key=lambda one: (*_name(layouts[one.source]), int(one.starts[0]))))
    if not fields:
        return "it has no samples"
    alone = len(fields) == 1
    made = [one for own in fields if (one := _dataset_of(own, layouts, alone=alone)) is not None]
    if len(made) < len(fields):
        return "its samples read several rows of one dataset, at places that do not follow from each other"
    datasets, fields = [dataset for dataset, _ in made], [own for _, own in made]
    if not all(alike(datasets[0], one) for one in datasets[1:]):
        return "the parts of the ConcatDataset differ in what their samples read"
    number_of = np.full(len(reads.leaves), -1)
    number_of[used] = np.arange(len(used))
    return PlannedRows(datasets, fields, number_of, sorted(constants), _digest_of(datasets, fields))


def _name(layout: Layout) -> tuple[str, str]:
    return str(layout.paths[0]), layout.name


def _dataset_of(
    fields: list[FieldRows], layouts: Sequence[Layout], *, alone: bool
) -> tuple[H5Dataset, list[FieldRows]] | None:
    """Returns the H5Dataset of these fields, and the rows that it has for them.

    Windows that begin before the first row, or behind the last, begin there. `alone`: there is no other H5Dataset,
    which would have to be like it. None: two fields of one dataset do not lie equally far apart.
    """
    maps, there = list[RowWindows | None](), list[FieldRows]()
    anchors: dict[int, tuple[Array, Array, RowWindows]] = {}
    for source, starts, rows in fields:
        layout, once = layouts[source], sum(one.source == source for one in fields) == 1
        in_order = len(starts) <= layout.samples and np.array_equal(starts, np.arange(len(starts)))
        if alone and once and rows == 1 and in_order:
            maps.append(None)
            there.append(FieldRows(source, starts, rows))
            continue
        if source not in anchors:
            begins = starts.clip(0, layout.samples - 1)
            anchors[source] = starts, begins, windows_at(begins, layout.samples)
        first, begins, places = anchors[source]
        if np.ptp(starts - first):
            return None
        apart = int(starts[0] - first[0])
        maps.append(places.of_fields((None if rows == 1 and not apart else tuple(range(apart, apart + rows)),)))
        there.append(FieldRows(source, begins + apart, rows))
    return dataset_of_rows([layouts[one.source] for one in fields], maps, len(fields[0].starts)), there


def _digest_of(datasets: list[H5Dataset], fields: list[list[FieldRows]]) -> str:
    sha = hashlib.sha256()
    for dataset, own in zip(datasets, fields, strict=True):
        for layout, one in zip(dataset.layouts, own, strict=True):
            sha.update(f"{_name(layout)} {layout.digest} {one.rows} ".encode())
            sha.update(np.ascontiguousarray(one.starts).data)
    return sha.hexdigest()


# --- a batch is made ----


class BatchRows:
    """The rows of a dataset that came with a batch."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.held: dict[int, HeldBlock] = {}
        self._lines: dict[int, NDArray[Any]] = {}  # by their first row

    def add(self, starts: Array, values: NDArray[Any]) -> None:
        """Adds the rows that begin at `starts`; `values` has those of each as one item."""
        if values.dtype != self.layout.dtype:
            values = values.astype(self.layout.dtype)
        self._lines.update(zip(starts.tolist(), values, strict=True))

    def rows(self, start: int, stop: int) -> NDArray[Any] | None:
        line = self._lines.get(start)
        return None if line is None or stop - start > len(line) else line[: stop - start]


class AnsweringMaker(BatchMaker):
    """Makes batches as torch's loader does, and answers the Dataset's calls of h5py from what a plan has read."""

    of_arrays = False

    def __init__(self, adopted: AdoptedReads, planned: PlannedRows, fetcher: Any, auto_collation: bool) -> None:
        super().__init__(None, False, fetcher.collate_fn, auto_collation)
        self.collation, self.in_python, self.in_processes = None, True, False
        self.planned = planned
        self._adopted, self._fetcher = adopted, fetcher
        self._calls = H5pyCalls(adopted)
        self._level = logging.WARNING  # of what is said of batches that cannot be read

    def make_here(self, keys: Any, future: BatchFuture, seconds: float | None) -> Any:
        """Returns what torch's fetcher gives. What could not be read natively is read by h5py."""
        arrived, begun = self._arrived(future), perf_counter()
        indices = future.called.tolist() if isinstance(future.called, np.ndarray) else future.called
        adopted, before = self._adopted, self._adopted.sources
        if arrived is not None and not adopted.left_alone:
            try:
                adopted.sources = {**before, **self._rows(indices, arrived)}
                adopted.counts.had_room = True
            except Exception as error:
                adopted.failed(error)
        try:
            with self._calls:
                data = self._fetcher.fetch(indices if self.auto_collation else indices[0])
        finally:
            adopted.sources = before
        future.transform_seconds = perf_counter() - begun
        if not adopted.left_alone:
            with adopted.lock:
                adopted.check_worth()
        adopted.warn_of_no_effect()
        return data

    def _arrived(self, future: BatchFuture) -> list[Any] | None:
        """Waits for the rows of a batch. None if they cannot be read: h5py reads them, and says what is wrong."""
        pending = future.pending
        try:
            return pending.arrived(held_blocks.WAIT) if pending.fields else None
        except (SolarError, WaitTimeout, OSError) as error:
            log.log(self._level, "h5py reads a batch, and others that cannot be read as planned: %s", error)
            self._level = logging.DEBUG
            pending.forget()
            future.pending = PendingBatch((), [])
            future.pending.nbytes = pending.nbytes
            return None

    def _rows(self, indices: Any, arrived: list[Any]) -> dict[int, RowSource]:
        adopted, found = self._adopted, dict[int, BatchRows]()
        leaves, samples = locate_leaves(adopted.reads.dataset, np.asarray(indices, np.int64))
        which = self.planned.number_of[leaves]
        for number, (fields, dataset) in enumerate(zip(self.planned.fields, self.planned.datasets, strict=True)):
            here = slice(None) if len(self.planned.fields) == 1 else which == number
            for one, values, own in zip(fields, arrived, dataset.extents, strict=True):
                rows = found.setdefault(one.source, BatchRows(adopted.known.layouts[one.source]))
                single = own is None or own.shape == ()
                rows.add(one.starts[samples[here]], values[here][:, None] if single else values[here])
        return dict(found)


@dataclass(frozen=True)
class AdoptedSource(SampleSource):
    """The H5Datasets that stand for a user's Dataset. What they cannot read is left to the Dataset."""

    making: AnsweringMaker

    def start(self, indices: Sequence[Any], epoch: int) -> tuple[PendingBatch, Array]:
        try:
            return super().start(indices, epoch)
        except (SolarError, OSError, IndexError, TypeError, ValueError, OverflowError):
            return PendingBatch((), []), np.empty(0, np.int64)

    def replaced(self, *, gone: bool) -> None:
        """Returns None: whether files are what they were is looked at before an epoch is planned."""
        return


def _locate(dataset: Any, found: PlannedRows) -> Callable[[Any], tuple[Array, Array]]:
    """Returns what finds the Dataset beneath and the index there. Raises IndexError for an index that it has not."""
    lengths = np.array([one.numbers for one in found.datasets])

    def located(indices: Any) -> tuple[Array, Array]:
        leaves, inner = locate_leaves(dataset, np.asarray(indices, np.int64))
        which = found.number_of[leaves]
        if len(inner) and (inner.min() < 0 or (inner >= lengths[which]).any()):
            raise IndexError("no sample has this index")
        return which, inner

    return located


# --- from epoch to epoch ----


class AdoptedPlans:
    """Decides in each epoch of a loader whether the rows of its Dataset are planned, on all ranks alike."""

    def __init__(self, adopted: AdoptedReads, buffered: LoaderBuffer, given: Sequence[str]) -> None:
        """`given` names the arguments of the user that are heeded only by plans."""
        self._adopted, self._buffered, self._given = adopted, buffered, given
        self._options = buffered.options._replace(balance="torch")
        self._over = False  # no epoch is planned any more
        self._source: AdoptedSource | None = None  # for which the buffer was made
        self._beside: list[HeldBlock] = []  # what all samples read

    def begin_epoch(self, loader: Any) -> AdoptedSource | None:
        """Returns what is read in the epoch that begins; None if it is not planned."""
        if self._over:
            return None
        order: IndexStream = loader._sampler_state.order()
        peers = those_of(self._options.exchange, order)
        if peers is not None and not self._options.nbytes:
            self._not_planned("the ranks of one training share a buffer, and have no service")
            return None
        was_left = self._adopted.resume()
        try:
            found = self._look(loader, order, alone=peers is None)
        except Exception as error:
            self._adopted.failed(error)
            found = self._adopted.left_alone
        if peers is not None:
            found = _agreed(peers, found, type(loader.dataset).__name__)
        if isinstance(found, str):
            if was_left:
                self._adopted.leave(was_left)
            self._not_planned(found)
            return None
        self._make_room(found)
        return found

    def _look(self, loader: Any, order: IndexStream, *, alone: bool) -> AdoptedSource | str:
        """Returns what this process would read, or why it does not."""
        adopted, options = self._adopted, self._options
        if not order.fixed or order.kind == "shuffled by generator":
            return "its sampler may draw as the Dataset does, so its order is not known before the epoch"
        if has_state(loader.dataset):
            return "it has a state of its own"
        most = options.nbytes // BESIDE if options.nbytes else TABLE_NBYTES
        found = adopted.left_alone or planned_rows(adopted.reads, adopted.known.layouts, most)
        if isinstance(found, str):
            return found
        if alone and options.service is None and found.nbytes <= adopted.held.capacity:
            return ALL_FIT
        if not adopted.check_files():
            return adopted.left_alone or "its file was changed"
        source = self._source
        if source is None or source.making.planned.digest != found.digest:
            source = self._source_of(loader, found)
        try:
            look_at_files(source, source, self._buffered, h5py_calls.FILE_PATIENCE, gone=False)
        except ReadError as error:
            adopted.unanswered(error)
            return adopted.left_alone
        if options.nbytes:
            return self._refused(loader, source, alone=alone) or source
        served = options.service is not None and options.service.connected(source, order, options.exchange)
        return source if served else NOT_LEARNED

    def _refused(self, loader: Any, source: AdoptedSource, *, alone: bool) -> str:
        """Returns why the buffer is too small; empty if it is not."""
        nbytes, ranks = self._options.nbytes or 0, ranks_here()
        if ranks * self._beside_nbytes(source) > nbytes // BESIDE:
            return "what all samples read takes a large part of the buffer"
        each, processes = (nbytes // ranks, 1) if alone else (nbytes, ranks)
        pace = AheadSpec(loader.ahead or source.batches_ahead, 0)
        return refuse_small(source, each, pace, loader._sampler_state.batch_size or 1, processes)

    def _source_of(self, loader: Any, found: PlannedRows) -> AdoptedSource:
        auto: bool = loader._auto_collation
        kind = _DatasetKind.Map
        create: Callable[..., Any] = _DatasetKind.create_fetcher
        fetcher = create(kind, loader.dataset, auto, loader.collate_fn, loader.drop_last)
        making = AnsweringMaker(self._adopted, found, fetcher, auto)
        plain = self._adopted.reads.leaves[0] is loader.dataset
        return AdoptedSource(found.datasets, _locate(loader.dataset, found), making, plain=plain)

    def _beside_nbytes(self, source: AdoptedSource) -> int:
        return sum(self._adopted.known.layouts[number].nbytes for number in source.making.planned.constants)

    def _make_room(self, source: AdoptedSource) -> None:
        """Gives the memory in which blocks were held to the buffer, but for what all samples read."""
        adopted, options = self._adopted, self._options
        if source is not self._source:
            self._source = source
            adopted.close()
            if options.nbytes:
                options = options._replace(nbytes=options.nbytes - ranks_here() * self._beside_nbytes(source))
            self._buffered.begin_anew(options)
            log.info("planning what %s.__getitem__ reads: %s", adopted.name, adopted.words())
        with adopted.lock:
            missing = [number for number in source.making.planned.constants if number not in adopted.sources]
            blocks = {number: BlockSource(adopted.known.layouts[number]) for number in missing}
            adopted.sources.update(blocks)
            self._beside += adopted.held.start({one: [0] for one in blocks.values()}) or []

    def _not_planned(self, why: str) -> None:
        """Frees the buffer. Says once why no epoch is planned, unless a later one may be."""
        if self._source is not None:
            self._source = None
            self._buffered.close()
        if why == NOT_LEARNED:
            return
        self._over, adopted = True, self._adopted
        adopted.given = adopted.given._replace(may_be_planned=False)
        adopted.warn_of_no_effect()
        given, self._given = self._given, ()
        if why == ALL_FIT:
            return
        name = adopted.name
        log.info("what %s.__getitem__ reads is not planned: %s", name, why)
        if given:
            have = "have" if len(given) > 1 else "has"
            warnings.warn(f"{' and '.join(given)} {have} no effect over {name}: {why}", stacklevel=4)


def _agreed(peers: Peers, found: AdoptedSource | str, name: str) -> AdoptedSource | str:
    """Returns what was found if all ranks found the same; else why the epoch is not planned. Each rank calls it."""
    number = NEVER if isinstance(found, str) else int(found.making.planned.digest[:12], 16)
    number = NOT_YET if found == NOT_LEARNED else number
    what = f"a new epoch of {name}"
    least = peers.meet(what, {}, {}, {"least": number, "most": -number}, RANKS_PATIENCE).least
    if isinstance(found, str) and found != NOT_LEARNED:
        return found
    if least["least"] == NEVER:
        return "another rank cannot plan what it reads"
    if least["least"] == NOT_YET:
        return NOT_LEARNED
    return found if least["least"] == -least["most"] else "the ranks read by different rules, or different files"
