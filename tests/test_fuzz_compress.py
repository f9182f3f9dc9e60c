"""Random datasets through `solar compress`: every promise about values, by an oracle that is not the encoder.

`SOLAR_ARRAYS=5771 .venv/bin/pytest tests/test_fuzz_compress.py` tries that many, `SOLAR_ARRAYS_FROM=N` others.
"""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from bound_kit import Case, case, wrong

import solar
from solar.io.codec.codec import Codec
from solar.io.codec.verify import Verified

ARRAYS = int(os.environ.get("SOLAR_ARRAYS", "192"))
FROM = int(os.environ.get("SOLAR_ARRAYS_FROM", "0"))
TOGETHER = 96  # datasets in one file


def tried(cases: dict[str, Case], folder: Path, chunk_samples: int | None) -> None:
    source, target = folder / "a.h5", folder / "b.h5"
    with h5py.File(source, "w") as file:
        for name, one in cases.items():
            made = file.create_dataset(name, data=one.values, fillvalue=one.fill, **one.options)
            for key, said in one.attributes.items():
                made.attrs[key] = said
    settings: dict[str | None, Codec | str | None] = {name: one.setting for name, one in cases.items()}
    solar.compress(source, target, settings, chunk_samples=chunk_samples, force=True, threads=2)
    found = solar.verify(source, target, threads=2)
    assert isinstance(found, Verified)
    assert not found.differences
    kept = {field.name[1:]: field for field in found.fields}
    for name, one in cases.items():
        back = np.asarray(solar.read(target, name, slice(None)))
        said = wrong(one, back)
        assert not said, f"{name}: {one.setting}, {one.values.dtype} {one.values.shape}, {one.attributes}: {said}"
        assert kept[name].holds, f"{name}: verify says that it does not hold: {kept[name]}"


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("first", range(FROM, FROM + ARRAYS, TOGETHER))
def test_random_datasets_keep_their_bounds_limits_and_missing_values(first: int, tmp_path: Path) -> None:
    seeds = range(first, min(first + TOGETHER, FROM + ARRAYS))
    tried({f"x{seed}": case(seed) for seed in seeds}, tmp_path, (None, 1, 3)[first // TOGETHER % 3])
