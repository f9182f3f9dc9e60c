"""Processes of a node carry out one plan in one memory: what each reads, and what becomes of it when one of them dies.

Run as a program, this file is the parent of such processes: told in JSON what to try, it tells how each of them ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import open_files, settle

import solar
from solar.errors import ReadError
from solar.io.channels.node_memory import join
from solar.io.reading.reader import Rows
from solar.io.reading.run import Running, shared_nbytes
from solar.planning.plan import Plan, plan_rows
from solar.planning.sweep import RetentionPolicy
from solar.planning.units import of_layout
from solar.values import PartScript, RunPart, Script, Storage

SAMPLES, SHAPE, STEP = 64, (4, 8), 6
DISK = Storage(latency=1e-3, bandwidth=1e8, iops=500)
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of one": {"chunks": (1, *SHAPE), "compression": "gzip"},
    "chunks of eight": {"chunks": (8, *SHAPE), "compression": "gzip"},
}
PATIENCE = 25.0  # seconds in which all who are left must have ended: less than they wait for a batch that does not come


def names_of(ranks: int) -> list[str]:
    """As on the second of two nodes."""
    return [f"rank {ranks + place} of {2 * ranks}" for place in range(ranks)]


# --- a rank ----


def course_of(path: str, epochs: int, seed: int, whole: bool) -> tuple[Rows, Plan]:
    layout = solar.inspect(path, "x")
    starts = np.append(np.arange(0, SAMPLES, STEP), SAMPLES)

    def epoch(number: int) -> Any:
        return np.random.default_rng((seed, number)).permutation(SAMPLES).astype(np.int32), starts

    units, memory = of_layout(layout), layout.nbytes // 2
    way = RetentionPolicy(whole=True) if whole else RetentionPolicy()
    made = plan_rows(epoch, units, memory=memory, storage=DISK, epochs=range(epochs), ahead=1, facts=(), policy=way)
    return Rows(layout), made


def own_share(script: Script, place: int, ranks: int) -> tuple[Any, PartScript, list[Any]]:
    """Every use in turn is for the next rank: sizes of the batches, what is told to the run, samples of each batch."""
    positions = np.full(len(script.rows), -1, np.int32)
    wanted = []
    for begin, end in zip(script.starts[:-1], script.starts[1:], strict=True):
        own = np.arange(begin + place, end, ranks)
        positions[own] = np.arange(len(own))
        wanted.append(script.rows[own])
    return np.array([len(own) for own in wanted], np.int64), PartScript(script, positions), wanted


def rank_of(spec: dict[str, Any], place: int, ranks: int, say: Callable[[Any], None], asked: int) -> dict[str, int]:
    """Carries out its share of a plan, and gives what it has read."""
    seed = spec["seed"] + (1 if place == spec.get("differs") else 0)
    rows, course = course_of(spec["path"], spec["epochs"], seed, spec.get("whole", False))
    stored = course.kept == "stored"
    parts = [RunPart(0, course.pages, course.page, stored, course.policy.direct, course.terms.ahead, 0)]
    node = join(spec["door"], place, names_of(ranks), shared_nbytes(parts), 5)
    running = Running([rows], parts, 2, 1 << 20, node)
    wanted: list[Any] = []
    for epoch in course.epochs:
        sizes, told, own = own_share(course.script(epoch), place, ranks)
        running.append(sizes, [told])
        wanted += own
    try:
        for number, own in enumerate(wanted):
            if (place, number) == (spec.get("closes"), 3):
                return {}
            values, _ = running.wait(number, len(own), 30)
            running.let_go(number)
            assert np.array_equal(values[0][:, 0, 0], own), "other samples"
            if number == len(wanted) // 2 and spec.get("pauses"):
                say("paused")
                os.read(asked, 1)
            if number == 2 and spec.get("forks"):
                check_fork(node, running)
            time.sleep(spec.get("sleep", 0))
        return running.counts()
    except ReadError as error:
        check_again(running, number, str(error))
        raise
    finally:
        running.close()


def check_again(running: Running, number: int, text: str) -> None:
    """Once a batch cannot come because of another rank, each later one has the same error."""
    for later in (number, number + 1, number + 4):
        try:
            running.wait(later, 1, 10.0)
            raise AssertionError(f"batch {later} came after an error")
        except ReadError as again:
            assert str(again) == text


def check_fork(node: Any, running: Running) -> None:
    """A process forked from a rank has no part in it."""
    child = os.fork()
    if child == 0:
        refused = 0
        for ask in (lambda: node.joined(0.0), lambda: running.wait(9, 1, 1.0)):
            with contextlib.suppress(ReadError, RuntimeError):
                ask()
                refused += 1
        running.close()
        os._exit(refused)
    assert os.waitpid(child, 0)[1] == 0, "a forked process can use the run"


def live(spec: dict[str, Any], place: int, ranks: int, out: int, asked: int) -> None:
    """All of a rank's process: it tells how it ended."""
    end: dict[str, Any] = {}

    def say(what: Any) -> None:
        os.write(out, json.dumps(what).encode() + b"\n")

    solar.read(spec["path"], "x", [0])  # what the engine opens stays open
    before = open_files()
    try:
        end["counts"] = rank_of(spec, place, ranks, say, asked)
    except Exception as error:
        end["error"] = f"{type(error).__name__}: {error}"
        del error
    gc.collect()
    end["left open"] = sorted(one for one in open_files() - before if "memfd" in one or "socket" in one)
    say(end)


