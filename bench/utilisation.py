"""Accelerator utilisation as MLPerf Storage defines it: the part of a training's time in which it computes.

    python -m bench.utilisation [--quick] [--scenes NAME ...] [--record]

cosmoflow   3.5 ms of computing for each sample of 2.8 MB, batches of one: 808 MB/s
unet3d      0.323 s for each batch of 7 samples of 147 MB: 3.2 GB/s; here both divided by 16, the rate is the same

Computing is emulated by sleeping, as the benchmark does. Waiting for the first batch counts, other than there: epochs
are short here, and what workers read before the clock starts would be free. Data lie in one contiguous file, in the
page cache (warm), or on a mount that answers as a disk-based parallel file system (slowed: bench/slowfs), where solar
has memory for a part of them. `most` is what the storage's bandwidth allows, of all epochs together, "none" what
sleeping alone reaches. Nothing may be above its `most`: that is an error.
Each loader runs in its own process, and must return the reference's samples. JSON lines, and a table. --record adds
the lines to bench/results/utilisation.jsonl; given again within an hour, it goes on where it was ended.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import machine, parts, records, slowfs, tables
from bench.buffer_part import order_of
from bench.scene import digest

EPOCHS = 3
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


def most(scene: Scene, epochs: int, buffered: bool) -> float:
    """What the storage's bandwidth allows from the first batch that is asked for to the last that is computed.

    A loader with memory for a part of the data reads all once, and from then on what it does not hold.
    """
    kept = scene.fraction if buffered else 0.0
    read = scene.load.demand * (1 + (epochs - 1) * (1 - kept)) / epochs
    return min(1.0, slowfs.BANDWIDTH / read) if scene.slowed else 1.0


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
    share = statistics.median(found["utilisation"])
    if share > 1.02 * job["most"]:
        return {"failed": f"{share:.1%}, and the storage allows {job['most']:.1%}: it was measured wrongly"}
    return found | {"median": share}


def run_scene(name: str, peers: list[str], quick: bool, folder: Path | None, before: float) -> Iterator[Record]:
    """The records of a scene; its data are made, and deleted."""
    scene = SCENES[name]
    load, samples = scene.load, scene.load.quick if quick else scene.load.samples
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as made:
        facts = machine.described(Path(made))
        with stored(scene, samples, Path(made)) as where:
            for peer in peers:
                job = {
                    "peer": peer, "folder": made, **where, "most": most(scene, EPOCHS, peer == "solar"),
                    "samples": samples, "batch": load.batch,
                    "compute": load.compute, "buffer": int(scene.fraction * samples * load.sample_nbytes) or None,
                    "epochs": EPOCHS, "nbytes": samples * load.sample_nbytes, "seconds": 1.0 if quick else 3.0,
                }  # fmt: skip
                record = {
                    "bench": "utilisation", "scene": name, "peer": peer, "quick": quick, "samples": samples,
                    "sample_nbytes": load.sample_nbytes, "batch": load.batch, "compute_seconds": load.compute,
                    "scale": load.scale, "fraction": scene.fraction, "storage": where["storage"],
                    "demand": load.demand, "most": most(scene, EPOCHS, peer == "solar"),
                    "load_before": before,
                }  # fmt: skip
                yield record | measured(job) | facts


# --- one loader, in a process of its own ----

Job = Record
Epoch = Callable[[int], Iterator[Any]]  # the batches of an epoch
WORKERS = (0, 2, 4)
TRYING = 15.0  # seconds for the trials of PyTorch's settings


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


def reached(job: Job, epoch: Epoch, numbers: Sequence[int], seconds: float = math.inf) -> float:
    """Computing over all time, from asking for the first batch to the end of the last epoch, or of so many seconds.

    Waiting for the first batch counts: what workers read meanwhile would be free, and more than the storage can give.
    """
    compute, steps, begin = job["compute"], 0, time.perf_counter()
    for number in numbers:
        for batch, samples in zip(epoch(number), order_of(job, number), strict=False):
            if float(batch[0, 0]) != samples[0] or len(batch) != len(samples):
                raise ValueError(f"step {steps} of epoch {number} is not of samples {samples[:4]}...")
            time.sleep(compute)
            steps += 1
            if time.perf_counter() - begin > seconds:
                return steps * compute / (time.perf_counter() - begin)
    return steps * compute / (time.perf_counter() - begin)


def torch_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    """PyTorch over h5py at its best."""
    from solar.baseline.h5py_loader import best_of, plain_loader
    from solar.baseline.h5py_samples import H5pySamples

    plain, memory = H5pySamples([job["path"]], ["x"]), job["buffer"] or job["nbytes"]

    def epoch_of(setting: dict[str, Any]) -> Epoch:
        loader = plain_loader(plain, job["batch"], SEED_OF, setting, memory)

        def epoch(number: int) -> Iterator[Any]:
            sampler: Any = loader.sampler
            sampler.set_epoch(number)
            return (batch["x"] for batch in loader)

        return epoch

    best, tried, _ = best_of(
        plain, job["batch"], memory, WORKERS, lambda one: reached(job, epoch_of(one), [100], job["seconds"]), TRYING
    )
    return epoch_of(best), best, tried


def solar_side(job: Job) -> tuple[Epoch, dict[str, Any], list[Any]]:
    """With the orders known, and `buffer`; warm with its defaults."""
    from solar import DataLoader, H5Dataset, PlanSampler

    data = H5Dataset(job["path"], "x")
    sampler = PlanSampler(data, 1, 0, seed=SEED_OF, drop_last=True)
    loader: Any = DataLoader(data, job["batch"], sampler=sampler, drop_last=True, buffer=job["buffer"])

    def epoch(number: int) -> Iterator[Any]:
        loader.set_epoch(number)
        return iter(loader)

    said = {"buffer": f"buffer {job['buffer'] / 2**20:,.0f} MiB"} if job["buffer"] else {}
    return epoch, said, []


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
    shares: list[float] = []
    peak = machine.peak(lambda: shares.append(reached(job, epoch, [*range(1, 1 + job["epochs"])])))
    seen = 0 if job["peer"] == "none" else compared(job, epoch, job["seconds"])
    facts = {"label": label, "setting": setting, "tried": tried, "compared": seen, "peak_rss": peak}
    return facts | {"utilisation": shares}


# --- the command ----


def line(record: Record) -> str:
    """One record for people."""

    def said(one: Record) -> str:
        return f"{one['median']:6.1%} (at most {one['most']:.0%})  {', '.join(map(str, one['setting'].values()))}"

    return tables.line(f"{record['scene']:20} {record['peer']:6}", record, said)


def main() -> None:
    asked = records.arguments("bench.utilisation", __doc__, "utilisation", scenes=SCENES, peers=PEERS).parse_args()
    lacking, shown, before = slowfs.lacking(), list[Record](), records.load(asked.load_before)
    for name in asked.scenes or SCENES:
        if SCENES[name].slowed and lacking:
            parts.note(f"{name}: skipped: {lacking}")
            continue
        peers = [peer for peer in asked.peers or PEERS if peer != "none" or not SCENES[name].slowed]
        there = [records.found(asked.out, scene=name, peer=peer, quick=asked.quick) for peer in peers]
        shown += [one for one in there if one]
        left = [peer for peer, one in zip(peers, there, strict=True) if not one]
        for record in run_scene(name, left, asked.quick, asked.folder, before) if left else ():
            parts.note(line(record))
            records.append(asked.out, record)
            shown.append(record)
    print(tables.utilisation(shown))


if __name__ == "__main__":
    main()
