"""The program of such a process, and the channel to its parent.

A channel is a pair of connected sockets with a Channel at each end. Both send frames; a frame may bring a descriptor.

    frame   u32 descriptors (0 or 1), u32 nbytes, then that many bytes: the pickle of
            (kind, task, freed, gone, slab, places, stream)

What is sent is pickled with protocol 5. Small things travel in `stream`; buffers from SMALL_BUFFER bytes on, and a long
stream, lie at `places` of one slab: a memfd that both ends map, nameless, so that no crash leaves it behind. Who sends
owns its slabs and writes them. Who receives makes arrays over them, and tells which ones nothing there refers to any
more (`freed`): these are written again. Those long unused are unmapped (`gone`). So a large array is copied once on
its way, into memory that both ends have touched before.
"""

from __future__ import annotations

import io
import itertools
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import SolarError
from solar.io.channels.pickles import Reducers, Sealed, Unpickler, dump, pack_error

Places = list[tuple[int, int]]  # first byte and number of bytes

TASK, RESULT, ERROR = range(3)
FRAME = struct.Struct("<II")
SMALL_BUFFER = 16 << 10  # a buffer below this is copied into the pickle
LONG_PICKLE = 32 << 10  # a pickle above this lies in a slab, so that frames stay well below what a socket holds
ALIGN = 64
IDLE_MESSAGES = 64  # messages after which an unused slab is let go
SLABS_KEPT = 8  # slabs that arrays may hold back; while they do, what comes next is copied out of its slab
SHARE = 8  # an array below 1/SHARE of its slab is copied out: who keeps the labels does not keep the images
WORK_GRACE = 1.0  # seconds that work in progress has to end when the parent is gone


# --- memory ----


@dataclass(eq=False)
class Slab:
    """Memory that one end writes and the other reads."""

    number: int
    memory: NDArray[np.uint8]
    descriptor: int | None  # until it is sent: a mapping needs none
    used: int = 0  # the message that used it last


