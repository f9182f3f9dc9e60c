"""A file whose samples are numbered, and programs run as users run them: in processes of their own, never for long."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle
from ready_kit import python, torchrun

SAMPLES = 53


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 53 samples: "i" is the sample's number, "x" three times that number."""
    path = tmp_path_factory.mktemp("numbered") / "numbered.h5"
    with h5py.File(path, "w") as file:
        file["i"] = np.arange(SAMPLES)
        file["x"] = np.repeat(np.arange(SAMPLES)[:, None], 3, axis=1).astype("f4")
    settle(path)
    return str(path)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Runs a program and gives what it told: program(file, *words).

    It tells by writing JSON into files of the folder TOLD; what it gives is the files' contents by their stems.
    With `processes` it is run by torchrun, on free ports; `by` are the words of another launcher.
    """

    def run(
        file: Path,
        *words: object,
        processes: int = 0,
        by: Sequence[str] = (),
        seconds: float = 180,
        **environment: str,
    ) -> dict[str, Any]:
        command = [*by, *(torchrun(processes) if processes else []), *python(), str(file), *map(str, words)]
        folder = tmp_path_factory.mktemp(file.stem)
        code, output = ended(command, folder, environment, seconds)
        assert code == 0, output[-4000:]
        return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}

    return run


def ended(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> tuple[int, str]:
    """The exit status of a command and what it printed. It has the folder for itself."""
    # One thread each, over the loopback: a machine may have two cores, and no name that resolves.
    ours = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XDG_CACHE_HOME": str(folder / "cache")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **ours, "TOLD": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        for where in Path("/proc").glob("[0-9]*/cwd"):  # torchrun's processes, of sessions of their own, hold the pipe
            with contextlib.suppress(OSError):
                if where.readlink() == folder:
                    os.kill(int(where.parent.name), signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"{command[-2:]} was not done after {seconds} s:\n{output[-4000:]}")
    return process.returncode, output
