"""The parent of ranks one of which is killed: told in JSON what to try, it tells what became of the others.

It has imported all that they need, and forks them, so that twenty trials import torch once.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from solar import DataLoader, H5Dataset
from solar.errors import SolarError
from solar.io.channels.meeting import Peers

PATIENCE = 100.0  # seconds after which a trial has failed, and whoever is left is killed


# --- a rank ----


class Victim:
    """Kills its process some time after the moment that its trial names."""

    def __init__(self, spec: dict[str, Any], say: Any) -> None:
        self._moment, self._count, self._delay = spec["moment"], spec["count"], spec["delay"]
        self._signal = spec.get("signal", signal.SIGKILL)
        self._say = say

    def now(self, moment: str) -> None:
        """It is this moment, once more."""
        if moment == self._moment:
            self._count -= 1
            if self._count == 0:
                threading.Timer(self._delay, self._die).start()

    def _die(self) -> None:
        self._say({"killed": time.monotonic()})
        os.kill(os.getpid(), self._signal)


def watched(victim: Victim) -> None:
    """Has the victim know of its meetings. It cannot be missed before its first one: nobody has seen it."""
    meet = Peers.meet
    met = 0

    def watched_meet(*args: Any, **named: Any) -> Any:
        nonlocal met
        if met:
            victim.now("meeting")
        found = meet(*args, **named)
        met += 1
        victim.now("met")
        return found

    Peers.meet = watched_meet  # type: ignore[method-assign]


def rank_of(spec: dict[str, Any], rank: int, say: Any) -> None:
    """Takes batches until there is an error: whole epochs, parts of them, and runs that are closed in between."""
    ranks = spec["ranks"]
    if spec["apart"]:
        os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.distributed.init_process_group("gloo", init_method=spec["store"], rank=rank, world_size=ranks)
    dataset = H5Dataset(spec["path"], "x")
    sampler: Any = DistributedSampler(dataset, ranks, rank, seed=spec["seed"])
    loader: Any = DataLoader(dataset, 4, sampler=sampler, buffer=400_000)
    victim = Victim(spec, say) if rank == spec["victim"] else None
    if victim is not None:
        watched(victim)
    draw = random.Random(rank)
    asked = time.monotonic()
    try:
        for turn in range(10_000):
            loader.set_epoch(turn)
            asked = time.monotonic()
            for step, _ in enumerate(loader):
                if victim is not None:
                    victim.now("batch")
                if turn % 3 == 1 and step == 2:
                    break
                time.sleep(draw.uniform(0, 0.01))
                asked = time.monotonic()
            if turn % 3 == 2:
                if victim is not None:
                    victim.now("closing")
                loader.close()
    except SolarError as error:
        say({"error": f"{type(error).__name__}: {error}", "asked": asked, "ended": time.monotonic()})


def live(spec: dict[str, Any], rank: int, out: int) -> None:
    """All of a rank's process, after which it ends as any Python does."""

    def say(what: dict[str, Any]) -> None:
        os.write(out, json.dumps({"rank": rank, **what}).encode() + b"\n")

    try:
        rank_of(spec, rank, say)
    except Exception as error:
        say({"wrong": repr(error)})
        raise


# --- their parent ----


def born(spec: dict[str, Any]) -> tuple[list[int], int]:
    """The processes of the ranks, and the pipe in which they tell."""
    told, out = os.pipe()
    pids = []
    for rank in range(spec["ranks"]):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            live(spec, rank, out)
            sys.exit(0)  # through all of this program: nothing there may be undone twice
        pids.append(pid)
    os.close(out)
    return pids, told


def tried(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Tries it, and is asked again and again until it gives what became of the ranks."""
    pids, told = born(spec)
    end, status = time.monotonic() + PATIENCE, dict.fromkeys(pids, "still there")
    while any(how == "still there" for how in status.values()):
        for pid in [pid for pid, how in status.items() if how == "still there"]:
            found, how = os.waitpid(pid, os.WNOHANG)
            if found:
                status[pid] = os.waitstatus_to_exitcode(how)
        if time.monotonic() > end:
            break
        yield {}
    for pid in [pid for pid, how in status.items() if how == "still there"]:
        os.kill(pid, signal.SIGABRT)  # it says where it is
        os.waitpid(pid, 0)
    with os.fdopen(told) as pipe:
        said = [json.loads(line) for line in pipe]
    yield {"said": said, "status": [*status.values()]}


def main() -> None:
    faulthandler.enable()
    gc.freeze()  # when ranks end, they look through what they made themselves, and not through all of torch
    specs, beside = json.loads(sys.stdin.read())
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    found: list[Any] = [None] * len(specs)
    waiting = [*enumerate(map(tried, specs))]
    while waiting:
        for number, trial in waiting[:beside]:
            found[number] = next(trial)
        waiting = [one for one in waiting if not found[one[0]]]
        time.sleep(0.01)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
