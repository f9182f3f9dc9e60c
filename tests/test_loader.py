"""DataLoader over H5Dataset gives what torch's gives over an ordinary dataset, to the bit and to the random state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    random_split,
)
from torch.utils.data import DataLoader as TorchLoader

from solar import DataLoader, H5Dataset, LayoutError, PlanSampler

SAMPLES = 53
DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16", ">f4", ">i2", "S5"]


class Plain(Dataset):
    """The ordinary way: every dataset in memory, samples taken by index, native byte order."""

    def __init__(self, path: Path, fields: Any) -> None:
        self.fields = fields
        with h5py.File(path) as file:
            self.arrays = {name: file[name][()] for name in file}
            for name, array in self.arrays.items():
                self.arrays[name] = array.astype(array.dtype.newbyteorder("="))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> Any:
        def pick(fields: Any) -> Any:
            if isinstance(fields, dict):
                return {key: pick(part) for key, part in fields.items()}
            if isinstance(fields, tuple | list):
                return tuple(pick(part) for part in fields)
            return self.arrays[fields.strip("/")][sample]

        return pick(self.fields)


PAIRS = ((TorchLoader, Plain), (DataLoader, H5Dataset))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "all.h5"
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        for dtype in DTYPES:
            for rank, shape in enumerate([(SAMPLES,), (SAMPLES, 3), (SAMPLES, 4, 5)]):
                values = rng.integers(0, 100, shape).astype(dtype)
                file[f"{dtype}_{rank}"] = values
        values = rng.integers(0, 9, (SAMPLES, 6, 7)).astype("f4")
        file.create_dataset("gzip", data=values, chunks=(8, 4, 7), compression="gzip", shuffle=True)
        file.create_dataset("auto", data=values, chunks=True)
        file["text"] = [f"sample {i}" for i in range(SAMPLES)]
    return path


def assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert got.is_contiguous() == expected.is_contiguous()
        assert torch.equal(got, expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_equal(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(got, expected)
    elif expected == "an integer is required":  # torch of uint64 scalars: ours says what to do
        assert expected in got and 'dtype="int64"' in got
    else:
        assert got == expected


def epochs(loader: TorchLoader, count: int = 2) -> tuple[list[Any], torch.Tensor]:
    """All batches of some epochs (or the error that ends them), and the state of the global generator afterwards."""
    torch.manual_seed(11)
    batches: list[Any] = []
    for _ in range(count):
        try:
            batches.extend(loader)
        except Exception as error:
            batches.append((type(error).__name__, str(error)))
    return batches, torch.get_rng_state()


def compare(path: Path, fields: Any, **options: Any) -> list[Any]:
    samplers = options.pop("sampler", None)

    def options_for(dataset: Any) -> dict[str, Any]:
        return options | ({"sampler": samplers(dataset)} if samplers else {})

    plain, ours = Plain(path, fields), H5Dataset(path, fields)
    expected, state = epochs(TorchLoader(plain, **options_for(plain)))
    got, our_state = epochs(DataLoader(ours, **options_for(ours)))
    assert_equal(got, expected)
    assert torch.equal(state, our_state)
    return got


def test_fields_of_every_dtype_and_rank_collate_as_torchs_do(path: Path) -> None:
    for dtype in DTYPES:
        for rank in range(3):
            compare(path, {"x": f"{dtype}_{rank}"}, batch_size=7, shuffle=True)


fields = st.sampled_from(
    [
        "/gzip",
        "auto",
        ("gzip", "i8_0"),
        {"x": "f4_2", "y": "i2_0"},
        {"in": {"a": "auto", "b": ("f8_1", "u1_0")}, "out": "?_0"},
        {"x": "gzip", "name": "text"},
    ]
)
samplers = st.sampled_from(
    [
        None,
        lambda dataset: RandomSampler(dataset, replacement=True, num_samples=70),
        lambda dataset: SubsetRandomSampler(range(5, 31)),
        lambda dataset: [3, 3, 0, SAMPLES - 1],
        *(lambda dataset, w=w: DistributedSampler(dataset, w, w - 1, seed=5) for w in (1, 2, 3, 8)),
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=fields,
    sampler=samplers,
    shuffle=st.booleans(),
    batch_size=st.sampled_from([None, 1, 7, 16, 64]),
    drop_last=st.booleans(),
    ahead=st.integers(1, 6),
    collate_fn=st.sampled_from([None, lambda samples: samples, len]),
)
def test_batches_equal_torchs_for_any_options(path: Path, fields: Any, **options: Any) -> None:
    ahead = options.pop("ahead")
    if options["sampler"] is not None:
        options.pop("shuffle")
    else:
        options.pop("sampler")
    if options["batch_size"] is None:
        options.pop("drop_last")
    if options["collate_fn"] is len and options["batch_size"] is None:
        options.pop("collate_fn")
    samplers = options.pop("sampler", None)
    with_sampler = {"sampler": samplers} if samplers else {}
    compare(path, fields, **options, **with_sampler)
    # `ahead` is ours alone: it must not show.
    ours = H5Dataset(path, fields)
    chosen = options | ({"sampler": samplers(ours)} if samplers else {})
    assert_equal(epochs(DataLoader(ours, ahead=ahead, **chosen))[0], epochs(DataLoader(ours, **chosen))[0])


def test_subsets_and_random_splits_are_seen_through(path: Path) -> None:
    found = []
    for loader_type, dataset in ((TorchLoader, Plain(path, "auto")), (DataLoader, H5Dataset(path, "auto"))):
        first, _ = random_split(dataset, [30, SAMPLES - 30], torch.Generator().manual_seed(1))
        inner = Subset(first, [4, 9, 2, 29, 4])
        found.append([epochs(loader_type(part, 4, shuffle=True))[0] for part in (first, inner)])
    assert_equal(found[1], found[0])


def test_a_subclass_that_makes_its_own_samples_is_asked_for_them(path: Path) -> None:
    class Doubled(H5Dataset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) * 2

        def __getitems__(self, indices: Any) -> list[Any]:
            return [self[index] for index in indices]

    doubled = next(iter(DataLoader(Doubled(path, "f4_1"), 6)))
    assert torch.equal(doubled, 2 * next(iter(DataLoader(H5Dataset(path, "f4_1"), 6))))


def test_a_generator_of_the_users_own_advances_as_torchs(path: Path) -> None:
    states = []
    for loader_type, dataset in ((TorchLoader, Plain(path, "auto")), (DataLoader, H5Dataset(path, "auto"))):
        generator = torch.Generator().manual_seed(4)
        batches = [batch for _ in range(3) for batch in loader_type(dataset, 8, shuffle=True, generator=generator)]
        states.append((batches, generator.get_state()))
    assert_equal(states[1][0], states[0][0])
    assert torch.equal(states[0][1], states[1][1])


def test_a_dataset_that_is_not_ours_is_torchs_own_business(path: Path) -> None:
    plain = Plain(path, {"x": "gzip"})
    for workers in (0, 2):
        expected = epochs(TorchLoader(plain, 9, shuffle=True, num_workers=workers))
        got = epochs(DataLoader(plain, 9, shuffle=True, num_workers=workers))
        assert_equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])


def test_an_index_out_of_range_is_raised_at_its_own_batch(path: Path) -> None:
    loader = iter(DataLoader(H5Dataset(path, "auto"), 2, sampler=[0, 1, 2, SAMPLES, 4, 5]))
    assert len(next(loader)) == 2
    with pytest.raises(IndexError, match=str(SAMPLES)):
        next(loader)


def test_batches_stay_as_they_were_while_later_ones_are_read(path: Path) -> None:
    dataset = H5Dataset(path, "gzip")
    kept = list(DataLoader(dataset, 4, ahead=5))
    with h5py.File(path) as file:
        np.testing.assert_array_equal(torch.cat(kept).numpy(), file["gzip"][()])


def test_epochs_may_be_left_early_and_interleaved(path: Path) -> None:
    loader = DataLoader(H5Dataset(path, "f4_1"), 5)
    whole = list(loader)
    for _ in range(20):
        next(iter(loader))
    for one, other in zip(loader, loader, strict=True):
        assert torch.equal(one, other)
    assert_equal(list(loader), whole)


def test_workers_asked_for_are_not_started(path: Path) -> None:
    loader = DataLoader(H5Dataset(path, "f4_1"), 5, num_workers=2, persistent_workers=True, prefetch_factor=3)
    assert len(list(loader)) == len(loader) == 11
    assert loader.num_workers == 2


def test_a_loader_says_what_it_loads_and_how(path: Path) -> None:
    data = H5Dataset(path, "auto")
    assert repr(DataLoader(data, 4, shuffle=True)) == f"DataLoader({data}, batch_size=4, shuffle=True)"
    loader = DataLoader(data, 4, sampler=PlanSampler(data, seed=0), buffer="25%", epochs=3, device_transform=print)
    assert repr(loader) == f"DataLoader({data}, batch_size=4, sampler=<PlanSampler>, buffer='25%', epochs=3)"
    assert repr(DataLoader([1, 2, 3])) == "DataLoader(<list>, batch_size=1)"
    assert repr(DataLoader(data, batch_sampler=[[0, 1]])) == f"DataLoader({data}, batch_size=None, sampler=<list>)"
    assert repr(DataLoader.__new__(DataLoader)).startswith("DataLoader(")  # in the midst of being made


def test_the_loader_is_subscriptable_and_checks_its_own_option(path: Path) -> None:
    assert DataLoader[int] is not None
    with pytest.raises(ValueError, match="ahead"):
        DataLoader(H5Dataset(path, "f4_1"), ahead=0)
    with pytest.raises(LayoutError, match="f4_1"):
        H5Dataset(path, "f4_11")


def test_concatenated_datasets_are_read_together(path: Path) -> None:
    def parts(kind: Any, fields: Any) -> Any:
        whole = [kind(path, fields), Subset(kind(path, fields), [5, 3, 3]), kind(path, fields)]
        return ConcatDataset([whole[0], ConcatDataset(whole[1:])])

    for fields in ({"x": "gzip", "y": "i8_0"}, ("f4_1", "text"), ">f4_2", "S5_1"):
        for options in ({"batch_size": 9, "shuffle": True}, {"batch_size": None}, {"sampler": [-1, 55, 0, 54, -56]}):
            found = [epochs(kind(parts(data, fields), **options)) for kind, data in PAIRS]
            assert_equal(found[1][0], found[0][0])
            assert torch.equal(found[1][1], found[0][1])


def test_the_parts_of_a_concatenation_that_differ_are_torchs_own_business(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def mixed(kind: Any) -> Any:
        return ConcatDataset([kind(path, "f4_1"), kind(path, "f8_1")])

    expected = epochs(TorchLoader(mixed(Plain), 7))[0]
    with caplog.at_level("INFO", "solar"):
        assert_equal(epochs(DataLoader(mixed(H5Dataset), 7))[0], expected)
    assert "differ in shape, dtype, fields or transform" in caplog.text


def test_an_index_out_of_range_of_a_concatenation_is_refused_as_torchs_does(path: Path) -> None:
    for index in (2 * SAMPLES, -2 * SAMPLES - 1):
        errors = []
        for kind, data in PAIRS:
            dataset = ConcatDataset([data(path, "f4_1"), data(path, "f4_1")])
            with pytest.raises((IndexError, ValueError)) as caught:
                next(iter(kind(dataset, sampler=[index])))
            errors.append(caught.type)
        assert errors[0] is errors[1]
