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

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import machine, parts, records, slowfs, tables
from bench.buffer_scenes import PEERS, Scene, scenes
from bench.scene import make
from bench.slowfs import calibrate
from solar.values import Storage

ASKED_FOR = ("course",)  # what runs only if it is named
LIMIT = 1800  # seconds for a reader
Record = dict[str, Any]


@contextlib.contextmanager
def stored(scene: Scene, folder: Path) -> Iterator[tuple[Path, slowfs.Slowed | None]]:
    """The file of the scene where readers find it, all of it in the page cache of its own disk; and the mount."""
    parts.note(f"{scene.title}: making {scene.samples * scene.sample_nbytes / 2**20:,.0f} MiB")
    make(scene.data, folder)
    machine.fill_cache(folder)
    if not scene.slowed:
        yield folder / "data.h5", None
        return
    with slowfs.mounted(folder) as mount:
        yield mount.path / "data.h5", mount


def run(scene: Scene, peer: str, fraction: float, folder: Path, path: Path, mount: Any, rounds: int) -> Record:
    """The record of one reader, from its own process, or those of its ranks."""
    memory = int(fraction * scene.samples * scene.sample_nbytes)
    storage = mount and mount.costs
    job = {
        "peer": peer, "folder": str(folder), "path": str(path), "mount": mount and str(mount.path),
        "samples": scene.samples, "batch": scene.batch, "memory": memory, "rounds": rounds, "storage": storage,
        "settings": scene.settings, "part": scene.part, "search": scene.search, "shape": scene.shape,
        "ranks": scene.ranks, "bounded": "plugin" in scene.data.filters,
    }  # fmt: skip
    record = {"scene": scene.name, "title": scene.title, "peer": peer, "fraction": fraction, "memory": memory,
              "samples": scene.samples, "batch": scene.batch, "storage": storage}  # fmt: skip
    try:
        found = parts.measured(LIMIT, "bench.buffer_part", job, parts.torch_ranks(scene.ranks))
        return finished(record | joined(found))
    except RuntimeError as error:
        return record | {"failed": str(error)}


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


Left = list[tuple[float, str]]  # memory and reader


def run_scene(scene: Scene, left: Left, folder: Path | None, rounds: int, facts: Record) -> Iterator[Record]:
    """Makes the data, lets each reader run, deletes the data."""
    if scene.slowed and (reason := slowfs.lacking()):
        parts.note(f"{scene.title}: skipped: {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as name:
        facts = facts | machine.described(Path(name))
        with stored(scene, Path(name)) as (path, mount):
            for fraction, peer in left:
                load = os.getloadavg()[0]
                record = run(scene, peer, fraction, Path(name), path, mount, rounds)
                parts.note(f"    {line(record)}")
                yield {"bench": "buffer", **record, "load_before": load, **facts}


def calibrated() -> list[Record]:
    """What plain reads of the slowed mount give, printed; nothing where it cannot be mounted."""
    if slowfs.lacking():
        return []
    found = []
    with calibrate.folder() as source, slowfs.mounted(source) as mount:
        for one in calibrate.measure(mount):
            parts.note(f"    {calibrate.line(one)}")
            found.append(one)
    return found


def line(record: Record) -> str:
    """One record for people."""
    head = f"{record['title']:38} f={record['fraction']:<5} {record['peer']:7}"
    words = {"planned_seconds": "planned", "modelled_seconds": "modelled for what the mount counted"}

    def said(one: Record) -> str:
        beside = "".join(f" ({one[name]:,.2f} {word})" for name, word in words.items() if name in one)
        memory = f"{tables.mebibytes(one['peak_rss'])} MiB, {tables.setting(one, ' ')}"
        return f"{one['median']:10,.1f} samples/s, {one['epoch_seconds']:8,.2f} s an epoch{beside}, {memory}"

    return tables.line(head, record, said)


def main() -> None:
    peers = PEERS + ASKED_FOR
    parser = records.arguments("bench.buffer", __doc__, "buffer", scenes=scenes(False), peers=peers)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    out = asked.out
    facts: Record = {"quick": asked.quick}
    shown, chosen = [], []
    for scene in (scenes(asked.quick)[name] for name in asked.scenes or scenes(False)):
        wanted = [(fraction, peer) for fraction in scene.fractions
                  for peer in (*scene.peers_at(fraction), *ASKED_FOR) if peer in (asked.peers or PEERS)]  # fmt: skip
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
    print(tables.buffered(shown))


if __name__ == "__main__":
    main()
