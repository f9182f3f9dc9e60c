"""Ending: how all ranks of an exchange learn that all have closed and that nothing is on its way.

    the ranks below --UP: letters sent, letters received--> a rank --UP: the sums of its branch--> the rank above
    the ranks below <-------DOWN: all is over-------------- a rank <-------------DOWN------------- the rank above

Ranks form a tree. One that has closed, and has UP from all directly below it, sends UP itself, and again whenever
letters that were late have come to its branch. Rank 0 has the sums of all in the end. If all letters that were sent
have been received, it says DOWN. So a rank sends one letter to each rank that it has above and below, however many
there are, and a few more for what was late.

Because ranks do not tell each other that they close, one that has waited for another asks it: ASK. The answer is the
next rows that this one sends, or END when it closes. A rank counts an answer as sent when it asks. So what it has sent
is known when it closes, although others may answer it later.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DIRECTLY_BELOW = 8  # ranks directly below one

NOTHING, ROWS, FAILED, END, ASK, UP, DOWN = range(7)


class Head(NamedTuple):
    """The beginning of a message: five numbers."""

    kind: int  # what follows; NOTHING: it was cancelled
    number: int = 0  # of which batch; of UP, letters sent
    letter: int = 0  # of which arrays of it; of UP, letters received
    length: int = 0  # how many rows that are, or bytes of a text that says why
    answers: int = 0  # whether it answers an ASK


class Ending:
    """What one rank knows of the end. It sends nothing: it says what is to be sent to whom. Hold a lock to call it."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.above = None if rank == 0 else (rank - 1) // DIRECTLY_BELOW
        self.below = range(
            min(DIRECTLY_BELOW * rank + 1, ranks), min(DIRECTLY_BELOW * rank + 1 + DIRECTLY_BELOW, ranks)
        )
        self.over = False  # nothing more comes
        self.receives: dict[int, Any] = {}  # of each rank the head that may come from it
        self._sent = self._received = 0  # letters and answers, but for UP and DOWN
        self._closed = False
        self._said, self._telling = (-1, -1), False  # the sums that were told last; whether they are on their way
        self._branches: dict[int, tuple[int, int]] = {}  # sums, by who sent them
        self._asked: set[int] = set()  # who was asked and has not answered
        self._asking: set[int] = set()  # who has asked and was not answered

    def sends(self, peer: int, head: Head) -> Head:
        """Notes that rows, or why there are none, will go to a rank. Returns their head. Call it before they go."""
        self._sent += 1
        head = head._replace(answers=int(peer in self._asking))
        self._asking.discard(peer)
        return head

    def takes(self, peer: int, head: Head) -> list[tuple[int, Head]]:
        """Takes a letter of a rank that is here, with what follows its head. Returns to whom to send what.

        Call `has_told` when that has left.
        """
        if head.kind == DOWN:
            return self._end()
        if head.kind == UP:
            self._branches[peer] = head.number, head.letter
        else:
            self._received += head.kind != END
        if head.answers:
            self._received += 1
            self._asked.discard(peer)
        return self.sum_up()

    # --- who has closed ----

    def asks(self, peers: set[int]) -> set[int]:
        """Returns those of these ranks that are to be asked whether they have closed."""
        new = set() if self._closed else peers - self._asked
        self._asked |= new
        self._sent += 2 * len(new)  # with the answers
        return new

    def is_asked(self, peer: int) -> bool:
        """Notes that a rank asks. Returns whether it is to be told END now, before `takes`."""
        if not self._closed:
            self._asking.add(peer)
        return self._closed

    def close(self) -> list[int]:
        """Notes that this rank sends no more rows, and asks nobody. Returns whom it is to tell END."""
        self._closed = True
        return sorted(self._asking)

    # --- whether all is over ----

    def missing(self) -> list[int]:
        """Returns the ranks below in whose branches not all have closed."""
        return [rank for rank in self.below if rank not in self._branches]

    def sum_up(self) -> list[tuple[int, Head]]:
        """Returns to whom to send what, if it is not yet said. Call it after `close`; `takes` does it later."""
        if self.over or self._telling or not self._closed or self.missing():
            return []
        sent = self._sent + sum(sums[0] for sums in self._branches.values())
        received = self._received + sum(sums[1] for sums in self._branches.values())
        if self.above is None:
            return self._end() if sent == received else []
        if (sent, received) == self._said:
            return []
        self._said, self._telling = (sent, received), True
        return [(self.above, Head(UP, sent, received))]

    def has_told(self) -> list[tuple[int, Head]]:
        """Notes that what was to be sent has left. Returns what is to be sent because of what came meanwhile."""
        self._telling = False
        return self.sum_up()

    def _end(self) -> list[tuple[int, Head]]:
        self.over = True
        return [(rank, Head(DOWN)) for rank in self.below]
