#!/usr/bin/env python3
"""Within hosts.py --slurm: a job that begins on two nodes, is warned, goes back into the queue and ends on one node.

    warned_job.py SCRIPT.sbatch limit|scancel OPTIONS OF train.py...

The warning is Slurm's own before the time limit, or that of scancel. Ends when the job does; prints its last state.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 400.0  # seconds
STEPS = 5  # recorded before the warning


def said(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def fact(job: str, name: str) -> str:
    """One of what Slurm knows of the job: JobState, NodeList, ..."""
    facts = dict(word.partition("=")[::2] for word in said("scontrol", "show", "job", job).split())
    return facts.get(name, "")


def until(what: str, done: Callable[[], bool], end: float) -> None:
    while not done():
        if time.monotonic() > end:
            output = "".join(path.read_text() for path in Path().glob("slurm-*.out"))
            sys.exit(f"warned_job.py: still waiting for {what}\n{said('scontrol', 'show', 'job')}\n{output}")
        time.sleep(0.2)


def main() -> None:
    script, how, *options = sys.argv[1:]
    end, record = time.monotonic() + PATIENCE, Path("record")
    job = said("sbatch", "--parsable", script, *options, "--record", str(record))
    until("the first steps", lambda: record.exists() and record.read_text().count("\n") >= STEPS, end)
    # Nobody else shall have a node taken away: this one is not given again once the job has left it.
    said("scontrol", "update", "NodeName=h2", "State=DRAIN", "Reason=resume on fewer")
    if how == "limit":
        hours, minutes, _ = fact(job, "RunTime").split(":")
        soon = 60 * int(hours) + int(minutes) + 2
        said("scontrol", "update", f"JobId={job}", f"TimeLimit={soon}")  # two minutes: the warning is due at once
    else:
        said("scancel", "--signal=USR1", job)
    until("the requeue", lambda: fact(job, "Restarts") == "1", end)
    said("scontrol", "update", f"JobId={job}", "TimeLimit=240")
    until("the end", lambda: fact(job, "JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), end)
    print(fact(job, "JobState"), fact(job, "Restarts"))


main()
