"""Several trainings of one file on a slowed mount: each alone with its part of the memory, and through `solar serve`.

    python -m bench.serve [--jobs 1 2 4 8] [--ways own common] [--quick] [--record]

Each job is a process of its own; all begin together, and what is told is samples a second of all of them over whole
runs of two epochs, from before the loader is made until it is closed. What the mount was asked for is counted by the
mount. Beside them: jobs without a buffer that share a page cache of the same memory, held by a control group, by solar
and by PyTorch's loader with h5py, which keeps its file open and has no workers, for which there is no room in that
memory; and TensorSocket, which gives all jobs one order (`pip install tensorsocket`), with the best of six settings for
each number of jobs: each is tried for some seconds, and the best is watched for a minute at most.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from bench import groups, machine, records, slowfs, tables

SAMPLES, SIDE, BATCH, EPOCHS, SHARE = 4096, 128, 8, 2, 0.25
SAMPLE_NBYTES = SIDE * SIDE * 2
COSTS: dict[str, Any] = {"latency": 1e-3, "bandwidth": 1e9, "iops": 500.0, "rpc": 1 << 20}
WAYS = tables.SERVED
Seen = TypeVar("Seen")
SERVED = ("own", "study", "common")  # those of a service
CACHED = ("page_cache", "torch")  # those that share a page cache
LONGEST, TRIED = 60.0, 6.0  # seconds for which TensorSocket is watched, and each of its settings before
SETTINGS = [(together, kept) for kept in (10, 32) for together in (2, 4, 8)]  # batches in a message; and on their way
JOB = """
import sys, time
path, socket, way, number, buffer, group, memory, together = sys.argv[1:]
from solar import DataLoader, H5Dataset, PlanSampler
data = H5Dataset(path, "x", page_cache=True if group else None)
seed = 0 if way == "common" else int(number)
order = PlanSampler(data, seed=seed, **({"study": 7} if way == "study" else {}))
size = int(together)
if group:
    from pathlib import Path
    from bench import groups
    list(DataLoader(data, size, sampler=range(2 * size), buffer=0))  # threads have their memory before it counts
    groups.enter(Path(group), int(memory))
print("ready", flush=True)
sys.stdin.readline()
begin = time.perf_counter()
first = gap = 0.0
last = begin
with DataLoader(data, size, sampler=order, epochs=EPOCHS, buffer=int(buffer), service=socket or None) as loader:
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            now = time.perf_counter()
            first, gap, last = first or now - begin, max(gap, now - last), now
print(time.perf_counter() - begin, first, gap, flush=True)
""".replace("EPOCHS", str(EPOCHS))
BY_TORCH = """
import sys, time
from pathlib import Path
path, number, group, memory, together = sys.argv[1:]
import torch
from bench import groups
from solar.baseline import h5py_loader
from solar.baseline.h5py_samples import H5pySamples
size, way = int(together), h5py_loader.simple(0, "straight")
data, made = h5py_loader.dataset_of(H5pySamples([path], ["x"]), way, size, 0)
generator = torch.Generator().manual_seed(int(number))
loader = torch.utils.data.DataLoader(data, size, shuffle=True, generator=generator, **made)
data.__getitems__([0])
groups.enter(Path(group), int(memory))
print("ready", flush=True)
sys.stdin.readline()
begin = last = time.perf_counter()
first = gap = 0.0
for epoch in range(EPOCHS):
    for batch in loader:
        now = time.perf_counter()
        first, gap, last = first or now - begin, max(gap, now - last), now
