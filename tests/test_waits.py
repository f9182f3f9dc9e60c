"""Waits for other ranks: each says after some seconds whom it waits for, and ends at its deadline."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import h5py
import mpi_kit
import numpy as np
import pytest

from solar.errors import ReadError
from solar.io.channels import bulk, node_memory
from solar.io.system import waiting


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass only as somebody sleeps."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def test_a_wait_that_lasts_is_said_once_and_ends_at_its_deadline(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    looked = list[float]()
    with pytest.raises(ReadError, match=r"batch 7 has waited for rank 1 of 2 for 60 s, and gives up: look whether"):
        waiting.until_others(
            waiting.polling(lambda: None), "batch 7", lambda: "rank 1 of 2", 60, lambda: looked.append(clock[0])
        )
    assert caplog.messages == ["batch 7 waits for rank 1 of 2; it gives up after 60 s"]
    assert clock[0] == pytest.approx(60, abs=0.1) and len(looked) > 100


def test_a_short_wait_says_nothing(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    assert waiting.until_others(waiting.polling(lambda: clock[0] > waiting.SAID_AFTER - 1), "batch 7", str, 60)
    assert not caplog.messages


def test_who_is_not_known_is_other_ranks(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    assert waiting.until_others(waiting.polling(lambda: clock[0] > waiting.SAID_AFTER + 1), "this", str)
    assert caplog.messages == ["this waits for other ranks; it gives up after 1800 s"]


def test_a_rank_whose_array_does_not_come_gives_up(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mail is taken by nobody, as if rank 0 were stopped."""

    def passes(event: threading.Event, nap: float) -> bool:
        clock[0] += nap
        return False

    monkeypatch.setattr(threading.Event, "wait", passes)
    nobody = SimpleNamespace(rank=1, ranks=2, run=lambda errand: None, join=lambda seconds: None)
    with pytest.raises(ReadError, match=r"the layout of rank 1 of 2 has waited for other ranks for 1800 s"):
        bulk.cast(nobody, [np.zeros(3)], "the layout")  # type: ignore[arg-type]


def test_who_joins_a_node_says_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_memory, "SAID_AFTER", 0.1)
    with pytest.raises(ReadError, match=r"rank 1 did not come within 0\.5 s"):
        node_memory.join("a door of this test", 0, ["rank 0", "rank 1"], 4096, 0.5)
    assert caplog.messages == ["2 ranks of a node wait for rank 1; they give up after 0.5 s"]


STOPPED = """
import json, logging, os, signal, sys
import mpi4py.MPI
from solar import DataLoader, H5Dataset, PlanSampler
from solar.io.system import waiting
path, pid = sys.argv[1:]
waiting.SAID_AFTER = 0.5
rank, said = mpi4py.MPI.COMM_WORLD.rank, []

class Hears(logging.Handler):
    def emit(self, record):
        if "waits for rank 1 of 2" in record.getMessage() and not said:
            said.append(record.getMessage())
            os.kill(int(open(pid).read()), signal.SIGCONT)

if rank == 0:
    logging.getLogger("solar").addHandler(Hears(logging.WARNING))
data, seen = H5Dataset(path, "x"), []
with DataLoader(data, 8, sampler=PlanSampler(data, 2, rank, seed=1), buffer=1 << 18) as loader:
    for epoch in range(3):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            seen += batch[:, 0].tolist()
            if rank == 1 and (epoch, number) == (1, 5):
                with open(pid + ".new", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(pid + ".new", pid)
                os.kill(os.getpid(), signal.SIGSTOP)
print(json.dumps({"rank": rank, "said": said, "seen": seen}))
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_is_stopped_is_named_by_those_who_wait_for_it(nodes: int, tmp_path: Path) -> None:
    """It goes on as soon as it has been named, and all have their samples."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.repeat(np.arange(2000), 64).reshape(2000, 64)
    hosts = ["-launcher", "fork", "-hosts", "n0,n1"] if nodes == 2 else []
    found = mpi_kit.under_mpi(2, STOPPED, tmp_path / "x.h5", tmp_path / "pid", options=hosts, seconds=120)
    first, other = sorted(found, key=lambda one: int(one["rank"]))
    [said] = first["said"]
    assert said.endswith("waits for rank 1 of 2; it gives up after 1800 s")
    for epoch in range(3):
        both = [one["seen"][1000 * epoch : 1000 * (epoch + 1)] for one in (first, other)]
        assert sorted(both[0] + both[1]) == [*range(2000)]


MEETS = """
import json, logging, sys, time
from pathlib import Path
import mpi4py.MPI
from solar.io.channels import meeting
from solar.io.channels.meeting import peers
meeting.MEETING_PATIENCE, come = 0.2, Path(sys.argv[1])
rank, said = mpi4py.MPI.COMM_WORLD.rank, []

class Hears(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
        come.touch()

logging.getLogger("solar").addHandler(Hears(logging.WARNING))
found = peers("mpi")
found.meet("getting to know each other", {}, {}, {})
while rank == 1 and not come.exists():
    time.sleep(0.01)
found.meet("the first batch", {}, {}, {})
print(json.dumps({"rank": rank, "said": said}))
"""


def test_a_rank_that_waits_for_others_to_meet_says_so(tmp_path: Path) -> None:
    """Rank 1 comes as soon as it has been named."""
    found = mpi_kit.under_mpi(2, MEETS, tmp_path / "come", seconds=120)
    said = {one["rank"]: one["said"] for one in found}
    assert said[0][-1].startswith("rank 0 waits for rank 1 to come for the first batch: all ranks must iterate this")


SLOW = """
import json, sys, time
import mpi4py.MPI
from solar import DataLoader, H5Dataset, PlanSampler
rank, ranks = mpi4py.MPI.COMM_WORLD.rank, mpi4py.MPI.COMM_WORLD.size
data = H5Dataset(sys.argv[1], "x")
with DataLoader(data, 8, sampler=PlanSampler(data, ranks, rank, seed=1), buffer=1 << 20, epochs=2) as loader:
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            time.sleep(0.06 if rank == 1 else 0.02)
    print(json.dumps({"rank": rank, "waits": loader.stats()["wait_seconds"], "report": str(loader.report())}))
"""


@pytest.mark.alone
def test_waiting_for_a_slow_rank_beside_is_told_as_that(tmp_path: Path) -> None:
    """Of one node: each step takes rank 1 three times as long as the others."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.repeat(np.arange(1200), 64).reshape(1200, 64)
    found = {one["rank"]: one for one in mpi_kit.under_mpi(3, SLOW, tmp_path / "x.h5", seconds=120)}
    for rank in (0, 2):
        waits = {cause: seconds for cause, seconds in found[rank]["waits"].items() if cause not in ("plan", "start")}
        assert waits["exchange"] >= 0.9 * sum(waits.values()) > 1.0, waits  # 100 steps of .04 s
        assert "for other ranks" in found[rank]["report"]
        assert "the slowest rank sets the pace" in found[rank]["report"]
    assert found[1]["waits"]["exchange"] <= 0.1 * found[0]["waits"]["exchange"], found[1]
