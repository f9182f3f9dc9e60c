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

import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import machine, parts, records, slowfs, tables
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
        found = parts.measured(LIMIT, "bench.utilisation_part", json.dumps(job))[0]
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
