"""Field(dtype="bfloat16"): batches are torch's tensors, with the bits that torch's `to` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from solar import DataLoader, Field, H5Dataset
from solar.samples.field_checks import BFLOAT16

NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]


def bits(values: Any) -> Any:
    """The sixteen bits of each; of a NaN one and the same, for which it is depends on torch's processor."""
    found = values.view(torch.int16).numpy() if isinstance(values, torch.Tensor) else values.view("i2")
    return np.where((found & 0x7FFF) > 0x7F80, 0x7FFF, found)


def by_torch(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("="))).to(torch.bfloat16)


@given(st.sampled_from(NUMBERS), st.integers(0, 2**32 - 1), st.booleans())
@settings(deadline=None)
def test_numbers_of_every_type_are_rounded_as_torch_does(dtype: str, seed: int, turned: bool) -> None:
    stored = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    values = np.frombuffer(rng.bytes(3 * 70 * 5 * stored.itemsize), "u1" if dtype == "?" else stored)
    values = (values % 2).astype("?") if dtype == "?" else values
    values = values.reshape(3, 70, 5)
    made = Field("x", dtype="bfloat16", axes=(1, 0) if turned else None).convert(values)
    want = values.transpose(0, 2, 1) if turned else values
    assert made.dtype == BFLOAT16 and made.shape == want.shape
    assert np.array_equal(bits(made), bits(by_torch(want)))


def test_ties_subnormals_infinities_and_nan_are_torchs() -> None:
    every = np.arange(2**16, dtype=np.uint32) << 16
    beside = np.concatenate([every + np.uint32(add) for add in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view("f4")
    assert np.array_equal(bits(Field("x", dtype="bfloat16").convert(beside)), bits(by_torch(beside)))
    with np.errstate(all="ignore"):
        wide = np.concatenate([beside.astype("f8"), np.nextafter(beside.astype("f8"), np.inf), [1e300, -1e300, 1e-300]])
    assert np.array_equal(bits(Field("x", dtype=torch.bfloat16).convert(wide)), bits(by_torch(wide)))


def test_mean_and_std_are_worked_out_in_float32_and_rounded_at_last() -> None:
    values = np.random.default_rng(2).normal(7, 3, (4, 60, 3)).astype("f8")
    for mean, std in [(7.1, 3.3), (np.array([[6.0], [7], [8]]), None), (None, np.array([[1.5], [2], [3]]))]:
        single = Field("x", dtype="float32", mean=mean, std=std, axes=(1, 0))
        halves = Field("x", dtype="bfloat16", mean=mean, std=std, axes=(1, 0))
        assert np.array_equal(bits(halves.convert(values)), bits(by_torch(single.convert(values))))


def test_text_of_numbers_is_rounded_too() -> None:
    assert bits(Field("x", dtype="bfloat16").convert(np.array([b"1.5", b"-2"]))).tolist() == [0x3FC0, -0x4000]


@pytest.fixture
def path(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.random.default_rng(1).normal(size=(20, 4, 3)).astype("f4")
        file["y"] = np.arange(20, dtype=">i4") * 1001
    return str(tmp_path / "x.h5")


def wanted(path: str) -> dict[str, torch.Tensor]:
    with h5py.File(path) as file:
        return {name: by_torch(file[name][()]) for name in ("x", "y")}


FIELDS = {"x": Field("x", dtype="bfloat16"), "y": Field("y", dtype=torch.bfloat16)}


@pytest.mark.parametrize("options", [{}, {"buffer": "1MiB"}, {"device": "cpu"}, {"device": "cpu", "resident": "1MiB"}])
def test_batches_are_tensors_of_bfloat16(path: str, options: dict[str, Any]) -> None:
    with DataLoader(H5Dataset(path, FIELDS), 6, **options) as loader:
        for _ in range(2):
            batches = list(loader)
            for name, want in wanted(path).items():
                assert torch.equal(torch.cat([batch[name] for batch in batches]), want)


def test_samples_are_tensors_for_torchs_loader_and_for_transforms(path: str) -> None:
    dataset, want = H5Dataset(path, FIELDS), wanted(path)
    assert torch.equal(dataset[3]["x"], want["x"][3]) and torch.equal(dataset[3]["y"], want["y"][3])
    for batch in torch.utils.data.DataLoader(dataset, 20):
        assert torch.equal(batch["x"], want["x"]) and torch.equal(batch["y"], want["y"])
    single = DataLoader(dataset, batch_size=None)
    assert torch.equal(next(iter(single))["x"], want["x"][0])
    doubling = H5Dataset(path, Field("x", dtype="bfloat16"), transform=doubled)
    for workers in (0, 1):
        with DataLoader(doubling, 20, num_workers=workers) as loader:
            assert torch.equal(next(iter(loader)), want["x"] * 2)


def doubled(sample: torch.Tensor) -> torch.Tensor:
    return sample * 2


def test_the_type_is_told_and_others_of_torchs_are_refused_with_what_to_do(path: str) -> None:
    field = Field("x", dtype=torch.bfloat16)
    assert repr(field) == "Field('x', dtype='bfloat16')" and field == Field("x", dtype="bfloat16")
    assert field.shape_of((4, 3), "f4") == ((4, 3), BFLOAT16)
    with pytest.raises(TypeError, match=r"neither bfloat16 nor a dtype of numpy .*DataLoader\(device=\.\.\., dtype="):
        Field("x", dtype=torch.float8_e5m2)
    with pytest.raises(ValueError, match="bfloat16 would lose the imaginary part"):
        field.shape_of((2,), "c8")
