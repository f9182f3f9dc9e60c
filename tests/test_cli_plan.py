"""`solar plan`: what it is asked, what it answers, and its pictures."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from solar.cli import argument_types, compare, main, plot
from solar.cli.compare import PlannedData
from solar.cli.plot import trace
from solar.io.hdf5.layouts import inspect
from solar.io.system import profile, quantities
from solar.planning import policies
from solar.planning.budget import BufferTooSmall
from solar.planning.plan import Plan
from solar.planning.units import uniform
from solar.samples.row_windows import windows
from solar.values import Outcome, Storage, World

KEYS = {"reads", "requests", "bytes", "scans", "seconds", "hits", "peak_bytes"}
POLICIES = ["torch", "lru", "pinned", "solar_paper", "solar"]
SMALL = ["plan", "--samples", "2000", "--sample-bytes", "1k", "--batch-size", "10", "--memory", "500KiB"]


def asked(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON answer."""
    assert main([*arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


# --- quantities ----


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (argument_types.size_argument, "8GiB", 8 << 30),
        (argument_types.size_argument, "64k", 64 << 10),
        (argument_types.size_argument, "64 KB", 64_000),
        (argument_types.size_argument, "1.5m", 3 << 19),
        (argument_types.size_argument, "4096", 4096),
        (argument_types.size_argument, "0", 0),
        (argument_types.rate_argument, "1GB/s", 1e9),
        (argument_types.rate_argument, "500 MiB/s", 500 * 2**20),
        (argument_types.rate_argument, "2e6", 2e6),
        (argument_types.seconds_argument, "2ms", 2e-3),
        (argument_types.seconds_argument, "150µs", 150e-6),
        (argument_types.seconds_argument, "0", 0.0),
        (argument_types.count_argument, "200_000", 200_000),
        (argument_types.count_argument, "10M", 10_000_000),
        (argument_types.per_second, "20k", 20_000.0),
        (argument_types.per_second, "0.5/s", 0.5),
    ],
)
def test_quantities_are_read_as_people_write_them(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (argument_types.size_argument, "8Gx"),
        (argument_types.size_argument, "-1"),
        (argument_types.size_argument, "nan"),
        (argument_types.size_argument, "1e400"),
        (argument_types.size_argument, "9E"),
        (argument_types.size_argument, "0.5"),
        (argument_types.size_argument, ""),
        (argument_types.rate_argument, "1Gb/s"),
        (argument_types.rate_argument, "8 Gbit/s"),
        (argument_types.rate_argument, "0"),
        (argument_types.seconds_argument, "2"),
        (argument_types.seconds_argument, "2 weeks"),
        (argument_types.count_argument, "1.5"),
        (argument_types.count_argument, "0"),
        (argument_types.per_second, "inf"),
    ],
)
def test_what_is_no_quantity_is_refused_with_what_would_be_one(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
        parse(text)


def test_times_and_counts_are_said_in_few_letters() -> None:
    said = [quantities.duration(seconds) for seconds in (0, 2.5e-6, 0.002, 1.5, 423, 7800)]
    assert said == ["0 µs", "2.5 µs", "2 ms", "1.5 s", "7 min 3 s", "2 h 10 min"]
    assert [quantities.duration(seconds) for seconds in (59.9996, 119.9, 7199)] == ["60 s", "2 min 0 s", "2 h 0 min"]
    assert [quantities.short(number) for number in (0.5, 950, 12_500, 3e6)] == ["0.5", "950", "12.5k", "3M"]


@pytest.mark.parametrize(
    ("option", "value"), [("--memory", "8Gx"), ("--latency", "2"), ("--iops", "0"), ("--ranks", "x")]
)
def test_an_error_names_the_option(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*SMALL, option, value])
    said = capsys.readouterr().err
    assert said.startswith(f"solar plan: argument {option}: {value!r}")
    assert said.endswith("; see solar plan --help\n") and said.count("\n") == 1


