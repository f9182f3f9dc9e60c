"""BufferMemory: the memory of a loader's buffer, chosen from the arguments and from what is read."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, get_args

from solar.buffer import buffer_size as sizing
from solar.buffer.buffer_size import GivenStorage
from solar.errors import PlanError, ReadError, SolarError
from solar.io.channels import detect
from solar.io.reading.reader import Rows
from solar.io.reading.run import scratch_nbytes
from solar.io.system.cores import reading_threads
from solar.planning import budget
from solar.planning.budget import AheadSpec as AheadSpec
from solar.planning.budget import Needs, SampleBytes
from solar.planning.units import MOST_SAMPLES, not_carried
from solar.samplers.epoch_position import SamplerState
from solar.samplers.index_stream import IndexStream
from solar.samples.dataset import H5Dataset
from solar.samples.field_reader import FieldReader
from solar.samples.source import SampleSource
from solar.values import Layout

if TYPE_CHECKING:
    from solar.buffer.planned_run import ServiceMaker
    from solar.buffer.rank_group import RankGroup
    from solar.io.channels.meeting import Peers

log = logging.getLogger("solar")


Exchanges = Literal["auto", "mpi", "torch", "read", "off"]
Balance = Literal["torch", "equal", "uneven"]


class BufferOptions(NamedTuple):
    """The arguments of a loader about its buffer."""

    nbytes: int | None  # None: whatever is best; 0: no buffer
    as_requested: str
    epochs: int | None
    exchange: str
    balance: str | None
    service: ServiceMaker | None

    @classmethod
    def checked(
        cls, buffer: sizing.Size, epochs: int | None, exchange: str, balance: str | None, service: ServiceMaker | None
    ) -> BufferOptions:
        """Returns the arguments of a DataLoader. Raises PlanError, TypeError or ValueError if they are impossible."""
        check_exchange(exchange, balance)
        if not isinstance(epochs, SupportsIndex | None):
            raise TypeError(f"epochs={epochs!r:.60}: it is a whole number, or None where nobody knows")
        if epochs is not None and operator.index(epochs) < 1:
            raise ValueError(f"epochs={epochs}: at least one, or None where nobody knows")
        nbytes = sizing.requested_bytes(buffer)
        if nbytes in (0, None) and balance in ("equal", "uneven"):
            raise PlanError(
                f"balance={balance!r} divides a data set among buffers, and buffer={buffer!r} is "
                f"{'none' if nbytes == 0 else 'one only where it pays'}: give buffer= a size, such as '25%'"
            )
        return cls(nbytes, str(buffer), epochs, exchange, balance, service)

    def epochs_after(self, epoch: int) -> int | None:
        """Returns how many epochs follow this one; None: unknown."""
        return None if self.epochs is None else max(0, self.epochs - epoch - 1)


@dataclass
class BufferMemory:
    """The memory of a buffer, once it is known what is read."""

    nbytes: int = 0  # of all ranks of the node that share one; 0: there is no buffer
    apart: int = 1  # processes of this node that have a buffer of that size each
    warm: bool = False  # chosen for what the page cache holds; ranks together may see that differently
    weighed: Callable[[], tuple[int, str]] | None = None  # what a buffer gains, where one is possible
    rank_group: RankGroup | None = None
    threads: int | None = None  # that decode, of all ranks of the node, where they read together


class RankMemory(NamedTuple):
    """The part of the buffer that a pass may use."""

    rank_group: RankGroup | None  # with whom
    nbytes: int
    apart: int  # processes of this node that have as much each
    epochs_left: int | None


def choose_memory(
    options: BufferOptions,
    storage: GivenStorage,
    source: SampleSource,
    sampler_state: SamplerState,
    order: IndexStream,
    own: Callable[[int], Needs],
    replaced: ReadError | None,
) -> BufferMemory:
    """Chooses the memory of a buffer, which may be none, and logs why. `own`: what batches of a size take."""
    if refused := not_held(source, options.as_requested if options.nbytes else ""):
        if options.nbytes:
            log.info("no buffer: %s", refused)
        return BufferMemory()
    left = options.nbytes == 0 or (options.nbytes is None and not order.fixed)
    found = None if left else those_of(options.exchange, order)
    ranks = sizing.ranks_here() if found is None else 1  # that have a buffer each
    batch, all_ = sampler_state.batch_size or 1, 1 if found is None else found.ranks
    weighed = cache(partial(worthwhile_bytes, source, batch * all_, storage, own(batch), ranks, options.epochs))
    memory = BufferMemory(weighed=weighed)
    if left:  # a buffer that nobody has asked for would draw from the sampler long before
        return memory
    if options.nbytes and found is None and (why := sizing.kept_at_hand(layouts_of_source(source), ranks)):
        log.info("no buffer: %s", why)
    elif options.nbytes is not None:
        memory.apart, memory.nbytes = ranks, max(1, options.nbytes // ranks)
    else:
        memory.nbytes, why = weighed()
        memory.warm = found is None and sizing.fit_page_cache(layouts_of_source(source), ranks)
        level = logging.DEBUG if why == sizing.FITS else logging.INFO
        log.log(level, "%s buffer: %s", "a" if memory.nbytes else "no", why)
    try:
        if memory.nbytes and found is None:
            check_alone(options.balance)
        elif memory.nbytes and found is not None:
            facts = {name: getattr(sampler_state.cutter, name) for name in ("batch_size", "drop_last")}
            facts |= {"buffer": options.as_requested, "epochs": options.epochs}
            from solar.buffer.rank_group import RankGroup

            wanted = bool(options.nbytes) or options.exchange != "auto"
            of = (source, order, options.exchange, options.balance)
            memory.rank_group = RankGroup(found, *of, facts, memory.nbytes, wanted, replaced)
            memory.nbytes = memory.rank_group.nbytes
    except PlanError as error:
        if options.nbytes is not None or options.exchange != "auto":
            raise
        log.warning("no buffer, which nobody has asked for: %s", error)
        return BufferMemory()
    return memory


def check_exchange(exchange: str, balance: str | None) -> None:
    """Raises ValueError for impossible values."""
    if exchange not in get_args(Exchanges):
        raise ValueError(f"exchange={exchange!r}: it is one of {', '.join(map(repr, get_args(Exchanges)))}")
    if balance is not None and balance not in get_args(Balance):
        raise ValueError(f"balance={balance!r}: it is None, or one of {', '.join(map(repr, get_args(Balance)))}")


def those_of(exchange: str, order: IndexStream) -> Peers | None:
    """Returns the ranks that share the samples; None if each process reads alone."""
    if exchange == "off" or not order.is_of_all:
        return None
    replicas = order.sampler.num_replicas
    if replicas == 1:
        return None
    from solar.io.channels.meeting import peers  # only where there are other ranks

    found = peers(exchange)
    if found is not None and found.ranks != replicas and exchange == "auto":
        log.info(
            "each process has a buffer of its own: the sampler divides among %d, and there are %d processes; with "
            'exchange="read" those of a node share one, if all of them iterate',
            replicas, found.ranks,
        )  # fmt: skip
        return None
    return found


def check_alone(balance: str | None) -> None:
    """Raises PlanError if a single process is to divide samples among ranks."""
    if balance in ("equal", "uneven"):
        raise PlanError(
            f"balance={balance!r} divides samples among ranks by where they lie: it takes a PlanSampler "
            "or DistributedSampler over several ranks, a batch_size, and torch.distributed or MPI initialised"
        )


def placed(error: SolarError) -> SolarError:
    """Returns the error with the rank that it happened on, where there are several."""
    with suppress(PlanError):
        world = detect()
        if world.ranks > 1 and error.args:
            error.args = (f"rank {world.rank} of {world.ranks}: {error}",)
    return error


def layouts_of_source(source: SampleSource) -> list[Layout]:
    """Returns the layout of each dataset that is read, in the order of `pieces_of`."""
    return source.layouts()


def held_of(dataset: H5Dataset) -> list[tuple[Layout, Any]]:
    """Returns the layouts of a dataset that a buffer holds, each with its map."""
    return [one for opened in dataset.opened() for one in opened.rows.held]


def not_held(source: SampleSource, buffer: str) -> str:
    """Returns why no buffer can hold these samples; empty if one can. Raises PlanError if the user asked for one."""
    if source.boxes:
        return _boxes_not_held(source)
    if not source.ragged:
        return next((said for layout in layouts_of_source(source) if (said := not_carried(layout))), "")
    reasons = [
        not_carried(read.layout) if read.extents is None or read.extents.lengths is None else read.extents.not_in_blocks
        for dataset in source.datasets
        for read in dataset.reads
    ]
    from solar.samples.ragged_reader import unlike

    why = next(filter(None, reasons), "") or unlike(source.datasets)
    if not why or not buffer:
        return why
    raise PlanError(
        f"buffer={buffer}: {source.first} has samples of unequal length, which no buffer holds here: "
        f"{why}. Leave buffer= away, and each batch is read by itself"
    )


def _boxes_not_held(source: SampleSource) -> str:
    """Returns why no buffer holds the blocks of these boxes; empty if one can."""
    many = next((one for one in source.datasets if one.numbers > MOST_SAMPLES), None)
    if many is not None:
        return f"{many}: plans number up to {MOST_SAMPLES:,} samples"
    held = (layout for dataset in source.datasets for layout, _ in held_of(dataset))
    return next((said for layout in held if (said := not_carried(layout))), "")


def worthwhile_bytes(
    source: SampleSource, batch: int, storage: sizing.GivenStorage, needs: Needs, ranks: int, epochs: int | None
) -> tuple[int, str]:
    """Chooses the bytes of a buffer if the user gave none, or 0, and says why."""
    if not (source.boxes or source.ragged):
        reads = [(read.layout, read.rows) for one in source.datasets for read in one.reads]
        return sizing.auto(reads, batch, storage, needs, ranks, epochs)
    held = [one for dataset in source.datasets for one in held_of(dataset)]
    wanted = sum(layout.nbytes if own is None else own.wanted_bytes(layout, batch) for layout, own in held)
    tables = sum(own.tables_nbytes for _, own in held if own is not None)
    return sizing.all_of_it([layout for layout, _ in held], wanted, storage, needs, ranks, epochs, tables)


def most_rows_per_sample(source: SampleSource) -> int:
    """Returns the rows of a sample in the field that has most of them."""
    return max(1 if extents is None else extents.slots for _, extents in held_of(source.first))


def rows_of(source: SampleSource) -> list[Rows]:
    """Returns the reader of each piece."""
    return [rows for dataset in source.datasets for one in dataset.opened() for rows in one.rows.held_rows]


def batch_needs(
    source: SampleSource, pace: AheadSpec, batch: int, exchange: str = "", room: tuple[int, int] | None = None
) -> Needs:
    """Returns the memory that batches take while they are made and used (planning/budget.py)."""
    if source.ragged:
        from solar.samples.ragged_reader import largest_batch  # only where samples are of unequal length

        largest = largest_batch(source.datasets, batch)
        each = [rows.sample_nbytes for one in source.first.opened() for rows in one.rows.held_rows]
        fields = [
            SampleBytes(*(-(-nbytes // batch) for nbytes in largest[at])) if at in largest else SampleBytes(own)
            for at, own in enumerate(each)
        ]
    else:
        fields = [SampleBytes(one.rows.sample_nbytes, made_nbytes(one)) for one in source.first.opened()]
    if source.first.constants is not None:
        fields.append(SampleBytes(0, source.first.constants.nbytes))
    scratch = max(scratch_nbytes(rows.read_as) for rows in rows_of(source))
    return budget.needs(fields, pace, batch, scratch=scratch, threads=reading_threads(), exchange=exchange, room=room)


def refuse_small(source: SampleSource, nbytes: int, pace: AheadSpec, batch: int, processes: int) -> str:
    """Returns why a buffer is too small for twice what the batches of these processes take; empty if it is not."""
    least = 2 * processes * batch_needs(source, pace, batch).least
    return f"give at least buffer={least} for batches of {batch}" if nbytes < least else ""


def made_nbytes(opened: FieldReader) -> int:
    """Returns the bytes of a converted sample; 0 if it stays as it was read."""
    rows, made = opened.rows, []
    picks = None if opened.extents is None else opened.extents.picks
    if picks is not None:
        made.append(picks.nbytes_in(rows.layout))
    for at, field in enumerate(opened.fields):
        if field is not None:
            read = rows.shapes[at if rows.extents is not None else 0]
            shape, dtype = field.shape_of(read if picks is None else picks.shape_in(rows.layout), rows.dtype)
            made.append(math.prod(shape) * dtype.itemsize)
    kept = rows.sample_nbytes if 0 < len(made) < len(opened.fields) else 0  # for those that stay as they were read
    return sum(made) + kept
