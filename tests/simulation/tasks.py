"""Tasks in virtual time: what `threading`, `time` and `select` are to a program that is simulated.

All tasks run in one thread, one at a time. A task gives way where it takes or releases a lock, waits, sends, receives
or looks at the clock; a seed decides who goes on. Time passes only as the simulation says.
"""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable
from typing import Any

import greenlet

from solar.buffer.thread import failed

STAYS = 0.7  # the share of the places to give way where a task goes on at once
MOMENT = 2e-5  # seconds that pass from one place to the next, at most


class Killed(BaseException):
    """The process of this task was killed: whatever it does from now on has no effect."""


class Stuck(AssertionError):
    """Nobody can go on, ever; or not by the time that was given."""


class Actor:
    """A process: its tasks are paused, resumed and killed together."""

    def __init__(self, name: str, process: int, user: int) -> None:
        self.name, self.process, self.user = name, process, user
        self.alive, self.paused_until, self.paused = True, 0.0, 0.0  # the last: seconds, all together
        self.closing: list[Callable[[], None]] = []  # what the system does when the process has ended


class Task:
    """What a thread is to a program."""

    def __init__(self, actor: Actor, name: str, act: Callable[[], object]) -> None:
        self.actor, self.name, self.act = actor, name, act
        self.done, self.error = False, ""
        self.test: Callable[[], object] | None = None  # for what it waits
        self.until = math.inf  # and for how long
        self.fiber = greenlet.greenlet(self._run)

    def _run(self) -> None:
        try:
            self.act()
        except Killed:
            pass
        except BaseException:
            self.error = traceback.format_exc()
        self.done = True
        del self.act

    def where(self) -> str:
        """Says where it waits."""
        frames = traceback.extract_stack(self.fiber.gr_frame) if self.fiber.gr_frame is not None else []
        own = [one for one in frames if "/tests/simulation/" not in one.filename]
        return f"{self.actor.name}: {self.name}: " + " < ".join(
            f"{one.filename.rpartition('/')[2]}:{one.lineno}" for one in reversed(own[-6:])
        )


class Simulation:
    """The tasks, the clock and the seed."""

    def __init__(self, seed: int, stands: tuple[float, float] = (0.0, 0.0)) -> None:
        self.draw = random.Random(seed)
        self._stands, self._longest = stands  # share of the places to give way where a task stands still, and seconds
        self.stood = 0.0  # seconds for which tasks did, all together
        self.now, self.steps = 0.0, 0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.events: list[tuple[float, int, Callable[[], None]]] = []  # when, in which order, and what
        self.trace = 0  # a number for all that has happened
        self.rung = 0  # how often any bell was rung
        self._hub = greenlet.getcurrent()

    # --- what tasks call ----

    def begin(self, actor: Actor, name: str, act: Callable[[], object]) -> Task:
        """Starts a task."""
        task = Task(actor, name, act)
        task.fiber.parent = self._hub
        self.tasks.append(task)
        return task

    def give_way(self) -> None:
        """Lets others go on, or not."""
        task = self.current
        if task is None:
            return
        if not task.actor.alive:
            raise Killed
        self.now += MOMENT * self.draw.random()
        if self._stands and self.draw.random() < self._stands:
            nap = self._longest * self.draw.random()
            self.stood += nap
            self._leave(task, _never, self.now + nap)
            return
        if self.draw.random() > STAYS or task.actor.paused_until > self.now:
            self._leave(task, None, math.inf)

    def wait(self, test: Callable[[], object] | None, seconds: float | None = None) -> bool:
        """Waits until the test is true, or the seconds are over. Returns whether it is true."""
        task = self.current
        if task is None:  # a finalizer, which the simulation itself has called
            return bool(test is not None and test())
        if not task.actor.alive:
            raise Killed
        self._leave(task, test or _never, math.inf if seconds is None else self.now + max(0.0, seconds))
        return bool(test is not None and test())

    def sleep(self, seconds: float) -> None:
        self.wait(None, seconds)

    def clock(self) -> float:
        """Returns the time, in seconds."""
        self.give_way()
        return self.now

    def _leave(self, task: Task, test: Callable[[], object] | None, until: float) -> None:
        task.test, task.until = test, until
        self._hub.switch()
        if not task.actor.alive:
            raise Killed

    # --- what happens to actors ----

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Has something happen at a time."""
        self.events.append((when, len(self.events), act))
        self.events.sort(key=lambda one: one[:2])

    def pause(self, actor: Actor, seconds: float) -> None:
        """Stops all tasks of an actor for so long."""
        if actor.alive:
            actor.paused += max(0.0, self.now + seconds - max(self.now, actor.paused_until))
            actor.paused_until = max(actor.paused_until, self.now + seconds)

    def kill(self, actor: Actor) -> None:
        """Ends an actor at once. Its tasks are unwound, which does nothing: its locks, wires and clock are gone."""
        if not actor.alive:
            return
        actor.alive = False
        for task in [one for one in self.tasks if one.actor is actor and not one.done and one is not self.current]:
            before, self.current = self.current, task
            if task.fiber.dead or not task.fiber:  # it has not begun
                task.done = True
            else:
                while not task.done:
                    task.fiber.switch()
            self.current = before
        for act in actor.closing:
            act()
        actor.closing.clear()
        self.tasks = [one for one in self.tasks if not one.done]

    # --- the loop ----

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Runs all tasks until a test is true. Raises Stuck where it never will be, or not before the time limit."""
        begun = 0
        while True:
            if self.events and self.events[0][0] <= self.now:
                self.events.pop(0)[2]()
                continue
            begun += 1
            if begun % 32 == 1 and until():
                return
            task = self._ready()
            if task is not None:
                self._go_on(task)
                continue
            if until():
                return
            later = min(
                [one.until if one.actor.paused_until <= self.now else one.actor.paused_until for one in self.tasks],
                default=math.inf,
            )
            later = min(later, self.events[0][0] if self.events else math.inf)
            if later == math.inf or later > limit:
                waits = "\n".join(one.where() for one in self.tasks)
                raise Stuck(f"at {self.now:.3f} s nobody can go on" + f" before {limit:g} s:\n{waits}")
            self.now = max(self.now, later)

    def _ready(self) -> Task | None:
        """Returns a task that can go on: the first from one that is drawn."""
        tasks, now = self.tasks, self.now
        first = int(self.draw.random() * len(tasks))
        for at in range(first - len(tasks), first):
            task = tasks[at]
            if task.actor.paused_until <= now and (task.test is None or task.until <= now or task.test()):
                return task
        return None

    def _go_on(self, task: Task) -> None:
        self.steps += 1
        self.trace = hash((self.trace, self.tasks.index(task), round(self.now * 1e9)))
        task.test = None
        self.current = task
        task.fiber.switch()
        self.current = None
        if task.done:
            self.tasks.remove(task)
            if task.error:
                raise AssertionError(f"{task.actor.name}: {task.name} ended in an error:\n{task.error}")


