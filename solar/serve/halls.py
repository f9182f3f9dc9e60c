"""Halls: the data sets that jobs read at a time, each with its part of the memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection

from solar.io.machine.figures import enough
from solar.io.serve.frames import Refused
from solar.planner.budget import TooSmall
from solar.serve.hall import Hall
from solar.serve.nodes import Nodes
from solar.serve.opened import SharedData

RESTS = 30.0  # seconds for which data are left to their jobs that could not be read
SMALLEST_PART = 16  # no data set has less than one part of so many, as long as there are fewer


class Halls:
    """A Hall for each data set that somebody reads. The memory is divided anew when another data set comes."""

    def __init__(self, memory: int, slack: float, nodes: Nodes | None = None) -> None:
        self.memory, self.slack, self._nodes = memory, slack, nodes
        self._halls: dict[str, Hall] = {}  # by the facts of the data
        self._known: dict[str, SharedData] = {}  # so, too: all that is wanted, also while its hall is made anew
        self._before = Counter[str]()  # counts of those that are over
        self._over = False
        self._lock = threading.Lock()

    def each(self) -> list[Hall]:
        """Those that are there."""
        return list(self._halls.values())

    def counts(self) -> dict[str, int]:
        """What was read and handed on, by all that were there."""
        found = self._before.copy()
        for one in self.each():
            found.update(one.counts())
        return found

    def known(self, facts: str) -> SharedData | None:
        """These data, if they are read."""
        return self._known.get(facts)

    def of(self, data: SharedData, wanted: Collection[str]) -> Hall:
        """The hall of these data; `wanted` are the facts of all that those who are there have opened.

        Where it has to be made, others end whose part of the memory is now another. Their jobs join again. One that
        nobody takes part in is made anew where its part would be another.
        """
        with self._lock:
            if self._over:
                raise Refused("the service ends")
            if self._nodes is not None:
                self._nodes.check(data)
            there = {facts: one for facts, one in self._known.items() if facts in wanted} | {data.facts: data}
            parts = dict(zip(there, parts_of(self.memory, [one.nbytes for one in there.values()]), strict=True))
            self._known = there
            found = self._halls.get(data.facts)
            if found is not None and not found.over and (found.members or found.memory == parts[data.facts]):
                return found
            if found is not None and time.monotonic() < found.failed[0] + RESTS:
                raise Refused(
                    f"what is read of these data has failed, and is tried again after {RESTS:g} s: {found.failed[1]}",
                    again=True,
                )
            for facts in [facts for facts, one in self._halls.items() if one.memory != parts.get(facts) or one.over]:
                self._end(facts, "the memory of the service is divided anew")
            together = None if self._nodes is None else self._nodes.of(data)
            try:
                made = Hall(data, parts[data.facts], self.memory, self.slack, together)
            except TooSmall as error:
                if together is not None:
                    together.end("the memory is too small for these data")
                least = -(-error.least * self.memory // parts[data.facts])
                raise Refused(f"--memory is too small for these data: give {enough(least)} or more") from None
            self._halls[data.facts] = made
            return made

    def close(self) -> None:
        """Ends them; the jobs go on by themselves."""
        with self._lock:
            self._over = True  # who joins again now is refused
            for facts in list(self._halls):
                self._end(facts, "the service ends")

    def _end(self, facts: str, why: str) -> None:
        hall = self._halls.pop(facts)
        hall.close(why)
        self._before.update(hall.counts())


def parts_of(memory: int, nbytes: list[int]) -> list[int]:
    """What each of several data sets of so many bytes has of the memory: in proportion, but not too little.

    >>> parts_of(800, [300, 100]), parts_of(800, [10_000, 1]), parts_of(800, [5])
    ([600, 200], [752, 47], [800])
    """
    shares = [max(one / sum(nbytes), 1 / SMALLEST_PART) for one in nbytes]
    return [int(memory * one / sum(shares)) for one in shares]
