"""Accelerator utilisation as MLPerf Storage defines it: the part of a training's time in which it computes.

    python -m bench.utilisation [--quick] [--scenes NAME ...] [--record]

cosmoflow   3.5 ms of computing for each sample of 2.8 MB, batches of one: 808 MB/s
unet3d      0.323 s for each batch of 7 samples of 147 MB: 3.2 GB/s; here both divided by 16, the rate is the same

Computing is emulated by sleeping, as the benchmark does; the first step of each epoch is left out, as it is there. Data
lie in one contiguous file, in the page cache (warm), or on a mount that answers as a disk-based parallel file system
(slowed: bench/slowfs), where solar has memory for a part of them. `most` is what the storage's bandwidth allows,
"none" what sleeping alone reaches.
Each loader runs in its own process, and must return the reference's samples. JSON lines, and a table. --record adds
the lines to bench/results/utilisation.jsonl; given again within an hour, it goes on where it was ended.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import machine, parts, records, slowfs, tables
from bench.buffer_part import order_of
from bench.scene import digest

PEERS = ("none", "torch", "solar")
LIMIT = 400  # seconds for a loader
Record = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """A training, as MLPerf Storage emulates it on an H100."""

    samples: int
    sample_nbytes: int
    batch: int
    compute: float  # seconds a step
    scale: int  # by which its samples and seconds were divided
    quick: int  # samples of a quick run

    @property
    def demand(self) -> float:
        """Bytes a second that it takes if it never waits."""
        return self.batch * self.sample_nbytes / self.compute


COSMOFLOW = Load(512, 2_828_484, 1, 0.0035, 1, 256)
UNET3D = Load(784, 146_600_628 // 16 // 4 * 4, 7, 0.323 / 16, 16, 784)  # a batch is little beside the data, as there


@dataclass(frozen=True)
class Scene:
    load: Load
    slowed: bool
    fraction: float = 0.0  # of the data that solar has memory for, if it is not what it takes by itself


SCENES = {
    "cosmoflow, warm": Scene(COSMOFLOW, False),
    "unet3d, warm": Scene(UNET3D, False),
    "cosmoflow, slowed": Scene(COSMOFLOW, True, 0.25),
    "unet3d, slowed": Scene(UNET3D, True, 0.75),
}


def make(folder: Path, load: Load, samples: int) -> None:
    """Writes the samples, each with its number in its first value; then digests.npy of what h5py reads back."""
    noise = np.random.default_rng(5).random(load.sample_nbytes // 4, np.float32)
    with h5py.File(folder / "data.h5", "w") as file:
        data = file.create_dataset("x", (samples, len(noise)), "f4")
        for number in range(samples):
            noise[0] = number
            data[number] = noise
            noise[1:] = np.roll(noise[1:], 1)
    with h5py.File(folder / "data.h5") as file:
        np.save(folder / "digests.npy", [digest(file["x"][number]) for number in range(samples)])


def most(scene: Scene) -> float:
    """What the storage's bandwidth allows a loader that keeps what it has memory for and reads nothing twice."""
    read = scene.load.demand * (1 - scene.fraction)
    return min(1.0, slowfs.BANDWIDTH / read) if scene.slowed and read else 1.0


@contextmanager
def stored(scene: Scene, samples: int, folder: Path) -> Iterator[Record]:
    """Where the data are, and what the storage costs."""
    make(folder, scene.load, samples)
    machine.fill_cache(folder)
    if not scene.slowed:
        yield {"path": str(folder / "data.h5"), "storage": None}
        return
    with slowfs.mounted(folder) as mount:
        yield {"path": str(mount.path / "data.h5"), "storage": mount.costs}


def measured(job: Record) -> Record:
    """What one loader reaches, from its own process."""
    try:
        found = parts.measured(LIMIT, "bench.utilisation", job)[0]
    except RuntimeError as error:
        return {"failed": str(error)}
    return found | {"median": statistics.median(found["utilisation"])}


def run_scene(name: str, peers: list[str], quick: bool, folder: Path | None) -> Iterator[Record]:
    """The records of a scene; its data are made, and deleted."""
    scene = SCENES[name]
    load, samples = scene.load, scene.load.quick if quick else scene.load.samples
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as made:
        facts = machine.described(Path(made))
        with stored(scene, samples, Path(made)) as where:
            for peer in peers:
                job = {
                    "peer": peer, "folder": made, **where, "samples": samples, "batch": load.batch,
                    "compute": load.compute, "buffer": int(scene.fraction * samples * load.sample_nbytes) or None,
                    "epochs": 3 if quick else 5, "seconds": 1.0 if quick else 3.0,
                }  # fmt: skip
                record = {
                    "bench": "utilisation", "scene": name, "peer": peer, "quick": quick, "samples": samples,
                    "sample_nbytes": load.sample_nbytes, "batch": load.batch, "compute_seconds": load.compute,
                    "scale": load.scale, "fraction": scene.fraction, "storage": where["storage"],
                    "demand": load.demand, "most": most(scene), "load_before": os.getloadavg()[0],
                }  # fmt: skip
                yield record | measured(job) | facts


# --- one loader, in a process of its own ----

Job = Record
Epoch = Callable[[int], Iterator[Any]]  # the batches of an epoch
WORKERS, KINDS = (0, 2, 4, 8), ("items", "sorted")
AHEAD = (4, 2)  # batches


def compared(job: Job, epoch: Epoch, seconds: float) -> int:
    """How many samples of epoch 0 were seen to be the reference's; ValueError for others. Not timed."""
    reference = np.load(Path(job["folder"]) / "digests.npy")
    seen, end = 0, time.perf_counter() + seconds
    for batch, samples in zip(epoch(0), order_of(job, 0), strict=False):
        if [digest(row) for row in np.asarray(batch)] != reference[samples].tolist():
            raise ValueError(f"returned other samples than the reference: not {samples[:4]}...")
        seen += len(samples)
        if time.perf_counter() > end and seen > 8 * len(samples):
            break
    return seen


