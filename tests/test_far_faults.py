"""Servers that fail or lie: the right bytes, or an error in words within the time limit (docs/failures.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far_kit import Asked, Web, served
from stage_kit import SAMPLES, written

from solar import DataLoader, H5Dataset, ReadError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
from solar.io.far import place

ENOUGH = 60.0  # seconds in which whatever hangs would not have ended


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """Patience as for a user, but in less time."""
    quick = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=50), "base": 2}
    monkeypatch.setattr(place, "RETRIES", {"max_retries": 3, "retry_timeout": timedelta(seconds=5), "backoff": quick})
    monkeypatch.setattr(place, "TIMEOUT", "2s")
    place.store_of.cache_clear()
    with served(tmp_path) as one:
        yield one
    place.store_of.cache_clear()


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


def refused(data: Any) -> str:
    began = time.monotonic()
    with pytest.raises(ReadError) as raised:
        epoch(data)
    assert time.monotonic() - began < ENOUGH
    said = str(raised.value)
    assert "/one.h5: /x, sample " in said  # which file, dataset and sample; and where
    assert ", offset " in said
    return said


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


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(code: int, web: Web) -> None:
    data, values = data_of(web, _status(code, Retry_After="0"))
    assert np.array_equal(epoch(data), values)
    assert web.asked > len(web.data())


def test_a_connection_that_is_cut_is_made_again(web: Web) -> None:
    once = _Once()

    def cuts(asked: Asked, before: int) -> bool:
        if asked.command != "GET" or not once(asked):
            return False
        path = web.folder / "one.h5"
        first, last = asked.range(path.stat().st_size)
        asked.head(206, last + 1 - first, path, f"bytes {first}-{last}/{path.stat().st_size}")
        asked.wfile.write(asked.bytes_of(path, first, (last + 1 - first) // 2))
        asked.close_connection = True
        return True

    data, values = data_of(web, cuts)
    assert np.array_equal(epoch(data), values)


# --- what does not ----


@pytest.mark.parametrize(
    ("code", "said"), [(404, "there is no such object"), (403, "look at the credentials"), (503, "503")]
)
def test_a_server_that_goes_on_refusing(code: int, said: str, web: Web) -> None:
    def refuses(asked: Asked, before: int) -> bool:
        asked.status(code)
        return True

    data, _ = data_of(web, refuses)
    assert said in refused(data)


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


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_sends(-10), "Requested|Range"),  # fewer, and it says so
        (_sends(0, all_of_it=True), "Range|range"),  # ranges are not honoured
        (_sends(0, shift=512), "Requested|range"),  # other bytes than were asked for
        (_sends(0, mark="another"), "changed since it was inspected"),
    ],
    ids=["fewer bytes", "all bytes", "other bytes", "another object"],
)
def test_answers_that_are_not_what_was_asked_for(fault: Any, said: str, web: Web) -> None:
    data, _ = data_of(web, fault)
    text = refused(data)
    assert any(one in text for one in said.split("|")), text


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


def test_a_server_that_is_silent_ends_within_the_time_limit(web: Web) -> None:
    def silent(asked: Asked, before: int) -> bool:
        time.sleep(4)  # longer than the time limit
        return True

    data, _ = data_of(web, silent)
    assert refused(data)


def test_redirects_without_an_end(web: Web) -> None:
    def on(asked: Asked, before: int) -> bool:
        asked.status(302, Location=f"/one.h5?{before}")
        return True

    data, _ = data_of(web, on)
    assert "secret" not in refused(data)


def test_an_object_that_is_replaced_amid_an_epoch(web: Web) -> None:
    data, _ = data_of(web)
    with DataLoader(data, batch_size=10, buffer=0) as loader:
        batches = iter(loader)
        next(batches)
        other = web.folder / "other.h5"
        written(other, "gzip", seed=1)
        other.replace(web.folder / "one.h5")
        with pytest.raises(ReadError, match="changed since it was inspected"):
            for _ in range(SAMPLES):
                next(batches)


def test_a_server_that_is_gone(web: Web) -> None:
    data, _ = data_of(web)
    web.fault = lambda asked, before: asked.connection.close() is None
    assert refused(data)


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
