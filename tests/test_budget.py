"""How large a buffer is, what of it the batches take, whether it is worth having, and what is said about that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from buffer_kit import BATCH, DISK, chunked, dataset_of, equal, generator, loader_of, passes

from solar import DataLoader, H5Dataset, PlanError, _native, inspect
from solar.buffer import buffer_size
from solar.io.reading.run import READ_PIECE, scratch_nbytes
from solar.io.system import memory as machine
from solar.io.system import profile
from solar.io.system.quantities import size, size_of
from solar.planning.budget import Needs, divide_memory, pooled_nbytes
from solar.values import Storage

MEMORY = 1 << 30
ALL_MEMORY = machine.memory_nbytes  # before a test replaces it


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_nbytes", lambda: MEMORY)


def test_the_memory_of_a_node_is_also_that_of_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    there_is = ALL_MEMORY()
    assert there_is > 1 << 20
    monkeypatch.setattr(machine, "_group_limit", lambda *_: there_is // 2)
    assert ALL_MEMORY() == there_is // 2


# --- how large ----


@pytest.mark.parametrize(
    ("buffer", "nbytes"),
    [
        (None, None),
        ("auto", None),
        (0, 0),
        (0.0, 0),
        ("0", 0),
        (4096, 4096),
        ("512MiB", 512 << 20),
        ("500MB", 500_000_000),
        ("25%", MEMORY // 4),
        (0.25, MEMORY // 4),
        ("100 %", MEMORY),
    ],
)
def test_a_buffer_is_bytes_a_text_or_a_share_of_the_memory(buffer: Any, nbytes: int | None) -> None:
    assert buffer_size.requested_bytes(buffer) == nbytes


@pytest.mark.parametrize(
    ("buffer", "error", "text"),
    [
        (-1, PlanError, "bytes are a whole number from 0"),
        (1.5, PlanError, "a share of the memory is above 0 and below 1"),
        ("much", PlanError, "is not a size such as 8GiB, 64k or 100MB, or a share such as 25%"),
        ("150%", PlanError, "is more than all of it"),
        ("1.5", PlanError, "is not a whole number"),
        (True, TypeError, "give bytes, a size such as '8GiB'"),
        ([1], TypeError, "give bytes, a size such as '8GiB'"),
    ],
)
def test_anything_else_is_an_error_when_the_loader_is_made(
    buffer: Any, error: type[Exception], text: str, make: Callable[..., str]
) -> None:
    dataset = H5Dataset(make("a.h5", x=np.arange(4)), "x")
    with pytest.raises(error, match=text):
        DataLoader(dataset, buffer=buffer)


def test_epochs_are_one_or_more(make: Callable[..., str]) -> None:
    dataset = H5Dataset(make("a.h5", x=np.arange(4)), "x")
    with pytest.raises(ValueError, match="epochs=0: at least one, or None where nobody knows"):
        DataLoader(dataset, epochs=0)


def test_a_storage_may_be_a_profile_and_must_exist(make: Callable[..., str], tmp_path: Path) -> None:
    dataset = H5Dataset(make("a.h5", x=np.arange(4)), "x")
    rates = (profile.Rate(4096, 1, 500, 0, 1.0), profile.Rate(1 << 23, 1, 100, 0, 1.0))
    made = profile.Profile("x", "now", "by hand", rates, DISK)
    profile.save(made, tmp_path / "disk.json")
    loader = DataLoader(dataset, storage=tmp_path / "disk.json")
    assert loader._buffered.storage == Storage(DISK.latency, DISK.bandwidth, DISK.iops, DISK.depth)
    with pytest.raises(PlanError, match="the profile cannot be read"):
        DataLoader(dataset, storage="nowhere.json")


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("ahead", [1, 4, 40])
@pytest.mark.parametrize("more", [0, 1, 2_000, 20_000, 1 << 20, 1 << 30])
def test_a_budget_never_exceeds_the_buffer(more: int, ahead: int, ranks: int) -> None:
    needs = Needs(waiting=1_000, beside=3_000, scratch=300, threads=3, ahead=ahead)
    nbytes = ranks * needs.least + more
    made = divide_memory(nbytes, 10, [needs] * ranks)
    taken = made.parts + ranks * (made.staged * 1_000 + 3_000 + made.scratch * 3)
    assert taken == nbytes
    assert 1 <= made.staged <= ahead
    assert made.scratch >= 300
    assert made.parts >= 0


@pytest.mark.parametrize(("nbytes", "least"), [(1 << 10, 1 << 10), (64 << 20, READ_PIECE)])
def test_samples_that_are_not_encoded_are_read_in_pieces(nbytes: int, least: int, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("x", (2, nbytes), "u1")
    assert scratch_nbytes(inspect(tmp_path / "large.h5", "x")) == least


# --- whether at all ----


def chosen(dataset: Any, caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[bool, str]:
    """Whether a loader takes a buffer, and what it says about that."""
    caplog.set_level(logging.DEBUG, "solar")
    caplog.clear()
    with DataLoader(dataset, 64, shuffle=True, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        lines = [message for message in caplog.messages if "buffer" in message]
        return loader._buffered.running is not None, "; ".join(lines)


def test_small_files_need_no_buffer(make: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    taken, said = chosen(H5Dataset(make("a.h5", x=np.zeros((1000, 8))), "x"), caplog)
    assert not taken
    assert said == "no buffer: the files fit into the page cache"


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("chunk", "epochs", "taken"), [(8, None, True), (8, 1, False), (16, None, False)])
def test_samples_in_many_small_pieces_are_put_together_once(
    chunk: int,
    epochs: int | None,
    taken: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As h5py's automatic chunks are: of each sample 64 times 256 bytes, here, or 16 times 1 KiB."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (256, 64, 64), "f4", chunks=(64, chunk, chunk))[:] = 1
    assert not chosen(H5Dataset(tmp_path / "a.h5", "x"), caplog, epochs=epochs)[0], "an epoch of it takes 5 ms"
    monkeypatch.setattr(buffer_size, "LEAST_EPOCH_SECONDS", 0.0)
    found, said = chosen(H5Dataset(tmp_path / "a.h5", "x"), caplog, epochs=epochs)
    assert found == taken
    assert ("put together from many small pieces once" if taken else "fit into the page cache") in said


def test_what_gains_nothing_worth_a_word_is_left(make: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    taken, said = chosen(chunked(make, 512), caplog)
    assert not taken
    assert "without a buffer" in said


def test_chunks_of_many_samples_get_a_buffer(
    make: Callable[..., str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_size, "LEAST_EPOCH_SECONDS", 0.0)
    taken, said = chosen(chunked(make), caplog, epochs=3)
    assert taken
    assert "a buffer: chunks are decoded less often" in said
    assert "all samples stay" in said


def test_files_larger_than_the_page_cache_get_one_where_requests_are_dear(
    make: Callable[..., str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "page_cache_nbytes", lambda: 1000)
    dataset = H5Dataset(make("a.h5", x=np.zeros((4096, 64))), "x")
    slow, fast = Storage(1e-2, 1e8, 100), Storage(1e-9, 1e12, 1e10)
    taken, said = chosen(dataset, caplog, storage=slow)
    assert taken
    assert "the files do not fit into the page cache: an epoch takes about" in said
    taken, said = chosen(dataset, caplog, storage=fast)
    assert not taken


def test_what_has_no_room_for_its_batches_gets_no_buffer(
    make: Callable[..., str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_size, "LEAST_EPOCH_SECONDS", 0.0)
    monkeypatch.setattr(machine, "free_nbytes", lambda: 4 * 100_000)
    taken, said = chosen(chunked(make), caplog)
    assert not taken
    assert "no buffer: 97.7 KiB of the memory could be had, and the batches alone take" in said


def test_batches_found_too_large_when_they_are_drawn_get_none(
    make: Callable[..., str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "solar")
    monkeypatch.setattr(buffer_size, "LEAST_EPOCH_SECONDS", 0.0)
    dataset = chunked(make)
    batches = [list(range(4096))] * 3
    with DataLoader(dataset, batch_sampler=batches) as loader:
        assert [len(batch) for batch in loader] == [4096] * 3
        assert loader._buffered.running is None
        assert len(list(loader)) == 3
    assert "no buffer: buffer=" in caplog.text


@pytest.mark.parametrize("buffer", [None, "1MiB"])
def test_more_samples_than_plans_number_are_read_without(
    buffer: Any, make: Callable[..., str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "solar")
    monkeypatch.setattr(buffer_size, "LEAST_EPOCH_SECONDS", 0.0)
    monkeypatch.setattr("solar.planning.units.MOST_SAMPLES", 4095)
    with DataLoader(chunked(make), 64, buffer=buffer) as loader:
        assert len(list(loader)) == 64
        assert loader._buffered.running is None
    assert ("has 4,096 samples, and plans number up to 4,095" in caplog.text) == (buffer is not None)


@pytest.mark.parametrize(
    "nbytes", [1, 4096, 4097, 65_536, 65_537, 1_234_567, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 40_000_001]
)
def test_the_memory_of_a_batch_is_counted_as_the_pool_rounds_it(nbytes: int) -> None:
    before = _native.pool_stats()["in_use"]
    taken = _native.take(nbytes)
    assert _native.pool_stats()["in_use"] - before == pooled_nbytes(nbytes)
    del taken


def test_samplers_that_may_follow_the_training_get_one_only_if_asked_for(
    make: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_size, "LEAST_EPOCH_SECONDS", 0.0)

    class Following(list[int]):
        """A sampler whose order changes while it is iterated."""

    dataset = chunked(make)
    for sampler, nbytes, taken in ((Following(range(64)), None, False), (Following(range(64)), "1MiB", True)):
        with DataLoader(dataset, 8, sampler=sampler, buffer=nbytes, storage=DISK) as loader:
            iterator = iter(loader)
            next(iterator)
            assert (loader._buffered.running is not None) == taken


@pytest.mark.parametrize("field", ["text", "vlen", "empty_rows"])
def test_what_cannot_be_kept_is_read_without_and_that_is_said(
    field: str, zoo: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "solar")
    with DataLoader(H5Dataset(zoo, field), 4, buffer="1MiB", collate_fn=list) as loader:
        assert len(list(loader)) == 3
        assert loader._buffered.running is None
    lines = [message for message in caplog.messages if message.startswith("no buffer: ")]
    assert len(lines) == 1
    assert field in lines[0]


@pytest.mark.parametrize("field", ["struct", "big_endian", "complex", "bool", "array", "fixed_text", "partly_written"])
def test_values_of_all_kinds_are_kept(field: str, zoo: str) -> None:
    found = []
    for nbytes in ("1MiB", 0):
        with DataLoader(
            H5Dataset(zoo, field), 3, shuffle=True, generator=generator(1), buffer=nbytes, collate_fn=str
        ) as loader:
            found.append(passes(loader, 3))
            assert (loader._buffered.running is not None) == (nbytes != 0)
    assert found[0] == found[1]


# --- what is said ----


def test_one_line_says_what_was_chosen_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "solar")
    dataset = dataset_of(tmp_path, "contiguous")
    with loader_of(dataset, "by a generator", buffer=22_000, epochs=4) as loader:
        passes(loader, 4)
    lines = [message for message in caplog.messages if message.startswith("a buffer of")]
    assert len(lines) == 1
    assert lines[0].startswith("a buffer of 21.5 KiB with 1 batch ready: ")
    assert "requests for" in lines[0]
    assert lines[0].endswith("storage as given")


def test_without_numbers_the_storage_is_guessed_or_what_was_probed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "solar")
    dataset = dataset_of(tmp_path, "contiguous")
    with DataLoader(dataset, BATCH, buffer=24_000) as loader:
        list(loader)
    assert "storage guessed: " in caplog.text
    rates = (profile.Rate(4096, 1, 500, 0, 1.0), profile.Rate(1 << 23, 1, 100, 0, 1.0))
    profile.save(profile.Profile("x", "now", "by hand", rates, DISK), profile.default_path(tmp_path))
    with DataLoader(dataset, BATCH, buffer=24_000) as loader:
        assert equal(list(loader), list(DataLoader(dataset, BATCH, buffer=0)))
    assert f"storage profile {profile.default_path(tmp_path)}" in caplog.text


@pytest.mark.parametrize("broken", ["profile", "folder", "home"])
def test_a_profile_that_cannot_be_read_and_nobody_named_is_none(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "solar")
    dataset = dataset_of(tmp_path, "contiguous")
    if broken == "profile":
        stored = profile.default_path(tmp_path)
        stored.parent.mkdir(parents=True)
        stored.write_text("{}")
    elif broken == "folder":
        monkeypatch.setattr(Path, "exists", refuse)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", homeless)
    with DataLoader(dataset, BATCH, buffer=24_000) as loader:
        list(loader)
    said = {"profile": "no storage profile of version 1", "folder": "Permission", "home": "no home"}[broken]
    assert "storage guessed: " in caplog.text
    assert said in caplog.text


EXISTS = Path.exists


def refuse(path: Path) -> bool:
    if path.suffix != ".json":
        return EXISTS(path)
    raise PermissionError(13, "Permission denied", str(path))


def homeless() -> Path:
    raise RuntimeError("there is no home")


@pytest.mark.parametrize(
    ("kind", "storage"),
    [
        ("lustre", profile.NETWORK),
        ("fuse.sshfs", profile.NETWORK),
        ("nfs4", profile.NETWORK),
        ("tmpfs", profile.MEMORY),
    ],
)
def test_a_file_system_says_what_kind_of_storage_it_is(
    kind: str, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "file_system", lambda _: kind)
    assert profile.guess(tmp_path) == (storage, kind)


def test_a_local_disk_says_whether_it_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "file_system", lambda _: "ext4")
    for turns, storage in ((True, profile.DISK), (False, profile.FLASH)):
        monkeypatch.setattr(profile, "_rotates", lambda _, turns=turns: turns)
        assert profile.guess(tmp_path)[0] == storage


# --- sizes in words ----


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 B"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1 << 50, "1,024 TiB"), (99.97 * 1024, "100 KiB")],
)
def test_sizes_in_words(nbytes: int, words: str) -> None:
    assert size(nbytes) == words


def test_the_size_in_words_means_the_size() -> None:
    assert size_of("1.5 KiB", 0) == 1536


@pytest.mark.parametrize(
    ("given_", "said"),
    [("1PB", "this node has"), (1 << 60, "this node has"), (float("nan"), "a share of the memory is above 0"),
     ("foo", "buffer='foo': 'foo' is not a size"), ("150%", "buffer='150%'")],
)  # fmt: skip
def test_a_buffer_that_cannot_be_is_refused_by_its_name(given_: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        buffer_size.requested_bytes(given_)
