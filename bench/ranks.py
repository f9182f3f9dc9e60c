"""Several ranks: what is read, what travels, what is waited for and what memory it takes, on one machine.

    python -m bench.ranks [--scenes NAME ...] [--samples 8192] [--compute 0.002] [--record]

64 KB samples on a mount that answers as a disk-based parallel file system (bench/slowfs); 64 a step and rank; memory
for a quarter of them on all nodes together. Steps of all ranks end together, as those of training do. Nodes are made
up: ranks that a launcher calls local to different ones. `link` has them in two network namespaces with a link of
1 Gbit/s between them (root). JSON lines and a table; --record adds the lines to bench/results/ranks.jsonl.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import machine, parts, records, slowfs, tables
from bench.scene import NBYTES, SHAPE, make
from bench.scene import Scene as Data

HOSTS = records.ROOT / "tests" / "hosts"
EPOCHS, BATCH, FRACTION = 5, 64, 0.25
LIMIT = 600  # seconds
NAP = 50e-6  # seconds between looks whether all ranks are done with a step


class Scene(NamedTuple):
    ranks: int
    nodes: int
    by: str  # "mpi", "torch" or "" for one process
    link: str = ""  # the rate of the link between nodes, in namespaces
    exchange: str = "auto"


SCENES = {
    "alone": Scene(1, 1, ""),
    "node of 2": Scene(2, 1, "mpi"),
    "node of 4": Scene(4, 1, "mpi"),
    "2 nodes, read": Scene(2, 2, "mpi", exchange="read"),
    "2 nodes, MPI": Scene(2, 2, "mpi"),
    "2 nodes, gloo": Scene(2, 2, "torch"),
    "2 x 2, MPI": Scene(4, 2, "mpi"),
    "link, MPI": Scene(2, 2, "mpi", "1gbit"),
    "link, gloo": Scene(2, 2, "torch", "1gbit"),
}


# --- one rank ----


def part(job: dict[str, Any]) -> dict[str, Any]:
    """Iterates a loader as training does, in step with the others."""
    import torch

    from solar import DataLoader, H5Dataset, PlanSampler
    from solar.io.channels import detect
    from solar.values import Storage

    torch.set_num_threads(1)
    if job["by"] == "mpi":
        from mpi4py import MPI

        world = MPI.COMM_WORLD.Dup()

        def together() -> None:
            request = world.Ibarrier()
            while not request.Test():
                time.sleep(NAP)
    else:
        if job["by"] == "torch":
            torch.distributed.init_process_group("gloo")

        def together() -> None:
            if job["by"] == "torch":
                torch.distributed.barrier()

    rank = detect()
    dataset = H5Dataset(job["path"], "x")
    before = pss()
    loader: Any = DataLoader(
        dataset, job["batch"], sampler=PlanSampler(dataset, rank.ranks, rank.rank), buffer=job["buffer"],
        epochs=job["epochs"], storage=Storage(**job["storage"]), exchange=job["exchange"],
    )  # fmt: skip
    epochs, last, before_travel = [], loader.stats(), 0.0
    for epoch in range(job["epochs"]):
        loader.set_epoch(epoch)
        together()
        begin = time.perf_counter()
        for _ in loader:
            time.sleep(job["compute"])
            together()
        seconds, now = time.perf_counter() - begin, loader.stats()
        waits = {cause: now["wait_seconds"][cause] - last["wait_seconds"][cause] for cause in now["wait_seconds"]}
        counted = {name: now[name] - last[name] for name in ("samples", "requests", "bytes", "exchanged_bytes")}
        travelled = loader._buffered.running.counts().get("travel_wait_ns", 0) / 1e9
        epochs.append({"seconds": seconds, "waits": waits | {"travel": travelled - before_travel}, **counted})
        last, before_travel = now, travelled
    buffered = loader._buffered
    found = {"rank": rank.rank, "epochs": epochs, "pss_grown": pss() - before, "planned": list(buffered.planned)}
    found["counts"] = buffered.running.counts()
    together()
    loader.close()
    if job["by"] == "torch":
        torch.distributed.destroy_process_group()
    elif job["by"] == "mpi":
        MPI.Finalize()
    return found


def pss() -> int:
    """This process's memory, of which what is shared counts for each by its part."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


# --- all of them ----


