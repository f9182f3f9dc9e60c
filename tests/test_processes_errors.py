"""Python work in other processes that fails, hangs, is late, or takes its process with it: an error tells it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes_kit import SOON, call, fail_with, gone, same_again, shared_two, two, wait_until_there

from solar.errors import SolarError
from solar.io.channels.worker_processes import Processes

_ = shared_two, two  # fixtures


# --- work, as a user writes it ----


def fail_with_a_class_of_its_own() -> None:
    class Local(ValueError):
        pass

    raise Local("here")


class TwoPartError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


seen: list[Any] = []


def tell_of(number: int) -> None:
    seen.append(number)


def told() -> list[Any]:
    return seen


def fail_at_start(number: int) -> None:
    raise ValueError(f"no start for {number}")


def die_beside_a_process_that_holds_the_socket(while_there: Path) -> None:
    if os.fork() == 0:
        while while_there.exists():
            time.sleep(0.01)
        os._exit(0)
    os._exit(7)


def give_a_lambda() -> Any:
    return lambda: None


# --- errors ----


def test_an_error_of_the_work_comes_back_with_its_type_and_traceback(two: Processes) -> None:
    with pytest.raises(ValueError) as caught:
        two.submit((fail_with, ValueError, "bad sample")).wait(SOON)
    assert str(caught.value).startswith("Caught ValueError in transform process ")
    assert ".\nOriginal Traceback (most recent call last):\n" in str(caught.value)
    assert "in fail_with" in str(caught.value)
    assert str(caught.value).endswith("ValueError: bad sample\n")
    assert two.submit((same_again, 1)).wait(SOON) == 1


def test_the_text_of_a_key_error_can_be_read(two: Processes) -> None:
    with pytest.raises(KeyError) as caught:
        two.submit((fail_with, KeyError, "name")).wait(SOON)
    assert str(caught.value).endswith("\nKeyError: 'name'\n")


@pytest.mark.parametrize(
    "work",
    [(fail_with, TwoPartError, "a", "b"), (fail_with_a_class_of_its_own,), (fail_with, StopIteration)],
    ids=["of two arguments", "local", "that would end a loop"],
)
def test_an_error_that_cannot_be_made_again_is_a_runtime_error(two: Processes, work: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Caught \w+ in transform process"):
        two.submit(work).wait(SOON)


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, r"was killed by SIGKILL \(for want of memory, perhaps\)"),
        (signal.SIGSEGV, r"crashed \(SIGSEGV\)"),
    ],
)
def test_a_process_that_is_killed_is_an_error_for_all_its_tasks(number: signal.Signals, how: str) -> None:
    with Processes(2, call) as processes:
        tasks = [processes.submit((time.sleep, 1000)) for _ in range(6)]
        pid = processes.pids[0]
        os.kill(pid, number)
        words = rf"process 0 \(pid {pid}\) {how}, 3 of its tasks unfinished"
        for task in tasks[::2]:
            with pytest.raises(SolarError, match=words):
                task.wait(SOON)
        with pytest.raises(SolarError, match=words):
            processes.submit((same_again, 1))
        with pytest.raises(TimeoutError):
            tasks[1].wait(0)


@pytest.mark.parametrize("how", [os._exit, die_beside_a_process_that_holds_the_socket], ids=["exit", "grandchild"])
def test_a_process_that_ends_in_the_midst_of_work_is_an_error_from_then_on(tmp_path: Path, how: Any) -> None:
    path = tmp_path / "there"
    path.touch()
    with Processes(1, call) as processes:
        before = processes.submit((same_again, "before"))
        argument = 7 if how is os._exit else path
        tasks = [processes.submit((how, argument)), processes.submit((same_again, "after"))]
        for task in tasks:
            with pytest.raises(SolarError, match=r"process 0 \(pid \d+\) ended with exit code 7, 2 of its tasks"):
                task.wait(SOON)
        assert before.wait(SOON) == "before"
    path.unlink()


def test_what_cannot_be_sent_is_named(two: Processes) -> None:
    with pytest.raises(pickle.PicklingError, match="the work of transform processes"):
        Processes(1, lambda value: value)
    with pytest.raises(TypeError, match=r"the payload of task \d+ \(a tuple\) cannot be sent .*lock"):
        two.submit((same_again, threading.Lock()))
    with pytest.raises(pickle.PicklingError, match=r"the result of a transform process \(a function\)"):
        two.submit((give_a_lambda,)).wait(SOON)
    assert two.submit((same_again, 1)).wait(SOON) == 1


def test_a_result_that_is_late_is_a_timeout_and_may_be_waited_for_again(two: Processes, tmp_path: Path) -> None:
    task = two.submit((wait_until_there, tmp_path / "go"))
    with pytest.raises(TimeoutError, match=r"no result of task \d+ within 0.01 s: transform process \d \(pid \d+\)"):
        task.wait(0.01)
    (tmp_path / "go").touch()
    assert task.wait(SOON) is None


def test_a_process_that_hangs_is_ended_by_close() -> None:
    processes = Processes(1, call)
    task = processes.submit((time.sleep, 1000))
    pids = processes.pids
    processes.close()
    assert all(gone(pid) for pid in pids)
    with pytest.raises(SolarError, match="was closed"):
        task.wait(SOON)
    with pytest.raises(RuntimeError, match="closed"):
        processes.submit((same_again, 1))


def test_close_in_one_thread_wakes_the_one_that_waits() -> None:
    processes = Processes(1, call)
    task = processes.submit((time.sleep, 1000))
    errors: list[str] = []

    def wait() -> None:
        try:
            task.wait(SOON)
        except SolarError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while not task._child._looking:
        time.sleep(0.001)
    processes.close()
    thread.join()
    assert len(errors) == 1


def test_the_start_is_told_to_each_process_once() -> None:
    with Processes(2, call, init=tell_of) as processes:
        assert [processes.submit((told,)).wait(SOON) for _ in range(4)] == [[0], [1], [0], [1]]


def test_an_error_at_the_start_is_told_at_the_first_wait() -> None:
    with Processes(1, call, init=fail_at_start) as processes:
        for _ in range(2):
            with pytest.raises(ValueError, match="no start for 0"):
                processes.submit((same_again, 1)).wait(SOON)


def test_a_call_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        Processes(0, call)
    with pytest.raises(TypeError, match="callable"):
        Processes(1, 3)  # type: ignore[arg-type]


def test_a_forked_process_cannot_use_nor_end_them(two: Processes) -> None:
    child = os.fork()
    if child == 0:
        try:
            two.submit((same_again, 1))
        except RuntimeError as error:
            two.close()
            os._exit(0 if "belongs to process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert two.submit((same_again, 1)).wait(SOON) == 1
