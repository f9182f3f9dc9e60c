"""Services of several nodes, which read as one: jobs on each have the batches that they would have alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import settle
from serve_kit import FIELDS, PATIENT, SAMPLES, alone, check, epochs_of, job, scan, serving, soon
from serve_nodes_kit import Services
from torch.utils.data import ConcatDataset, Subset

from solar import Crops, DataLoader, Field, H5Dataset, PlanSampler, Windows
from solar.errors import SolarError
from solar.io.channels import service_sockets

_ = scan  # a fixture

WAITS = {"scheduler.GATHERS": 2.0, "scheduler.SETTLES": 10.0}  # seconds that a service waits for others
KINDS: dict[str, Callable[[Path], Any]] = {
    "several fields": lambda path: H5Dataset(path, FIELDS),
    "gzip, other byte order": lambda path: H5Dataset(path, "z"),
    "windows": lambda path: H5Dataset(path, Field("x", steps=range(4)), samples=Windows()),
    "boxes": lambda path: H5Dataset(path, "z", samples=Crops((4, 16))),
    "two, and a part": lambda path: ConcatDataset(
        [H5Dataset(path, "x"), Subset(H5Dataset(path, "x"), [*range(9, 900)])]
    ),
}


def on_nodes(data: list[Any], services: Services, pause: float = 0) -> dict[int, Any]:
    """Jobs that take part in the services in turn."""
    found: dict[int, Any] = {}
    jobs = [
        threading.Thread(target=job, args=(one, seed, 8 + 3 * seed, services.socket(seed), found, pause))
        for seed, one in enumerate(data)
    ]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join(90)
        assert not one.is_alive(), services.said()
    return found


def _travelled(services: Services) -> bool:
    """Whether all that one of two has sent has come to the other: steps that were told come, wanted or not."""
    one, other = services.status()
    pairs = (one["sent_samples"], other["received_samples"]), (other["sent_samples"], one["received_samples"])
    return all(sent == received for sent, received in pairs)


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("kind", KINDS)
def test_jobs_of_two_nodes_have_the_batches_that_they_would_have_alone(kind: str, scan: Path, tmp_path: Path) -> None:
    data = [KINDS[kind](scan) for _ in range(4)]
    with Services(scan, where=tmp_path / "s", memory="4MiB") as services:
        found = on_nodes(data, services)
        assert soon(lambda: _travelled(services)), services.status()
        status = services.status()
    check(data, found)
    assert sum(counts["alone"] for _, counts in found.values()) <= 4  # each reads one while it joins
    assert [one["nodes"] for one in status] == [2, 2] and [one["node"] for one in status] == [0, 1]
    assert all(one["read_bytes"] > 0 for one in status)
    assert all(one["sent_samples"] > 0 for one in status)


@pytest.mark.slow
def test_three_nodes_of_which_one_has_no_job(scan: Path, tmp_path: Path) -> None:
    data = [H5Dataset(scan, "x") for _ in range(2)]
    with Services(scan, where=tmp_path / "s", nodes=3) as services:
        found = on_nodes(data, services)
        status = services.status()
    check(data, found)
    third = SAMPLES * 1024 // 3
    assert status[2]["handed_bytes"] == 0 and status[2]["sent_samples"] > SAMPLES and status[2]["read_bytes"] >= third


@pytest.mark.slow
def test_jobs_come_and_go_at_different_times(scan: Path, tmp_path: Path) -> None:
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with Services(scan, where=tmp_path / "s", memory="1MiB") as services:
        stays = threading.Thread(target=job, args=(data, 0, 8, services.socket(0), found, 0.004))
        stays.start()
        assert soon(lambda: any(one["batches"] > 3 for one in services.status()[0]["jobs"]))
        job(data, 1, 11, services.socket(1), found)  # comes, and goes
        with DataLoader(data, 16, sampler=PlanSampler(data, seed=9), service=services.socket(1), buffer=0) as leaves:
            for number, _batch in enumerate(leaves):
                if number == 20:
                    break
        job(data, 2, 14, services.socket(1), found)
        stays.join(60)
        job(data, 3, 17, services.socket(0), found)  # when all have gone
    for seed, batch in ((0, 8), (1, 11), (2, 14), (3, 17)):
        assert found[seed][0] == alone(data, seed, batch)
        assert found[seed][1]["served"] > 100


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("seeds", [(1, 1), (1, 2), (1, 2, 3, 4)], ids=str)
def test_both_nodes_together_read_what_one_service_for_all_reads(
    seeds: tuple[int, ...], scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has memory for its half: so the data are read once, by both together, and not once a node.

    All jobs are waited for: who joins later has some read again.
    """
    read, both = read_by_one_and_two(scan, scan, seeds, 4 * SAMPLES * 1024, tmp_path, monkeypatch)
    assert SAMPLES * 1024 <= sum(both) < min(1.2 * read, 1.7 * SAMPLES * 1024)  # holes are read along
    assert max(both) < SAMPLES * 1024


