"""The planner's oracles: the obvious, slow versions of what native/src/plan does, and a run of a plan step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solar.planner.sweep import Counts, Record


@dataclass
class Data:
    """Units one after another with holes between them: how many items each has, where it lies, what it takes."""

    counts: list[int]
    offset: list[int]
    nbytes: list[int]
    held: int = 0  # bytes of an item in memory; 0: those of its unit in storage
    unit_of: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.unit_of = [unit for unit, count in enumerate(self.counts) for _ in range(count)]

    def weight(self, item: int) -> int:
        return self.held or self.nbytes[self.unit_of[item]]

    def joined(self, units: list[int], gap: int) -> tuple[int, int]:
        """Requests and bytes of reading these units in this order; ascending ones over small holes are one request."""
        requests = nbytes = 0
        end = None
        for before, unit in zip([None, *units], units, strict=False):
            hole = None if before is None or unit <= before else self.offset[unit] - end
            if hole is not None and (hole <= 0 or hole < gap):
                nbytes += max(hole, 0)
            else:
                requests += 1
            nbytes += self.nbytes[unit]
            end = self.offset[unit] + self.nbytes[unit]
        return requests, nbytes

    def visits(self, loads: list[int]) -> list[int]:
        """The units that these loads come from, once for each visit."""
        units = [self.unit_of[item] for item in loads]
        return [unit for before, unit in zip([-1, *units], units, strict=False) if unit != before]


def runs(
    data: Data, epochs: list[tuple[list[list[int]], Record]], start: list[int], room: int, ahead: int, gap: int
) -> list[Counts]:
    """Carries a plan out step by step, and returns what it took in each epoch.

    Fails where a sample that is used is not there, where a load finds its sample there, where more is held than there
    is room for, and where something is left at the end.
    """
    memory: dict[int, int] = dict.fromkeys(start, -ahead)  # item: when its reading was issued
    found, now = [], 0
    for steps, record in epochs:
        counts = dict.fromkeys(("reads", "visits", "requests", "bytes", "decoded", "peak"), 0)
        use = 0
        for step, wanted in enumerate(steps):
            assert sum(map(data.weight, memory)) <= room
            counts["peak"] = max(counts["peak"], sum(map(data.weight, memory)))
            for item in wanted:
                assert item in memory, f"step {now}: item {item} is not there"
                assert memory[item] + ahead <= now, f"step {now}: item {item} was asked for at {memory[item]}"
            for item in {item for item, last in zip(wanted, record.last[use : use + len(wanted)], strict=True) if last}:
                del memory[item]
            use, now = use + len(wanted), now + 1
            loads = record.loads[record.ends[step] : record.ends[step + 1]].tolist()
            for item in loads:
                assert item not in memory, f"step {now}: item {item} is read though it is there"
                memory[item] = now
            units = data.visits(loads)
            requests, nbytes = data.joined(units, gap)
            decoded = sum(data.counts[unit] for unit in units)
            for name, more in (("reads", len(loads)), ("visits", len(units)), ("requests", requests)):
                counts[name] += more
            counts["bytes"], counts["decoded"] = counts["bytes"] + nbytes, counts["decoded"] + decoded
        found.append(Counts(**counts))
    assert not memory, f"left at the end: {memory}"
    return found


def sweeps(
    data: Data, steps: list[list[int]], room: int, burst: int, ahead: int
) -> tuple[list[list[int]], list[int], int]:
    """The sweep, the slow way: loads of each issue step (0: the start) in the order of reading, peak, sweeps.

    From the back: a use brings its item in; when there is no room the head goes down, and takes out what it passes
    and what is used no sooner than `ahead` steps from there. None where there is too little room.
    """
    memory: dict[int, int] = {}  # item: the step of its earliest use so far
    issued: list[list[int]] = [[] for _ in range(len(steps) + 1)]
    head, peaks, turns = len(data.unit_of), [0], 0
    for step in reversed(range(len(steps))):
        memory |= dict.fromkeys(steps[step], step)
        held = sum(map(data.weight, memory))
        target = room - burst if held > room else room
        while held > target:
            ripe = [item for item, used in memory.items() if used >= step + 1 + ahead]
            if not ripe:
                break
            below = [item for item in ripe if item < head]
            turns += not below
            unit = data.unit_of[max(below or ripe)]
            for item in sorted((item for item in (below or ripe) if data.unit_of[item] == unit), reverse=True):
                issued[step + 1].insert(0, item)
                held -= data.weight(item)
                del memory[item]
            head = data.unit_of.index(unit)
        if held > room:
            raise MemoryError(held)
        peaks.append(held)
    issued[0] = sorted(memory)
    return issued, peaks, turns


def torch_randperm(n: int, seed: int) -> NDArray[np.int64]:
    """torch.randperm for n below 2^32 / 20, by numpy's Mersenne Twister."""
    words = np.frombuffer(np.random.RandomState(seed).bytes(4 * max(n - 1, 0)), "<u4")
    order = np.arange(n)
    for i, word in enumerate(words.tolist()):
        other = i + word % (n - i)
        order[i], order[other] = order[other], order[i]
    return order


def assigned(homes: list[int], step: list[int], ranks: int, ranks_per_node: int) -> list[int]:
    """Who takes each use of one step: its home, else a rank with room on the same node, else any; lowest first."""
    room = [len(step) // ranks + (rank < len(step) % ranks) for rank in range(ranks)]
    takers: list[int] = [-1] * len(step)

    def give(use: int, wanted: list[int]) -> bool:
        rank = next((rank for rank in wanted if room[rank]), None)
        if rank is None:
            return False
        room[rank] -= 1
        takers[use] = rank
        return True

    home = [max(rank for rank in range(ranks) if homes[rank] <= item) for item in step]
    over = [use for use in range(len(step)) if not give(use, [home[use]])]
    node = [[rank for rank in range(ranks) if rank // ranks_per_node == h // ranks_per_node] for h in home]
    far = [use for use in over if not give(use, node[use])]
    for use in far:
        assert give(use, list(range(ranks)))
    return takers
