"""The slowed file system of bench/: its model in a time of its own, and the mount where one may be made."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent
KB, MB, MS, SECOND = 1 << 10, 1 << 20, 10**6, 10**9
FAR = 10**9  # bytes apart: nobody goes on from there


def load() -> ModuleType:
    """bench/ is no package of ours and not installed."""
    spec = importlib.util.spec_from_file_location("bench_slowfs", ROOT / "bench" / "slowfs" / "__init__.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    compiled = functools.cache(module.build)  # once, though each test has a folder for caches of its own
    module.build = lambda name, flags=(): compiled(name, tuple(flags))
    return module


slowfs = load()
needs_compiler = pytest.mark.skipif(not slowfs.compiler(), reason="there is no C++ compiler")


# --- the model ----


def requests(reads: list[tuple[int, ...]], **costs: float) -> int:
    """How many requests the reads are; and no byte is lost, none answered before it was asked for."""
    times, counts = slowfs.replay(reads, **costs)
    assert counts["pieces"] == len(reads) == len(times)
    assert counts["bytes"] == sum(read[4] for read in reads)
    assert all(asked <= answered for asked, answered in times)
    return int(counts["requests"])


def one_after_another(offsets: Iterable[int], nbytes: int, reader: int = 0, think: int = 0) -> list[tuple[int, ...]]:
    return [(reader, think, 0, offset, nbytes) for offset in offsets]


@needs_compiler
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20 * MS), st.integers(1, 2 * MB)), min_size=1, max_size=30),
    st.sampled_from([0, MS, 7 * MS]),
    st.sampled_from([0, 100, 500, 10_000]),
    st.sampled_from([0, 10**8, 10**9]),
)
def test_reads_far_apart_take_a_token_each_wait_side_by_side_and_share_the_link(
    asked: list[tuple[int, int]], latency: int, iops: int, bandwidth: int
) -> None:
    asked = [(when, nbytes) for when, nbytes in dict(asked).items()]  # at different times
    reads = [(i, when, 0, i * FAR, nbytes) for i, (when, nbytes) in enumerate(asked)]
    times, counts = slowfs.replay(reads, latency=latency / SECOND, iops=float(iops), bandwidth=float(bandwidth))
    token = link = 0
    ready = []
    for when, i in sorted((when, i) for i, (when, _) in enumerate(asked)):
        turn = max(when, token)
        token = turn + (SECOND // iops if iops else 0)
        ready.append((turn + latency, i))
    for when, i in sorted(ready):
        link = max(when, link) + (round(asked[i][1] / bandwidth * SECOND) if bandwidth else 0)
        assert times[i] == (asked[i][0], link)
    assert counts["requests"] == len(reads)


@pytest.mark.slow(every=3)
@needs_compiler
@pytest.mark.parametrize("nbytes", [4 * KB, 64 * KB, MB])
def test_a_stretch_read_piece_by_piece_is_one_request(nbytes: int) -> None:
    times, counts = slowfs.replay(one_after_another(range(0, 50 * nbytes, nbytes), nbytes))
    assert counts["requests"] == 1
    assert times[-1][1] == MS + 50 * nbytes  # one latency, and a byte a nanosecond


@needs_compiler
def test_a_reader_that_thinks_a_little_between_pieces_does_not_lower_the_bandwidth_but_never_exceeds_it() -> None:
    at_once = slowfs.replay(one_after_another(range(0, 50 * MB, MB), MB))[0]
    thinking = slowfs.replay(one_after_another(range(0, 50 * MB, MB), MB, think=MS // 2))[0]
    assert at_once[-1][1] == thinking[-1][1] - MS // 2 == MS + 50 * MB
    slow = slowfs.replay(one_after_another(range(0, 50 * MB, MB), MB, think=50 * MS))[0]
    assert slow[-1][1] == MS + 50 * (MB + 50 * MS)


@needs_compiler
def test_several_streams_are_known_at_once() -> None:
    streams = [one_after_another(range(i * FAR, i * FAR + 20 * MB, MB), MB, reader=i) for i in range(40)]
    assert requests([read for stream in streams for read in stream]) == 40


@pytest.mark.slow(every=8)
@needs_compiler
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_pieces_asked_for_together_may_come_in_any_order(order: tuple[int, ...]) -> None:
    assert requests([(i, 10 * i, 0, piece * MB, MB) for i, piece in enumerate(order)]) == 1


@needs_compiler
def test_calls_made_side_by_side_for_one_stretch_are_one_request() -> None:
    calls = [one_after_another(range(c * 4 * MB, (c + 1) * 4 * MB, MB), MB, reader=c) for c in range(6)]
    times, counts = slowfs.replay([read for call in calls for read in call])
    assert counts["requests"] == 1
    assert max(answered for _, answered in times) == MS + 24 * MB


@needs_compiler
def test_a_hole_that_is_never_read_makes_two_requests() -> None:
    assert requests([(0, 0, 0, 0, MB), (1, 10, 0, 3 * MB, MB)]) == 2
    assert requests([(0, 0, 0, 0, MB), (1, 10, 0, 3 * MB, MB), (2, 20, 0, MB, 2 * MB)]) == 1
    assert requests([(0, 0, 0, 0, MB), (1, 10, 0, 3 * MB, MB), (2, 600 * MS, 0, MB, 2 * MB)]) == 2  # too late for that


@pytest.mark.slow(every=4)
@needs_compiler
@pytest.mark.parametrize("rpc", [MB, 4 * MB, 16 * MB])
@pytest.mark.parametrize("order", ["ascending", "descending", "side by side"])
def test_a_long_stretch_is_a_request_for_each_rpc_of_it(rpc: int, order: str) -> None:
    reads = one_after_another(range(0, 50 * MB, MB), MB)
    if order == "descending":  # all at once, so that they are known to be one stretch
        reads = [(piece, 10 * piece, 0, (49 - piece) * MB, MB) for piece in range(50)]
    if order == "side by side":
        calls = [one_after_another(range(c * 10 * MB, (c + 1) * 10 * MB, MB), MB, reader=c) for c in range(5)]
        reads = [read for call in calls for read in call]
    assert requests(reads, rpc=rpc) == -(-50 * MB // rpc)
    far = [(9, 0, 1, place * FAR, 3 * MB) for place in range(4)]
    assert requests(reads + far, rpc=rpc) == -(-50 * MB // rpc) + 4 * -(-3 * MB // rpc)


@needs_compiler
def test_requests_of_a_long_stretch_take_their_tokens_but_wait_for_no_latency_of_their_own() -> None:
    reads = one_after_another(range(0, 64 * MB, MB), MB)
    by_link = slowfs.replay(reads, rpc=4 * MB)[0][-1][1]
    assert by_link == MS + 64 * MB  # 238 requests a second of 500
    by_tokens = slowfs.replay(reads, rpc=MB)[0][-1][1]
    assert by_tokens == pytest.approx(63 * 2 * MS + MB, abs=2 * MS)  # 500 MB/s: a token each


@needs_compiler
def test_reading_backwards_or_elsewhere_is_a_request_each_time() -> None:
    assert requests(one_after_another(range(20 * MB, 0, -MB), MB)) == 20
    assert requests([(0, 0, file, file * MB, MB) for file in range(20)]) == 20


@needs_compiler
def test_a_stretch_is_forgotten_after_a_second_or_for_fresher_ones() -> None:
    assert requests([(0, 0, 0, 0, MB), (0, SECOND // 2, 0, MB, MB)]) == 1
    assert requests([(0, 0, 0, 0, MB), (0, 3 * SECOND // 2, 0, MB, MB)]) == 2
    others = [(0, 0, 0, (i + 1) * FAR, KB) for i in range(70)]
    assert requests([(0, 0, 0, 0, KB), *others, (0, 0, 0, KB, KB)], iops=0.0) == 72
    assert requests([(0, 0, 0, 0, KB), *others[:60], (0, 0, 0, KB, KB)], iops=0.0) == 61


@needs_compiler
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([64 * KB, 256 * KB, MB]), st.integers(1, 40))
def test_however_they_read_nobody_gets_more_requests_or_bytes_than_there_are(
    seed: int, nbytes: int, readers: int
) -> None:
    rng = random.Random(seed)
    places = range(0, 64 * MB, nbytes)  # a small file: many pieces lie near each other
    reads = [
        (reader, rng.choice([0, MS]), 0, rng.choice(places), nbytes) for reader in range(readers) for _ in range(20)
    ]
    times, counts = slowfs.replay(reads)
    passed = max(answered for _, answered in times)
    assert counts["requests"] <= passed * 500 / SECOND + 1 + 8  # eight may be answered before their token's time
    assert counts["bytes"] <= passed


# --- the mount ----


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A folder of files, mounted again."""
    if reason := slowfs.lacking():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("source")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "a.bin").write_bytes(random.Random(1).randbytes(5 * MB + 123))
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = np.arange(100_000).reshape(1000, 100)
    with slowfs.mounted(folder, latency=1e-4, bandwidth=4e9, iops=0.0) as mount:
        yield mount, folder
    assert not mount.path.exists()


