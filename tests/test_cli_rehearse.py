"""`solar rehearse`: alone, under a real mpiexec and over gloo; its counts add up, and errors name their rank."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi_kit import under_gloo, under_mpi

from solar.cli import main, rehearse
from solar.loader.stats import CAUSES

SAMPLES, WIDTH, BATCH = 101, 16, 8
NBYTES = 4 * WIDTH + 8
# What a rank does: its own arguments are those of all, with those that begin with its number and a colon.
PROGRAM = """
import contextlib, io, json, os, sys
from solar.cli import main
mine = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"]
arguments = [one.removeprefix(mine + ":") for one in sys.argv[1:] if one[1:2] != ":" or one[0] == mine]
out, err = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""

Said = list[tuple[int, str, str]]


@pytest.fixture
def scan(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["x"] = np.random.default_rng(0).random((SAMPLES, WIDTH)).astype("f4")
        file["id"] = np.arange(SAMPLES)
        file["other"] = np.zeros(7)
    return str(tmp_path / "scan.h5")


def on_ranks(how: str, ranks: int, *arguments: str) -> Said:
    """Exit code, stdout and stderr of each rank."""
    start: Callable[..., list[Any]] = {"mpi": under_mpi, "gloo": under_gloo}[how]
    return [tuple(one) for one in start(ranks, PROGRAM, "rehearse", *arguments, seconds=300)]


def asked(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON answer of one process."""
    assert main(["rehearse", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def check_sums(answer: dict[str, Any], ranks: int, epochs: int) -> None:
    """That every rank has its share of every epoch, and that the epochs are the sums of the ranks."""
    share = -(-SAMPLES // ranks)
    assert [one["rank"] for one in answer["per_rank"]] == [*range(ranks)]
    assert len(answer["epochs"]) == epochs
    for number, epoch in enumerate(answer["epochs"]):
        of = [one["epochs"][number] for one in answer["per_rank"]]
        assert [one["samples"] for one in of] == [share] * ranks
        assert [one["batches"] for one in of] == [-(-share // BATCH)] * ranks
        assert [one["batch_bytes"] for one in of] == [share * NBYTES] * ranks
        assert {name: sum(one[name] for one in of) for name in rehearse.SUMMED} == {
            name: epoch[name] for name in rehearse.SUMMED
        }
        assert epoch["seconds"] == max(one["seconds"] for one in of)
        assert epoch["imbalance"] >= 1
        assert all(0 < one["first_batch_seconds"] <= one["seconds"] for one in of)


def test_one_process_counts_every_epoch(scan: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(scan, "--batch-size", str(BATCH), "--epochs", "3", capsys=capsys)
    check_sums(answer, 1, 3)
    assert (answer["datasets"], answer["samples"], answer["nbytes"]) == (["/id", "/x"], SAMPLES, NBYTES)
    assert (answer["by"], answer["nodes"], answer["fed"]) == ("alone", 1, None)
    assert all(epoch["bytes"] >= SAMPLES * NBYTES for epoch in answer["epochs"])
    described = set(re.findall(r"\w+", rehearse.DETAILS))
    assert answer.keys() <= described
    assert answer["per_rank"][0].keys() | answer["per_rank"][0]["epochs"][0].keys() <= described


def test_a_buffer_that_holds_all_gives_hits_from_the_second_epoch_on(
    scan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = asked(scan, "x", "--batch-size", "8", "--epochs", "2", "--buffer", "8MiB", capsys=capsys)
    assert answer["datasets"] == ["x"]
    assert [epoch["buffer_hits"] for epoch in answer["epochs"]] == [0, SAMPLES]
    assert answer["epochs"][1]["requests"] == 0


def test_the_end_can_be_dropped_and_the_seed_chosen(scan: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(scan, "--batch-size", "8", "--epochs", "1", "--drop-last", "--seed", "5", capsys=capsys)
    assert [epoch["samples"] for epoch in answer["epochs"]] == [SAMPLES // 8 * 8]
    assert answer["seed"] == 5


@pytest.mark.slow(but=["mpi-2", "gloo-2"])
@pytest.mark.parametrize(("how", "ranks"), [("mpi", 1), ("mpi", 2), ("mpi", 4), ("gloo", 2)])
def test_the_counts_of_all_ranks_add_up(how: str, ranks: int, scan: str) -> None:
    said = on_ranks(how, ranks, scan, "--batch-size", str(BATCH), "--epochs", "2", "--compute", "1ms", "--json")
    assert [(code, err) for code, _, err in said] == [(0, "")] * ranks
    assert [out for _, out, _ in said[1:]] == [""] * (ranks - 1)
    answer = json.loads(said[0][1])
    check_sums(answer, ranks, 2)
    assert answer["by"] == ("alone" if ranks == 1 else "MPI" if how == "mpi" else "torch.distributed")
    assert (answer["ranks"], answer["nodes"], answer["compute_seconds"]) == (ranks, 1, 0.001)
    assert answer["fed"] in (True, False)


def test_people_get_a_table_of_epochs_and_one_of_ranks(scan: str) -> None:
    (code, shown, _), *_ = on_ranks("mpi", 2, scan, "--batch-size", "8", "--epochs", "2")
    assert code == 0
    assert f"{scan}: 101 samples of /id, /x, 72 B each\n2 ranks on 1 node by MPI, 8 samples each a step\n" in shown
    tables = shown.split("\n\n")
    assert [line.split()[0] for line in tables[1].splitlines()] == ["epoch", "0", "1"]
    assert [line.split()[0] for line in tables[2].splitlines()][:-1] == ["rank", "0", "1", "all"]
    assert "Nothing was computed: the slowest, rank " in shown


# --- errors ----


def test_what_rank_0_cannot_open_is_said_once_and_ends_all_ranks(tmp_path: Path) -> None:
    said = on_ranks("mpi", 2, str(tmp_path / "none.h5"), "--batch-size", "8")
    assert [code for code, _, _ in said] == [1, 1]
    assert re.fullmatch(r"solar: rank 0 of 2: .*none.h5: no such file or directory\n", said[0][2])
    assert said[1][2] == ""


@pytest.mark.slow(but=["mpi"])
@pytest.mark.parametrize("how", ["mpi", "gloo"])
def test_what_another_rank_cannot_do_names_that_rank_and_ends_all(how: str, scan: str) -> None:
    said = on_ranks(how, 3, scan, "--batch-size", "8", "1:--buffer", "1:much")
    assert [code for code, _, _ in said] == [1, 1, 1]
    assert "".join(out for _, out, _ in said) == ""
    assert said[1][2].startswith("solar: rank 1 of 3: buffer='much'")
    assert said[1][2].count("\n") == 1
    assert said[0][2] == said[2][2] == ""


@pytest.mark.slow
def test_an_error_amid_the_epochs_ends_the_other_ranks_too(scan: str, tmp_path: Path) -> None:
    program = f"""
import os
from solar.cli import rehearse
from solar.errors import ReadError
whole = rehearse._epoch
def broken(loader, epoch, *more):
    if os.environ["RANK"] == "1" and epoch == 1:
        raise ReadError(5, "the disk is gone", "scan.h5")
    return whole(loader, epoch, *more)
rehearse._epoch = broken
{PROGRAM}"""
    said = under_gloo(3, program, "rehearse", scan, "--batch-size", "8", "--epochs", "3")
    assert [code for code, _, _ in said] == [1, 1, 1]
    assert said[1][2] == "solar: rank 1 of 3: scan.h5: the disk is gone\n"
    for rank in (0, 2):
        why = "the other ranks cannot be reached|rank 1 of 3 is gone"
        assert re.fullmatch(rf"solar: rank {rank} of 3: ({why}).*\n", said[rank][2])


def test_a_rank_that_dies_ends_the_others_with_a_line_that_names_both(scan: str) -> None:
    program = f"""
import os, signal
from solar.cli import rehearse
whole = rehearse._epoch
def dying(loader, epoch, *more):
    if os.environ["RANK"] == "1" and epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(loader, epoch, *more)
rehearse._epoch = dying
{PROGRAM}"""
    options = ("--batch-size", "8", "--epochs", "3", "--buffer", "8MiB")
    said = under_gloo(3, program, "rehearse", scan, *options, dying=[1], seconds=300)
    assert [code for code, *_ in said] == [1, 1]
    for rank, (_, out, err) in zip((0, 2), said, strict=True):
        assert out == ""
        assert re.fullmatch(
            rf"solar: rank {rank} of 3: (?!rank {rank}).*(rank 1 of 3 is gone|cannot be reached).*\n", err
        )


def test_ranks_that_have_nothing_to_meet_by_are_told_what_would_do(
    scan: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "mpi4py.MPI", None)
    assert main(["rehearse", scan, "--batch-size", "8"]) == 1
    assert "rank 1 of 2 cannot meet the others: mpi4py cannot be imported" in capsys.readouterr().err
    assert main(["rehearse", scan, "--batch-size", "8", "--exchange", "torch"]) == 1
    assert "rank 1 of 2: --exchange torch, but MASTER_ADDR is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--batch-size", "0"], "argument --batch-size: '0'"),
        (["--batch-size", "8", "--compute", "5"], "argument --compute: '5'"),
        (["--batch-size", "8", "--exchange", "pigeons"], "argument --exchange: invalid choice: 'pigeons'"),
        ([], "--batch-size"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["rehearse", "scan.h5", *arguments])
    assert why in capsys.readouterr().err


# --- the verdict ----


def answer_of(compute: float, *ranks: tuple[float, float], epochs: int = 2, batches: int = 100) -> dict[str, Any]:
    """An answer made of the seconds and the waited seconds of each rank in each later epoch; the first was slow."""
    facts = dict.fromkeys(("file", "by", "buffer", "exchange", "balance"), "x")
    facts |= {"datasets": ["/x"], "samples": 800, "nbytes": 4, "ranks": len(ranks), "batch": 8, "seed": 0}
    counts = dict.fromkeys(rehearse.SUMMED, 0) | {"batches": batches, "samples": 8 * batches, "bytes": 100}

    def epoch(seconds: float, waited: float) -> dict[str, Any]:
        waits = {"storage": 0.75 * waited, "decode": 0.25 * waited}
        return counts | {"seconds": seconds, "first_batch_seconds": 0, "wait_seconds": waits, "peak_bytes": 1 << 20}

    per_rank = [
        {"rank": rank, "node": f"n{rank // 2}", "epochs": [epoch(99, 98), *[epoch(*of)] * (epochs - 1)]}
        for rank, of in enumerate(ranks)
    ]
    return rehearse.as_json(facts | {"compute_seconds": compute}, per_rank)


def test_the_verdict_is_of_the_later_epochs_and_of_the_slowest_rank() -> None:
    fed = answer_of(0.01, (1.0, 0.0), (1.0, 0.015))
    assert (fed["fed"], fed["verdict"]) == (
        True,
        "Steps of 10 ms hardly wait for data: no rank waited more than 1.5% of the time.",
    )
    hungry = answer_of(0.01, (1.0, 0.0), (1.5, 0.5))
    assert hungry["fed"] is False
    assert hungry["verdict"].startswith(
        "Steps of 10 ms WAIT for data: the slowest, rank 1, took 15 ms a step, 33% of it waiting, most for storage."
    )
    alone = answer_of(0.0, (0.5, 0.5))
    assert alone["fed"] is None
    assert "there was a batch every 5 ms" in alone["verdict"]
    assert "too few samples for one batch" in answer_of(0.0, (0.5, 0.5), batches=0)["verdict"]


@pytest.mark.parametrize(
    ("cause", "advised", "not_advised"),
    [
        ("storage", "larger --buffer or a faster storage", "cores"),
        ("buffer", "in memory already: more cores", "--buffer"),
        ("decode", "`solar compress`", "faster storage"),
        ("plan", "more --epochs", "faster storage"),
        ("collate", "most for collate.", "`"),
    ],
)
def test_the_advice_is_of_what_was_waited_for(cause: str, advised: str, not_advised: str) -> None:
    answer = answer_of(0.01, (1.5, 0.5))
    for one in answer["per_rank"][0]["epochs"]:
        one["wait_seconds"] = dict.fromkeys(CAUSES, 0.0) | {cause: 0.5, "start": 0.01}
    facts = {name: answer[name] for name in answer if name not in ("epochs", "per_rank", "nodes")}
    verdict = rehearse.as_json(facts, answer["per_rank"])["verdict"]
    assert advised in verdict
    assert not_advised not in verdict


def test_imbalance_is_the_slowest_over_the_mean_and_nodes_are_counted() -> None:
    answer = answer_of(0.0, (1.0, 0.0), (1.0, 0.0), (2.0, 0.0), (0.0, 0.0))
    assert answer["epochs"][1]["imbalance"] == pytest.approx(2.0)
    assert answer["nodes"] == 2


def test_of_many_ranks_the_slowest_are_shown() -> None:
    answer = answer_of(0.0, *[(1 + (rank * 7 % 40) / 100, 0.0) for rank in range(40)])
    lines = [*rehearse.as_text(answer)]
    shown = {int(line.split()[0]) for line in lines if re.match(r" *\d+ +n\d", line)}
    assert shown == {rank for rank in range(40) if rank * 7 % 40 >= 40 - rehearse.RANKS_SHOWN}
    assert f"and {40 - rehearse.RANKS_SHOWN} ranks more, each faster than these; --json has them all" in lines
