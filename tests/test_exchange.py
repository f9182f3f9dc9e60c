"""Exchange: ranks send each other rows of their batches; over a real MPI and over gloo, with several processes each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import exchange_kit as kit
import mpi_kit
import numpy as np
import pytest

from solar.distributed.ending import ASK, ROWS, Head
from solar.distributed.exchange import Batch, PendingExchange, TransferThreads, mail
from solar.errors import PlanError, ReadError

PROGRAM = Path(__file__).with_name("exchange_program.py")
BAD = 44  # a sample that cannot be read
Played = Callable[..., list[Any]]

WAYS = [("mpi", 2), ("torch", 2)]
MORE = [("mpi", 2), ("mpi", 3), ("mpi", 4), ("torch", 2), ("torch", 3)]


@pytest.fixture
def played(tmp_path: Path) -> Played:
    """Has all ranks play a scene of the program, with a file, and gives what each said."""

    def play(by: str, ranks: int, scene: str, *facts: int, bad: int | None = None, **options: Any) -> list[Any]:
        path = tmp_path / "scan.h5"
        kit.write(path, bad)
        start = mpi_kit.under_mpi if by == "mpi" else mpi_kit.under_gloo
        return start(ranks, PROGRAM, scene, by, path, *facts, **options)

    return play


@pytest.mark.slow(but=["torch-2"])
@pytest.mark.parametrize(("by", "ranks"), MORE)
def test_every_batch_has_the_samples_of_its_plan_wherever_they_are_read(by: str, ranks: int, played: Played) -> None:
    seeds = range(3) if by == "mpi" else [ranks]
    for seed in seeds:
        said = played(by, ranks, "random", seed)
        assert [one["threads"] for one in said] == [1] * ranks
        sent, received = sum(one["sent"] for one in said), sum(one["received"] for one in said)
        assert sent == received > 0
        ends = [one["ends"] for one in said]
        if by == "torch":
            assert ends == [ranks - 1] * ranks  # gloo cannot cancel a receive
        else:  # none but to those who have asked, because a rank was slow
            assert sum(ends) <= sum(one["asks"] for one in said)
            assert 2 * (ranks - 1) <= sum(one["tree"] for one in said) <= 2 * ranks + sum(one["rows"] for one in said)


@pytest.mark.parametrize(("by", "ranks"), [("mpi", 3), ("torch", 2)])
def test_fields_may_travel_each_by_itself(by: str, ranks: int, played: Played) -> None:
    fields = len(kit.FIELDS)
    said = played(by, ranks, "random", 5, fields)
    assert sum(one["sent"] for one in said) == sum(one["received"] for one in said) > 0
    said = played(by, ranks, "bad", BAD, fields, bad=BAD)
    assert sum(one["told"] for one in said) > 0


@pytest.mark.slow(but=["torch-2"])
@pytest.mark.parametrize(("by", "ranks"), [("mpi", 3), ("torch", 2)])
def test_a_sample_that_cannot_be_read_fails_the_batches_that_need_it_on_all_ranks(
    by: str, ranks: int, played: Played
) -> None:
    said = played(by, ranks, "bad", BAD, bad=BAD)
    assert sum(one["told"] for one in said) > 0  # by another rank
    assert [one["threads"] for one in said] == [1] * ranks


@pytest.mark.slow(but=["mpi-3"])
@pytest.mark.parametrize(("by", "ranks"), [("mpi", 3), ("torch", 2)])
def test_all_may_leave_amid_a_stretch_and_begin_again(by: str, ranks: int, played: Played) -> None:
    assert played(by, ranks, "leave", 1) == [{"threads": 1}] * ranks


@pytest.mark.slow(but=["torch-3"])
@pytest.mark.parametrize(("by", "ranks"), [("mpi", 3), ("torch", 3)])
def test_who_closes_alone_is_named_to_those_who_still_need_it(by: str, ranks: int, played: Played) -> None:
    first, *others = played(by, ranks, "alone", 1)
    assert first == {"done": 5, "error": ""}
    for one in others:
        assert one["done"] >= 5
        assert one["error"] == f"rank 0 of {ranks} has closed its loader, and others go on"


@pytest.mark.slow(but=["30"])
@pytest.mark.parametrize("after", [0, 30])
def test_a_killed_rank_is_named_to_all_others(after: int, played: Played) -> None:
    said = played("torch", 3, "killed", 1, after, dying=[1])
    assert [one["rank"] for one in said] == [0, 2]
    assert all(one["error"].startswith("rank 1 of 3 is gone: ") for one in said)


@pytest.mark.parametrize("seen", [True, False])
def test_whose_end_breaks_the_making_of_a_group_is_named_even_if_it_is_seen_late(
    seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if seen and looks > 3:
            raise ReadError("rank 1 of 3 is gone")

    broken = Mock(**{"is_initialized.return_value": True, "new_group.side_effect": RuntimeError("Failed to recv")})
    monkeypatch.setitem(sys.modules, "torch", Mock(distributed=broken))
    monkeypatch.setitem(sys.modules, "torch.distributed", broken)
    with pytest.raises(ReadError) as found:
        mail("torch", check)
    unseen = "the ranks cannot exchange samples over torch.distributed (Failed to recv)"
    assert str(found.value) == ("rank 1 of 3 is gone" if seen else unseen)
    assert looks > 3


def test_under_mpi_nobody_outlives_a_killed_rank(played: Played) -> None:
    said = played("mpi", 3, "killed", 1, 30, dying=range(3))
    assert all(one["error"].startswith("rank 1 of 3 is gone: ") for one in said)


@pytest.mark.slow(but=["torch-2"])
@pytest.mark.parametrize(("by", "most"), [("mpi", 1), ("mpi", 3), ("torch", 2)])
def test_no_more_batches_than_the_window_has_are_with_the_exchange(by: str, most: int, played: Played) -> None:
    assert played(by, 2, "window", most) == [{"most": most}] * 2


def test_a_batch_keeps_its_place_until_it_was_sent_and_has_come() -> None:
    underway, batch = PendingExchange(1), Batch(0, letters=[(1, None)], missing=[2])
    underway.put(batch)
    underway.forget(0)
    underway.left(batch)
    assert underway.batches == {0: batch}
    underway.came(2, batch, 8)
    assert not underway.batches
    underway.put(other := Batch(1, letters=[(1, None)]))
    underway.let_go(1)
    assert underway.batches == {1: other}
    underway.left(other)
    assert not underway.batches


@pytest.mark.slow(but=["mpi-2"])
@pytest.mark.parametrize(("by", "ranks"), WAYS)
def test_ranks_with_different_plans_all_end_with_an_error(by: str, ranks: int, played: Played) -> None:
    said = played(by, ranks, "different")
    assert {one["kind"] for one in said} <= {"PlanError", "ReadError"}
    assert all("the ranks carry out different plans" in one["error"] for one in said)


@pytest.mark.slow(but=["torch-2"])
@pytest.mark.parametrize(("by", "ranks"), WAYS)
def test_who_waits_too_long_is_told_for_whom_and_may_wait_again(by: str, ranks: int, played: Played) -> None:
    first, _ = played(by, ranks, "late")
    assert first["text"] == "no values after 0.6 s: still waiting for rank 1 of 2"


@pytest.mark.slow(but=["mpi-2"])
@pytest.mark.parametrize(("by", "ranks"), WAYS)
def test_an_exchange_that_nobody_has_any_more_ends(by: str, ranks: int, played: Played) -> None:
    assert played(by, ranks, "garbage") == [{"threads": 1}] * ranks


@pytest.mark.slow(but=["torch-2"])
@pytest.mark.parametrize(("by", "ranks"), WAYS)
def test_whoever_drops_an_exchange_does_not_stand_still_until_others_close_theirs(
    by: str, ranks: int, played: Played
) -> None:
    assert played(by, ranks, "dropped") == [{"threads": 1}] * ranks


@pytest.mark.slow(but=["mpi-2"])
@pytest.mark.parametrize(("by", "ranks"), WAYS)
def test_a_forked_process_has_no_exchange_and_leaves_its_parents_alone(by: str, ranks: int, played: Played) -> None:
    assert played(by, ranks, "forked") == [{"status": 7}] * ranks


@pytest.mark.slow
@pytest.mark.parametrize(("by", "ranks"), [("mpi", 3), ("torch", 3)])
def test_a_program_may_end_amid_a_stretch_without_closing(by: str, ranks: int, played: Played) -> None:
    assert played(by, ranks, "unclosed") == [{"rank": rank} for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize(("by", "ranks"), WAYS)
def test_who_closes_long_before_the_others_waits_a_little_and_still_takes_what_they_send(
    by: str, ranks: int, played: Played
) -> None:
    first, second = played(by, ranks, "early")
    assert "rank 1 of 2 has not closed" in first["said"]
    assert second == {"said": ""}


@pytest.mark.slow
def test_rank_0_may_close_when_the_programs_of_the_others_have_ended(played: Played) -> None:
    """As one that writes a model at the end of a training. What the others had to say was said."""
    first, *others = played("mpi", 3, "last")
    assert first == {"said": "", "left": 0}
    assert all(one["left"] == 1 and " closed" in one["said"] for one in others)


def test_an_mpi_for_one_thread_is_refused(tmp_path: Path) -> None:
    program = """
