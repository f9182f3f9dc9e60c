"""Several loaders through one service: each has the batches that it would have alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from serve_kit import (
    FIELDS,
    PATIENT,
    SAMPLES,
    Process,
    alone,
    check,
    epochs_of,
    in_step,
    job,
    scan,
    serving,
    side_by_side,
    soon,
    together,
)
from torch.utils.data import ConcatDataset, Subset

from solar import DataLoader, Field, H5Dataset, PlanSampler, Windows, _native
from solar.cli import main
from solar.planning.pass_uses import SampleUses, in_lockstep, once_a_step, shared_steps
from solar.service.service import Service
from solar.service.window import JobOrder, Member, Pace, own_of, take_turns
from solar.values import Storage

_ = scan  # a fixture

KINDS = {
    "plain": lambda path: H5Dataset(path, FIELDS),
    "gzip, other byte order": lambda path: H5Dataset(path, "z"),
    "both": lambda path: H5Dataset(path, {"x": "x", "z": "z"}),
    "windows": lambda path: H5Dataset(path, Field("x", steps=range(4)), samples=Windows()),
    "subset": lambda path: Subset(H5Dataset(path, FIELDS), list(range(5, SAMPLES, 3))),
    "two": lambda path: ConcatDataset([H5Dataset(path, FIELDS), H5Dataset(path, FIELDS)]),
}


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("kind", KINDS)
def test_jobs_have_the_batches_that_they_would_have_alone(kind: str, scan: Path, tmp_path: Path) -> None:
    data = [KINDS[kind](scan) for _ in range(3)]
    with serving(scan, where=tmp_path, slack=PATIENT, memory=4 << 20) as service:
        found = together(data, str(service.path))
        assert service.status()["jobs"] == []
    check(data, found)
    assert all(counts["alone"] == 1 for _, counts in found.values())  # its first batch, while it joins


def test_several_jobs_of_one_order_read_no_more_than_one(scan: Path, tmp_path: Path) -> None:
    data, read = H5Dataset(scan, "x"), []
    for jobs in (1, 4):
        where = tmp_path / str(jobs)
        where.mkdir()
        # Memory for half of the samples, and orders that are the same.
        with serving(scan, where=where, slack=PATIENT, memory=SAMPLES * 512) as service:
            begun, found = threading.Barrier(jobs), []

            def one(service: Service = service, begun: Any = begun, found: list[Any] = found) -> None:
                order = PlanSampler(data, seed=1)
                with DataLoader(data, 12, sampler=order, service=str(service.path)) as loader:
                    begun.wait(60)
                    found.append(epochs_of(loader))

            threads = [threading.Thread(target=one) for _ in range(jobs)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(found) == jobs and len(set(found)) == 1
            read.append(service.status()["read_bytes"])
    assert read[1] < 3 * read[0]  # they do not begin in the same instant, and each that comes changes the plan


@pytest.mark.slow
def test_memory_for_a_quarter_holds_all_of_it_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, samples = tmp_path / "counts.h5", 4096
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(0).poisson(0.1, (samples, 64, 64)).astype("u2")
    slow = Storage(latency=1e-3, bandwidth=1e7, iops=250)
    monkeypatch.setattr("solar.service.shared_data.profile.stored_or_guessed", lambda _: (slow, False))
    data, told = H5Dataset(path, "x"), {"batch_size": 8, "epochs": 2}
    in_step(monkeypatch, jobs=2, batches=2 * samples // 8)
    with serving(path, where=tmp_path, memory=samples * 8192 // 4) as service, ExitStack() as stack:
        orders = [PlanSampler(data, seed=seed) for seed in range(2)]
        at: Any = str(service.path)
        loaders = [stack.enter_context(DataLoader(data, sampler=one, service=at, **told)) for one in orders]
        found = side_by_side(loaders, epochs=2)
        status = service.status()
    assert found == [alone(data, seed, 8) for seed in range(2)]
    # Once, and holes that are read along before all is read in one go; of samples that are not packed more than three
    # times all.
    assert status["read_bytes"] <= 1.1 * samples * 8192


@pytest.mark.slow
def test_several_data_sets_are_served_at_a_time(scan: Path, tmp_path: Path) -> None:
    """Those who read one when another comes join again, with less memory; and who comes after all has it all."""
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with serving(scan, where=tmp_path, memory=4 << 20) as service:
        stays = threading.Thread(target=job, args=(data, 0, 8, str(service.path), found, 0.004))
        stays.start()
        assert soon(lambda: any(one["batches"] > 3 for one in service.status()["jobs"]))
        for seed, other in ((1, "y"), (2, "z")):
            job(H5Dataset(scan, other), seed, 11, str(service.path), found)
            parts = [one.memory for one in service._halls.each()]
            assert len(parts) == 2 and sum(parts) <= 4 << 20
        stays.join(60)
        assert found[0] == (alone(data, 0, 8), found[0][1]) and found[0][1]["served"] > 250
        job(data, 3, 16, str(service.path), found)
        assert [one.memory for one in service._halls.each()] == [4 << 20]
        before = service.status()["read_bytes"]
        assert before > 0
    for seed, name in ((1, "y"), (2, "z")):
        assert found[seed][0] == alone(H5Dataset(scan, name), seed, 11) and found[seed][1]["served"] > 200
    assert found[3][0] == alone(data, 3, 16)


def test_a_service_that_ends_begins_nothing_anew_for_jobs_that_join_again(scan: Path, tmp_path: Path) -> None:
    data = [H5Dataset(scan, FIELDS) for _ in range(3)]
    before = set(threading.enumerate())
    with serving(scan, where=tmp_path) as service:
        found: dict[int, Any] = {}
        jobs = [
            threading.Thread(target=job, args=(one, seed, 8, str(service.path), found, 0.002))
            for seed, one in enumerate(data)
        ]
        for one in jobs:
            one.start()
        assert soon(lambda: sum(one["batches"] > 3 for one in service.status()["jobs"]) == 3)
    for one in jobs:
        one.join(60)
    left = {one.name for one in set(threading.enumerate()) - before}
    assert not left & {"solar-plan", "solar-cry", "solar-keep"}
    for seed, own in enumerate(data):
        assert found[seed][0] == alone(own, seed, 8)


def test_a_training_and_its_evaluation_take_turns_in_one_thread(scan: Path, tmp_path: Path) -> None:
    found: list[list[Any]] = []
    for of in (True, False):
        with serving(scan, where=tmp_path, memory=4 << 20) as service:
            more = {"service": str(service.path) if of else None, "buffer": 0}
            own = DataLoader(H5Dataset(scan, "x"), 16, sampler=PlanSampler(range(SAMPLES), seed=1), epochs=1, **more)
            with own, DataLoader(H5Dataset(scan, "z"), 64, epochs=3, **more) as other:
                found.append([])
                for number, batch in enumerate(own):
                    found[-1].append(batch.clone())
                    if number % 25 == 24:
                        found[-1] += [one.clone() for one in other]
                if of:
                    for loader in (own, other):
                        counts = loader._buffered.running.counts()
                        assert counts["served"] > 2 * counts["alone"]
    assert len(found[0]) == len(found[1]) == SAMPLES // 16 + 3 * -(-SAMPLES // 64)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_an_evaluation_of_the_same_data_does_not_wait_for_its_training(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread takes from both in turn: the one that it does not take from is left behind without patience."""
    monkeypatch.setattr("solar.service.pace.IN_TURN", 400)
    monkeypatch.setattr("solar.service.served_run.COME_WITHIN", 60.0)
    data, found = H5Dataset(scan, "x"), []
    for of in (True, False):
        with serving(scan, where=tmp_path, slack=100, memory=1 << 20) as service:
            more = {"service": str(service.path) if of else None, "buffer": 0, "epochs": 1}
            own = DataLoader(data, 16, sampler=PlanSampler(data, seed=1), **more)
            with own, DataLoader(Subset(data, range(300)), 8, **more) as other:
                batches = iter(own)
                seen = [next(batches).clone() for _ in range(10)]
                seen += [batch.clone() for batch in other]
                found.append(seen + [batch.clone() for batch in batches])
                if of:
                    counts = other._buffered.running.counts()
                    assert counts["alone"] <= 1 and own._buffered.running.counts()["served"] > 20
    assert len(found[0]) == len(found[1])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_ranks_that_exchange_nothing_take_part_each_by_itself(scan: Path, tmp_path: Path) -> None:
    data, found = H5Dataset(scan, FIELDS), dict[tuple[int, bool], str]()

    def rank(number: int, service: str | None) -> None:
        order = PlanSampler(data, 2, number, seed=5)
        with DataLoader(data, 8, sampler=order, service=service, exchange="off", buffer=0, epochs=2) as loader:
            found[number, service is not None] = epochs_of(loader)
            assert service is None or loader._buffered.running.counts()["served"] >= SAMPLES // 8 - 2

    with serving(scan, where=tmp_path) as service:
        both = [threading.Thread(target=rank, args=(number, str(service.path))) for number in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join(60)
    for number in range(2):
        rank(number, None)
        assert found[number, True] == found[number, False]
    assert found[0, True] != found[1, True]


def test_who_comes_reads_its_first_batch_by_itself_and_no_other(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with serving(scan, where=tmp_path) as service:
        found: dict[int, Any] = {}
        job(data, 0, 8, str(service.path), found)
    digest, counts = found[0]
    assert digest == alone(data, 0, 8) and counts["alone"] == 1


def test_a_job_leaves_amid_an_epoch_and_another_comes(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with serving(scan, where=tmp_path, slack=PATIENT) as service:
        found: dict[int, Any] = {}
        stays = threading.Thread(target=job, args=(data, 0, 8, str(service.path), found, 0.002))
        stays.start()
        for seed in (5, 6, 7):
            with DataLoader(data, 16, sampler=PlanSampler(data, seed=seed), service=str(service.path)) as loader:
                for number, _ in enumerate(loader):
                    if number == 9:
                        break
        stays.join(60)
    assert found[0][0] == alone(data, 0, 8)
    assert found[0][1]["alone"] <= 1  # its first, if it came first


def test_it_resumes_amid_an_epoch(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)

    def loader(service: Any) -> DataLoader[Any]:
        return DataLoader(data, 16, sampler=PlanSampler(data, seed=4), service=service, buffer=0)

    with serving(scan, where=tmp_path) as service, loader(str(service.path)) as first:
        for number, _ in enumerate(first):
            if number == 20:
                break
        state = first.state_dict()
        assert "service" not in json.dumps(state)
        rest = []
        for of in (str(service.path), None):
            with loader(of) as second:
                second.load_state_dict(state)
                rest.append([batch["x"].clone() for batch in second])
    assert len(rest[0]) == len(rest[1]) == SAMPLES // 16 - 21
    assert all(torch.equal(one, other) for one, other in zip(*rest, strict=True))


def test_a_report_says_who_read(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    with serving(scan, where=tmp_path) as service, DataLoader(data, 16, service=str(service.path), epochs=1) as loader:
        batches = [batch["y"].clone() for batch in loader]
        said = f"A service read {len(batches) - 1} batches for this training; 1 it read by itself."
        assert said in loader.report()


def test_a_report_counts_no_batches_ahead_and_remembers_a_service_that_is_gone(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, FIELDS)
    order = PlanSampler(data, seed=1)
    with (
        serving(scan, where=tmp_path) as service,
        DataLoader(data, 16, sampler=order, service=str(service.path)) as loader,
    ):
        each = len([*loader])
        said = f"A service read {each - 1} batches for this training; 1 it read by itself."
        assert said in loader.report()  # though it has some of the next epoch
        service.stop()
        assert soon(lambda: not service.path.exists())
        assert len([*loader]) == each
        assert len([*loader]) == each
        told = re.search(r"A service read (\d+) batches for this training; (\d+) it read by itself", loader.report())
        assert told and each - 1 <= int(told[1]) < 2 * each
        assert int(told[1]) + int(told[2]) <= 3 * each


def test_orders_of_epochs_that_are_over_take_no_memory(scan: Path, tmp_path: Path) -> None:
    data = H5Dataset(scan, "y")
    with serving(scan, where=tmp_path) as service:
        order = PlanSampler(data, seed=3)
        with DataLoader(data, 100, sampler=order, service=str(service.path), epochs=12) as loader:
            epochs_of(loader, 12)
            run = loader._buffered.running
            assert run.appended == 12 * SAMPLES // 100 and len(run._epochs) < 6
            assert all(len(one.order.epochs) < 6 for hall in service._halls.each() for one in hall.members)


def test_plain_shuffle_draws_as_torch_does(scan: Path, tmp_path: Path) -> None:
    data, seen = H5Dataset(scan, FIELDS), []
    with serving(scan, where=tmp_path) as service:
        for of in (str(service.path), None):
            torch.manual_seed(7)
            with DataLoader(data, 32, shuffle=True, service=of, buffer=0) as loader:
                seen.append([int(one) for _ in range(2) for batch in loader for one in batch["y"]])
    assert seen[0] == seen[1]


def damaged(scan: Path, folder: Path) -> Path:
    """A copy in which samples 480 to 495 of z cannot be decoded."""
    path = folder / "damaged.h5"
    path.write_bytes(scan.read_bytes())
    with h5py.File(path) as file:
        chunk = file["z"].id.get_chunk_info(30)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + 4)
        raw.write(b"\xff" * 16)
    return path


def test_a_damaged_chunk_is_each_jobs_own_error(scan: Path, tmp_path: Path) -> None:
    path = damaged(scan, tmp_path)
    data = H5Dataset(path, "z")
    with serving(path, where=tmp_path) as service:
        for of in (str(service.path), None):
            with DataLoader(data, 8, service=of, buffer=0) as loader:
                batches = iter(loader)
                for _ in range(60):
                    next(batches)
                with pytest.raises(Exception, match=r"damaged\.h5.*sample 480"):
                    next(batches)


def test_what_cannot_be_read_is_skipped_as_it_is_alone(scan: Path, tmp_path: Path) -> None:
    path = damaged(scan, tmp_path)
    data, seen = H5Dataset(path, "z"), []
    with serving(path, where=tmp_path) as service:
        for of in (str(service.path), None):
            order = PlanSampler(data, seed=2)
            with DataLoader(data, 8, sampler=order, service=of, buffer=0, on_error="skip", epochs=1) as loader:
                seen.append([batch.clone() for batch in loader])
                assert loader.stats()["skipped"] == 16
    assert len(seen[0]) == len(seen[1])
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


# --- the command ----


def test_the_command_serves_says_and_ends(scan: Path, tmp_path: Path) -> None:
    with Process(scan, tmp_path, "--slack", "1.5") as service:
        found: dict[int, Any] = {}
        job(H5Dataset(scan, FIELDS), 0, 8, str(service.socket), found)
        solar = [sys.executable, "-m", "solar", "serve", "--socket", str(service.socket)]
        told = json.loads(subprocess.run([*solar, "--status", "--json"], capture_output=True, check=True).stdout)
        assert told[0]["read_bytes"] > 0 and told[0]["handed_bytes"] >= 2 * SAMPLES * (1024 + 8)
        said = subprocess.run([*solar, "--status"], capture_output=True, check=True, text=True).stdout
        assert "1 file, 2 MiB" in said and "handed on" in said and "for more than 1.5 s" in said
        assert f"  serves {scan}\n" in said and said.endswith("  no training is there now\n")
        subprocess.run([*solar, "--stop"], check=True, capture_output=True)
        assert service.process.wait(60) == 0
        gone = subprocess.run([*solar, "--status"], capture_output=True, check=False, text=True)
        assert gone.returncode == 1 and "no service answers there" in gone.stderr
    assert not service.socket.exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--memory", "0"], "--memory 0: this node has"),
        (["--memory", "200TiB"], "--memory 200TiB: this node has"),
        (["--memory", "1MiB", "--slack", "0"], "--slack 0: more than 0 seconds"),
        (["--memory", "1MiB", "--idle", "-1"], "--idle -1: more than 0 seconds"),
        (["--memory", "1MiB", "--jobs", "0"], "--jobs 0: one or more"),
    ],
    ids=" ".join,
)
def test_what_no_service_can_be_is_refused_in_words(
    more: list[str], said: str, scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(scan), "--socket", str(tmp_path / "s.sock"), *more]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "s.sock").exists()


