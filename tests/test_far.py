"""Files that lie elsewhere give the batches that they give here, in the requests that are counted."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import stage_kit
from far_kit import Asked, Web, served, twice
from kit import settle
from ready_kit import python
from stage_kit import KINDS, epoch, loader_of, same_batches, side_by_side, written

import solar
from solar import DataLoader, Field, H5Dataset, LayoutError, PlanSampler, ReadError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
from solar.io.remote import fetch, location


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with served(tmp_path) as one:
        yield one


def far(path: Any, web: Web) -> Any:
    return [web.url(one) for one in path] if isinstance(path, list) else web.url(path)


def both(kind: str, folder: Path, web: Web, monkeypatch: pytest.MonkeyPatch, **stage: Any) -> tuple[Any, Any]:
    """A data set of this kind from the web, and from here."""
    here = KINDS[kind](folder)
    with monkeypatch.context() as patched:
        patched.setattr(stage_kit, "H5Dataset", lambda path, *a, **k: H5Dataset(far(path, web), *a, **k))
        return KINDS[kind](folder, **stage), here


@pytest.mark.slow(every=11)
@pytest.mark.parametrize("buffer", [0, "800KiB", None])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_file_here(
    kind: str, buffer: Any, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = both(kind, tmp_path, web, monkeypatch)
    assert len(there) == len(here)
    begun = len(web.data())
    with loader_of(there, buffer, 2) as one, loader_of(here, buffer, 2) as other:
        side_by_side(one, other, 2)
        counts = one.stats()
    sent = web.data()[begun:]
    assert counts["requests"] == len(sent)  # by the server's own log
    assert counts["bytes"] == sum(one.nbytes for one in sent)


def test_file_urls_are_read_as_well(tmp_path: Path) -> None:
    values = written(tmp_path / "one.h5", "gzip")
    epoch(H5Dataset(f"file://{tmp_path}/one.h5", {"x": "x"}), values)


@pytest.mark.parametrize("layout", ["contiguous", "gzip"])
def test_a_stage_keeps_what_was_fetched(layout: str, tmp_path: Path, web: Web) -> None:
    values = written(tmp_path / "one.h5", layout)
    folder = tmp_path / "stage"
    folder.mkdir()
    data = H5Dataset(web.url("one.h5"), {"x": "x"}, stage=folder)
    first = epoch(data, values)
    assert first["written"] > 0
    begun = len(web.data())
    again = epoch(data, values)
    assert again["far_requests"] == 0
    assert len(web.data()) == begun
    stage_kit.as_a_new_process()
    assert epoch(H5Dataset(web.url("one.h5"), {"x": "x"}, stage=folder), values)["far_requests"] == 0


def test_a_small_file_is_opened_by_two_requests(tmp_path: Path, web: Web) -> None:
    written(tmp_path / "one.h5", "gzip")
    H5Dataset(web.url("one.h5"), {"x": "x", "y": "y"})
    assert [one.method for one in web.sent] == ["HEAD", "GET"]


@pytest.mark.slow
def test_the_first_batch_of_a_large_file_takes_few_round_trips(tmp_path: Path, web: Web) -> None:
    """100 GB of chunks of which none is stored but the last: the index alone is read."""
    with h5py.File(tmp_path / "large.h5", "w", libver="latest") as file:
        x = file.create_dataset("x", (400_000, 256, 256), "f4", chunks=(8, 256, 256))
        x[-1] = 1
    settle(tmp_path / "large.h5")
    data = H5Dataset(web.url("large.h5"), {"x": "x"})
    batch = next(iter(DataLoader(data, batch_size=4, sampler=[399_999, 0, 1, 2])))
    assert [float(one.max()) for one in batch["x"]] == [1, 0, 0, 0]
    assert len(web.sent) <= 10


def test_an_old_index_is_fetched_in_few_round_trips_and_little_more_than_its_bytes(tmp_path: Path, web: Web) -> None:
    """Its nodes lie all over the file, between the chunks: those of a level are asked for together."""
    path = tmp_path / "old.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        x = file.create_dataset("x", (6000, 32, 32), "f4", chunks=(1, 32, 32))
        for at in range(6000):
            x.id.write_direct_chunk((at, 0, 0), np.full((32, 32), at, "f4").tobytes())
    settle(path)
    most, under_way, lock = [0], [0], threading.Lock()

    def counts(asked: Asked, before: int) -> bool:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.01)  # a way to go: those that are asked for together are here together
        with lock:
            under_way[0] -= 1
        return False

    web.fault = counts
    data = H5Dataset(web.url(path), {"x": "x"})
    assert [int(data[at]["x"][0, 0]) for at in (0, 77, 5999)] == [0, 77, 5999]
    assert sum(one.nbytes for one in web.data()) < path.stat().st_size // 4  # it was all of it
    assert most[0] > 8


@pytest.mark.slow
def test_workers_and_processes_fetch_for_themselves(tmp_path: Path, web: Web) -> None:
    values = written(tmp_path / "one.h5")
    data = pickle.loads(pickle.dumps(H5Dataset(web.url("one.h5"), {"x": "x"}, transform=twice)))
    for context in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=50, num_workers=2, multiprocessing_context=context)
        got = np.concatenate([batch["x"].numpy() for batch in loader])
        assert np.array_equal(got, 2 * values)


def test_a_forked_process_says_that_it_cannot_fetch(tmp_path: Path, web: Web) -> None:
    """The library's threads do not come with it; it would wait for ever."""
    written(tmp_path / "one.h5")
    data = H5Dataset(web.url("one.h5"), {"x": "x"})
    said, say = os.pipe()
    if (child := os.fork()) == 0:
        try:
            data[7]
        except ReadError as error:
            os.write(say, str(error).encode())
        os._exit(0)
    os.close(say)
    with os.fdopen(said) as answer:
        assert "start processes by spawn or forkserver" in answer.read()
    os.waitpid(child, 0)


