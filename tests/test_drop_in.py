"""What frameworks and scripts rely on beside the batches: attributes, life time, logging, profiling, errors."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.profiler import profile
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, SequentialSampler, TensorDataset

from solar import DataLoader, H5Dataset, PlanSampler, ReadError, _native
from solar.io.reading.engine import Ticket
from solar.samples.pending import PendingBatch

SAMPLES = 30


@pytest.fixture
def path(make: Callable[..., str]) -> str:
    return make("scan.h5", x=np.arange(SAMPLES * 4, dtype="f4").reshape(SAMPLES, 4))


def batches(loader: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in loader]


def test_every_public_attribute_is_an_argument_of_the_constructor(path: str) -> None:
    """Frameworks make a loader again from its public attributes: what is not among them would be lost."""
    dataset = H5Dataset(path, "x")
    arguments = inspect.signature(DataLoader).parameters
    assert not [one for one in arguments.values() if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    theirs = list(inspect.signature(TorchLoader).parameters)
    assert list(arguments)[: len(theirs)] == theirs
    loader = DataLoader(dataset, 3, ahead=2, progress="x", device_transform=len, snapshot_every_n_steps=5)
    for _ in loader:
        break
    public = {name for name in vars(loader) if not name.startswith("_")}
    assert public <= set(arguments)
    assert all(getattr(loader, name) == value for name, value in (("ahead", 2), ("progress", "x")))
    assert set(arguments) - public - {"shuffle", "multiprocessing_context"} == set()


def test_attributes_cannot_be_set_where_torchs_cannot(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 3)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(loader, name, None)


@pytest.mark.parametrize("sampler", [PlanSampler, DistributedSampler])
def test_a_distributed_sampler_stays_where_frameworks_look_for_it(path: str, sampler: Any) -> None:
    dataset = H5Dataset(path, "x")
    loader = DataLoader(dataset, 4, sampler=sampler(dataset, 2, 1, seed=1), drop_last=True)
    assert isinstance(loader.sampler, DistributedSampler)
    assert (loader.batch_size, loader.drop_last, loader.batch_sampler.batch_size) == (4, True, 4)
    expected = TorchLoader(dataset, 4, sampler=DistributedSampler(dataset, 2, 1, seed=1), drop_last=True)
    for epoch in (0, 3):
        for one in (loader, expected):
            one.sampler.set_epoch(epoch)
        assert batches(loader) == batches(expected)
    made_again = type(loader)(
        **{name: value for name, value in vars(loader).items() if name in ("dataset", "num_workers", "ahead")},
        batch_sampler=type(loader.batch_sampler)(loader.sampler, 4, True),
    )
    assert batches(made_again) == batches(loader)


def test_random_draws_are_torchs_over_several_epochs_whatever_the_workers(path: str) -> None:
    plain = TensorDataset(torch.arange(SAMPLES))
    for options in (
        {},
        {"num_workers": 1},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 1, "generator": 5},
    ):
        states = []
        for kind, dataset in ((TorchLoader, plain), (DataLoader, H5Dataset(path, "x")), (DataLoader, plain)):
            torch.manual_seed(1)
            generator = torch.Generator().manual_seed(options["generator"]) if "generator" in options else None
            loader = kind(dataset, 7, shuffle=True, **{**options, "generator": generator})
            for _ in range(3):
                for _ in loader:
                    pass
            states.append((torch.get_rng_state().tolist(), generator and generator.get_state().tolist()))
            del loader
        assert states[0] == states[1] == states[2], options


def test_nothing_is_read_before_the_first_batch_is_asked_for(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 4, sampler=PlanSampler(range(SAMPLES), 1, 0))  # type: ignore[arg-type]
    iterator = iter(loader)
    len(iterator), len(loader)
    assert loader.stats()["resident_bytes"] == 0
    loader.sampler.set_epoch(2)
    first = next(iterator).tolist()
    loader.sampler.set_epoch(2)
    assert first == batches(loader)[0]


def test_a_loader_is_closed_by_leaving_its_with_and_may_be_used_again(path: str) -> None:
    with DataLoader(H5Dataset(path, "x"), 4) as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader.stats()["resident_bytes"] > 0
    assert loader.stats()["resident_bytes"] == 0
    with pytest.raises(RuntimeError, match="closed with its loader"):
        next(iterator)
    assert len(batches(loader)) == len(loader)
    loader.close(), loader.close()


def test_stats_count_what_was_handed_out_exactly(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 4, ahead=3)
    for _ in range(2):
        batches(loader)
    stats = loader.stats()
    assert (stats["epochs"], stats["batches"], stats["samples"]) == (2, 16, 2 * SAMPLES)
    assert stats["batch_bytes"] == 2 * SAMPLES * 16
    assert stats["bytes"] == 2 * SAMPLES * 16
    assert stats["resident_bytes"] == 0
    # What is read ahead, and the batch that is being handed out.
    assert stats["peak_bytes"] == (3 + 1) * 4 * 16
    assert set(stats["wait_seconds"]) >= {"storage", "decode", "transform", "exchange", "device copy"}
    assert "2 epochs: 16 batches, 60 samples" in loader.report()
    other = DataLoader(TensorDataset(torch.arange(SAMPLES)), 4)
    batches_of_torch = list(other)
    assert (other.stats()["batches"], other.stats()["samples"]) == (len(batches_of_torch), SAMPLES)


def test_one_line_says_which_engine_runs_and_why(path: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = H5Dataset(path, "x")
    with caplog.at_level(logging.INFO, "solar"):
        for loader in (DataLoader(dataset, 4), DataLoader(TensorDataset(torch.arange(3)), 4)):
            list(loader), list(loader)
    native, torchs = (record.getMessage() for record in caplog.records)
    assert native.startswith("native engine: H5Dataset(30 samples of /x in ") and "4 batches ahead" in native
    assert torchs == "torch's own engine with num_workers=0: TensorDataset is not an H5Dataset"


def test_torchs_profiler_shows_what_is_waited_for(path: str) -> None:
    with profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        batches(DataLoader(H5Dataset(path, "x"), 4))
    counts = {event.key: event.count for event in profiled.key_averages()}
    assert counts["solar: wait for bytes"] == counts["solar: transform and collate"] == 8


def test_torchs_profiler_shows_each_batch_of_a_dataset_of_the_users() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8))
    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        with profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            assert len(list(kind(data, 2))) == 4
        ranges = [one for one in profiled.key_averages() if one.key.startswith("enumerate(DataLoader)#")]
        found.append([one.count for one in ranges])
    assert found[0] == found[1] == [5], "of four batches, and the end"


def test_an_error_names_the_rank_file_dataset_sample_and_offset(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = H5Dataset(path, "x")
    loader = DataLoader(dataset, 4)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    os.truncate(path, h5py_offset(path) + 16 * 20)
    with pytest.raises(ReadError, match=r"^rank 3 of 8: .*scan\.h5.*"):
        batches(loader)


def h5py_offset(path: str) -> int:
    with h5py.File(path) as file:
        return int(file["x"].id.get_offset())


def test_a_loader_can_be_pickled_even_in_the_midst_of_an_epoch(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 4, shuffle=True)
    next(iter(loader))
    copied = pickle.loads(pickle.dumps(loader))
    torch.manual_seed(3)
    expected = batches(loader)
    torch.manual_seed(3)
    assert batches(copied) == expected


@pytest.mark.slow
def test_the_interpreter_ends_without_noise_in_the_midst_of_epochs(path: str) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch, transforms
from solar import DataLoader, H5Dataset
kept = []
for transform, options in ((None, {{}}), (transforms.with_process, {{"num_workers": 1}}), (len, {{}})):
    dataset = H5Dataset({path!r}, {{"x": "x"}}, transform=transform, thread_safe=transform is len)
    kept.append(iter(DataLoader(dataset, 4, **options)))
    next(kept[-1])
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_an_iterator_may_be_dropped_in_another_thread(path: str) -> None:
    iterators = [iter(DataLoader(H5Dataset(path, "x"), 4)) for _ in range(3)]
    for iterator in iterators:
        next(iterator)
    thread = threading.Thread(target=iterators.clear)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_progress_bar_counts_the_batches(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    for dataset in (H5Dataset(path, "x"), TensorDataset(torch.arange(SAMPLES))):
        for _ in DataLoader(dataset, 4, progress="training"):
            pass
        shown = capfd.readouterr().err
        assert "training" in shown and "8/8" in shown


def test_a_device_transform_is_called_whatever_the_dataset(path: str) -> None:
    for dataset in (H5Dataset(path, "x"), TensorDataset(torch.arange(SAMPLES))):
        assert list(DataLoader(dataset, 15, device_transform=type)) == [type(one) for one in DataLoader(dataset, 15)]


def waiting(queued: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[type, str]:
    """What waits for the bytes of a batch, directly or in the queue, which makes them from now on."""
    if queued:
        monkeypatch.setattr("solar.loader.iterator.direct_source", lambda *_, **__: None)
    return (Ticket, "ended") if queued else (_native.ReadAhead, "take")


@pytest.mark.parametrize("queued", [False, True])
def test_an_interrupted_wait_loses_no_batch(path: str, queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name = waiting(queued, monkeypatch)
    loader = DataLoader(H5Dataset(path, "x"), 4)
    expected, iterator = batches(loader), iter(loader)
    next(iterator)
    interrupted = iter([True])

    def wait(self: Any, seconds: float) -> Any:
        if next(interrupted, False):
            raise KeyboardInterrupt
        return ended(self, seconds)

    ended = getattr(kind, name)
    monkeypatch.setattr(kind, name, wait)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert loader.state_dict()["batches"] == 1
    assert batches(iterator) == expected[1:]
    assert loader.stats()["resident_bytes"] == 0


def test_nothing_is_begun_between_the_arrival_of_a_batch_and_the_loop(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    when_it_came: list[int] = []

    class Seen(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            for index in super().__iter__():
                drawn.append(index)
                yield index

    def came(self: Any, seconds: float | None = None) -> Any:
        values = arrived(self, seconds)
        when_it_came.append(len(drawn))
        return values

    arrived = PendingBatch.arrived
    monkeypatch.setattr(PendingBatch, "arrived", came)
    dataset = H5Dataset(path, "x")
    when_in_the_loop = [len(drawn) for _ in DataLoader(dataset, 4, sampler=Seen(dataset), ahead=2)]
    assert when_it_came == when_in_the_loop == [12, 16, 20, 24, 28, 30, 30, 30]


@pytest.mark.parametrize(("fields", "most"), [("x", 120), (("x", "y"), 165)])
@pytest.mark.parametrize("buffer", [None, "1MiB"])
def test_a_batch_takes_few_calls(make: Callable[..., str], fields: Any, most: int, buffer: Any) -> None:
    """When big batches have evicted all else from the caches, each costs microseconds."""
    path = make("long.h5", x=np.zeros((800, 2)), y=np.zeros(800))
    loader = DataLoader(H5Dataset(path, fields), 4, buffer=buffer)
    calls = 0

    def count(_frame: Any, event: str, _of: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    iterator = iter(loader)
    next(iterator)
    sys.setprofile(count)
    try:
        for _ in range(100):
            next(iterator)
    finally:
        sys.setprofile(None)
    assert calls <= 100 * most


def test_a_timeout_error_of_the_users_own_code_stays_what_it_is(path: str) -> None:
    def collate(samples: Any) -> Any:
        raise TimeoutError("of mine")

    with pytest.raises(TimeoutError, match=r"^of mine$"):
        next(iter(DataLoader(H5Dataset(path, "x"), 4, collate_fn=collate, timeout=60)))


def test_a_failed_batch_is_not_kept_alive_by_its_error(path: str) -> None:
    def failing(sample: Any) -> Any:
        raise ValueError("no")

    gc.collect()
    gc.disable()
    try:
        for options in ({}, {"thread_safe": True}):
            loader = DataLoader(H5Dataset(path, "x", transform=failing, **options), 4)
            iterator = iter(loader)
            with pytest.raises(ValueError, match="no"):
                next(iterator)
            alive = weakref.ref(iterator)
            del iterator
            assert alive() is None
            assert loader.stats()["resident_bytes"] == 0
        iterator = iter(DataLoader(H5Dataset(path, "x"), 4, sampler=[SAMPLES]))
        with pytest.raises(IndexError):
            next(iterator)
        alive = weakref.ref(iterator)
        del iterator
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("queued", [False, True])
def test_closing_in_another_thread_ends_the_waiting_with_words(
    path: str, queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name = waiting(queued, monkeypatch)
    loader = DataLoader(H5Dataset(path, "x"), 4)
    iterator = iter(loader)
    next(iterator)

    def closing(self: Any, seconds: float) -> Any:
        thread = threading.Thread(target=loader.close)
        thread.start()
        thread.join()
        return ended(self, seconds)

    ended = getattr(kind, name)
    monkeypatch.setattr(kind, name, closing)
    with pytest.raises(RuntimeError, match="closed with its loader"):
        next(iterator)
    assert loader.stats()["resident_bytes"] == 0


def test_past_the_end_there_is_nothing_more_also_after_closing(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 4)
    iterator = iter(loader)
    assert len(batches(iterator)) == 8
    busy = loader.stats()["busy_seconds"]
    loader.close()
    assert next(iterator, None) is None
    assert loader.stats()["busy_seconds"] == busy


def test_items_of_a_sampler_without_batches_count_one_each(path: str) -> None:
    class Pairs(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(sum(index))

    pairs = [(i, 1) for i in range(10)]
    loader = DataLoader(Pairs(torch.arange(20)), None, sampler=pairs)
    whole, iterator = list(loader), iter(loader)
    next(iterator), next(iterator), next(iterator)
    other = DataLoader(Pairs(torch.arange(20)), None, sampler=pairs)
    other.load_state_dict(loader.state_dict())
    assert list(other) == whole[3:]


def test_a_sampler_that_fails_is_no_batch_and_ends_no_epoch(path: str) -> None:
    class Failing:
        def __iter__(self) -> Any:
            yield from range(8)
            raise OSError("no more")

        def __len__(self) -> int:
            return SAMPLES

    loader = DataLoader(H5Dataset(path, "x"), 4, sampler=Failing())
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(OSError, match="no more"):
        next(iterator)
    assert next(iterator, None) is None
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 2)
