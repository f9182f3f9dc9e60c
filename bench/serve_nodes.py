"""Trainings on several hosts: services that read as one, one a host by itself, and trainings without any.

    python -m bench.serve_nodes [--hosts 2 4] [--rates 1gbit 10gbit] [--shares .25 .5] [--ways each-own ...] [--record]

Hosts are network namespaces of this machine with limited links between them (root; tests/hosts/hosts.py), and the
storage that all of them read is one slowed mount (bench/slowfs). All memory is a share of the data, divided equally by
the hosts; two trainings on each, which divide it again where there is no service. All begin together; what is told is
samples a second of all of them over whole runs of two epochs, what the mount was asked for, and what went over links.
The processors are those of one machine: the storage has to be what decides.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench import machine, parts, records, serve, slowfs, tables

HOSTS = records.ROOT / "tests" / "hosts"
ON_HOST = [sys.executable, str(HOSTS / "on_host.py")]
SAMPLES, BATCH = 8192, 4  # of bench.serve's 32 KiB: batches of all hosts have to have room in one host's memory
JOBS = 2  # on each host
LIMIT = 900  # seconds
READY = 60.0  # seconds until a service is there
WAYS = {
    "alone": "each alone, memory divided",
    "each-own": "a service on each host, orders of their own",
    "together-own": "services that read as one, orders of their own",
    "each-common": "a service on each host, one order",
    "together-common": "services that read as one, one order",
}
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1", "OMP_NUM_THREADS": "1"}


def main() -> int:
    """Measures, and prints a table."""
    parser = records.arguments("bench.serve_nodes", __doc__, "serve_nodes", ways=WAYS)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit"], help="of each link")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.5], help="of the data, in all memory")
    asked = parser.parse_args()
    if reason := "namespaces need root" if os.geteuid() else slowfs.lacking():
        print(f"left out: {reason}")
        return 1
    about = {"bench": "serve_nodes", "quick": asked.quick, "load_before": records.load(asked.load_before)}
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder, samples = Path(name), SAMPLES // 2 if asked.quick else SAMPLES
        draw = np.random.default_rng(0)
        with h5py.File(folder / "scan.h5", "w") as file:
            file["x"] = draw.poisson(3, (samples, serve.SIDE, serve.SIDE)).astype("u2")
        found = []
        for hosts, share, rate in ((h, s, r) for h in asked.hosts for s in asked.shares for r in asked.rates):
            for way in asked.ways or WAYS:
                if not way.startswith("together") and rate != asked.rates[0]:
                    continue  # nothing goes over links
                job = {"hosts": hosts, "rate": rate, "share": share, "way": way, "samples": samples}
                found.append(about | job | measured(folder, job))
                records.append(asked.out, found[-1] | machine.described(folder))
                parts.note(f"{hosts} hosts, {rate}, {share:g}, {WAYS[way]}: {found[-1]['together']:,.0f} samples/s")
    print(table(found))
    return 0


def measured(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """What `part` finds within so many hosts."""
    with slowfs.mounted(folder, **serve.COSTS) as mount:
        command = parts.command("bench.serve_nodes", job | {"mount": str(mount.path)})
        head = [sys.executable, str(HOSTS / "hosts.py"), "--hosts", str(job["hosts"]), "--rate", job["rate"], "--"]
        (said,) = parts.said([*head, *command], LIMIT, [NETWORK])
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return told


# --- on the head, beside the hosts ----


def part(job: dict[str, Any]) -> dict[str, Any]:
    """So many trainings in this way, begun together."""
    hosts = [f"h{host + 1}" for host in range(job["hosts"])]
    path, nbytes = f"{job['mount']}/scan.h5", job["samples"] * serve.SAMPLE_NBYTES
    memory = int(job["share"] * nbytes / len(hosts))
    how, _, order = job["way"].partition("-")
    socket = f"/run/user/{os.getuid()}/bench.sock" if order else ""
    with ExitStack() as stack:
        if order:
            stack.callback(end, begun(how, hosts, path, memory, socket), hosts, socket)
        running = []
        for number in range(JOBS * len(hosts)):
            buffer = 0 if order else memory // JOBS
            terms = [path, socket, order or "own", str(number), str(buffer), "", "0", str(BATCH)]
            command = on(hosts[number % len(hosts)], sys.executable, "-c", serve.JOB, *terms)
            running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        found = serve.side_by_side(running, lambda: (counts(job["mount"]), over_links()))
        said, seconds, (asked, sent), (after, left) = found
    of_all = {name: after[name] - asked[name] for name in ("requests", "bytes")}
    if how == "together" and not left - sent > nbytes / 8:
        raise RuntimeError("the batches of all trainings have no room in a host's memory: fewer hosts, or more of it")
    rate = len(running) * serve.EPOCHS * job["samples"] / seconds
    gap = max(float(one[2]) for one in said)
    return {"jobs": len(running), "seconds": seconds, "together": rate, "gap": gap, "memory": memory, **of_all,
            "sweeps": of_all["bytes"] / nbytes, "over_links": left - sent}  # fmt: skip


def begun(how: str, hosts: list[str], path: str, memory: int, socket: str) -> list[subprocess.Popen[bytes]]:
    """The services, or what began them, when all of them listen."""
    terms = [sys.executable, "-m", "solar", "serve", path, "--memory", str(memory), "--socket", socket]
    if how == "together":
        launcher = [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "ssh", "-launcher-exec", ON_HOST[-1]]
        commands = [[*launcher, "-hosts", ",".join(hosts), "-ppn", "1", "-n", str(len(hosts)), *terms]]
    else:
        commands = [on(host, *terms) for host in hosts]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    until = time.monotonic() + READY
    for host in hosts:
        while asked_of(host, socket, "--status"):
            if time.monotonic() > until or any(one.poll() is not None for one in running):
                raise RuntimeError(f"there is no service on {host}")
            time.sleep(0.1)
    return running


def end(running: list[subprocess.Popen[bytes]], hosts: list[str], socket: str) -> None:
    for host in hosts[: len(running)]:
        asked_of(host, socket, "--stop")
    for one in running:
        one.wait()


def asked_of(host: str, socket: str, what: str) -> int:
    command = on(host, sys.executable, "-m", "solar", "serve", what, "--socket", socket)
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def on(host: str, *command: str) -> list[str]:
    """It there, where a shell reads it, as with ssh."""
    return [*ON_HOST, host, shlex.join(command)]


def counts(mount: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(Path(mount, ".slowfs").read_text())
    return found


def over_links() -> int:
    """Bytes that all hosts have sent."""
    told = subprocess.run(["ip", "-s", "-json", "link", "show"], check=True, stdout=subprocess.PIPE).stdout
    return sum(one["stats64"]["rx"]["bytes"] for one in json.loads(told) if one["ifname"].startswith("to-h"))


# --- what it says ----


def table(found: Iterable[dict[str, Any]]) -> str:
    """For each number of hosts, share of memory and way: samples a second, and what was read and sent."""
    rows, alone = [], dict[object, float]()
    for one in tables.newest(found, "hosts", "share", "rate", "way"):
        same, quiet = (one["hosts"], one["share"]), not one["way"].startswith("together")
        if one["way"] == "alone":
            alone[same] = one["together"]
        gain = f"{one['together'] / alone[same]:.2g}" if same in alone else "–"
        link = "–" if quiet else one["rate"].replace("gbit", " Gbit/s")
        sent = "–" if quiet else f"{one['over_links'] / 1e6:,.0f}"
        rows.append((
            one["hosts"], one["jobs"], f"{one['share']:.0%}", WAYS[one["way"]], link, tables.rate(one["together"]),
            gain, tables.shown(one["requests"]), f"{one['sweeps']:.1f}", sent,
        ))  # fmt: skip
    if not rows:
        return "No quiet record of it is there yet."
    heads = "hosts:|trainings:|memory:|way|link|samples/s of all:|times alone:|requests:|read, in data:|sent, MB:"
    return tables.table(heads, rows)


if __name__ == "__main__":
    raise SystemExit(main())
