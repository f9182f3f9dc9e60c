"""Small files made on the fly, and the way to the shared ones."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import SHARED, settle

from solar.io.channels import progress

with contextlib.suppress(ModuleNotFoundError):  # some tests need no hypothesis, and run where there is none
    from hypothesis import HealthCheck, settings

    # That the machine is busy is no finding.
    settings.register_profile("solar", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("solar")

SLOW = "it takes long: make test-all"
FEW_EXAMPLES = 20  # of hypothesis: that many are drawn in any case
FEW_CASES = 3  # of a parametrised test, in `make test`: the first, the last and one between
# Those that take longest begin first, so that no process of pytest-xdist has much to do when the others have done all.
LONGEST = (
    "test_serve_limits", "test_bench_shapes", "test_device_decode", "test_serve_nodes", "test_serve_faults",
    "test_serve_mixed", "test_serve_begin", "test_together_blocks", "test_together", "test_peers", "test_exchange",
    "test_jobs", "test_store_resume", "test_same_curve", "test_node", "test_buffer_memory", "test_together_metadata",
    "test_examples", "test_faults", "test_limits", "test_fsdp", "test_together_memory", "test_digest", "test_stalled",
    "test_uneven_ddp", "test_cli_rehearse", "test_processes", "test_processes_programs", "test_ddp", "test_carried",
    "test_docs", "test_hostile_metadata", "test_transform", "test_soak", "test_store_filters", "test_together_kills",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hosts", action="store_true", help="also tests on hosts made up of namespaces, and Slurm (root)")
    parser.addoption("--budget", type=float, metavar="SECONDS", help="fail if all tests take more processor time")
    parser.addoption("--quick", action="store_true", help="skip those that are marked slow, and most cases of others")
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="run one test in N, drawn by --draw")
    parser.addoption("--draw", default="", metavar="TEXT", help="another text draws other tests")
    parser.addoption("--skips", metavar="FILE", help="write the names of skipped tests there, for `pytest @FILE` later")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected: nothing of it goes
    config.pluginmanager.import_plugin("processor_time")
    if config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.import_plugin("xdist_kit")
    # As the loader does: a fork server that torch's loader began would have each of its processes import torch.
    multiprocessing.set_forkserver_preload(["solar.loader.workers"])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a shell begins in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "alone: beside no other test of pytest-xdist; it looks at the clock")
    config.addinivalue_line("markers", "every_case: `make test` tries all cases, for each takes little")
    config.addinivalue_line("markers", "slow(but=(), every=0): not in `make test`, but for these or every n-th of them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        _leave_slow_out(items)
        _try_few_cases(items)
        _try_fewer_examples(items)
    if (one_in := config.getoption("--one-in")) > 1:
        drawn = [zlib.crc32(f"{config.getoption('--draw')} {item.nodeid}".encode()) % one_in == 0 for item in items]
        config.hook.pytest_deselected(items=[item for item, stays in zip(items, drawn, strict=True) if not stays])
        items[:] = [item for item, stays in zip(items, drawn, strict=True) if stays]
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


def _leave_slow_out(items: list[pytest.Item]) -> None:
    """Skips what is marked slow. A name in `but` that no parametrisation has is an error: its test would be lost."""
    named, met = set(), Counter[tuple[str, Any]]()
    for item in items:
        if mark := item.get_closest_marker("slow"):
            function, given = item.nodeid.partition("[")[0], getattr(getattr(item, "callspec", None), "id", None)
            named |= {(function, one) for one in mark.kwargs.get("but", ())}
            every, number = mark.kwargs.get("every", 0), met[function, None]
            met[function, None] += 1
            met[function, given] += 1
            if (given is None or given not in mark.kwargs.get("but", ())) and not (every and number % every == 0):
                item.add_marker(pytest.mark.skip(reason=SLOW))
    if missing := named - met.keys():
        raise pytest.UsageError(f"marked slow but for what is not there: {sorted(missing)}")


def _try_few_cases(items: list[pytest.Item]) -> None:
    """Skips most cases of a test that has many. Marks say otherwise: every_case, or slow, which says which."""
    cases = dict[str, list[pytest.Item]]()
    for item in items:
        if hasattr(item, "callspec") and not any(map(item.get_closest_marker, ("slow", "every_case"))):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for each in cases.values():
        tried = {round(place * (len(each) - 1) / (FEW_CASES - 1)) for place in range(FEW_CASES)}
        for place, item in enumerate(each):
            if place not in tried:
                item.add_marker(pytest.mark.skip(reason=SLOW))


def _try_fewer_examples(items: list[pytest.Item]) -> None:
    """A third of what hypothesis would draw: all of it is among what this leaves out."""
    fewer = {}
    for item in items:
        test = getattr(item, "obj", None)
        if getattr(test, "is_hypothesis_test", False) and not item.get_closest_marker("skip"):
            drawn = test._hypothesis_internal_use_settings
            if drawn.max_examples > FEW_EXAMPLES:
                fewer[test] = settings(drawn, max_examples=max(FEW_EXAMPLES, drawn.max_examples // 3))
                item.user_properties.append(("in_part", True))
    for test, drawn in fewer.items():
        test._hypothesis_internal_use_settings = drawn


def pytest_collection_finish() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # DLIO's tracer takes it for itself when it is imported
    gc.enable()
    gc.freeze()  # what was imported and collected stays: no later collection looks through it, and no fork copies it


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--skips"):
        return
    path = Path(config.getoption("--skips"))
    path.parent.mkdir(parents=True, exist_ok=True)
    skipped = {report.nodeid: str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ())}
    slow = sum(reason.endswith(SLOW) for reason in skipped.values())
    ran = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, ())]
    in_part = {report.nodeid for report in ran if dict(report.user_properties).get("in_part")}
    path.write_text("".join(f"{name}\n" for name in sorted(skipped.keys() | in_part)))
    terminalreporter.section("left out")
    terminalreporter.line(f"{slow} tests that take long, and {len(skipped) - slow} that need what is not here.")
    terminalreporter.line(f"Of {len(in_part)} that draw examples two thirds of those.")
    terminalreporter.line(f"Their names are in {path}; `.venv/bin/pytest -rs @{path}` says what each needs.")
    terminalreporter.line("`make test-all` runs them, with what pip can bring.")


_locks: list[int] = []  # which a child would hold when this process is killed
os.register_at_fork(after_in_child=lambda: [os.close(one) for one in _locks])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where several processes run tests, one that is marked `alone` waits until the others' tests are over."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    # Folders, so that no file is left. Whoever wants to begin goes through the first: who waits to be alone holds it.
    door, room = (os.open(folder, os.O_RDONLY) for folder in (Path(__file__).parent, Path(__file__).parents[1]))
    _locks[:] = door, room
    try:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)
    finally:
        _locks.clear()
        fcntl.flock(room, fcntl.LOCK_UN)  # in case a child has it all the same
        os.close(room)
        os.close(door)


_tests = itertools.count()


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or fills the user's cache folder. A test without a folder gets none for that, which takes time."""
    if "tmp_path" in request.fixturenames:
        cache = request.getfixturevalue("tmp_path") / "cache"
    else:
        cache = request.getfixturevalue("tmp_path_factory").getbasetemp() / f"cache-{next(_tests)}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(autouse=True)
