"""`solar plan --jobs`: several trainings on a node, each alone and all together."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planner_kit import torch_randperm

from solar.cli import compare, jobs, main
from solar.samplers.orders import STRETCH, by_study

SMALL = ["plan", "--samples", "2000", "--sample-bytes", "1k", "--batch-size", "10", "--memory", "700KiB"]
FLASH = ["--latency", "10us", "--bandwidth", "1GB/s", "--iops", "10M"]


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The JSON answer."""

    def ask(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return ask


Ask = Callable[..., dict[str, Any]]


def test_one_job_is_what_solar_plan_says_without_jobs(asked: Ask) -> None:
    for more in ([], FLASH, ["--memory", "0"], ["--memory", "3MiB"], ["--epochs", "1"]):
        plain, one = asked(*SMALL, *more), asked(*SMALL, *more, "--jobs", "1")
        assert one["policies"]["solar"] == one["policies"]["alone"] == plain["policies"]["solar"]
        for name in ("first_epoch", "buffer", "planned", "travel", "load", "storage", "samples"):
            assert one[name] == plain[name]


def test_the_keys_of_the_answer_are_described(asked: Ask) -> None:
    answer = asked(*SMALL, "--jobs", "3")
    assert [*answer["policies"]] == ["alone", "page_cache", "solar"]
    assert (answer["jobs"], answer["order"], answer["stretch"]) == (3, "own", None)
    assert set(answer["limit"].values()) <= {"requests", "bytes", "decoding"}
    for name, whole in answer["policies"].items():
        assert whole["reads"] + whole["hits"] == pytest.approx(3 * 2000)
        assert whole["peak_bytes"] <= 700 << 10
        each = answer["per_job"][name]
        assert {key: 3 * value for key, value in each.items()} == pytest.approx({key: whole[key] for key in each})
    described = "".join(main.__globals__["import_module"]("solar.cli.plan").DETAILS.split())
    assert all(key in described for key in answer)


def pages(sequences: Sequence[Sequence[int]], room: int) -> int:
    """The misses of the last of these in a cache of so many samples, slowly."""
    held: OrderedDict[int, None] = OrderedDict()
    for sequence in sequences:
        misses = 0
        for sample in sequence:
            misses += sample not in held
            held[sample] = None
            held.move_to_end(sample)
            if len(held) > room:
                held.popitem(last=False)
    return misses


@pytest.mark.parametrize("how", ["own", "common", "study"])
def test_one_page_cache_for_all_is_followed_use_by_use(how: str, asked: Ask) -> None:
    flags = {"own": [], "common": ["--common-order"], "study": ["--study"]}[how]
    answer = asked(*SMALL, "--jobs", "3", "--seed", "5", *flags)

    def order(job: int, epoch: int) -> list[int]:
        if how == "study":
            return by_study(2000, 5, 0.05).whole(5 + job, epoch).tolist()
        return torch_randperm(2000, 5 + epoch + (job if how == "own" else 0)).tolist()

    epochs = []
    for epoch in range(2):
        each = [order(job, epoch) for job in range(3)]
        epochs.append([sample for at in range(0, 2000, 10) for one in each for sample in one[at : at + 10]])
    found = answer["policies"]["page_cache"]
    assert found["reads"] == found["requests"] == pages(epochs, 700)
    assert (answer["order"], answer["stretch"]) == (how, 0.05 if how == "study" else None)


def test_each_alone_is_the_plan_of_one_with_its_part_of_the_memory(asked: Ask) -> None:
    alone = asked(*SMALL, "--jobs", "4", "--memory", "1200KiB")["policies"]["alone"]
    one = asked(*SMALL, "--memory", "300KiB")["policies"]["solar"]
    assert alone == pytest.approx({key: 4 * value for key, value in one.items()})


def test_orders_that_are_more_alike_cost_less(asked: Ask) -> None:
    flags = (["--common-order"], ["--study", "0.02"], ["--study", "10%"], [])
    answers = [asked(*SMALL, "--jobs", "6", "--batch-size", "5", *more) for more in flags]
    seconds = [answer["policies"]["solar"]["seconds"] for answer in answers]
    assert seconds == sorted(seconds)
    assert seconds[0] * 2 < seconds[3]
    assert seconds[3] * 2 < answers[3]["policies"]["alone"]["seconds"]
    assert [answer["stretch"] for answer in answers] == [None, 0.02, 0.1, None]


def test_what_is_too_little_memory_for_all_is_said_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--jobs", "8", "--memory", "10k"]) == 1
    said = capsys.readouterr().err
    assert "a service of all jobs, or each by itself with its part, needs" in said
    assert main([*SMALL, "--jobs", "8", "--memory", said.split("--memory ")[2].split(",")[0]]) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--study"], "--study is of several jobs: give --jobs K"),
        (["--common-order"], "--common-order is of several jobs"),
        (["--jobs", "2", "--ranks", "2"], "leave out --ranks"),
        (["--jobs", "2", "--common-order", "--study"], "two orders"),
        (["--jobs", "2", "--study", "--weights", "w.npy"], "--study is a shuffle, and --weights is another order"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("w.npy", np.ones(2000))
    assert main([*SMALL, *arguments]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--jobs", "0"], ["--jobs", "2000"], ["--jobs", "2", "--study", "2"]])
def test_what_is_no_number_of_jobs_and_no_share_is_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*SMALL, *flags])
    assert jobs.share("5%") == jobs.share(".05") == STRETCH


# --- what people are told ----


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_people_get_what_all_take_and_what_each_does(capsys: pytest.CaptureFixture[str]) -> None:
    said = shown(capsys, *SMALL, "--jobs", "4", "--study")
    lines = said.splitlines()
    assert "4 jobs on 1 node, 10 samples each a step; 700 KiB on each node: 35% of the data set" in said
    assert "4 jobs side by side, step by step, each with an order of its own; all want the same within 5% of" in said
    assert "for the steps of all jobs (" in said
    for head in ("an epoch of 4 jobs", "of each job"):
        place = next(place for place, line in enumerate(lines) if line.startswith(head))
        assert [line[:10] for line in lines[place + 1 : place + 4]] == ["each alone", "each alone", "together, "]
        assert len({len(line) for line in lines[place : place + 4]}) == 1
    assert "times as fast as each alone, memory divided" in said
    assert "gains little" not in said


def test_where_bytes_decide_it_is_said_that_sharing_gains_little(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["plan", "--samples", "2000", "--sample-bytes", "100k", "--batch-size", "4", "--memory", "100MB", *FLASH]
    said = shown(capsys, *large, "--jobs", "4")
    assert "Sharing gains little here: bytes decide, not requests, and memory holds 49% of them." in said
    assert "4 jobs read about 2.05 scans together and 3.51 alone" in said
    assert "--common-order), 0.512." in said
    assert "gains little" not in shown(capsys, *large, "--jobs", "4", "--common-order")
    assert "gains little" not in shown(capsys, *large, "--jobs", "1")


def test_where_decoding_decides_it_is_done_once_for_all(
    make: Callable[..., str], asked: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).integers(0, 9, (1000, 128)).astype("f4")
    path = make("scan.h5", x=(rows, {"chunks": (1, 128), "compression": "gzip"}))
    asking = ["plan", path, "x", "--batch-size", "5", "--memory", "350k", "--decode", "1MB/s", *FLASH]
    for more in ([], ["--common-order"]):
        found = asked(*asking, "--jobs", "4", *more)
        assert found["limit"] == dict.fromkeys(("alone", "page_cache", "solar"), "decoding")
        decoded = found["decoded"]
        assert decoded["page_cache"] == 4 * 1000
        assert decoded["alone"] > 3200
        assert decoded["solar"] < (900 if more else 0.85 * decoded["alone"])
        said = (
            f"Decoded: {round(decoded['solar']):,} samples for all jobs together, {round(decoded['alone']):,} by each"
        )
        assert said in shown(capsys, *asking, "--jobs", "4", *more)
    assert asked(*asking, "--jobs", "4", "--memory", "900k")["decoded"]["solar"] == 0  # in memory, once for all


# --- any samples, any order, any picture ----


def test_windows_boxes_mixtures_and_weights_are_shared_as_rows_are(
    make: Callable[..., str], asked: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("a.h5", x=np.zeros((2000, 64), "f4"), v=(np.zeros((800, 16, 16), "f4"), {"chunks": (1, 8, 8)}))
    np.save(tmp_path / "w.npy", np.arange(2000.0))
    run = ["--batch-size", "5", "--memory", "300k", "--jobs", "3"]
    every = [
        (["plan", path, "--window", "/x=-3:1"], ["alone", "solar"]),
        (["plan", path, "/v", "--crop", "4,4", "--volumes", "rows"], ["alone", "solar"]),
        (["plan", "/x", "--mixture", f"{path}=1"], ["alone", "solar"]),
        (["plan", path, "/x", "--weights", str(tmp_path / "w.npy")], ["alone", "page_cache", "solar"]),
    ]
    for asking, rows in every:
        own, common = asked(*asking, *run), asked(*asking, *run, "--common-order")
        assert [*own["policies"]] == rows
        assert common["policies"]["solar"]["seconds"] <= own["policies"]["solar"]["seconds"]
        assert own["policies"]["solar"]["seconds"] <= own["policies"]["alone"]["seconds"]
        assert "of each job" in shown(capsys, *asking, *run)


def test_what_libhdf5_reads_is_not_shared(zoo: str, asked: Ask) -> None:
    answer = asked("plan", zoo, "text", "--memory", "1M", "--batch-size", "2", "--jobs", "2")
    assert "is read through libhdf5" in answer["no_buffer"]
    assert answer["policies"]["solar"] == answer["policies"]["alone"]


def test_jobs_and_windows_have_a_picture(make: Callable[..., str], tmp_path: Path) -> None:
    path, picture = make("a.h5", x=np.zeros((300, 64), "f4")), tmp_path / "out.html"
    for asking in ([*SMALL, "--jobs", "3"], ["plan", path, "--window", "/x=-3:1", "--memory", "200k"]):
        assert main([*asking, "--plot", str(picture)]) == 0
        text = picture.read_text()
        named = ("alone", "page_cache", "solar") if "--jobs" in asking else ("one_by_one", "solar")
        assert all(f">{compare.ROW_NAMES[name]}</text>" in text for name in named)
