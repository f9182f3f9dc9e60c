"""What services of several nodes plan together, in one process: who takes what, who reads it, what travels."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_kit import SAMPLES, scan, soon

from solar import H5Dataset, PlanSampler, _native
from solar.errors import ReadError
from solar.io.channels.frames import Refused, close_all
from solar.planning.pass_uses import SampleUses, alone
from solar.planning.planned_passes import PlannedPasses
from solar.planning.sweep import Counts, total
from solar.samples.source import SampleSource, sample_source
from solar.service.cluster import Cluster, Said
from solar.service.scheduler import ENTRIES, Scheduler
from solar.service.served_data import description_of, served_data
from solar.service.shared_data import SharedData, open_data
from solar.service.shared_reader import SharedReader, SharedReaders, memory_parts
from solar.service.window import JobOrder, Member, Pace, Window, WindowShare, fits, stretch, take_turns
from solar.values import Storage

_ = scan  # a fixture

BATCH = 4
SLOW = Storage(latency=1e-3, bandwidth=1e8, iops=500)  # over a gap of a sixth of the data is read, and not over all

FLASH = Storage(latency=1e-4, bandwidth=4e8, iops=50_000)  # a request of one sample takes eight times its bytes


class Wire:
    """Letters between nodes of this process."""

    def __init__(self, rank: int, others: list[Wire]) -> None:
        self.rank, self.ranks, self._all = rank, 0, others
        self.one: Cluster | None = None
        self.said: list[str] = []

    def tell(self, letter: dict[str, Any], arrays: Sequence[Any] = ()) -> None:
        for other in self._all:
            if other is not self and other.one is not None:
                other.one.came(self.rank, letter["round"], Said(letter["value"], arrays))

    def begin(self, one: Cluster) -> None:
        self.one = one

    def bye(self, one: Cluster, why: str) -> None:
        self.said.append(why)
        for other in self._all:
            if other is not self and other.one is not None:  # letters are heard by a thread of their own
                threading.Thread(target=other.one.over, args=(why, [self.rank])).start()

    def next_number(self) -> int:
        return 7

    def mail(self, number: int) -> Any:
        raise AssertionError("nothing travels here")


def shared(data: H5Dataset) -> SharedData:
    """What a service makes of what a job tells of these."""
    values, arrays = description_of(beneath(data))
    return open_data(values, arrays, {path for one in values for path in one["files"]})


def beneath(data: H5Dataset) -> SampleSource:
    found = sample_source(data)
    assert isinstance(found, SampleSource)
    return found


def nodes_of(
    of: Path | H5Dataset, seeds: Sequence[Sequence[int]], memory: int = 4 << 20
) -> list[tuple[Scheduler, list[WindowShare]]]:
    """A Scheduler for each node, with jobs of these seeds, which want two epochs; of a file they want "x"."""
    data, wires = H5Dataset(of, "x") if isinstance(of, Path) else of, list[Wire]()
    wires += [Wire(rank, wires) for rank in range(len(seeds))]
    found, order, held = [], PlanSampler(data, seed=0), served_data(beneath(data))
    starts = np.append(np.arange(0, len(data), BATCH), len(data))
    for wire, own in zip(wires, seeds, strict=True):
        wire.ranks, of_node = len(wires), shared(data)
        one = Scheduler(of_node, memory, 2.0, Cluster(wire, of_node, 1))
        one.cluster.begin(lambda why: None)
        for seed in own:
            order.seed, epochs = seed, []
            for epoch in range(2):
                order.set_epoch(epoch)
                epochs.append(held.uses(SampleUses(None, order.order().astype(np.int32), starts)))
            most = max(int(uses.sizes.max()) for uses in epochs)
            slots = max(int(of_node.slots(uses).max()) for uses in epochs)
            ledger = _native.Ledger(ENTRIES, len(of_node.fields), most)
            one.members.append(Member("a job", seed, most, slots, ledger, JobOrder(epochs), Pace(deque())))
        found.append((one, take_turns(one.members, [1.0] * len(own), others=len(wires) > 1)))
    return found


def planned(nodes: list[tuple[Scheduler, list[WindowShare]]]) -> list[Window]:
    """The first window, as each of them plans it."""
    found: dict[int, Window | None] = {}

    def plan(one: Scheduler, here: list[WindowShare]) -> None:
        found[one.cluster.rank] = one._window(here)

    threads = [threading.Thread(target=plan, args=node) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    windows = [found[rank] for rank in range(len(nodes))]
    return [one for one in windows if one is not None]


def counts_of(windows: Sequence[Window]) -> list[Counts]:
    """What they are planned to read."""
    passes = [window.passes for window in windows]
    return [count for one in passes for number in one.segments for count in one.counts(number)]


@pytest.mark.parametrize("seeds", [[[1], [1]], [[1, 2], [3]], [[1, 2], [], [2, 4]]], ids=str)
def test_each_node_takes_what_its_jobs_want_and_reads_its_home(seeds: list[list[int]], scan: Path) -> None:
    nodes = nodes_of(scan, seeds)
    windows = planned(nodes)
    homes = [one.cluster.pieces(one.opened.pieces)[0].region for one, _ in nodes]
    assert [homes[0].begin, *(home.end for home in homes)] == [
        SAMPLES * rank // len(nodes) for rank in range(len(nodes) + 1)
    ]
    assert len({(len(window.passes.segments), window.length) for window in windows}) == 1
    for number in windows[0].passes.segments:
        parts = [window.passes.segment(number) for window in windows]
        sent = [
            (rank, to, step, end - begin) for rank, of in enumerate(parts) for step, to, begin, end in of.parcels.sent
        ]
        came = [(of, rank, step) for rank, part in enumerate(parts) for step, of, _ in part.parcels.come]
        assert sorted((rank, to, step) for rank, to, step, rows in sent for _ in range(rows)) == sorted(came)
        for rank, (part, (_, here)) in enumerate(zip(parts, nodes, strict=True)):
            for step in range(len(part.batches.starts) - 1):
                at = number * windows[0].length + step
                wanted = {row for turn in here for row in turn.member.order.stretch(at, at + 1).rows.tolist()}
                own = part.batches.rows[part.batches.starts[step] : part.batches.starts[step + 1]].tolist()
                assert len(own) == len(wanted) and set(own) == wanted
            rows = part.planned.rows
            assert np.all((rows >= homes[rank].begin) & (rows < homes[rank].end))


@pytest.mark.parametrize("seeds", [[[1], [1]], [[1], [2]], [[1, 2], [3, 4]]], ids=str)
def test_what_all_plan_to_read_is_what_one_service_of_all_the_memory_would(
    seeds: list[list[int]], scan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.service.shared_data.profile.stored_or_guessed", lambda _: (SLOW, False))
    memory = SAMPLES * 1024 // 2
    together = nodes_of(scan, seeds, memory // 2)
    alone = nodes_of(scan, [[seed for own in seeds for seed in own]], memory)
    both, one = (total(counts_of(planned(nodes))) for nodes in (together, alone))
    assert abs(both.reads / one.reads - 1) < 0.05 and both.bytes < 1.1 * one.bytes


def test_ways_of_using_memory_are_chosen_again_where_other_jobs_are_there(
    scan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whole epochs: that takes as long as to plan some of them, so who holds back others costs it not each time."""
    made: list[tuple[int, bool]] = []

    def passes(makers: Any, first: int, pieces: Any, memory: int, batch: int, *more: Any) -> PlannedPasses:
        made.append((len(makers), more[1][0] is None))
        return PlannedPasses(makers, first, pieces, memory, batch, *more)

    monkeypatch.setattr("solar.service.window_planner.PlannedPasses", passes)
    nodes = nodes_of(scan, [[1, 2, 3]])
    planned(nodes)
    ways = nodes[0][0].planner._policies
    planned(nodes)
    assert nodes[0][0].planner._policies is ways
    [(one, here)] = nodes
    planned([(one, here[:2])])
    assert made == [(2, True), (32, False), (32, False), (2, True), (32, False)]


