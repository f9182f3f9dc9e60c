"""AdoptedReads: learns what a user's Dataset reads by h5py, reads that ahead, and answers h5py's calls from it."""

from __future__ import annotations

import logging
import os
import statistics
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Self

import numpy as np
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _DatasetKind

from solar.buffer.buffer_size import ranks_here
from solar.io.reading.h5py_calls import (
    DatasetPlace,
    H5pyCalls,
    ReadCall,
    Selected,
    answered,
    identity_of,
    open_dataset,
    plain_values,
    readable_layout,
    selected,
)
from solar.io.reading.reader import file_identity, layout_identity
from solar.io.system import memory as machine
from solar.io.system.waiting import WaitTimeout
from solar.loader.held_blocks import BlockSource, HeldBlock, HeldBlocks, RowSource, is_one_block
from solar.loader.read_rules import RowsRead
from solar.loader.sample_reads import SampleReads, asks_one_by_one
from solar.values import Layout

log = logging.getLogger("solar")

MOST, PART = 1 << 30, 8  # bytes held where nobody says how many: at most so many, and 1/8 of what is free
AHEAD_BATCHES, AHEAD_SAMPLES = 4, 64  # that are read ahead, at least, where nobody says how many
QUIET_BATCHES, QUIET_SAMPLES = 2, 8  # without a call of h5py, after which there is nothing to adopt
CHEAP = 12e-6  # seconds that h5py takes for a call that is not worth being answered in its place
WORTH_A_TABLE = 100e-6  # seconds for a call, below which noting all that an epoch reads takes too long
WORTH_A_DATASET = 5e-3  # seconds for a call, below which it takes too long to find where a dataset of its own lies
PART_OF_ROW = 4  # a row is read ahead if at least 1/4 of it is asked for
CHECKED_EVERY = 256  # calls answered after which it is seen whether it is worth it
SHARE_OF_TIME = 0.75  # of h5py's time, that answers may take: not all that is done for them is counted
KEPT_SHARE = 1.25  # that they may take in the first epoch, if blocks stay in memory for later ones
TIMED = 512  # calls of h5py whose time is noted
BAD_CHECKS = 2  # times in a row that it may be seen to be not
MISSES = 32  # calls that were read as asked, more than answered, after which rules are learned anew
LEARNED_AGAIN = 3  # times, after which it is given up
FEW_DATASETS = 48  # whose places are looked for in any case
SCATTERED = "it reads a little of each of many datasets; H5Dataset reads many files or groups faster"
SMALL_PARTS = "it reads small parts of large rows, or lists of rows; H5Dataset reads windows and crops faster"
WHOLE_BATCHES = "its __getitem__ is given other things than integers, such as the indices of a whole batch"
AS_FAST = "h5py takes {:.0f} µs for each of its reads, and reading ahead is no faster"
PLACES = 1 << 16  # datasets that are remembered by where they lie


def batches_known(sampler_state: Any, position: Any, ahead: int | None) -> tuple[int | None, Callable[[], int | None]]:
    """Returns how many batches may be drawn before they are used, so that no random draw becomes another one's.

    A user's sampler may look at what the training does, or draw from torch's generator as the Dataset does, so it is
    asked ahead only as far as the user allows. torch's own samplers are asked ahead, except that the last batch waits
    where the sampler draws once more at its end from a generator of the user's.
    """
    order = position.order

    def most() -> int | None:
        whole: int | None = sampler_state.batches
        if whole is None:
            return None
        left = max(0, whole - int(position.before[0]))
        if order.kind != "shuffled by generator":
            return left
        drawn_at_once = not order.sampler.replacement and order.sampler.num_samples <= len(order.sampler.data_source)
        return max(0, left - 1) if drawn_at_once else 0

    return (0 if ahead is None and not order.fixed else ahead), most