def reached(job: Job, epoch: Epoch, number: int, seconds: float) -> float:
    """Computing over all time, from the end of the first step to the end of the epoch, or of so many seconds."""
    order, compute = order_of(job, number), job["compute"]
    begin, steps = 0.0, 0
    for batch, samples in zip(epoch(number), order, strict=False):
        if float(batch[0, 0]) != samples[0] or len(batch) != len(samples):
            raise ValueError(f"step {steps} of epoch {number} is not of samples {samples[:4]}...")
        time.sleep(compute)
        steps += 1
        now = time.perf_counter()
        if steps == 1:
            begin = now
        elif steps > 2 and now - begin > seconds:
            break
    return (steps - 1) * compute / (time.perf_counter() - begin)


def torch_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    """The best of PyTorch's settings over h5py."""
    from solar.io.plain import Plain
    from solar.torch.plain import plain_loader

    plain = Plain([job["path"]], ["x"])

    def epoch_of(kind: Any, workers: int) -> Epoch:
        loader = plain_loader(plain, job["batch"], SEED_OF, kind, workers)

        def epoch(number: int) -> Iterator[Any]:
            sampler: Any = loader.sampler
            sampler.set_epoch(number)
            return (batch["x"] for batch in loader)

        return epoch

    tried = []
    for kind, workers in itertools.product(KINDS, WORKERS):
        one = reached(job, epoch_of(kind, workers), 100, job["seconds"] / 2)
        tried.append(({"kind": kind, "workers": workers}, one))
    best = max(tried, key=lambda pair: pair[1])[0]
    return epoch_of(**best), best, tried


def solar_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.values import Storage

    data = H5Dataset(job["path"], "x")
    storage = Storage(**job["storage"]) if job["storage"] else None

    def loader_of(ahead: int) -> Any:
        sampler = PlanSampler(data, 1, 0, seed=SEED_OF, drop_last=True)
        given: dict[str, Any] = {"buffer": job["buffer"], "storage": storage, "ahead": ahead}
        return DataLoader(data, job["batch"], sampler=sampler, drop_last=True, **given)

    def epoch_of(loader: Any) -> Epoch:
        def epoch(number: int) -> Iterator[Any]:
            loader.set_epoch(number)
            return iter(loader)

        return epoch

    if job["buffer"] is None:
        return epoch_of(loader_of(4)), {}, []
    tried = []  # batches that wait take memory from what is kept
    for ahead in AHEAD:
        with loader_of(ahead) as loader:
            reached(job, epoch_of(loader), 99, math.inf)  # fills the memory
            tried.append(({"ahead": ahead}, reached(job, epoch_of(loader), 100, math.inf)))
    best = max(tried, key=lambda pair: pair[1])[0]
    said = {"buffer": f"buffer {job['buffer'] / 2**20:,.0f} MiB", "ahead": f"ahead {best['ahead']}"}
    return epoch_of(loader_of(**best)), said, tried


def none_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    """A batch that is there already: what sleeping overshoots alone."""
    batch = np.zeros((job["batch"], 1), np.float32)

    def epoch(number: int) -> Iterator[Any]:
        for samples in order_of(job, number):
            batch[:, 0] = samples
            yield batch

    return epoch, {}, []


SEED_OF = 11  # as order_of has it
SIDES = {
    "none": (none_side, "no loader, one batch in memory"),
    "torch": (torch_side, "PyTorch + h5py"),
    "solar": (solar_side, "solar"),
}


def part(job: Job) -> Record:
    make, label = SIDES[job["peer"]]
    epoch, setting, tried = make(job)
    seen: list[int] = []
    first = (lambda: 0) if job["peer"] == "none" else (lambda: compared(job, epoch, seconds))
    # A buffer is planned for whole epochs; PyTorch's are alike in every part.
    seconds = math.inf if job["peer"] == "solar" else job["seconds"]
    peak = machine.peak(lambda: seen.append(first()))
    # The first epoch after that fills the memory, and is not counted.
    shares = [reached(job, epoch, 1 + number, seconds) for number in range(job["epochs"])][1:]
    return {
        "label": label,
        "setting": setting,
        "tried": tried,
        "utilisation": shares,
        "compared": seen[0],
        "peak_rss": peak,
    }


# --- the command ----


def line(record: Record) -> str:
    """One record for people."""

    def said(one: Record) -> str:
        return f"{one['median']:6.1%} (at most {one['most']:.0%})  {', '.join(map(str, one['setting'].values()))}"

    return tables.line(f"{record['scene']:20} {record['peer']:6}", record, said)


def main() -> None:
    asked = records.arguments("bench.utilisation", __doc__, "utilisation", scenes=SCENES, peers=PEERS).parse_args()
    lacking, shown = slowfs.lacking(), list[Record]()
    for name in asked.scenes or SCENES:
        if SCENES[name].slowed and lacking:
            parts.note(f"{name}: skipped: {lacking}")
            continue
        peers = [peer for peer in asked.peers or PEERS if peer != "none" or not SCENES[name].slowed]
        there = [records.found(asked.out, scene=name, peer=peer, quick=asked.quick) for peer in peers]
        shown += [one for one in there if one]
        left = [peer for peer, one in zip(peers, there, strict=True) if not one]
        for record in run_scene(name, left, asked.quick, asked.folder) if left else ():
            parts.note(line(record))
            records.append(asked.out, record)
            shown.append(record)
    print(tables.utilisation(shown))


if __name__ == "__main__":
    main()
