"""Samples along several axes, and windows along another than the first: each is one line of numpy over h5py."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffer_kit import DISK, counted, equal, passes
from crops_kit import STORED, written
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchLoader

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, PlanSampler, Windows

Array = np.ndarray[Any, Any]


def oracle(values: Array, axes: tuple[int, ...], windows: list[range | None], every: int) -> list[list[Array]]:
    """The samples, place by place: of each the fields with these steps."""
    axes = tuple(axis % values.ndim for axis in axes)
    reached = [0, *(step for one in windows if one is not None for step in one)]
    low, high = min(reached), max(reached)
    counts = [range(values.shape[axis]) for axis in axes[:-1]]
    found = []
    for at in itertools.product(*counts, range(-low, values.shape[axes[-1]] - high, every)):
        fields = []
        for window in windows:
            steps = None if window is None else slice(at[-1] + window[0], at[-1] + window[-1] + 1)
            index: list[Any] = [slice(None)] * values.ndim
            for axis, place in zip(axes, at, strict=True):
                index[axis] = place
            if steps is not None:
                index[axes[-1]] = steps
            fields.append(np.asarray(values[tuple(index)]))
        found.append(fields)
    return found


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 7)) for _ in range(rank))
    axes = tuple(draw(st.permutations(range(rank)))[: draw(st.integers(1, rank))])
    axes = tuple(axis - rank * draw(st.booleans()) for axis in axes)
    length = shape[axes[-1]]
    windows: list[range | None] = []
    low = draw(st.integers(0, length - 1))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(-low, length - 1 - low))
        windows.append(range(begin, draw(st.integers(begin, length - 1 - low)) + 1))
    return {
        "shape": shape,
        "axes": axes,
        "windows": [*windows, *draw(st.sampled_from([[], [None]]))],
        "every": draw(st.integers(1, 3)),
        "stored": draw(st.sampled_from(sorted(STORED))),
        "chunk": tuple(draw(st.integers(1, 5)) for _ in shape),
    }


@settings(max_examples=150, deadline=None)
@given(cases())
def test_samples_are_those_of_numpy(case: dict[str, Any]) -> None:
    axes, windows, every = case["axes"], case["windows"], case["every"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        values = written(path, case["shape"], case["stored"], case["chunk"])
        axis: Any = axes if len(axes) > 1 else axes[0]
        fields = {f"f{n}": Field("u", axis=axis, steps=window) for n, window in enumerate(windows)}
        data = H5Dataset(str(path), fields, samples=Windows(every))
        expected = oracle(values, axes, windows, every)
        assert len(data) == len(expected)
        order = np.random.default_rng(0).integers(0, len(data), 6)
        batch = data.read_batch(order)
        for n in range(len(windows)):
            assert np.array_equal(batch[f"f{n}"], np.stack([expected[i][n] for i in order]))


@settings(max_examples=40, deadline=None)
@given(cases())
def test_without_steps_samples_are_places(case: dict[str, Any]) -> None:
    axes = case["axes"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        values = written(path, case["shape"], case["stored"], case["chunk"])
        data = H5Dataset(str(path), Field("u", axis=list(axes)))
        expected = oracle(values, axes, [None], 1)
        assert len(data) == len(expected)
        assert all(np.array_equal(sample, one) for sample, (one,) in zip(data, expected, strict=True))


def flows(folder: Path, stored: str = "gzip") -> tuple[dict[str, Field], Array]:
    """Two files of trajectories, of which one has more; the fields of a training, and all values."""
    values = [written(folder / f"{n}.h5", (3 + n, 9, 4, 5), stored, (1, 3, 4, 2)) for n in range(2)]
    past, coming = (Field("u", axis=(0, 1), steps=steps) for steps in (range(-1, 1), range(1, 4)))
    return {"past": past, "next": coming}, np.concatenate(values)


@pytest.mark.parametrize("stored", ["contiguous", "gzip"])
@pytest.mark.parametrize("every", [1, 2])
def test_windows_of_trajectories_are_torchs_also_from_a_buffer(every: int, stored: str, tmp_path: Path) -> None:
    fields, values = flows(tmp_path, stored)
    data = H5Dataset(str(tmp_path / "*.h5"), fields, samples=Windows(every))
    expected = oracle(values, (0, 1), [range(-1, 1), range(1, 4)], every)
    assert len(data) == 7 * len(range(1, 6, every)) == len(expected)
    for sample, (past, coming) in zip(data, expected, strict=True):
        assert np.array_equal(sample["past"], past) and np.array_equal(sample["next"], coming)
    torch.manual_seed(1)
    batches = passes(TorchLoader(data, 4, shuffle=True), 3)
    for buffer in ("24KiB", "1MiB", 0):
        torch.manual_seed(1)
        with DataLoader(data, 4, shuffle=True, buffer=buffer, storage=DISK, epochs=3) as loader:
            assert equal(passes(loader, 3), batches)
            if buffer:
                planned = loader._buffered.planned
                assert counted(loader)[:3] == (planned.reads, planned.requests, planned.bytes)


def test_ranks_share_them_and_a_state_resumes(tmp_path: Path) -> None:
    fields, _ = flows(tmp_path)
    data = H5Dataset(str(tmp_path / "*.h5"), {**fields, "number": Field("u", axis=(0, 1), steps=range(1))})

    def loader(ranks: int, rank: int) -> DataLoader[Any]:
        return DataLoader(data, 4 // ranks, sampler=PlanSampler(data, ranks, rank, seed=3, tail="exact"))

    one = loader(1, 0)
    seen = [next(iter(one))["number"]]
    for rank in range(2):
        other = loader(2, rank)
        other.load_state_dict(one.state_dict())
        seen += [batch["number"] for batch in other]
    expected = torch.stack([torch.from_numpy(sample["number"]) for sample in data]).flatten(1)
    assert sorted(torch.cat(seen).flatten(1).tolist()) == sorted(expected.tolist())


def test_a_field_does_to_a_window_what_it_does_to_any_sample(tmp_path: Path) -> None:
    values = written(tmp_path / "a.h5", (3, 9, 4), "chunks", (1, 3, 4))
    every_second = Field("u", axis=(0, 1), steps=range(5), select=slice(None, None, 2), dtype="f8", mean=1.0)
    data = H5Dataset(str(tmp_path / "a.h5"), {"x": every_second, "y": Field("u", axis=(0, 1))})
    for i, sample in enumerate(data):
        trajectory, a = divmod(i, 5)
        assert np.array_equal(sample["x"], values[trajectory, a : a + 5 : 2].astype("f8") - 1)
        assert np.array_equal(sample["y"], values[trajectory, a])
    assert eval(repr(every_second)) == every_second != Field("u", axis=(0, 1), steps=range(5))


WRONG = [
    (Field("u", axis=(0, 3)), "rows", r"/u has shape \(6, 5, 4\), and axis=\(0, 3\) was asked for: it has 3 axes"),
    (Field("u", axis=(1, -2)), "rows", r"axis=\(1, -2\) was asked for: one axis is named twice"),
    (
        Field("u", axis=1, steps=range(6)),
        "rows",
        r"windows reach over 6 steps along axis 1 \(steps 0 to 5\): give fewer",
    ),
    (Field("u", axis=1, steps=range(2)), Windows(ends="e"), "windows along another axis have `every` alone"),
    (Field("u", axis=1, steps=range(2)), Windows(2, pad="edge"), "windows along another axis have `every` alone"),
    (Field("u", axis=1, steps=range(2)), Crops((2, 2)), r"axis beside samples=Crops"),
    ((Field("u", axis=1, steps=range(2)), Field("u", steps=(0, 1))), "rows", r"steps, or .* beside axis"),
    ((Field("u", axis=1, steps=range(2)), "u"), "rows", "/u has 4 samples, /u has 6"),
    ((Field("u", axis=(0, 1)), Field("t", axis=(0, 1))), "rows", r"/u has \[6, 5\] samples .* /t has \[5, 6\]"),
]


@pytest.mark.parametrize(("fields", "samples", "said"), WRONG)
def test_what_makes_no_slices_is_said(fields: Any, samples: Any, said: str, tmp_path: Path) -> None:
    written(tmp_path / "a.h5", (6, 5, 4), "chunks", (2, 3, 4), t=np.zeros((5, 6)))
    with pytest.raises(LayoutError, match=said):
        H5Dataset(str(tmp_path / "a.h5"), fields, samples=samples)


def test_axes_and_steps_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one after another.*select=slice\(None, None, 2\)"):
        Field("u", axis=(0, 1), steps=range(0, 8, 2))
    for wrong in ((), (0, 0)):
        with pytest.raises(ValueError, match="each named once"):
            Field("u", axis=wrong)
    with pytest.raises(TypeError, match="axis is an integer"):
        Field("u", axis=(0, 1.5))  # type: ignore[arg-type]