def _all_that_reads(data: Any, url: str, say: Any) -> None:
    """In a forked process: each is refused at once, and the process ends."""
    ways: dict[str, Callable[[], Any]] = {
        "a sample": lambda: data[7],
        "an epoch": lambda: [*DataLoader(data, batch_size=20, buffer=0)],
        "an epoch with a buffer": lambda: [*DataLoader(data, batch_size=20, shuffle=True)],
        "a new data set": lambda: H5Dataset(url, {"x": "x"}),
        "what is read once": lambda: solar.read(url, "x"),
        "a pattern": lambda: H5Dataset("s3://bucket/*.h5", {"x": "x"}),
    }
    for name, way in ways.items():
        try:
            way()
            say.send((name, "read"))
        except ReadError as error:
            say.send((name, str(error)))
    say.send(None)


def test_nothing_hangs_in_a_forked_process(tmp_path: Path, web: Web) -> None:
    written(tmp_path / "one.h5")
    data = H5Dataset(web.url("one.h5"), {"x": "x"})
    assert len([*DataLoader(data, batch_size=100)]) == 3  # threads, connections, an engine
    fork = multiprocessing.get_context("fork")
    hear, say = fork.Pipe(duplex=False)
    child = fork.Process(target=_all_that_reads, args=(data, web.url("one.h5"), say))
    child.start()
    said = {}
    while hear.poll(60) and (one := hear.recv()) is not None:
        said[one[0]] = one[1]
    child.join(60)
    assert child.exitcode == 0
    assert len(said) == 6
    assert all("start processes by spawn or forkserver" in one for one in said.values()), said


def test_a_state_goes_on_from_there(tmp_path: Path, web: Web) -> None:
    written(tmp_path / "one.h5")
    here, there = (H5Dataset(path, {"x": "x"}) for path in (str(tmp_path / "one.h5"), web.url("one.h5")))
    first = DataLoader(here, batch_size=20, sampler=PlanSampler(here, seed=3))
    rest = iter(first)
    for _ in range(4):
        next(rest)
    state = first.state_dict()
    second = DataLoader(there, batch_size=20, sampler=PlanSampler(there, seed=3))
    second.load_state_dict(state)
    for one, other in zip(second, rest, strict=True):
        same_batches(one, other)


def test_a_program_that_ends_amid_an_epoch_ends(tmp_path: Path, web: Web) -> None:
    written(tmp_path / "one.h5")
    text = (
        "import sys; from solar import DataLoader, H5Dataset\n"
        "loader = DataLoader(H5Dataset(sys.argv[1], {'x': 'x'}), batch_size=10, shuffle=True, buffer=0)\n"
        "next(iter(loader)); print('one', flush=True)"
    )
    done = subprocess.run([*python(), "-c", text, web.url("one.h5")], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "one"), done.stderr


