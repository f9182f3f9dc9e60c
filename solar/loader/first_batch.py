"""Shows the progress of an epoch's first batch while it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solar.io.channels.progress import waiting
from solar.io.reading.engine import Engine, Ticket
from solar.io.reading.run import Running
from solar.loader.batch_sources import ReaderBatches


def waited_for(passing: Any) -> Any:
    """Returns the first batch of an EpochIterator, and shows its progress meanwhile."""
    return waiting("reading the first batch", passing._next_data, percent(lambda: last_ticket(passing)), 100, "%")


def percent(last: Callable[[], int]) -> Callable[[], int | None]:
    """Returns a function that tells how much of the reading up to the engine's `last` ticket is done; None: unknown.

    Reads of another loader of this process count, too.
    """
    before, _ = Engine.progress(0)
    most: int | None = None

    def done() -> int | None:
        nonlocal most
        if (ticket := last()) > 0:
            of, all_ = (pieces - before for pieces in Engine.progress(ticket))
            most = max(most or 0, 100 * of // max(1, all_))
        return most

    return done


def last_ticket(passing: Any) -> int:
    """Returns the engine's last ticket that the oldest batch waits for; 0: there is none yet, or it is unknown."""
    try:
        if passing._starter.buffered_pass is not None:
            run = passing._starter.buffered_pass.run
            return run.due() if isinstance(run, Running) else 0
        if passing._direct is not None and isinstance(source := passing._direct.source, ReaderBatches):
            return max(source.tickets())
        works = (part.work for one in passing._queue.oldest.pending.fields for part in one.parts)
        return max((one.number for one in works if isinstance(one, Ticket)), default=0)
    except (AttributeError, IndexError, ValueError):  # it comes, or goes, meanwhile
        return 0
