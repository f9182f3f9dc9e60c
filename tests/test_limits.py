"""What a loader may take: memory, descriptors, threads, for all ways to store samples and all sizes. The programs are
in limits_kit.py: each has a process of its own, of which the system tells what it had.
"""

from __future__ import annotations

import errno
from pathlib import Path

import limits_kit
import numpy as np
import pytest

pytest.importorskip("torch")

from faults_kit import BATCH, SAMPLES, WAYS, Way, engine, fault, injected, truth, written

from solar import DataLoader, H5Dataset, ReadError

BESIDE = 8 << 20  # Python's own: plans, index arrays, and what the allocator keeps
BESIDE_COLD = 14 << 20  # the same where requests past the page cache come and go with memory of their own


def test_memory_stays_within_the_buffer_however_samples_are_stored(tmp_path: Path) -> None:
    found = limits_kit.said_by("scenes", tmp_path)
    assert len(found) == (len(limits_kit.FORMS) + 1) * len(limits_kit.SCENES)
    for scene, had in found.items():
        assert had["counted"] <= had["asked"], scene
        beside = BESIDE if scene.endswith("warm") else BESIDE_COLD
        assert had["grown"] <= had["asked"] + beside, (scene, had)


def test_ten_thousand_files_are_read_with_256_descriptors(tmp_path: Path) -> None:
    had = limits_kit.said_by("many files", tmp_path, 10_000, 256)
    assert had["before"] < had["most"] <= 128 + had["before"]  # half of them are left to the program
    assert had["after"] == had["before"]


def test_ten_million_samples_are_shuffled_and_planned_within_a_gigabyte(tmp_path: Path) -> None:
    samples = 10_000_000
    had = limits_kit.said_by("many samples", tmp_path, samples)
    assert had["0"]["grown"] <= 16 * samples
    assert had[str(2 * samples)]["grown"] <= 2 * samples + (8 + 12 + 80) * samples


def test_a_thousand_epochs_take_what_ten_take(tmp_path: Path) -> None:
    told = limits_kit.said_by("many epochs", tmp_path, 1000)
    nbytes, threads, descriptors, objects = zip(*told, strict=True)
    warm = len(told) // 4
    assert max(nbytes[-warm:]) <= max(nbytes[: 2 * warm]) + (2 << 20)
    assert max(threads[-warm:]) <= max(threads[:warm])
    assert max(descriptors[-warm:]) <= max(descriptors[:warm])
    assert max(objects[-warm:]) <= max(objects[: 2 * warm]) + 500


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("after", range(3))
def test_memory_that_is_not_to_be_had_is_one_error_and_the_next_epoch_comes(
    way: Way, after: int, tmp_path: Path
) -> None:
    path = written(tmp_path, chunks=(1, 750), compression="gzip")
    expected = truth(path)
    with engine(way), DataLoader(H5Dataset(path, "x", page_cache=way.page_cache), BATCH, buffer=way.buffer) as loader:
        with (
            injected([fault("memory", errno.ENOMEM, after=after)]),
            pytest.raises((MemoryError, ReadError), match="memory"),
        ):
            list(loader)
        assert (np.concatenate([batch.numpy() for batch in loader]) == expected).all()
        assert len(expected) == SAMPLES