def test_it_ends_when_nobody_has_been_there(scan: Path, tmp_path: Path) -> None:
    with Process(scan, tmp_path, "--idle", "0.2") as service:
        assert service.process.wait(60) == 0


def test_an_order_forgets_epochs_that_are_over() -> None:
    draw = np.random.default_rng(0)
    epochs = [SampleUses(None, draw.permutation(20).astype(np.int32), np.arange(0, 21, 4)) for _ in range(4)]
    kept, whole = JobOrder(list(epochs)), JobOrder(list(epochs))
    for planned in (4, 5, 12, 20):
        kept.forget(planned)
        assert kept.known == 20 and kept.longest == 5
        assert kept.stretch(planned, 20).same(whole.stretch(planned, 20))
    assert len(kept.epochs) == 1


def test_a_member_that_has_nothing_left_leaves_the_others_their_data_sets() -> None:
    """A step that the first of several has no batch in is planned of the data sets that the others' samples are of."""
    rows, starts = np.arange(8, dtype=np.int32), np.array([0, 4, 8])
    first = SampleUses(np.zeros(8, np.int64), rows, starts)
    other = SampleUses(np.arange(16) % 2, np.arange(16, dtype=np.int32), np.arange(0, 17, 4))
    both = [Member("", 0, 4, 4, _native.Ledger(64, 1, 4), JobOrder([one]), Pace(deque())) for one in (first, other)]
    turns = take_turns(both, [1.0, 1.0])
    assert shared_steps(own_of(turns, 2, 4))[0].same(
        other._replace(which=other.which[8:], rows=other.rows[8:], starts=starts)
    )


