"""What tests on several hosts share, which are network namespaces of this machine: tests/hosts/hosts.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOSTS = Path(__file__).parent / "hosts" / "hosts.py"
ON_HOST = HOSTS.with_name("on_host.py")
# Or MPICH would find that all are one machine, and go around the network.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1"}


def environment(**more: str) -> dict[str, str]:
    """With this Python and its launchers first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | more


@pytest.fixture(name="hosts")
def asked_for(request: pytest.FixtureRequest) -> None:
    """What starts several hosts takes minutes, and root: it is asked for."""
    if not request.config.getoption("--hosts"):
        pytest.skip("not asked for with --hosts")


def on_hosts(
    place: Path,
    *command: str,
    hosts: int = 2,
    slurm: bool = False,
    ends_well: bool = True,
    seconds: float = 600,
    **more: str,
) -> str:
    """What a command says beside so many hosts; skipped where these cannot be had. Where it need not end well, all."""
    needed = ["ip", "tc", "unshare", "nsenter", *(["slurmctld", "slurmd", "srun", "munged"] if slurm else [])]
    if missing := [name for name in needed if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces")
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("needs leave to make namespaces")
    line = [sys.executable, str(HOSTS), "--hosts", str(hosts), "--rate", "1gbit", *(["--slurm"] if slurm else []), "--"]
    env = environment(**more)
    env.pop("XDG_RUNTIME_DIR", None)  # each host has its own, where one looks for it by itself
    ended = subprocess.run([*line, *command], cwd=place, env=env, capture_output=True, text=True, timeout=seconds)
    assert ended.returncode == 0 or not ends_well, ended.stdout + ended.stderr
    return ended.stdout if ends_well else ended.stdout + ended.stderr
