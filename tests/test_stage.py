"""A stage on a local disk: the same bits whatever comes from where, and nothing read from afar twice. Counted."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import BACKENDS, engine
from ready_kit import python
from stage_kit import (
    KINDS,
    LAYOUTS,
    SAMPLES,
    as_a_new_process,
    epoch,
    loader_of,
    own,
    same_batches,
    side_by_side,
    stage_files,
    taken,
    written,
)  # fmt: skip
from test_slowfs import load

from solar import DataLoader, H5Dataset, PlanError
from solar.io.hdf5.layouts import inspect
from solar.io.reading import stage

slowfs = load()
BLOCK = stage.STAGE_BLOCK


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder of a local disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.mark.slow(every=7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("buffer", [0, "1MB", "20MB"])
def test_with_room_for_all_only_the_first_epoch_reads_from_afar(
    kind: str, buffer: Any, tmp_path: Path, disk: Path
) -> None:
    staged, plain = KINDS[kind](tmp_path, stage=disk), KINDS[kind](tmp_path)
    with loader_of(staged, buffer) as ours, loader_of(plain, buffer) as theirs:
        first, *later = side_by_side(ours, theirs)
        said = ours.report()
    assert first["far"] > 0
    assert first["written"] > 0
    assert [one["far_requests"] for one in later] == [0, 0]
    assert [one["far"] for one in later] == [0, 0]
    assert [one["written"] for one in later] == [0, 0]
    holds_all = buffer == "20MB" or (buffer == "1MB" and kind == "ragged")
    assert holds_all or all(one["near"] > 0 for one in later)
    assert "stage in" not in said
    as_a_new_process()
    again = KINDS[kind](tmp_path, stage=disk)
    with loader_of(again, buffer) as ours, loader_of(plain, buffer) as theirs:
        assert [one["far"] for one in side_by_side(ours, theirs, 2)] == [0, 0]  # found, and used


@pytest.mark.slow(every=6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [60_000, 150_000])
def test_with_room_for_a_part_that_part_stays_and_no_more_is_taken(
    kind: str, size: int, tmp_path: Path, disk: Path
) -> None:
    staged, plain = KINDS[kind](tmp_path, stage=disk, stage_size=size), KINDS[kind](tmp_path)
    with loader_of(staged) as ours, loader_of(plain) as theirs:
        first, second, third = side_by_side(ours, theirs)
        said = ours.report()
    assert taken(disk) <= size
    assert first["written"] > 0
    assert second["near"] > 0
    assert second["written"] == third["written"] == 0
    if f"The stage in {disk} has room for " in said:
        assert min(second["far"], third["far"]) > 0
        assert "--drop" in said
    else:
        assert second["far"] == third["far"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page_cache", [None, False])
def test_every_way_of_reading_fills_it_and_finds_it(
    backend: str, page_cache: bool | None, tmp_path: Path, disk: Path
) -> None:
    values = written(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk, page_cache=page_cache)
    with engine(2, backend):
        first, second, third = (epoch(data, values) for _ in range(3))
    assert first["far"] > 0
    assert (second["far"], third["far"]) == (0, 0)
    assert first["written"] >= values.nbytes


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A mount that counts, and takes no time; and the folder behind it."""
    if reason := slowfs.lacking():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("counted")
    with slowfs.mounted(folder, latency=0.0, bandwidth=0.0, iops=0.0) as mount:
        yield mount, folder


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("buffer", [0, "1MB"])
def test_the_far_storage_sees_no_request_after_the_first_epoch(
    layout: str, buffer: Any, slowed: tuple[Any, Path], disk: Path
) -> None:
    mount, folder = slowed
    name = f"{layout}{buffer}.h5"
    written(folder / name, layout)
    staged = H5Dataset(str(mount.path / name), {"x": "x", "y": "y"}, stage=disk)
    plain = H5Dataset(str(folder / name), {"x": "x", "y": "y"})
    with loader_of(staged, buffer) as ours, loader_of(plain, buffer) as theirs:
        before = mount.counts()
        [first] = side_by_side(ours, theirs, 1)
        filled = mount.counts()
        assert filled["bytes"] - before["bytes"] == first["far"] or buffer  # a run may be ahead of its batches
        side_by_side(ours, theirs, 3)
        ours._buffered.close()
        assert {**mount.counts(), **dict.fromkeys(("late_seconds", "most_late_seconds"))} == {
            **filled, **dict.fromkeys(("late_seconds", "most_late_seconds"))
        }  # fmt: skip