# --- their parent ----


def born(spec: dict[str, Any], ranks: int) -> list[tuple[int, int, int]]:
    """Processes, and the pipes from and to each of them."""
    found = []
    for place in range(ranks):
        (told, out), (asked, ask) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                live(spec, place, ranks, out, asked)
            os._exit(0)
        os.close(out)
        os.close(asked)
        found.append((pid, told, ask))
    return found


def line_of(pipe: int, seconds: float) -> Any:
    """What a rank says next; None when it has ended, or says nothing in this time."""
    end, text = time.monotonic() + seconds, b""
    while not text.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
            return None
        more = os.read(pipe, 1)
        if not more:
            return None
        text += more
    return json.loads(text)


def shared_memory(pid: int) -> tuple[int, int]:
    """Bytes of the node's memory that a process has mapped, and its share of what is there."""
    size = share = 0
    mapped = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            mapped = "memfd:solar-node" in line
        elif mapped and words[0] in ("Size:", "Pss:"):
            size += int(words[1]) << 10 if words[0] == "Size:" else 0
            share += int(words[1]) << 10 if words[0] == "Pss:" else 0
    return size, share


def tried(spec: dict[str, Any]) -> dict[str, Any]:
    """How each of the processes ended."""
    spec["door"], ranks = secrets.token_hex(16), spec["ranks"]
    alive, found = born(spec, ranks), {}
    patience = 60.0
    if spec.get("pauses"):
        found["paused"] = [line_of(told, patience) for _, told, _ in alive]
        found["memory"] = [shared_memory(pid) for pid, _, _ in alive]
        found["in files"] = ["/dev/shm" in Path(f"/proc/{pid}/smaps").read_text() for pid, _, _ in alive]
        for _, _, ask in alive:
            os.write(ask, b".")
    if "kills" in spec:
        time.sleep(spec["after"])
        os.kill(alive[spec["kills"]][0], signal.SIGKILL)
        patience = PATIENCE
    end = time.monotonic() + patience
    found["ends"] = [line_of(told, max(0.0, end - time.monotonic())) for _, told, _ in alive]
    for pid, told, ask in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(ask)
    return found


