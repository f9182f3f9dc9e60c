"""Lifeline: connections through which the ranks of all machines learn whose process has ended.

A rank is connected to one that came to their first meeting before it, and so in the end with rank 0: they form a tree,
in which each has at most BRANCHES below it. The kernel closes the connections of a process that ends, for whatever
reason; a rank that sees this tells its neighbours, and these pass it on. Nothing else is sent, so it costs nothing
while all live. Where many ranks end at once, each tells its neighbours of several in one message. A machine that
vanishes is noticed by TCP's keep-alive.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from solar.io.channels.alive import meeting_others
from solar.io.system import lifecycle
from solar.io.system.waiting import start_thread

log = logging.getLogger("solar")

BRANCHES = 32  # ranks that are connected to one above them, at most
STRANGERS = 64  # connections that have not said who they are, at most
GREETING_PATIENCE = 5.0  # seconds that they have for it, and that one address is tried
VANISHED = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))  # a minute in all
GATHERING = 0.05  # seconds after it has told its neighbours, in which a rank gathers what it learns
GREETING = struct.Struct("<32sI")  # proof of the token, rank
NEWS = struct.Struct("<I")  # a rank that is gone
SIOCGIFADDR = 0x8915  # an interface's IPv4 address

Address = dict[str, Any]  # JSON: where a rank can be reached, and the token that it expects


class Link(NamedTuple):
    """A connection, and the bytes of incomplete messages."""

    rank: int  # at the other end; -1 while it has not said which
    since: float
    read: bytearray
    told: bytearray  # what is to be sent


class Lifeline:
    """What this rank knows about ranks that have ended. Any thread may ask; a thread of its own listens."""

    def __init__(self, rank: int, ranks: int, machine: Any) -> None:
        self.rank, self.ranks = rank, ranks
        self._token, self._machine = secrets.token_bytes(32), machine
        self._lock = threading.Lock()
        self._gone: dict[int, None] = {}
        self._came: list[tuple[int, Address]] = []  # at rank 0: itself, and who has come, in that order
        self._placed: set[int] = set()  # those of them that were told to whom they go
        self._links: dict[socket.socket, Link] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = opened(open_listener)
        wakes, sleeps = socket.socketpair()
        for one in (self._listener, sleeps):
            self._selector.register(one, selectors.EVENT_READ)
        self._joined = False
        start_thread("solar-lifeline", listen, weakref.ref(self), self._selector)
        weakref.finalize(self, wakes.close).atexit = False

    def address(self) -> Address:
        """Returns where others reach this one."""
        port = self._listener.getsockname()[1]
        return {"at": own_addresses(), "port": port, "token": self._token.hex(), "machine": self._machine}

    def above(self, rank: int, address: Address) -> Address | None:
        """Returns, at rank 0, to whom a new rank should connect; None if it was told before."""
        if rank in self._placed:
            return None
        if not self._came:
            self._came.append((self.rank, self.address()))
        over, there = self._came[len(self._placed) // BRANCHES]
        self._placed.add(rank)
        self._came.append((rank, address))
        near = there["machine"] == address["machine"]
        found = {"rank": over, "port": there["port"], "token": there["token"]}
        return {**found, "at": ["127.0.0.1"] if near else there["at"]}

    def join(self, above: Address) -> None:
        """Connects to the rank above, in a thread, because that may not answer."""
        if not self._joined:
            self._joined = True
            start_thread("solar-lifeline", self._connect, above)

    def gone(self) -> list[int]:
        """Returns the ranks that are known to be gone, in the order in which this was learned."""
        with self._lock:
            return [*self._gone]

    def note(self, ranks: Sequence[int]) -> None:
        """Notes that these ranks are gone, and tells all neighbours that do not know it."""
        self._learn(ranks)
        self.pass_on()

    def pass_on(self) -> bool:
        """Tells the neighbours what this rank has learned. Returns whether it has told them anything."""
        with self._lock:
            links = [(one, link.told) for one, link in self._links.items() if link.told]
            for one, told in links:
                with suppress(OSError):  # it is gone as well, which its thread sees
                    one.sendall(told)
                told.clear()
        return bool(links)

    def _learn(self, ranks: Sequence[int], sender: socket.socket | None = None) -> None:
        with self._lock:
            news = [rank for rank in ranks if rank not in self._gone and rank != self.rank and 0 <= rank < self.ranks]
            self._gone.update(dict.fromkeys(news))
            for one, link in self._links.items():
                if one is not sender and link.rank >= 0:
                    link.told.extend(b"".join(map(NEWS.pack, news)))

    def _connect(self, above: Address) -> None:
        token, tried = bytes.fromhex(above["token"]), []
        for address in above["at"]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            one = opened(partial(socket.socket, family))
            try:
                one.settimeout(GREETING_PATIENCE)
                one.connect((address, above["port"]))
                one.sendall(GREETING.pack(proof(b"below", token), self.rank))
                answer = receive_exactly(one, GREETING.size)
                if hmac.compare_digest(answer, GREETING.pack(proof(b"above", token), above["rank"])):
                    self._keep(one, int(above["rank"]))
                    return
                tried.append(f"{address}: somebody else answers")
            except OSError as error:
                tried.append(f"{address}: {error}")
            one.close()
        log.warning(
            "rank %d of %d has no connection to rank %d (%s; port %d): if the process of a rank on another machine "
            "ends, this one may wait for it until a deadline; let ranks connect to each other by TCP",
            self.rank, self.ranks, above["rank"], ", ".join(tried) or "it has no address", above["port"],
        )  # fmt: skip

    def _keep(self, one: socket.socket, rank: int) -> None:
        one.settimeout(GREETING_PATIENCE)  # for what is sent, which is little
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in VANISHED:
            one.setsockopt(socket.IPPROTO_TCP, option, value)
        with self._lock:
            self._links[one] = Link(rank, time.monotonic(), bytearray(), bytearray())
            known = [*self._gone]
        with suppress(OSError):
            one.sendall(b"".join(map(NEWS.pack, known)))
        self._selector.register(one, selectors.EVENT_READ)

    # --- its thread ----

    def take(self, ready: Any) -> None:
        """Handles a socket that has become readable."""
        if ready is self._listener:
            with suppress(OSError):
                self._greet(opened(lambda: self._listener.accept()[0]))
        else:
            self._hear(ready)

    def _greet(self, one: socket.socket) -> None:
        now = time.monotonic()
        with self._lock:
            strangers = [other for other, link in self._links.items() if link.rank < 0]
            late = [other for other in strangers if now - self._links[other].since > GREETING_PATIENCE]
        for other in late:
            self._drop(other)
        if len(strangers) - len(late) >= STRANGERS:
            one.close()
            return
        one.setblocking(False)
        with self._lock:
            self._links[one] = Link(-1, now, bytearray(), bytearray())
        self._selector.register(one, selectors.EVENT_READ)

    def _hear(self, one: socket.socket) -> None:
        link = self._links.get(one)
        if link is None:  # it was dropped a moment ago
            return
        try:
            came = one.recv(4096)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            came = b""
        if not came:
            self._drop(one)
            if link.rank >= 0:
                self._learn([link.rank])
            return
        link.read.extend(came)
        if link.rank < 0:
            self._recognise(one, link)
            return
        whole = len(link.read) // NEWS.size * NEWS.size
        self._learn([rank for (rank,) in NEWS.iter_unpack(bytes(link.read[:whole]))], one)
        del link.read[:whole]

    def _recognise(self, one: socket.socket, link: Link) -> None:
        """Handles the first message of a stranger, which says who it is or nothing of use."""
        if len(link.read) < GREETING.size:
            return
        shown, rank = GREETING.unpack(bytes(link.read[: GREETING.size]))
        known = hmac.compare_digest(shown, proof(b"below", self._token)) and rank < self.ranks and rank != self.rank
        self._drop(one, close=not known)
        if known:
            with suppress(OSError):
                one.sendall(GREETING.pack(proof(b"above", self._token), self.rank))
            self._keep(one, rank)

    def _drop(self, one: socket.socket, *, close: bool = True) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(one)
        with self._lock:
            self._links.pop(one, None)
        if close:
            one.close()


def listen(line: weakref.ref[Lifeline], selector: selectors.BaseSelector) -> None:
    """Listens for a Lifeline, in a thread, as long as it exists."""
    while True:
        ready = selector.select()
        owner = line()
        if owner is None:
            close_all(selector)
            return
        for key, _ in ready:
            owner.take(key.fileobj)
        told = owner.pass_on()
        del owner
        if told:
            time.sleep(GATHERING)


def close_all(selector: selectors.BaseSelector) -> None:
    for key in [*selector.get_map().values()]:
        key.fileobj.close()  # type: ignore[union-attr]
    selector.close()


def proof(side: bytes, token: bytes) -> bytes:
    return hashlib.sha256(side + token).digest()


def receive_exactly(one: socket.socket, nbytes: int) -> bytes:
    """Returns exactly this many bytes; fewer if the other side closes before."""
    read = b""
    while len(read) < nbytes and (more := one.recv(nbytes - len(read))):
        read += more
    return read


def open_listener() -> socket.socket:
    """Returns a socket for connections, by IPv4, and by IPv6 if there is that."""
    found = None
    if socket.has_dualstack_ipv6():
        with suppress(OSError, ValueError):  # ValueError: it looks once more for IPv6, and gets no descriptor
            found = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with meeting_others("this rank cannot listen for the others"):
        found = found or socket.create_server(("", 0))
    found.setblocking(False)  # who connected may have gone before it is accepted
    return found


def own_addresses() -> list[str]:
    """Returns the addresses of this machine's interfaces and of its name, without loopback addresses."""
    found: list[str] = []
    with suppress(OSError):
        found += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                asked = fcntl.ioctl(any_.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(asked[20:24]))
    return [one for one in dict.fromkeys(found) if not one.startswith(("127.", "::1", "fe80:"))]


# --- forks ----

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # all there are
_opening = threading.Lock()


def opened(make: Callable[[], socket.socket]) -> socket.socket:
    """Makes a socket that forked processes close: a copy would hide that the parent has ended."""
    with _opening:  # no fork comes between
        one = make()
        _sockets.add(one)
    return one


def forget_lines() -> None:
    for one in list(_sockets):
        one.close()
    _sockets.clear()


lifecycle.hold_over_fork(_opening)
lifecycle.after_fork(forget_lines)
