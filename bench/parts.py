"""Parts of a bench in processes of their own: a job as JSON in, what was measured as JSON out.

python -m bench.parts MODULE JOB        # which has a function `part`
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parent.parent


def said(command: Sequence[str], seconds: float, each: Sequence[dict[str, Any]] = ({},), cwd: Path = ROOT) -> list[str]:
    """What processes print that run at once, one for each environment. RuntimeError: the last words of who failed."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": cwd}
    # Modules are compiled once, as everywhere: where they may not be kept, each start would compile ours, not torch's.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    envs = [kept | {name: str(value) for name, value in one.items()} for one in each]
    running = [subprocess.Popen(command, env=env, **pipes) for env in envs]
    try:
        texts = [process.communicate(timeout=seconds) for process in running]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end in {seconds} s") from None
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(running, texts, strict=True):
        if process.returncode:
            raise RuntimeError(last_words(errors, process.returncode))
    return [text for text, _ in texts]


def last_words(text: str, status: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit status {status}"


def command(module: str, job: dict[str, Any], python: str = sys.executable) -> list[str]:
    """A process in which a module does its part of a job."""
    return [python, "-m", "bench.parts", module, json.dumps(job)]


def measured(
    seconds: float,
    module: str,
    job: dict[str, Any],
    each: Sequence[dict[str, Any]] = ({},),
    python: str = sys.executable,
) -> list[dict[str, Any]]:
    """What a module's `part` gives of a job, in a process for each environment. RuntimeError: one that failed."""
    return [json.loads(text.splitlines()[-1]) for text in said(command(module, job, python), seconds, each)]


def main() -> None:
    begin = time.perf_counter()  # nothing but Python's own has been imported
    module, job = sys.argv[1:]
    with channel() as out:
        print(json.dumps(importlib.import_module(module).part(json.loads(job) | {"begin": begin})), file=out)
    os._exit(0)  # workers of abandoned iterators would keep the process from ending


@contextmanager
def channel() -> Iterator[TextIO]:
    """The output of this process, kept apart: what libraries print goes to the error output meanwhile."""
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        yield out


def torch_ranks(ranks: int) -> list[dict[str, Any]]:
    """The environments of ranks that meet by gloo on this machine; of one alone nothing."""
    if ranks == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [shared | {"RANK": rank, "LOCAL_RANK": rank, "GLOO_SOCKET_IFNAME": "lo"} for rank in range(ranks)]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
