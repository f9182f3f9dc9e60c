"""Servers that fail or lie: the right bytes, or an error in words within the time limit (docs/failures.md)."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far_kit import Asked, Web, served
from faults_kit import TABLE, check_page, table_of_the_page
from stage_kit import SAMPLES, written

from solar import DataLoader, H5Dataset, ReadError, _native
from solar.cli import main as cli

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
from solar.io.hdf5 import chunk_index
from solar.io.remote import fetch, location

RETRIES, TIMEOUT = location.RETRIES, location.TIMEOUT

ENOUGH = 60.0  # seconds in which whatever hangs would not have ended


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """Patience as for a user, but in less time."""
    quick = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=50), "base": 2}
    monkeypatch.setattr(
        location, "RETRIES", {"max_retries": 3, "retry_timeout": timedelta(seconds=5), "backoff": quick}
    )
    monkeypatch.setattr(location, "TIMEOUT", "2s")
    location.store_of.cache_clear()
    with served(tmp_path) as one:
        yield one
    location.store_of.cache_clear()


def data_of(web: Web, fault: Any = None) -> tuple[Any, np.ndarray[Any, Any]]:
    """A data set from the web, whose server is well until it has been opened; and its values."""
    values = written(web.folder / "one.h5", "gzip")
    data = H5Dataset(web.url("one.h5"), {"x": "x"})
    web.asked = 0
    web.fault = fault
    return data, values


def epoch(data: Any, buffer: Any = 0) -> np.ndarray[Any, Any]:
    with DataLoader(data, batch_size=20, buffer=buffer) as loader:
        return np.concatenate([batch["x"].numpy() for batch in loader])


# --- what passes ----


class _Once:
    """Whether this is asked for the first time."""

    def __init__(self) -> None:
        self._asked: set[tuple[str, str | None]] = set()

    def __call__(self, asked: Asked) -> bool:
        key = asked.command, asked.headers.get("Range")
        first = key not in self._asked
        self._asked.add(key)
        return first


def _status(code: int, **headers: str) -> Any:
    once = _Once()

    def answers(asked: Asked, before: int) -> bool:
        if not once(asked):
            return False
        asked.status(code, **headers)
        return True

    return answers


# --- what does not ----


def _sends(nbytes: int, more: int = 0, *, all_of_it: bool = False, shift: int = 0, mark: str = "") -> Any:
    """A server that gives so many bytes less or more than it says, or other ones."""

    def lies(asked: Asked, before: int) -> bool:
        if asked.command != "GET":
            return False
        path = asked.web.folder / "one.h5"
        size = path.stat().st_size
        first, last = (0, size - 1) if all_of_it else asked.range(size)
        length = last + 1 - first + nbytes
        content = None if all_of_it else f"bytes {first + shift}-{last + shift + nbytes}/{size}"
        asked.head(200 if all_of_it else 206, length, path, content, mark)
        asked.wfile.write(asked.bytes_of(path, first, last + 1 - first)[: max(length, 0)] + b"x" * more)
        asked.close_connection = True
        return True

    return lies


def test_a_body_without_an_end_is_not_taken(web: Web) -> None:
    sent = []

    def endless(asked: Asked, before: int) -> bool:
        if asked.command != "GET":
            return False
        path = web.folder / "one.h5"
        first, last = asked.range(path.stat().st_size)
        asked.head(206, None, path, f"bytes {first}-{last}/{path.stat().st_size}")
        asked.close_connection = True
        try:
            for _ in range(1 << 12):
                asked.wfile.write(b"x" * (1 << 20))
                sent.append(1 << 20)
        except OSError:  # who asked has enough
            pass
        return True

    data, _ = data_of(web, endless)
    with pytest.raises(Exception, match=r"one\.h5"):  # garbage: of what came, no more than was asked for was used
        epoch(data)
    assert sum(sent) < 1 << 31


def test_an_object_that_is_replaced_amid_an_epoch(web: Web) -> None:
    data, _ = data_of(web)
    with DataLoader(data, batch_size=10, buffer=0, ahead=2) as loader:
        batches = iter(loader)
        next(batches)
        other = web.folder / "other.h5"
        written(other, "gzip", seed=1)
        other.replace(web.folder / "one.h5")
        with pytest.raises(ReadError, match="changed since it was inspected"):
            for _ in range(SAMPLES):
                next(batches)


# --- the table of the page ----


def gone(asked: Asked, before: int) -> bool:
    asked.connection.close()
    return True


def goes_on(code: int) -> Any:
    def refuses(asked: Asked, before: int) -> bool:
        asked.status(code)
        return True

    return refuses


def silent(asked: Asked, before: int) -> bool:
    time.sleep(4)  # longer than the time limit
    return True


def endless_redirects(asked: Asked, before: int) -> bool:
    asked.status(302, Location=f"/one.h5?{before}")
    return True


def cut_once() -> Any:
    once = _Once()

    def cuts(asked: Asked, before: int) -> bool:
        if asked.command != "GET" or not once(asked):
            return False
        path = asked.web.folder / "one.h5"
        size = path.stat().st_size
        first, last = asked.range(size)
        asked.head(206, last + 1 - first, path, f"bytes {first}-{last}/{size}")
        asked.wfile.write(asked.bytes_of(path, first, (last + 1 - first) // 2))
        asked.close_connection = True
        return True

    return cuts


HEAD = ["what the server does", "what becomes of the epoch"]
CASES: dict[str, Callable[[], Any]] = {
    "it is busy (429), and then not": lambda: _status(429, Retry_After="0"),
    "it has an error of its own (500), and then not": lambda: _status(500),
    "it is overloaded (503), and then not": lambda: _status(503, Retry_After="0"),
    "it cuts the connection amid an answer, once": cut_once,
    "it goes on refusing (403)": lambda: goes_on(403),
    "it has no such object any more (404)": lambda: goes_on(404),
    "it stays overloaded (503)": lambda: goes_on(503),
    "it is silent": lambda: silent,
    "it closes each connection": lambda: gone,
    "it sends fewer bytes, and says so": lambda: _sends(-10),
    "it sends all of the object": lambda: _sends(0, all_of_it=True),
    "it sends other bytes than were asked for": lambda: _sends(0, shift=512),
    "it sends bytes of another object (its ETag)": lambda: _sends(0, mark="another"),
    "it redirects without an end": lambda: endless_redirects,
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_page_says_becomes_of_it_does(name: str, web: Web) -> None:
    data, values = data_of(web, CASES[name]())
    began = time.monotonic()
    try:
        assert np.array_equal(epoch(data), values)
        said = "every batch comes: it is asked again"
    except ReadError as error:
        assert "/one.h5: /x, sample " in str(error)
        _, _, why = str(error).replace("\n", " ").rpartition("cannot be read: ")
        said = f"`ReadError`: {shortly(why)}"
    assert time.monotonic() - began < ENOUGH
    check_page(name, said, HEAD, len(CASES))


def shortly(why: str) -> str:
    """What of an error's words is the same each time."""
    why = re.sub(r"( for path \S+)? ?Error performing GET .*? - ", " ", why)
    return re.sub(r"\d+\.\.\d+", "…", why).replace(":  ", ": ").strip(" :")


