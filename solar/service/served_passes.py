"""ServedPasses: the service that makes the batches of a loader, as long as there is one."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from solar.buffer.buffer_memory import not_held, those_of
from solar.buffer.planned_run import PassPlan, QueuedPass
from solar.buffer.thread import unless
from solar.errors import PlanError, SolarError
from solar.io.channels import service_sockets
from solar.io.channels.service_sockets import begin
from solar.io.system.quantities import size_of
from solar.io.system.waiting import WaitTimeout, within
from solar.planning.pass_uses import PassUses
from solar.samplers.index_stream import IndexStream
from solar.samples.source import SampleSource
from solar.service.connection import ServiceConnection
from solar.service.served_run import ServedRun

log = logging.getLogger("solar")

FIND_WITHIN = 60.0  # seconds until a service is found, or begun, and has opened the data


class ServedPasses:
    """A service as a loader uses it: it makes the batches of its passes while it is there, and has the memory."""

    def __init__(self, service: str) -> None:
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
        self._reset()

    def _reset(self) -> None:
        self.run: ServedRun | None = None
        self._owner = os.getpid()
        self._connection: ServiceConnection | None = None
        self._handed = Counter[str]()  # batches of runs that are over
        self._warned = False  # of what is not trusted
        self._looking = False  # for one, in a thread of its own
        self._met = False  # there was one: from then on it may end, and come again
        self._guessed = False  # the passes to come are guesses of ours
        self._later: Iterator[Callable[[], PassUses]] = iter(())

    @property
    def memory(self) -> int:
        """The bytes that the service has for these data."""
        return 0 if self._connection is None else self._connection.memory

    def connected(self, source: SampleSource, order: IndexStream, exchange: str) -> bool:
        """Returns whether a service makes the batches of the pass that begins. Connects to one if need be."""
        if self._owner != os.getpid():  # a forked process has connections of its own
            self._reset()
        if self._connection is None:
            self._connection = self._find_in_time(source, order, exchange)
        self._guessed = order.guessed
        return self._connection is not None

    def _find_in_time(self, source: SampleSource, order: IndexStream, exchange: str) -> ServiceConnection | None:
        """Does what `_find` does, and returns None if that takes too long, or if an earlier one has not ended yet.

        It asks for folders and files, and no signal interrupts a call of the system on a file system that hangs.
        """
        too_late = threading.Event()

        def find() -> ServiceConnection | None:
            try:
                found = self._find(source, order, exchange)
            finally:
                self._looking = False
            if found is not None and too_late.is_set():
                found.close()
            return found

        if self._looking:
            return None
        self._looking = True
        try:
            return within(FIND_WITHIN, find, f"still looking for a service (service={self._service!r})")
        except WaitTimeout as error:
            too_late.set()
            self._not_trusted(error)
            return None
        except BaseException:  # no thread could begin, or Ctrl-C
            self._looking = False
            raise

    def _find(self, source: SampleSource, order: IndexStream, exchange: str) -> ServiceConnection | None:
        """Connects to the named service, or to one of this user; returns None and the reason if there is none."""
        if why := not_held(source, ""):
            return _none(why)
        if those_of(exchange, order) is not None:
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
        """Warns once that a service is not used: another user could have put it there, or nobody answers."""
        level = logging.INFO if self._warned else logging.WARNING
        self._warned = True
        log.log(level, "%s: this training reads by itself", why)

    def begin(self, plan: PassPlan, midway: bool) -> QueuedPass | None:
        """Sends the order to the service, which plans."""
        if self.run is None:
            assert self._connection is not None
            self.run = ServedRun(self._connection)
        self._later = iter(()) if self._guessed else plan.later()
        return self._append(self.run, plan.segment)

    def append_later(self, stopped: threading.Event) -> QueuedPass | None:
        """Sends the order of the next pass, if it is known."""
        if self.run is None or (make := next(self._later, None)) is None:
            return None
        return self._append(self.run, unless(stopped, make)())

    def _append(self, run: ServedRun, segment: PassUses) -> QueuedPass:
        base = run.appended
        run.append(segment.batches.sizes, segment.batches)
        return QueuedPass(segment, base)

    @property
    def lost(self) -> bool:
        """Whether the service has gone since its run began."""
        return self.run is not None and self.run.lost

    def end(self) -> None:
        if self.run is not None:
            if self.run.lost:
                self._connection = None
            self._handed = self.counts()
            self.run.close()
            self.run = None

    def drop(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.drop()

    def counts(self) -> Counter[str]:
        """Returns how many batches came from services, and how many were read alone although one was there."""
        return self._handed + (Counter() if self.run is None else self.run.handed())

    @property
    def served(self) -> bool:
        """Whether a service has made batches."""
        return self.counts()["served"] > 0

    def held(self) -> str:
        """Describes who read the batches, if a service did."""
        counts = self.counts()
        if not counts:
            return ""
        alone = f"; {counts['alone']:,} it read by itself" if counts["alone"] else ""
        return f"A service read {counts['served']:,} batches for this training{alone}."

    def close(self) -> None:
        """Ends the connection."""
        if self._owner == os.getpid() and self._connection is not None:
            self._connection.close()
            self._connection = None

    def __getstate__(self) -> str:
        return self._service

    def __setstate__(self, service: str) -> None:
        self._service = service
        self._reset()


def _begin_with(service: str) -> str:
    """Returns the memory for a service that is to be started if none is there: "auto:64GiB"."""
    return service.removeprefix("auto:") if service.startswith("auto:") else ""


def _none(why: str) -> ServiceConnection | None:
    log.info("no service: %s", why)
    return None
