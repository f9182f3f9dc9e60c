"""Who takes, provides, sends and receives what: all ranks together have each use once, in the right place."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solar.planning.budget import pooled_nbytes
from solar.planning.regions import around
from solar.planning.sharing import Division, Group, at_home, by_turns, divide_uses, most_nbytes, seated
from solar.planning.units import Units, uniform

NONE = -1


@st.composite
def worlds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The node of each rank, where steps begin, and the rank at whose home each use lies."""
    nodes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    node_of = np.unique(nodes, return_inverse=True)[1].astype(np.int32)
    starts = np.cumsum([0, *draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))])
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    return node_of, starts, rng.integers(0, len(nodes), starts[-1]).astype(np.int32)


def mates(node_of: np.ndarray, rank: int) -> list[int]:
    return np.flatnonzero(node_of == node_of[rank]).tolist()


def listed(group: Group) -> list[int]:
    """Which uses they are, also where they are all there are."""
    return list(range(int(group.starts[-1])) if isinstance(group.uses, slice) else group.uses.tolist())


def carried_out(divisions: list[Division], steps: int, sends: bool) -> list[list[list[int]]]:
    """The memory of each rank and step when all has been provided, sent and received: which use lies where."""
    memory = [[[NONE] * int(one.sizes[step]) for step in range(steps)] for one in divisions]

    def put(rank: int, step: int, place: int, use: int) -> None:
        assert memory[rank][step][place] == NONE
        memory[rank][step][place] = use

    for rank, one in enumerate(divisions):
        for group in (one.here,) if sends else (one.here, one.elsewhere):
            for step in range(steps):
                here = slice(group.starts[step], group.starts[step + 1])
                for use, place in zip(listed(group)[here], group.places[here].tolist(), strict=True):
                    if place >= 0:
                        put(rank, step, place, use)
    post: dict[tuple[int, int, int], list[int]] = {}
    for rank, one in enumerate(divisions):
        assert one.sent.tolist() == sorted(one.sent.tolist())
        for step, peer, begin, end in one.sent.tolist():
            post.setdefault((step, rank, peer), []).extend(memory[rank][step][begin:end])
    for rank, one in enumerate(divisions):
        for step, peer, place in one.come.tolist() if sends else []:
            put(rank, step, place, post[step, peer, rank].pop(0))
    assert not any(post.values())
    return memory


@given(worlds(), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_homes_divide_each_step_among_the_ranks(world: tuple[np.ndarray, ...], even: bool, sends: bool) -> None:
    node_of, starts, homes = world
    ranks, steps = len(node_of), len(starts) - 1
    taken = at_home(homes, starts, node_of, even=even)
    each = [divide_uses(starts, taken, homes, rank, mates(node_of, rank), sends=sends) for rank in range(ranks)]
    memory = carried_out(each, steps, sends)
    for step in range(steps):
        got, uses = [], int(starts[step + 1] - starts[step])
        for rank, one in enumerate(each):
            own = one.batch.uses[one.batch.starts[step] : one.batch.starts[step + 1]].tolist()
            assert memory[rank][step][: len(own)] == own
            got += own
            if even:
                assert uses // ranks <= len(own) <= -(-uses // ranks)
            else:
                assert all(homes[use] == rank for use in own)
        assert sorted(got) == list(range(starts[step], starts[step + 1]))
    provided = [set(listed(one.here)) for one in each]
    for rank, uses_here in enumerate(provided):
        assert all(node_of[homes[use]] == node_of[rank] for use in uses_here)
        assert all(provided[mate] == uses_here for mate in mates(node_of, rank))


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_by_turns_each_rank_has_what_torch_gives_it_and_nothing_travels(world: tuple[np.ndarray, ...]) -> None:
    node_of, starts, _ = world
    ranks = len(node_of)
    taken = by_turns(starts, ranks)
    for rank in range(ranks):
        one = divide_uses(starts, taken, taken, rank, mates(node_of, rank), sends=False)
        for step in range(len(starts) - 1):
            own = one.batch.uses[one.batch.starts[step] : one.batch.starts[step + 1]]
            assert own.tolist() == list(range(starts[step] + rank, starts[step + 1], ranks))
        assert not len(one.elsewhere.uses) and not len(one.sent) and not len(one.come)
        assert one.sizes.tolist() == np.diff(one.batch.starts).tolist()


@given(worlds(), st.booleans(), st.sampled_from([1, 7, 1 << 18]))
@settings(max_examples=200, deadline=None)
def test_the_memory_of_batches_is_that_of_all_that_a_node_has_at_a_time(
    world: tuple[np.ndarray, ...], even: bool, at_a_time: int
) -> None:
    node_of, starts, homes = world
    taken, each = at_home(homes, starts, node_of, even=even), (5_000, 70_000)  # two fields of a sample
    with mock.patch("solar.planning.sharing.SWEEP_BLOCK", at_a_time):
        found = most_nbytes(starts, taken, homes, node_of, each)
    for node, (two, more) in enumerate(found.tolist()):
        takes = np.zeros(len(starts) - 1, np.int64)
        for rank in np.flatnonzero(node_of == node).tolist():
            one = divide_uses(starts, taken, homes, rank, mates(node_of, rank), sends=True)
            takes += [sum(pooled_nbytes(size * nbytes) for nbytes in each if size) for size in one.sizes.tolist()]
            takes += np.bincount(one.come[:, 0], minlength=len(takes)) * sum(each)
        for batches in range(2, 10):
            most = max(takes[begin : begin + batches].sum() for begin in range(len(takes)))
            assert most <= two + (batches - 2) * more
        assert two <= 5 * max(takes)  # not much more, either


def test_ranks_are_seated_node_by_node() -> None:
    assert seated(np.array([0, 1, 0, 1], np.int32))[0].tolist() == [0, 2, 1, 3]
    assert seated(np.array([0, 1, 0, 1], np.int32))[1] == 2
    assert seated(np.array([0, 0, 1], np.int32))[1] == 1  # nodes that differ


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_region_around_items_has_whole_units(data: st.DataObject) -> None:
    samples, per_unit = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 7))
    units = uniform(samples, 8, per_unit=per_unit)
    if data.draw(st.booleans()):
        cuts = sorted({0, samples, *data.draw(st.lists(st.integers(0, samples), max_size=8))})
        sizes = np.full(len(cuts) - 1, 8, np.int64)
        units = Units(samples, max(np.diff(cuts)), 8, 8, first=np.array(cuts), offset=np.cumsum(sizes), nbytes=sizes)
    items = np.array(data.draw(st.lists(st.integers(0, samples - 1), max_size=9)), np.int32)
    region = around(units, items)
    edges = {*range(0, samples, per_unit), samples} if units.first is None else set(units.first.tolist())
    assert {region.begin, region.end} <= edges
    assert all(region.begin <= item < region.end for item in items)
    inside = [edge for edge in edges if region.begin < edge < region.end]
    if len(items):
        assert not inside or (min(items) < min(inside) and max(items) >= max(inside))
