"""What one process of a node makes and all of them use: made once, in memory of all, freed when all have let it go."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from solar.buffer.thread import PlanningStopped
from solar.errors import PlanError, ReadError
from solar.io.channels import node_notes
from solar.io.channels.node_notes import NodeNotes, Waiting, join_notes

NAMES = ["rank 0 of 3", "rank 1 of 3", "rank 2 of 3"]
Many = np.ndarray[Any, np.dtype[np.int64]]


def waiting(seconds: float = 60, run: int = 1, look: Callable[[], object] = lambda: None) -> Waiting:
    return Waiting("a plan", run, seconds, look)


@pytest.fixture
def notes() -> Iterator[list[NodeNotes]]:
    """Those of three processes, in this one: what is shared belongs to the open file."""
    descriptor = node_notes.make_file(len(NAMES))
    made = [NodeNotes(os.dup(descriptor), place, NAMES) for place in range(3)]
    yield made
    os.close(descriptor)


def held(notes: NodeNotes) -> int:
    """The bytes of memory that the file takes."""
    return os.fstat(notes._descriptor).st_blocks * 512


def none() -> Any:
    raise AssertionError("the others make nothing")


def test_a_value_is_made_once_and_its_arrays_are_in_memory_that_all_share(notes: list[NodeNotes]) -> None:
    made: list[int] = []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"many": np.arange(1 << 20), "none": np.empty(0), "few": np.arange(3, dtype=np.int8), "word": "w"}

    values = [one.share(("a", 1), make if one is notes[0] else none, waiting()) for one in notes]
    assert made == [1]
    for value in values:
        assert np.array_equal(value["many"], np.arange(1 << 20)) and not value["many"].flags.writeable
        assert len(value["none"]) == 0 and value["few"].tolist() == [0, 1, 2] and value["word"] == "w"
        assert value["many"].ctypes.data % 64 == 0
    assert 8 << 20 <= held(notes[0]) < 9 << 20
    again = notes[0].share(("a", 1), make, waiting())
    assert made == [1] and again["word"] == "w"


def test_memory_is_freed_when_all_have_let_a_value_go_and_is_used_again(notes: list[NodeNotes]) -> None:
    for number in range(5):
        values: list[Many] = [one.share(number, lambda: np.arange(1 << 20), waiting()) for one in notes]
        values.pop()
        values.pop()
        gc.collect()
        assert int(values[0][-1]) == (1 << 20) - 1
        assert held(notes[0]) < 17 << 20  # this one, and the last, until the next is made
        del values
    assert os.fstat(notes[0]._descriptor).st_size < 17 << 20


def test_a_value_stays_until_the_last_process_has_had_it(notes: list[NodeNotes]) -> None:
    first = notes[0].share("late", lambda: np.arange(1000), waiting())
    del first
    other = notes[0].share("next", lambda: np.zeros(1000), waiting())
    for one in notes[1:]:
        assert one.share("late", none, waiting()).tolist() == list(range(1000))
    assert not other.any()


def test_who_asks_again_after_it_has_let_a_value_go_makes_one_of_its_own(notes: list[NodeNotes]) -> None:
    for one in notes:
        one.share("a", lambda: np.arange(3), waiting())
    assert notes[1].share("a", lambda: "its own", waiting()) == "its own"
    assert notes[0].share("a", none, waiting()).tolist() == [0, 1, 2]  # nobody has made a new one yet


def test_an_error_is_that_of_all(notes: list[NodeNotes]) -> None:
    def fail() -> Any:
        raise PlanError("no room")

    for one in notes:
        with pytest.raises(PlanError, match=r"^no room$"):
            one.share("a", fail if one is notes[0] else none, waiting())
    with pytest.raises(KeyboardInterrupt):
        notes[0].share("b", lambda: (_ for _ in ()).throw(KeyboardInterrupt), waiting())
    with pytest.raises(PlanError, match="KeyboardInterrupt"):
        notes[1].share("b", none, waiting())


def test_waiting_ends_with_time_with_the_run_and_with_the_others(notes: list[NodeNotes]) -> None:
    with pytest.raises(ReadError, match=r"^a plan has waited for rank 0 of 3 for 0\.1 s, and gives up"):
        notes[1].share("a", none, waiting(seconds=0.1))

    def gone() -> None:
        raise PlanningStopped

    with pytest.raises(PlanningStopped):
        notes[1].share("a", none, waiting(look=gone))
    notes[1].end(1)  # that is not for it to say
    assert notes[1].ended == 0
    notes[0].end(1)
    with pytest.raises(ReadError, match="rank 0 of 3 has ended the run for which it makes a plan"):
        notes[1].share("a", none, waiting())
    notes[0].share("a", lambda: "of the next run", waiting(run=2))
    assert notes[1].share("a", none, waiting(run=2)) == "of the next run"


def test_what_nobody_has_waited_for_is_let_go_when_a_run_begins(
    notes: list[NodeNotes],
) -> None:
    for number in range(3 * node_notes.NOTES):
        notes[0].share(number, lambda: 0, waiting())
        if number % 100 == 99:
            for one in notes:
                one.begin()
    with pytest.raises(PlanError, match="256 plans of a node wait for its other ranks"):
        for number in range(node_notes.NOTES + 1):
            notes[0].share(("more", number), lambda: 0, waiting())


def test_processes_find_each_other_at_a_door() -> None:
    found: dict[int, NodeNotes] = {}

    def come(place: int) -> None:
        found[place] = join_notes("a door of this test", place, NAMES, 60, lambda: None)

    threads = [threading.Thread(target=come, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [found[place].share("a", lambda: np.arange(9), waiting()) for place in range(3)]
    assert [value.tolist() for value in values] == [[*range(9)]] * 3
    del values
    maps = Path("/proc/self/maps").read_text()
    gc.collect()
    assert "solar-notes" not in Path("/proc/self/maps").read_text(), maps
