"""Whether a loader takes a buffer of its own accord, and what its report advises: one rule, so that they agree."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from buffer_kit import chunked, generator, passes
from kit import engine

from solar import DataLoader
from solar.buffer import buffer_gain
from solar.values import Storage


def modelled(monkeypatch: pytest.MonkeyPatch, without: float, with_it: float) -> None:
    monkeypatch.setattr(buffer_gain, "model_gain", lambda *_: (without, with_it))


@pytest.mark.parametrize(
    ("without", "with_it", "taken"),
    [
        (0.22, 0.00048, True),  # seconds of an epoch
        (0.0201, 0.0, True),
        (0.0199, 0.0, False),
        (0.1, 0.085, False),
        (1.0, 0.7, False),
        (1.0, 0.6, True),
    ],
)
def test_the_loader_and_its_report_are_of_one_mind(
    without: float, with_it: float, taken: bool, make: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modelled(monkeypatch, without, with_it)
    dataset = chunked(make)
    for nbytes in (None, 0, "1%"):
        with DataLoader(dataset, 64, shuffle=True, generator=generator(1), buffer=nbytes) as loader:
            passes(loader, 2)
            loader._stats.waited("decode", 10.0)
            buffered = (nbytes is not None and nbytes != 0) or (nbytes is None and taken)
            assert (loader._buffered.running is not None) == buffered
            assert (loader.stats()["buffer_hits"] > 0) == buffered
            assert ("A buffer (`buffer='25%'`, say) would help" in loader.report()) == (nbytes == 0 and taken)


def test_a_file_whose_epoch_takes_a_fifth_of_a_second_gets_one(make: Callable[..., str]) -> None:
    counted = []
    for nbytes in (None, 0):
        data = chunked(make, 4096, 1024)  # 16 MiB: more than the engine's thread keeps without a buffer
        with (
            engine(1, "pread"),
            DataLoader(data, 64, shuffle=True, generator=generator(1), buffer=nbytes) as loader,
        ):
            passes(loader, 2)
            counted.append(loader.stats())
    with_it, without = counted
    assert with_it["buffer_hits"] >= 4096  # the second epoch's
    assert with_it["bytes_decoded"] <= with_it["batch_bytes"]
    assert without["bytes_decoded"] > 10 * without["batch_bytes"]


def test_where_a_sampler_of_the_users_keeps_the_loader_from_one_it_is_advised(
    make: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modelled(monkeypatch, 0.22, 0.00048)

    class Own(list[int]):
        """Nobody knows what it does."""

    with DataLoader(chunked(make), 64, sampler=Own(range(4096))) as loader:
        passes(loader, 1)
        loader._stats.waited("decode", 10.0)
        assert "an epoch takes about 0.00048 s instead of 0.22 s, as modelled" in loader.report()


def test_no_buffer_is_advised_where_there_can_be_none(
    make: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modelled(monkeypatch, 0.22, 0.00048)
    with DataLoader(chunked(make), batch_sampler=[list(range(4096))] * 3) as loader:
        passes(loader, 1)
        loader._stats.waited("decode", 10.0)
        assert loader._buffered.running is None
        assert "A buffer" not in loader.report()


@pytest.mark.parametrize(
    ("room", "epochs", "seed", "said"),
    [(1, None, None, True), (1, 6, None, True), (1, 1, None, False), (1, None, 1, False), (4, None, None, False)],
)
def test_who_could_know_the_epochs_to_come_is_told_what_that_would_save(
    room: int, epochs: int | None, seed: int | None, said: bool, make: Callable[..., str]
) -> None:
    dataset = chunked(make)
    given = None if seed is None else generator(seed)
    storage = Storage(latency=1e-3, bandwidth=1e8, iops=100)
    terms = {"buffer": room << 20, "epochs": epochs, "storage": storage, "generator": given}
    with DataLoader(dataset, 16, shuffle=True, **terms) as loader:
        passes(loader, 1)
        loader._stats.waited("storage", 10.0)
        text = loader.report()
    assert ("With a `generator` or a PlanSampler the next epochs would be known" in text) == said
    if said:
        less, more = re.search(r"about ([0-9.]+) times the data instead of ([0-9.]+), as modelled", text).groups()
        assert 0 < float(less) < float(more)
