"""Has the threads that read run on the cores that are near a device, where a host has several NUMA nodes."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from solar.io.reading.engine import Engine, get_num_threads
from solar.io.system.waiting import polling, until

SYSTEM = Path("/sys")
THREAD_NAME = "solar-read"  # of the threads (native/src/reader.cpp)
BEGINNING = 1.0  # seconds that threads may take to have their names

log = logging.getLogger("solar")


def cores_near(address: str, system: Path = SYSTEM) -> set[int]:
    """Returns the cores of the NUMA node of a PCI device, such as "0000:3b:00.0", that this process may use.

    It is empty where all cores are equally near, where that is unknown, or where the process was bound to some of the
    cores: then somebody else has chosen.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) < (os.cpu_count() or 1):
        return set()
    with suppress(OSError, ValueError):
        node = int((system / "bus/pci/devices" / address.lower() / "numa_node").read_text())
        if node >= 0:
            near = parse_cores((system / f"devices/system/node/node{node}/cpulist").read_text()) & allowed
            return set() if near == allowed else near
    return set()


def parse_cores(text: str) -> set[int]:
    """Returns the cores of a list such as "0-3,8-11"."""
    found = set[int]()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def read_near(address: str, system: Path = SYSTEM) -> set[int]:
    """Has this process's reading threads run near a device, if it has a core for each there. Returns these cores.

    The memory of batches lies where these threads first write to it: near, too. A process that reads for several
    devices reads near all of them.
    """
    near, threads = cores_near(address, system), get_num_threads()
    if len(near) < threads:
        return set()
    Engine.get()
    until(polling(lambda: len(_reading_tasks()) >= threads), BEGINNING)
    for task in _reading_tasks():
        with suppress(OSError):  # it has ended
            before, of_process = os.sched_getaffinity(task), os.sched_getaffinity(0)
            os.sched_setaffinity(task, near if before == of_process else near | before)
    log.debug("%d threads read on the %d cores near the device %s", threads, len(near), address)
    return near


def _reading_tasks() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            if (task / "comm").read_text().strip() == THREAD_NAME:
                found.append(int(task.name))
    return found
