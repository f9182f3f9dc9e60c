"""BulkChannel: sends arrays between ranks, in threads that wait for them; and broadcasts from rank 0.

Nothing here knows what the bytes mean. An *errand* is a generator for one task: it yields the messages that it waits
for, or None to wait until its bell rings. With MPI one thread polls for all errands, because blocking in MPI burns a
core. gloo can only block, but that burns nothing, so there each errand has a thread.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError, ReadError
from solar.io.channels.alive import BURIAL
from solar.io.channels.world import distributed_module, mpi_module
from solar.io.system.waiting import polling, until, until_others

Bytes: TypeAlias = NDArray[np.uint8]
Errand: TypeAlias = Generator[list[Any] | None, None, None]

SHORTEST, LONGEST = 20e-6, 1e-3  # seconds between two looks at what MPI has done
FOR_EVER = timedelta(days=365)  # for a letter: after gloo's own time limit all connections break
TOGETHER = timedelta(seconds=60)  # that ranks which have just met may need to connect
NAME = "solar exchange"  # of the threads
MOST_NUMBERS = 1 << 14  # every MPI has twice as many tags
MAIL_TAG = 0  # one for all: what one rank sends another comes in the order in which it was sent


class Gone(Exception):
    """The connection is broken. It is raised in the errand that waits for it."""


class BulkChannel(Protocol):
    """Carries messages between all ranks. Those from one rank to another arrive in the order of sending."""

    rank: int
    ranks: int
    cancels: bool  # whether `cancel` can be called

    def send(self, peer: int, letter: Bytes) -> Any:
        """Begins to send. The bytes must stay unchanged until this message has been waited for."""

    def receive(self, peer: int, letter: Bytes) -> Any:
        """Begins to receive as many bytes as `letter` has room for."""

    def cancel(self, receive: Any) -> None:
        """Ends the wait for a message that nobody sends. The errand that waits for it goes on."""

    def run(self, errand: Errand) -> threading.Event:
        """Begins an errand, in a thread that lives as long as it. Returns the bell that wakes it."""

    def join(self, seconds: float) -> None:
        """Waits for the threads whose errands are over: Python must not end while they still free messages."""

    def slow_down(self) -> None:
        """Polls less often: nothing urgent is left."""

    def stop(self, seconds: float) -> None:
        """Stops polling for messages, some of which will never arrive. Waits this long for the thread."""

    def free(self) -> None:
        """Frees the communicator or group. No message may be on its way."""


def mail(by: str, check: Callable[[], None] = lambda: None) -> BulkChannel:
    """Returns a new bulk channel among all ranks, by "mpi" or "torch". All ranks make it together.

    `check` is called now and then while ranks arrive, and raises an error, for example if one is gone.
    """
    if by == "mpi":
        mpi = mpi_module()
        if mpi is None:
            raise PlanError('samples were to be exchanged over MPI, and MPI is not initialised: import "mpi4py.MPI"')
        return MpiBulkChannel(mpi, check)
    distributed = distributed_module()
    if distributed is None:
        raise PlanError(
            "samples were to be exchanged over torch.distributed, and it has no process group: call init_process_group"
        )
    return TorchBulkChannel(distributed, check)


def numbered_mail(check: Callable[[], None] = lambda: None) -> Callable[[int], BulkChannel]:
    """Returns what makes bulk channels over MPI without a meeting: those of one number belong together on all ranks.

    All ranks call this together, once. A number may be used again when its channel is closed.
    """
    mpi = mpi_module()
    if mpi is None:
        raise PlanError('samples were to be exchanged over MPI, and MPI is not initialised: import "mpi4py.MPI"')
    first = MpiBulkChannel(mpi, check)
    return lambda number: MpiBulkChannel(mpi, check, (first, 1 + number % MOST_NUMBERS))


def go_on(errand: Errand, error: Gone | None) -> tuple[bool, list[Any] | None]:
    """Runs an errand further. Returns whether it has more to do, and what it waits for now."""
    try:
        return True, next(errand) if error is None else errand.throw(error)
    except StopIteration:
        return False, None


class MpiBulkChannel:
    """Messages over a communicator of their own, or over another channel's with another tag."""

    cancels = True

    def __init__(self, mpi: Any, check: Callable[[], None], beside: tuple[MpiBulkChannel, int] | None = None) -> None:
        if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
            raise PlanError(
                "MPI was initialised for one thread at a time, and samples are exchanged beside the training: leave "
                'mpi4py.rc.thread_level at "multiple" and use an MPI that has it, or give exchange="read"'
            )
        self._mpi = mpi
        self._tag = MAIL_TAG
        if beside is None:
            self._communicator, request = mpi.COMM_WORLD.Idup()
            until_others(polling(request.Test), "the exchange of samples over MPI", str, look=check)
        else:
            self._communicator, self._tag = beside[0]._communicator, beside[1]
        self.rank, self.ranks = self._communicator.Get_rank(), self._communicator.Get_size()
        self._bell, self._lock = threading.Event(), threading.Lock()
        self._begun: list[_Walk] = []  # that the thread has not yet seen
        self._thread, self._goes_round = threading.Thread(target=self._go_round), False
        self._longest, self._stopped = LONGEST, False

    def send(self, peer: int, letter: Bytes) -> Any:
        return self._start("Isend", letter, peer)

    def receive(self, peer: int, letter: Bytes) -> Any:
        return self._start("Irecv", letter, peer)

    def cancel(self, receive: Any) -> None:
        if not self._mpi.Is_finalized():
            receive.Cancel()

    def _start(self, verb: str, letter: Bytes, peer: int) -> Any:
        if self._mpi.Is_finalized():  # what is called now would end the process
            raise Gone("MPI was finalised")
        try:
            return getattr(self._communicator, verb)([letter, self._mpi.BYTE], peer, self._tag)
        except self._mpi.Exception as error:
            raise Gone(str(error)) from error

    def run(self, errand: Errand) -> threading.Event:
        with self._lock:
            self._begun.append(_Walk(errand))
            if not self._goes_round:
                self._goes_round = True
                self._thread = threading.Thread(target=self._go_round, name=NAME, daemon=True)
                self._thread.start()
        self._bell.set()
        return self._bell

    def _go_round(self) -> None:
        walks: list[_Walk] = []
        pause = SHORTEST
        while True:
            rung = self._bell.is_set()
            self._bell.clear()  # before they look at what it rang for
            with self._lock:
                walks, self._begun = walks + self._begun, []
                if not walks or self._stopped:
                    self._goes_round = False
                    return
            moved = [self._advance(walk, rung) for walk in walks]
            walks = [walk for walk in walks if walk.goes_on]
            if any(moved):
                pause = SHORTEST
            elif any(walk.letters for walk in walks):
                time.sleep(pause)
                pause = min(2 * pause, self._longest)
            elif walks:
                self._bell.wait()

    def _advance(self, walk: _Walk, rung: bool) -> bool:
        error = None
        if walk.letters:
            try:
                if self._mpi.Is_finalized():
                    raise Gone("MPI was finalised")
                if not self._mpi.Request.Testall(walk.letters):
                    return False
            except self._mpi.Exception as broken:
                error = Gone(str(broken))
            except Gone as gone:
                error = gone
        elif walk.begun and not rung:
            return False
        walk.begun = True
        walk.goes_on, walk.letters = go_on(walk.errand, error)
        return not walk.goes_on or bool(walk.letters)

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:  # it was started
            self._thread.join(seconds)

    def slow_down(self) -> None:
        self._longest = 50 * LONGEST

    def stop(self, seconds: float) -> None:
        self._stopped = True
        self._bell.set()
        self.join(seconds)

    def free(self) -> None:
        if self._tag == MAIL_TAG and not self._mpi.Is_finalized():  # others are beside a channel, which has it
            self._communicator.Free()


