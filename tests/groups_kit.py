"""What tests of groups as samples share: files of groups, and what h5py reads of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st
from kit import settle

STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (2, 3)},
    "gzip": {"chunks": (2, 2), "compression": "gzip", "shuffle": True},
    "own chunks": {"chunks": True, "compression": "gzip"},
}


def written(
    path: Path,
    rows: list[int],
    stored: str = "contiguous",
    libver: str = "earliest",
    above: str = "molecules",
    dtype: str = "f4",
) -> None:
    """Groups m0, m1, ..., m10, ... of `coords` (rows[i], 3), and `energy`, a scalar; and what is no group of these."""
    random = np.random.default_rng(sum(rows))
    with h5py.File(path, "w", libver=libver) as file:
        for number, n in enumerate(rows):
            group = file.create_group(f"{above}/m{number}")
            values = random.integers(0, 99, (n, 3)).astype(dtype)
            options = STORED[stored] if n else {}
            group.create_dataset("coords", data=values, **({"maxshape": (None, 3)} if options else {}), **options)
            group["energy"] = float(number)
            group["more/deep"] = np.full(2, number)
        file[f"{above}/unit"] = "eV"
        file["version"] = 3
    settle(path)


def oracle(path: Path, name: str, above: str = "molecules") -> list[np.ndarray[Any, Any]]:
    """The dataset of each group, in h5py's order of names."""
    with h5py.File(path) as file:
        groups = [member for member in file[above].values() if isinstance(member, h5py.Group)]
        return [group[name][()] for group in groups]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 13))
    alike = draw(st.booleans())
    return {
        "rows": [draw(st.integers(1, 5))] * n if alike else draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)),
        "stored": draw(st.sampled_from(sorted(STORED))),
        "libver": draw(st.sampled_from(["earliest", "latest"])),
        "dtype": draw(st.sampled_from(["f4", ">f8", "i2", "u1"])),
    }
