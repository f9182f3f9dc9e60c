"""A world by its seed: services, trainings, strangers, storage and wires; who is killed; and what must hold."""

from __future__ import annotations

import contextlib
import gc
import logging
import mmap
import os
import random
import select
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np

import solar.buffer.thread
import solar.service.served_run
from solar import H5Dataset, _native
from solar.distributed import exchange
from solar.errors import PlanError, SolarError
from solar.io.channels import frames, service_sockets
from solar.io.channels.bulk import NAME
from solar.io.reading.reader import Pending
from solar.io.system import waiting
from solar.planning.pass_uses import SampleUses, alone
from solar.samples.source import SampleSource
from solar.service import (
    cluster,
    connection,
    nodes,
    pace,
    scheduler,
    served_passes,
    served_run,
    service,
    shared_reader,
    window_planner,
)
from solar.service.pace import TOLERATED
from solar.service.served_passes import ServedPasses
from solar.service.service import Service

from . import tasks
from .disk import Disk, Pool, Steps
from .ranks import KNOWN_AFTER, Group, Letters, numbered
from .tasks import Actor, Simulation, Task
from .wire import Wire, Wires

log = logging.getLogger("solar")

SAMPLES, LENGTH = 240, 8
LIMIT = 3600.0  # seconds after which a world is over in any case
SETTLED = 3.0  # seconds after which nodes have heard all that they tell each other, where nothing is late
HANDED = 4  # descriptors that a job is handed together
WAITED = struct.Struct("<Q")
WAITED_AT = 24  # bytes into what a job tells: native/src/serve/shared.hpp


@dataclass
class Training:
    """A training, as a seed draws it."""

    begins: float
    fields: tuple[str, ...]
    batch: int
    epochs: int
    seconds: float  # of a batch
    later: bool  # the order of the next epoch is known
    leaves: int = -1  # the batch at which it leaves each epoch; -1: none
    pauses: list[tuple[float, float]] = field(default_factory=list)  # when, and for how long
    killed: float = 0.0  # when
    node: int = 0
    files: int = 1  # 2: of both, as of one
    grows: bool = False  # its batches are larger in later epochs


@dataclass
class World:
    """What happens, as a seed draws it."""

    seed: int
    memory: int
    slack: float
    trainings: list[Training]
    disk: Disk
    wire: Wire
    service_ends: tuple[str, float] = ("", 0.0)  # how, and when: "killed", "stopped"
    comes_back: float = 0.0  # seconds later another one begins there
    service_pauses: list[tuple[float, float]] = field(default_factory=list)
    strangers: list[tuple[str, float]] = field(default_factory=list)  # what they do, and when
    nodes: int = 1
    stands: tuple[float, float] = 0.0, 0.0  # share of the places to give way where a thread stands still, and seconds


CROWDED = 3  # one world of so many is crowded
STRANGERS = ("another user", "garbage", "half a frame", "silence", "a stranger's service", "status", "stops it")


