"""One peer on one scene, in a process of its own (bench.parts): getting ready, or one whole run.

ready   the peer's own format is made, its settings are tried, its samples are compared with the reference
whole   epochs by its loader from the first import to the last batch: start, planning and first epoch are in it
rate    what a limit reaches within a second
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import machine, peers
from bench.scene import Scene, digests_of
from bench.scenes import all_scenes

RUN_UP = 4  # batches
CHECK_NBYTES, CHECK_SECONDS = 2**27, 2.0
FASTEST = 16e9  # bytes per second: orders are long enough for it
TRIAL_SECONDS = 0.4
Setting = dict[str, Any]
Measures = dict[str, Any]


def part(job: dict[str, Any]) -> Measures:
    peer, scene, folder = peers.load(job["peer"]), all_scenes(job["quick"])[job["scene"]], Path(job["folder"])
    if job["do"] == "ready":
        return ready(peer, scene, folder)
    if job["do"] == "rate":
        samples, seconds = peer.rate(scene, folder, orders(scene, 1.0), job["setting"], 1.0)
        return {"rate": samples / seconds}
    return whole(peer, scene, folder, job)


def ready(peer: ModuleType, scene: Scene, folder: Path) -> Measures:
    facts: Measures = {"label": peer.LABEL, "order": peer.ORDER}
    peer.prepare(scene, folder)
    machine.fill_cache(folder)

    def timed(setting: Setting) -> float:
        if scene.cache == "cold":
            machine.drop_cache(folder)
        order = orders(scene, TRIAL_SECONDS)
        if hasattr(peer, "rate"):
            samples, seconds = peer.rate(scene, folder, order, setting, TRIAL_SECONDS)
            return float(samples / seconds)
        batches, seconds = paced(peer.batches(scene, folder, order, setting), TRIAL_SECONDS, scene.cache == "cold")
        return batches * scene.batch / seconds

    if hasattr(peer, "best"):
        facts["setting"], facts["tried"] = peer.best(scene, folder, timed)
    else:
        settings = peer.settings(scene)
        facts["tried"] = [(setting, timed(setting)) for setting in settings] if len(settings) > 1 else []
        facts["setting"] = max(facts["tried"], key=lambda pair: pair[1])[0] if facts["tried"] else settings[0]
    compared: list[int] = []
    facts["peak_rss"] = machine.peak(lambda: compared.append(check(peer, scene, folder, facts["setting"])))
    return facts | {"compared": compared[0], "is_limit": hasattr(peer, "rate")}


def orders(scene: Scene, seconds: float) -> NDArray[np.int64]:
    """More batches than anybody reads in so long."""
    return scene.orders(1, 1 + int(2 * seconds * FASTEST / scene.sample_nbytes / scene.samples))


def paced(batches: Iterator[Any], seconds: float, cold: bool) -> tuple[int, float]:
    """Batches and the time they took: warm after a run-up, so that what was read ahead and caches are not counted."""
    begin = time.perf_counter()
    for came, _ in enumerate(batches, 1):
        if cold or came >= RUN_UP or time.perf_counter() - begin > seconds:
            break
    start, came = time.perf_counter(), 0
    for came, _ in enumerate(batches, 1):
        if came > 1 and time.perf_counter() - start >= seconds:
            break
    if not came:
        raise RuntimeError("no batches came after the run-up")
    return came, time.perf_counter() - start


def check(peer: ModuleType, scene: Scene, folder: Path, setting: Setting) -> int:
    """How many samples were seen to be those of h5py, in the order that was given. ValueError for others."""
    reference, order = np.load(folder / "digests.npy"), scene.orders(seed=3)
    most = max(2, CHECK_NBYTES // (scene.batch * scene.sample_nbytes))
    start, seen = time.perf_counter(), []
    for batch, indices in zip(peer.batches(scene, folder, order, setting), order, strict=False):
        rows = np.asarray(batch)
        if rows.shape != (scene.batch, *scene.shape) or rows.dtype != np.dtype(scene.dtype):
            raise ValueError(f"returned {rows.dtype} {rows.shape}")
        found = digests_of(rows)
        right = np.array_equal(found, reference[indices]) if peer.ORDER == "given" else True
        if not right or not np.isin(found, reference).all():
            raise ValueError("returned other samples than the reference")
        seen.append(found)
        if len(seen) >= most or time.perf_counter() - start > CHECK_SECONDS:
            break
    flat = np.concatenate(seen)
    if len(np.unique(flat)) != len(flat):
        raise ValueError("returned a sample twice in one epoch")
    return len(flat)


def whole(peer: ModuleType, scene: Scene, folder: Path, job: dict[str, Any]) -> Measures:
    """Seconds since the first import: of the first batch, and of the end of each epoch."""
    first, ends, samples = 0.0, [], 0
    for batches in epochs_of(peer, scene, folder, job["setting"], job["epochs"]):
        for batch in batches:
            first = first or time.perf_counter() - job["begin"]
            samples += len(batch)
        ends.append(time.perf_counter() - job["begin"])
    least = job["epochs"] * (scene.samples // scene.batch) * scene.batch
    if not least <= samples <= job["epochs"] * scene.samples:
        raise ValueError(f"{samples} samples came in {job['epochs']} epochs, {least} are wanted")
    return {"first": first, "ends": ends, "samples": samples}


def epochs_of(peer: ModuleType, scene: Scene, folder: Path, setting: Setting, epochs: int) -> Iterator[Any]:
    """The batches of each epoch: by the peer's own shuffle, or, where it has none, in orders that it is given."""
    if hasattr(peer, "epochs"):
        yield from itertools.islice(peer.epochs(scene, folder, setting), epochs)
        return
    batches = iter(peer.batches(scene, folder, scene.orders(4, epochs), setting))
    for _ in range(epochs):
        yield itertools.islice(batches, scene.samples // scene.batch)
