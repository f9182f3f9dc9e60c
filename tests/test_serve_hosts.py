"""Services of several nodes that a network is between: hosts made up of namespaces, with links of 1 Gbit/s."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hosts_kit import HOSTS, NETWORK, ON_HOST, asked_for, on_hosts
from mpi_kit import mpiexec
from serve_kit import SAMPLES, epochs_of, scan

from solar import DataLoader, H5Dataset, PlanSampler

_ = asked_for, scan  # fixtures
pytestmark = pytest.mark.usefixtures("hosts")

SAMPLE = 1024  # bytes
OPEN_MPI = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"  # Debian's


def by_mpich(hosts: int) -> tuple[list[str], dict[str, str]]:
    """What begins a service on each host, and its environment."""
    names = ",".join(f"h{host + 1}" for host in range(hosts))
    command = [mpiexec(), "-launcher", "ssh", "-launcher-exec", str(ON_HOST), "-hosts", names, "-ppn", "1"]
    return [*command, "-n", str(hosts)], NETWORK


def by_open_mpi(hosts: int) -> tuple[list[str], dict[str, str]]:
    """The same with Debian's, which mpi4py's wheel takes if it is told."""
    mpirun = shutil.which("mpirun.openmpi")
    if mpirun is None or not Path(OPEN_MPI).exists():
        pytest.skip("needs Debian's openmpi-bin")
    names = ",".join(f"h{host + 1}" for host in range(hosts))
    network = ["btl", "tcp,self", "btl_tcp_if_include", "eth0", "oob_tcp_if_include", "10.78.0.0/24"]
    options = [word for at in range(0, len(network), 2) for word in ("--mca", *network[at : at + 2])]
    command = [mpirun, "--allow-run-as-root", "--mca", "plm_rsh_agent", str(ON_HOST), *options]
    return [*command, "-x", "MPI4PY_LIBMPI", "--host", names, "-n", str(hosts)], {"MPI4PY_LIBMPI": OPEN_MPI}


LAUNCHERS = {"MPICH": by_mpich, "Open MPI": by_open_mpi}


def served(scan: Path, place: Path, what: str, *, hosts: int = 2, jobs: int = 4, by: str = "MPICH") -> dict[str, Any]:
    """What jobs on these hosts found, each as it would alone, and what services said."""
    launcher, environment = LAUNCHERS[by](hosts)
    memory = str(4 * SAMPLES * SAMPLE // hosts)  # for all of the data, on all hosts together
    driver = [sys.executable, str(HOSTS.with_name("served_jobs.py")), str(scan), memory, what, str(jobs), "--"]
    found: dict[str, Any] = json.loads(on_hosts(place, *driver, *launcher, hosts=hosts, **environment))
    for name in {"jobs", "again"} & found.keys():
        assert [one[0] for one in found[name]] == [*range(jobs)]
        assert [one[3] for one in found[name]] == [f"h{1 + number % hosts}" for number in range(jobs)]
        for seed, digest, _counts, _host in found[name]:
            data = H5Dataset(scan, "x")
            with DataLoader(data, 16, sampler=PlanSampler(data, seed=seed), buffer=0) as alone:
                assert digest == epochs_of(alone), found["said"]
    return found


@pytest.mark.parametrize(("several", "by"), [(2, "MPICH"), (4, "MPICH"), (2, "Open MPI")])
def test_services_of_hosts_read_the_data_once_and_send_it_over_the_network(
    several: int, by: str, scan: Path, tmp_path: Path
) -> None:
    found = served(scan, tmp_path, "none", hosts=several, by=by)
    status, nbytes = found["status"], SAMPLES * SAMPLE
    assert [(one["nodes"], one["node"]) for one in status] == [(several, host) for host in range(several)]
    read = [one["read_bytes"] for one in status]
    assert nbytes <= sum(read) < 1.7 * nbytes, read  # each by itself: as often as there are hosts
    assert max(read) < 2 * nbytes / several
    assert all(counts["alone"] <= 2 and counts["served"] > 100 for _, _, counts, _ in found["jobs"])
    for one, came in zip(status, found["links"], strict=True):
        assert one["sent_samples"] > 0 and came > one["sent_samples"] * SAMPLE  # over its link, and not around it
    assert found["ended"] == 0


@pytest.mark.parametrize("by", LAUNCHERS)
def test_jobs_go_on_by_themselves_while_a_link_is_down_and_take_part_again_later(
    by: str, scan: Path, tmp_path: Path
) -> None:
    found = served(scan, tmp_path, "link", by=by)
    for _, _, counts, _ in found["jobs"]:
        assert counts["served"] > 10 and counts["alone"] > 60
    for rank in range(2):
        assert f"rank {rank} of 2 services has said nothing for 5 s" in found["said"]
    assert all(counts["served"] > 100 for _, _, counts, _ in found["again"])
    assert found["ended"] == 0


def test_services_that_cannot_reach_each_other_end_when_they_are_told(scan: Path, tmp_path: Path) -> None:
    found = served(scan, tmp_path, "lost", hosts=4)
    assert all(counts["served"] > 10 and counts["alone"] > 60 for _, _, counts, _ in found["jobs"])
    assert "rank 3 of 4 services has said nothing for 5 s" in found["said"]
    assert "the services of other nodes do not answer" in found["said"]


@pytest.mark.parametrize("by", LAUNCHERS)
def test_a_host_whose_service_is_killed_ends_all_and_jobs_go_on(by: str, scan: Path, tmp_path: Path) -> None:
    found = served(scan, tmp_path, "kill", by=by)
    assert found["status"] == [None, None] and found["ended"] != 0