def launched(scene: Scene, job: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank found."""
    command = parts.command("bench.ranks", job)
    quiet: dict[str, Any] = {"OMP_NUM_THREADS": 1}
    each = [quiet | one for one in parts.torch_ranks(scene.ranks)] if scene.by == "torch" else [quiet]
    hosts = [f"h{node + 1}" for node in range(scene.nodes)]
    if scene.by == "torch" and scene.nodes > 1:
        each = [one | {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1} for one in each]
    if scene.by == "torch" and scene.link:  # each on its host, which hands a text to a shell there, as ssh does
        there = [sys.executable, str(HOSTS / "on_host.py")]
        texts = []
        for host, one in zip(hosts, each, strict=True):
            known = {**one, "MASTER_ADDR": hosts[0]}
            del known["GLOO_SOCKET_IFNAME"]
            text = shlex.join(["env", *(f"{name}={value}" for name, value in known.items()), *command])
            texts.append(shlex.join([*there, host, text]))
        ended = "for one in $(jobs -p); do wait $one || exit 1; done"
        command, each = ["bash", "-c", " & ".join([*texts, ended])], [quiet]
    if scene.by == "mpi":
        command, extra = by_mpi(scene, hosts, command)
        each = [quiet | extra]
    if scene.link:
        command = [sys.executable, str(HOSTS / "hosts.py"), "--rate", scene.link, "--", *command]
    found, decoder = [], json.JSONDecoder()
    for text in parts.said(command, LIMIT, each):
        at = text.find("{")
        while at >= 0:  # a launcher may put two ranks' lines into one
            one, end = decoder.raw_decode(text, at)
            found.append(one)
            at = text.find("{", end)
    if not found:
        raise RuntimeError("no rank said anything")
    return found


def by_mpi(scene: Scene, hosts: list[str], program: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The command that starts the ranks, and what it needs to know."""
    command, known = [str(Path(sys.executable).with_name("mpiexec"))], dict[str, Any]()
    if scene.link:
        known = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
        command += ["-launcher", "ssh", "-launcher-exec", str(HOSTS / "on_host.py"), "-hosts", ",".join(hosts)]
    elif scene.nodes > 1:
        per_node = scene.ranks // scene.nodes
        command += ["-launcher", "fork", "-hosts", ",".join(f"{host}:{per_node}" for host in hosts)]
    return [*command, "-n", str(scene.ranks), *program], known


def summed(scene: Scene, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the epochs after the first: medians of the seconds, and the part of them that the slowest rank waited."""
    later = range(1, EPOCHS)
    seconds = [max(one["epochs"][epoch]["seconds"] for one in found) for epoch in later]

    def most(cause: str) -> float:
        waited = [max(one["epochs"][epoch]["waits"][cause] for one in found) for epoch in later]
        return statistics.median(map(lambda w, s: w / s, waited, seconds))

    def epoch_sum(name: str) -> float:
        return statistics.median(sum(one["epochs"][epoch][name] for one in found) for epoch in later)

    return {
        "seconds": seconds,
        "median": statistics.median(seconds),
        "storage": most("storage"),
        "exchange": most("exchange"),
        "travel": most("travel"),
        "samples": epoch_sum("samples"),
        "bytes": epoch_sum("bytes"),
        "requests": epoch_sum("requests"),
        "exchanged_bytes": epoch_sum("exchanged_bytes"),
        "reads": sum(one["counts"]["reads"] for one in found),
        "memory": sum(one["pss_grown"] for one in found),
    }


def main() -> None:
    parser = records.arguments("bench.ranks", __doc__, "ranks", scenes=SCENES)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--compute", type=float, default=0.002, help="seconds of each step")
    asked = parser.parse_args()
    if reason := slowfs.lacking():
        sys.exit(f"skipped: {reason}")
    samples, shown = asked.samples // (2 if asked.quick else 1), []
    with tempfile.TemporaryDirectory(prefix="solar-bench-", dir=asked.folder) as name:
        make(Data("ranks", "", samples, SHAPE, "f4", numbered=True), Path(name))
        machine.fill_cache(Path(name))
        facts = machine.described(Path(name))
        with slowfs.mounted(name) as mount:
            for title in asked.scenes or SCENES:
                scene = SCENES[title]
                job = {
                    "batch": BATCH, "epochs": EPOCHS, "by": scene.by, "storage": mount.costs, "compute": asked.compute,
                    "buffer": int(FRACTION * samples * NBYTES / scene.nodes), "exchange": scene.exchange,
                }  # fmt: skip
                record = {"bench": "ranks", "scene": title, **scene._asdict(), "job": job, "load": os.getloadavg()[0]}
                try:
                    record |= summed(scene, launched(scene, job | {"path": str(mount.path / "data.h5")}))
                except RuntimeError as error:
                    record["failed"] = str(error)
                parts.note(tables.line(f"{title:16}", record, lambda one: f"{one['median']:.2f} s an epoch"))
                records.append(asked.out, record | facts)
                shown.append(record)
    print(tables.ranks(shown))


if __name__ == "__main__":
    main()
