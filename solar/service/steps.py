"""Steps: the Run of a shared reader, whose batches lie in memory that jobs may map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import SolarError
from solar.io.reading.engine import LAST_WAIT, Engine
from solar.io.reading.reader import Rows
from solar.io.reading.run import columns
from solar.io.system.waiting import WaitTimeout
from solar.values import PartScript, RunPart


class Steps:
    """A native Run of steps. They are taken one after another, as bytes: for each part of a field a row a sample."""

    def __init__(
        self,
        rows: Sequence[Rows],
        parts: Sequence[RunPart],
        fields: Sequence[Sequence[int]],
        staged: int,
        scratch: int,
        pool: _native.SharedPool,
    ) -> None:
        self.parts, self.staged, self.appended = tuple(parts), staged, 0
        self.nbytes = sum(part.pages * part.page for part in parts)
        self._fields, self.row_nbytes = fields, [nbytes for one in fields for nbytes in one]
        self._run = _native.Run(Engine.get(), staged, scratch, None, 0, pool)
        self._begun = 0  # of the steps that were taken, or cannot be
        for one, part in zip(rows, parts, strict=True):
            own = None if part.extents is None else part.extents.native
            terms = part.pages, part.page, part.stored, part.direct, part.ahead, part.gap
            assert one.source is not None, "what libhdf5 reads is refused"
            self._run.part(one.source, part.field, *terms, own, None, part.pack)

    def append(self, sizes: NDArray[np.int64], scripts: Sequence[PartScript], parcels: None = None) -> None:
        """The next steps, whose memory has so many samples each."""
        self._run.append(np.ascontiguousarray(sizes), [columns(one) for one in scripts])
        self.appended += len(sizes)

    def wait(self, number: int, samples: int, seconds: float | None) -> tuple[list[NDArray[Any]], dict[str, int]]:
        """Returns the memory of the next step. Raises WaitTimeout after so many seconds, or the error of the step.

        A step that failed was taken, too.
        """
        assert number == self._begun, "steps are taken one after another"
        assert seconds is not None
        try:
            came = self._run.take(seconds)
        except (SolarError, MemoryError):
            self._begun += 1
            raise
        if came is None:
            raise WaitTimeout.values(seconds, self._run.waiting_for())
        self._begun += 1
        values = []
        for nbytes, memory in zip(self._fields, came[0], strict=True):
            at = 0
            for one in nbytes:
                values.append(memory[at : at + samples * one].reshape(samples, one))
                at += samples * one
        return values, {}

    @property
    def broken(self) -> bool:
        """Whether what went wrong was more than one step's: nothing comes any more."""
        return self._begun > self._run.counts()["steps"]

    def let_go(self, number: int) -> None:
        """Whoever took it has it."""

    def counts(self) -> dict[str, int]:
        """What was read, held and found."""
        return self._run.counts()

    def fail(self, why: Exception) -> None:
        """Nobody else has to know."""

    def close(self) -> None:
        """Ends it."""
        self._run.close(LAST_WAIT)
