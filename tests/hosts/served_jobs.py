#!/usr/bin/env python3
"""Within hosts.py: services on all hosts, begun together, and jobs that take part in them. Prints what was, as JSON.

    served_jobs.py DATA.h5 MEMORY what|none JOBS -- LAUNCHER...

LAUNCHER begins what follows it on each host. Each job makes its loader, says so, and waits; and again at its batch
number PAUSE, where `what` happens to the last host: "link" takes its link down until all jobs are over, "lost" for
good, "kill" kills its service. After "link" as many jobs come again. Services that are there then are told to end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ON_HOST = str(Path(__file__).with_name("on_host.py"))
PATIENCE = 400.0  # seconds
PAUSE = 20
SOLAR = "import sys; from solar.cli import main; sys.exit(main())"
# Services wait for all jobs that begin together: who joins later has some read again.
SERVICE = "import solar.service.scheduler as scheduler; scheduler.GATHERS, scheduler.SETTLES = 2.0, 10.0; " + SOLAR
JOB = f"""
import hashlib, json, logging, os, sys, time
from pathlib import Path
from solar import DataLoader, H5Dataset, PlanSampler
path, name, seed = sys.argv[1:]
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
def waits(what):
    Path(f"{{name}}.{{what}}").touch()
    while not Path(f"{{what}}.go").exists():
        time.sleep(0.01)
data, sha = H5Dataset(path, "x"), hashlib.sha256()
with DataLoader(data, 16, sampler=PlanSampler(data, seed=int(seed)), service="auto", buffer=0) as loader:
    waits(name[0] + "begin")
    for epoch in range(2):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            sha.update(batch.numpy().tobytes())
            if (epoch, number) == (0, {PAUSE}):
                waits(name[0] + "pause")
    run = loader._buffered.running
print(json.dumps([int(seed), sha.hexdigest(), run and run.counts(), os.uname().nodename]))
"""


def main() -> None:
    data, memory, what, jobs = sys.argv[1:5]
    launcher, end = sys.argv[6:], time.monotonic() + PATIENCE
    hosts = sorted(path.name for path in Path("/run/hosts").iterdir())
    last = hosts[-1]
    terms = ["serve", data, "--memory", memory, "--slack", "1000"]
    log = Path("services.log")
    with log.open("w") as out:
        services = subprocess.Popen([*launcher, sys.executable, "-c", SERVICE, *terms], stdout=out, stderr=out)
    try:
        until("the services", lambda: services.poll() is not None or all(asked(one, data) for one in hosts), end)
        if services.poll() is not None:
            sys.exit(f"served_jobs.py: the services have ended\n{log.read_text()}")
        pids = [asked(one, data)["pid"] for one in hosts]

        def happens() -> None:
            if what == "kill":
                os.kill(pids[-1], signal.SIGKILL)
            elif what in ("link", "lost"):
                link(last, "down")

        found = {"jobs": ran(data, hosts, "a", int(jobs), happens, end)}
        if what == "link":
            link(last, "up")
            until("its return", lambda: log.read_text().count("is heard again") >= 2, end)
            found["again"] = ran(data, hosts, "b", int(jobs), lambda: None, end)
        found["status"] = [asked(one, data) for one in hosts]
        found["links"] = [received(one) for one in hosts]
        for host in hosts if what == "lost" else hosts[-1:]:  # one tells the others, if it can
            subprocess.run(solar(host, "serve", "--stop", data), stdout=sys.stderr, stderr=sys.stderr)
        until("the end of the services", lambda: not any(map(lives, pids)), end)
        if what != "lost":  # the launcher does not hear of those that it cannot reach
            found["ended"] = services.wait(max(1.0, end - time.monotonic()))
        print(json.dumps({**found, "said": log.read_text()}))
    finally:
        services.kill()


def ran(data: str, hosts: list[str], which: str, jobs: int, happens: Callable[[], None], end: float) -> list[Any]:
    """What so many jobs found, which go round the hosts; `happens` while all of them pause."""
    each = range(jobs)
    names = [f"{which}{number}" for number in each]
    running = [
        subprocess.Popen(
            on(hosts[number % len(hosts)], sys.executable, "-c", JOB, data, names[number], str(number)),
            stdout=subprocess.PIPE, text=True,
        )
        for number in each
    ]  # fmt: skip
    for wait, then in (("begin", lambda: None), ("pause", happens)):
        until(wait, lambda wait=wait: all(Path(f"{name}.{which}{wait}").exists() for name in names), end)
        then()
        Path(f"{which}{wait}.go").touch()
    return [json.loads(one.communicate(timeout=max(1.0, end - time.monotonic()))[0]) for one in running]


def on(host: str, *command: str) -> list[str]:
    """The command, on that host: a shell reads it there."""
    return [sys.executable, ON_HOST, host, shlex.join(command)]


def solar(host: str, *arguments: str) -> list[str]:
    return on(host, sys.executable, "-c", SOLAR, *arguments)


def asked(host: str, data: str) -> Any:
    """What the service of a host says of itself; None where there is none."""
    command = solar(host, "serve", "--status", "--json", data)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


def lives(pid: int) -> bool:
    """Whether there is such a process, of which more is left than its end."""
    line = Path(f"/proc/{pid}/cmdline")
    return line.exists() and line.read_bytes() != b""


def link(host: str, state: str) -> None:
    subprocess.run(["ip", "link", "set", f"to-{host}", state], check=True)


def received(host: str) -> int:
    """Bytes that came from a host over its link."""
    command = ["ip", "-s", "-json", "link", "show", f"to-{host}"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return int(json.loads(told)[0]["stats64"]["rx"]["bytes"])


def until(what: str, done: Callable[[], Any], end: float) -> None:
    while not done():
        if time.monotonic() > end:
            sys.exit(f"served_jobs.py: still waiting for {what}\n{Path('services.log').read_text()}")
        time.sleep(0.1)


main()
