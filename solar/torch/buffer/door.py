"""Door: a loader's connection to a service that reads its data (io/SERVICE.md)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar.io.read.reader import Rows
from solar.io.serve import doors, handed
from solar.io.serve.frames import Refused
from solar.planner.pass_uses import SampleUses
from solar.serve.opened import extents_told
from solar.torch.buffer.located import held_of
from solar.torch.source import SampleSource

ANSWER_WITHIN = 10.0  # seconds that a service has for an answer


class Door:
    """A connection to a service that has opened this loader's data."""

    def __init__(self, path: Path, beneath: SampleSource) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._peer, welcome = doors.greeted(path, ANSWER_WITHIN, Path(sys.argv[0]).name)
        try:
            self.memory: int = welcome["memory"]
            descriptor = handed.hand(*_told(beneath))
            try:
                answer, _ = self.ask({"is": "data"}, "opened", [descriptor])
            finally:
                os.close(descriptor)
            self.data: int = answer["data"]
            own = [one.parts_nbytes for one in first_rows(beneath)]
            if answer["fields"] != own:
                raise Refused(f"{path}: the service finds samples of other sizes")
            self.fields = own
        except BaseException:
            self.close()
            raise

    def ask(
        self, message: dict[str, Any], wanted: str, descriptors: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """The answer, and the descriptors that came with it. Refused, or ReadError where there is none."""
        with self._lock:
            return doors.ask(self._peer, self.path, message, wanted, descriptors)

    def hand(self, message: dict[str, Any], wanted: str, uses: SampleUses) -> tuple[dict[str, Any], list[int]]:
        """The same, with an order."""
        arrays: list[NDArray[Any]] = [np.ascontiguousarray(uses.rows, np.int32), uses.starts.astype(np.int64)]
        arrays += [] if uses.which is None else [uses.which.astype(np.uint8)]
        descriptor = handed.hand(None, arrays)
        try:
            return self.ask(message, wanted, [descriptor])
        finally:
            os.close(descriptor)

    def stands(self) -> bool:
        """Whether the service is there. It says nothing unasked: what comes is its end."""
        with self._lock:
            try:
                self._peer.setblocking(False)
                return self._peer.recv(1) != b""
            except BlockingIOError:
                return True
            except OSError:
                return False
            finally:
                with suppress(OSError):
                    self._peer.settimeout(ANSWER_WITHIN)

    def close(self) -> None:
        """Takes leave; a service sees that."""
        self._peer.close()


def first_rows(beneath: SampleSource) -> list[Rows]:
    """What reads each field, of the first H5Dataset."""
    return [one.rows for one in beneath.first.opened()]


def _told(beneath: SampleSource) -> tuple[list[dict[str, Any]], list[NDArray[Any]]]:
    """What is read, as a service is told it."""
    values, arrays = [], list[NDArray[Any]]()
    for at, dataset in enumerate(beneath.datasets):
        for number, (layout, extents) in enumerate(held_of(dataset)):
            first = -1 if extents is None else len(arrays)
            arrays += [] if extents is None else extents_told(extents)
            files = [os.path.realpath(one) for one in (layout.asked or layout.paths)]
            values.append({"files": files, "name": layout.name, "per_file": layout.per_file, "digest": layout.digest,
                           "dataset": at, "field": number, "arrays": first})  # fmt: skip
    return values, arrays
