"""ServiceConnection: the connection of a loader to a service (io/SERVICE.md)."""

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

from solar.io.channels import frames, service_sockets
from solar.io.channels.frames import Refused
from solar.planning.pass_uses import SampleUses
from solar.samples.source import SampleSource
from solar.service.served_data import description_of, served_data

ANSWER_WITHIN = 10.0  # seconds that a service has for an answer


class ServiceConnection:
    """A connection to a service that has opened this loader's data."""

    def __init__(self, path: Path, source: SampleSource, owner: int | None = None) -> None:
        self.path, self.held = path, served_data(source)
        self._lock = threading.Lock()
        self._peer, welcome = service_sockets.greeted(path, ANSWER_WITHIN, Path(sys.argv[0]).name, owner)
        try:
            self.memory: int = welcome["memory"]
            descriptor = frames.hand(*description_of(source))
            try:
                answer, _ = self.ask({"is": "data"}, "opened", [descriptor])
            finally:
                os.close(descriptor)
            self.data: int = answer["data"]
            own = [one.parts_nbytes for one in self.held.firsts]
            if answer["fields"] != own:
                raise Refused(f"{path}: the service finds samples of other sizes")
            self.fields = own
        except BaseException:
            self.close()
            raise

    def ask(
        self, message: dict[str, Any], wanted: str, descriptors: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Sends a question; returns the answer and its descriptors. Raises Refused, or ReadError without an answer."""
        with self._lock:
            return service_sockets.ask(self._peer, self.path, message, wanted, descriptors)

    def hand(self, message: dict[str, Any], wanted: str, uses: SampleUses) -> tuple[dict[str, Any], list[int]]:
        """Returns the same, with an order."""
        arrays: list[NDArray[Any]] = [np.ascontiguousarray(uses.rows, np.int32), uses.starts.astype(np.int64)]
        arrays += [] if uses.which is None else [uses.which.astype(np.uint8)]
        descriptor = frames.hand(None, arrays)
        try:
            return self.ask(message, wanted, [descriptor])
        finally:
            os.close(descriptor)

    def stands(self) -> bool:
        """Returns whether the service is there. It never sends unasked, so anything that arrives is its end."""
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
        """Closes the connection; the service sees that."""
        self._peer.close()