def test_shuffled_samples_that_share_blocks_are_all_there_after_the_first_epoch(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    order = np.random.default_rng(3).permutation(SAMPLES).tolist()
    with DataLoader(data, 1, sampler=order, buffer=0) as loader:
        for sample, batch in zip(order, loader, strict=True):
            assert np.array_equal(batch["x"][0].numpy(), values[sample])
        assert loader.stats()["bytes"] <= values.nbytes + SAMPLES * 2 * BLOCK
    assert epoch(data, values)["far"] == 0


def test_fields_of_a_file_share_its_stage_and_each_has_its_place(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5")
    path = str(tmp_path / "a.h5")
    assert epoch(H5Dataset(path, {"x": "x"}, stage=disk), values)["far"] > 0
    both = H5Dataset(path, {"x": "x", "y": "y"}, stage=disk)
    assert 0 < epoch(both, values)["far"] <= 16 * BLOCK  # of y, whose block several batches want at once
    assert epoch(both, values)["far"] == 0
    assert len(stage_files(disk)) == 1


def test_what_others_asked_for_counts_and_nobody_gets_more_than_is_left(tmp_path: Path, disk: Path) -> None:
    size = 2_200_000
    values = [written(tmp_path / f"{name}.h5", seed=seed) for seed, name in enumerate("ab")]
    data = [H5Dataset(str(tmp_path / f"{name}.h5"), {"x": "x"}, stage=disk, stage_size=size) for name in "ab"]
    for _ in range(2):
        found = [epoch(one, own_values) for one, own_values in zip(data, values, strict=True)]
    assert found[0]["far"] == 0 < found[1]["far"]
    assert taken(disk) <= size
    more = H5Dataset(str(tmp_path / "b.h5"), {"x": "x"}, stage=disk, stage_size="4MB")
    assert epoch(more, values[1])["written"] > 0
    assert epoch(more, values[1])["far"] == 0
    as_a_new_process()
    less = H5Dataset(str(tmp_path / "b.h5"), {"x": "x"}, stage=disk, stage_size=size)
    epoch(less, values[1])
    assert taken(disk) <= size  # what was written to longest ago is gone


def test_processes_that_fill_it_at_once_find_all_of_it(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    code = (
        "import sys, h5py, numpy as np\n"
        "from solar import DataLoader, H5Dataset\n"
        "path, disk, seed = sys.argv[1:]\n"
        "values = h5py.File(path)['x'][()]\n"
        "data = H5Dataset(path, 'x', stage=disk)\n"
        "for turn in range(2):\n"
        "    order = np.random.default_rng(int(seed) + turn).permutation(len(values)).tolist()\n"
        "    got = np.concatenate([batch.numpy() for batch in DataLoader(data, 5, sampler=order, buffer=0)])\n"
        "    assert np.array_equal(got, values[order])\n"
    )
    words = [*python(), "-c", code, str(tmp_path / "a.h5"), str(disk)]
    running = [subprocess.Popen([*words, str(10 * number)]) for number in range(3)]
    assert [one.wait(300) for one in running] == [0, 0, 0]
    assert epoch(H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk), values)["far"] == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_goes_on_with_it(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    epoch(data, values)
    assert epoch(data, values)["far"] == 0
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if epoch(data, values)["far"] == 0 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_data_set_keeps_it_when_it_is_pickled_and_states_do_not_name_it(tmp_path: Path, disk: Path) -> None:
    written(tmp_path / "a.h5")
    plain, staged = (H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=one) for one in (None, disk))
    assert pickle.loads(pickle.dumps(staged)).tier == staged.tier
    states, digests = [], []
    for data in (plain, staged):
        with loader_of(data) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
        digests.append(data.layouts["x"].digest)
    assert states[0] == states[1]
    assert str(disk) not in json.dumps(states[1])
    assert digests[0] == digests[1]


def test_samples_one_by_one_and_batches_are_staged_too(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "tiles")
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)
    same_batches(data[3]["x"].tolist(), values[3].tolist())
    assert len(stage_files(disk)) == 1
    batch = data.start_batch([3, 5])
    assert np.array_equal(batch.wait()["x"], values[[3, 5]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stage": "/nowhere/at/all"}, "there is no such folder"),
        ({"stage_size": "1GB"}, "without `stage`"),
        ({"stage": ".", "stage_size": 0}, "takes some bytes"),
        ({"stage": ".", "stage_size": "much"}, "is not a size"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    written(tmp_path / "a.h5")
    with pytest.raises(PlanError, match=said):
        H5Dataset(str(tmp_path / "a.h5"), "x", **options)


def test_a_file_that_was_just_written_is_not_staged_and_that_is_said(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5")
    os.utime(tmp_path / "a.h5", (time.time() + 60, time.time() + 60))
    with loader_of(H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk)) as loader:
        assert sum(len(batch["x"]) for batch in loader) == len(values)
        assert "was written to less than two seconds ago" in loader.report()
    assert stage_files(disk) == []


def test_folder_and_files_are_private(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5")
    disk.chmod(0o777)
    epoch(H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk), values)
    assert own(disk).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in own(disk).iterdir()} == {0o600}


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_counted_as_by_hand_and_the_first_of_them_have_a_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    offset = rng.integers(0, 200_000, 30).astype(np.uint64)
    nbytes = rng.integers(0, 9_000, 30).astype(np.uint64)
    touched = sorted(
        {block for o, n in zip(offset.tolist(), nbytes.tolist(), strict=True) if n
         for block in range(o // BLOCK, (o + n - 1) // BLOCK + 1)}
    )  # fmt: skip
    runs = stage.merge_runs(offset, nbytes)
    assert [block for begin, end in runs.tolist() for block in range(begin, end)] == touched
    assert (runs[1:, 0] >= runs[:-1, 1]).all()
    for blocks in range(1, len(touched) + 1):
        limit = stage._limit(runs, blocks)
        assert [block for block in touched if block < limit] == touched[:blocks]


def test_the_bytes_lie_as_they_are_stored_at_their_own_offsets(tmp_path: Path, disk: Path) -> None:
    values = written(tmp_path / "a.h5", "gzip")
    epoch(H5Dataset(str(tmp_path / "a.h5"), {"x": "x"}, stage=disk), values)
    far, near = (tmp_path / "a.h5").read_bytes(), stage_files(disk)[0].read_bytes()
    layout = inspect(str(tmp_path / "a.h5"), "x")
    for offset, nbytes in zip(layout.chunk_offset.tolist(), layout.chunk_nbytes.tolist(), strict=True):
        assert near[offset : offset + nbytes] == far[offset : offset + nbytes]
