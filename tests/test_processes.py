"""Python work in other processes: the same values back, every error told, nothing left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import open_files, same

from solar.errors import SolarError
from solar.io import process_child
from solar.io.processes import Processes

SOON = 120.0  # seconds after which a test fails, rather than waits
LARGE = 1 << 20  # bytes that travel in shared memory


# --- work, as a user writes it ----


def call(payload: tuple[Any, ...]) -> Any:
    """Calls the payload's first with the rest."""
    function, *arguments = payload
    return function(*arguments)


def same_again(value: Any) -> Any:
    return value


def wait_until_there(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def fail_with(error: type[Exception], *arguments: Any) -> None:
    raise error(*arguments)


def fail_with_a_class_of_its_own() -> None:
    class Local(ValueError):
        pass

    raise Local("here")


class TwoPartError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


def double(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array *= 2
    return array


def image_and_label(nbytes: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"image": np.full(nbytes, 1, np.uint8), "label": np.full(process_child.SMALL, 2, np.uint8)}


def filled(nbytes: int, value: int) -> np.ndarray[Any, Any]:
    return np.full(nbytes, value, np.uint8)


seen: list[Any] = []


def remember(value: Any) -> list[Any]:
    seen.append(value)
    return [part[:3].copy() for part in seen]


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


def add_to(counter: Any, value: int) -> None:
    with counter.get_lock():
        counter.value += value


def started_program_has() -> str:
    return subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout


def give_a_lambda() -> Any:
    return lambda: None


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


def memory_maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:solar")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def gone(pid: int) -> bool:
    """Whether a process ends."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def shared_two() -> Iterator[Processes]:
    with Processes(2, call) as processes:
        for task in [processes.submit((os.getpid,)) for _ in range(2)]:
            task.wait(SOON)
        yield processes


@pytest.fixture
def two(shared_two: Processes) -> Processes:
    """Two processes that other tests use, too."""
    return shared_two


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
    maps, open_before = memory_maps(), descriptors()
    with Processes(1, same_again) as processes:
        for _ in range(40):
            tasks = [processes.submit(array) for _ in range(4)]
            assert all(same(task.wait(SOON), array) for task in tasks)
            del tasks
        pieces = 2 * (4 + 1)  # both ways: one for each task, and one that is about to be freed
        assert memory_maps() - maps <= pieces
        assert descriptors() - open_before <= pieces + 4
        for exponent in range(16, 24):
            processes.submit(bytes(1 << exponent)).wait(SOON)
        assert memory_maps() - maps > pieces
        for _ in range(3 * process_child.IDLE):
            processes.submit(bytes(1 << 16)).wait(SOON)
        assert memory_maps() - maps <= 2 * (1 + 2)


def test_results_may_be_kept_for_ever(two: Processes) -> None:
    before = descriptors()
    kept = [two.submit((filled, LARGE, i)).wait(SOON) for i in range(50)]
    assert all(np.all(array == i) for i, array in enumerate(kept))
    assert descriptors() <= before + 2 * 8 + 4


def test_a_payload_that_the_work_keeps_stays_as_it_was() -> None:
    with Processes(1, remember) as processes:
        for i in range(3 * process_child.KEPT):
            heads = processes.submit(np.full(LARGE, i, np.uint8)).wait(SOON)
            assert [head.tolist() for head in heads] == [[k] * 3 for k in range(i + 1)]


def test_who_keeps_a_small_array_does_not_keep_the_large_one_beside_it(two: Processes) -> None:
    labels = [two.submit((image_and_label, LARGE)).wait(SOON)["label"] for _ in range(4)]
    before = memory_maps()
    labels += [two.submit((image_and_label, LARGE)).wait(SOON)["label"] for _ in range(20)]
    assert memory_maps() <= before
    assert all(np.all(label == 2) for label in labels)


def test_tasks_that_nobody_waits_for_free_their_memory(two: Processes) -> None:
    before = memory_maps()
    for _ in range(30):
        two.submit((filled, LARGE, 1))
        two.submit((filled, LARGE, 1)).wait(SOON)
    assert memory_maps() <= before + 10


def test_after_many_tasks_and_close_nothing_is_left_but_what_the_user_keeps() -> None:
    Processes(1, same_again).close()  # multiprocessing's own server has started
    gc.collect()
    maps, open_before, children = memory_maps(), descriptors(), len(multiprocessing.active_children())
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
    assert len(multiprocessing.active_children()) == children
    assert same(kept, array)
    assert memory_maps() == maps + 1
    del kept
    assert (memory_maps(), descriptors()) == (maps, open_before)


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_is_killed_is_an_error_for_all_its_tasks(number: signal.Signals) -> None:
    with Processes(2, call) as processes:
        tasks = [processes.submit((time.sleep, 1000)) for _ in range(6)]
        pid = processes.pids[0]
        os.kill(pid, number)
        words = rf"process 0 \(pid {pid}\) was killed by {number.name}.*3 of its tasks unfinished"
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


# --- whole programs ----

WORK = """
import os, time
from pathlib import Path
def double(x): return 2 * x
def sleep(seconds):
    Path("at_work").touch()
    time.sleep(seconds)
"""


def script(folder: Path, text: str) -> str:
    (folder / "work.py").write_text(WORK)
    path = folder / "script.py"
    path.write_text("import os, signal, sys, time\nfrom solar.io.processes import Processes\n" + text)
    return str(path)


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script(folder, text)], cwd=folder, capture_output=True, text=True, timeout=SOON
    )


def run_until_at_work(folder: Path, text: str) -> tuple[subprocess.Popen[str], int]:
    """A program in a session of its own whose transform process is at work, and that process."""
    program = subprocess.Popen(
        [sys.executable, script(folder, text)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    end = time.monotonic() + SOON
    while not (folder / "at_work").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    return program, pid


def test_a_script_without_a_guard_may_use_work_from_a_module(tmp_path: Path) -> None:
    done = run(tmp_path, "import work\nprint(Processes(2, work.double).submit(21).wait(30))\nprint('end')\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\nend\n", "")


def test_work_of_a_script_without_a_guard_is_the_error_that_asks_for_it(tmp_path: Path) -> None:
    done = run(tmp_path, "def own(x): return x\nprint(Processes(1, own).submit(21).wait(30))\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "RuntimeError: Caught RuntimeError in transform process 0." in done.stderr
    assert "if __name__ == '__main__':" in done.stderr


def test_work_payload_and_result_may_be_of_the_main_module(tmp_path: Path) -> None:
    text = """
class Box:
    def __init__(self, x): self.x = x
def own(box): return Box(box.x + 1)
if __name__ == "__main__":
    import work
    with Processes(1, own) as processes:
        print(processes.submit(Box(1)).wait(30).x, isinstance(processes.submit(Box(2)).wait(30), Box))
    with Processes(1, work.double) as processes:
        try:
            processes.submit(Box(1)).wait(30)
        except TypeError as error:
            print("Box" in str(error))
"""
    done = run(tmp_path, text)
    assert (done.stdout, done.stderr, done.returncode) == ("2 True\nTrue\n", "", 0)


def test_work_that_only_a_prompt_knows_says_where_to_put_it(tmp_path: Path) -> None:
    text = "def own(x): return x\nfrom solar.io.processes import Processes\nProcesses(1, own).submit(1).wait(30)\n"
    done = subprocess.run([sys.executable, "-"], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=SOON)
    assert "AttributeError: Caught AttributeError in transform process 0" in done.stderr
    assert "own was defined at a prompt or in a notebook, put it into a module" in done.stderr


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_another_start_method_is_honoured(tmp_path: Path, method: str) -> None:
    work = "lambda x: 2 * x" if method == "fork" else "work.double"
    text = f"""
import multiprocessing, work
if __name__ == "__main__":
    processes = Processes(2, {work}, context="{method}")
    print([task.wait(30) for task in [processes.submit(i) for i in range(4)]])
    one = Processes(1, {work}, context=multiprocessing.get_context("{method}"))
    pids = processes.pids + one.pids
    processes.close()
    print(one.submit(4).wait(30), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(tmp_path, text)
    assert (done.stdout, done.stderr, done.returncode) == ("[0, 2, 4, 6]\n8\n", "", -signal.SIGKILL)


def test_the_end_of_the_interpreter_is_quiet_with_work_under_way(tmp_path: Path) -> None:
    text = """
import work
processes = Processes(2, work.double)
kept = [processes.submit(bytes(100_000)) for _ in range(5)]
kept[0].wait(30)
other = Processes(1, work.sleep)
task = other.submit(1000)
"""
    done = run(tmp_path, text)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


AT_WORK = """
import work
processes = Processes(1, work.sleep{context})
task = processes.submit(1000)
print(processes.pids[0], flush=True)
task.wait()
"""


@pytest.mark.parametrize("context", ["", ", context='fork'"], ids=["forkserver", "fork"])
def test_processes_end_when_their_parent_is_killed(tmp_path: Path, context: str) -> None:
    program, pid = run_until_at_work(tmp_path, AT_WORK.format(context=context))
    program.kill()
    _, stderr = program.communicate(timeout=SOON)
    assert gone(pid)
    assert stderr == ""


def test_an_interrupt_ends_program_and_processes(tmp_path: Path) -> None:
    program, pid = run_until_at_work(tmp_path, AT_WORK.format(context=""))
    os.killpg(program.pid, signal.SIGINT)
    _, stderr = program.communicate(timeout=SOON)
    assert gone(pid)
    assert stderr.count("Traceback") == 1
    assert stderr.endswith("KeyboardInterrupt\n")
