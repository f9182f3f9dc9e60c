"""How many emulated accelerators one node feeds, by DLIO, the program of MLPerf Storage. Not a result of MLPerf.

    python -m bench.accelerators [--scenes unet3d cosmoflow] [--peers dlio torch solar] [--quick] [--record]

Each accelerator is a rank of DLIO that sleeps for its computing, and a file is a sample, as there. So many ranks are
fed as compute for 90 % of the time (unet3d) or 70 % (cosmoflow), by DLIO's own count: the mean of all epochs, each
without its first step. All ranks and their readers are in one control group, whose memory, page cache included, is a
fifth of the data or less; what a rank holds before its first file is opened is not counted. Each run finds nothing in
the page cache. Sizes and seconds are those of DLIO's workloads unet3d_h100 and cosmoflow_a100, scaled: samples are
smaller and accelerators slower, so that two processors and one disk feed more than none.

The data are made by DLIO, in build/accelerators or --folder, once. Beside it stands the rate of plain reads: of whole
files, by four threads, in such a group.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import dlio, groups, machine, parts, records, tables

PEERS = {"dlio": "DLIO's own reader", "torch": "PyTorch + h5py", "solar": "solar's plug-in"}
RANKS = (2, 3, 4, 6, 8, 12)  # and 1, where 2 are not fed
MEMORY, EPOCHS, LIMIT = 400 << 20, 2, 100  # bytes of the group; epochs of a run; seconds for one
NO_MEMORY = "a rank was ended, as the group had no memory left"
AHEAD = 2  # batches of each rank, as DLIO has it by itself
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
PROGRAM = dlio.PROGRAM.replace(
    "benchmark.run()",
    "from pathlib import Path; from bench import groups\n"
    "groups.enter(Path(sys.argv[2]), int(sys.argv[3]))\n"
    "benchmark.run()",
)  # when all is imported
Record = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """A workload of DLIO, scaled."""

    files: int  # each a sample
    nbytes: int  # of a sample there
    batch: int
    compute: float  # seconds for a batch there
    needed: float  # part of the time that an accelerator is to compute
    smaller: int  # by which samples, and with them the seconds, are divided
    slower: int  # by which accelerators are slower

    @property
    def sample(self) -> int:
        return self.nbytes // self.smaller

    @property
    def seconds(self) -> float:
        """Of computing for a batch here."""
        return self.compute / self.smaller * self.slower

    @property
    def demand(self) -> float:
        """Bytes a second of one accelerator."""
        return self.batch * self.sample / self.seconds


LOADS = {  # as many files as divide by all numbers of ranks, which DLIO 2.0.0 needs
    "unet3d": Load(1008, 146_600_628, 7, 0.323, 0.9, 64, 16),
    "cosmoflow": Load(768, 2_828_486, 1, 0.00551, 0.7, 1, 4),
}
SETTINGS: dict[str, list[Record]] = {  # processes that read for each rank; with 0 the rank does, in the least memory
    "dlio": [{"read_threads": threads} for threads in (4, 2, 1, 0)],
    "torch": [{"read_threads": threads} for threads in (2, 1, 0)],
    "solar": [{"read_threads": 1}],
}
CLASSES = {"torch": "bench.dlio_plain.PlainLoader", "solar": "solar.integrations.dlio.SolarDataLoader"}


def workload(load: Load, data: Path, output: Path, peer: str, setting: Record, generate: bool = False) -> Record:
    """What DLIO is to do."""
    plugin = {"data_loader_classname": CLASSES[peer], "data_loader_sampler": "index"} if peer in CLASSES else {}
    asked = dlio.workload(data, output, generate, {"batch_size": load.batch, "prefetch_size": AHEAD} | plugin | setting)
    asked["dataset"] |= {"num_files_train": load.files, "num_samples_per_file": 1, "record_length": load.sample}
    asked["dataset"]["generation_buffer_size"] = load.sample  # else 2 GiB of numbers are drawn for each file
    asked["train"] |= {"epochs": EPOCHS, "computation_time": load.seconds}
    return asked


def made(name: str, load: Load, folder: Path) -> Path:
    """The folder of the data, which DLIO writes where there are none yet."""
    folder = folder.resolve()  # DLIO runs in it
    data = folder / f"{name}-{load.files}-{load.sample}"
    if not data.exists():
        unfinished = data.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        asked = workload(load, unfinished, folder / "output", "dlio", {}, generate=True)
        parts.said([sys.executable, "-P", "-c", dlio.PROGRAM, json.dumps(asked)], 600, [environment()], folder)
        unfinished.rename(data)
    return data


def environment() -> Record:
    return {"OMP_NUM_THREADS": 1, "PYTHONPATH": records.ROOT}


def utilisation(load: Load, data: Path, peer: str, setting: Record, ranks: int, group: Path, memory: int) -> float:
    """The part of the time that so many accelerators compute. RuntimeError: the last words of a run that failed."""
    machine.drop_cache(data)
    with tempfile.TemporaryDirectory(prefix="solar-bench-") as output:
        asked = workload(load, data, Path(output), peer, setting)
        command = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-P", "-c", PROGRAM, json.dumps(asked)]
        parts.said([*command, str(group), str(memory)], LIMIT, [environment()], Path(output))
        found = json.loads(Path(output, "summary.json").read_text())["metric"]["train_au_percentage"]
    return statistics.fmean(found) / 100


def fed(load: Load, data: Path, peer: str, memory: int, ranks: Iterable[int]) -> Record:
    """How many accelerators are fed; of each number the best setting's utilisation. Ends with the first not fed.

    Where that is the first of all, one is tried.
    """
    most, tried, last, left = 0, list[Record](), SETTINGS[peer][0], [*ranks]
    while left:
        count = left.pop(0)
        best: Record = {"accelerators": count, "utilisation": 0.0, "setting": last}
        for setting in [last, *(one for one in SETTINGS[peer] if one != last)]:
            with groups.made() as group:
                if group is None:
                    raise SystemExit("no control group that limits memory can be made here")
                try:
                    reached = utilisation(load, data, peer, setting, count, group, memory)
                except RuntimeError as error:
                    why = NO_MEMORY if groups.killed(group) else str(error).partition(" [/")[0]  # but where it lies
                    best.setdefault("failed", []).append(f"{setting}: {why}")
                    continue
            if reached > best["utilisation"]:
                best |= {"utilisation": reached, "setting": setting}
            if reached >= load.needed:
                break
        tried.append(best)
        parts.note(f"  {peer}, {count}: {best['utilisation']:.1%} {best['setting']} {best.get('failed', '')}")
        if best["utilisation"] < load.needed:
            left = [1] if most == 0 and count > 1 else []
            continue
        most, last = count, best["setting"]
        left = left if count > 1 else []
    return {"fed": most, "tried": tried}


def disk_rate(data: Path, memory: int) -> float:
    """Bytes a second of whole files read by four threads, by a process in such a group."""
    with groups.made() as group:
        job = {"data": str(data), "group": str(group), "memory": memory}
        return float(parts.measured(LIMIT, "bench.accelerators", job)[0]["rate"])


def part(job: Record) -> Record:
    files = [path for path in Path(job["data"]).rglob("*.hdf5")]
    machine.drop_cache(Path(job["data"]))
    groups.enter(Path(job["group"]), job["memory"])
    begin = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        nbytes = sum(pool.map(read, files))
    return {"rate": nbytes / (time.perf_counter() - begin)}


def read(path: Path) -> int:
    buffer, total = bytearray(2**22), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def run_scene(name: str, peers: Iterable[str], quick: bool, folder: Path, before: float) -> Iterator[Record]:
    load = LOADS[name]
    data = made(name, load, folder)
    disk = disk_rate(data, MEMORY)
    parts.note(f"{name}: {load.demand / 1e6:.0f} MB/s each; plain reads get {disk / 1e6:,.0f} MB/s")
    for peer in peers:
        found = fed(load, data, peer, MEMORY, RANKS[:1] if quick else RANKS)
        record = {
            "bench": "accelerators", "scene": name, "peer": peer, "quick": quick, "memory": MEMORY, "epochs": EPOCHS,
            "data_nbytes": load.files * load.sample, "sample_nbytes": load.sample, "batch": load.batch,
            "compute_seconds": load.seconds, "smaller": load.smaller, "slower": load.slower, "needed": load.needed,
            "demand": load.demand, "disk": disk, "load_before": before,
        }  # fmt: skip
        yield record | found | machine.described(folder)


def failing(tried: Record) -> str:
    whys = tried.get("failed", [""])
    return "no memory" if all(NO_MEMORY in why for why in whys) else "failed"


def accelerators(found: Iterable[Record], wanted: Iterable[tuple[str, str]] = ()) -> str:
    """A row for each reader of each workload; `wanted`: those that must have one."""
    rows, about, there = [], [], tables.newest(found, "scene", "peer")
    for one in there:
        shares = [
            (of["accelerators"], f"{of['utilisation']:.0%}" if of["utilisation"] else failing(of))
            for of in one["tried"]
        ]
        reached = "; ".join(f"{count}: {share}" for count, share in shares)
        best = [of["setting"]["read_threads"] for of in one["tried"]]
        rows.append((one["scene"], PEERS[one["peer"]], one["fed"], reached, ", ".join(map(str, best))))
        said = (
            f"*{one['scene']}*: {one['data_nbytes'] / 1e9:.1f} GB of samples of {one['sample_nbytes'] / 1e6:.1f} MB, "
            f"{one['batch']} a step of {one['compute_seconds'] * 1e3:.1f} ms: {one['demand'] / 1e6:,.0f} MB/s for each "
            f"accelerator. Plain reads get {one['disk'] / 1e6:,.0f} MB/s."
        )
        about += [] if said in about else [said]
    ran = {(one["scene"], one["peer"]) for one in there}
    rows += [(scene, PEERS[peer], "", "not recorded", "") for scene, peer in wanted if (scene, peer) not in ran]
    head = "workload|reader|fed:|part of the time computing, by accelerators|readers of each"
    return tables.parted(*about, tables.table(head, rows))


def main() -> None:
    asked = records.arguments("bench.accelerators", __doc__, "accelerators", scenes=LOADS, peers=PEERS).parse_args()
    before, shown = records.load(asked.load_before), []
    if reason := dlio.lacking() or ("" if MPIEXEC else "there is no mpiexec"):
        print(f"skipped: {reason}")
        return
    for name in asked.scenes or LOADS:
        there = {
            peer: records.found(asked.out, scene=name, peer=peer, quick=asked.quick) for peer in asked.peers or PEERS
        }
        shown += [one for one in there.values() if one]
        left = [peer for peer, one in there.items() if not one]
        folder = asked.folder or records.ROOT / "build" / "accelerators"
        for record in run_scene(name, left, asked.quick, folder, before) if left else ():
            records.append(asked.out, record)
            shown.append(record)
    print(accelerators(shown))


if __name__ == "__main__":
    main()