def world_of(seed: int, values: dict[str, Any]) -> World:
    """Returns the world of a seed."""
    if seed % CROWDED == 0:
        return crowded_world_of(seed, values)
    draw = random.Random(f"world {seed}")

    def some(share: float, of: Callable[[], Any], otherwise: Any) -> Any:
        return of() if draw.random() < share else otherwise

    def pauses() -> list[tuple[float, float]]:
        longest = draw.choice([0.05, 1.0, 5.0, 15.0, 40.0])
        return [(6 * draw.random(), longest * draw.random()) for _ in range(draw.randint(1, 3))]

    nodes = draw.choice([1, 1, 1, 1, 2, 2, 3, 4])
    trainings = [
        Training(
            begins=draw.choice([0.0, 0.1, 0.1, 0.1, 3 * draw.random(), 3 * draw.random()]),
            fields=draw.choice([("x",), ("x",), ("x",), ("x", "y")]),
            batch=draw.choice([3, 8, 8, 16, 40]),
            epochs=draw.randint(1, 3),
            seconds=draw.choice([0.0, 0.002, 0.01, 0.05, 0.3]),
            later=draw.random() < 0.7,
            leaves=some(0.15, lambda: draw.randrange(4), -1),
            pauses=some(0.25, pauses, []),
            killed=some(0.15, lambda: 4 * draw.random(), 0.0),
            node=draw.randrange(nodes),
            files=draw.choice([1, 1, 1, 2]),
            grows=draw.random() < 0.15,
        )
        for _ in range(draw.choice([1, 1, 2, 2, 3, 4, 6, 8]))
    ]
    disk = Disk(
        values,
        seconds=draw.choice([1e-4, 1e-3, 0.02]),
        late=some(0.3, lambda: 0.1 * draw.random(), 0.0),
        latest=draw.choice([0.1, 1.0, 12.0]),
        fails=some(0.15, lambda: draw.choice([0.02, 0.3]), 0.0),
        hangs=some(0.1, lambda: 0.01, 0.0),
    )
    wire = Wire(
        some(0.4, lambda: 0.3 * draw.random(), 0.0), draw.choice([0.001, 0.1, 3.0]), some(0.5, lambda: 0.4, 0.0)
    )
    return World(
        seed,
        memory=draw.choice([160 << 10, 256 << 10, 1 << 20, 4 << 20]),
        slack=draw.choice([0.2, 2.0]),
        trainings=trainings,
        disk=disk,
        wire=wire,
        service_ends=some(0.35, lambda: (draw.choice(["killed", "stopped"]), 5 * draw.random()), ("", 0.0)),
        comes_back=some(0.6, lambda: 3 * draw.random(), 0.0) if nodes == 1 else 0.0,
        service_pauses=some(0.2, pauses, []),
        strangers=[(draw.choice(STRANGERS), 4 * draw.random()) for _ in range(draw.choice([0, 0, 0, 1, 2, 4]))],
        nodes=nodes,
    )


