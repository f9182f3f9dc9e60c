"""SharedPlans: passes and plans that one rank of a node makes for all ranks of it."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from solar.buffer.located import LOCATED, located
from solar.buffer.thread import check_wanted
from solar.samples.source import SampleSource

if TYPE_CHECKING:
    from solar.io.channels.meeting import MeetingResult, Peers
    from solar.io.channels.node_notes import NodeNotes

SHARED_SAMPLES = 1 << 20  # of a pass, from which on a node makes it once: it takes a rank some tenths of a second


class SharedPlans:
    """What the ranks of a node make once: the order of a pass, who takes what of it, and what is read when.

    The first rank of a node makes it, and the others map it. They wait for it as they wait for a meeting.
    """

    def __init__(
        self, peers: Peers, met: MeetingResult, name: str, seconds: float, source: SampleSource, samples: int
    ) -> None:
        self._peers, self._name, self._seconds = peers, name, seconds
        self._source, self._samples = source, samples
        self._several = len(set(met.node_of)) < len(met.node_of)  # some node has several ranks
        self._notes: NodeNotes | None = None  # from the first shared pass on
        self._begun = self._running = 0  # runs whose first pass was begun; that were begun

    def shares(self, facts: Mapping[str, Any] | None) -> bool:
        """Returns whether the ranks of a node make a pass once. All ranks say the same."""
        return facts is not None and self._several and facts["samples"] >= SHARED_SAMPLES

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Begins the first pass of a run on all ranks, before it is made. It must be the same pass."""
        if self._notes is not None:
            self._notes.begin()
        mine = {"door": secrets.token_hex(16)}
        same = {f"{name} of the order": value for name, value in facts.items()}
        same["checksum of a Subset"] = self._subset
        met = self._peers.meet(f"a new run of the buffer for {self._name}", same, mine, {}, self._seconds)
        self._begun += 1
        if self._notes is None and len(met.mates) > 1:
            from solar.io.channels.node_notes import join_notes  # only for large passes

            ranks = list(met.mates)
            names = [f"rank {rank} of {self._peers.ranks}" for rank in ranks]
            door, place = met.mates[ranks[0]]["door"], ranks.index(self._peers.rank)
            self._notes = join_notes(door, place, names, self._seconds, self._peers.check)

    def run_begins(self) -> None:
        """Says that the run begins whose first pass was begun."""
        self._running = self._begun

    def run_ends(self) -> None:
        """Says that nothing more is made for the present run."""
        if self._notes is not None:
            self._notes.end(self._running)

    def is_of_others(self, error: Exception) -> bool:
        """Returns whether an error only says that the rank that makes plans has ended a run."""
        if self._notes is None:
            return False
        from solar.io.channels.node_notes import RunEnded

        return isinstance(error, RunEnded)

    def pass_of(self, facts: Mapping[str, Any] | None, make: Callable[[], Any]) -> Any:
        """Returns what is made of a pass, by this rank or by another one of its node."""
        if self._notes is None or not self.shares(facts):
            return make()
        return self._of(facts, make, f"the samples of epoch {facts['epoch']}" if facts else "")

    def of_run(self, kind: str, number: int, make: Callable[[], Any]) -> Any:
        """Returns what is made once for a run on a node: its plans and scripts."""
        if self._notes is None:
            return make()
        return self._of((self._running, kind, number), make, f"{kind} {number} of a run")

    def _of(self, key: object, make: Callable[[], Any], what: str) -> Any:
        from solar.io.channels.node_notes import Waiting

        assert self._notes is not None, "only a node with several ranks shares"
        return self._notes.share(key, make, Waiting(what, self._begun, self._seconds, self._look))

    def _look(self) -> None:
        self._peers.check()
        check_wanted()

    @cached_property
    def _subset(self) -> int:
        """A checksum of which rows the samples are: ranks could have different Subsets."""
        if self._source.plain:
            return 0
        found = 0
        for begin in range(0, self._samples, LOCATED):
            some = np.arange(begin, min(begin + LOCATED, self._samples))
            uses = located(self._source, (some, np.array([0, len(some)])))
            for column in (uses.which, uses.rows):
                found = zlib.crc32(b"-" if column is None else np.ascontiguousarray(column).data, found)
        return found