class Slabs:
    """The slabs of one end: few, because they are reused, and of the sizes that are needed."""

    def __init__(self) -> None:
        self._free: list[Slab] = []
        self._lent: dict[int, Slab] = {}
        self._made = self._taken = 0

    def take(self, nbytes: int) -> Slab:
        """Returns a slab of at least `nbytes`, at most twice that, that the other end does not use."""
        self._taken += 1
        fitting = [slab for slab in self._free if nbytes <= slab.memory.nbytes <= max(2 * nbytes, 1 << 16)]
        slab = min(fitting, key=lambda slab: slab.memory.nbytes) if fitting else self._new(nbytes)
        self._free = [other for other in self._free if other is not slab]
        self._lent[slab.number] = slab
        slab.used = self._taken
        return slab

    def give_back(self, number: int) -> None:
        self._free.append(self._lent.pop(number))

    def let_go(self) -> list[int]:
        """Frees slabs that were not needed for long. Returns their numbers."""
        old = [slab.number for slab in self._free if self._taken - slab.used > IDLE_MESSAGES]
        self._free = [slab for slab in self._free if slab.number not in old]
        return old

    def _new(self, nbytes: int) -> Slab:
        step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))  # sizes that vary a little share a slab
        nbytes = -(-nbytes // step) * step
        descriptor = os.memfd_create("solar")
        try:
            os.posix_fallocate(descriptor, 0, nbytes)  # an error here, where a write without it would be a SIGBUS
            memory = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(f"no {nbytes} bytes of shared memory for transform processes: {error}") from None
        self._made += 1
        return Slab(self._made, memory, descriptor)


class Packed(NamedTuple):
    """A message to send, with everything copied."""

    stream: bytes
    slab: Slab | None
    places: Places


# --- the channel ----


class Letter:
    """A received message, not unpickled yet. Dropped unopened, it frees its slab, too."""

    def __init__(self, channel: Channel, kind: int, task: int, stream: bytes, slab: int | None, places: Places) -> None:
        self.kind, self.task = kind, task
        self._channel, self._stream, self._slab, self._places = channel, stream, slab, places
        self._lease = None if slab is None else channel.lease(slab, sum(places[-1]))

    def open(self) -> Any:
        """Returns the object, once. Large arrays in it lie in the slab, which is freed with the last of them."""
        stream: Any = self._stream
        parts: list[NDArray[np.uint8]] = []
        lease, self._lease = self._lease, None
        if lease is not None:
            parts = [lease[first : first + nbytes] for first, nbytes in self._places]
            stream = stream or parts.pop(0)
            large = [part.nbytes * SHARE >= lease.nbytes and self._channel.keep(self._slab) for part in parts]
            parts = [part if stays else part.copy() for part, stays in zip(parts, large, strict=True)]
        return self._channel.unpickler(io.BytesIO(stream), buffers=parts).load()


class Channel:
    """One end. On a blocking socket `post` and `receive` wait; on another they do what can be done now."""

    def __init__(
        self, end: socket.socket, reducers: Reducers, unpickler: type[pickle.Unpickler] = pickle.Unpickler
    ) -> None:
        self.end, self.unpickler = end, unpickler
        self._reducers = reducers
        self._slabs = Slabs()
        self._mapped: dict[int, mmap.mmap] = {}  # the other end's slabs
        self._freed: deque[int] = deque()  # filled by finalizers: in any thread, at any moment, so without a lock
        self._kept: set[int] = set()
        self._outbox: deque[tuple[memoryview, int | None]] = deque()
        self._inbox = bytearray()
        self._descriptors: list[int] = []

    def pack(self, value: Any, what: str) -> Packed:
        """Copies a value to where it is sent from. `what` names it in the error if it cannot be pickled."""
        buffers: list[memoryview] = []

        def in_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes >= SMALL_BUFFER:
                buffers.append(raw)
            return raw.nbytes < SMALL_BUFFER

        file = io.BytesIO()
        dump(pickle.Pickler(file, 5, buffer_callback=in_band), self._reducers, value, what)
        stream = file.getbuffer()
        if stream.nbytes > LONG_PICKLE:
            buffers.insert(0, stream)
            stream = memoryview(b"")
        if not buffers:
            return Packed(bytes(stream), None, [])
        ends = list(itertools.accumulate((-(-raw.nbytes // ALIGN) * ALIGN for raw in buffers), initial=0))
        places = [(first, raw.nbytes) for first, raw in zip(ends, buffers, strict=False)]
        slab = self._slabs.take(ends[-1])
        for (first, nbytes), raw in zip(places, buffers, strict=True):
            np.copyto(slab.memory[first : first + nbytes], np.frombuffer(raw, np.uint8))  # without the GIL
        return Packed(bytes(stream), slab, places)

    def post(self, kind: int, task: int, packed: Packed) -> None:
        """Sends a packed message. The caller has dropped the value by now: the message also says what that frees."""
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        slab, descriptor = None, None
        if packed.slab is not None:
            slab = (packed.slab.number, packed.slab.memory.nbytes)
            descriptor, packed.slab.descriptor = packed.slab.descriptor, None
        body = pickle.dumps((kind, task, freed, self._slabs.let_go(), slab, packed.places, packed.stream))
        frame = FRAME.pack(int(descriptor is not None), len(body)) + body
        self._outbox.append((memoryview(frame), descriptor))
        self.flush()

    def flush(self) -> None:
        """Sends what waits to be sent."""
        with suppress(BlockingIOError, ConnectionError):  # that a connection ended is noticed by reading from it
            while self._outbox:
                data, descriptor = self._outbox[0]
                sent = socket.send_fds(self.end, [data], [] if descriptor is None else [descriptor])
                self._outbox[0] = (data[sent:], None)  # the descriptor went with the first byte
                if descriptor is not None:
                    os.close(descriptor)
                if sent == len(data):
                    self._outbox.popleft()

    def receive(self) -> list[Letter] | None:
        """Returns the messages that one look completes; None if nothing arrived. Raises EOFError at the end."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.end, 1 << 16, 1)
        except BlockingIOError:
            return None
        except ConnectionError:
            raise EOFError from None
        self._descriptors += descriptors
        self._inbox += data
        if not data:
            raise EOFError
        return list(self._letters())

    def _letters(self) -> Iterator[Letter]:
        while len(self._inbox) >= FRAME.size:
            descriptors, nbytes = FRAME.unpack_from(self._inbox)
            frame_nbytes = FRAME.size + nbytes
            if len(self._inbox) < frame_nbytes:
                return
            kind, task, freed, gone, slab, places, stream = pickle.loads(self._inbox[FRAME.size : frame_nbytes])
            del self._inbox[:frame_nbytes]
            if descriptors:
                self._map(*slab)
            for number in freed:
                self._slabs.give_back(number)
            for number in gone:
                del self._mapped[number]
            yield Letter(self, kind, task, stream, slab and slab[0], places)

    def _map(self, number: int, nbytes: int) -> None:
        if not self._descriptors:
            raise SolarError("no descriptor left for the memory of a transform process: raise the limit (ulimit -n)")
        descriptor = self._descriptors.pop(0)
        try:
            self._mapped[number] = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)

    def lease(self, slab: int, nbytes: int) -> NDArray[np.uint8]:
        """Returns an array in a slab, which is freed with the array.

        Arrays made from it refer to it and not past it: numpy shortens a chain of views only as far as the array that
        lies over something else, here a mapping.
        """
        lease = np.frombuffer(self._mapped[slab], np.uint8, nbytes)
        weakref.finalize(lease, _return, slab, self._kept, self._freed).atexit = False
        return lease

    def keep(self, slab: int | None) -> bool:
        """Returns whether arrays may hold the slab. Otherwise keeping every batch would use up all descriptors."""
        if slab is not None and len(self._kept) < SLABS_KEPT:
            self._kept.add(slab)
        return slab in self._kept

    def close(self) -> None:
        """Ends the conversation. Arrays that were received stay valid."""
        self.end.close()
        for descriptor in self._descriptors + [unsent for _, unsent in self._outbox if unsent is not None]:
            os.close(descriptor)
        self._descriptors, self._outbox, self._mapped, self._slabs = [], deque(), {}, Slabs()


def _return(slab: int, kept: set[int], freed: deque[int]) -> None:
    kept.discard(slab)
    freed.append(slab)


# --- the process ----


def main(end: socket.socket, start: Sealed, number: int) -> None:
    """Answers one task after another until the parent is gone."""
    os.environ["MPI4PY_RC_INITIALIZE"] = "0"  # the main module may import mpi4py, and this process is no rank
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who then ends us
    end.setblocking(True)
    os.set_inheritable(end.fileno(), False)  # or a program that the work starts would keep the conversation open
    threading.Thread(target=_end_with_parent, args=(end.fileno(),), daemon=True).start()
    reducers, work, failure = {}, None, None
    try:
        work, init, reducers = start.open()
        if init is not None:
            init(number)
    except Exception as error:
        failure = pack_error(error)
    channel = Channel(end, reducers, Unpickler)
    with suppress(EOFError):
        while True:
            for letter in channel.receive() or ():
                channel.post(*answer_task(channel, letter, work, failure))


def answer_task(channel: Channel, letter: Letter, work: Any, failure: Any) -> tuple[int, int, Packed]:
    """Returns the answer to one task. Nothing else of the task is left afterwards."""
    try:
        if failure is None:
            packed = channel.pack(work(letter.open()), "the result of a transform process")
            return RESULT, letter.task, packed
    except Exception as error:
        failure = pack_error(error)
    return ERROR, letter.task, channel.pack(failure, "an error")


def _end_with_parent(end: int) -> None:
    """Ends this process when the other end of the socket is closed, whatever it is doing."""
    watch = select.poll()
    watch.register(end, 0)  # no event is asked for but the one that cannot be declined: that the other end is gone
    watch.poll()
    time.sleep(WORK_GRACE)
    os._exit(1)
