"""Threads that fetch the bytes of remote files for the engine (native/include/solar/far.hpp).

Each takes an order, has the library make the request, and hands the bytes over. The library repeats a request where
that may help, for half a minute. Every answer says of which object it is: bytes of another one are not used.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from solar import _native
from solar.errors import ReadError
from solar.io.remote.location import HUB, place_of, printable_url, ready, source_of, store_of
from solar.io.system import lifecycle
from solar.io.system.waiting import start_thread
from solar.values import UNVERSIONED, is_unversioned

IN_FLIGHT, MOST_IN_FLIGHT = 64, 256  # threads, and so requests in flight; and where each takes long
EACH_SECOND = 3200.0  # requests that a process makes: so many are in flight, times what the quickest takes
UNDER_WAY, UNDER_WAY_PART = 256 << 20, 64  # bytes asked for that have not come, at most; or that part of the memory
REPEATED_FOR = 30.0  # seconds from the first request for some bytes, after which no other one for them begins
TRIES, PAUSE = 5, 0.1  # of an answer that is cut; seconds before the second, and twice as long each time after
REFUSALS = (errno.ESTALE, errno.EREMOTEIO, errno.ENOTSUP, errno.EFBIG)  # of ours
ROLE_OF_MACHINE = "http://169.254.169.254/"  # where the libraries of clouds ask for credentials at last
LAST_REQUEST = 2.0  # seconds that requests in flight have to finish when the program ends

Identity = tuple[int, int, int, int]  # as in native/include/solar/file.hpp: bytes, mtime_ns, inode, ctime_ns


def start_fetching(url: str) -> None:
    """Starts the threads. Raises ReadError if that is impossible."""
    _Fetchers.get(url)


class _Fetchers:
    """The threads of this process; a forked one starts its own."""

    here: _Fetchers | None = None
    forked = False  # from a process whose library had begun, and left its threads there
    beginning = threading.Lock()

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._growing = threading.Lock()
        self._quickest = 0.0  # seconds, of a request
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        _native.far_begin(min(UNDER_WAY, memory // UNDER_WAY_PART))
        try:
            self._grow()
        except ReadError:  # there is no thread to take orders: refuse them
            _native.far_end()
            raise

    @classmethod
    def get(cls, url: str) -> _Fetchers:
        if cls.forked:
            what = "this process was forked from one that had read URLs, and what fetches did not come with it: "
            raise ReadError(errno.ENOTSUP, what + "start processes by spawn or forkserver", printable_url(url))
        if cls.here is None:
            try:
                import obstore  # noqa: F401
            except ImportError:
                what = "URLs are read by obstore, which is not installed: pip install 'solar[remote]'"
                raise ReadError(errno.ENOPKG, what, printable_url(url)) from None
            with cls.beginning:
                if cls.here is None:
                    cls.here = cls()
        return cls.here

    @classmethod
    def end(cls) -> None:
        """Refuses further orders, and lets the threads end before the interpreter does."""
        here, cls.here = cls.here, None
        if here is None:
            return
        _native.far_end()
        for thread in here._threads:
            thread.join(LAST_REQUEST / len(here._threads) if len(here._threads) > 1 else LAST_REQUEST)

    @classmethod
    def forget(cls) -> None:
        cls.forked |= cls.here is not None
        cls.here, cls.beginning = None, threading.Lock()
        _native.far_forget()

    def _grow(self) -> None:
        """Starts another thread, if allowed: more than 64 help if a request takes longer than 20 ms."""
        with self._growing:
            most = min(max(IN_FLIGHT, int(EACH_SECOND * self._quickest)), MOST_IN_FLIGHT)
            if len(self._threads) < most:
                self._threads.append(start_thread("solar-far", self._work))

    def _work(self) -> None:
        while (order := _native.far_take()) is not None:
            if _native.far_short_of_threads():  # before this one waits for its answer, however long that takes
                with suppress(ReadError):  # then fewer threads fetch
                    self._grow()
            number, url, offset, nbytes, was = order
            begin = time.monotonic()
            try:
                if nbytes:
                    _native.far_give(number, fetched(url, offset, nbytes, was))
                    self._took(time.monotonic() - begin)
                else:
                    _native.far_is(number, *identity(url))
            except BaseException as error:  # whoever ordered waits for an answer
                _native.far_refuse(number, *_refusal(error))

    def _took(self, seconds: float) -> None:
        """Remembers the quickest request that waited for no other, and slowly forgets it."""
        self._quickest = min(seconds, 1.01 * self._quickest) if self._quickest else seconds


def identity(url: str) -> Identity:
    """Returns what tells the object from another that replaces it."""
    root, path = place_of(url)
    if root.startswith(HUB):
        from solar.io.remote import hub  # imports http and ssl, which few need

        return hub.identity(root, path)
    import obstore

    return object_identity(obstore.head(store_of(root), path), url)


def fetched(url: str, offset: int, nbytes: int, was: Identity) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the bytes. Raises an error if the object was replaced, or if other bytes come than were requested."""

    def check(answer: Any) -> int:
        check_unchanged_answer(answer, url, offset, nbytes, was)
        return nbytes

    return np.frombuffer(_answered(url, (offset, offset + nbytes), check), np.uint8)


