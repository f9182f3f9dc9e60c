"""What a buffer brings: an exact shuffle from little memory, on a slowed file system and out of compressed chunks.

    python -m bench.buffer [--quick] [--scenes NAME ...] [--peers NAME ...] [--rounds 3] [--folder DIR] [--record]

slowed      64 KB samples, contiguous, on a mount that answers as a disk-based parallel file system (bench/slowfs: 1 ms,
            1 GB/s, 500 requests a second), memory for 1/2 and for 1/4 of them
auto_gzip   64 KB samples in the chunks that h5py chooses by itself, gzip, on the local disk, memory for 1/4 of them

Readers: solar (DataLoader(buffer=...)), pinned (a policy, carried out by solar's reader), torch (over h5py, with the
same memory as its chunk cache, the best of a few settings); if it is named, course (solar's plan without the loader).
Each runs in its own process and must return the reference's samples. JSON lines, and a table. --record adds the lines
to bench/results/buffer.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import buffer_data, buffer_report, machine, slowfs
from bench.slowfs import calibrate

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "bench" / "results" / "buffer.jsonl"
PEERS = ("torch", "pinned", "solar")
ASKED_FOR = ("course",)  # what runs only if it is named
LIMIT = 1800  # seconds for a reader
Record = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """Data, where they lie, and how much of each reader is measured."""

    name: str
    title: str
    samples: int
    fractions: tuple[float, ...]  # memory, of the bytes of all samples
    slowed: bool
    peers: tuple[str, ...]
    settings: tuple[dict[str, Any], ...]  # that torch tries
    part: int  # batches of a round of torch
    search: int  # batches of a try
    options: dict[str, Any] = field(default_factory=dict)  # of create_dataset
    batch: int = 64


def scenes(quick: bool) -> dict[str, Scene]:
    """By name; the quick ones are small."""
    slowed = Scene(
        "slowed", "64 KB, contiguous, slowed", 8192 if quick else 65536, (0.5, 0.25), True, PEERS,
        ({"kind": "items", "workers": 0}, {"kind": "items", "workers": 4}, {"kind": "sorted", "workers": 0},
         {"kind": "sorted", "workers": 4}, {"kind": "sorted", "workers": 16}),
        part=16 if quick else 96, search=8 if quick else 32,
    )  # fmt: skip
    auto_gzip = Scene(
        "auto_gzip", "64 KB, h5py's automatic chunks, gzip", 8192 if quick else 65536, (0.25,), False,
        ("torch", "solar"),
        ({"kind": "items", "workers": 0}, {"kind": "items", "workers": 2}, {"kind": "sorted", "workers": 0},
         {"kind": "sorted", "workers": 2}),
        part=2 if quick else 6, search=1 if quick else 2, options={"chunks": True, "compression": "gzip"},
    )  # fmt: skip
    return {scene.name: scene for scene in (slowed, auto_gzip)}


@contextlib.contextmanager
def stored(scene: Scene, folder: Path) -> Iterator[tuple[Path, slowfs.Slowed | None]]:
    """The file of the scene where readers find it, all of it in the page cache of its own disk; and the mount."""
    note(f"{scene.title}: making {scene.samples * buffer_data.NBYTES / 2**20:,.0f} MiB")
    buffer_data.make(folder / "data.h5", scene.samples, **scene.options)
    machine.fill_cache(folder)
    if not scene.slowed:
        yield folder / "data.h5", None
        return
    with slowfs.mounted(folder) as mount:
        yield mount.path / "data.h5", mount


def run(scene: Scene, peer: str, fraction: float, folder: Path, path: Path, mount: Any, rounds: int) -> Record:
    """The record of one reader, from its own process."""
    memory = int(fraction * scene.samples * buffer_data.NBYTES)
    storage = mount and {"latency": mount.latency, "bandwidth": mount.bandwidth, "iops": mount.iops}
    job = {
        "peer": peer, "folder": str(folder), "path": str(path), "mount": mount and str(mount.path),
        "samples": scene.samples, "batch": scene.batch, "memory": memory, "rounds": rounds, "storage": storage,
        "settings": scene.settings, "part": scene.part, "search": scene.search,
    }  # fmt: skip
    record = {"scene": scene.name, "title": scene.title, "peer": peer, "fraction": fraction, "memory": memory,
              "samples": scene.samples, "batch": scene.batch, "storage": storage}  # fmt: skip
    command = [sys.executable, "-m", "bench.buffer_part", json.dumps(job)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return record | {"failed": f"no end in {LIMIT} s"}
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return record | {"failed": said[-1][:300]}
    return finished(record | json.loads(done.stdout.splitlines()[-1]))


def finished(record: Record) -> Record:
    """With the medians of its rounds: samples a second, and the seconds that an epoch takes."""
    rates = [one["samples"] / one["seconds"] for one in record["rounds"]]
    rate = statistics.median(rates)
    record |= {"samples_per_second": rates, "median": rate, "epoch_seconds": record["samples"] / rate}
    if "planned_seconds" in record["rounds"][0]:
        whole = [one["planned_seconds"] * record["samples"] / one["samples"] for one in record["rounds"]]
        record["planned_seconds"] = statistics.median(whole)
    if record["storage"] and "mount_requests" in record["rounds"][0]:
        costs = record["storage"]
        share = [one["samples"] / record["samples"] for one in record["rounds"]]
        for name in ("requests", "bytes"):
            whole = [one[f"mount_{name}"] / part for one, part in zip(record["rounds"], share, strict=True)]
            record[f"epoch_{name}"] = statistics.median(whole)
        record["modelled_seconds"] = (
            record["epoch_bytes"] / costs["bandwidth"] + record["epoch_requests"] / costs["iops"]
        )
    return record


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_scene(scene: Scene, peers: list[str], folder: Path, rounds: int, facts: Record) -> Iterator[Record]:
    """Makes the data, lets each reader run, deletes the data."""
    if scene.slowed and (reason := slowfs.lacking()):
        note(f"{scene.title}: skipped: {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as name:
        facts = facts | {"machine": machine.facts(Path(name)), "versions": machine.versions()}
        with stored(scene, Path(name)) as (path, mount):
            for fraction in scene.fractions:
                for peer in (*scene.peers, *ASKED_FOR):
                    if peer in peers:
                        load = os.getloadavg()[0]
                        record = run(scene, peer, fraction, Path(name), path, mount, rounds)
                        note(f"    {buffer_report.line(record)}")
                        yield {"bench": "buffer", **record, "load_before": load, **facts}


def calibrated() -> list[Record]:
    """What plain reads of the slowed mount give, printed; nothing where it cannot be mounted."""
    if slowfs.lacking():
        return []
    found = []
    with calibrate.folder() as source, slowfs.mounted(source) as mount:
        for one in calibrate.measure(mount):
            note(f"    {calibrate.line(one)}")
            found.append(one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.buffer", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small data, for a look")
    parser.add_argument("--scenes", nargs="+", choices=scenes(False), metavar="NAME", default=list(scenes(False)))
    parser.add_argument("--peers", nargs="+", choices=PEERS + ASKED_FOR, metavar="NAME", default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the data, on the local disk: 5 GB")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "buffer.jsonl", help="lines are added")
    parser.add_argument("--record", action="store_true", help=f"add them to {RECORDED.relative_to(ROOT)} instead")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that data are deleted and mounts go
    out = RECORDED if asked.record else asked.out
    out.parent.mkdir(parents=True, exist_ok=True)
    facts: Record = {"quick": asked.quick}
    chosen = [scenes(asked.quick)[name] for name in asked.scenes]
    if any(scene.slowed for scene in chosen):
        facts["calibration"] = calibrated()
    records = []
    for scene in chosen:
        for record in run_scene(scene, asked.peers, asked.folder, asked.rounds, facts):
            records.append(record)
            with out.open("a") as file:
                print(json.dumps(record), file=file)
    print(buffer_report.markdown(records))


if __name__ == "__main__":
    main()
