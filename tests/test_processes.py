"""Python work in other processes: the same values back, each to its task, and no memory left behind."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import subprocess
import threading
from functools import partial
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import open_files, same
from processes_kit import SOON, call, fail_with, gone, same_again, shared_two, two, wait_until_there

from solar.errors import SolarError
from solar.io.channels import worker_child
from solar.io.channels.worker_processes import Processes

LARGE = 1 << 20  # bytes that travel in shared memory
_ = shared_two, two  # fixtures


# --- work, as a user writes it ----


def double(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array *= 2
    return array


def image_and_label(nbytes: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"image": np.full(nbytes, 1, np.uint8), "label": np.full(worker_child.SMALL_BUFFER, 2, np.uint8)}


def filled(nbytes: int, value: int) -> np.ndarray[Any, Any]:
    return np.full(nbytes, value, np.uint8)


seen: list[Any] = []


def remember(value: Any) -> list[Any]:
    seen.append(value)
    return [part[:3].copy() for part in seen]


def add_to(counter: Any, value: int) -> None:
    with counter.get_lock():
        counter.value += value


def started_program_has() -> str:
    return subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout


class Pair:
    """A type that is sent as an array."""

    def __init__(self, first: float, second: float) -> None:
        self.first, self.second = first, second

    def __getstate__(self) -> Any:
        raise AssertionError("the reducer was not asked")


def pair_of(array: np.ndarray[Any, Any]) -> Pair:
    return Pair(*array.tolist())


def as_array(pair: Pair) -> Any:
    return pair_of, (np.array([pair.first, pair.second]),)


# --- what a process holds ----


def memory_maps() -> set[str]:
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:solar" in line}


# --- values ----


def test_every_kind_of_value_comes_back_as_it_was(two: Processes) -> None:
    rng = np.random.default_rng(3)
    numbers = rng.integers(-1000, 1000, (40, 60, 50))
    values = {
        "contiguous": numbers,
        "fortran": np.asfortranarray(numbers),
        "gaps": numbers[:, ::3],
        "backwards": numbers[::-1, :, ::-1],
        "turned": numbers.transpose(1, 2, 0),
        "big endian": numbers.astype(">f4"),
        "times": numbers.astype("datetime64[s]"),
        "struct": np.zeros(5000, [("a", ">i4"), ("b", "f8", 2)]),
        "objects": np.array([None, "a", {"b": 1}] * 4000, object),
        "text": np.array(["abc", "µ"] * 9000),
        "scalar": np.array(3.5),
        "none": np.empty((0, 4)),
        "one": np.float32(2.5),
        "bytes": bytes(100_000),
        "bytearray": bytearray(b"x" * 100_000),
        "many": [np.full(700, i) for i in range(200)],
        "nested": ({"a": [numbers, (1, None)]}, True),
    }
    for name, value in values.items():
        back = two.submit((same_again, value)).wait(SOON)
        assert type(back) is type(value), name
        if isinstance(value, np.ndarray):
            assert same(back, value), name
            assert back.flags.writeable, name
            assert back.flags.c_contiguous == (name != "fortran"), name
    back = two.submit((same_again, values)).wait(SOON)
    np.testing.assert_equal(back, values)


def test_an_array_that_may_not_be_written_stays_so(two: Processes) -> None:
    array = np.zeros(LARGE, np.uint8)
    array.flags.writeable = False
    assert not two.submit((same_again, array)).wait(SOON).flags.writeable


def test_the_work_writes_its_own_copy_of_the_payload(two: Processes) -> None:
    array = np.ones(LARGE)
    assert np.all(two.submit((double, array)).wait(SOON) == 2)
    assert np.all(array == 1)


def test_the_same_array_twice_is_one_array_there(two: Processes) -> None:
    array = np.zeros(LARGE, np.uint8)
    first, second = two.submit((same_again, [array, array])).wait(SOON)
    assert first is second


def test_a_type_with_a_reducer_travels_as_an_array() -> None:
    with Processes(1, same_again, reducers={Pair: as_array}) as processes:
        back = processes.submit([Pair(1.5, 2.5)]).wait(SOON)[0]
        assert (back.first, back.second) == (1.5, 2.5)


def test_what_multiprocessing_shares_at_the_start_is_shared() -> None:
    counter = multiprocessing.get_context("forkserver").Value("i", 0)
    with Processes(2, partial(add_to, counter)) as processes:
        for task in [processes.submit(i) for i in range(5)]:
            task.wait(SOON)
    assert counter.value == 10


# --- memory ----


def test_memory_is_used_again_in_pieces_as_few_as_the_tasks_and_of_sizes_that_are_needed() -> None:
    array = np.arange(LARGE, dtype=np.uint8)
    maps, open_before = memory_maps(), open_files()
    with Processes(1, same_again) as processes:
        for _ in range(40):
            tasks = [processes.submit(array) for _ in range(4)]
            assert all(same(task.wait(SOON), array) for task in tasks)
            del tasks
        pieces = 2 * (4 + 1)  # both ways: one for each task, and one that is about to be freed
        assert len(memory_maps() - maps) <= pieces
        assert len(open_files() - open_before) <= pieces + 4
        for exponent in range(16, 24):
            processes.submit(bytes(1 << exponent)).wait(SOON)
        assert len(memory_maps() - maps) > pieces
        for _ in range(3 * worker_child.IDLE_MESSAGES):
            processes.submit(bytes(1 << 16)).wait(SOON)
        assert len(memory_maps() - maps) <= 2 * (1 + 2)


def test_results_may_be_kept_for_ever(two: Processes) -> None:
    before = open_files()
    kept = [two.submit((filled, LARGE, i)).wait(SOON) for i in range(50)]
    assert all(np.all(array == i) for i, array in enumerate(kept))
    assert len(open_files() - before) <= 2 * 8 + 4


def test_a_payload_that_the_work_keeps_stays_as_it_was() -> None:
    with Processes(1, remember) as processes:
        for i in range(3 * worker_child.SLABS_KEPT):
            heads = processes.submit(np.full(LARGE, i, np.uint8)).wait(SOON)
            assert [head.tolist() for head in heads] == [[k] * 3 for k in range(i + 1)]


def test_who_keeps_a_small_array_does_not_keep_the_large_one_beside_it(two: Processes) -> None:
    labels = [two.submit((image_and_label, LARGE)).wait(SOON)["label"] for _ in range(4)]
    before = memory_maps()
    labels += [two.submit((image_and_label, LARGE)).wait(SOON)["label"] for _ in range(20)]
    assert len(memory_maps()) <= len(before)
    assert all(np.all(label == 2) for label in labels)


def test_tasks_that_nobody_waits_for_free_their_memory(two: Processes) -> None:
    before = memory_maps()
    for _ in range(30):
        two.submit((filled, LARGE, 1))
        two.submit((filled, LARGE, 1)).wait(SOON)
    assert len(memory_maps()) <= len(before) + 10


def test_after_many_tasks_and_close_nothing_is_left_but_what_the_user_keeps() -> None:
    Processes(1, same_again).close()  # multiprocessing's own server has started
    gc.collect()
    maps, open_before, children = memory_maps(), open_files(), set(multiprocessing.active_children())
    processes = Processes(2, call)
    pids = processes.pids
    array = np.arange(LARGE, dtype=np.uint8)
    for _ in range(10):
        tasks = [processes.submit((same_again, array)) for _ in range(6)]
        tasks[0].wait(SOON)
    kept = tasks[1].wait(SOON)
    with pytest.raises(ValueError):
        processes.submit((fail_with, ValueError, "x")).wait(SOON)
    processes.close()
    processes.close()
    del tasks
    assert all(gone(pid) for pid in pids)
    assert set(multiprocessing.active_children()) <= children
    assert same(kept, array)
    assert len(memory_maps() - maps) == 1
    del kept
    assert (memory_maps() - maps, open_files() - open_before) == (set(), set())


def test_a_process_has_no_descriptor_of_ours_but_the_conversation(two: Processes, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"):
        ours = open_files()
        with Processes(1, call) as processes:
            theirs = processes.submit((open_files,)).wait(SOON)
            programs = processes.submit((started_program_has,)).wait(SOON)
    assert "socket:" not in programs
    assert sum("socket:" in name for name in theirs) == 1
    assert not [name for name in theirs if str(tmp_path) in name]
    assert [name for name in ours if str(tmp_path) in name]


# --- order ----


def test_results_belong_to_their_tasks_in_whatever_order_they_are_waited_for(two: Processes) -> None:
    tasks = [two.submit((same_again, i)) for i in range(20)]
    assert [task.wait(SOON) for task in reversed(tasks)] == list(reversed(range(20)))


def test_tasks_are_spread_evenly(two: Processes) -> None:
    pids = [two.submit((os.getpid,)).wait(SOON) for _ in range(6)]
    assert pids[:2] * 3 == pids
    assert sorted(pids[:2]) == sorted(two.pids)


def test_a_process_at_work_is_not_given_more_while_another_is_idle(two: Processes, tmp_path: Path) -> None:
    long = two.submit((wait_until_there, tmp_path / "go"))
    pids = {two.submit((os.getpid,)).wait(SOON) for _ in range(4)}
    assert len(pids) == 1
    assert not long.done()
    (tmp_path / "go").touch()
    assert long.wait(SOON) is None


def test_more_than_a_socket_holds_may_be_under_way(two: Processes) -> None:
    payload = bytes(10_000)
    tasks = [two.submit((same_again, payload)) for _ in range(200)]
    assert all(task.wait(SOON) == payload for task in tasks)


def test_threads_share_the_processes(two: Processes) -> None:
    wrong = []

    def use(number: int) -> None:
        for i in range(40):
            if two.submit((same_again, (number, i))).wait(SOON) != (number, i):
                wrong.append((number, i))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_result_is_handed_out_once(two: Processes) -> None:
    task = two.submit((same_again, 1))
    assert task.wait(SOON) == 1
    with pytest.raises(RuntimeError, match="handed out before"):
        task.wait(SOON)


def test_processes_live_while_a_task_may_be_waited_for() -> None:
    task = Processes(1, same_again).submit(5)
    gc.collect()
    assert task.wait(SOON) == 5


@pytest.mark.slow
def test_after_a_process_could_not_be_started_the_next_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that forks it ends when its message is cut; it may have taken the next one before."""
    send = reduction.sendfds

    def fail(*arguments: Any) -> None:
        monkeypatch.setattr(reduction, "sendfds", send)
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    monkeypatch.setattr(reduction, "sendfds", fail)
    with pytest.raises(SolarError, match=r"cannot be started: .*No buffer space"):
        Processes(1, call)
    with Processes(1, call) as processes:
        assert processes.submit((same_again, 3)).wait(SOON) == 3