def read_by_one_and_two(
    path: Path, of: Path | H5Dataset, seeds: tuple[int, ...], memory: int, where: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[int]]:
    """The bytes that a service reads for jobs that begin together, and each of two with half of its memory."""
    for name, seconds in WAITS.items():
        monkeypatch.setattr(f"solar.service.{name}", seconds)
    waits = "import solar.service.scheduler as scheduler\n" + "".join(f"{n} = {s}\n" for n, s in WAITS.items())
    (where / "one").mkdir()
    with serving(path, where=where / "one", memory=memory, slack=PATIENT) as service:
        orders = of_seeds(of, seeds, [str(service.path)])
        read = service.status()["read_bytes"]
    with Services(path, where=where / "s", memory=str(memory // 2), before=waits) as services:
        assert of_seeds(of, seeds, [*map(str, services.sockets)]) == orders
        assert soon(lambda: _travelled(services))
        return read, [one["read_bytes"] for one in services.status()]


def of_seeds(of: Path | H5Dataset, seeds: tuple[int, ...], sockets: list[str]) -> list[str]:
    """The batches of jobs that begin together, each with its seed; of a file they want "x"."""
    data = H5Dataset(of, "x") if isinstance(of, Path) else of
    begun, found = threading.Barrier(len(seeds)), dict[int, str]()

    def one(number: int) -> None:
        order, service = PlanSampler(data, seed=seeds[number]), sockets[number % len(sockets)]
        with DataLoader(data, 16, sampler=order, service=service, buffer=0, epochs=2) as loader:
            begun.wait(60)
            found[number] = epochs_of(loader)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(seeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return [found[number] for number in range(len(seeds))]


@pytest.mark.slow
def test_several_data_sets_at_a_time_divide_the_memory_of_all_nodes(scan: Path, tmp_path: Path) -> None:
    """Those who read one when another comes join again, on every node."""
    data, found = [H5Dataset(scan, name) for name in ("x", "z")], dict[int, Any]()
    with Services(scan, where=tmp_path / "s", memory="4MiB") as services:
        stays = threading.Thread(target=job, args=(data[0], 0, 8, services.socket(0), found, 0.004))
        stays.start()
        assert soon(lambda: any(one["batches"] > 3 for one in services.status()[0]["jobs"]))
        job(data[1], 1, 11, services.socket(1), found)
        job(data[0], 2, 14, services.socket(1), found)
        stays.join(60)
        job(data[1], 3, 17, services.socket(0), found)
    for seed, of, batch in ((0, 0, 8), (1, 1, 11), (2, 0, 14), (3, 1, 17)):
        assert found[seed][0] == alone(data[of], seed, batch)
        assert found[seed][1]["served"] > 100


# --- what goes wrong ----


@pytest.mark.slow
def test_a_job_that_rests_holds_back_those_of_another_node_for_the_slack_and_no_longer(
    scan: Path, tmp_path: Path
) -> None:
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with (
        Services(scan, where=tmp_path / "s", memory="1MiB", slack=0.2) as services,
        DataLoader(data, 11, sampler=PlanSampler(data, seed=1), service=services.socket(1), buffer=0) as slow,
    ):
        slow.set_epoch(0)
        batches = iter(slow)
        seen = [next(batches) for _ in range(12)]  # and then it takes none
        job(data, 0, 8, services.socket(0), found)
        assert "held back others" in services.said()
        seen += batches
    assert found[0][0] == alone(data, 0, 8) and found[0][1]["served"] > 200
    with DataLoader(data, 11, sampler=PlanSampler(data, seed=1), buffer=0) as whole:
        whole.set_epoch(0)
        assert all(one.equal(other) for one, other in zip(seen, whole, strict=True))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGTERM, "stop"], ids=["killed", "ended", "told to end"])
def test_a_service_that_goes_ends_all_and_jobs_of_both_nodes_go_on(what: Any, scan: Path, tmp_path: Path) -> None:
    data = [H5Dataset(scan, FIELDS) for _ in range(4)]
    with Services(scan, where=tmp_path / "s") as services:
        victim = services.status()[1]["pid"]

        def end() -> None:
            assert soon(lambda: any(one["batches"] > 20 for one in services.status()[1]["jobs"]))
            if what == "stop":
                peer, _ = service_sockets.greeted(services.sockets[1], 10, "test")
                with peer:
                    service_sockets.ask(peer, services.sockets[1], {"is": "stop"}, "stopping")
            else:
                os.kill(victim, what)

        ends = threading.Thread(target=end)
        ends.start()
        found = on_nodes(data, services, pause=0.004)
        ends.join(60)
        code = services.process.wait(60)
    check(data, found)
    assert all(counts is None or counts["served"] > 0 for _, counts in found.values())
    assert (code == 0) == (what != signal.SIGKILL)


@pytest.mark.slow
def test_a_service_that_hangs_leaves_jobs_of_both_nodes_to_themselves_and_comes_back(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solar.service.served_run.COME_WITHIN", 0.3)
    data = [H5Dataset(scan, FIELDS) for _ in range(2)]
    with Services(scan, where=tmp_path / "s") as services:
        victim = services.status()[1]["pid"]
        found: dict[int, Any] = {}
        first = threading.Thread(target=job, args=(data[0], 0, 24, services.socket(0), found, 0.02))
        first.start()
        assert soon(lambda: any(one["batches"] > 9 for one in _status_of(services, 0)["jobs"]))
        os.kill(victim, signal.SIGSTOP)
        first.join(90)
        os.kill(victim, signal.SIGCONT)
        job(data[1], 1, 11, services.socket(1), found)
    assert (found[0][0], found[1][0]) == (alone(data[0], 0, 24), alone(data[1], 1, 11))
    assert found[0][1]["alone"] > 20 and found[1][1]["served"] > 100


def test_a_node_that_says_nothing_is_not_waited_for_and_does_not_keep_others_from_ending(
    scan: Path, tmp_path: Path
) -> None:
    """The jobs' own patience is ten seconds, in each pass: what ends it sooner is what the services notice."""
    before = "import solar.service.nodes as nodes\nnodes.SILENT = 2.0\n"
    data, found = H5Dataset(scan, FIELDS), dict[int, Any]()
    with Services(scan, where=tmp_path / "s", before=before) as services:
        victim = services.status()[1]["pid"]
        first = threading.Thread(target=job, args=(data, 0, 8, services.socket(0), found, 0.01))
        first.start()
        assert soon(lambda: any(one["batches"] > 9 for one in _status_of(services, 0)["jobs"]))
        os.kill(victim, signal.SIGSTOP)
        assert soon(lambda: "rank 1 of 2 services has said nothing for 2 s" in services.said())
        first.join(90)
        job(data, 1, 11, services.socket(0), found)  # it is refused at once
        os.kill(victim, signal.SIGCONT)
        assert soon(lambda: "rank 1 of 2 services is heard again" in services.said())
        job(data, 2, 14, services.socket(0), found)
        os.kill(victim, signal.SIGSTOP)
        peer, _ = service_sockets.greeted(services.sockets[0], 10, "test")
        with peer:
            service_sockets.ask(peer, services.sockets[0], {"is": "stop"}, "stopping")
        assert services.process.wait(60) != 0
        assert "the services of other nodes do not answer" in services.said()
    for seed, batch in ((0, 8), (1, 11), (2, 14)):
        assert found[seed][0] == alone(data, seed, batch)
    assert found[0][1]["alone"] > 20 and found[1][1]["served"] == 0 and found[2][1]["served"] > 100


def _status_of(services: Services, rank: int) -> dict[str, Any]:
    peer, _ = service_sockets.greeted(services.sockets[rank], 10, "test")
    with peer:
        told: dict[str, Any] = service_sockets.ask(peer, services.sockets[rank], {"is": "status"}, "status")[0]["told"]
    return told


def test_a_damaged_chunk_at_one_node_is_an_error_of_the_jobs_that_want_it_on_both(tmp_path: Path) -> None:
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=np.arange(4096).reshape(512, 8), chunks=(1, 8), compression=1)
        made.id.write_direct_chunk((500, 0), b"this is no deflate stream")
    settle(path)
    whole = H5Dataset(path, "x")
    data = [Subset(whole, [*range(400 + 12 * number, 512)]) for number in range(2)]
    found: dict[int, Any] = {}

    def one(number: int) -> None:
        order = PlanSampler(data[number], seed=number)
        with DataLoader(data[number], 4, sampler=order, service=services.socket(number), buffer=0) as loader:
            seen = 0
            try:
                for _batch in loader:
                    seen += 1
            except SolarError as error:
                at = order.order().tolist().index(500 - 400 - 12 * number)
                found[number] = seen, at // 4, str(error)

    with Services(path, where=tmp_path / "s") as services:
        jobs = [threading.Thread(target=one, args=(number,)) for number in range(2)]
        for of in jobs:
            of.start()
        for of in jobs:
            of.join(60)
    for seen, wanted, said in found.values():
        assert seen == wanted and "sample 500" in said
    assert len(found) == 2


# --- what is refused ----


def test_data_that_one_node_cannot_open_are_refused_on_all_in_words(scan: Path, tmp_path: Path) -> None:
    before = (
        "import solar.service.service as service\n"
        "from solar.errors import LayoutError\n"
        "def refuses(*_): raise LayoutError('that file system is not there')\n"
        "if rank == '1': service.open_data = refuses\n"
    )
    data, found = H5Dataset(scan, "x"), dict[int, Any]()
    with Services(scan, where=tmp_path / "s", before=before) as services:
        job(data, 0, 8, services.socket(0), found)
        job(data, 1, 11, services.socket(0), found)
    assert "rank 1 of 2 services: that file system is not there" in services.said()
    assert found[0][0] == alone(data, 0, 8) and found[1] == (alone(data, 1, 11), found[1][1])
    assert found[1][1] is None or found[1][1]["served"] == 0


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("arguments", "hosts", "said"),
    [
        ("sys.argv[2:4] = [sys.argv[2 + int(rank)]]", "n0,n1", "do not agree on the services of several nodes"),
        ("sys.argv[sys.argv.index('--memory') + 1] = ['2MiB', '3MiB'][int(rank)]", "n0,n1", 'has memory "3MiB"'),
        ("", "n0:2", "a node has one, which all of its trainings share"),
        ("sys.argv += ['--idle', '3']", "n0,n1", "services of several nodes end together"),
        ("sys.argv[sys.argv.index('--socket') + 1] = where + '/same.sock'", "n0,n1", "a service is there"),
    ],
    ids=["other files", "another memory", "two on a node", "idle", "one socket"],
)
def test_services_that_do_not_fit_each_other_say_so_and_end(
    arguments: str, hosts: str, said: str, scan: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.h5"
    other.write_bytes(scan.read_bytes())
    services = Services(scan, other, where=tmp_path / "s", hosts=hosts, before=arguments + "\n")
    assert services.process.wait(120) not in (0, None)
    assert said in services.said(), services.said()
    services.__exit__()
