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

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import machine, records, slowfs
from bench.scene import digest

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "bench" / "results" / "utilisation.jsonl"
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
        costs = {"latency": mount.latency, "bandwidth": mount.bandwidth, "iops": mount.iops}
        yield {"path": str(mount.path / "data.h5"), "storage": costs}


def measured(job: Record) -> Record:
    """What one loader reaches, from its own process."""
    command = [sys.executable, "-m", "bench.utilisation_part", json.dumps(job)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end in {LIMIT} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:300]}
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found | {"median": statistics.median(found["utilisation"])}


def run_scene(name: str, peers: list[str], quick: bool, folder: Path | None) -> Iterator[Record]:
    """The records of a scene; its data are made, and deleted."""
    scene = SCENES[name]
    load, samples = scene.load, scene.load.quick if quick else scene.load.samples
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as made:
        facts = {"machine": machine.facts(Path(made)), "versions": machine.versions()}
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


HEAD = """\
| scene | demand, MB/s | most | loader | AU | min–max | peak MiB | setting |
|---|--:|--:|---|--:|--:|--:|---|"""


def markdown(found: list[Record]) -> str:
    """A row for each loader in each scene; of records of the same, the last one counts."""
    by = {(one["scene"], one["peer"]): one for one in found if "median" in one}
    rows = []
    for one in by.values():
        memory = f", memory for {one['fraction']:g}" if one["fraction"] else ""
        span = f"{min(one['utilisation']):.0%}–{max(one['utilisation']):.0%}"
        setting = ", ".join(f"{value}" for value in one["setting"].values())
        cells = [
            f"{one['scene']}{memory if one['peer'] == 'solar' else ''}",
            f"{one['demand'] / 1e6:,.0f}",
            f"{one['most']:.0%}",
            one["label"],
            f"{one['median']:.1%}",
            span,
            f"{one['peak_rss'] / 2**20:,.0f}",
            setting or "default",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([HEAD, *rows])


def line(record: Record) -> str:
    """One record for people."""
    head = f"{record['scene']:20} {record['peer']:6}"
    if "failed" in record:
        return f"{head} failed: {record['failed']}"
    tried = ", ".join(f"{value}" for value in record["setting"].values())
    return f"{head} {record['median']:6.1%} (at most {record['most']:.0%})  {tried}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.utilisation", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer data, for a look")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, metavar="NAME", default=list(SCENES))
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="NAME", default=list(PEERS))
    parser.add_argument("--folder", type=Path, help="for the data, on the local disk: 4 GB")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "utilisation.jsonl")
    parser.add_argument("--record", action="store_true", help=f"adds to {RECORDED.relative_to(ROOT)} instead")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that data are deleted and mounts go
    out, lacking = RECORDED if asked.record else asked.out, slowfs.lacking()
    shown: list[Record] = []
    for name in asked.scenes:
        if SCENES[name].slowed and lacking:
            print(f"{name}: skipped: {lacking}", file=sys.stderr)
            continue
        peers = [peer for peer in asked.peers if peer != "none" or not SCENES[name].slowed]
        there = [records.found(out, scene=name, peer=peer, quick=asked.quick) for peer in peers]
        shown += [one for one in there if one]
        left = [peer for peer, one in zip(peers, there, strict=True) if not one]
        for record in run_scene(name, left, asked.quick, asked.folder) if left else ():
            print(line(record), file=sys.stderr, flush=True)
            records.append(out, record)
            shown.append(record)
    print(markdown(shown))


if __name__ == "__main__":
    main()
