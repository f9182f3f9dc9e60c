"""Cluster: the services of several nodes that read one data set together. SingleNode: a service by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from solar.distributed.exchange import Exchange
from solar.errors import ReadError
from solar.io.channels.bulk import BulkChannel
from solar.io.reading.run import Running
from solar.io.system.waiting import RANKS_PATIENCE, SAID_AFTER
from solar.planning.pass_uses import PassUses, SampleUses, in_lockstep
from solar.planning.planned_passes import Piece
from solar.planning.sharing import Sharing
from solar.service.shared_data import SharedData
from solar.service.steps import Steps

log = logging.getLogger("solar")

STEPS_UNDERWAY = 16  # steps that are with the exchange, at most


class Said(NamedTuple):
    """What a node tells all others."""

    value: Any
    arrays: Sequence[NDArray[Any]]


class SingleNode:
    """A service of one node."""

    rank, ranks = 0, 1
    called = False  # another node has begun what all do together

    def __init__(self, data: SharedData) -> None:
        self._data = data
        self.changed = threading.Condition()  # of its shared reader, too

    def begin(self, give_up: Callable[[str], None]) -> None:
        """Called before anything else. Gets the function that ends its shared reader."""

    def all(self, value: Any, arrays: Sequence[NDArray[Any]] = (), *, or_none: bool = False) -> list[Said]:
        """Exchanges values: returns what each node sent, in the order of ranks. All nodes call it together.

        Raises ReadError if a node ends. `or_none`: even then, either all nodes return from it or none does.
        """
        return [Said(value, arrays)]

    def pieces(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Returns the pieces that this node plans."""
        return list(pieces)

    def uses(self, own: Iterable[SampleUses]) -> list[SampleUses]:
        """Exchanges what the jobs of each node want of a window."""
        return []

    def divided(self, own: SampleUses, of_nodes: list[SampleUses], begin: int, end: int) -> PassUses:
        """Returns this node's part of these steps."""
        return PassUses(own._replace(places=self._data.within(own)), own, sizes_=self._data.slots(own))

    def run(self) -> dict[str, Any]:
        """Tells the other nodes what they must know before a Run begins."""
        return {}

    def running(self, made: Steps, how: dict[str, Any]) -> Steps:
        """Returns the run of this node's part, as the first node decides."""
        return made

    def waiting(self, here: int) -> int:
        """Returns for what jobs of other nodes wait, of this one `here`: see pace.FOR_A_PLAN; 0 for nothing."""
        return 0

    def end(self, why: str) -> None:
        """Ends the part of this node."""