class KnownDatasets:
    """The h5py.Datasets that were read, by number. Those that native code cannot read have the number -1."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []
        self.changed: set[int] = set()  # whose files are no more what they were
        self._numbers: dict[DatasetPlace, int] = {}
        self._by_place: dict[tuple[int, ...], int] = {}  # in an open file
        self._by_object: dict[int, tuple[weakref.ref[Any], int]] = {}

    def number_of(self, dataset: Any) -> int:
        known = self._by_object.get(id(dataset))
        if known is not None and known[0]() is dataset:
            return known[1]
        place = identity_of(dataset)
        if not getattr(dataset, "_readonly", False):
            return -1
        number = self._by_place.get(place)
        if number is None:
            if len(self._by_place) >= PLACES:
                self._by_place.clear()
            number = self._by_place[place] = self._new(dataset)
        forget, own = self._by_object, id(dataset)
        self._by_object[own] = weakref.ref(dataset, lambda _: forget.pop(own, None)), number
        return number

    def _new(self, dataset: Any) -> int:
        opened = open_dataset(dataset)
        if opened is None:
            return -1
        number = self._numbers.get(opened)
        if number is None:
            layout = readable_layout(dataset, opened)
            number = self._numbers[opened] = -1 if layout is None else len(self.layouts)
            if layout is not None:
                self.layouts.append(layout)
        return number


@dataclass
class CallCounts:
    """Counts calls of h5py, how many of them were answered in its place, and the seconds that both took."""

    answered: int = 0
    asked: int = 0
    seconds: float = 0.0
    checked: tuple[int, float, int] = 0, 0.0, 0  # answered, seconds when it was last seen whether it is worth it; and
    # how many times in a row it was not
    epochs: int = 0  # begun
    useless: int = 0  # blocks that were read in vain, less those that were not
    had_room: bool = True  # what the batch needs that is made; else nothing is missed
    missed: int = 0  # calls of datasets that are read ahead that were read as asked
    held: tuple[int, int] = (0, 0)  # answered, missed when it was last seen whether the rules hold
    learned_again: int = 0
    said: bool = False  # what is read ahead


class AskedFor(NamedTuple):
    """What the user asked for: the memory for blocks, arguments that are heeded where solar reads, and a plan."""

    buffer: int | None
    names: Sequence[str]
    may_be_planned: bool


class AdoptedReads:
    """What a loader has learned about its Dataset's reads, and the blocks that it holds. Not for several threads."""

    def __init__(
        self, dataset: Any, buffer: int | None, asked_for: Sequence[str] = (), *, may_be_planned: bool = False
    ) -> None:
        """`buffer` is the memory for blocks. None keeps only blocks that had to be decoded; 0 keeps none: each is
        dropped as soon as its batches are made. `asked_for` names the arguments that the user gave for reading ahead.
        `may_be_planned`: a plan may read in later epochs, also where reading ahead gains nothing.
        """
        self.reads = SampleReads(dataset)
        self.known = KnownDatasets()
        self.held = HeldBlocks((buffer or min(MOST, machine.free_nbytes() // PART)) // ranks_here())
        self.process = os.getpid()
        self.counts = CallCounts()
        self.left_alone = ""  # why nothing is read ahead
        self._until_planned = False  # it is left alone only until a plan reads
        self.watching = True  # what is read is noted
        self.given = AskedFor(buffer, asked_for, may_be_planned)
        self.sources: dict[int, RowSource] = {}  # of the rows that are in memory, by the number of their dataset
        self._sample: list[RowsRead] | None = None  # where what is read is noted
        self.lock = threading.RLock()

    # --- h5py's calls ----

    def getitem(self, of_h5py: ReadCall, dataset: Any, args: Any) -> Any:
        """Returns what h5py gives for `dataset[args]`."""
        if self.left_alone:
            return of_h5py(dataset, args)
        begun = perf_counter()
        number, wanted = self._wanted_rows(dataset, args)
        if wanted is not None and (found := self._values(number, wanted)) is not None:
            self._answer(number, wanted, begun)
            return found
        self._count_call(number)
        if not self.watching:
            return of_h5py(dataset, args)
        begun = perf_counter()
        found = of_h5py(dataset, args)
        self._note(number, wanted, perf_counter() - begun)
        return found

    def read_direct(self, of_h5py: ReadCall, dataset: Any, dest: Any, source_sel: Any, dest_sel: Any) -> None:
        """Does what h5py does for `dataset.read_direct(dest, source_sel, dest_sel)`."""
        begun = perf_counter()
        number, wanted = self._wanted_rows(dataset, () if source_sel is None else source_sel)
        if wanted is not None and dest_sel is None and self._fits(number, dest):
            found = self._values(number, wanted)
            if found is not None and np.shape(found) == dest.shape:
                dest[...] = found
                self._answer(number, wanted, begun)
                return
        else:
            wanted = None  # libhdf5 converts the values, or puts them somewhere
        self._count_call(number)
        begun = perf_counter()
        of_h5py(dataset, dest, source_sel, dest_sel)
        if self.watching:
            self._note(number, wanted, perf_counter() - begun)

    def _answer(self, number: int, wanted: Selected, begun: float) -> None:
        self.counts.answered += 1
        self.counts.seconds += perf_counter() - begun
        if self.watching:
            self._note(number, wanted, None)

    def _count_call(self, number: int) -> None:
        self.counts.asked += 1
        self.counts.missed += self.counts.had_room and number in self.sources

    def _fits(self, number: int, dest: Any) -> bool:
        if type(dest) is not np.ndarray or not dest.flags.c_contiguous or not dest.flags.writeable:
            return False
        return bool(dest.dtype == self.known.layouts[number].dtype)

    def _wanted_rows(self, dataset: Any, args: Any) -> tuple[int, Selected | None]:
        """Returns the dataset's number and the rows that are read; None if h5py has to answer."""
        try:
            number = self.known.number_of(dataset)
            if number < 0 or not dataset.id.valid:
                return -1, None
            return number, selected(args, self.known.layouts[number].shape)
        except WaitTimeout as error:
            self.unanswered(error)
            return -1, None
        except Exception:  # whatever is wrong with this call, h5py says it
            return -1, None

    def _values(self, number: int, wanted: Selected) -> Any:
        """Returns what h5py would give; None if it is not in memory."""
        source = self.sources.get(number)
        if source is None:
            return None
        try:
            rows = source.rows(wanted.start, wanted.stop)
            return None if rows is None else plain_values(rows, wanted)
        except Exception as error:
            self.failed(error)
            return None

    def _note(self, number: int, wanted: Selected | None, seconds: float | None) -> None:
        self.reads.calls += 1
        if seconds is not None and len(self.reads.seconds) < TIMED:
            self.reads.seconds.append(seconds)
        many = len(self.known.layouts) > max(FEW_DATASETS, 4 * len(self.reads.leaves), 0.5 * self.reads.calls)
        if many and self.call_seconds < WORTH_A_DATASET:
            self.leave(SCATTERED)
            return
        if wanted is None or self._sample is None:
            return
        layout, rows = self.known.layouts[number], wanted.stop - wanted.start
        if not is_one_block(layout):
            row = np.broadcast_to(np.empty((), np.uint8), layout.sample_shape)
            if wanted.within and PART_OF_ROW * row[wanted.within].size < row.size:
                return
            if PART_OF_ROW * rows * layout.sample_nbytes > self.held.capacity:
                return
        self._sample.append(RowsRead(number, wanted.start, rows))

    # --- what samples read ----

    def begin_sample(self) -> list[RowsRead]:
        """Returns the list in which reads are noted from now on."""
        self._sample = []
        return self._sample

    def note(self, indices: Sequence[int], reads: Sequence[list[RowsRead]]) -> None:
        """Notes what the samples of a batch read, and decides how to go on."""
        self._sample = None
        self.reads.note(indices, reads)
        cheap = self.reads.known and self.call_seconds < WORTH_A_TABLE
        if self.reads.complete or (cheap and self.reads.learned):
            self.watching = False

    def decide(self, batches: int, epoch_ended: bool) -> None:
        """Stops adopting the Dataset where there is nothing to gain. `batches` is how many were looked at."""
        reads = self.reads
        if not reads.calls:
            if batches >= QUIET_BATCHES and (reads.samples >= QUIET_SAMPLES or epoch_ended):
                self.leave("it makes no calls of h5py")
            return
        if self.counts.answered == 0 and len(reads.seconds) > QUIET_SAMPLES and self.call_seconds < CHEAP:
            self.leave(AS_FAST.format(1e6 * self.call_seconds))
        elif not self.known.layouts and reads.samples >= QUIET_SAMPLES:
            self.leave("what it reads is read by h5py alone: solar reads plain numbers of files opened for reading")
        elif reads.learned and not reads.known and not reads.uses_table and self.call_seconds < WORTH_A_TABLE:
            self.leave("no rule was found for the rows that it reads")
        elif epoch_ended and self.watching and not reads.complete:
            self.watching, reads.uses_table = False, len(reads.table) > 0
            if not reads.known:
                self.leave(SMALL_PARTS if reads.samples else WHOLE_BATCHES)
        if reads.known and not self.left_alone:
            self._say()

    @property
    def call_seconds(self) -> float:
        """Returns the seconds that a call of h5py takes, as far as they were measured."""
        seconds = self.reads.seconds[1:] or [0.0]  # the first one is longer
        filtered = any(form.filters for layout in self.known.layouts for form in layout.forms)
        # Of a chunk that h5py keeps, one call of many takes long; else what takes long is somebody else's work.
        return statistics.fmean(seconds) if filtered else statistics.median(seconds)

    def leave(self, why: str) -> None:
        """Stops adopting the Dataset, and logs why."""
        self.left_alone, self.watching = why, False
        for source in self.sources.values():
            self.held.forget(source)
        self.sources.clear()
        log.info("%s.__getitem__ reads as torch's loader has it read: %s", self.name, why)

    def resume(self) -> str:
        """Returns why the Dataset was left alone until a plan reads, which no longer holds; empty if it was not."""
        if not self._until_planned:
            return ""
        why, self.left_alone, self._until_planned = self.left_alone, "", False
        return why

    def warn_of_no_effect(self) -> None:
        """Warns once about arguments that the user gave for reading ahead and that have no effect."""
        if self.left_alone and not self._until_planned and self.given.names:
            given, self.given = self.given.names, self.given._replace(names=())
            have = "have" if len(given) > 1 else "has"
            text = f"{' and '.join(given)} {have} no effect over {self.name}: {self.left_alone}"
            warnings.warn(text, stacklevel=2)

    @property
    def name(self) -> str:
        return " + ".join(dict.fromkeys(type(leaf).__name__ for leaf in self.reads.leaves))

    def _say(self) -> None:
        if not self.counts.said:
            self.counts.said = True
            log.info("reading ahead for %s.__getitem__: %s", self.name, self.words())

    def words(self) -> str:
        """Describes what is read, as in "2 datasets of scan.h5, row i"."""
        if self.left_alone:
            return self.left_alone
        rules = [rule for of_leaf in self.reads.rules.values() for rule in of_leaf]
        numbers = {rule.source for rule in rules} if rules else set(range(len(self.known.layouts)))
        files = sorted({Path(self.known.layouts[number].paths[0]).name for number in numbers})
        of = files[0] if len(files) == 1 else f"{len(files)} files"
        how = ", ".join(dict.fromkeys(rule.words for rule in rules)) or "as each index read in the epoch before"
        return f"{len(numbers)} dataset{'s' * (len(numbers) > 1)} of {of}, {how}"

    def report(self) -> str:
        """Returns the line for the report; empty if h5py was never called."""
        counts = self.counts
        if self.left_alone:
            return f"{self.name} is read as torch's loader reads it: {self.left_alone}."
        if not counts.answered + counts.asked:
            return ""
        return (
            f"{self.name}'s reads by h5py: {counts.answered:,} answered from memory, {counts.asked:,} read as asked "
            f"({self.words()})."
        )

    # --- reading ahead ----

    def failed(self, error: Exception) -> None:
        """Stops adopting the Dataset after an error that is not the Dataset's own. Its samples are read by h5py."""
        log.warning("reading ahead for %s ended by an error: %r", self.name, error)
        self.leave(f"reading ahead ended by an error: {error}")

    def unanswered(self, error: Exception) -> None:
        """Stops adopting the Dataset because a file system hangs. h5py, which has the file open, may still read."""
        log.warning("reading ahead for %s ended: %s", self.name, error)
        self.leave(str(error))

    def begin_epoch(self) -> None:
        """Leaves files to h5py that were changed or replaced; all of them if their file system does not answer."""
        with self.lock:
            self.counts.epochs += 1
            for number in self._changed(set(self.sources)):
                self.held.forget(self.sources.pop(number))
                self.known.changed.add(number)

    def check_files(self) -> bool:
        """Returns whether all files are what they were."""
        with self.lock:
            self.known.changed |= self._changed(set(range(len(self.known.layouts))))
            return not self.known.changed and not self.left_alone

    def _changed(self, numbers: set[int]) -> set[int]:
        """Returns those of the datasets whose files are no more what they were."""
        layouts = {number: self.known.layouts[number] for number in numbers - self.known.changed}
        files = {layout.paths[0]: layout_identity(layout) for layout in layouts.values()}
        try:
            now = answered(lambda: {path: file_identity(path) for path in files}, *files) if files else {}
        except WaitTimeout as error:
            self.unanswered(error)
            return set()
        return {number for number, layout in layouts.items() if now[layout.paths[0]] != layout_identity(layout)}

    def start(self, indices: Any) -> list[HeldBlock] | None:
        """Begins to read what a batch will need. Returns None if there is no room yet."""
        try:
            return self._start(indices)
        except Exception as error:
            self.failed(error)
            return []

    def _start(self, indices: Any) -> list[HeldBlock] | None:
        needed: dict[BlockSource, list[Any]] = {}
        for number, starts, rows in self._expect(indices):
            if number in self.known.changed:
                continue
            source = self.sources.get(number)
            if not isinstance(source, BlockSource):
                source = self.sources[number] = BlockSource(self.known.layouts[number], rows, self.given.buffer)
            needed.setdefault(source, []).append(source.blocks_of(starts, rows))
        blocks = {
            source: (np.unique(np.concatenate(parts)) if len(parts) > 1 else parts[0]).tolist()
            for source, parts in needed.items()
        }
        return self.held.start(blocks)

    def _expect(self, indices: Any) -> list[tuple[int, Any, int]]:
        try:
            return self.reads.expected(np.array(indices, np.int64))
        except (IndexError, ValueError, TypeError, OverflowError):
            return []  # the Dataset will say what is wrong with them

    def release(self, blocks: list[HeldBlock]) -> None:
        """Releases blocks that a finished batch needed."""
        if self.left_alone:
            return
        vain = sum(not block.taken for block in blocks)
        self.counts.useless = max(0, self.counts.useless + 2 * vain - len(blocks))
        self.held.release(blocks)

    def check_worth(self) -> None:
        """Stops reading ahead where it takes longer than h5py, or where most of it is never used."""
        counts = self.counts
        answered, missed = counts.answered - counts.held[0], counts.missed - counts.held[1]
        if counts.useless > CHECKED_EVERY or missed > answered + MISSES:
            self._learn_again()
            return
        if answered + missed > CHECKED_EVERY:
            counts.held = counts.answered, counts.missed
        answered, seconds, bad = counts.checked
        if counts.answered - answered < CHECKED_EVERY or len(self.reads.seconds) < 2:
            return  # or h5py has read too little to compare with
        worth = (counts.answered - answered) * self.call_seconds
        stays = counts.epochs == 1 and any(isinstance(one, BlockSource) and one.keep for one in self.sources.values())
        most = (KEPT_SHARE if stays else SHARE_OF_TIME) * worth
        bad = bad + 1 if counts.seconds - seconds > most else 0
        counts.checked = counts.answered, counts.seconds, bad
        if bad >= BAD_CHECKS:
            # A plan may still be faster: it reads in the order of the file, and keeps what is used again.
            self._until_planned = self.given.may_be_planned
            self.leave(AS_FAST.format(1e6 * self.call_seconds))

    def _learn_again(self) -> None:
        counts = self.counts
        counts.learned_again += 1
        counts.useless, counts.held = 0, (counts.answered, counts.missed)
        if counts.learned_again > LEARNED_AGAIN:
            self.leave("no rule for the rows that it reads held for long")
        else:
            self.reads.forget_rules()
            self.watching = True

    def close(self) -> None:
        """Frees the memory. What was learned stays."""
        with self.lock:
            for source in self.sources.values():
                self.held.forget(source)
            self.sources.clear()
            self.held = HeldBlocks(self.held.capacity)


Mark = tuple[int | None, list[RowsRead]]  # an index, or None for a whole batch, and what was read for it


class _Marked:
    """A Dataset that notes which sample is being read, while the loader learns."""

    def __init__(self, dataset: Any, begin: Callable[[Any], None]) -> None:
        self._dataset, self._begin = dataset, begin

    def __getitem__(self, index: Any) -> Any:
        self._begin(index)
        return self._dataset[index]


class AdoptedPass:
    """One epoch of an adopted Dataset: draws its index batches ahead, and reads what they need."""

    def __init__(self, adopted: AdoptedReads, fetcher: Any, ahead: int | None, most: Callable[[], int | None]) -> None:
        """`ahead` is how many batches to draw before they are used; None: as many as are worth it. `most` is the number
        of batches in all; None: unknown.
        """
        self.adopted, self._fetcher, self._ahead, self._most = adopted, fetcher, ahead, most
        self._drawn = 0
        self._ended = False
        self._calls = H5pyCalls(adopted)
        self._waiting: deque[tuple[Any, list[HeldBlock] | None]] = deque()
        self._now: Any = None  # the batch that is made
        self._blocks: list[HeldBlock] = []  # that it needs
        self._marks: list[Mark] = []
        self._batches = 0
        adopted.begin_epoch()

    def next_batch(self, indices: Iterator[Any]) -> Any:
        """Returns the next index batch, and begins to read what it and the batches after it will need."""
        begun = perf_counter()
        adopted = self.adopted
        if adopted.left_alone or not adopted.reads.known:
            self._now, blocks = self._waiting.popleft() if self._waiting else (self._next(indices), None)
            self._blocks = blocks or []
            return self._now
        with adopted.lock:
            if not self._waiting:
                self._begin(self._next(indices))
            self._read_ahead(indices)
            self._now, blocks = self._waiting.popleft()
            self._blocks, adopted.counts.had_room = blocks or [], blocks is not None
        adopted.counts.seconds += perf_counter() - begun
        return self._now

    def _read_ahead(self, indices: Iterator[Any]) -> None:
        for at, (batch, blocks) in enumerate(self._waiting):
            if blocks is None:
                self._waiting[at] = batch, self.adopted.start(_list_numbers(batch))
                if self._waiting[at][1] is None:
                    return
        ahead, most = self._depth(), self._most()
        while len(self._waiting) <= ahead and not self._ended and (most is None or self._drawn < most):
            if self._waiting[-1][1] is None:  # there is no room
                return
            try:
                batch = self._next(indices)
            except StopIteration:
                return
            self._begin(batch)

    def _next(self, indices: Iterator[Any]) -> Any:
        if self._ended:
            raise StopIteration
        try:
            batch = next(indices)
        except StopIteration:
            self._ended = True
            raise
        self._drawn += 1
        return batch

    def _begin(self, batch: Any) -> None:
        self._waiting.append((batch, self.adopted.start(_list_numbers(batch))))

    def _depth(self) -> int:
        if self._ahead is not None:
            return self._ahead
        return max(AHEAD_BATCHES, AHEAD_SAMPLES // max(1, len(_list_numbers(self._waiting[-1][0]))))

    # --- a batch is made ----

    def __enter__(self) -> Self:
        """Answers this thread's calls of h5py until the end of the block, or notes them while it learns."""
        adopted = self.adopted
        self._marks = []
        if adopted.watching:
            dataset = self._fetcher.dataset
            if asks_one_by_one(dataset):
                self._fetcher.dataset = _Marked(dataset, self._mark)
            else:
                self._marks.append((None, adopted.begin_sample()))
        self._calls.__enter__()
        return self

    def _mark(self, index: Any) -> None:
        if isinstance(index, int | np.integer):
            self._marks.append((int(index), self.adopted.begin_sample()))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._calls.__exit__(kind, error, traceback)
        if isinstance(self._fetcher.dataset, _Marked):
            self._fetcher.dataset = self._fetcher.dataset._dataset
        adopted = self.adopted
        with adopted.lock:
            if self._blocks:
                adopted.release(self._blocks)
                self._blocks = []
            try:
                if not adopted.left_alone:
                    self._look_at_what_was_read(kind is StopIteration, failed=kind is not None)
            except Exception as own:
                adopted.failed(own)
        if kind is None or kind is StopIteration:  # a warning may be an error, and is to take no other's place
            adopted.warn_of_no_effect()

    def _look_at_what_was_read(self, ended: bool, *, failed: bool) -> None:
        adopted = self.adopted
        self._batches = self._batches + 1 if adopted.watching else 0
        if not adopted.watching and not ended:
            adopted.check_worth()
            return
        if adopted.watching and not failed:
            marks = self._marks
            if len(marks) == 1 and marks[0][0] is None:
                marks = _divide_reads(_list_numbers(self._now), marks[0][1])
            adopted.note([index for index, _ in marks if index is not None], [reads for _, reads in marks])
        adopted.decide(self._batches, ended)

    def close(self) -> None:
        """Releases all blocks."""
        with self.adopted.lock:
            for _, blocks in self._waiting:
                self.adopted.release(blocks or [])
            self._waiting.clear()

    def __del__(self) -> None:
        self.close()


def _divide_reads(indices: Any, reads: list[RowsRead]) -> list[Mark]:
    """Returns what each sample of a batch read, if they were read one by one and all read equally much."""
    each, rest = divmod(len(reads), max(1, len(indices)))
    if rest or not each or not all(isinstance(index, int | np.integer) for index in indices):
        return []
    return [(int(index), reads[each * at : each * (at + 1)]) for at, index in enumerate(indices)]


def _list_numbers(batch: Any) -> Any:
    return batch if isinstance(batch, list | tuple) else [batch]


# --- in worker processes ----


class AdoptInWorker:
    """The init function of a worker process: calls the user's, then adopts the Dataset there.

    Each worker learns for itself, and has its share of the memory. It reads ahead only for the batches that torch has
    already given it.
    """

    def __init__(self, users: Callable[[int], None] | None, buffer: int | None, workers: int) -> None:
        self._users, self._buffer, self._workers = users, buffer, workers

    def __call__(self, worker: int) -> None:
        if self._users is not None:
            self._users(worker)
        dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]
        torchs: Callable[..., Any] = _DatasetKind.create_fetcher
        adopted: list[AdoptedReads] = []

        def create_fetcher(kind: Any, of: Any, *options: Any) -> Any:
            fetcher = torchs(kind, of, *options)
            if of is not dataset or kind != _DatasetKind.Map or type(fetcher) is not _MapDatasetFetcher:
                return fetcher
            if adopted:  # persistent workers come here again for the next epoch
                adopted[0].decide(0, epoch_ended=True)
            else:
                adopted.append(AdoptedReads(of, self._buffer))
                adopted[0].held.capacity //= self._workers
            return WorkerFetcher(fetcher, adopted[0])

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]


class WorkerFetcher:
    """torch's fetcher in a worker. It reads ahead what the batches are known to need."""

    def __init__(self, torchs: Any, adopted: AdoptedReads) -> None:
        self.dataset = torchs.dataset
        self._torchs = torchs
        self._pass = AdoptedPass(adopted, torchs, 0, lambda: 0)

    def fetch(self, index: Any) -> Any:
        if self._pass.adopted.left_alone:
            return self._torchs.fetch(index)
        with self._pass:
            return self._torchs.fetch(self._pass.next_batch(iter((index,))))