def test_the_page_lists_every_fault_of_a_server() -> None:
    if not TABLE:
        assert list(table_of_the_page(HEAD, len(CASES))) == list(CASES)


def test_a_fault_of_one_sample_may_be_left_out(web: Web) -> None:
    """As of a file here: on_error says what becomes of it."""

    size = [0]

    def refuses(asked: Asked, before: int) -> bool:
        if asked.command != "GET" or asked.range(size[0])[0] < size[0] * 0.8:
            return False
        asked.status(404)
        return True

    data, _ = data_of(web, refuses)
    size[0] = (web.folder / "one.h5").stat().st_size
    with DataLoader(data, batch_size=20, buffer=0, on_error="skip") as loader:
        assert SAMPLES // 2 < sum(len(batch["x"]) for batch in loader) < SAMPLES


def test_a_server_that_drips_is_given_up_in_the_time_that_is_said(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then would be asked for five times, each time for as long as a request may take."""
    monkeypatch.setattr(location, "TIMEOUT", "1s")
    monkeypatch.setattr(location, "RETRIES", {**location.RETRIES, "max_retries": 1})
    monkeypatch.setattr(fetch, "REPEATED_FOR", 0.5)  # less than a request takes that is given up
    ranges = []

    def drips(asked: Asked, before: int) -> bool:
        if asked.command != "GET":
            return False
        path = web.folder / "one.h5"
        size = path.stat().st_size
        first, last = asked.range(size)
        ranges.append(first)
        asked.head(206, last + 1 - first, path, f"bytes {first}-{last}/{size}")
        asked.close_connection = True
        with contextlib.suppress(OSError):  # who asked has enough
            for at in range(first, last + 1):
                asked.wfile.write(asked.bytes_of(path, at, 1))
                time.sleep(0.2)
        return True

    data, _ = data_of(web, drips)
    with (
        DataLoader(data, batch_size=6, buffer=0, ahead=1) as loader,
        pytest.raises(ReadError, match=r"one\.h5: /x, sample "),
    ):
        next(iter(loader))
    assert ranges
    assert len(set(ranges)) == len(ranges)  # the library asks for what is left, once; nobody begins again


def test_a_request_takes_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    longest = RETRIES["retry_timeout"].total_seconds() + float(TIMEOUT.rstrip("s"))
    assert longest <= 60
    assert fetch.REPEATED_FOR + float(TIMEOUT.rstrip("s")) <= 60


# --- servers that tell no version of an object from another ----


@contextlib.contextmanager
def without_marks() -> Iterator[None]:
    """Neither ETag nor Last-Modified."""
    with pytest.MonkeyPatch.context() as patched:
        send = Asked.send_header
        unsaid = ("ETag", "Last-Modified")
        patched.setattr(Asked, "send_header", lambda self, name, value: name in unsaid or send(self, name, value))
        yield


def test_an_object_whose_versions_cannot_be_told_apart_is_refused(web: Web) -> None:
    """Two files of one size, one after the other under one name, came as one epoch."""
    with without_marks():
        with pytest.raises(ReadError, match=r"neither ETag nor Last-Modified.*unversioned\+"):
            data_of(web)
        assert cli(["inspect", web.url("one.h5")]) == 1


def test_one_that_loses_its_mark_is_refused_while_it_is_read(web: Web) -> None:
    data, _ = data_of(web)
    with without_marks(), pytest.raises(ReadError, match="neither ETag nor Last-Modified"):
        epoch(data)


def test_it_is_read_where_that_is_asked_for_in_words_and_nothing_of_it_is_kept(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(chunk_index, "WORTH_KEEPING", 1)
    stage = tmp_path / "stage"
    stage.mkdir()
    values = written(web.folder / "one.h5", "gzip")
    with without_marks():
        data = H5Dataset("unversioned+" + web.url("one.h5"), {"x": "x"}, stage=stage)
        with DataLoader(data, batch_size=20, buffer=0) as loader:
            assert np.array_equal(np.concatenate([batch["x"].numpy() for batch in loader]), values)
            assert "tells no version of it from another" in loader.report()
        assert not [*stage.rglob("*.stage")]
        assert not [*tmp_path.glob("cache/**/*.index")]
        values = written(web.folder / "one.h5", "gzip", seed=1)
        location.store_of.cache_clear()
        fetchers = fetch._Fetchers.get(web.url("one.h5"))
        fetch._Fetchers.end()
        for thread in fetchers._threads:  # other tests may have asked for more, and threads of the reader wait for it
            thread.join()
        _native.far_forget()
        again = H5Dataset("unversioned+" + web.url("one.h5"), {"x": "x"}, stage=stage)
        assert np.array_equal(epoch(again), values)


def test_the_words_are_for_web_servers_alone() -> None:
    with pytest.raises(ReadError, match=r"unversioned\+s3:// is not read"):
        H5Dataset("unversioned+s3://bucket/one.h5", "x")
