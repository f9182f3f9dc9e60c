"""What a buffer brings: an exact shuffle from little memory, on a slowed file system and out of compressed chunks.

    python -m bench.buffer [--quick] [--scenes NAME ...] [--peers NAME ...] [--rounds 3] [--folder DIR] [--record]

slowed...   on a mount that answers as a disk-based parallel file system (bench/slowfs: 1 ms, 1 GB/s, 500 requests a
            second): samples of 64 KB, 3 MB, 17 MB; contiguous, in chunks of 64, in our codec; by one rank and by two;
            64 KB with memory for all, 1/2, 1/4 and 1/10 of them, the others mostly for 1/4 (bench/buffer_scenes.py)
auto_gzip   64 KB samples in the chunks that h5py chooses by itself, gzip, on the local disk, memory for 1/4 of them

Readers: solar (DataLoader(buffer=...)), torch (over h5py, with the same memory as its chunk cache, the best of a few
settings), and two policies of others, carried out by solar's reader: pinned (a cache that never changes, the most that
NoPFS reaches), paper (what SOLAR published: an epoch begins with what the last one ended with); if it is named, course
(solar's plan without the loader). Each runs in its own process and must return the reference's samples. JSON lines, and
a table. --record adds the lines to bench/results/buffer.jsonl; given again within an hour, it goes on where it was
ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import buffer_data, buffer_report, machine, records, slowfs
from bench.buffer_scenes import PEERS, Scene, scenes
from bench.slowfs import calibrate
from solar.values import Storage

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "bench" / "results" / "buffer.jsonl"
ASKED_FOR = ("course",)  # what runs only if it is named
LIMIT = 1800  # seconds for a reader
Record = dict[str, Any]


@contextlib.contextmanager
def stored(scene: Scene, folder: Path) -> Iterator[tuple[Path, slowfs.Slowed | None]]:
    """The file of the scene where readers find it, all of it in the page cache of its own disk; and the mount."""
    note(f"{scene.title}: making {scene.samples * scene.sample_nbytes / 2**20:,.0f} MiB")
    buffer_data.make(folder / "data.h5", scene.samples, scene.shape, **scene.options)
    machine.fill_cache(folder)
    if not scene.slowed:
        yield folder / "data.h5", None
        return
    with slowfs.mounted(folder) as mount:
        yield mount.path / "data.h5", mount


def run(scene: Scene, peer: str, fraction: float, folder: Path, path: Path, mount: Any, rounds: int) -> Record:
    """The record of one reader, from its own process."""
    memory = int(fraction * scene.samples * scene.sample_nbytes)
    storage = mount and {"latency": mount.latency, "bandwidth": mount.bandwidth, "iops": mount.iops}
    job = {
        "peer": peer, "folder": str(folder), "path": str(path), "mount": mount and str(mount.path),
        "samples": scene.samples, "batch": scene.batch, "memory": memory, "rounds": rounds, "storage": storage,
        "settings": scene.settings, "part": scene.part, "search": scene.search, "shape": scene.shape,
        "ranks": scene.ranks, "bounded": "bound" in scene.options,
    }  # fmt: skip
    record = {"scene": scene.name, "title": scene.title, "peer": peer, "fraction": fraction, "memory": memory,
              "samples": scene.samples, "batch": scene.batch, "storage": storage}  # fmt: skip
    try:
        return finished(record | joined(launched(job)))
    except subprocess.TimeoutExpired:
        return record | {"failed": f"no end in {LIMIT} s"}
    except RuntimeError as error:
        return record | {"failed": str(error)}


def launched(job: Record) -> list[Record]:
    """What each rank of a reader found, from its own process. RuntimeError with the last words of one that failed."""
    command, ranks = [sys.executable, "-m", "bench.buffer_part", json.dumps(job)], job["ranks"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = []
    for rank in range(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank, "GLOO_SOCKET_IFNAME": "lo", **shared} if ranks > 1 else {}
        env = os.environ | {name: str(value) for name, value in own.items()}
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True))
    try:
        said = [process.communicate(timeout=LIMIT) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(running, said, strict=True):
        if process.returncode:
            raise RuntimeError((errors.strip().splitlines() or [f"status {process.returncode}"])[-1][:300])
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


def joined(found: list[Record]) -> Record:
    """What the ranks did together: their samples, in the time of the slowest; what the mount counted is of all."""
    rounds = [
        each[0] | {"samples": sum(one["samples"] for one in each), "seconds": max(one["seconds"] for one in each)}
        for each in zip(*(one["rounds"] for one in found), strict=True)
    ]
    return found[0] | {"rounds": rounds, "peak_rss": sum(one["peak_rss"] for one in found)}


def finished(record: Record) -> Record:
    """With the medians of its rounds: samples a second, and the seconds that an epoch takes."""
    rates = [one["samples"] / one["seconds"] for one in record["rounds"]]
    rate = statistics.median(rates)
    record |= {"samples_per_second": rates, "median": rate, "epoch_seconds": record["samples"] / rate}
    if "planned_seconds" in record["rounds"][0]:
        whole = [one["planned_seconds"] * record["samples"] / one["samples"] for one in record["rounds"]]
        record["planned_seconds"] = statistics.median(whole)
    if record["storage"] and "mount_requests" in record["rounds"][0]:
        costs = Storage(**record["storage"])
        share = [one["samples"] / record["samples"] for one in record["rounds"]]
        for name in ("requests", "bytes"):
            whole = [one[f"mount_{name}"] / part for one, part in zip(record["rounds"], share, strict=True)]
            record[f"epoch_{name}"] = statistics.median(whole)
        record["modelled_seconds"] = costs.seconds(record["epoch_requests"], record["epoch_bytes"])
    return record


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


Left = list[tuple[float, str]]  # memory and reader


def run_scene(scene: Scene, left: Left, folder: Path | None, rounds: int, facts: Record) -> Iterator[Record]:
    """Makes the data, lets each reader run, deletes the data."""
    if scene.slowed and (reason := slowfs.lacking()):
        note(f"{scene.title}: skipped: {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as name:
        facts = facts | {"machine": machine.facts(Path(name)), "versions": machine.versions()}
        with stored(scene, Path(name)) as (path, mount):
            for fraction, peer in left:
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
    facts: Record = {"quick": asked.quick}
    shown, chosen = [], []
    for scene in (scenes(asked.quick)[name] for name in asked.scenes):
        wanted = [(fraction, peer) for fraction in scene.fractions
                  for peer in (*scene.peers_at(fraction), *ASKED_FOR) if peer in asked.peers]  # fmt: skip
        there = [records.found(out, scene=scene.name, peer=peer, fraction=fraction, quick=asked.quick)
                 for fraction, peer in wanted]  # fmt: skip
        shown += [one for one in there if one]
        chosen.append((scene, [one for one, known in zip(wanted, there, strict=True) if not known]))
    if any(scene.slowed and left for scene, left in chosen):
        facts["calibration"] = calibrated()
    for scene, left in chosen:
        for record in run_scene(scene, left, asked.folder, asked.rounds, facts) if left else ():
            shown.append(record)
            records.append(out, record)
    print(buffer_report.markdown(shown))


if __name__ == "__main__":
    main()
