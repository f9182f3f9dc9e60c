"""A service that does not bring what it promised: a pass waits for it once, not for each batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from serve_kit import epochs_of, scan, serving

from solar import DataLoader, H5Dataset, PlanSampler, _native
from solar.errors import ReadError
from solar.service import served_run
from solar.service.connection import ServiceConnection

_ = scan  # a fixture

NAPS = int(served_run.COME_WITHIN / served_run.NAP) + served_run.MORE_NAPS


class Guest:
    """A membership whose batches, from one on, do not come any more, as if the service were stopped."""

    counts: ClassVar[Counter[str]] = Counter()
    last, word = 5, "here"

    def __init__(self, *of: Any) -> None:
        self._own = _native.Guest(*of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def wait(self, number: int, seconds: float) -> bool:
        if number <= self.last:
            return bool(self._own.wait(number, 60))
        self.counts["naps"] += 1
        return False

    def copy(self, number: int, *of: Any) -> str:
        self.counts["copies"] += 1
        return self.word if self.counts["copies"] > 3 and self.word != "here" else str(self._own.copy(number, *of))


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> type[Guest]:
    made = type("Guest", (Guest,), {"counts": Counter()})
    monkeypatch.setattr(served_run, "_native", SimpleNamespace(Guest=made, take=_native.take))
    return made


def trained(service: Path, data: Any) -> tuple[str, dict[str, int]]:
    order = PlanSampler(data, seed=1)
    with DataLoader(data, 4, sampler=order, service=str(service), buffer=0) as loader:
        return epochs_of(loader, 1), loader._buffered.options.service.counts()


def alone_once(data: Any) -> str:
    with DataLoader(data, 4, sampler=PlanSampler(data, seed=1), buffer=0) as loader:
        return epochs_of(loader, 1)


def test_a_pass_waits_once_for_a_service_that_has_stopped(
    guest: type[Guest], scan: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = H5Dataset(scan, "y")
    with serving(scan, where=tmp_path, slack=1000.0) as service:
        digest, counts = trained(service.path, data)
    assert digest == alone_once(data)
    assert counts["alone"] > 250, "of 300 batches"
    assert guest.counts["naps"] == NAPS, "ten seconds for the first, and two for all others together"
    [said] = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert "batches that did not come took 12 s: the rest of this pass is read alone" in said


def test_a_service_that_is_only_slow_is_stayed_with(guest: type[Guest], scan: Path, tmp_path: Path) -> None:
    """As many batches as make up the two seconds may come late, and then it goes on."""

    class Slow(guest):  # type: ignore[misc, valid-type]
        def wait(self, number: int, seconds: float) -> bool:
            late = self.last < number <= self.last + served_run.MORE_NAPS and number not in self.come
            return super().wait(number, seconds) if late else bool(self._own.wait(number, 60))

        come: tuple[int, ...] = ()

    data = H5Dataset(scan, "y")
    served_run._native.Guest = Slow
    with serving(scan, where=tmp_path, slack=1000.0) as service:
        digest, counts = trained(service.path, data)
    assert digest == alone_once(data)
    assert counts["served"] > 200
    assert guest.counts["naps"] == NAPS - 1


def test_who_has_no_answer_when_it_leaves_asks_no_more(
    guest: type[Guest], scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait ten seconds for each question, and take the late answer to one for that to the next."""
    guest.last, guest.word = 1 << 40, "gone"
    asked, ask = list[str](), ServiceConnection.ask

    def hears_nothing(door: ServiceConnection, message: dict[str, Any], *more: Any, **named: Any) -> Any:
        asked.append(message["is"])
        if message["is"] == "leave":
            raise ReadError("timed out")
        return ask(door, message, *more, **named)

    monkeypatch.setattr(ServiceConnection, "ask", hears_nothing)
    data = H5Dataset(scan, "y")
    with serving(scan, where=tmp_path, slack=1000.0) as service:
        digest, _ = trained(service.path, data)
    assert digest == alone_once(data)
    assert asked.count("leave") == 1 and asked[-1] == "leave"
