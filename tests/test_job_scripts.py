"""Job scripts where another user got there first: they use no folder that is not their own user's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "examples" / "jobs"


def told(runtime: Path, place: Path) -> tuple[list[str], str]:
    """The variables that the array's script gives a trial, and what it says."""
    place.mkdir(exist_ok=True)
    (place / "srun").write_text('#!/bin/sh\necho "${XDG_RUNTIME_DIR-none} ${SOLAR_SERVICE-none}"\n')
    (place / "srun").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{place}{os.pathsep}{os.environ['PATH']}", "SOLAR_RUNTIME": str(runtime), "SLURM_ARRAY_TASK_ID": "0",
        "XDG_RUNTIME_DIR": "/elsewhere", "SOLAR_SERVICE": "auto:1MiB", "SERVICE_MEMORY": "4MiB",
    }  # fmt: skip
    command = ["bash", str(SCRIPTS / "slurm-array.sbatch"), "scan.h5", "train.py"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ended.stdout.split(), ended.stderr


def test_an_array_makes_its_folder_and_the_next_trial_finds_it(tmp_path: Path) -> None:
    runtime = tmp_path / "solar-0"
    for _ in range(2):
        assert told(runtime, tmp_path / "bin") == ([str(runtime), "auto:4MiB"], "")
        assert runtime.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("wrong", ["open", "a link", "a file", "of another"])
def test_an_array_has_no_service_where_the_folder_is_not_its_users(wrong: str, tmp_path: Path) -> None:
    runtime = tmp_path / "solar-0"
    runtime.mkdir(mode=0o700)
    if wrong == "open":
        runtime.chmod(0o770)
    elif wrong == "a link":
        runtime.rename(tmp_path / "elsewhere")
        runtime.symlink_to(tmp_path / "elsewhere")
    elif wrong == "a file":
        runtime.rmdir()
        runtime.touch(mode=0o700)
    elif os.geteuid() == 0:
        os.chown(runtime, 65499, 65500)
    else:
        pytest.skip("only root can give a folder to somebody else")
    variables, said = told(runtime, tmp_path / "bin")
    assert variables == ["none", "none"] and "this trial reads without a service" in said
