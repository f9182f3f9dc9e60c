"""What ranks tell each other in memory: short messages, and arrays that are copied when they arrive."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from solar.errors import ReadError
from solar.io.channels.bulk import NAME

from .tasks import Actor, Event, Simulation, Thread
from .wire import Wire

KNOWN_AFTER = 1.0  # seconds after which the others know that a process has ended


@dataclass(eq=False)
class Request:
    """An array on its way."""

    array: Any
    at: float = 0.0  # when it may arrive
    done: bool = False
    as_sent: bytes = b""  # what the array had when it was sent


@dataclass
class Group:
    """The ranks that a launcher began together, and what is on its way between them."""

    simulation: Simulation
    how: Wire
    actors: list[Actor] = field(default_factory=list)
    letters: dict[tuple[int, int], deque[tuple[float, bytes]]] = field(default_factory=lambda: defaultdict(deque))
    arrays: dict[tuple[int, int, int], tuple[deque[Request], deque[Request]]] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)  # ranks that were killed, and when that was seen

    def peers(self, rank: int) -> Any:
        """What solar.io.channels.meeting.Peers is to the services of several nodes."""
        return SimpleNamespace(rank=rank, ranks=len(self.actors), check=self.check)

    def check(self) -> None:
        """Raises ReadError if a rank has been killed."""
        now = self.simulation.now
        for rank, actor in enumerate(self.actors):
            if not actor.alive and now >= self.ended.setdefault(rank, now) + KNOWN_AFTER:
                raise ReadError(f"rank {rank} of {len(self.actors)} has ended")


class Letters:
    """solar.io.channels.control.ControlChannel."""

    def __init__(self, group: Group, rank: int) -> None:
        self._group, self._rank = group, rank

    def ready(self) -> bool:
        return True

    def send(self, rank: int, letter: bytes) -> None:
        self._group.simulation.give_way()
        queue = self._group.letters[self._rank, rank]
        queue.append((self._group.how.arrives(self._group.simulation, queue[-1][0] if queue else 0.0), letter))

    def poll(self, rank: int) -> bytes | None:
        self._group.simulation.give_way()
        queue = self._group.letters[rank, self._rank]
        return queue.popleft()[1] if queue and queue[0][0] <= self._group.simulation.now else None

    def needed(self, rank: int) -> bool:
        return bool(self._group.letters[self._rank, rank])


class Bulk:
    """solar.io.channels.bulk.BulkChannel. What is sent is read when it arrives: until then its memory must stay."""

    cancels = True

    def __init__(self, group: Group, rank: int, number: int) -> None:
        self.rank, self.ranks = rank, len(group.actors)
        self._group, self._number = group, number
        self._threads: list[Thread] = []

    def _between(self, sender: int, receiver: int) -> tuple[deque[Request], deque[Request]]:
        return self._group.arrays.setdefault((self._number, sender, receiver), (deque(), deque()))

    def send(self, peer: int, letter: Any) -> Request:
        self._group.simulation.give_way()
        sent, _ = self._between(self.rank, peer)
        at = self._group.how.arrives(self._group.simulation, sent[-1].at if sent else 0.0)
        made = Request(letter, at, as_sent=letter.tobytes())
        sent.append(made)
        return made

    def receive(self, peer: int, letter: Any) -> Request:
        self._group.simulation.give_way()
        _, wanted = self._between(peer, self.rank)
        wanted.append(made := Request(letter))
        return made

    def cancel(self, receive: Request) -> None:
        for peer in range(self.ranks):
            sent, wanted = self._between(peer, self.rank)
            if receive in wanted:
                assert not sent, "it is cancelled, and something comes"
                wanted.remove(receive)
        receive.done = True

    def _came(self, request: Request) -> bool:
        """Carries all that has arrived to where it was wanted."""
        now = self._group.simulation.now
        if not request.done:
            for peer in range(self.ranks):
                for sent, wanted in (self._between(self.rank, peer), self._between(peer, self.rank)):
                    while sent and wanted and sent[0].at <= now:
                        one, other = sent.popleft(), wanted.popleft()
                        assert one.array.nbytes == other.array.nbytes, "ranks wait for other things than are sent"
                        assert one.array.tobytes() == one.as_sent, "rows were changed while they were on their way"
                        other.array[:] = one.array
                        one.done = other.done = True
        return request.done

    def _wait(self, request: Request) -> None:
        simulation = self._group.simulation
        while not self._came(request):
            late = [one.at for both in self._group.arrays.values() for one in both[0] if one.at > simulation.now]
            simulation.wait(lambda: self._came(request), min(late) - simulation.now + 1e-6 if late else 0.1)

    def run(self, errand: Any) -> Event:
        bell = Event(self._group.simulation)

        def walk() -> None:
            while True:
                bell.clear()
                try:
                    letters = next(errand)
                except StopIteration:
                    return
                if letters is None:
                    bell.wait()
                while letters:
                    self._wait(letters.pop(0))

        self._threads.append(Thread(self._group.simulation, target=walk, name=NAME))
        self._threads[-1].start()
        return bell

    def join(self, seconds: float) -> None:
        for one in self._threads:
            one.join(seconds)

    def slow_down(self) -> None:
        pass

    def stop(self, seconds: float) -> None:
        pass

    def free(self) -> None:
        pass


def numbered(group: Group, rank: int) -> Callable[[int], Bulk]:
    """Returns what makes bulk channels: those of one number belong together."""
    return lambda number: Bulk(group, rank, number)
