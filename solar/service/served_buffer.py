"""ServedBuffer: the buffer of a loader whose samples a service reads."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from typing import Any

from solar.buffer.buffer import LoaderBuffer
from solar.buffer.located import PassPlan, QueuedPass, not_held
from solar.buffer.rank_group import RankMemory, those_of
from solar.buffer.thread import unless
from solar.errors import PlanError, SolarError
from solar.io.channels import service_sockets
from solar.io.channels.service_sockets import begin
from solar.io.system.quantities import size_of
from solar.planning.pass_uses import PassUses
from solar.samples.source import SampleSource
from solar.service.connection import ServiceConnection
from solar.service.served_run import ServedRun

log = logging.getLogger("solar")

ITS_OWN = 1 << 62  # bytes: whether a service's memory is enough it says itself


class ServedBuffer(LoaderBuffer):
    """The buffer of a loader that uses a service. While the service is there, it has the memory."""

    def __init__(self, service: str, *of_buffer: Any) -> None:
        self._service = service
        if not isinstance(service, str):
            raise TypeError(
                f"service={service!r}: 'auto', 'auto:64GiB', the path of a service's socket, or 'user:NAME:PATH' for "
                "the service of another user, as text"
            )
        if service.lower().partition(":")[0] == "auto" != service.partition(":")[0]:
            raise PlanError(f"service={service!r}: did you mean {service.lower()!r}? Else a path begins with ./ or /")
        if memory := _begin_with(service):
            try:
                size_of(memory, 0)
            except PlanError as error:
                raise PlanError(f"service={service!r}: {error}") from None
        elif service != "auto":
            service_sockets.named_service(service)  # whether there is such a user
        super().__init__(*of_buffer)

    def _reset(self) -> None:
        self._door: ServiceConnection | None = None
        self._handed = Counter[str]()  # batches of runs that are over
        self._warned = False  # of what is not trusted
        self._met = False  # there was one: from then on it may end, and come again
        super()._reset()

    def room(self, source: Any, sampler_state: Any, order: Any, own: Any, replaced: Any) -> RankMemory | None:
        """Returns the memory of a pass; with a service there always is some."""
        if self._owner != os.getpid():
            self._reset()
        with self._lock:
            if isinstance(self.running, ServedRun) and self.running._door is None:
                self._end()
                self._door = None
            if self._door is None:
                self._door = self._find(source, order)
            if self._door is not None:
                if self._serve_held_by_other(None):
                    return None
                self._nbytes_chosen, self._guessed = self._door.memory, order.guessed
                left = None if self._epochs is None else max(0, self._epochs - sampler_state.epoch - 1)
                return RankMemory(None, ITS_OWN, 1, left)
            self._nbytes_chosen = None
        return super().room(source, sampler_state, order, own, replaced)

    def _find(self, source: SampleSource, order: Any) -> ServiceConnection | None:
        """Connects to the named service, or to one of this user; returns None and the reason if there is none."""
        if why := not_held(source, ""):
            return _none(why)
        if those_of(self._exchange, order) is not None:
            return _none('the ranks of one training share a buffer of their own; with exchange="off" each takes part')
        memory = _begin_with(self._service)
        named = None if memory or self._service == "auto" else service_sockets.named_service(self._service)
        files = sorted({one for layout in source.layouts() for one in (layout.asked or layout.paths)})
        first, owner = service_sockets.socket_of(files), None if named is None else named[1]
        said = "none is there: start one by `solar serve FILE --memory SIZE`"
        try:
            paths = [named[0]] if named else sorted(service_sockets.found(), key=lambda one: one != first)
        except (PlanError, OSError) as error:
            self._not_trusted(error)
            return None
        for path in paths:
            try:
                found = ServiceConnection(path, source, owner)
                self._met = True
                return found
            except PlanError as error:
                if named and not self._met:
                    raise
                self._not_trusted(error)
                return None
            except (SolarError, OSError) as error:
                said = str(error)
        if named and not self._met and not named[0].exists():
            raise PlanError(f"service={self._service!r}: {said}")
        if memory:
            try:
                begin(first, files, memory)
                return ServiceConnection(first, source)
            except PlanError as error:
                log.warning("%s: this training reads by itself", error)
                self._service = "auto"  # it does not try again; others may
                return None
            except (SolarError, OSError) as error:
                said = str(error)
        return _none(said)

    def _not_trusted(self, why: Exception) -> None:
        """Warns once that a service is not used, because another user could have put it there."""
        level = logging.INFO if self._warned else logging.WARNING
        self._warned = True
        log.log(level, "%s: this training reads by itself", why)

    def _new_window(self, plan: PassPlan, amid: bool) -> QueuedPass | None:
        """Sends the order to the service, which plans."""
        if self._door is None:
            return super()._new_window(plan, amid)
        if self.running is None:
            self.running = ServedRun(self._door)
        assert isinstance(self.running, ServedRun)
        self._later = iter(()) if self._guessed else plan.later()
        return self._tell(self.running, plan.segment)

    def _append_later(self, stopped: threading.Event) -> None:
        if not isinstance(self.running, ServedRun):
            super()._append_later(stopped)
        elif (make := next(self._later, None)) is not None:
            self._queue.append(self._tell(self.running, unless(stopped, make)()))

    def _tell(self, running: ServedRun, segment: PassUses) -> QueuedPass:
        base = running.appended
        running.append(segment.batches.sizes, segment.batches)
        return QueuedPass(segment, base)

    def _end(self) -> None:
        self._handed = self._counts()
        super()._end()

    def _counts(self) -> Counter[str]:
        """Returns how many batches came from services, and how many were read alone although one was there."""
        running = self.running
        return self._handed + (running.handed() if isinstance(running, ServedRun) else Counter())

    @property
    def served(self) -> bool:  # type: ignore[override]
        """Whether a service has made batches."""
        return self._counts()["served"] > 0

    def held(self) -> str:
        """Describes who read the batches, if a service did."""
        counts = self._counts()
        if not counts:
            return super().held()
        alone = f"; {counts['alone']:,} it read by itself" if counts["alone"] else ""
        return f"A service read {counts['served']:,} batches for this training{alone}."

    def close(self) -> None:
        """Ends the run and the connection."""
        super().close()
        if self._owner == os.getpid() and self._door is not None:
            self._door.close()
            self._door = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_service": self._service}


def _begin_with(service: str) -> str:
    """Returns the memory for a service that is to be started if none is there: "auto:64GiB"."""
    return service.removeprefix("auto:") if service.startswith("auto:") else ""


def _none(why: str) -> ServiceConnection | None:
    log.info("no service: %s", why)
    return None