def test_files_and_folders_are_those_of_the_source_and_cannot_be_changed(slowed: Any) -> None:
    mount, folder = slowed
    assert sorted(path.name for path in mount.path.iterdir()) == ["deeper", "x.h5"]
    file = mount.path / "deeper" / "a.bin"
    assert file.stat().st_size == (folder / "deeper" / "a.bin").stat().st_size
    assert file.read_bytes() == (folder / "deeper" / "a.bin").read_bytes()
    with pytest.raises(OSError, match="Read-only"):
        file.open("r+b")
    with pytest.raises(FileNotFoundError):
        (mount.path / "none").stat()


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
def test_any_stretch_is_read_with_and_without_o_direct_and_never_from_a_cache(slowed: Any, flags: int) -> None:
    mount, folder = slowed
    whole = (folder / "deeper" / "a.bin").read_bytes()
    file = os.open(mount.path / "deeper" / "a.bin", os.O_RDONLY | flags)
    try:
        before = mount.counts()
        for offset, nbytes in ((0, 10), (4096, 8192), (12345, 3 * MB), (5 * MB, 4096), (0, 10)):
            expected = whole[offset : offset + nbytes]
            assert os.pread(file, nbytes, offset) == expected
            after = mount.counts()
            assert after["bytes"] - before["bytes"] == len(expected)
            assert after["pieces"] > before["pieces"]
            before = after
    finally:
        os.close(file)


def test_a_large_read_is_one_request_in_pieces(slowed: Any) -> None:
    mount, _ = slowed
    with (mount.path / "deeper" / "a.bin").open("rb", buffering=0) as file:
        before = mount.counts()
        file.seek(777)
        file.read(4 * MB)
    after = mount.counts()
    assert after["requests"] - before["requests"] == 1
    assert after["pieces"] - before["pieces"] >= 4


def test_h5py_reads_it(slowed: Any) -> None:
    mount, _ = slowed
    with h5py.File(mount.path / "x.h5") as file:
        assert np.array_equal(file["x"][17:19], np.arange(1700, 1900).reshape(2, 100))


def test_a_mount_with_open_files_goes_too(slowed: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with slowfs.mounted(tmp_path) as mount:
        file = os.open(mount.path / "a", os.O_RDONLY)
    assert not mount.path.exists()
    with pytest.raises(OSError, match="not connected"):
        os.pread(file, 1, 0)
    with contextlib.suppress(OSError):  # the file system has gone, and says so; the descriptor is closed all the same
        os.close(file)


def test_what_cannot_be_mounted_says_why(slowed: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot be mounted slowed"), slowfs.mounted(tmp_path / "none"):
        pass
