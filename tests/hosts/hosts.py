#!/usr/bin/env python3
"""Several hosts on one machine: network namespaces with limited links between them, and if asked for a real Slurm.

    hosts.py [--hosts 2] [--rate 1gbit] [--slurm] -- COMMAND...

runs COMMAND on a head, beside hosts h1, h2, ... that it reaches by these names. Each has its own network, host name,
loopback and /run/user, and a link of the given rate in both directions, which is `to-h1` on the head. `on_host.py h1
COMMAND...` runs something there; it can stand for ssh (mpiexec -launcher ssh -launcher-exec on_host.py -hosts h1,h2).
With --slurm each host is a node of a cluster, and sbatch, srun, squeue and scontrol work in COMMAND.

Needs root and iproute2; for --slurm also slurmctld, slurmd, slurm-client and munge. All of it is in namespaces of its
own, and ends with COMMAND, whose exit status is given. Nothing is left outside.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

NET = "10.78.0"
BURST = "256kb"  # of the token bucket: a few dozen packets
CPUS = 2  # that each node claims to have

SLURM = """\
ClusterName=one
SlurmctldHost=head({net}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_delay=1
KillWait=10
OverTimeLimit=0
NodeName=h[1-{hosts}] NodeAddr={net}.[1-{hosts}] CPUs={cpus} RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="", help="of each link, such as 1gbit; no limit if not given")
    parser.add_argument("--slurm", action="store_true", help="makes the hosts nodes of a Slurm cluster")
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args()
    if os.environ.pop("HOSTS_INSIDE", "") != "yes":
        alone = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        inside = os.environ | {"HOSTS_INSIDE": "yes"}
        os.execvpe(alone[0], [*alone, sys.executable, __file__, *sys.argv[1:]], inside)
    with tempfile.TemporaryDirectory(prefix="hosts") as folder:
        connect(chosen.hosts, chosen.rate, Path(folder))
        if chosen.slurm:
            start_slurm(chosen.hosts, Path(folder))
        ended = subprocess.run(chosen.command).returncode
        end_all()
    return ended


def end_all() -> None:
    """Ends what is left here, before its folder goes: Slurm writes its state until it ends."""
    assert os.getpid() == 1, "this is the first process of a namespace that has nothing else"
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def do(*command: str) -> None:
    subprocess.run(command, check=True)


def connect(hosts: int, rate: str, folder: Path) -> None:
    """The head's bridge and the hosts at it."""
    do("mount", "-t", "tmpfs", "hosts", "/run")
    for path in ("/run/netns", "/run/user"):
        Path(path).mkdir()
    names = [f"{NET}.{host} h{host}\n" for host in range(1, hosts + 1)]
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{NET}.254 head\n" + "".join(names))
    do("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
    do("hostname", "head")
    do("ip", "link", "set", "lo", "up")
    do("ip", "link", "add", "middle", "type", "bridge")
    do("ip", "address", "add", f"{NET}.254/24", "dev", "middle")
    do("ip", "link", "set", "middle", "up")
    for host in range(1, hosts + 1):
        plug(f"h{host}", f"{NET}.{host}", rate)


def plug(name: str, address: str, rate: str) -> None:
    """One host, and its link to the bridge."""
    Path("/run/hosts", name, str(os.getuid())).mkdir(mode=0o700, parents=True)  # what on_host.py has as /run/user
    do("ip", "netns", "add", name)
    do("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
    do("ip", "link", "set", f"to-{name}", "master", "middle", "up")
    for link in ("lo", "eth0"):
        do("ip", "-n", name, "link", "set", link, "up")
    do("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    if rate:
        bucket = ("root", "tbf", "rate", rate, "burst", BURST, "latency", "50ms")
        do("tc", "qdisc", "add", "dev", f"to-{name}", *bucket)
        do("tc", "-n", name, "qdisc", "add", "dev", "eth0", *bucket)


def start_slurm(hosts: int, folder: Path) -> None:
    """A controller on the head and a node on each host; returns when all are idle."""
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    folder.chmod(0o755)  # munged wants its socket to be reachable by all
    parts = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    do("munged", "--force", *(f"--{option}={folder}/munge.{part}" for option, part in parts.items()))
    (folder / "slurm.conf").write_text(SLURM.format(net=NET, folder=folder, hosts=hosts, cpus=CPUS))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    do("slurmctld")
    beside = Path(__file__).with_name("on_host.py")
    for host in range(1, hosts + 1):
        do(sys.executable, str(beside), f"h{host}", "slurmd", "-N", f"h{host}")
    until = time.monotonic() + 60
    while (idle := said("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()) != sorted(idle) or len(idle) < hosts:
        if time.monotonic() > until:
            logs = "".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(folder.glob("*.log")))
            sys.exit(f"hosts.py: of {hosts} nodes only {idle} are idle after a minute\n{logs}")
        time.sleep(0.2)


def said(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
