"""A service that a job begins, for itself and for the others that come: a process of its own, which ends after them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from solar.errors import PlanError, ReadError
from solar.io.machine.late import asked, until_others
from solar.io.serve.doors import LOCK_FLAGS, connect, locked, private, real

BEGINS_WITHIN = 30.0  # seconds
LINGERS = 60.0  # seconds that it stays when nobody is there


def begin(path: Path, files: Sequence[str], memory: str) -> None:
    """Has a service of these files listen there. Of several jobs one begins it, and the others wait for that one.

    PlanError where it cannot be begun.
    """
    where = private(path.parent)
    try:
        turn = os.open(path.with_suffix(".begin").name, LOCK_FLAGS, 0o600, dir_fd=where)
    except OSError as error:
        raise PlanError(f"{path}: no service can be started there: {error.strerror}") from error
    finally:
        os.close(where)
    try:
        try:
            whom = f"another job, which starts a service at {path}"
            until_others(asked(lambda: locked(turn)), "this training", lambda: whom, BEGINS_WITHIN)
        except ReadError:
            raise PlanError(f"{path}: another job has tried to start a service for {BEGINS_WITHIN:g} s") from None
        if not _listens(path):
            _run(path, files, memory)
    finally:
        os.close(turn)


def _listens(path: Path) -> bool:
    try:
        connect(path, BEGINS_WITHIN).close()
    except ReadError:
        return False
    return True


def _run(path: Path, files: Sequence[str], memory: str) -> None:
    served = [real(one) for one in files]
    terms = ["--memory", memory, "--idle", f"{LINGERS:g}", "--socket", str(path), "--background"]
    command = [sys.executable, "-P", "-m", "solar", "serve", *served, *terms]
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BEGINS_WITHIN, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PlanError(f"{path}: no service could be started: {error}") from None
    if ended.returncode:
        raise PlanError(f"{path}: no service could be started: {ended.stderr.strip()[-1000:] or ended.returncode}")
