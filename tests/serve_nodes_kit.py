"""What tests of services on several nodes share: they run under a real mpiexec, each as if it were on its own node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi_kit
from serve_kit import PATIENT, soon

from solar.io.channels import service_sockets

PROGRAM = """
import os, sys
rank = os.environ["PMI_RANK"]
where = sys.argv.pop(1)
sys.argv += ["--socket", f"{where}/{rank}.sock"]
sys.stderr = open(f"{where}/{rank}.err", "w", buffering=1)
"""
MAIN = "\nfrom solar.cli import main\nsys.exit(main())"


class Services:
    """As many services as nodes, which are hosts by name only, so that all of them share this machine."""

    def __init__(
        self, *paths: Path, where: Path, nodes: int = 2, memory: str = "2MiB", before: str = "", hosts: str = "",
        slack: float = PATIENT,
    ) -> None:  # fmt: skip
        where.mkdir(mode=0o700, exist_ok=True)
        where.chmod(0o700)
        self.where, self.sockets = where, [where / f"{rank}.sock" for rank in range(nodes)]
        hosts = hosts or ",".join(f"n{node}" for node in range(nodes))
        launcher = [mpi_kit.mpiexec(), "-launcher", "fork", "-hosts", hosts, "-n", str(nodes)]
        mpi_kit._skip_without_hosts(launcher[0])
        program = [sys.executable, "-c", PROGRAM + before + MAIN, str(where)]
        self.process = subprocess.Popen(
            [*launcher, *program, "serve", *map(str, paths), "--memory", memory, "--slack", str(slack)],
            env=mpi_kit._environment({}, None), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Services:
        assert soon(lambda: self.process.poll() is not None or all(map(self._answers, self.sockets))), self.said()
        return self

    def _answers(self, path: Path) -> bool:
        try:
            service_sockets.connect(path, 1).close()
        except OSError:
            return False
        return True

    def socket(self, number: int) -> str:
        """Where a job of this number takes part: they go round."""
        return str(self.sockets[number % len(self.sockets)])

    def status(self) -> list[dict[str, Any]]:
        """Of each service."""
        found = []
        for path in self.sockets:
            peer, _ = service_sockets.greeted(path, 10, "test")
            with peer:
                found.append(service_sockets.ask(peer, path, {"is": "status"}, "status")[0]["told"])
        return found

    def said(self) -> str:
        """What they wrote to their logs."""
        return "\n".join(path.read_text() for path in sorted(self.where.glob("*.err")))

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.output, _ = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise AssertionError(f"the services did not end: {self.said()}") from None
