"""What version 0.1.0 pickled and told of its position: it loads, or is refused in words. Made once, never again."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from solar import Crops, DataLoader, Field, H5Dataset, Layout, PlanSampler, Ragged, ReadError, World
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


# Names of classes before modules were moved, as a pickle has them, and the present ones.
OLD = {
    b"solar.extents\nExtents": b"solar.samples.row_windows\nRowWindows",
    b"solar.boxes\nBoxes": b"solar.samples.boxes\nBoxes",
    b"solar.boxes\nPlaces": b"solar.samples.boxes\nPlaces",
    b"solar.io.ragged\nColumns": b"solar.samples.ragged\nRaggedRows",
    b"solar.io.ragged\nRagged": b"solar.samples.ragged\nRagged",
    b"solar.io.constants\nConstant": b"solar.samples.constants\nConstant",
    b"solar.io.layout.packing\nPacking": b"solar.io.hdf5.packing\nPacking",
    b"solar.io.layout.packing\nPackings": b"solar.io.hdf5.packing\nPackings",
    b"solar.io.read.stage\nTier": b"solar.io.reading.stage\nTier",
    b"solar.group_names\nGroupNames": b"solar.values\nGroupNames",
    b"solar.orders.epoch_order\nEpochOrder": b"solar.samplers.orders\nEpochOrder",
    b"solar.orders.epoch_order\n_drawn": b"solar.samplers.orders\ndraw_weighted",
    b"solar.torch.batch.constants\nConstants": b"solar.samples.constants\nConstants",
    b"solar.torch.dataset\nH5Dataset": b"solar.samples.dataset\nH5Dataset",
    b"solar.torch.samplers\nPlanSampler": b"solar.samplers.samplers\nPlanSampler",
    b"solar.torch.samplers\n_Drawn": b"solar.samplers.samplers\n_Drawn",
    b"solar.io.field\nField": b"solar.samples.field\nField",
}


def with_old_names(thing: Any) -> bytes:
    """A pickle of a thing as it would be if modules and classes had not been renamed."""
    made = pickle.dumps(thing, 2)  # in this protocol names are lines of text
    for old, new in OLD.items():
        made = made.replace(b"c" + new + b"\n", b"c" + old + b"\n")
    assert b"solar.sampl" not in made and b"solar.io.hdf5" not in made and b"solar.io.reading" not in made
    return made


def test_what_was_pickled_before_modules_moved_loads(make: Any, tmp_path: Path) -> None:
    path = make(
        "a.h5", u=(np.arange(480, dtype="i2").reshape(12, 8, 5), {"chunks": (4, 4, 5)}), hits=(np.arange(24.0), {}),
        ends=(np.arange(2, 25, 2), {}), mask=(np.ones(3), {}),
    )  # fmt: skip
    with h5py.File(path, "a") as file:
        file["u"].attrs["scale_factor"] = 2.0
        for name in ("m1", "m2"):
            file[f"mol/{name}/e"] = np.arange(3.0)
    fields: dict[str, tuple[Any, dict[str, Any]]] = {
        "packed, with a constant": ({"u": Field("u", cf=True), "m": Field("mask", constant=True)}, {}),
        "windows": (Field("u", steps=range(3)), {}),
        "slices": (Field("u", axis=1), {}),
        "boxes": ("u", {"samples": Crops((3, 3, 3))}),
        "ragged": (Ragged("hits", ends="ends"), {}),
        "groups": ({"e": "/mol/*/e"}, {}),
        "staged": ("u", {"stage": str(tmp_path)}),
    }
    for kind, (asked, options) in fields.items():
        data = H5Dataset(path, asked, **options)
        found = pickle.loads(with_old_names(data))
        assert len(found) == len(data) and repr(found[1]) == repr(data[1]), kind
    sampler = PlanSampler(range(9), 1, 0, weights=np.arange(1.0, 10.0))
    assert list(pickle.loads(with_old_names(sampler))) == list(sampler)
