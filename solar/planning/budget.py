"""Budget: divides one memory among batches that are made, buffers for decoding, and samples that are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from solar.errors import PlanError
from solar.io.system.quantities import size

if TYPE_CHECKING:
    from solar.planning.regions import Region

READER_SCRATCH = 8 << 20  # bytes that each of the engine's threads may use beside the buffer, where there is as much
HUGE = 2 << 20  # bytes of a huge page, of which large batches take whole ones
FEWER, AT_WORK = 16, 4  # batches take one part of so many of it, or fewer wait; and those that are made or travel
DECODE_SHARE, READ_SHARE = 16, 128  # threads take one part of so many: where they decode; where they only read
ENCODE_SHARE = 8  # and where they encode what is kept: what that takes, or nothing is
ENCODED_READS, ENCODED_SHARE = 1 << 20, 32  # bytes beside it that a thread reads at a time, or one part of so many
SENDING = ("mpi", "torch")  # ways by which samples go to other nodes; else whoever takes them reads them
NEAR, NEAR_READING = 32, 4  # of what is missing to hold everything the part that batches, or threads, may take
SMALL, SMALL_NBYTES = 64, 4 << 20  # what batches ahead may always take: this part of the memory, and at most so much
FETCHED = 2  # steps by which a sample is read beforehand that is read straight into the batch, at another node's home


class BufferTooSmall(PlanError):
    """A buffer has no room for the batches. `least` is a size that works."""

    def __init__(self, nbytes: int, least: int, processes: int) -> None:
        self.least = least
        among = f" of the {processes} processes of this node" if processes > 1 else ""
        super().__init__(
            f"buffer={size(nbytes)} ({nbytes:,} bytes) is too small: the batches{among} alone take {least:,} bytes "
            f"here; give at least buffer={least}, or buffer=0 to read without one"
        )


@dataclass(frozen=True)
class Budget:
    """How the memory of a buffer is divided."""

    nbytes: int  # of all
    staged: int  # batches that wait to be taken
    scratch: int  # bytes for each of the engine's threads
    parts: int  # bytes for what is kept
    batch: int  # samples, at most
    lends: int = 0  # batches that the loop has while another is begun; 0: any number, they are counted elsewhere

    def in_words(self) -> str:
        """Describes how large it is, and how much of it batches that wait take."""
        return f"{size(self.nbytes)} with {self.staged} batch{'es' if self.staged > 1 else ''} ready"


class Needs(NamedTuple):
    """The bytes that the batches of a process take, besides what is kept."""

    waiting: int  # each batch that waits
    beside: int  # all others
    scratch: int  # for each of its engine's threads
    threads: int
    ahead: int  # batches that should wait
    decodes: bool = True  # in its scratch, instead of reading alone
    lends: int = 0  # batches that the loop has, beside those that wait and the one that is made; 0: any number
    encodes: int = 0  # bytes that a thread would need to encode what is kept; 0: nothing may be
    at_work: bool = False  # batches are worked on, or travel, while they wait

    @property
    def least(self) -> int:
        """The least that it takes."""
        return self.waiting + self.beside + self.threads * self.scratch


class AheadSpec(NamedTuple):
    """How far ahead an iterator makes its batches, and in how many threads."""

    ahead: int  # batches on their way
    threads: int  # that hold one each
    copied: int = 0  # that a device copies from, beside these


class SampleBytes(NamedTuple):
    """The bytes of one field of a sample."""

    read: int  # as it is read
    made: int = 0  # as a Field makes it, in memory of its own; 0: it stays as it was read


def needs(
    fields: Sequence[SampleBytes],
    pace: AheadSpec,
    batch: int,
    *,
    scratch: int,
    threads: int,
    exchange: str = "",
    room: tuple[int, int] | None = None,
) -> Needs:
    """Returns the memory that batches of this size take while they are made and used.

    Batches that wait belong to the run, and one of them is the one that it makes. The user has one more. If batches
    need no further work, the next one is one that waited: no other is begun before the loop's variable is bound to it,
    which gives the last one back (Run, `lends`). Otherwise another batch is made from what was read, in the loop or in
    each thread, while the user has one. Threads keep as many finished batches as wait. A device copies from some.
    Where samples travel between nodes, `room` is what two batches take with what is sent and received, and each further
    one. If they are worked on as well, or samples are read for later batches, the run makes one more.
    """
    read = [pooled_nbytes(batch * field.read) for field in fields]
    made = [pooled_nbytes(batch * field.made) if field.made else 0 for field in fields]
    handed_out = sum(after or before for before, after in zip(read, made, strict=True))
    decodes = scratch > max(field.read for field in fields)  # what is only read takes a sample, or less
    busy, ahead = max(1, pace.threads), max(1, pace.ahead - pace.threads)
    lends = 0 if pace.threads or exchange == "read" or any(made) else 1 + pace.copied
    if lends:
        two, more = room or (2 * sum(read), sum(read))
        beside = two - more + pace.copied * more
        return Needs(more, beside, scratch, threads, ahead, decodes, lends, at_work=room is not None)
    each = sum(read) if room is None else room[0] - sum(read)  # the largest batch, with its parcels
    waiting = handed_out if pace.threads else 0
    beside = busy * (each + sum(made)) + waiting + handed_out * (1 + pace.copied)
    if exchange:
        beside += each * (1 + (FETCHED if exchange == "read" else 1))
    return Needs(each + waiting, beside, scratch, threads, ahead, decodes, lends, at_work=True)


def divide_memory(
    nbytes: int,
    batch: int,
    needs: Sequence[Needs],
    wholes: Sequence[int] = (),
    tables: int = 0,
    apart: int = 1,
) -> Budget:
    """Divides a buffer among these processes. Raises BufferTooSmall if it has no room for their batches.

    A batch has up to `batch` samples. If batches that wait would take much of the memory, fewer wait. `wholes` are
    sizes that hold all samples, in one form or another. Near such a size, batches and threads get, beyond the least
    that they need, what is left, or a part of what is missing (NEAR, NEAR_READING), which is read again and again.
    Small batches wait all the same (SMALL): with none ahead, threads would wait for the loop. Where samples may be
    packed, threads get what encoding takes, if that is little and not all samples have room as they are, and what long
    reads take besides. `tables` are the bytes in which each process keeps where samples lie;
    they take up to half of what is left for samples. `apart` is the number of processes of this node that each have a
    buffer of this size; only the error mentions it.
    """
    scratch = max(one.scratch for one in needs)
    least = sum(one._replace(scratch=scratch).least for one in needs)
    if nbytes < least:
        raise BufferTooSmall(nbytes * apart, least * apart, len(needs) * apart)
    threads = sum(one.threads for one in needs)
    waiting, beside = sum(one.waiting for one in needs), sum(one.beside for one in needs)
    lends = min(one.lends for one in needs)
    part = AT_WORK if any(one.at_work for one in needs) else FEWER
    room = min(nbytes // part, nbytes - threads * scratch) - beside
    free = nbytes - least - len(needs) * tables
    more = max(_spare(free, wholes, NEAR), min(nbytes // SMALL, SMALL_NBYTES))
    staged = max(1, min(*(one.ahead for one in needs), room // max(waiting, 1), 1 + more // max(waiting, 1)))
    left = nbytes - beside - staged * waiting
    part = DECODE_SHARE if any(one.decodes for one in needs) else READ_SHARE
    most = _spare(left - len(needs) * tables, wholes, NEAR_READING)
    each = max(scratch, min(READER_SCRATCH, left // (part * threads), most // threads))
    encodes = max(one.encodes for one in needs)
    if 0 < encodes * threads * ENCODE_SHARE <= left and left - threads * each < max(wholes, default=left):
        each = max(each, encodes + min(ENCODED_READS, left // (ENCODED_SHARE * threads)))
    parts = left - threads * each
    return Budget(nbytes, staged, each, parts - min(len(needs) * tables, parts // 2), batch, lends)


def _spare(free: int, wholes: Sequence[int], part: int) -> int:
    """Returns how much of the free memory may be used for other things than samples.

    It is what holding all of them leaves, or a part of what is missing for that.
    """
    return min((free - one if free >= one else (one - free) // part for one in wholes), default=free)


def pooled_nbytes(nbytes: int) -> int:
    """Returns the memory that a batch of this many bytes takes: eight sizes per power of two, in whole pages."""
    step = 4 << 10
    while step * 16 < nbytes:
        step *= 2
    if nbytes >= HUGE:
        step = max(step, HUGE)
    return max(1, -(-nbytes // step)) * step


# One memory divided among data sets that are read side by side.


SMALL, SMALL_TOGETHER = 32, 8  # parts of the memory that a small data set may take, and all small ones together


def shares(memory: int, regions: Sequence[Region], uses: Sequence[float] | None = None) -> list[int]:
    """Returns how much of the memory each gets: small ones all that they take, the others in proportion to their
    weights.

    A sweep over what takes S bytes in storage and H in memory, and whose items are used u times each, reads u S H / 2M
    with so much memory M. All together read least where M is in proportion to the root of u S H. Without `uses` all are
    used alike.

    >>> from solar.planning.regions import whole_region
    >>> from solar.planning.units import uniform
    >>> shares(1000, [whole(uniform(10, 100)), whole(uniform(30, 100)), whole(uniform(1, 20))])
    [245, 735, 20]
    """
    takes = [_everything(one) for one in regions]
    alike = [1.0] * len(regions) if uses is None else uses
    weights = [_weight(*one) for one in zip(regions, takes, alike, strict=True)]
    parts = [0] * len(regions)
    small = 0
    for place in sorted(range(len(regions)), key=takes.__getitem__):
        if takes[place] > memory // SMALL or small + takes[place] > memory // SMALL_TOGETHER:
            break
        parts[place] = takes[place]
        small += takes[place]
    left, others = memory - small, [place for place in range(len(regions)) if not parts[place]]
    while others:  # until none gets more than it takes
        total = sum(weights[place] for place in others)
        part = {place: left * weights[place] // total for place in others}
        filled = [place for place in others if part[place] >= takes[place]]
        for place in filled or others:
            parts[place] = min(part[place], takes[place])
        left -= sum(parts[place] for place in filled)
        others = [place for place in others if place not in filled] if filled else []
    return parts


def wholes(regions: Sequence[Region]) -> list[int]:
    """Returns the memory that holds all regions: as samples, and each in its smallest form."""
    return [sum(one.held_nbytes(one.items, whole=False) for one in regions), sum(map(_everything, regions))]


def _weight(region: Region, takes: int, uses: float) -> int:
    return max(1, math.isqrt(int(uses * region.stored_nbytes(region.items) * takes)))


def _everything(region: Region) -> int:
    """Returns the memory that holds all of the region in its smallest form."""
    return min(region.held_nbytes(region.items, whole=whole) for whole in region.kinds)