def crowded_world_of(seed: int, values: dict[str, Any]) -> World:
    """Returns a world of a busy machine, where trainings of several data sets begin in one moment.

    Their memory is small, two of them may stop midway, and threads stand still wherever they are. Storage and wires are
    quick, so that nobody may lose much.
    """
    draw = random.Random(f"crowded {seed}")
    nodes, moment, trainings = draw.choice([1, 1, 2, 3]), draw.choice([0.1, 1.0]), list[Training]()
    for number in range(draw.choice([2, 3, 4, 6])):
        batch, epochs, seconds = draw.choice([3, 8, 16]), draw.randint(1, 3), draw.choice([0.002, 0.01, 0.05])
        lasts = epochs * seconds * (SAMPLES // batch // 2)
        stops = number < 2 and draw.random() < 0.5
        trainings.append(
            Training(
                begins=moment + draw.choice([0.0, 0.0, 0.1 * draw.random(), draw.random()]),
                fields=draw.choice([("x",), ("x",), ("x", "y")]),
                batch=batch,
                epochs=epochs,
                seconds=seconds,
                later=draw.random() < 0.7,
                leaves=draw.randrange(4) if draw.random() < 0.1 else -1,
                pauses=[(lasts * draw.random(), draw.choice([0.5, 4.0, 15.0]))] if stops else [],
                killed=lasts * draw.random() if draw.random() < 0.1 else 0.0,
                node=draw.randrange(nodes),
                files=draw.choice([1, 1, 2]),
                grows=draw.random() < 0.1,
            )
        )
    what, soon = draw.choice(["", "", "ends", "stops", "fails"]), moment + 0.4 * draw.random()
    return World(
        seed,
        memory=draw.choice([160 << 10, 160 << 10, 256 << 10, 1 << 20]),
        slack=draw.choice([0.2, 2.0]),
        trainings=trainings,
        disk=Disk(values, seconds=draw.choice([1e-4, 1e-3]), fails=0.2 if what == "fails" else 0.0),
        wire=Wire(),
        service_ends=("stopped", soon) if what == "ends" else ("", 0.0),
        service_pauses=[(soon, draw.choice([6.0, 15.0]))] if what == "stops" else [],
        nodes=nodes,
        stands=draw.choice([(0.0, 0.0), (0.03, 0.03), (0.004, 0.3)]),
    )


class Data:
    """The file of all worlds, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths = folder, [folder / "a.h5", folder / "b.h5"]
        rows = np.arange(2 * SAMPLES, dtype=np.int64)
        self.values = {
            "x": np.stack([rows * LENGTH + at for at in range(LENGTH)], 1).astype("f8"),
            "y": rows * 7 + 3,
        }
        self.parts: dict[tuple[str, str], Any] = {}
        for number, path in enumerate(self.paths):
            with h5py.File(path, "w") as file:
                for name, values in self.values.items():
                    part = values[number * SAMPLES : (number + 1) * SAMPLES]
                    self.parts[str(path), name] = file[name] = part
        all_of_it = Training(1.0, ("x", "y"), 8, 1, 0.0, later=False, files=2)
        with contextlib.suppress(Failed):  # of what is begun once, and stays
            happens(World(0, 4 << 20, 2.0, [all_of_it], Disk(self.parts), Wire()), self)
        gc.collect()
        gc.freeze()

    def source(self, training: Training) -> SampleSource:
        fields = {one: one for one in training.fields} if len(training.fields) > 1 else training.fields[0]
        return SampleSource(
            [H5Dataset(path, fields) for path in self.paths[: training.files]],
            lambda indices: np.divmod(np.asarray(indices), SAMPLES),
            plain=training.files == 1,
        )


class Failed(AssertionError):
    """Something that must hold did not."""


def facade(module: Any, **names: Any) -> Any:
    """Returns something that looks like a module, with other values for these names."""
    made = SimpleNamespace(**{one: getattr(module, one) for one in dir(module) if not one.startswith("__")})
    made.__dict__.update(names)
    return made


class Run:
    """A world that happens."""

    shows = False  # what is logged

    def __init__(self, world: World, data: Data) -> None:
        self.world, self.data = world, data
        self.simulation = Simulation(world.seed, world.stands)
        self.wires = Wires(self.simulation, world.wire)
        self.folder = data.folder / "sockets"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.paths = [self.folder / f"{node}.sock" for node in range(world.nodes)]
        self.path = self.paths[0]
        self.group = Group(self.simulation, world.wire)
        self.actors: list[Actor] = []
        self.services: list[Service] = []
        self.served, self.alone = 0, 0
        self.over = False  # all trainings have ended
        self.bells: dict[int, Actor] = {}  # of whom each is
        self.faults: list[str] = []  # errors of another kind that services have met
        self.trainings: list[tuple[Training, Actor]] = []
        self.bound = self.lost = 0.0  # of the training that lost most: what it may lose, and what it lost

    # --- what replaces the system ----

    def seams(self) -> list[tuple[Any, str, Any]]:
        """Returns the names by which the code that is simulated reaches clock, tasks, wires and storage."""
        sim = self.simulation
        clock = facade(time, monotonic=sim.clock, sleep=sim.sleep)
        threads = facade(
            threading,
            Lock=lambda: tasks.Lock(sim), RLock=lambda: tasks.RLock(sim), Event=lambda: tasks.Event(sim),
            Condition=lambda lock=None: tasks.Condition(sim, lock), Thread=lambda **how: tasks.Thread(sim, **how),
            current_thread=lambda: getattr(sim.current, "thread", SimpleNamespace(name="")),
        )  # fmt: skip
        wires = facade(socket, socket=self.wires.socket, send_fds=self.wires.send_fds, recv_fds=self.wires.recv_fds)
        native = facade(_native, SharedPool=lambda nbytes: Pool(sim, nbytes), Guest=self._guest)
        made = [
            (module, "threading", threads)
            for module in (
                cluster,
                connection,
                exchange,
                nodes,
                served_passes,
                served_run,
                service,
                shared_reader,
                waiting,
            )
        ]
        made += [
            (module, "time", clock)
            for module in (exchange, frames, nodes, scheduler, service, shared_reader, waiting, window_planner)
        ]
        made += [(module, "socket", wires) for module in (frames, service_sockets, service)]
        made += [(scheduler, "_native", native), (served_run, "_native", native)]
        made += [(shared_reader, "select", facade(select, select=self._select)), (pace, "clock", sim.clock)]
        bells = {"eventfd": self._bell, "eventfd_write": self._ring, "close": self._close_bell}
        made += [(shared_reader, "os", facade(os, **bells))]
        made += [(service_sockets, "os", facade(os, getpid=lambda: sim.current.actor.process))]
        made += [(scheduler, "Steps", lambda *of: Steps(sim, self.world.disk, *of))]
        made += [(solar.buffer.thread, "Background", lambda do: tasks.Background(sim, do))]
        made += [(Pending, "wait", self._read_alone(Pending.wait))]
        made += [(nodes, "LONGEST", 0.1), (nodes, "posted", lambda by, rank, number: Letters(self.group, rank))]
        made += [(nodes, "numbered_mail", lambda check: numbered(self.group, self._rank()))]
        return made

    def _rank(self) -> int:
        assert self.simulation.current is not None
        return self.group.actors.index(self.simulation.current.actor)

    def _bell(self, *how: int) -> int:
        assert self.simulation.current is not None
        made = os.eventfd(*how)
        self.bells[made] = self.simulation.current.actor
        return made

    def _close_bell(self, bell: int) -> None:
        self.bells.pop(bell, None)
        os.close(bell)

    def _ring(self, bell: int, number: int) -> None:
        self.simulation.rung += 1
        os.eventfd_write(bell, number)

    def _select(self, reading: list[int], _w: Any, _x: Any, seconds: float | None = None) -> Any:
        seen = -1

        def there() -> list[int]:
            nonlocal seen
            if seen == self.simulation.rung:
                return []
            seen = self.simulation.rung
            return select.select(reading, [], [], 0)[0]

        self.simulation.wait(there, seconds)
        return select.select(reading, [], [], 0)[0], [], []

    def _read_alone(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waited(pending: Any, seconds: float | None) -> Any:
            self.simulation.sleep(self.world.disk.seconds * self.simulation.draw.random())
            return wait(pending, 60.0)

        return waited

    def _guest(self, ledger: int, line: int, *of: Any) -> Any:
        return Guest(self.simulation, line, _native.Guest(ledger, line, *of))

    # --- actors ----

    def actor(self, name: str, user: int | None = None) -> Actor:
        made = Actor(name, 1000 + len(self.actors), os.geteuid() if user is None else user)
        self.actors.append(made)
        return made

    def serve(self, node: int = 0) -> None:
        """Begins the service of a node."""
        actor = self.actor(f"service {len(self.actors)}")
        if self.world.nodes > 1:
            self.group.actors.append(actor)
        self.simulation.begin(actor, "run", lambda: self._serve(node, actor))
        self.service = actor

    def _serve(self, node: int, actor: Actor) -> None:
        try:
            made = Service([*map(str, self.data.paths)], self.world.memory, self.paths[node], slack=self.world.slack)
        except PlanError:
            return  # another one is there

        def forgets() -> None:  # what the system closes for a process that was killed
            for bell in [one for one, of in self.bells.items() if of is actor]:
                self._close_bell(bell)
            with contextlib.suppress(OSError):
                os.close(made._held)

        self.services.append(made)
        actor.closing.append(forgets)
        made.actor = actor  # type: ignore[attr-defined]
        if self.world.nodes > 1:
            made.joins(nodes.Nodes(self.group.peers(node)))
        if self.over:
            made.stop()
        made.run()
        actor.closing.remove(forgets)

    def train(self, training: Training, number: int) -> None:
        """Begins a training."""
        actor = self.actor(f"training {number}")
        self.trainings.append((training, actor))
        sim = self.simulation

        def act() -> None:
            begun = sim.now
            own = self._train(training, number)
            lost = sim.now - begun - own - actor.paused
            bound = may_lose(self.world, training, own) + sim.stood
            if lost > bound:
                raise Failed(f"training {number} took {lost:.1f} s more than alone, and {bound:.1f} s are stated")
            if lost - bound > self.lost - self.bound or not self.bound:
                self.bound, self.lost = bound, lost

        sim.begin(actor, "loop", act)
        for when, seconds in training.pauses:
            sim.at(sim.now + when, lambda seconds=seconds: sim.pause(actor, seconds))
        if training.killed:
            sim.at(sim.now + training.killed, lambda: sim.kill(actor))

    def _train(self, training: Training, number: int) -> float:
        """Takes the batches of all epochs, and compares each with numpy. Returns the seconds that it took by itself."""
        passes, source = ServedPasses(str(self.paths[training.node])), self.data.source(training)
        orders = [self._order(training, number, epoch) for epoch in range(training.epochs)]
        own, queued = 0.0, None
        for epoch, order in enumerate(orders):
            later = iter([lambda one=one: alone(one) for one in orders[epoch + 1 :]] if training.later else [])
            if passes.lost:
                self._lost(number)
                passes.end()
                queued = None
            there = queued is not None or self._connected(passes, source, training)
            if there:
                plan: Any = SimpleNamespace(segment=alone(order), later=lambda later=later: later)
                queued = passes.begin(plan, False) if queued is None else queued
                base, queued = queued.base, None
                work = solar.buffer.thread.Background(lambda _: None)
                found: list[Any] = []
                if training.later:
                    work = solar.buffer.thread.Background(partial(append_later, passes, found))
            for at in range(len(order.starts) - 1):
                if at == training.leaves:
                    break
                here = slice(order.starts[at], order.starts[at + 1])
                rows = order.rows[here] + (0 if order.which is None else SAMPLES * order.which[here])
                if there:
                    self._take(passes, base + at, training, rows)
                else:
                    self.alone += 1
                    self.simulation.sleep(self.world.disk.seconds)
                own += training.seconds + self.world.disk.seconds
                self.simulation.sleep(training.seconds)
            if there:
                work.stop()
                queued = next(filter(None, found), None)
                if training.leaves >= 0:
                    passes.drop()
                    queued = None
        if passes.lost:
            self._lost(number)
        passes.end()
        self.served, self.alone = self.served + passes.counts()["served"], self.alone + passes.counts()["alone"]
        passes.close()
        return own

    def _lost(self, number: int) -> None:
        if is_calm(self.world):
            raise Failed(f"training {number} lost a service that was there")

    def _connected(self, passes: ServedPasses, source: SampleSource, training: Training) -> bool:
        met, sure = passes._met, self.paths[training.node].exists() and is_calm(self.world) and not training.pauses
        try:
            there = passes.connected(source, SimpleNamespace(guessed=False), "off")  # type: ignore[arg-type]
            if sure and not there:
                raise Failed("a training finds no service, and one is there")
            return there
        except PlanError:  # one named error: nobody was there, ever
            if met:
                raise
            return False

    def _order(self, training: Training, number: int, epoch: int) -> SampleUses:
        draw = np.random.default_rng([self.world.seed, number, epoch])
        batch, samples = training.batch + training.grows * 3 * epoch, SAMPLES * training.files
        rows = draw.permutation(samples)[: batch * (1 + (SAMPLES - 1) // batch // 2)]
        starts = np.unique(np.arange(0, len(rows) + batch, batch).clip(max=len(rows)))
        which, within = np.divmod(rows, SAMPLES)
        return SampleUses(which if training.files > 1 else None, within.astype(np.int32), starts)

    def _take(self, passes: ServedPasses, number: int, training: Training, rows: Any) -> None:
        run = passes.run
        assert run is not None
        values, _ = run.wait(number, len(rows), 1e6)
        for name, found in zip(training.fields, values, strict=True):
            wanted = self.data.values[name][rows]
            if found.tobytes() != wanted.tobytes():
                raise Failed(f"batch {number} has other values of {name}")
        run.let_go(number)

    # --- strangers ----

    def stranger(self, what: str) -> None:
        actor = self.actor(what, 4242 if what in ("another user", "a stranger's service") else None)
        act = self._listen if what == "a stranger's service" else lambda: self._disturb(what)
        self.simulation.begin(actor, what, act)

    def _listen(self) -> None:
        """Stands in for the service, as soon as it is gone."""
        try:
            listener, held = service_sockets.listen(self.path)
        except PlanError:
            return
        listener.settimeout(5.0)
        try:
            with contextlib.suppress(OSError), listener.accept()[0] as peer:
                peer.settimeout(5.0)
                heard = peer.recv(100)
                if heard and peer.peer.name.startswith("training"):  # type: ignore[attr-defined]
                    raise Failed(f"{peer.peer.name} says {heard!r} to a service of another user")  # type: ignore[attr-defined]
            self.path.unlink()
            listener.close()
        finally:
            os.close(held)

    def _disturb(self, what: str) -> None:
        sim = self.simulation
        with contextlib.suppress(OSError), self.wires.socket() as peer:
            peer.settimeout(30.0)
            peer.connect(str(self.path))
            if what == "another user":
                frames.send(peer, {"is": "stop"})
                if heard := peer.recv(100):
                    raise Failed(f"the service says {heard!r} to another user")
                return
            hello = {"is": "hello", "speaks": [3, 1], "solar": "0", "pid": 1, "name": "stranger"}
            if what == "silence":
                sim.sleep(100 * sim.draw.random())
                return
            if what == "garbage":
                peer.sendall(struct.pack("<I", sim.draw.choice([0, 5, 1 << 30])) + sim.draw.randbytes(20))
                peer.recv(100)
                return
            frames.send(peer, hello)
            frames.receive(peer, frames.OF_SERVICE)
            if what == "half a frame":
                peer.sendall(struct.pack("<I", 100) + b'{"is"')
                sim.sleep(20.0)
            elif what == "status":
                for _ in range(3):
                    frames.send(peer, {"is": "status"})
                    frames.receive(peer, frames.OF_SERVICE)
            else:
                frames.send(peer, {"is": "stop"})
                frames.receive(peer, frames.OF_SERVICE)

    # --- what happens, and what must hold ----

    def happen(self) -> None:
        sim, world = self.simulation, self.world
        before = descriptors()
        for node in range(world.nodes):
            self.serve(node)
        for number, one in enumerate(world.trainings):
            sim.at(one.begins, lambda one=one, number=number: self.train(one, number))
        for when, seconds in world.service_pauses:
            sim.at(when, lambda seconds=seconds: sim.pause(self.service, seconds))  # the last that began
        how, when = world.service_ends
        if how:
            sim.at(when, lambda: self._end(how))
            if world.comes_back:
                sim.at(when + world.comes_back, self.serve)
        for what, when in world.strangers:
            sim.at(when, lambda what=what: self.stranger(what))
        self._look()
        log.addFilter(self._hear)
        begun = max([one.begins for one in world.trainings]) + 0.1
        sim.at(begun, lambda: None)
        sim.run(lambda: sim.now >= begun and not self._busy(), LIMIT)
        self.over = True
        if is_calm(world):
            self._check_that_all_are_forgotten(sim.now + 1.0)
        if world.nodes > 1 and not world.wire.late and self._all_serve():
            self._check_that_nodes_agree(sim.now + SETTLED)
        self._end("stopped")
        sim.run(lambda: all(self._may_stay(one) for one in sim.tasks), sim.now + 150.0)
        self._check_nothing_left(before)

    def _hear(self, record: logging.LogRecord) -> bool:
        """Notes errors that nobody expects, which a service survives."""
        for one in record.args or ():
            if isinstance(one, Exception) and not isinstance(one, SolarError):
                self.faults.append("".join(traceback.format_exception(one)))
        return self.shows  # who keeps a record keeps the memory of the error's frames

    def _busy(self) -> bool:
        return any(one.actor.name.startswith("training") for one in self.simulation.tasks)

    def _let_pass(self, soon: float) -> None:
        self.simulation.at(soon, lambda: None)
        self.simulation.run(lambda: self.simulation.now >= soon, LIMIT)

    def _all_serve(self) -> bool:
        """Returns whether the services of all nodes go on, and have heard each other all the time."""
        ends = any(one._stopping.is_set() for one in self.services)
        return len(self.services) == self.world.nodes and self._all_heard() and not ends

    def _check_that_nodes_agree(self, soon: float) -> None:
        """Each node has heard the end of whatever another one has begun, or the next to begin would wait in vain."""
        self._let_pass(soon)
        if not self._all_serve():  # one was killed or told to end meanwhile
            return
        ended = [one.nodes._ended for one in self.services if one.nodes is not None]
        if any(one != ended[0] for one in ended):
            raise Failed(f"nodes count otherwise how often data have ended: {[sorted(one.values()) for one in ended]}")

    def _check_that_all_are_forgotten(self, soon: float) -> None:
        self._let_pass(soon)
        if any(hall.members for one in self.services for hall in one._halls.each()):
            raise Failed("jobs that have gone are still members")

    def _may_stay(self, task: Task) -> bool:
        """Returns whether a thread may outlast its service: where a node was killed, or seemed to be.

        MPI never tells that a rank was killed; and a node that stands still for long may begin to exchange samples
        that the others have given up. It waits for their last message until it ends.
        """
        return task.name == NAME and not self._all_heard()

    def _all_heard(self) -> bool:
        """Returns whether no node was killed, or said nothing for long."""
        return all(one.alive and one.paused < nodes.SILENT - 1 for one in self.group.actors)

    def _end(self, how: str) -> None:
        for actor in [one for one in self.actors if one.name.startswith("service ") and one.alive]:
            if how == "killed":
                self.simulation.kill(actor)
                return
            own = [one for one in self.services if one.actor is actor]  # type: ignore[attr-defined]
            for one in own:
                self.simulation.begin(actor, "signal", one.stop)

    def _look(self) -> None:
        """Looks now and then whether the service has taken more memory than it may."""
        sim = self.simulation
        for one in self.services:
            halls = [hall for hall in one._halls.each() if not hall.over]
            taken = sum(hall.pool.in_use + (hall.queue.run.nbytes if hall.queue.run else 0) for hall in halls)
            if max(taken, sum(hall.memory for hall in halls)) > one.memory:
                raise Failed(f"{taken} bytes are taken, of {one.memory}")
            self._look_for_members_of_what_ended(one)
        if sim.now < LIMIT and (sim.now < 1 or self._busy()):
            sim.at(sim.now + 0.5, self._look)

    def _look_for_members_of_what_ended(self, service: Service) -> None:
        for client in service._clients.each() if service.actor.alive else []:  # type: ignore[attr-defined]
            if any(hall.over and not member.left for hall, member in client.members.values()):
                raise Failed(f"{client.name} is a member of a reader that has ended, and is not told")

    def _check_nothing_left(self, before: set[str]) -> None:
        if self.faults:
            raise Failed(self.faults[0])
        if any(not one._open for one in exchange._left):
            raise Failed("an exchange that is over keeps its memory")
        sockets = [one for one in self.wires.open if one.actor.alive]
        if sockets:
            raise Failed(f"sockets are left open by {', '.join(one.actor.name for one in sockets)}")
        killed = sum(not one.alive for one in self.actors)
        self.services.clear()
        self.simulation.events.clear()
        for actor in self.actors:
            actor.closing.clear()
        if not self._all_heard():  # what began them ends them all
            for actor in self.actors:
                self.simulation.kill(actor)
            exchange._left.clear()
        self.group.arrays.clear()
        gc.collect()
        left = {one: name for one in descriptors() - before if (name := name_of(one))}
        if len(left) <= HANDED * killed:  # these may just have been handed something
            for one in left:
                os.close(int(one))
            left = {}
        if left:
            raise Failed(f"descriptors are left open: {list(left.values())}")
        if any(one.exists() for one in self.paths) and not any(how == "killed" for how, _ in [self.world.service_ends]):
            raise Failed("a socket is left")


def append_later(passes: ServedPasses, found: list[Any], stopped: Any) -> None:
    found.append(passes.append_later(stopped))


class Guest:
    """solar._native.Guest, which waits in virtual time and tells how long."""

    def __init__(self, simulation: Simulation, line: int, native: Any) -> None:
        self._simulation, self._native = simulation, native
        self._line = mmap.mmap(line, mmap.PAGESIZE)
        self.copy, self.wants, self.is_gone = native.copy, native.wants, native.is_gone

    def has_made(self, number: int) -> None:
        self._simulation.rung += 1
        self._native.has_made(number)

    def wait(self, number: int, seconds: float) -> bool:
        native, begun = self._native, self._simulation.now
        came = self._simulation.wait(lambda: native.there > number or native.is_gone(number), seconds)
        (before,) = WAITED.unpack_from(self._line, WAITED_AT)
        WAITED.pack_into(self._line, WAITED_AT, before + round((self._simulation.now - begun) * 1e9))
        return came


def is_calm(world: World) -> bool:
    """Returns whether nothing in this world is a reason to go on without the service."""
    disk = world.disk
    rough = disk.late or disk.hangs or disk.fails or world.wire.late or world.service_pauses or world.service_ends[0]
    return not rough and not any(what == "stops it" for what, _ in world.strangers)


def may_lose(world: World, training: Training, own: float) -> float:
    """Returns how many seconds a training, which takes `own` by itself, may lose by a service, whatever becomes of it.

    Jobs that are stopped, slow or killed hold back others for the slack of each epoch, and for a fifth of the time
    beside. A service that ends costs no time at all.
    Where the service itself, its storage or the way to it is slow, a training waits for the batches of each epoch for
    as long as it says, and for each answer. Where a node is killed, the others take a while to end.
    """
    slowest = max(one.seconds for one in world.trainings)
    calm = 2.0 + (1 + training.epochs) * max(world.slack, 4 * slowest) + own * TOLERATED / (1 - TOLERATED)
    calm += world.disk.stood + world.wire.stood
    if world.nodes > 1:  # whoever comes waits for all steps that were told, once
        calm += (scheduler.MOST_TOLD + scheduler.STEPS_TOLD) * slowest
    if world.nodes > 1 and world.service_ends[0] == "killed":  # the others close what they read together
        calm += KNOWN_AFTER + 2 * exchange.LAST_WORDS
    if not (world.service_pauses or world.disk.hangs or world.disk.fails or world.wire.late or world.disk.late):
        return calm
    batches = served_run.COME_WITHIN + (served_run.MORE_NAPS + 1) * served_run.NAP
    return calm + training.epochs * batches + (training.epochs + 1) * connection.ANSWER_WITHIN


def descriptors() -> set[str]:
    return {one.name for one in Path("/proc/self/fd").iterdir()}


def name_of(one: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{one}").readlink())
    except OSError:  # the one by which they are listed
        return ""


@contextlib.contextmanager
def in_place(seams: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Puts other values in the place of these names."""
    before = [(of, name, of.__dict__[name]) for of, name, _ in seams]
    try:
        for of, name, value in seams:
            setattr(of, name, value)
        yield
    finally:
        for of, name, value in before:
            setattr(of, name, value)


def unless_killed(what: Any) -> None:
    """Says nothing of finalizers of processes that were killed."""
    if what.exc_type is not tasks.Killed:
        sys.__unraisablehook__(what)


def happen(seed: int, data: Data, mutant: list[tuple[Any, str, Any]] = []) -> Run:  # noqa: B006
    """Lets the world of a seed happen. Raises AssertionError for what does not hold."""
    return happens(world_of(seed, data.parts), data, mutant)


def happens(world: World, data: Data, mutant: list[tuple[Any, str, Any]] = []) -> Run:  # noqa: B006
    run = Run(world, data)
    before, sys.unraisablehook = sys.unraisablehook, unless_killed
    gc.disable()
    try:
        with in_place([*mutant, *run.seams()]):
            run.happen()
    finally:
        log.removeFilter(run._hear)
        exchange._live.clear()
        exchange._left.clear()
        for actor in run.actors:
            run.simulation.kill(actor)
        sys.unraisablehook = before
        gc.enable()
        with contextlib.suppress(FileNotFoundError):
            for path in run.paths:
                path.unlink(missing_ok=True)
    return run