# --- names ----


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://example.org/a.h5", "ftp:// is not read; known are http://"),
        ("https://me:secret@example.org/a.h5", "it holds a user's name or password"),
        ("https://example.org/a.h5?X-Amz-Signature=secret", "signed URLs"),
        ("https://[::1/a.h5", "it is no URL"),
    ],
)
def test_urls_that_are_not_read(url: str, said: str) -> None:
    with pytest.raises(ReadError) as raised:
        H5Dataset(url, {"x": "x"})
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_web_folder_cannot_be_listed(web: Web) -> None:
    with pytest.raises(LayoutError, match="does not tell what lies there: give a list of URLs"):
        H5Dataset(web.url("") + "/", {"x": "x"})


def test_patterns_and_folders_of_a_store(tmp_path: Path) -> None:
    for number in (10, 9):
        written(tmp_path / f"run{number}.h5", samples=10)
    (tmp_path / "notes.txt").write_text("x")
    for url in (f"file://{tmp_path}/run*.h5", f"file://{tmp_path}/"):
        assert location.listed(url, (".h5",)) == [f"file://{tmp_path}/run10.h5", f"file://{tmp_path}/run9.h5"]
    assert len(H5Dataset(f"file://{tmp_path}/run*.h5", {"x": "x"})) == 20
    values = written(tmp_path / "50%25 #1.h5", samples=10, seed=1)
    assert np.array_equal(H5Dataset(f"file://{tmp_path}/50*.h5", {"x": "x"})[3]["x"], values[3])
    with pytest.raises(LayoutError, match="no object matches"):
        H5Dataset(f"file://{tmp_path}/walk*.h5", {"x": "x"})


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch._Fetchers.end()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ReadError, match=r"pip install 'solar\[remote\]'"):
        H5Dataset("https://example.org/a.h5", {"x": "x"})


# --- what only lies here ----


def test_a_link_from_afar_does_not_lead_here(tmp_path: Path, web: Web) -> None:
    private = tmp_path / "private"
    private.mkdir()
    written(private / "secret.h5")
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["absolute"] = h5py.ExternalLink(str(private / "secret.h5"), "/x")
        file["above"] = h5py.ExternalLink("../secret.h5", "/x")
        file["away"] = h5py.ExternalLink(web.url("one.h5"), "/x")
        file["beside"] = h5py.ExternalLink("one.h5", "/x")
    values = written(tmp_path / "one.h5")
    settle(tmp_path / "links.h5")
    for name in ("absolute", "above", "away"):
        with pytest.raises(LayoutError, match="there is no file"):
            H5Dataset(web.url("links.h5"), {"x": name})
    data = H5Dataset(web.url("links.h5"), {"x": "beside"})
    assert np.array_equal(data[5]["x"], values[5])


def test_a_link_here_leads_to_no_url(tmp_path: Path, web: Web) -> None:
    """Whoever opens a file of unknown origin asks no stranger's server for anything."""
    written(tmp_path / "one.h5")
    H5Dataset(web.url("one.h5"), {"x": "x"})  # URLs can be read
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["away"] = h5py.ExternalLink(web.url("one.h5"), "/x")
    settle(tmp_path / "links.h5")
    asked = len(web.sent)
    with pytest.raises(LayoutError, match="there is no file"):
        H5Dataset(str(tmp_path / "links.h5"), {"x": "away"})
    assert len(web.sent) == asked


def test_fields_of_one_file_share_its_metadata(tmp_path: Path, web: Web) -> None:
    written(tmp_path / "one.h5", "tiles")
    H5Dataset(web.url("one.h5"), {"x": "x", "now": Field("x", steps=(0,)), "then": Field("y", steps=(1,))})
    assert len(web.data()) == 1


def test_connections_do_not_stay_when_another_server_is_read(tmp_path: Path) -> None:
    """A test, a notebook, a service: what reads from many places keeps those of the latest open."""
    values, most = written(tmp_path / "one.h5", samples=40), 0
    for _ in range(4):
        with served(tmp_path) as web:
            epoch(H5Dataset(web.url("one.h5"), {"x": "x"}), values)
        most = most or _descriptors()
    assert _descriptors() <= most + 8


def _descriptors() -> int:
    """How many this process has open, once those of ended connections are closed."""
    end = time.monotonic() + 60
    found = [len([*Path("/proc/self/fd").iterdir()])]
    while time.monotonic() < end and (len(found) < 5 or min(found[-3:]) < found[-4]):
        time.sleep(0.1)  # a connection is closed by a thread of its own, which tells nobody
        found.append(len([*Path("/proc/self/fd").iterdir()]))
    return found[-1]