import mpi4py
mpi4py.rc.thread_level = "single"
from mpi4py import MPI
import exchange_kit as kit
from solar.errors import PlanError
from solar.distributed.exchange import mail
try:
    mail("mpi")
except PlanError as error:
    kit.say(str(error))
"""
    said = mpi_kit.under_mpi(2, program)
    assert len(said) == 2
    assert all('leave mpi4py.rc.thread_level at "multiple"' in one for one in said)


@pytest.mark.parametrize(("by", "module", "text"), [
    ("mpi", "mpi4py.MPI", "MPI is not initialised"), ("torch", "torch.distributed", "no process group"),
])  # fmt: skip
def test_without_what_carries_letters_there_is_no_mail(
    by: str, module: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(PlanError, match=text):
        mail(by)


def test_no_other_message_comes_between_the_head_and_the_rows_of_one() -> None:
    """Ranks that wait ask others whether they have closed, from a thread of their own."""
    sent, asking = list[int](), list[threading.Thread]()

    def send(peer: int, letter: Any) -> None:
        sent.append(letter.nbytes)
        if not asking:  # now, when of a message only the head is on its way
            asking.append(threading.Thread(target=threads._letter, args=(Batch(0), 1, Head(ASK))))
            asking[0].start()
            asking[0].join(0.1)

    threads = TransferThreads.__new__(TransferThreads)
    vars(threads).update(
        _mail=SimpleNamespace(send=send),
        _underway=SimpleNamespace(changed=threading.Condition()),
        peers=SimpleNamespace(sending=threading.Lock(), ending=SimpleNamespace(sends=lambda peer, head: head)),
    )
    threads._letter(Batch(3), 1, Head(ROWS, 3, 0, 2), [np.zeros(7, np.uint8)])
    asking[0].join()
    head = 8 * len(Head._fields)
    assert sent == [head, 7, head]
