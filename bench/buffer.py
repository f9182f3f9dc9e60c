"""An exact shuffle from little memory: solar beside all who know a trick of it, on slowed storages and compressed.

    python -m bench.buffer [--quick] [--scenes NAME ...] [--peers NAME ...] [--folder DIR] [--record]

slowed...        on a mount that answers as a disk-based parallel file system (bench/slowfs: 1 ms, 1 GB/s, 500 requests
                 a second, 4 MiB a request at most): memory for all, 1/2, 1/4 and 1/10 of the data; chunks, our codec,
                 counts that are packed in the buffer
disks_..., flash_..., nvme_...    three storages and three sizes of samples, memory for a quarter
auto_gzip, chunk16_gzip           compressed chunks of many samples on the local disk, in the page cache

Who reads is said in bench/buffer_part.py; all have the same memory. Each runs in its own process. Figures are of whole
runs, from the first import to the last batch. Of readers whose epochs are alike and take minutes, a part is timed,
without their start. --record adds the lines to bench/results/buffer.jsonl;
given again within an hour, it goes on where it was ended.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import buffer_tables, groups, machine, parts, records, slowfs, tables
from bench.buffer_scenes import PEERS, RPC, STORAGES, Scene, scenes
from bench.scene import make
from bench.slowfs import calibrate

LIMIT = 300  # seconds for a reader
TRYING = 12.0  # seconds for the trials of PyTorch's settings
Record = dict[str, Any]
Left = list[tuple[float, str]]  # memory and reader


@contextlib.contextmanager
def stored(scene: Scene, folder: Path, cached: bool = False) -> Iterator[tuple[Path, slowfs.Slowed | None]]:
    """The file of the scene where readers find it, and the mount."""
    if not scene.storage:
        yield folder / "data.h5", None
        return
    latency, bandwidth, iops = STORAGES[scene.storage]
    costs = {"latency": latency, "bandwidth": bandwidth, "iops": iops}
    with slowfs.mounted(folder, **costs, rpc=RPC, cached=cached) as mount:
        yield mount.path / "data.h5", mount


def run(scene: Scene, peer: str, fraction: float, folder: Path) -> Record:
    """The record of one reader, from its own process, or those of its ranks."""
    memory = int(fraction * scene.samples * scene.sample_nbytes)
    record = {"scene": scene.name, "title": scene.title, "peer": peer, "fraction": fraction, "memory": memory,
              "samples": scene.samples, "sample_nbytes": scene.sample_nbytes, "batch": scene.batch,
              "epochs": scene.epochs}  # fmt: skip
    cached = peer == "page_cache"
    with groups.made() if cached else contextlib.nullcontext() as group, stored(scene, folder, cached) as (path, mount):
        if cached and (not group or not mount):
            return record | {"skipped": "no control group can be made here" if mount else "its data are not slowed"}
        storage = mount and mount.costs | {"rpc": mount.rpc}
        job = record | {
            "folder": str(folder), "path": str(path), "mount": mount and str(mount.path), "storage": storage,
            "workers": scene.workers, "part": scene.part, "search": scene.search, "shape": scene.shape,
            "ranks": scene.ranks, "weighted": scene.weighted, "bounded": "plugin" in scene.data.filters,
            "trying": TRYING, "group": group and str(group),
        }  # fmt: skip
        try:
            found = parts.measured(LIMIT, "bench.buffer_part", job, parts.torch_ranks(scene.ranks))
        except RuntimeError as error:
            return record | {"failed": str(error)}
    return finished(record | {"storage": storage} | joined(found))


def joined(found: list[Record]) -> Record:
    """What the ranks did together: their samples, in the time of the slowest; what the mount counted is of all."""
    ends = [max(each) for each in zip(*(one["ends"] for one in found), strict=True)]
    each = [sum(some) for some in zip(*(one["each"] for one in found), strict=True)]
    together = {"first": max(one["first"] for one in found), "peak_rss": sum(one["peak_rss"] for one in found)}
    return found[0] | {"ends": ends, "each": each} | together


def finished(one: Record) -> Record:
    """With its rates: of the whole run, and of the epochs after the first. Of a part there is only the latter."""
    ends, came = one["ends"], sum(one["each"])
    steady = [each / (b - a) for (a, b), each in zip(itertools.pairwise(ends), one["each"][1:], strict=True)]
    one["steady"] = statistics.median(steady)
    one["median"] = one["steady"] if one.get("partly") else came / ends[-1]
    if counts := one["mount_counts"][-1]:
        scans = [
            count["bytes"] / each / one["sample_nbytes"]
            for count, each in zip(one["mount_counts"], one["each"], strict=True)
        ]
        one |= {"scans": scans, "requests_a_sample": counts["requests"] / one["each"][-1]}
    return one


def run_scene(scene: Scene, left: Left, folder: Path | None, facts: Record) -> Iterator[Record]:
    """Makes the data, lets each reader run, deletes the data."""
    if scene.storage and (reason := slowfs.lacking()):
        parts.note(f"{scene.title}: skipped: {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=folder) as name:
        home = Path(name)
        parts.note(f"{scene.title}: making {scene.samples * scene.sample_nbytes / 2**20:,.0f} MiB")
        make(scene.data, home)
        machine.fill_cache(home)
        facts = facts | machine.described(home)
        for fraction, peer in left:
            record = run(scene, peer, fraction, home)
            parts.note(f"    {line(record)}")
            yield {"bench": "buffer", **record, **facts}


def calibrated(storage: str) -> list[Record]:
    """What plain reads of a slowed mount give: what no reader can pass."""
    latency, bandwidth, iops = STORAGES[storage]
    costs = {"latency": latency, "bandwidth": bandwidth, "iops": iops}
    with calibrate.folder() as source, slowfs.mounted(source, **costs, rpc=RPC) as mount:
        found = [one | {"storage": storage} for one in calibrate.measure(mount, 1.0)]
    for one in found:
        parts.note(f"    {storage}: {calibrate.line(one)}")
    return found


def line(record: Record) -> str:
    """One record for people."""

    def said(one: Record) -> str:
        scans = f", scans {' '.join(f'{each:.2f}' for each in one['scans'])}" if "scans" in one else ""
        return (
            f"{one['median']:10,.1f} samples/s, steady {one['steady']:,.1f}, first batch {one['first']:.1f} s{scans}, "
            f"{tables.mebibytes(one['peak_rss'])} MiB, {tables.setting(one, ' ')}"
        )

    return tables.line(f"{record['title']:38} f={record['fraction']:<5} {record['peer']:11}", record, said)


def main() -> None:
    parser = records.arguments("bench.buffer", __doc__, "buffer", scenes=scenes(False), peers=PEERS)
    parser.add_argument("--epochs", type=int, help="of whole runs, so that one on a slowed mount takes half a minute")
    asked = parser.parse_args()
    facts: Record = {"quick": asked.quick, "load_before": records.load(asked.load_before)}
    shown, chosen = list[Record](), []
    for scene in (scenes(asked.quick)[name] for name in asked.scenes or scenes(False)):
        scene = replace(scene, epochs=asked.epochs or scene.epochs)
        wanted = [(fraction, peer) for fraction in scene.fractions
                  for peer in scene.peers_at(fraction) if peer in (asked.peers or PEERS)]  # fmt: skip
        there = [records.found(asked.out, scene=scene.name, peer=peer, fraction=fraction, quick=asked.quick)
                 for fraction, peer in wanted]  # fmt: skip
        shown += [one for one in there if one]
        chosen.append((scene, [one for one, known in zip(wanted, there, strict=True) if not known]))
    storages = {scene.storage for scene, left in chosen if scene.storage and left}
    calibration = {} if slowfs.lacking() else {storage: calibrated(storage) for storage in sorted(storages)}
    for scene, left in chosen:
        more = {"calibration": calibration[scene.storage]} if scene.storage in calibration else {}
        for record in run_scene(scene, left, asked.folder, facts | more) if left else ():
            shown.append(record)
            records.append(asked.out, record)
    print(buffer_tables.buffered(shown))


if __name__ == "__main__":
    main()