# --- what several use in a step ----


@pytest.mark.parametrize("several", [False, True])
def test_places_of_shared_steps_are_those_of_their_samples(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solar.planning.pass_uses.AT_ONCE", 50)
    draw, jobs = np.random.default_rng(0), []
    for number in range(4):
        count = int(draw.integers(5, 80))
        cuts = np.sort(draw.integers(0, count, 5 + number))
        starts = np.concatenate(([0], cuts, [count])).astype(np.int64)
        rows = draw.integers(0, 20, count).astype(np.int32)
        jobs.append(SampleUses(draw.integers(0, 3, count) if several else None, rows, starts))
    uses, places = shared_steps(jobs)
    assert once_a_step(in_lockstep(jobs)).same(uses)
    for one, own in zip(jobs, places, strict=True):
        step = np.repeat(np.arange(len(one.starts) - 1), one.sizes)
        at = uses.starts[step] + own
        assert np.all(at < uses.starts[step + 1]) and np.array_equal(uses.rows[at], one.rows)
        assert uses.which is None or one.which is None or np.array_equal(uses.which[at], one.which)


@pytest.mark.parametrize("study", [None, 5])
def test_jobs_of_a_mixed_order_have_its_batches_and_those_of_a_study_share_its_blocks(
    study: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a study reads for three jobs is little more than one of them would; without it, several times as much."""
    path, samples, jobs = tmp_path / "rows.h5", 2048, 3
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(0).integers(0, 2**32, (samples, 256), np.uint32)
    slow = Storage(latency=1e-3, bandwidth=1e7, iops=250)
    monkeypatch.setattr("solar.service.shared_data.profile.stored_or_guessed", lambda _: (slow, False))
    data, told = H5Dataset(path, "x"), {"batch_size": 8, "epochs": 2}
    in_step(monkeypatch, jobs=jobs, batches=2 * samples // 8)

    def order(seed: int) -> PlanSampler:
        return PlanSampler(data, 1, 0, seed=seed, order="mixed", block=32, window=128, study=study)

    with serving(path, where=tmp_path, memory=samples * 1024 // 4) as service, ExitStack() as stack:
        at: Any = str(service.path)
        loaders = [
            stack.enter_context(DataLoader(data, sampler=order(seed), service=at, **told)) for seed in range(jobs)
        ]
        found = side_by_side(loaders, epochs=2)
        read = service.status()["read_bytes"] / (2 * samples * 1024)
    for seed in range(jobs):
        with DataLoader(data, 8, sampler=order(seed), buffer=0) as plain:
            assert found[seed] == epochs_of(plain)
    assert read < 1.6 if study else read > 1.9
