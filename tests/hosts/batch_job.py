#!/usr/bin/env python3
"""Within hosts.py --slurm: a job of these arguments of sbatch, or an array. Ends when all of it has; prints the states.

batch_job.py [OPTIONS] SCRIPT.sbatch [ARGUMENTS]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 400.0  # seconds
GOING_ON = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}


def said(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def states(job: str) -> list[str]:
    """Of the job, or of each of an array."""
    words = said("scontrol", "show", "job", job).split()
    return [word.partition("=")[2] for word in words if word.startswith("JobState=")]


def main() -> None:
    end = time.monotonic() + PATIENCE
    job = said("sbatch", "--parsable", *sys.argv[1:])
    while (found := states(job)) and GOING_ON & set(found):
        if time.monotonic() > end:
            output = "".join(path.read_text() for path in Path().glob("slurm-*.out"))
            sys.exit(f"batch_job.py: not over\n{said('scontrol', 'show', 'job')}\n{output}")
        time.sleep(0.2)
    print(*found)


main()
