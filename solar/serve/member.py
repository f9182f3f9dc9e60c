"""Member: one job's part of a hall: what it wants, and how far it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.planner.pass_uses import SampleUses


@dataclass(eq=False)
class Member:
    """A job that takes batches, those of all its epochs one after another."""

    name: str
    process: int
    most: int  # samples of a batch
    slots: int  # that one takes in the memory of a step, at most
    ledger: _native.Ledger
    epochs: list[SampleUses]
    lately: deque[float]  # seconds of its own for a batch
    begins: int = 0  # batch from which on it is served
    planned: int = 0  # batches of the union so far
    left: bool = False
    why: str = ""  # it was left behind
    forgotten: int = 0  # batches of epochs that are over
    announced: int = 0  # batches
    rate: float = 1.0  # batches a step, as planned
    held: float = 0.0  # seconds for which it has held back others lately
    stood: float = 0.0  # and for which it has done so without making a batch
    _seen: tuple[int, float, float] = (0, 0.0, 0.0)

    @property
    def known(self) -> int:
        """How many batches it has told."""
        return self.forgotten + sum(len(one.starts) - 1 for one in self.epochs)

    def skip(self, more: int) -> None:
        """What it has made by itself is planned no more, nor what it makes so until the steps before have been made."""
        if (made := self.ledger.made) > self.planned:
            self.planned = made + more

    def forget(self) -> None:
        """Lets go of epochs of which all is planned, and announced or on its way: an order takes 4 bytes a sample."""
        while len(self.epochs) > 1 and self.forgotten + len(self.epochs[0].starts) - 1 <= self.planned:
            self.forgotten += len(self.epochs.pop(0).starts) - 1

    @property
    def longest(self) -> int:
        """The batches of its longest epoch."""
        return max((len(one.starts) - 1 for one in self.epochs), default=0)

    def stretch(self, begin: int, end: int) -> SampleUses:
        """These of its batches, as far as it has told them."""
        rows, which, sizes, at = [], [], [], self.forgotten
        for one in self.epochs:
            own = slice(max(0, begin - at), max(0, min(len(one.starts) - 1, end - at)))
            at += len(one.starts) - 1
            if own.start >= own.stop:
                continue
            uses = slice(int(one.starts[own.start]), int(one.starts[own.stop]))
            rows.append(one.rows[uses])
            which.append(None if one.which is None else one.which[uses])
            sizes.append(one.sizes[own])
        starts = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        several = [one for one in which if one is not None]
        # Of several data sets it is so even where it has nothing left: others' batches are planned by the first one's.
        return SampleUses(
            None if self.epochs[-1].which is None else np.concatenate([*several, np.empty(0, np.int64)]),
            np.concatenate([*rows, np.empty(0, np.int32)]),
            starts,
        )

    def done(self, number: int) -> bool:
        """Whether it looks at this batch no more."""
        return self.left or self.ledger.made > number

    @property
    def waiting(self) -> bool:
        """Whether it waits for a batch that is not there yet."""
        return not self.left and self.ledger.waits > self.announced

    def look(self, now: float) -> bool:
        """Notes how long it takes for a batch, without what it waits for one. Whether it made one since."""
        made = self.ledger.made
        before, since, waited_before = self._seen
        if made > before:
            waited = self.ledger.waited
            if before:
                self.lately.append(max(0.0, now - since - max(0.0, waited - waited_before)) / (made - before))
            self._seen = made, now, waited
        return made > before

    def detach(self, why: str) -> None:
        """It gets no more: what it has not taken may be overwritten from here on."""
        self.why, self.left = why, True
        self.ledger.gone(self.ledger.made)


class Share:
    """What a member has of a step."""

    __slots__ = ("member", "nbytes", "number", "places")

    def __init__(self, member: Member, number: int, places: NDArray[np.uint32], nbytes: int) -> None:
        self.member, self.number, self.places, self.nbytes = member, number, places, nbytes