def _own_ctrl_c() -> Generator[None]:
    """No test leaves a handler of its own, nor one of what it has imported."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is a rank of an MPI that some package has begun in this process."""
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)


@pytest.fixture
def shared() -> Path:
    """The folder of files that nobody in this project wrote."""
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED}: set SOLAR_SHARED to the folder that has data/")
    return SHARED


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., str]:
    """Makes a file of arrays by name, and gives its path: make("a.h5", x=array, y=(array, {"chunks": ...}))."""

    def make(name: str, **datasets: Any) -> str:
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            for dataset, value in datasets.items():
                data, options = value if isinstance(value, tuple) else (value, {})
                file.create_dataset(dataset, data=data, **options)
        return str(path)

    return make


@pytest.fixture
def zoo(tmp_path: Path) -> str:
    """A file with one dataset of each kind that is ordinary somewhere; those along axis 0 have 10 samples."""
    path = tmp_path / "zoo.h5"
    rng = np.random.default_rng(7)
    numbers = rng.integers(-1000, 1000, (10, 6, 5))
    with h5py.File(path, "w") as file:
        file["contiguous"] = numbers.astype("f4")
        file.create_dataset(
            "deflate", data=numbers, chunks=(4, 4, 3), compression="gzip", shuffle=True, fletcher32=True
        )
        file.create_dataset("lzf", data=numbers.astype("i2"), chunks=(3, 6, 5), compression="lzf")
        file.create_dataset("big_endian", data=np.arange(10, dtype=">i4"), chunks=(3,))
        file.create_dataset("big_endian_lzf", data=np.arange(20, dtype=">f8").reshape(10, 2), compression="lzf")
        file["complex"] = rng.random(10) + 1j
        file["bool"] = np.arange(10) % 3 == 0
        file["fixed_text"] = np.array([b"a", b"", b"abc"] * 3 + [b"z"])
        file["text"] = [f"sample {i}" for i in range(10)]
        file["struct"] = np.array([(i, i / 2) for i in range(10)], [("a", ">i4"), ("b", "f8")])
        file.create_dataset("vlen", (10,), h5py.vlen_dtype("i4"))
        file["vlen"][3] = np.arange(4)
        file.create_dataset("array", (10,), np.dtype(("<f4", (3,))))
        file.create_dataset("partly_written", (10, 3), "f4", chunks=(4, 2), fillvalue=2.5)
        file["partly_written"][5] = 7
        file.create_dataset("never_written", (10, 2), "i2", fillvalue=-3)
        file.create_dataset("empty_rows", (10, 0), "f4")
        file.create_dataset("no_rows", (0, 4), "f4")
        file["scalar"] = 3.5
        file["scalar_text"] = "hello"
        virtual = h5py.VirtualLayout((10, 6, 5), "f4")
        virtual[:] = h5py.VirtualSource(path, "contiguous", (10, 6, 5))
        file.create_virtual_dataset("virtual", virtual)
        file["null"] = h5py.Empty("f4")
        file["reference"] = file["scalar"].ref
    settle(path)
    return str(path)


class Noted(list[progress.Phase]):
    """Phases now; in `all` each that there ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[progress.Phase] = []

    def append(self, phase: progress.Phase) -> None:
        super().append(phase)
        self.all.append(phase)

    def __setitem__(self, place: Any, phase: Any) -> None:
        super().__setitem__(place, phase)
        self.all.append(phase)


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[progress.Phase]:
    """What a person would be told of, if each took long enough, one after another."""
    noted = Noted()
    monkeypatch.setattr(progress, "_phases", noted)
    return noted.all
