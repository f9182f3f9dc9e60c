"""What a service reads: storage that is late, fails or hangs, and the memory of its batches.

The native Run reads in threads of its own, by the real clock. This one carries out the same scripts step by step, in
virtual time: what a step uses must be held by then.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solar.errors import ReadError
from solar.io.system.waiting import WaitTimeout

from .tasks import Simulation

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x10  # F_SEAL_FUTURE_WRITE
ALIGNED = 64
COUNTS = ("bytes", "requests", "steps", "held_bytes")


@dataclass
class Disk:
    """How storage behaves, as a seed draws it."""

    values: dict[tuple[str, str], np.ndarray[Any, Any]]  # by file and dataset
    seconds: float = 1e-3  # that reading a step takes, mostly
    late: float = 0.0  # share of the steps that take longer
    latest: float = 0.0  # seconds
    fails: float = 0.0  # share of the steps that cannot be read
    hangs: float = 0.0  # share of the steps that are never read
    stood: float = 0.0  # seconds by which steps were late, all together


class Block:
    """Memory of a batch, which goes back when nobody has it any more."""

    def __init__(self, pool: Pool, begin: int, nbytes: int) -> None:
        self._pool, self.begin, self.end, self.free = pool, begin, begin + nbytes, False
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pool.at + begin, False),
        }

    def __del__(self) -> None:
        self._pool.give_back(self.begin)


class Pool:
    """solar._native.SharedPool: a ring of batches, of the same kind of memory."""

    def __init__(self, simulation: Simulation, nbytes: int) -> None:
        self._simulation, self.nbytes, self._used = simulation, nbytes, nbytes
        whole = os.memfd_create("simulated", os.MFD_ALLOW_SEALING)
        os.ftruncate(whole, nbytes)
        self._memory = mmap.mmap(whole, nbytes)
        fcntl.fcntl(whole, fcntl.F_ADD_SEALS, SEALS)
        self.descriptor = os.open(f"/proc/self/fd/{whole}", os.O_RDONLY | os.O_CLOEXEC)
        os.close(whole)
        self.at = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        self._taken: deque[list[int]] = (
            deque()
        )  # begin, end, and whether it is free: in the order in which they were taken
        self.since: float | None = None  # when somebody began to wait for room
        self.closed = False

    def __del__(self) -> None:
        os.close(self.descriptor)

    @property
    def in_use(self) -> int:
        return sum(end - begin for begin, end, _ in self._taken)

    @property
    def waited(self) -> float:
        return 0.0 if self.since is None else self._simulation.now - self.since

    def offset(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0] - self.at)

    def use(self, nbytes: int) -> None:
        self._used = min(nbytes, self.nbytes)

    def close(self) -> None:
        self.closed = True

    def room_for(self, nbytes: int) -> int:
        """Where there is room; -1: nowhere."""
        if not self._taken:
            return 0 if self._used >= nbytes else -1
        tail, (newest, head, _) = self._taken[0][0], self._taken[-1]
        if newest < tail:
            return head if tail - head >= nbytes else -1
        if self._used - head >= nbytes:
            return head
        return 0 if tail >= nbytes else -1

    def take(self, nbytes: int) -> Block | None:
        """Returns memory, if there is room."""
        wanted = -(-max(1, nbytes) // ALIGNED) * ALIGNED
        assert wanted <= self._used, "a batch is larger than all memory for batches"
        if (begin := self.room_for(wanted)) < 0:
            self.since = self._simulation.now if self.since is None else self.since
            return None
        self.since = None
        self._taken.append([begin, begin + wanted, False])
        return Block(self, begin, wanted)

    def give_back(self, begin: int) -> None:
        next(one for one in self._taken if one[0] == begin and not one[2])[2] = True
        while self._taken and self._taken[0][2]:
            self._taken.popleft()


class Steps:
    """solar.service.steps.Steps: reads step after step as the scripts say."""

    def __init__(
        self, simulation: Simulation, disk: Disk, rows: Sequence[Any], parts: Sequence[Any],
        fields: Sequence[Sequence[int]], staged: int, scratch: int, pool: Pool,
    ) -> None:  # fmt: skip
        self.parts, self.staged, self.appended = tuple(parts), staged, 0
        self.nbytes = sum(part.pages * part.page for part in parts)
        self.row_nbytes = [nbytes for one in fields for nbytes in one]
        self.broken = False
        self._simulation, self._disk, self._fields, self._pool = simulation, disk, fields, pool
        self._of = [disk.values[one.layout.paths[0], one.layout.name.lstrip("/")] for one in rows]
        self._holds = [np.zeros(len(of), bool) for of in self._of]  # of each part: which rows
        self._issued: list[Any] = [np.empty(0, np.int32) for _ in parts]  # by the step before
        self._direct = [part.direct for part in parts]
        self._begun = 0
        self._steps: deque[tuple[int, list[tuple[Any, int]]]] = deque()  # samples, and scripts with the step of each
        self._ready: float | None = None  # when the next step is there
        self._counts = dict.fromkeys(COUNTS, 0)

    def append(self, sizes: Any, scripts: Sequence[Any], parcels: Any = None) -> None:
        self.appended += len(sizes)
        for step, size in enumerate(sizes.tolist()):
            self._steps.append((size, [(one, step) for one in scripts]))

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[Any], dict[str, int]]:
        assert number == self._begun, "steps are taken one after another"
        assert seconds is not None
        simulation, disk = self._simulation, self._disk
        end = simulation.now + seconds
        if self._ready is None:
            self._ready = simulation.now + self._takes()
        if self._ready > end:
            simulation.sleep(seconds)
            raise WaitTimeout.values(seconds, "storage")
        simulation.wait(lambda: self._pool.closed, self._ready - simulation.now)
        taken: list[Block] = []

        def has_room() -> bool:
            block = self._pool.take(sum(nbytes * size for nbytes in self.row_nbytes) + ALIGNED * len(self._fields))
            taken.extend([] if block is None else [block])
            return block is not None or self._pool.closed

        size, scripts = self._steps[0]
        if not has_room() and not simulation.wait(lambda: taken or has_room(), max(0.0, end - simulation.now)):
            raise WaitTimeout.values(seconds, "room")
        if self._pool.closed:
            raise ReadError("the service ends")
        self._steps.popleft()
        self._ready = None
        self._begun += 1
        self._counts["steps"] += 1
        values = self._read(taken.pop(), size, scripts)
        if simulation.draw.random() < disk.fails:
            raise ReadError("scan.h5: Input/output error")
        return values, {}

    def _takes(self) -> float:
        draw, disk = self._simulation.draw, self._disk
        if draw.random() < disk.hangs:
            return 1e9
        late = disk.latest * draw.random() if draw.random() < disk.late else 0.0
        disk.stood += late
        return disk.seconds * draw.random() + late

    def _read(self, block: Block, size: int, scripts: list[tuple[Any, int]]) -> list[Any]:
        memory, values, at = np.asarray(block), [], 0
        for nbytes in self.row_nbytes:
            values.append(memory[at : at + size * nbytes].reshape(size, nbytes))
            at += -(-size * nbytes // ALIGNED) * ALIGNED
        memory[:] = 0xEE
        for number, (part, step) in enumerate(scripts):
            self._read_part(number, part, step, values)
        return values

    def _read_part(self, number: int, part: Any, step: int, values: list[Any]) -> None:
        """Loads and drops what the script says, and copies what the step uses, which must be there."""
        script, holds, pages = part.script, self._holds[number], self.parts[number].pages
        if step == 0:
            if part.afresh is not None:
                self._direct[number], _, _ = part.afresh
                holds[:] = False
                self._issued[number] = script.start
            holds[script.start] = True
        holds[self._issued[number]] = True
        direct = self._direct[number]
        assert direct or np.count_nonzero(holds) <= pages, f"{np.count_nonzero(holds)} rows in {pages} pages"
        self._issued[number] = script.loads[int(script.ends[step]) : int(script.ends[step + 1])]
        used = slice(int(script.starts[step]), int(script.starts[step + 1]))
        rows = script.rows[used]
        assert direct or holds[rows].all(), "a step uses what was not read, or was dropped"
        places = np.arange(len(rows)) if part.positions is None else part.positions[used]
        own = self._of[number]
        values[self.parts[number].field][places] = own[rows].reshape(len(rows), own[:1].size).view(np.uint8)
        self._counts["bytes"] += own[rows].nbytes
        if not direct:
            holds[rows[script.last[used] != 0]] = False

    def ask(self, number: int) -> None:
        pass

    def let_go(self, number: int) -> None:
        pass

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def fail(self, why: Exception) -> None:
        pass

    def close(self) -> None:
        self._steps.clear()
