"""Whole programs with work in other processes: how they start, and that nothing outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi_kit import mpiexec
from processes_kit import SOON, gone

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
    path.write_text("import os, signal, sys, time\nfrom solar.io.channels.worker_processes import Processes\n" + text)
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
    assert 'SolarError: the script starts its work without `if __name__ == "__main__":`' in done.stderr
    assert "process 0" not in done.stderr and "freeze_support" not in done.stderr  # no traceback but the script's own


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
    text = (
        "def own(x): return x\nfrom solar.io.channels.worker_processes import Processes\n"
        "Processes(1, own).submit(1).wait(30)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=SOON)
    assert ": own of the main module cannot be had in another process: it was defined at" in done.stderr
    assert "process 0" not in done.stderr


@pytest.mark.slow(but=["spawn"])
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


@pytest.mark.slow(but=["forkserver"])
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


LOADED = """
from solar import DataLoader, H5Dataset
def doubled(sample): return 2 * sample
{more}
for batch in DataLoader(H5Dataset("a.h5", "x", transform={work}), 4, num_workers=2{options}):
    print(*batch.flatten().tolist())
"""
GUARDED = """
if __name__ == "__main__":
    def below(sample): return 2 * sample
    from solar import DataLoader, H5Dataset
    next(iter(DataLoader(H5Dataset("a.h5", "x", transform=below), 4, num_workers=1)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(8)
    return tmp_path


def program(folder: Path, text: str, where: str) -> subprocess.CompletedProcess[str]:
    """What a text does as a script, as what python reads from its standard input, or as its option -c."""
    (folder / "program.py").write_text(text)
    command = {"script": ["program.py"], "input": ["-"], "option": ["-c", text]}[where]
    return subprocess.run(
        [sys.executable, *command], input=text if where == "input" else None, cwd=folder, capture_output=True,
        text=True, timeout=SOON,
    )  # fmt: skip


slowly = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("where", "more", "work", "why"),
    [
        slowly("input", "", "doubled", "doubled of the main module cannot be had in another process"),
        slowly("option", "", "doubled", "doubled of the main module cannot be had in another process"),
        ("script", "", "lambda sample: 2 * sample", "Can't pickle <function <lambda>"),
        slowly("input", "", "lambda sample: 2 * sample", "Can't pickle <function <lambda>"),
        slowly("script", "def made():\n def inner(sample): return 2 * sample\n return inner", "made()", "local object"),
    ],
)
def test_a_transform_that_no_process_can_have_runs_here_and_one_line_says_so(
    folder: Path, where: str, more: str, work: str, why: str
) -> None:
    done = program(folder, LOADED.format(more=more, work=work, options=""), where)
    assert (done.returncode, done.stdout) == (0, "0 2 4 6\n8 10 12 14\n")
    said, *source = done.stderr.splitlines()
    assert "UserWarning: transform, collate_fn or worker_init_fn cannot be sent" in said
    assert why in said
    assert not said.startswith("/") or said.startswith(f"{folder}/program.py:")  # the line of the loop, where there is
    assert len(source) == (where == "script")


@pytest.mark.slow
def test_with_fork_it_runs_in_processes_as_it_does_in_torchs(folder: Path) -> None:
    text = LOADED.format(more="import os", work="lambda sample: sample * 0 + os.getppid()", options=CONTEXT)
    done = program(folder, text + "    assert set(batch.tolist()) == {os.getpid()}\n", "script")
    assert (done.returncode, done.stderr) == (0, "")


CONTEXT = ', multiprocessing_context="fork"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOADED.format(more="", work="doubled", options=""), "the script starts its work without `if __name__ =="),
        slowly(GUARDED, "below of the main module cannot be had in another process: it was defined at a prompt, in a"),
    ],
)
def test_what_a_process_finds_missing_is_said_in_our_words_alone(folder: Path, text: str, said: str) -> None:
    done = program(folder, text, "script")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-1].startswith(f"solar.errors.SolarError: {said}")
    assert len(lines) <= 8
    assert "multiprocessing/" not in done.stderr and "process_child" not in done.stderr


UNDER_MPI = """
from mpi4py import MPI
from solar import DataLoader, H5Dataset, PlanSampler

def double(sample):
    assert not MPI.Is_initialized()
    return 2 * sample

if __name__ == "__main__":
    data = H5Dataset("x.h5", "x", transform=double)
    sampler = PlanSampler(data, MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, shuffle=False)
    with DataLoader(data, 4, sampler=sampler, num_workers=2) as loader:
        own = [int(value) for batch in loader for value in batch[:, 0]]
    both = MPI.COMM_WORLD.gather(own)
    if both:
        print(sorted(both[0] + both[1]))
"""


def test_a_script_that_starts_mpi_at_its_top_may_have_transform_processes(tmp_path: Path) -> None:
    """They import the script again; under mpiexec an MPI_Init of theirs would end the job."""
    launcher = mpiexec()
    (tmp_path / "script.py").write_text(UNDER_MPI)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.repeat(np.arange(16), 3).reshape(16, 3)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [launcher, "-n", "2", sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True,
        timeout=2 * SOON, env=os.environ | root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == str([2 * value for value in range(16)]).split()