print(time.perf_counter() - begin, first, gap, flush=True)
""".replace("EPOCHS", str(EPOCHS))


def main() -> int:
    """Measures, and prints a table."""
    parser = records.arguments("bench.serve", __doc__, "serve", ways=WAYS)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--local", action="store_true", help="on the disk here, from the page cache")
    parser.add_argument("--gzip", action="store_true", help="16 samples to a chunk with deflate")
    asked = parser.parse_args()
    if not asked.local and (reason := slowfs.lacking()):
        print(f"no slowed mount: {reason}")
        return 1
    about = {"bench": "serve", "gzip": asked.gzip, "local": asked.local, "quick": asked.quick}
    about["load_before"] = records.load(asked.load_before)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder, samples = Path(name), SAMPLES // 8 if asked.quick else SAMPLES
        draw = np.random.default_rng(0)
        with h5py.File(folder / "scan.h5", "w") as file:
            more = {"chunks": (16, SIDE, SIDE), "compression": "gzip", "compression_opts": 1} if asked.gzip else {}
            file.create_dataset("x", data=draw.poisson(3, (samples, SIDE, SIDE)).astype("u2"), **more)
        found = []
        for jobs in asked.jobs:
            for way in asked.ways or WAYS:
                if reason := lacking(way, local=asked.local):
                    print(f"{jobs} jobs, {WAYS[way]}: left out: {reason}")
                    continue
                found.append(about | measured(folder, samples, jobs, way, local=asked.local))
                records.append(asked.out, found[-1] | machine.described(folder))
                print(f"{jobs} jobs, {WAYS[way]}: {found[-1]['rate']:,.0f} samples/s", flush=True)
    print(tables.serve(found))
    return 0


def measured(folder: Path, samples: int, jobs: int, way: str, *, local: bool) -> dict[str, Any]:
    """So many of them in this way, begun together."""
    memory = int(SHARE * samples * SAMPLE_NBYTES)
    with ExitStack() as stack:
        mount = None if local else stack.enter_context(slowfs.mounted(folder, **COSTS, cached=way in CACHED))
        path = (folder if mount is None else mount.path) / "scan.h5"
        if way == "tensorsocket":
            return by_tensorsocket(path, mount, memory, jobs)
        socket, group = "", stack.enter_context(groups.made()) if way in CACHED else None
        if way in SERVED:
            where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            socket = str(where / "s.sock")
            serving = [sys.executable, "-m", "solar", "serve", str(path), "--memory", str(memory), "--socket", socket]
            service = subprocess.Popen(serving, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            stack.callback(service.wait)
            stack.callback(service.terminate)
            assert service.stdout is not None
            service.stdout.readline()
        buffer = memory // jobs if way == "alone" else 0
        room = [str(group or ""), str(memory + groups.OWN), str(BATCH)]

        def command(number: int) -> list[str]:
            if way == "torch":
                return [BY_TORCH, str(path), str(number), *room]
            return [JOB, str(path), socket, way, str(number), str(buffer), *room]

        running = [
            subprocess.Popen([sys.executable, "-c", *command(number)], text=True, cwd=records.ROOT,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for number in range(jobs)
        ]  # fmt: skip
        said, seconds, before, after = side_by_side(running, lambda: {} if mount is None else mount.counts())
        rate = jobs * EPOCHS * samples / seconds
        first, gap = sorted(float(one[1]) for one in said), max(float(one[2]) for one in said)
        found = {"jobs": jobs, "way": way, "seconds": seconds, "rate": rate, "first": first, "gap": gap}
        found["memory"] = memory
        for name in ("requests", "bytes") if after else ():
            found[name] = after[name] - before[name]
        if after and way in SERVED and (told := planned(path, memory, jobs, way)):
            found["planned"] = told
        return found


def side_by_side(
    running: Sequence[subprocess.Popen[str]], look: Callable[[], Seen]
) -> tuple[list[list[str]], float, Seen, Seen]:
    """Begins JOBs together, when all are ready: what each said, the seconds, and what `look` saw before and after."""
    for one in running:
        assert one.stdout is not None
        one.stdout.readline()
    before, begin = look(), time.perf_counter()
    for one in running:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    said = [one.stdout.readline().split() for one in running if one.stdout is not None]
    seconds = time.perf_counter() - begin  # without the end of the interpreters: .6 s of a processor for each
    after = look()
    for one in running:
        one.communicate()
    if any(one.returncode for one in running):
        raise RuntimeError(f"a training failed: {said}")
    return said, seconds, before, after


def by_tensorsocket(path: Path, mount: slowfs.Slowed | None, memory: int, jobs: int) -> dict[str, Any]:
    """What its consumers had, in a network namespace of their own, with the best of its settings."""

    def told(seconds: float, together: int, kept: int) -> dict[str, Any]:
        terms = map(str, (path, jobs, BATCH, EPOCHS, memory, seconds, together, kept))
        command = ["unshare", "--net", sys.executable, "-m", "bench.serve_tensorsocket", *terms]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {"rate": 0.0}  # nothing came

    tried = [(told(TRIED, *one)["rate"], *one) for one in SETTINGS]
    rate, together, kept = max(tried)
    if not rate:
        raise RuntimeError("nothing came, whatever the settings")
    before = {} if mount is None else mount.counts()
    found = {"jobs": jobs, "way": "tensorsocket", "gap": 0.0, "memory": memory, "tried": tried}
    found |= {"producer_batch_size": together, "consumer_max_buffer_size": kept} | told(LONGEST, together, kept)
    after = {} if mount is None else mount.counts()
    return found | {name: after[name] - before[name] for name in ("requests", "bytes") if after}


def lacking(way: str, *, local: bool) -> str:
    """Why it cannot be measured here; empty if it can."""
    if way == "tensorsocket":
        missing = [name for name in ("tensorsocket", "zmq", "tornado") if importlib.util.find_spec(name) is None]
        if missing:
            return f"{', '.join(missing)}: not installed"
        return "" if os.geteuid() == 0 else "namespaces need root"
    if way in CACHED:
        with groups.made() as group:
            return "no control group can be made" if group is None else "the file is in the page cache" if local else ""
    return ""


def planned(path: Path, memory: int, jobs: int, way: str) -> dict[str, float]:
    """What `solar plan` says of all epochs: the first, and those that find something in memory.

    Nothing where it refuses: `--quick` has no room for several jobs. It says so, as the service does.
    """
    order = {"own": [], "study": ["--study"], "common": ["--common-order"]}[way]
    sizes = ["--memory", str(memory), "--batch-size", str(BATCH), "--epochs", str(EPOCHS), "--jobs", str(jobs)]
    command = [sys.executable, "-m", "solar", "plan", str(path), "x", *sizes, *order, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return {}
    told = json.loads(done.stdout)
    first, later = told["first_epoch"], told["policies"]["solar"]
    return {name: first[name] + (EPOCHS - 1) * later[name] for name in ("requests", "bytes")}


if __name__ == "__main__":
    raise SystemExit(main())