# --- the tests ----


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A file of each kind; every value of a sample is its number."""
    found = {}
    for kind, options in KINDS.items():
        path = tmp_path / f"{kind}.h5"
        with h5py.File(path, "w") as file:
            values = np.broadcast_to(np.arange(SAMPLES, dtype="f4")[:, None, None], (SAMPLES, *SHAPE))
            file.create_dataset("x", data=values, **options)
        settle(path)
        found[kind] = str(path)
    return found


def try_all(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How the processes of each trial ended."""
    command = [sys.executable, __file__]
    done = subprocess.run(command, input=json.dumps(specs), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow(but=["contiguous-False", "chunks of eight-True"])
@pytest.mark.parametrize(
    ("kind", "whole"), [*((kind, False) for kind in KINDS), ("chunks of one", True), ("chunks of eight", True)]
)
def test_processes_of_a_node_read_together_what_one_process_reads(
    kind: str, whole: bool, files: dict[str, str]
) -> None:
    spec = {"path": files[kind], "seed": 3, "epochs": 3, "whole": whole, "forks": True}
    alone, *others = try_all([{**spec, "ranks": ranks} for ranks in (1, 2, 3)])
    for trial in others:
        ends = trial["ends"]
        assert [end.get("error") for end in ends] == [None] * len(ends)
        assert [end["left open"] for end in ends] == [[]] * len(ends)
        for name in ("reads", "bytes", "hits"):
            assert sum(end["counts"][name] for end in ends) == alone["ends"][0]["counts"][name], name
        assert all(end["counts"]["reads"] > 0 for end in ends), "one has done it all"


def test_the_memory_of_a_node_is_there_once_and_in_no_file_system(files: dict[str, str]) -> None:
    spec = {"path": files["contiguous"], "seed": 3, "epochs": 3, "ranks": 3, "pauses": True}
    trial = try_all([spec])[0]
    sizes, shares = zip(*trial["memory"], strict=True)
    assert len(set(sizes)) == 1
    assert 0 < sum(shares) <= sizes[0]
    assert [end.get("error") for end in trial["ends"]] == [None] * 3
    assert trial["in files"] == [False] * 3


@pytest.mark.slow
def test_when_a_process_is_killed_at_any_moment_the_others_get_an_error_that_names_it(files: dict[str, str]) -> None:
    draw = random.Random(5)
    specs = []
    for number in range(12):
        ranks = draw.choice([2, 3])
        facts = {"path": files[[*KINDS][number % 3]], "seed": number, "epochs": 200, "sleep": 1e-3, "ranks": ranks}
        specs.append({**facts, "kills": draw.randrange(ranks), "after": draw.uniform(0, 0.6)})
    thirds = [specs[first::3] for first in range(3)]
    with ThreadPoolExecutor(3) as beside:  # they mostly wait
        trials = chain(*beside.map(try_all, thirds))
    for spec, trial in zip(chain(*thirds), trials, strict=True):
        name = names_of(spec["ranks"])[spec["kills"]]
        for place, end in enumerate(trial["ends"]):
            if place != spec["kills"]:
                assert end is not None, f"after {PATIENCE:g} s it still waits for {name}: {spec}"
                assert name in end["error"], spec
                assert end["error"].startswith("ReadError")
                assert end["left open"] == []


def test_a_process_that_closes_early_or_carries_out_another_plan_ends_the_others_with_an_error_that_names_it(
    files: dict[str, str],
) -> None:
    spec = {"path": files["chunks of eight"], "seed": 3, "epochs": 9, "ranks": 3}
    closed, other = try_all([{**spec, "closes": 1}, {**spec, "differs": 2}])
    for place in (0, 2):
        assert "ReadError: rank 4 of 6 has closed its loader while others go on" in closed["ends"][place]["error"]
    for place in (0, 1):
        assert "PlanError: rank 5 of 6 carries out another plan" in other["ends"][place]["error"]
    assert "PlanError: rank 3 of 6 carries out another plan than rank 5 of 6" in other["ends"][2]["error"]


def test_who_does_not_come_is_named() -> None:
    names = names_of(3)
    gc.collect()  # what tests before have left
    before = open_files()
    with pytest.raises(ReadError, match=r"rank 4 of 6, rank 5 of 6 did not come within 0\.1 s"):
        join(secrets.token_hex(16), 0, names, 64, 0.1)
    with pytest.raises(ReadError, match=r"rank 3 of 6 did not come within 0\.1 s"):
        join(secrets.token_hex(16), 1, names, 64, 0.1)
    gc.collect()
    assert not open_files() - before


def test_a_place_of_one_rank_needs_nobody() -> None:
    node = join("", 0, ["rank 0 of 2"], 64, 0.0)
    assert node.joined(0.0)
    assert node.missing() == []
    node.leave()


if __name__ == "__main__":
    print(json.dumps([tried(spec) for spec in json.loads(sys.stdin.read())]))