class _Walk:
    """An errand, and what it waits for."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.begun, self.goes_on = False, True
        self.letters: list[Any] | None = None


class TorchBulkChannel:
    """Messages over a gloo group of their own."""

    cancels = False

    def __init__(self, distributed: Any, check: Callable[[], None]) -> None:
        self._distributed = distributed
        self._tensor = sys.modules["torch"].from_numpy
        self._threads: list[threading.Thread] = []
        self._group = new_group(distributed, check)
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()

    def send(self, peer: int, letter: Bytes) -> Any:
        return self._start(self._distributed.isend, _writable(letter), peer)

    def receive(self, peer: int, letter: Bytes) -> Any:
        return self._start(self._distributed.irecv, letter, peer)

    def cancel(self, receive: Any) -> None:
        raise NotImplementedError("gloo cannot cancel a receive")

    def _start(self, verb: Any, letter: Bytes, peer: int) -> Any:
        try:
            return verb(self._tensor(letter), peer, group=self._group, tag=MAIL_TAG)
        except (RuntimeError, ValueError) as error:  # a broken connection; a group that the user has destroyed
            raise Gone(str(error)) from error

    def run(self, errand: Errand) -> threading.Event:
        bell = threading.Event()
        self._threads.append(threading.Thread(target=_walk, args=(errand, bell), name=NAME, daemon=True))
        self._threads[-1].start()
        return bell

    def join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def slow_down(self) -> None:
        pass

    def stop(self, seconds: float) -> None:
        pass  # each of its threads waits in gloo, until the connection breaks

    def free(self) -> None:
        if self._distributed.is_initialized():
            self._distributed.destroy_process_group(self._group)


def new_group(distributed: Any, check: Callable[[], None]) -> Any:
    """Returns a new group of all ranks. A thread makes it, because it waits for all of them and ignores Ctrl-C."""
    made: list[Any] = []

    def make() -> None:
        try:
            made.append(distributed.new_group(backend="gloo", timeout=TOGETHER))
        except Exception as error:
            made.append(error)

    threading.Thread(target=make, name=NAME, daemon=True).start()
    until_others(polling(lambda: made), "the exchange of samples over torch.distributed", str, look=check)
    if isinstance(made[0], Exception):
        until(polling(check), BURIAL)  # whose end it was may be seen to have ended only now
        raise ReadError(f"the ranks cannot exchange samples over torch.distributed ({made[0]})") from made[0]
    return made[0]


def _writable(letter: Bytes) -> Bytes:
    """Returns the bytes as if they were writable: torch has no read-only tensors, and warns."""
    if letter.flags.writeable or not len(letter):
        return letter
    address = letter.__array_interface__["data"][0]
    alias: Any = (ctypes.c_uint8 * len(letter)).from_address(address)
    alias.letter = letter  # which must not go while this is sent
    return np.frombuffer(memoryview(alias), np.uint8)


def _walk(errand: Errand, bell: threading.Event) -> None:
    goes_on, error = True, None
    while goes_on:
        bell.clear()  # before it looks at what it rang for
        goes_on, letters = go_on(errand, error)
        error = None
        if goes_on and letters is None:
            bell.wait()
        while letters:  # each goes when it has come, for its memory is that of a batch
            try:
                letters.pop(0).wait(FOR_EVER)
            except RuntimeError as broken:
                error = Gone(str(broken))


# Broadcasts arrays from rank 0 to all ranks. Each rank passes on what it has while more arrives.


CAST_PIECE = 4 << 20  # bytes that are passed on together
CAST_PARTING = 5.0  # seconds for the thread to end, which has nothing left to do


def cast(
    mail: BulkChannel, arrays: Sequence[NDArray[Any]], what: str, check: Callable[[], None] = lambda: None
) -> None:
    """Fills these arrays, which have the same size on all ranks, with those of rank 0. All ranks call it together.

    Each rank sends to two others, so rank 0 sends everything twice, however many ranks there are. `check` is called now
    and then, and raises an error if a rank is gone.
    """
    pieces = [flat[at : at + CAST_PIECE] for flat in map(_bytes_of, arrays) for at in range(0, len(flat), CAST_PIECE)]
    ended = threading.Event()
    broken: list[Gone] = []
    mail.run(_errand(mail, pieces, ended, broken))
    until_others(ended.wait, f"{what} of rank {mail.rank} of {mail.ranks}", str, look=check)
    mail.join(CAST_PARTING)
    if broken:
        raise PlanError(f"rank {mail.rank} of {mail.ranks} lost the others while {what} was sent to it: {broken[0]}")


def _bytes_of(array: NDArray[Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def _errand(mail: BulkChannel, pieces: list[Bytes], ended: threading.Event, broken: list[Gone]) -> Errand:
    children = [rank for rank in (2 * mail.rank + 1, 2 * mail.rank + 2) if rank < mail.ranks]
    coming: list[Any] = []
    leaving: list[Any] = []
    try:
        if mail.rank:
            coming = [mail.receive((mail.rank - 1) // 2, piece) for piece in pieces]
        for number, piece in enumerate(pieces):
            if mail.rank:
                yield [coming[number]]
            leaving += [mail.send(child, piece) for child in children]
        if leaving:
            yield leaving
    except Gone as gone:
        broken.append(gone)
    finally:
        ended.set()
