"""What tests of windows share: files of rows, what their windows are in numpy, and any windows by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from buffer_kit import LAYOUTS
from hypothesis import strategies as st
from kit import settle

from solar import Field, H5Dataset, Windows

Steps = tuple[int, ...] | None


def written(path: Path, rows: int, options: dict[str, Any], **more: Any) -> np.ndarray[Any, Any]:
    """A file of `u`, `y` (each row's number) and more; its values."""
    values = np.random.default_rng(rows).integers(0, 99, (rows, 3, 5)).astype("f4")
    with h5py.File(path, "w") as file:
        file.create_dataset("u", data=values, maxshape=(None, 3, 5) if options and rows < 4 else None, **options)
        file["y"] = np.arange(rows)
        for name, one in more.items():
            file[name] = one
    settle(path)
    return values


def anchors(ends: Sequence[int], steps: Sequence[Steps], every: int, *, pad: bool) -> list[int]:
    """The places, by looking at each row of each part."""
    reached = [step for one in steps for step in one or ()]
    found = []
    for begin, end in pairwise([0, *ends]):
        fits = [a for a in range(begin, end) if pad or all(begin <= a + step < end for step in reached)]
        found += fits[::every]
    return found


def window(values: np.ndarray[Any, Any], anchor: int, steps: Steps, ends: Sequence[int]) -> np.ndarray[Any, Any]:
    """The rows at these steps, one by one."""
    if steps is None:
        return np.asarray(values[anchor])
    begin, end = next((b, e) for b, e in pairwise([0, *ends]) if b <= anchor < e)
    return np.stack([values[min(max(anchor + step, begin), end - 1)] for step in steps])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Parts, steps of one to three fields, and where windows lie."""
    lengths = draw(st.lists(st.integers(0, 14), min_size=1, max_size=6).filter(any))
    step = st.one_of(st.none(), st.lists(st.integers(-4, 6), min_size=1, max_size=5).map(tuple))
    return {
        "lengths": lengths,
        "steps": [
            draw(st.lists(st.integers(-3, 4), min_size=1, max_size=4).map(tuple)),
            *draw(st.lists(step, max_size=2)),
        ],
        "every": draw(st.integers(1, 5)),
        "told": draw(st.sampled_from(["ends", "lengths", "ids"])),
        "pad": draw(st.sampled_from([None, "edge"])),
        "layout": draw(st.sampled_from(sorted(LAYOUTS))),
    }


def dataset_of(folder: Path, layout: str, **given: Any) -> H5Dataset:
    """Windows over the past and the future of one dataset, and a row of another, in three episodes."""
    path = folder / "episodes.h5"
    written(path, 96, LAYOUTS[layout], ends=[30, 30, 53, 96])
    fields = {"past": Field("u", steps=range(-3, 1)), "y": "y", "next": Field("u", steps=range(1, 5, 2))}
    return H5Dataset(str(path), fields, samples=Windows(**({"every": 2, "ends": "ends"} | given)))
