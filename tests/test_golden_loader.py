"""What version 0.1.0 pickled and told of its position: it loads, or is refused in words. Made once, never again."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from solar import DataLoader, Field, H5Dataset, Layout, PlanSampler, ReadError, World
from solar.values import Storage

GOLDEN = Path(__file__).parent / "golden" / "loader"


def loaded(name: str) -> Any:
    return pickle.loads((GOLDEN / f"{name}.pickle").read_bytes())


def test_values_of_the_first_version_load() -> None:
    assert loaded("world") == World(1, 2)
    assert loaded("storage") == Storage(1e-3, 1e9)
    assert repr(loaded("field")) == repr(Field("x", dtype="float32"))
    layout = loaded("layout")
    assert isinstance(layout, Layout)
    assert (layout.paths, layout.shape, layout.dtype) == (("/data/scan.h5",), (24, 4), np.dtype("uint16"))


def test_a_dataset_and_a_sampler_of_the_first_version_load() -> None:
    dataset, sampler = loaded("dataset"), loaded("sampler")
    assert isinstance(dataset, H5Dataset)
    assert str(dataset) == "H5Dataset(24 samples of /x, /y in /data/scan.h5)"
    assert dataset.rows_of(dataset.checked([-1, 3])).tolist() == [23, 3]
    assert [read.layout.name for read in dataset.reads] == ["/x", "/y"]
    with pytest.raises(ReadError, match=r"/data/scan.h5"):
        dataset[0]
    assert list(sampler) == list(PlanSampler(range(24), num_replicas=2, rank=1, shuffle=True, seed=3))


def test_a_loader_of_the_first_version_is_refused_in_words() -> None:
    with pytest.raises(ImportError, match=r"pickle its H5Dataset and its sampler instead, and keep loader\.state_dict"):
        loaded("loader")


@pytest.mark.parametrize("kind", ["shuffled", "plan", "generator"])
def test_a_state_of_the_first_version_goes_on_where_it_was(kind: str, make: Any) -> None:
    dataset = H5Dataset(make("scan.h5", y=(np.arange(24, dtype="f4"), {})), {"y": "y"})
    told = json.loads((GOLDEN / f"{kind}.json").read_text())
    options: dict[str, dict[str, Any]] = {
        "shuffled": {"shuffle": True},
        "plan": {"sampler": PlanSampler(dataset, num_replicas=1, rank=0)},
        "generator": {"shuffle": True, "generator": torch.Generator()},
    }
    loader = DataLoader(dataset, 4, **options[kind])
    loader.load_state_dict(told["state"])
    assert [batch["y"].tolist() for batch in loader] == told["rest"]