@pytest.mark.parametrize("seeds", [[1], [1, 1]], ids=str)
def test_where_a_part_of_the_next_epoch_is_known_what_memory_holds_for_it_leaves_room_for_this_one(
    seeds: list[int], scan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that was chosen for two epochs holds all that it can for the second: then this one's samples come alone."""
    monkeypatch.setattr("solar.service.shared_data.profile.stored_or_guessed", lambda _: (FLASH, False))

    def planned_from(begin: int, *, first: bool) -> Counts:
        [(one, here)] = nodes_of(scan, [seeds], SAMPLES * 1024 // 4)
        if first:
            [window] = planned([(one, here)])
            assert window.passes.policies[0].lasting
        for member in one.members:
            member.planned = begin
        [window] = planned([(one, take_turns(one.members, [1.0] * len(seeds)))])
        half = len(window.passes.segments) // 2
        return total([count for plan in window.passes.plans for count in plan.counts[:half]])

    for begin in (90, 150, 210):  # of 300 steps
        took, fresh = (planned_from(begin, first=first) for first in (True, False))
        assert FLASH.seconds(took.requests, took.bytes) <= FLASH.seconds(fresh.requests, fresh.bytes)


@pytest.mark.parametrize(("shift", "grows"), [(0, False), (3, False), (3, True)])
def test_trainings_that_come_out_of_step_have_nothing_read_again(
    shift: int, grows: bool, scan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger ring takes a new Run, which holds nothing: as long as there is room for two steps it does not grow."""
    monkeypatch.setattr("solar.service.shared_data.profile.stored_or_guessed", lambda _: (SLOW, False))
    [(one, here)] = nodes_of(scan, [[1, 1, *([1] if grows else [])]], 64 * 4 * BATCH * 1024)
    [first] = planned([(one, here)])
    one.planner.parts, room = first.parts, one.planner.used
    ends = [turn.end - number * shift for number, turn in enumerate(here)]
    shifted = [turn._replace(begin=turn.end - n, steps=turn.steps[:n]) for turn, n in zip(here, ends, strict=True)]
    [window] = planned([(one, shifted)])
    assert (one.planner.used == room and fits(window.parts, one.planner.parts)) != grows


@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize("left", [1, 0.3], ids=["an epoch", "a part of one"])
def test_the_last_epoch_is_read_as_it_was_chosen_by(
    share: float, left: float, scan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way is chosen for whole epochs, and carried out in parts of them: a part counts for none by itself."""
    monkeypatch.setattr("solar.service.shared_data.profile.stored_or_guessed", lambda _: (SLOW, False))
    [(one, _)] = nodes_of(scan, [[1, 2]], int(share * SAMPLES * 1024))
    for member in one.members:
        member.planned = member.order.known - int(left * SAMPLES / BATCH)
    here = take_turns(one.members, [1.0, 1.0])
    [window] = planned([(one, here)])
    assert len(window.passes.segments) > 4
    every = alone(stretch(one.opened, here, 0, len(here[0].steps)))
    whole = PlannedPasses(
        [lambda: every],
        0,
        window.passes.pieces,
        one.planner.budget.parts,
        2 * BATCH,
        [SLOW],
        window.passes.policies,
        False,
    )
    took, wanted = (total(counts_of([one])) for one in (window, window._replace(passes=whole)))
    assert took.reads == wanted.reads and took.requests <= wanted.requests + len(window.passes.segments)
    assert took.bytes <= 1.1 * wanted.bytes


def test_who_has_no_room_beside_those_before_it_waits_for_no_batch(scan: Path) -> None:
    nodes = nodes_of(scan, [[1], [2], [3]], memory=8 * BATCH * 1024 * 5)  # the ring holds five batches; each wants two
    windows = planned(nodes)
    assert [len(window.members) for window in windows] == [1, 1, 0]
    assert [member.why != "" for one, _ in nodes for member in one.members] == [False, False, True]


def test_where_one_ends_nobody_goes_on_waiting(scan: Path) -> None:
    nodes = nodes_of(scan, [[1], [2]])
    said: list[str] = []

    def waits() -> None:
        try:
            nodes[0][0].cluster.all("anything")
        except ReadError as error:
            said.append(str(error))

    thread = threading.Thread(target=waits)
    thread.start()
    nodes[1][0].cluster.end("its memory is divided anew")
    thread.join(60)
    assert said == ["its memory is divided anew"]


def test_what_ended_before_its_hall_was_there_ends_the_hall(scan: Path) -> None:
    """Or others would wait for what this node says in its place."""
    wire, data = Wire(0, []), shared(H5Dataset(scan, "x"))
    wire.ranks = 2
    together = Cluster(wire, data, 1)
    together.over("the memory of the service is divided anew", [1])
    hall = SharedReader(data, 4 << 20, 4 << 20, 2.0, together)
    assert soon(lambda: hall.over and hall.bell < 0)


def test_a_part_has_one_condition_from_its_first_moment_on(scan: Path) -> None:
    """One that changed while somebody held it would be notified by who does not hold it, which ends all services."""
    wire, data = Wire(0, []), shared(H5Dataset(scan, "x"))
    wire.ranks = 2
    together = Cluster(wire, data, 1)
    condition = together.changed
    hall = SharedReader(data, 4 << 20, 4 << 20, 2.0, together)
    assert hall.changed is together.changed is condition
    hall.close()


def test_what_a_job_is_handed_stays_what_it_was_when_the_reader_ends_meanwhile(
    scan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its number alone, another file would be handed on that was opened since."""
    halls = SharedReaders(4 << 20, 2.0)
    data = shared(H5Dataset(scan, "x"))
    hall = halls.of(data, [data.facts])
    uses = SampleUses(None, np.arange(8, dtype=np.int32), np.array([0, 4, 8]))
    member, handed_on = hall.admit("job", 1, uses, 4, deque())
    hall.close()
    assert str(Path(f"/proc/self/fd/{handed_on[3]}").readlink()) == "anon_inode:[eventfd]"
    close_all(handed_on)
    monkeypatch.setattr(hall, "join", lambda *_: member)  # as if it ended right after
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(Refused, match="divides its memory anew"):
        hall.admit("job", 1, uses, 4, deque())
    assert set(Path("/proc/self/fd").iterdir()) <= before  # what earlier tests left may be closed meanwhile
    halls.close()


def test_data_that_are_wanted_have_their_part_of_the_memory_while_they_are_read_by_nobody(scan: Path) -> None:
    """Their jobs join again in a moment: with other parts meanwhile all would end, and end again."""
    data, halls = [shared(H5Dataset(scan, name)) for name in "xy"], SharedReaders(4 << 20, 2.0)
    wanted = {one.facts for one in data}
    halls.of(data[0], wanted).close("the services of other nodes end it")
    second = halls.of(data[1], wanted)
    parts = memory_parts(4 << 20, [one.nbytes for one in data])
    assert second.memory == parts[1]
    assert halls.of(data[0], wanted).memory == parts[0] and halls.of(data[1], wanted) is second
    halls.close()