class ClusterMessages(Protocol):
    """Carries messages between the nodes, and makes bulk channels for samples."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...

    def tell(self, letter: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> None: ...
    def begin(self, one: Cluster) -> None: ...
    def bye(self, one: Cluster, why: str) -> None: ...
    def next_number(self) -> int: ...
    def mail(self, number: int) -> BulkChannel: ...


class Cluster:
    """One of several services that read one data set. All of them go through the same rounds: see `all`."""

    def __init__(self, letters: ClusterMessages, data: SharedData, number: int) -> None:
        self.number = number  # how often they had begun with these data
        self._letters, self._data = letters, data
        self._round = 0  # what all do together next
        self._came: dict[tuple[int, int], Said] = {}  # by round, and by rank
        self._waits = [0] * self.ranks  # for what jobs of each node wait
        self._over = ""  # why
        self._ended: set[int] = set()  # ranks that have said that they end, or of which nothing more is heard
        self._telling = threading.Lock()  # nothing is told after the word that this one ends
        nodes = np.arange(self.ranks, dtype=np.int32)
        self._sharing = Sharing(data.pieces, nodes, self.ranks, self.rank, [self.rank], self.rank, "equal", "mpi")
        self.changed = threading.Condition()  # of its shared reader, too
        self._give_up: Callable[[str], None] | None = None

    @property
    def rank(self) -> int:
        """The rank of this node."""
        return self._letters.rank

    @property
    def ranks(self) -> int:
        """The number of nodes."""
        return self._letters.ranks

    @property
    def key(self) -> str:
        """The facts by which the other nodes know these data."""
        return self._data.facts

    @property
    def begun(self) -> bool:
        """Whether there is somebody to hear what comes."""
        return self._give_up is not None

    def begin(self, give_up: Callable[[str], None]) -> None:
        self._give_up = give_up
        self._letters.begin(self)
        if self._over:  # since before
            give_up(self._over)

    @property
    def called(self) -> bool:
        return any(number == self._round for number, _ in self._came)

    def came(self, rank: int, number: int, said: Said) -> None:
        """Takes a message from another node, for this round or the next."""
        with self.changed:
            self._came[number, rank] = said
            self.changed.notify_all()

    def over(self, why: str, ranks: Iterable[int]) -> bool:
        """Ends the reading because these nodes have left it. Returns whether nothing more can come."""
        self.end(why)  # each says so by itself
        with self.changed:
            self._ended.update(ranks)
            self.changed.notify_all()
            if self._give_up is not None:
                self._give_up(why)  # before those who wake here ask whether it is over
            return len(self._ended) == self.ranks - 1

    def all(self, value: Any, arrays: Sequence[NDArray[Any]] = (), *, or_none: bool = False) -> list[Said]:
        """Messages of a node arrive in the order in which it sent them, and its last one says that it ends. So if every
        node had sent its value before it ended, all of them see that; and if one had not, none does.
        """
        with self.changed:
            number, self._round = self._round, self._round + 1
        others = [(number, rank) for rank in range(self.ranks) if rank != self.rank]
        with self._telling:
            if self._over:
                raise ReadError(self._over)
            letter = {"is": "round", "key": self.key, "number": self.number, "round": number, "value": value}
            self._letters.tell(letter, arrays)

        def missing() -> list[int]:
            return [rank for _, rank in others if (number, rank) not in self._came]

        def known() -> bool:
            return self._ended.issuperset(missing()) if or_none else bool(self._over) or not missing()

        with self.changed:
            if not self.changed.wait_for(known, SAID_AFTER) and missing():
                log.info("rank %d of %d services waits for what %s says", self.rank, self.ranks, name_ranks(missing()))
            self.changed.wait_for(known, RANKS_PATIENCE - SAID_AFTER)
            if self._over and (missing() or not or_none):
                raise ReadError(self._over)
            if missing():
                raise ReadError(f"rank {self.rank} waited {RANKS_PATIENCE:g} s for what {name_ranks(missing())} says")
            found = {rank: self._came.pop((number, rank)) for _, rank in others}
        return [found.get(rank, Said(value, arrays)) for rank in range(self.ranks)]

    def pieces(self, pieces: Sequence[Piece]) -> list[Piece]:
        planned = self._sharing.planned()
        return [replace(one, region=own.region) for one, own in zip(pieces, planned, strict=True)]

    def uses(self, own: Iterable[SampleUses]) -> list[SampleUses]:
        parts = list(own)
        arrays: list[NDArray[Any]] = [np.concatenate([one.rows for one in parts])]
        arrays.append(np.concatenate([one.sizes for one in parts]).astype(np.int32))
        if parts[0].which is not None:
            arrays.append(np.concatenate([cast(Any, one.which) for one in parts]).astype(np.uint8))
        del parts
        found = []
        for said in self.all(None, arrays):
            rows, sizes, *which = said.arrays
            starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
            found.append(SampleUses(which[0] if which else None, rows, starts))
        return found

    def divided(self, own: SampleUses, of_nodes: list[SampleUses], begin: int, end: int) -> PassUses:
        each = [own if rank == self.rank else _steps_of(one, begin, end) for rank, one in enumerate(of_nodes)]
        uses = in_lockstep(each)
        sizes = np.zeros((len(uses.starts) - 1, self.ranks), np.int64)
        for rank, one in enumerate(each):
            sizes[: len(one.starts) - 1, rank] = one.sizes
        nodes = np.arange(self.ranks, dtype=np.int32)
        takes = np.repeat(np.tile(nodes, len(sizes)), sizes.reshape(-1))
        # Fields with samples of their own are divided as if each were a step, of which the memory has all side by side.
        order, starts = self._data.by_field(uses)
        which = None if uses.which is None else uses.which[order]
        steps = uses._replace(which=which, rows=uses.rows[order], starts=starts)
        made, _ = self._sharing.divided(steps, (takes[order], self._sharing.homes_of(steps)))
        return join_fields(made, len(self._letters_of()))

    def run(self) -> dict[str, Any]:
        return {"mail": self._letters.next_number()}

    def running(self, made: Steps, how: dict[str, Any]) -> Exchange:
        return Exchange(cast(Running, made), self._letters.mail(how["mail"]), STEPS_UNDERWAY, self._letters_of())

    def _letters_of(self) -> list[slice]:
        """Returns the arrays of a step that travel together: all, or those of each field that has its own samples."""
        if not self._data.apart:
            return [slice(None)]
        ends = accumulate(map(len, self._data.fields), initial=0)
        return [slice(*both) for both in pairwise(ends)]

    def waiting(self, here: int) -> int:
        if here != self._waits[self.rank]:
            self._waits[self.rank] = here
            self._letters.tell({"is": "waits", "key": self.key, "number": self.number, "value": here})
        return max(waits for rank, waits in enumerate(self._waits) if rank != self.rank)

    def heard(self, rank: int, waits: int) -> None:
        """Notes for what jobs of another node wait."""
        self._waits[rank] = waits

    def end(self, why: str) -> None:
        with self._telling:
            if not self._over:
                self._over = why
                self._letters.bye(self, why)
        with self.changed:
            self.changed.notify_all()


def name_ranks(ranks: Iterable[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)


def join_fields(made: PassUses, fields: int) -> PassUses:
    """Joins uses that were divided field by field into steps, with places for the field that needs most."""
    assert made.parcels is not None
    planned, batches = (one._replace(starts=one.starts[::fields]) for one in (made.planned, made.batches))
    own, sizes = (one.reshape(-1, fields).max(1, initial=0) for one in (made.parcels.sizes, made.sizes))
    parcels = made.parcels._replace(sizes=own, letters=fields)
    return made._replace(planned=planned, batches=batches, sizes_=sizes, parcels=parcels)


def _steps_of(uses: SampleUses, begin: int, end: int) -> SampleUses:
    """Returns these steps, as far as they exist."""
    every = len(uses.starts) - 1
    starts = uses.starts[min(begin, every) : min(end, every) + 1]
    here = slice(int(starts[0]), int(starts[-1]))
    which = None if uses.which is None else uses.which[here].astype(np.int64)
    return SampleUses(which, uses.rows[here], starts - starts[0])