def fetched_whole(url: str, most: int) -> tuple[bytes, Identity]:
    """Returns all bytes of an object and its identity, by one request. It must have at most `most` bytes."""
    found: list[Identity] = []

    def check(answer: Any) -> int:
        now = object_identity(answer.meta, url)
        if now[0] > most:
            raise OSError(errno.EFBIG, f"it has {now[0]:,} bytes where at most {most:,} are read")
        found.append(now)
        return now[0]

    stored = bytes(_answered(url, None, check))
    if len(stored) != found[-1][0]:
        raise OSError(errno.EREMOTEIO, f"the server sent {len(stored):,} of its {found[-1][0]:,} bytes")
    return stored, found[-1]


def _answered(url: str, extent: tuple[int, int] | None, check: Callable[[Any], int]) -> Any:
    """Returns the bytes of an answer, of which `check` says how many there must be. `extent` None: the whole object."""
    import obstore

    begin, answer, refused = time.monotonic(), None, None
    for tried in range(TRIES):
        source = source_of(url, again=tried > 0, refused=refused)
        try:
            options: Any = None if extent is None else {"range": extent}
            answer = obstore.get(source.store, source.path, options=options)
            nbytes = check(answer)
            # No more is taken than was asked for, whatever the server goes on to send.
            return next(iter(answer.stream(min_chunk_size=max(1, nbytes))), b"")
        except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError):
            if source.signed is None or refused is not None or tried == TRIES - 1:
                raise
            refused = source.signed  # it was valid for a while
        except obstore.exceptions.GenericError:
            # The library repeats a request that is not answered, but not one that is cut amid the answer.
            last = tried == TRIES - 1 or time.monotonic() - begin + PAUSE * 2**tried > REPEATED_FOR
            if answer is None or last:
                raise
            time.sleep(PAUSE * 2**tried)
    raise AssertionError("unreachable")


def check_unchanged_answer(answer: Any, url: str, offset: int, nbytes: int, was: Identity) -> None:
    if tuple(answer.range) != (offset, offset + nbytes):
        raise OSError(errno.EREMOTEIO, f"the server answered with bytes {answer.range[0]} to {answer.range[1]}")
    # A commit of the hub never changes, and who sends its bytes has other marks for them than the hub.
    now = (int(answer.meta["size"]), *was[1:]) if url.startswith(HUB) else object_identity(answer.meta, url)
    if now != tuple(was):
        raise OSError(errno.ESTALE, f"changed since it was inspected ({_differs(was, now)}); make the H5Dataset again")


def _differs(was: Identity, now: Identity) -> str:
    return f"size {was[0]} -> {now[0]}" if was[0] != now[0] else "modification time or ETag differ"


def object_identity(meta: Mapping[str, Any], url: str) -> Identity:
    # Azure lists marks without the quotes with which it sends them.
    mark = (meta.get("e_tag") or meta.get("version") or "").strip('"')
    number = int.from_bytes(hashlib.blake2b(mark.encode(), digest_size=8).digest(), "little") | 1 if mark else 0
    modified = meta.get("last_modified")
    seconds = 0 if modified is None else int(modified.timestamp())  # the library takes 1970 where nobody says
    if not number and not seconds and not is_unversioned(url):
        raise OSError(
            errno.ENOTSUP, "its server sends neither ETag nor Last-Modified, so that one version of it cannot be told "
            "from another and a batch could be made of both: have the server send one of them, or copy the file to a "
            f"local disk; to read it all the same, put {UNVERSIONED} before its URL (docs/remote.md)"
        )  # fmt: skip
    return int(meta["size"]), seconds * 10**9, number, number >> 2


@contextmanager
def as_read_error(url: str) -> Iterator[None]:
    """Raises a ReadError about this URL for an error of the library."""
    ready([url])
    import obstore.exceptions as library

    try:
        yield
    except (OSError, library.BaseError) as error:
        raise ReadError(*_refusal(error), printable_url(url)) from None


def _refusal(error: BaseException) -> tuple[int, str]:
    """Returns an error code, and a text, for an error of the library."""
    if isinstance(error, ReadError) or (isinstance(error, OSError) and error.errno in REFUSALS):
        return error.errno or errno.EREMOTEIO, str(error.strerror or error)
    import obstore.exceptions as library

    said = printable_url(str(error))
    if isinstance(error, (library.NotFoundError, FileNotFoundError)):
        return errno.ENOENT, "there is no such object"
    if isinstance(error, (library.PermissionDeniedError, library.UnauthenticatedError)):
        return errno.EACCES, f"the server refuses: look at the credentials (docs/remote.md): {said}"
    if ROLE_OF_MACHINE in said:
        return errno.EACCES, (
            "no credentials were found, and the machine has no role that gives some: docs/remote.md says where they "
            f"are looked for; AWS_SKIP_SIGNATURE=true reads public buckets: {said}"
        )
    if isinstance(error, library.NotSupportedError):
        return errno.ENOTSUP, f"its server sends no parts of files: use one that does, or copy the file here: {said}"
    return errno.EREMOTEIO, said or type(error).__name__


lifecycle.after_fork(_Fetchers.forget)
lifecycle.at_exit(lifecycle.Ends.FETCHES, _Fetchers.end)
