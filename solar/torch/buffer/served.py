"""Served: a loader whose samples a service reads for it (`solar serve`), as long as there is one, and alone else."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from solar.errors import PlanError, SolarError
from solar.io.serve import doors
from solar.torch.buffer.buffer import Buffered
from solar.torch.buffer.door import Door
from solar.torch.buffer.group import Room, those_of
from solar.torch.buffer.located import Hold, PassPlan, Queued, not_held
from solar.torch.buffer.served_run import COPIED, ServedRun
from solar.torch.buffer.thread import in_background
from solar.torch.source import SampleSource

log = logging.getLogger("solar")


class Served(Buffered):
    """A loader's buffer where a service may have one for all: then that is its own."""

    def __init__(self, service: str, *of_buffer: Any) -> None:
        self._service = service
        super().__init__(*of_buffer)

    def _reset(self) -> None:
        self._door: Door | None = None
        super()._reset()

    def room(self, beneath: Any, course: Any, order: Any, own: Any, replaced: Any) -> Room | None:
        """As a buffer's; with a service, whatever it has."""
        if self._owner != os.getpid():
            self._reset()
        with self._lock:
            if isinstance(self.running, ServedRun) and self.running._door is None:
                self._end()
                self._door = None
            if self._door is None:
                self._door = self._found(beneath, order)
            if self._door is not None:
                if self._held_by_another(None):
                    return None
                self._chosen, self._guessed = self._door.memory, order.guessed
                left = None if self._epochs is None else max(0, self._epochs - course.epoch - 1)
                return Room(None, self._door.memory, left)
            self._chosen = None
        return super().room(beneath, course, order, own, replaced)

    def _found(self, beneath: SampleSource, order: Any) -> Door | None:
        """A connection to the service that is named, or to one of this user's; None, and why, where there is none."""
        if beneath.ragged or beneath.boxes or beneath.draws:
            return _none("samples of unequal length, and boxes, are read by each job for itself")
        if any(layout.far for layout in beneath.layouts()):
            return _none("files by URL are read by each job for itself")
        if why := not_held(beneath, ""):
            return _none(why)
        if those_of(self._exchange, order) is not None:
            return _none("the ranks of one training share a buffer of their own")
        named = [] if self._service == "auto" else [Path(self._service)]
        files = sorted({one for layout in beneath.layouts() for one in (layout.asked or layout.paths)})
        first = doors.socket_of(files)
        paths = named or sorted(doors.found(), key=lambda one: one != first)
        said = "no service is there: start one by `solar serve FILE --memory SIZE`"
        for path in paths:
            try:
                return Door(path, beneath)
            except (SolarError, OSError) as error:
                said = str(error)
        if named and not named[0].exists():
            raise PlanError(f"service={self._service!r}: {said}")
        return _none(said)

    def enter(self, plan: PassPlan, hold: Hold | None) -> Hold | None:
        """As a buffer's."""
        door = self._door
        if door is None:
            return super().enter(plan, hold)
        with self._lock:
            if self._held_by_another(hold):
                return None
            work, self._work = self._work, None
            if work is not None and (error := work.error()) is not None:
                log.warning("the pass to come could not be told beforehand: %r", error)
            queued = self._queue.popleft() if self._queue and hold is None else None
            run: Any = self.running
            if hold is None and run is not None:
                fits = queued is not None and queued.segment.same(plan.segment) and run.given == queued.base
                if not fits:
                    self._end()
                    queued, run = None, None
            if run is None:
                run = self.running = ServedRun(door, plan.beneath)
            assert run is not None
            if queued is None:
                queued = Queued(plan.segment, run.appended)
                run.append(plan.segment.batches.sizes, plan.segment.batches, None)
            self._holder = hold = hold or Hold(run, 0, 0)
            hold.run, hold.base, hold.staged = run, queued.base, COPIED
            if not self._guessed:
                self._work = in_background(partial(self._tell_later, run, plan))
            return hold

    def _tell_later(self, run: Any, plan: PassPlan, stopped: threading.Event) -> None:
        for make in islice(plan.later(), 1):
            segment = make()
            if not stopped.is_set():
                self._queue.append(Queued(segment, run.appended))
                run.append(segment.batches.sizes, segment.batches)

    def held(self) -> str:
        """Who read the batches, where a service did."""
        run: Any = self.running
        if not isinstance(run, ServedRun):
            return super().held()
        counts = run.counts()
        alone = f", and {counts['alone']:,} were read alone" if counts["alone"] else ""
        return f"A service read {counts['served']:,} batches for this training{alone}."

    def close(self) -> None:
        """Ends the run, and the connection."""
        super().close()
        if self._owner == os.getpid() and self._door is not None:
            self._door.close()
            self._door = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_service": self._service}


def _none(why: str) -> Door | None:
    log.info("no service: %s", why)
    return None