def _never() -> bool:
    return False


# What replaces `threading` and `time`.


class Lock:
    """threading.Lock."""

    again = False

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.owner: Task | None = None
        self.count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        own = self._simulation.current
        if own is None:  # a finalizer that the simulation itself has called
            return True
        self._simulation.give_way()
        if self.again and self.owner is own and self.count:
            self.count += 1
            return True
        if self.count and self._orphaned():
            self.count = 0
        if self.count and (not blocking or not self._wait(None if timeout < 0 else timeout)):
            return False
        self.owner, self.count = own, 1
        return True

    def _orphaned(self) -> bool:
        return self.owner is not None and not self.owner.actor.alive

    def _wait(self, seconds: float | None) -> bool:
        return self._simulation.wait(lambda: not self.count, seconds)

    def release(self) -> None:
        if self._simulation.current is None:
            return
        self._simulation.give_way()
        self.count -= 1
        assert self.count >= 0, "a lock that nobody has"
        if not self.count:
            self.owner = None

    def locked(self) -> bool:
        return self.count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """threading.RLock."""

    again = True


class Condition:
    """threading.Condition: who waits goes on only when told."""

    def __init__(self, simulation: Simulation, lock: Lock | None = None) -> None:
        self._simulation = simulation
        self._lock = RLock(simulation) if lock is None else lock
        self._waiting: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        lock, told = self._lock, [False]
        assert lock.count and lock.owner is self._simulation.current, "waits without the lock"
        self._waiting.append(told)
        count, lock.count, lock.owner = lock.count, 0, None
        came = self._simulation.wait(lambda: told[0], timeout)
        self._waiting = [one for one in self._waiting if one is not told]
        if lock.count:
            self._simulation.wait(lambda: not lock.count)
        lock.count, lock.owner = count, self._simulation.current
        return came

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._simulation.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._simulation.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        own = self._simulation.current
        assert own is None or (self._lock.count and self._lock.owner is own), "notifies without the lock"
        for one in [one for one in self._waiting if not one[0]][:n]:
            one[0] = True

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """threading.Event."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._set = simulation, False

    def is_set(self) -> bool:
        self._simulation.give_way()
        return self._set

    def set(self) -> None:
        self._simulation.give_way()
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._simulation.wait(lambda: self._set, timeout)
        return self._set


class Thread:
    """threading.Thread."""

    def __init__(
        self,
        simulation: Simulation,
        target: Callable[..., object],
        args: Any = (),
        name: str = "",
        daemon: bool = False,
    ) -> None:
        self._simulation, self._act, self.name, self.daemon = simulation, lambda: target(*args), name, daemon
        self.task: Task | None = None

    def start(self) -> None:
        self._simulation.give_way()
        assert self._simulation.current is not None
        self.task = self._simulation.begin(self._simulation.current.actor, self.name, self._act)
        self.task.thread = self  # type: ignore[attr-defined]

    def is_alive(self) -> bool:
        return self.task is not None and not self.task.done

    def join(self, timeout: float | None = None) -> None:
        self._simulation.wait(lambda: not self.is_alive(), timeout)


class Background:
    """solar.buffer.thread.Background, which is a thread of Python's own."""

    def __init__(self, simulation: Simulation, do: Callable[[Any], None]) -> None:
        self._stopped = Event(simulation)
        self._thread = Thread(simulation, target=lambda: failed(do, self._stopped), name="solar-planning")  # type: ignore[arg-type]
        self._thread.start()

    def stop(self, wait: bool = True) -> None:
        self._stopped.set()
        if wait:
            self._thread.join()
