"""The planner's oracles: the obvious, slow versions of what native/src/plan does, and a run of a plan step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from solar.planning.plan import Plan
from solar.planning.sweep import Counts, Record, total
from solar.values import Filter, Form, Layout


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

    def joined(self, units: list[int], gap: int, last: int | None = None) -> tuple[int, int]:
        """Requests and bytes of reading these units in this order; ascending ones over small holes are one request.

        So it is with `last`, which was read before them.
        """
        requests = nbytes = 0
        end = None if last is None else self.offset[last] + self.nbytes[last]
        for before, unit in zip([last, *units], units, strict=False):
            hole = None if before is None or end is None or unit <= before else self.offset[unit] - end
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
    found, now, last = [], 0, None
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
            requests, nbytes = data.joined(units, gap, last)
            last = units[-1] if units else last
            decoded = sum(data.counts[unit] for unit in units)
            for name, more in (("reads", len(loads)), ("visits", len(units)), ("requests", requests)):
                counts[name] += more
            counts["bytes"], counts["decoded"] = counts["bytes"] + nbytes, counts["decoded"] + decoded
        found.append(Counts(**counts))
    assert not memory, f"left at the end: {memory}"
    return found


def sweeps(
    data: Data, steps: list[list[int]], room: int, burst: int, ahead: int, epoch_of: list[int] | None = None
) -> tuple[list[list[int]], list[int], int]:
    """The sweep, the slow way: loads of each issue step (0: the start) in the order of reading, peak, sweeps.

    From the back: a use brings its item in; when there is no room the head goes down, and takes out what it passes
    and what is used no sooner than `ahead` steps from there. With the epoch of each step it is a lasting one: what is
    used in a later epoch goes only where nothing else can. MemoryError where there is too little room.
    """
    epochs = epoch_of or [0] * len(steps)
    memory: dict[int, int] = {}  # item: the step of its earliest use so far
    issued: list[list[int]] = [[] for _ in range(len(steps) + 1)]
    head, peaks, turns = len(data.unit_of), [0], 0
    for step in reversed(range(len(steps))):
        memory |= dict.fromkeys(steps[step], step)
        held = sum(map(data.weight, memory))
        target, later = room - burst if held > room else room, False
        while held > target:
            ripe = [
                item
                for item, used in memory.items()
                if used >= step + 1 + ahead and (epochs[used] != epochs[step]) == later
            ]
            if not ripe and (later or held <= room or epoch_of is None):
                break
            if not ripe:
                target, later = room, True
                continue
            below = [item for item in ripe if item < head]
            turns += not below
            unit = data.unit_of[max(below or ripe)]
            for item in sorted((item for item in (below or ripe) if data.unit_of[item] == unit), reverse=True):
                issued[step + 1].insert(0, item)
                held -= data.weight(item)
                del memory[item]
            head = data.unit_of.index(unit)
        issued[step + 1].sort()  # a step reads from the lowest place up
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


@st.composite
def some_layouts(draw: st.DrawFn) -> Layout:
    """Samples of 40 x 60 float32 in one file or several: contiguous, in chunks of any kind, some never written."""
    shape, rng = (40, 60), np.random.default_rng(draw(st.integers(0, 999)))
    kinds = [((0, 40, 60), False), ((1, 40, 60), False), ((1, 40, 60), True), ((3, 40, 60), False)]
    kinds += [((3, 40, 60), True), ((1, 20, 40), False), ((1, 20, 40), True), ((2, 30, 60), True), ((2, 30, 60), False)]
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=2, unique=True))
    forms = tuple(Form(chunk, (Filter(1, 0, (4,)),) if filtered else ()) for chunk, filtered in chosen)
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    part_form, index, offset, nbytes, ends = [], [], [], [], [0]
    for rows in lengths:
        part_form.append(draw(st.integers(0, len(forms) - 1)))
        form = forms[part_form[-1]]
        tiles = int(np.prod([-(-n // c) for n, c in zip(shape, form.chunk[1:], strict=True)]))
        count = tiles * -(-rows // (form.chunk[0] or rows))
        raw = int(np.prod([form.chunk[0] or rows, *form.chunk[1:]])) * 4
        sizes = [int(rng.integers(1, raw)) if form.filters else raw for _ in range(count)]
        holes = rng.choice([0, 0, 1, 400, 20_000], count)
        at = np.cumsum(np.add(sizes, holes)) - sizes
        if draw(st.booleans()):  # in another order than their numbers
            at, sizes = at[place := rng.permutation(count)], [sizes[k] for k in place]
        kept = [k for k in range(count) if rng.random() > draw(st.sampled_from([0, 0.3]))]
        index += kept
        offset += [int(at[k]) for k in kept]
        nbytes += [sizes[k] for k in kept]
        ends.append(len(index))
    files = len(lengths)
    return Layout(
        "x", tuple(f"{n}.h5" for n in range(files)), np.full(files, 10**6, np.uint64), np.zeros(files, np.int64),
        (sum(lengths), *shape), np.dtype("f4"), "mixed", "", "direct", "", False, forms,
        np.arange(files, dtype=np.int32), np.array(part_form, np.int32), np.cumsum([0, *lengths]), np.array(ends),
        np.array(index, np.uint64), np.array(offset, np.uint64), np.array(nbytes, np.uint64),
        np.zeros(len(index), np.uint32),
    )  # fmt: skip


Place = tuple[int, int, int]  # file, offset, nbytes


def places(layout: Layout) -> list[tuple[int, list[Place]]]:
    """The unit of each sample, by a number, and where in which file its chunks lie; one never written lies nowhere."""
    found: list[tuple[int, list[Place]]] = []
    for part, file in enumerate(layout.part_file.tolist()):
        samples = int(layout.part_first[part + 1] - layout.part_first[part])
        form = layout.forms[layout.part_form[part]]
        entries = range(int(layout.part_chunks[part]), int(layout.part_chunks[part + 1]))
        at = {int(layout.chunk_index[k]) if len(layout.chunk_index) else k - entries.start: k for k in entries}
        rows = form.chunk[0] or samples
        tiles = int(np.prod([-(-n // c) for n, c in zip(layout.sample_shape, form.chunk[1:], strict=True)]))
        for sample in range(samples):
            line, within = divmod(sample, rows)
            if form.chunk[1:] == layout.sample_shape and not form.filters:
                size = layout.sample_nbytes
                place = [(file, int(layout.chunk_offset[at[line]]) + within * size, size)] if line in at else []
                found.append((len(found), place))
                continue
            chunks = [at[line * tiles + tile] for tile in range(tiles) if line * tiles + tile in at]
            place = [(file, int(layout.chunk_offset[k]), int(layout.chunk_nbytes[k])) for k in chunks]
            found.append((found[-1][0] if within else len(found), sorted(place)))
    return found


class Carrier:
    """Carries the scripts of a course out as the reader does, with nothing but them and the Layout, and counts.

    Fails where a sample that is used is not there in time, where a load finds its sample there, and where more is held
    than there are pages.
    """

    def __init__(self, layout: Layout, course: Plan, gap: int) -> None:
        self.places = places(layout)
        self.course, self.gap = course, gap
        self.held: dict[int, int] = {}  # what is in memory: the step from which it may be used
        self.now = 0
        self.counts: dict[str, int] = {}
        self.end = (-1, 0)  # file and byte where what was loaded last ends

    def key(self, row: int) -> int:
        return self.places[row][0] if self.course.kept == "stored" else row

    def nbytes(self, key: int) -> int:
        """Of what is held, in whole pages; of a unit the key is its first sample."""
        page = self.course.page
        return (
            sum(-(-size // page) for _, _, size in self.places[key][1]) * page if self.course.kept == "stored" else page
        )

    def holds(self) -> int:
        return sum(map(self.nbytes, self.held))

    def read(self, rows: list[int], end: tuple[int, int] = (-1, 0)) -> tuple[int, int]:
        """Stretches of storage: neighbours, and over holes below the gap. Where samples descend, it begins anew.

        `end` is where the last one ended, if these may go on there; given back is where they end.
        """
        passes: list[set[Place]] = [set()]
        first = (0, 0, 0)
        for row in rows:
            place = self.places[row][1]
            if place and place[0] < first:
                passes.append(set())
            first = place[0] if place else first
            passes[-1].update(place)
        for once in passes:
            for file, offset, size in sorted(once):
                hole = offset - end[1] if file == end[0] else -1
                joins = hole == 0 or 0 < hole < self.gap
                self.counts["requests"] += not joins
                self.counts["bytes"] += size + (hole if joins else 0)
                end = file, offset + size
        return end

    def load(self, rows: list[int], usable: int, *, start: bool = False) -> None:
        for row in rows:
            assert self.key(row) not in self.held, f"step {self.now}: {row} is read though it is there"
            self.held[self.key(row)] = usable
        self.counts["reads"] += len(rows)
        if start:
            self.read(rows)
        else:
            self.end = self.read(rows, self.end)
        assert self.holds() <= self.course.pages * self.course.page, f"step {self.now}: too much is held"

    def start(self) -> dict[str, int]:
        """What is read before anything else."""
        script = self.course.script(self.course.epochs.start)
        self.counts = dict.fromkeys(("reads", "requests", "bytes"), 0)
        for rows, due in zip(np.split(script.start, script.start_ends[:-1]), script.start_due, strict=False):
            self.load(rows.tolist(), int(due), start=True)
        return self.counts

    def epoch(self, epoch: int) -> dict[str, int]:
        """What one epoch takes, the most that is held at a time too."""
        script = self.course.script(epoch)
        self.counts = dict.fromkeys(("reads", "requests", "bytes", "peak"), 0)
        for step in range(len(script.starts) - 1):
            uses = slice(script.starts[step], script.starts[step + 1])
            self.step(script.rows[uses].tolist(), script.last[uses].tolist())
            self.load(
                script.loads[script.ends[step] : script.ends[step + 1]].tolist(), self.now + self.course.terms.ahead
            )
        return self.counts

    def step(self, rows: list[int], last: list[int]) -> None:
        self.counts["peak"] = max(self.counts["peak"], self.holds())
        missing = {row for row in rows if self.key(row) not in self.held}
        assert self.course.policy.direct or not missing, f"step {self.now}: {missing} are not there"
        late = [row for row in rows if self.held.get(self.key(row), 0) > self.now]
        assert not late, f"step {self.now}: {late} are asked for too late"
        self.counts["reads"] += len(missing)
        self.read(sorted(missing, key=lambda row: (self.places[row][1] or [(0, 0, 0)], row)))
        for key in {self.key(row) for row, dropped in zip(rows, last, strict=True) if dropped}:
            del self.held[key]
        self.now += 1


def check_course(layout: Layout, course: Plan) -> None:
    """Carries a course out, and finds all that it counts exact."""
    carrier, region = Carrier(layout, course, course.terms.gap), course.region
    counted = course.start_counts
    assert carrier.start() == {"reads": counted.reads, "requests": counted.requests, "bytes": counted.bytes}
    carried = {"requests": 0, "bytes": 0}  # a request over the end of an epoch counts for either
    for epoch, counted in zip(course.epochs, course.counts, strict=True):
        begun, found = carrier.now, carrier.epoch(epoch)
        peak = counted.peak if carrier.now > begun and course.policy.pinned < region.items else found["peak"]
        assert (found["reads"], found["peak"]) == (counted.reads, peak), epoch
        carried = {name: carried[name] + found[name] for name in carried}
    whole = total(course.counts)
    assert carried == {"requests": whole.requests, "bytes": whole.bytes}
    left = course.policy.pinned  # samples; of units that are held whole, each is one
    assert len(carrier.held) == (region.units_in(left) if course.policy.whole else left)
    assert left < region.items or carrier.holds() == region.held_nbytes(left, whole=course.policy.whole)