def test_datasets_far_from_the_file_are_told_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, why in ((["/y"], "/y (DATASETs stand right behind the FILE)"), (["--none"], "--none")):
        with pytest.raises(SystemExit, match="2"):
            main(["plan", "a.h5", "/x", "--memory", "1M", *wrong])
        assert capsys.readouterr().err == f"solar plan: unrecognized arguments: {why}; see solar plan --help\n"


# --- what is asked ----


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["plan", "--memory", "1G"], "Give a FILE, or --samples and --sample-bytes"),
        (["plan"], "Give a FILE, or --samples and --sample-bytes"),
        (
            ["plan", "--samples", "4M", "--sample-bytes", "1k"],
            "Give --memory SIZE: of 3.8 GiB a quarter is --memory 1024000000",
        ),
        (["plan", "--memory", "1G", "--samples", "10"], "Give a FILE"),
        ([*SMALL, "--ranks", "2", "--ranks-per-node", "4"], "--ranks-per-node 4 of --ranks 2"),
        ([*SMALL, "--profile", "/none"], "`solar probe FOLDER` makes one"),
        ([*SMALL, "--plot", "out.gif"], "--plot out.gif: a picture is .html"),
        ([*SMALL, "--plot", "/none/out.html"], "there is no folder /none"),
        (["plan", "/none.h5", "--memory", "1G"], "/none.h5"),
        ([*SMALL, "--memory", "1k"], "give at least --memory "),
    ],
)
def test_what_cannot_be_planned_is_one_line(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "more",
    [["--window", "x=0:9", "--batch-size", "8"], ["x", "--batch-size", "8", "--jobs", "3"], ["x", "--ranks", "3"]],
)
def test_the_memory_that_is_advised_is_enough(
    more: list[str], make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("scan.h5", x=np.zeros((300, 64), "f4"))
    assert main(["plan", path, *more]) == 1
    said = re.search(r"the batches take .*, with a quarter of 75 KiB that is --memory (\d+)\n", capsys.readouterr().err)
    assert said
    assert asked("plan", path, *more, "--memory", said[1], capsys=capsys)["buffer"]["samples"] > 0


def test_a_file_says_what_its_samples_are(make: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.zeros((300, 64), "f4")
    chunked = (rows, {"chunks": (10, 64), "compression": "gzip"})
    path = make("scan.h5", x=rows, y=np.zeros((300, 2)), chunked=chunked, other=np.zeros(7))
    one = asked("plan", path, "/x", "--memory", "60k", "--batch-size", "5", capsys=capsys)
    assert (one["samples"], one["nbytes"], one["datasets"]) == (300, 300 * 256, ["/x"])
    assert one["policies"]["torch"]["bytes"] == 300 * 256
    both = asked("plan", path, "x", "y", "--memory", "60k", "--batch-size", "5", capsys=capsys)
    assert both["policies"]["torch"]["requests"] == 600
    assert both["memory"] == 60 << 10
    assert both["policies"]["torch"]["scans"] * sum(_scans(both, 300 * 256, 300 * 16)) == pytest.approx(
        both["policies"]["torch"]["seconds"]
    )
    every = asked("plan", path, "--memory", "60k", "--batch-size", "5", capsys=capsys)
    assert every["datasets"] == ["/chunked", "/x", "/y"]
    assert main(["plan", path, "x", "other", "--memory", "60k"]) == 1
    assert "the same number of samples, not x: 300, other: 7" in capsys.readouterr().err
    assert main(["plan", path, "--memory", "60k", "--samples", "10"]) == 1
    assert "leave out --samples" in capsys.readouterr().err


def _scans(answer: dict[str, Any], *sizes: int) -> list[float]:
    storage = answer["storage"]
    return [max(1 / storage["iops"], nbytes / storage["bandwidth"]) for nbytes in sizes]


def test_the_storage_is_given_measured_or_assumed(
    make: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(*SMALL, capsys=capsys)["storage"] == {
        "latency": 0.002,
        "bandwidth": 1e9,
        "iops": 500,
        "decode": None,
        "depth": 32,
        "gap": 2_000_000,
        "from": "assumed: measure yours with `solar probe`",
    }
    given = asked(*SMALL, "--latency", "1us", "--bandwidth", "2GB/s", "--iops", "1M", capsys=capsys)["storage"]
    assert (given["latency"], given["bandwidth"], given["iops"], given["gap"]) == (
        1e-6,
        2e9,
        1e6,
        2000,
    )
    kept = tmp_path / "disk.json"
    profile.save(_profile(Storage(0.25, 5e8, 100, 4)), kept)
    read = asked(*SMALL, "--profile", str(kept), capsys=capsys)["storage"]
    assert (read["latency"], read["bandwidth"], read["iops"], read["depth"]) == (0.25, 5e8, 100, 4)
    mixed = asked(*SMALL, "--profile", str(kept), "--iops", "10", capsys=capsys)["storage"]
    assert (mixed["latency"], mixed["iops"]) == (0.25, 10)
    path = make("a.h5", x=np.zeros((100, 8)))
    profile.save(_profile(Storage(0.5, 5e8, 100, 4)), profile.default_path(path))
    found = asked("plan", path, "--memory", "400k", capsys=capsys)["storage"]
    assert (found["latency"], found["from"]) == (0.5, f"profile {profile.default_path(path)}")


def test_decoding_is_counted_and_told_for_chunks_of_many_samples(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).integers(0, 9, (400, 64)).astype("f4")
    path = make("scan.h5", x=(rows, {"chunks": (20, 64), "compression": "gzip"}), plain=rows)
    asking = ("plan", path, "x", "--memory", "70k", "--batch-size", "5", "--latency", "1us")
    guessed = asked(*asking, capsys=capsys)
    assert guessed["storage"]["decode"] == profile.DECODES[1] * len(os.sched_getaffinity(0))
    slow, fast = (asked(*asking, "--decode", rate, capsys=capsys) for rate in ("1MB/s", "1000GB/s"))
    assert (slow["storage"]["decode"], fast["storage"]["decode"]) == (1e6, 1e12)
    seconds = [one["policies"]["solar"]["seconds"] for one in (slow, guessed, fast)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 0.1 + seconds[1]
    assert main([*asking, "--decode", "1MB/s"]) == 0
    assert "\ndecoding: 1 MB/s out of chunks (--decode" in capsys.readouterr().out
    assert main(["plan", path, "plain", "--memory", "70k"]) == 0
    assert "decoding" not in capsys.readouterr().out


def _profile(storage: Storage) -> profile.Profile:
    return profile.Profile("/data", "2026-01-01T00:00:00+00:00", "as told", (), storage)


# --- what is answered ----


def test_the_keys_of_the_answer_are_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(*SMALL, capsys=capsys)
    assert [*answer["policies"]] == POLICIES
    assert all(set(outcome) == KEYS for outcome in answer["policies"].values())
    assert answer["plan_seconds"] > 0
    assert 0 <= answer["overflow_fraction"] < 1
    assert [*answer["first_batch_seconds"]] == POLICIES
    assert answer["first_batch_seconds"]["solar"] < answer["first_batch_seconds"]["torch"]
    described = "".join(main.__globals__["import_module"]("solar.cli.plan").DETAILS.split())
    assert all(key in described for key in answer)


def test_several_nodes_are_told_what_travels_between_them_and_what_they_ask_of_the_storage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = ["--ranks", "8", "--ranks-per-node", "2"]
    answer = asked(*SMALL, *nodes, "--compute", "1s", capsys=capsys)
    travel, load, ours = answer["travel"], answer["load"], answer["policies"]["solar"]
    assert travel["steps"] == 2000 / 80
    assert 0 < travel["samples"] <= answer["overflow_fraction"] * 2000
    assert travel["nbytes"] == travel["samples"] * 1024
    assert travel["nbytes"] / travel["steps"] / 4 <= travel["most_nbytes"] <= 20 * 1024
    assert load["seconds"] == max(25, ours["seconds"])
    assert load["requests"] * load["seconds"] == pytest.approx(ours["requests"])
    assert load["bytes"] * load["seconds"] == pytest.approx(ours["bytes"])
    assert main([*SMALL, *nodes]) == 0
    shown = capsys.readouterr().out
    assert f"Between nodes {travel['samples'] / 2000:.1%} of the samples travel: " in shown
    assert "as fast as it reads. All nodes together ask the storage for " in shown
    one = asked(*SMALL, "--ranks", "8", capsys=capsys)
    assert (one["travel"]["samples"], one["travel"]["most_nbytes"], one["compute_seconds"]) == (0, 0, 0)
    assert main([*SMALL, "--ranks", "8"]) == 0
    assert "Between nodes" not in capsys.readouterr().out


def test_what_libhdf5_reads_has_no_buffer_and_that_is_said(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    asking = ["plan", zoo, "text", "--memory", "1M", "--batch-size", "2"]
    answer = asked(*asking, capsys=capsys)
    assert answer["buffer"] is None
    assert "is read through libhdf5" in answer["no_buffer"]
    assert answer["policies"]["solar"]["hits"] == 0
    assert main(asking) == 0
    assert "solar's loader has no buffer here: " in capsys.readouterr().out


def test_the_batches_of_all_ranks_come_off_the_memory_first(capsys: pytest.CaptureFixture[str]) -> None:
    one, four = (asked(*SMALL, "--ranks", ranks, capsys=capsys)["buffer"] for ranks in ("1", "4"))
    assert one["ready"] == four["ready"] == 1  # more would take more than a sixteenth
    assert four["batches"] == 4 * one["batches"]
    large = ("--memory", "1200k")
    many, ahead = (asked(*SMALL, *large, *how, capsys=capsys)["buffer"] for how in ((), ("--ahead", "1")))
    assert (many["ready"], ahead["ready"]) == (4, 1)
    assert 2 * many["batches"] == 5 * ahead["batches"]  # beside the one that the loop has
    for divided, nbytes in ((one, 500 << 10), (four, 500 << 10), (many, 1200 << 10), (ahead, 1200 << 10)):
        assert divided["samples"] + divided["batches"] + divided["scratch"] == nbytes


def test_uses_are_reads_and_hits_for_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(*SMALL, "--ranks", "4", "--ranks-per-node", "2", capsys=capsys)
    for name, outcome in answer["policies"].items():
        assert outcome["reads"] + outcome["hits"] == pytest.approx(2000), name
        assert outcome["peak_bytes"] <= 500 << 10, name


def test_ours_is_never_dearer_than_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    for memory in ("0", "100k", "500k", "1000k", "3000k"):
        outcomes = asked(*SMALL, "--memory", memory, capsys=capsys)["policies"]
        assert outcomes["solar"]["seconds"] <= 1.0001 * min(outcomes["torch"]["seconds"], outcomes["pinned"]["seconds"])


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--ranks", "2"]) == 0
    shown = capsys.readouterr().out
    assert "2,000 samples, 1 KiB each, 2 MiB in all" in shown
    assert "2 ranks on 1 node, 10 samples each a step; 500 KiB on each node: 25% of the data set" in shown
    assert "assumed: measure yours with `solar probe`" in shown
    lines = shown.splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("per epoch"))
    rows = lines[head + 1 : head + 1 + len(POLICIES)]
    assert all(row.startswith(compare.POLICY_NAMES[name]) for name, row in zip(POLICIES, rows, strict=True))
    assert len({len(row) for row in rows}) == 1
    assert "\x1b" not in shown


@pytest.fixture
def fields(make: Callable[..., str]) -> str:
    """Three fields of a sample; the largest is not the first of them."""
    rows = np.zeros((300, 64), "f4")
    return make("scan.h5", angle=np.arange(300.0), image=rows, mask=rows[:, :8].astype("u1"))


def test_a_rate_is_never_told_without_the_storage_it_is_modelled_for(
    fields: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("solar.io.system.memory.page_cache_nbytes", lambda: 0)
    asking = ["plan", fields, "--memory", "60k", "--batch-size", "5"]
    given = ["--latency", "1ms", "--bandwidth", "2GB/s", "--iops", "100"]
    profile.save(_profile(Storage(0.5, 5e8, 100, 4)), kept := Path(fields).parent / "disk.json")
    kinds = {"a guessed": asking, "the given": [*asking, *given], "an assumed": SMALL}
    kinds |= {"a measured": [*asking, "--profile", str(kept)], "an assumed ": [*SMALL, "--latency", "3ms"]}
    for kind, arguments in kinds.items():
        assert main(arguments) == 0
        claims = [line for line in capsys.readouterr().out.splitlines() if "times as fast" in line]
        assert len(claims) == 1
        assert re.match(rf"Modelled, for {kind.strip()} storage of .* and [0-9,]+ requests/s: solar is ", claims[0])
        assert "e+" not in claims[0]


def test_what_the_page_cache_holds_is_nothing_to_plan(
    fields: str, make: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = ["plan", fields, "--memory", "60k", "--batch-size", "5"]
    monkeypatch.setattr("solar.io.system.memory.page_cache_nbytes", lambda: 1 << 30)
    assert main(asking) == 0
    shown = capsys.readouterr().out
    assert (
        "neither PyTorch nor solar waits for the storage, and there is nothing to plan.\nThe figures are for" in shown
    )
    assert "times as fast" not in shown
    assert asked(*asking, capsys=capsys)["fits_page_cache"] is True
    packed = make("b.h5", x=(np.zeros((300, 64), "f4"), {"chunks": (20, 64), "compression": "gzip"}))
    assert main(["plan", packed, "--memory", "60k", "--batch-size", "5"]) == 0
    assert "only decoding is left to plan.\nThe figures are for" in capsys.readouterr().out
    monkeypatch.setattr("solar.io.system.memory.page_cache_nbytes", lambda: 300 * (8 + 256 + 8))
    assert asked(*asking, capsys=capsys)["fits_page_cache"] is False
    assert asked(*SMALL, capsys=capsys)["fits_page_cache"] is False


def test_a_memory_for_all_of_it_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--memory", "8MiB"]) == 0
    assert "All of it fits into this memory: solar reads it in the first epoch, and never again." in (
        capsys.readouterr().out
    )
    assert main(SMALL) == 0
    assert "never again" not in capsys.readouterr().out


def test_a_share_of_memory_says_what_it_is_a_share_of(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    packed = make("b.h5", x=(np.zeros((4000, 256), "f4"), {"chunks": (40, 256), "compression": "gzip"}))
    stored = inspect(packed, "x").stored_nbytes
    memory = 400 << 10  # a tenth of it
    assert main(["plan", packed, "--memory", str(memory), "--batch-size", "1"]) == 0
    assert f"400 KiB on each node: 10% of the data set decoded, {min(1, memory / stored):.0%} as it is stored" in (
        capsys.readouterr().out
    )


def test_a_long_plan_says_so_where_nobody_looks_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("solar.io.channels.progress.LINE_EVERY", 0.01)
    real, asked_ = compare.plan_node, []

    def until_told(*given: Any) -> Any:
        while "planning" not in (said := capsys.readouterr().err):
            asked_.append(said)
            assert len(asked_) < 10**6
        return real(*given)

    monkeypatch.setattr(compare, "plan_node", until_told)
    assert main(SMALL) == 0


def case(samples: int, **changes: Any) -> PlannedData:
    made = PlannedData("", uniform(samples, 100), World(0, 1), 10, samples * 25, Storage(0.0, 1e6, 1000), 0, 3)
    return replace(made, **changes)


def plan_of(one: PlannedData) -> Plan:
    """Of the first node."""
    made = answer_to(one).plan
    assert made is not None
    return made.windows[0].plans[0]


def answer_to(one: PlannedData) -> compare.Answer:
    return compare.compare_policies([one], compare.job_of([one], one.memory))


def test_a_large_data_set_is_followed_on_a_smaller_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = answer_to(case(20_000))
    assert exact.estimated == ()
    monkeypatch.setattr(compare, "MOST_LRU", 20_000)
    about = answer_to(case(20_000))
    assert about.estimated == ("lru",)
    assert about.outcomes["lru"].hits == pytest.approx(exact.outcomes["lru"].hits, rel=0.2)
    assert about.outcomes["lru"].seconds == pytest.approx(exact.outcomes["lru"].seconds, rel=0.02)
    assert {name: about.outcomes[name] for name in ("torch", "pinned", "solar_paper")} == {
        name: exact.outcomes[name] for name in ("torch", "pinned", "solar_paper")
    }


def test_a_policy_is_what_the_planner_counts() -> None:
    one = case(1000)
    answer = answer_to(one)
    terms = {"batch": 10, "memory": one.memory, "storage": one.storage, "ready": answer.plan.ready}
    assert answer.plan.ready > 0
    assert answer.outcomes["pinned"] == policies.pinned(one.order, one.units, one.world, **terms)


# --- what our plan does over time ----


@pytest.mark.parametrize("per_unit", [1, 4])
@pytest.mark.parametrize(("ranks", "per_node", "share"), [(1, 1, 0.25), (1, 1, 0.8), (4, 2, 0.25)])
def test_the_memory_is_full_and_never_more(per_unit: int, ranks: int, per_node: int, share: float) -> None:
    units = uniform(4000, 100, per_unit=per_unit)
    one = case(4000, units=units, world=World(0, ranks, 0, per_node), memory=1)
    with pytest.raises(BufferTooSmall) as caught:
        answer_to(one)
    memory = caught.value.least + int(share * 400_000 * per_node / ranks)
    plan = plan_of(replace(one, memory=memory))
    found = trace(plan)
    assert found is not None
    steps, room = -(-4000 // (10 * ranks)), plan.terms.room
    assert room < memory
    assert len(found.held) == 3 * steps
    assert found.held.max() <= room
    assert found.held[: 2 * steps].min() > 0.75 * room
    assert found.held[-1] <= plan.policy.pinned * 100 + 10 * 100 * ranks
    assert np.all(np.diff(found.step_at) > 0)
    assert found.place.min() >= 0
    assert found.place.max() < per_node / ranks
    assert np.all(np.diff(found.read_at) >= 0)


def test_what_holds_all_of_it_has_nothing_to_show() -> None:
    assert trace(plan_of(case(1000, memory=300_000))) is None


# --- pictures ----


def test_a_thinned_curve_hides_no_peak() -> None:
    y = np.zeros(100_000)
    y[[7, 54_321]] = (3.0, -2.0)
    xs, ys = plot.thin_curve(plot.Curve("", np.arange(100_000.0), y, str, 1.0))
    assert len(xs) == len(ys) <= plot.MOST_POINTS + 2
    assert (ys.max(), ys.min()) == (3.0, -2.0)


@pytest.mark.parametrize("most", [1e-9, 0.7, 1, 23, 99.9, 1e15])
def test_ticks_are_few_and_round(most: float) -> None:
    marks = plot.ticks(most)
    assert 3 <= len(marks) <= 6
    assert marks[0] == 0
    assert marks[-1] <= most


def test_a_page_needs_nothing_and_is_well_formed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.html"
    assert main([*SMALL, "--plot", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is loaded from elsewhere"
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    words = [element.text or "" for element in svg.iter() if element.tag.endswith("text")]
    assert all(name in words for name in compare.POLICY_NAMES.values())
    assert sum(element.tag.endswith("rect") for element in svg.iter()) >= 2 * len(POLICIES)
    assert "nan" not in text.lower().replace("--", "")


def test_a_picture_of_several_fields_is_of_all_of_them_and_says_that_it_is_modelled(
    fields: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.io.system.memory.page_cache_nbytes", lambda: 0)
    path = tmp_path / "out.html"
    asking = ["plan", fields, "--memory", "60k", "--batch-size", "5", "--iops", "100", "--plot", str(path)]
    assert main(asking) == 0
    text = path.read_text()
    assert "300 samples of /angle, /image, /mask, 272 B each, 79.7 KiB in all</h1>" in text
    assert re.search(r"<p>1 rank on 1 node, 5 samples each a step; 60 KiB on each node: 75% of", text)
    assert re.search(r"<p>Modelled, for a guessed storage of .* and 100 requests/s\.</p>", text)
    assert "page cache" not in text
    assert len(re.findall('class="title"', text)) == 4
    assert "<p>Where solar reads, and what is in memory: of /image, 94% of the bytes.</p>" in text
    monkeypatch.setattr("solar.io.system.memory.page_cache_nbytes", lambda: 1 << 30)
    assert main(asking) == 0
    assert "and there is nothing to plan.</p>" in path.read_text()


def test_few_dots_are_drawn_large_enough_to_be_seen() -> None:
    few, many = (plot.Curve("", np.arange(n), np.arange(n), str, 1.0, dots=True) for n in (10.0, 2000.0))
    widths = [re.findall('stroke-width="([0-9.]+)"', plot.page_of_panels(["x"], [one])) for one in (few, many)]
    assert widths == [["4"], ["1.5"]]


def test_bars_are_as_long_as_what_they_say() -> None:
    answered = compare.Answer({"torch": _outcome(8.0), "solar": _outcome(2.0)}, {}, ())
    text = plot.page_of_panels(["x & y"], plot.panels([case(10)], answered)[0])
    lengths = [float(length) for length in re.findall(r'<rect [^>]*width="([0-9.]+)"', text)]
    assert lengths[0] == pytest.approx(4 * lengths[1], rel=0.01)
    assert "x &amp; y" in text


def _outcome(seconds: float) -> Outcome:
    return Outcome(1, 1, 1, 1.0, seconds, 0, 1)


def test_without_matplotlib_a_picture_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert main([*SMALL, "--plot", str(tmp_path / "out.png")]) == 1
    assert "needs matplotlib, which is not installed; .html needs nothing" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_ended_while_it_draws_leaves_an_older_picture_alone(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.html").write_text("older")
    there: list[Path] = []  # when all but the new picture's name is written
    monkeypatch.setattr(os, "fsync", lambda _: (there.extend(tmp_path.iterdir()), signal.raise_signal(number)))
    with pytest.raises(SystemExit) as raised:
        raise SystemExit(main([*SMALL, "--plot", str(tmp_path / "out.html")]))
    assert (raised.value.code, len(there)) == (code, 2)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("out.html", "older")]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_matplotlib_draws_the_same_panels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.png"
    assert main([*SMALL, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_how_long_an_answer_takes_is_guessed_by_the_uses_that_are_followed_counted_and_planned() -> None:
    def guessed(samples: int = 1000, **changes: Any) -> float:
        return compare.guessed_seconds([case(samples, **changes)])

    followed, counted, planned = compare.FOLLOWED, compare.COUNTED, compare.PLANNED
    assert guessed() == pytest.approx(1000 * (2 * followed + counted + 3 * planned))
    assert guessed(world=World(0, 4, 0, 2)) == pytest.approx(guessed() + 1000 * 3 * planned), "a plan for each node"
    large = 2 * compare.MOST_LRU
    assert guessed(large) == pytest.approx(large * (followed / 2 + counted + 3 * planned)), "followed on a copy"
    of = windows(np.array([0]), np.array([1000]), every=1, reach=(0, 0))
    assert guessed(extents=of) == pytest.approx(2 * 1000 * 3 * planned), "nobody else has windows"
