"""Several ranks: what is read, what travels, what is waited for and what memory it takes, on one machine.

    python -m bench.ranks [--scenes NAME ...] [--samples 8192] [--compute 0.002] [--record]

64 KB samples on a mount that answers as a disk-based parallel file system (bench/slowfs); 64 a step and rank; memory
for a quarter of them on all nodes together. Steps of all ranks end together, as those of training do. Nodes are made
up: ranks that a launcher calls local to different ones. `link` has them in two network namespaces with a link of
1 Gbit/s between them (root). JSON lines and a table; --record adds the lines to bench/results/ranks.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench import buffer_data, machine, slowfs

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "bench" / "results" / "ranks.jsonl"
HOSTS = ROOT / "tests" / "hosts"
EPOCHS, BATCH, FRACTION = 5, 64, 0.25
LIMIT = 600  # seconds


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


def launched(scene: Scene, job: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank found."""
    program = [sys.executable, "-m", "bench.ranks_part", json.dumps(job)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if scene.by == "":
        return lines(subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT))
    hosts = [f"h{node + 1}" for node in range(scene.nodes)]
    if scene.by == "mpi":
        command = [str(Path(sys.executable).with_name("mpiexec"))]
        if scene.link:
            env |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
            command += ["-launcher", "ssh", "-launcher-exec", str(HOSTS / "on_host.py"), "-hosts", ",".join(hosts)]
        elif scene.nodes > 1:
            per_node = scene.ranks // scene.nodes
            command += ["-launcher", "fork", "-hosts", ",".join(f"{host}:{per_node}" for host in hosts)]
        command += ["-n", str(scene.ranks), *program]
        if scene.link:
            command = [sys.executable, str(HOSTS / "hosts.py"), "--rate", scene.link, "--", *command]
        return lines(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": scene.ranks, "MASTER_ADDR": "h1" if scene.link else "127.0.0.1", "MASTER_PORT": port}
    shared |= {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1} | ({} if scene.link else {"GLOO_SOCKET_IFNAME": "lo"})
    each = [
        ["env", *(f"{k}={v}" for k, v in (shared | {"RANK": rank}).items()), *program] for rank in range(scene.ranks)
    ]
    texts = [" ".join(map(quoted, one)) for one in each]
    if scene.link:  # which hands a text to a shell there, as ssh does
        there = f"{quoted(sys.executable)} {quoted(str(HOSTS / 'on_host.py'))}"
        texts = [f"{there} {host} {quoted(text)}" for host, text in zip(hosts, texts, strict=True)]
    script = " & ".join(texts) + " & wait"
    command = ["bash", "-c", script]
    if scene.link:
        command = [sys.executable, str(HOSTS / "hosts.py"), "--rate", scene.link, "--", *command]
    return lines(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT))


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found, decoder = [], json.JSONDecoder()
    at = done.stdout.find("{")
    while at >= 0:  # a launcher may put two ranks' lines into one
        one, end = decoder.raw_decode(done.stdout, at)
        found.append(one)
        at = done.stdout.find("{", end)
    if done.returncode or not found:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return found


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
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", nargs="+", choices=SCENES, metavar="NAME", default=list(SCENES))
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--compute", type=float, default=0.002, help="seconds of each step")
    parser.add_argument("--record", action="store_true", help=f"add the lines to {RECORDED.relative_to(ROOT)}")
    asked = parser.parse_args()
    if reason := slowfs.lacking():
        sys.exit(f"skipped: {reason}")
    print(f"{'':16}{'s/epoch':>9}{'samples/s':>11}{'MB read':>9}{'waits: storage':>16}{'exchange':>10}"
          f"{'travel':>8}{'travelled':>11}{'memory':>9}")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="solar-bench-") as name:
        buffer_data.make(Path(name) / "data.h5", asked.samples)
        machine.fill_cache(Path(name))
        facts = {"machine": machine.facts(Path(name)), "versions": machine.versions()}
        with slowfs.mounted(name) as mount:
            for title in asked.scenes:
                scene = SCENES[title]
                job = {
                    "path": str(mount.path / "data.h5"), "batch": BATCH, "epochs": EPOCHS, "by": scene.by,
                    "buffer": int(FRACTION * asked.samples * buffer_data.NBYTES / scene.nodes),
                    "storage": {"latency": mount.latency, "bandwidth": mount.bandwidth, "iops": mount.iops},
                    "compute": asked.compute, "exchange": scene.exchange,
                }  # fmt: skip
                asked_of = {
                    name: value for name, value in job.items() if name != "path"
                }  # which says nothing elsewhere
                record = {"bench": "ranks", "scene": title, **scene._asdict(), "job": asked_of}
                record["load"] = os.getloadavg()[0]
                try:
                    record |= summed(scene, launched(scene, job))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(f"{title:16} failed: {error}", flush=True)
                    continue
                print(
                    f"{title:16}{record['median']:9.2f}{record['samples'] / record['median']:11,.0f}"
                    f"{record['bytes'] / 1e6:9,.0f}{record['storage']:16.1%}{record['exchange']:10.1%}"
                    f"{record['travel']:8.1%}"
                    f"{record['exchanged_bytes'] / record['samples'] / buffer_data.NBYTES:11.1%}"
                    f"{record['memory'] / 2**20:7,.0f} M",
                    flush=True,
                )
                if asked.record:
                    with RECORDED.open("a") as out:
                        print(json.dumps(record | facts), file=out)


if __name__ == "__main__":
    main()
