"""What a loader may take: memory, descriptors, threads, for all ways to store samples and all sizes. The programs are
in limits_kit.py: each has a process of its own, of which the system tells what it had.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import limits_groups
import limits_kit
import mpi_kit
import numpy as np
import pytest

pytest.importorskip("torch")

from faults_kit import BATCH, SAMPLES, WAYS, DirectSource, engine, fault, injected, truth, written
from kit import settle

from solar import DataLoader, H5Dataset, ReadError

NO_GROUP = "no control group with a limit can be made here (it takes root, and a system that hands them out)"
RANKS_SAMPLES, RANKS_BUFFER = 6144, 48 << 20  # of 96 MiB


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each scene took; where a group could be made, in one that may have no more than it should."""
    found: dict[str, Any] = limits_kit.said_by("scenes", tmp_path_factory.mktemp("scenes"))
    return found


@pytest.mark.slow
def test_memory_stays_within_the_buffer_however_samples_are_stored(scenes: dict[str, Any]) -> None:
    forms = len(limits_kit.FORMS) + 1
    assert len(scenes) == forms * len(limits_kit.SCENES) + 2 * len(limits_kit.FEW_SCENES)
    for scene, had in scenes.items():
        assert had["counted"] <= had["asked"], scene
        beside = limits_kit.BESIDE if scene.endswith("warm") else limits_kit.BESIDE_COLD
        assert had["grown"] <= had["asked"] + beside, (scene, had)


TOO_MUCH = """
import sys, pathlib, limits_groups
limits_groups.enter(pathlib.Path(sys.argv[1]), 16 << 20)
bytearray(32 << 20)
"""


@pytest.mark.slow
def test_every_scene_lives_in_a_control_group_that_may_have_its_buffer_and_little_more(scenes: dict[str, Any]) -> None:
    with limits_groups.made() as group:
        if group is None:
            pytest.skip(NO_GROUP)
        command = [sys.executable, "-c", TOO_MUCH, str(group)]
        ended = subprocess.run(command, cwd=Path(limits_groups.__file__).parent, check=False).returncode
        assert ended == -signal.SIGKILL, "what takes more is killed, so what lived took no more"
        assert limits_groups.killed(group) == 1
    assert all(had["limited"] for had in scenes.values())


@pytest.mark.slow
@pytest.mark.parametrize("under", [mpi_kit.under_gloo, mpi_kit.under_mpi], ids=["gloo", "mpi"])
def test_two_ranks_live_together_in_a_group_that_may_have_one_buffer(
    under: Callable[..., list[Any]], tmp_path: Path
) -> None:
    path = tmp_path / "ranks.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (RANKS_SAMPLES, 64, 64), "f4")
        for first in range(0, RANKS_SAMPLES, 512):
            made[first : first + 512] = np.float32(first)
    settle(path)
    with limits_groups.made() as group:
        if group is None:
            pytest.skip(NO_GROUP)
        said = under(2, Path(limits_kit.__file__), "ranks", path, RANKS_BUFFER, group, fresh=True)
        assert limits_groups.killed(group) == 0
    assert sum(one["rows"] for one in said) == 2 * RANKS_SAMPLES
    assert all(0 < one["peak"] <= RANKS_BUFFER for one in said), said
    assert sum(one["hits"] for one in said) > 0


@pytest.mark.slow
def test_ten_thousand_files_are_read_with_256_descriptors(tmp_path: Path) -> None:
    had = limits_kit.said_by("many files", tmp_path, 10_000, 256)
    assert had["before"] < had["most"] <= 128 + had["before"]  # half of them are left to the program
    assert had["after"] == had["before"]


@pytest.mark.slow
def test_ten_million_samples_are_shuffled_and_planned_within_a_gigabyte(tmp_path: Path) -> None:
    samples = 10_000_000
    had = limits_kit.said_by("many samples", tmp_path, samples)
    assert had["0"]["grown"] <= 8 * samples
    assert had[str(2 * samples)]["grown"] <= 2 * samples + (8 + 48) * samples


@pytest.mark.slow
def test_a_thousand_epochs_take_what_ten_take(tmp_path: Path) -> None:
    told = limits_kit.said_by("many epochs", tmp_path, 1000)
    nbytes, threads, descriptors, objects = zip(*told, strict=True)
    warm = len(told) // 4
    assert max(nbytes[-warm:]) <= max(nbytes[: 2 * warm]) + (2 << 20)
    assert max(threads[-warm:]) <= max(threads[:warm]) + 2  # a planning one may be seen at one time and not at another
    assert max(descriptors[-warm:]) <= max(descriptors[:warm]) + 2
    assert max(objects[-warm:]) <= max(objects[: 2 * warm]) + 500


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("after", range(3))
def test_memory_that_is_not_to_be_had_is_one_error_and_the_next_epoch_comes(
    way: DirectSource, after: int, tmp_path: Path
) -> None:
    # What a buffer has room for is decoded to its place, unless samples share a chunk.
    path = written(tmp_path, chunks=(4 if way.buffer else 1, 750), compression="gzip")
    expected = truth(path)
    with engine(way), DataLoader(H5Dataset(path, "x", page_cache=way.page_cache), BATCH, buffer=way.buffer) as loader:
        with (
            injected([fault("memory", errno.ENOMEM, after=after)]),
            pytest.raises((MemoryError, ReadError), match="memory"),
        ):
            list(loader)
        assert (np.concatenate([batch.numpy() for batch in loader]) == expected).all()
        assert len(expected) == SAMPLES
