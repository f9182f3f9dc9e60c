"""One peer, one scene, one fresh process, one JSON line.

    python -m bench.run PEER SCENE FOLDER [--seconds 1] [--rounds 5] [--told]

FOLDER holds the scene (bench.scene.make). The peer's own format is made, its settings are tried, its samples are
compared with the reference, and then rounds are timed. With --told a round is run for each line of the input (who calls
alternates between peers) and answered with a line; without, --rounds are run at once. The record comes last.

A warm round is timed after a run-up that empties what was read ahead; a cold round is one epoch, or as much of it as
--seconds allow, from the first call on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from bench import machine, parts, peers
from bench.scene import Scene, digests_of
from bench.scenes import all_scenes

RUN_UP = 16  # batches
CHECK_NBYTES, CHECK_SECONDS = 2**27, 2.0
FASTEST = 16e9  # bytes per second: orders are long enough for it


class Trial:
    """A peer on a scene: checks it, times it."""

    def __init__(self, name: str, scene: Scene, folder: Path, seconds: float) -> None:
        self.peer: ModuleType = peers.load(name)
        self.name, self.scene, self.folder, self.seconds = name, scene, folder, seconds
        self.setting: dict[str, int] = self.peer.settings(scene)[0]
        self.tried: list[tuple[dict[str, int], float]] = []
        self.rates: list[float] = []
        self.peak_rss = 0
        self.how = "preloaded"

    def get_ready(self) -> None:
        self.peer.prepare(self.scene, self.folder)
        machine.fill_cache(self.folder)
        trial_seconds = (
            self.seconds if self.scene.cache == "cold" else self.seconds / 2
        )  # cold passes start from nothing
        for setting in (settings := self.peer.settings(self.scene)):
            if len(settings) > 1:
                self.tried.append((setting, self.timed(seed=1, setting=setting, seconds=trial_seconds)))
        if self.tried:
            self.setting = max(self.tried, key=lambda pair: pair[1])[0]
        self.check()
        self.peak_rss = machine.peak_rss(lambda: self.timed(seed=2, setting=self.setting, seconds=self.seconds / 2))

    def check(self) -> None:
        """A peer that returns other samples than h5py is not counted."""
        reference = np.load(self.folder / "digests.npy")
        order = self.scene.orders(seed=3)
        most = max(2, CHECK_NBYTES // (self.scene.batch * self.scene.sample_nbytes))
        start, seen = time.perf_counter(), []
        for batch, indices in zip(self.peer.batches(self.scene, self.folder, order, self.setting), order, strict=False):
            found = self.digests_of(batch)
            right = np.array_equal(found, reference[indices]) if self.peer.ORDER == "given" else True
            if not right or not np.isin(found, reference).all():
                raise ValueError("returned other samples than the reference")
            seen.append(found)
            if len(seen) >= most or time.perf_counter() - start > CHECK_SECONDS:
                break
        flat = np.concatenate(seen)
        if len(np.unique(flat)) != len(flat):
            raise ValueError("returned a sample twice in one epoch")

    def digests_of(self, batch: Any) -> NDArray[np.uint64]:
        rows = np.asarray(batch)
        if rows.shape != (self.scene.batch, *self.scene.shape) or rows.dtype != np.dtype(self.scene.dtype):
            raise ValueError(f"returned {rows.dtype} {rows.shape}")
        return digests_of(rows)

    def timed(self, seed: int, setting: dict[str, int], seconds: float) -> float:
        """Samples per second of one pass."""
        cold = self.scene.cache == "cold"
        epochs = 1 if cold else int(2 * seconds * FASTEST / self.scene.sample_nbytes / self.scene.samples) + 1
        order = self.scene.orders(seed, epochs)
        if cold:
            self.how = machine.drop_cache(self.folder)
        if hasattr(self.peer, "rate"):
            samples, took = self.peer.rate(self.scene, self.folder, order, setting, seconds)
            return samples / took
        batches, took = paced(
            lambda: self.peer.batches(self.scene, self.folder, order, setting), seconds, 0 if cold else RUN_UP
        )
        return batches * self.scene.batch / took

    def round(self, number: int) -> float:
        self.rates.append(self.timed(100 + number, self.setting, self.seconds))
        return self.rates[-1]

    def record(self) -> dict[str, Any]:
        scene = self.scene
        return {
            "peer": self.name, "label": self.peer.LABEL, "order": self.peer.ORDER, "setting": self.setting,
            "tried": self.tried, "scene": scene.name, "title": scene.title, "samples": scene.samples,
            "batch": scene.batch, "sample_nbytes": scene.sample_nbytes, "cache": scene.cache, "cache_how": self.how,
            "seconds_per_round": self.seconds, "samples_per_second": self.rates,
            "median": statistics.median(self.rates), "best": max(self.rates), "peak_rss": self.peak_rss,
            **machine.described(self.folder),
        }  # fmt: skip


def paced(begin: Any, seconds: float, run_up: int) -> tuple[int, float]:
    """Batches and the time they took: counted after the run-up, until `seconds` are over or the batches end."""
    marks = [time.perf_counter()]
    iterator: Iterator[Any] = begin()
    first = 0 if run_up == 0 else None
    for _ in iterator:
        marks.append(time.perf_counter())
        if first is None and (len(marks) > run_up or marks[-1] - marks[0] > seconds):
            first = len(marks) - 1
        elif first is not None and len(marks) - first > 2 and marks[-1] - marks[first] >= seconds:
            break
    if first is None or len(marks) - first < 2:
        raise RuntimeError(f"only {len(marks) - 1} batches came")
    return len(marks) - 1 - first, marks[-1] - marks[first]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__.splitlines()[0])
    parser.add_argument("peer")
    parser.add_argument("scene", choices=all_scenes())
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--told", action="store_true", help="a round for each line of the input")
    asked = parser.parse_args()
    with parts.channel() as out:
        answer(asked, out)
    os._exit(0)  # peers leave threads behind that would keep the process from ending


def answer(asked: argparse.Namespace, out: TextIO) -> None:
    """A line for each round, and the record in the end; or the record of why not."""
    trial = Trial(asked.peer, all_scenes()[asked.scene], asked.folder, asked.seconds)
    if reason := peers.lacking(trial.peer, trial.scene):
        print(json.dumps({"peer": asked.peer, "scene": asked.scene, "skipped": reason}), file=out)
        return
    trial.get_ready()
    if asked.told:
        print("ready", file=out)
    for number, _ in enumerate(sys.stdin if asked.told else range(asked.rounds)):
        rate = trial.round(number)
        if asked.told:
            print(rate, file=out)
    print(json.dumps(trial.record()), file=out)


if __name__ == "__main__":
    main()
