"""Who looks whether others live: processes, and ranks that meet, also where what carries their letters lives on."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mpi_kit import under_gloo

import solar.io.channels.lifeline  # noqa: F401  # before there are no descriptors left
from solar.errors import ReadError
from solar.io.channels.alive import Watch, has_ended, own_process

CHILD = """import json
from solar.io.channels.alive import own_process
print(json.dumps(own_process()), flush=True)
input()"""


def test_a_process_is_there_until_it_has_ended_even_if_nobody_buries_it() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        where, pid, began = json.loads(child.stdout.readline())
        own = own_process()
        assert own is not None
        assert (where, pid) == (own[0], child.pid)
        assert not has_ended([where, pid, began])
        assert has_ended([where, pid, began - 1]), "the number has a new owner"
        child.kill()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert has_ended([where, pid, began])
    assert has_ended([where, pid, began])


def test_only_others_of_this_machine_are_looked_after() -> None:
    watch = Watch(0)
    where, _, began = watch.own or ["", 0, 0]
    watch.meet({0: [where, os.getpid(), began - 1], 1: watch.own, 2: None, 3: ["another machine", 1, 1]})
    assert watch.ended(now=True) == []
    watch.meet({4: [where, os.getpid(), began - 1]})
    assert watch.ended(now=True) == [4]


BEGIN = """
import json, os, signal, sys, threading, time
import torch.distributed as dist
from solar import SolarError
from solar.io.channels.meeting import peers
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=3)
these = peers("auto")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def meet(what):
    try:
        these.meet(what, {}, {}, {}, 60)
    except SolarError as error:
        print(json.dumps([rank, type(error).__name__, str(error)]), flush=True)
"""
GONE = "is gone: its process has ended; what it wrote last, or the system's log, says why"


def met(folder: Path, body: str, *dying: int) -> list[Any]:
    return under_gloo(3, BEGIN + body, folder / "store", dying=dying)


def test_a_rank_that_has_been_met_and_dies_before_the_next_meeting_is_named(tmp_path: Path) -> None:
    said = met(tmp_path, "meet('one')\nif rank == 0: die()\nmeet('two')", 0)
    assert said == [[rank, "ReadError", f"rank 0 of 3 {GONE}"] for rank in (1, 2)]


def test_a_rank_that_dies_after_it_came_is_named_also_to_those_who_come_later(tmp_path: Path) -> None:
    body = "if rank == 1: threading.Timer(1, die).start()\nif rank == 2: time.sleep(3)\nmeet('one')"
    assert met(tmp_path, body, 1) == [[rank, "ReadError", f"rank 1 of 3 {GONE}"] for rank in (0, 2)]


def test_a_dead_rank_is_named_to_one_who_waits_for_a_rank_0_that_never_comes(tmp_path: Path) -> None:
    """That one has heard of it before, and does something else now."""
    body = """
meet('one')
if rank == 1: die()
if rank == 2:
    meet('two')
    open(sys.argv[1] + ".over", "w").close()
while rank == 0 and not os.path.exists(sys.argv[1] + ".over"):
    time.sleep(0.05)
"""
    assert met(tmp_path, body, 1) == [[2, "ReadError", f"rank 1 of 3 {GONE}"]]


def test_who_has_no_descriptors_left_to_meet_others_is_told_what_to_do() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    watch = Watch(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())), most[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for meets in (lambda: Watch(0), lambda: watch.extend(2)):
            with pytest.raises(ReadError, match=r"cannot meet the others: Too many open files; see `ulimit -n`"):
                meets()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        for one in taken:
            os.close(one)
