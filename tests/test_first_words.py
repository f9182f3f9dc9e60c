"""What a first user stumbles over is answered with what to give instead."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import settle

from solar import Crops, DataLoader, Field, H5Dataset, LayoutError, PlanSampler, Ragged, SolarError, Windows


@pytest.fixture
def path(tmp_path: Path) -> str:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["ends"], file["y"] = np.arange(10.0), [6, 10], [0, 1, 0, 0, 2, 1, 1, 0, 2, 2]
        file["volume"] = np.zeros((8, 8, 8))
        lists = file.create_dataset("vl", (4,), h5py.vlen_dtype(np.dtype("f4")))
        for i in range(4):
            lists[i] = np.ones(i + 1, "f4")
    settle(tmp_path / "a.h5")
    return str(tmp_path / "a.h5")


def test_the_shape_of_a_box_is_a_tuple() -> None:
    with pytest.raises(TypeError, match=r"shape=8: a length for each axis that is cut, such as Crops\(\(8, 8, 8\)\)"):
        Crops(8)  # type: ignore[arg-type]


def test_a_word_for_places_that_is_none_is_told_the_words(path: str) -> None:
    with pytest.raises(LayoutError, match=r"at='rand' is neither \"grid\" nor \"random\", so it would be a dataset"):
        H5Dataset(path, "volume", samples=Crops((4, 4, 4), at="rand"))


def test_batches_of_variable_length_are_told_ragged(path: str) -> None:
    with pytest.raises(RuntimeError, match=r"variable-length type, name the field as Ragged"):
        next(iter(DataLoader(H5Dataset(path, "vl"), batch_size=3)))


@pytest.mark.parametrize("where", [None, np.arange(10) != 3])
def test_a_label_by_name_is_that_at_the_windows_place(path: str, where: np.ndarray | None) -> None:
    data = H5Dataset(path, Field("u", steps=(0, 1, 2)), samples=Windows(ends="ends"), where=where)
    places = [place for place in (0, 1, 2, 3, 6, 7) if where is None or where[place]]
    assert [int(window[0]) for window in data] == places
    with h5py.File(path) as file:
        own = file["y"][:][places]
    for options in ({"per_class": "equal"},):
        assert list(PlanSampler(data, 1, 0, labels="y", **options)) == list(
            PlanSampler(data, 1, 0, labels=own, **options)
        )
    assert list(PlanSampler(data, 1, 0, weights="y")) == list(PlanSampler(data, 1, 0, weights=own))


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[Path, Path]:
    """Rows, text and groups in one file, and beside it one with text as keys."""
    one, other = tmp_path / "a.h5", tmp_path / "b.h5"
    with h5py.File(one, "w") as file:
        file["x"], file["id"] = np.arange(60).reshape(5, 4, 3), np.arange(100, 105)
        file["names"] = np.array(["a", "bb", "", "d", "e"], object)
        file["molecules/m0/z"] = np.zeros(2)
    with h5py.File(other, "w") as file:
        file["t"], file["id"] = np.arange(5), np.array([b"%d" % key for key in range(100, 105)])
    return one, other


MISTAKES = {
    "a class, not what is made of it": (lambda a, _: H5Dataset(a, "x", samples=Windows), r"Windows\(\.\.\.\) or Crops"),
    "a kind in quotes": (lambda a, _: H5Dataset(a, "x", samples="windows"), r"Windows\(\.\.\.\) or Crops"),
    "a slice": (lambda a, _: H5Dataset(a, "x")[0:3], r"slice\(0, 3, None\): several by data\.__getitems__"),
    "a field as an index": (lambda a, _: H5Dataset(a, {"x": "x"})["x"], "along axis 0, not by 'x'$"),
    "a fraction as an index": (lambda a, _: H5Dataset(a, "x")[1.0], "along axis 0, not by 1.0$"),
    "an index too far": (lambda a, _: H5Dataset(a, "x")[5], r"sample 5 of /x in .*\.h5, which has 5"),
    "no path": (lambda *_: H5Dataset(None, "x"), "a path, a pattern, or a list of paths, not None"),
    "a misspelt path": (
        lambda a, _: H5Dataset(a.with_stem("aa"), "x"),
        r"no such file or .* \(did you mean a.h5",
    ),
    "a misspelt folder": (
        lambda a, _: H5Dataset(a.parent / "folder" / "one.h5", "x"),
        "no such file or directory, nor is there a folder .*folder",
    ),
    "a std of 0": (lambda *_: Field("/x", std=[1.0, 0.0]), r"Field\('/x'\): std has zeros"),
    "a mean that is no number": (
        lambda *_: Field("/x", mean=float("nan")),
        r"Field\('/x'\): mean has values",
    ),
    "a mean that is a word": (lambda *_: Field("/x", mean="4"), r"Field\('/x'\): mean must be a number"),
    "numbers and text as keys": (
        lambda a, b: H5Dataset(a, {"x": "x", "t": Field("t", file=b, by="id")}),
        "the keys here are numbers, and there text",
    ),
    "two names of a key": (lambda _, b: Field("t", file=b, by=("id", "id")), "by is the name of one dataset"),
    "lengths that are no whole numbers": (lambda *_: Crops((2.0, 2)), "whole numbers, one for each axis"),
    "so many boxes of a grid": (lambda *_: Crops((2, 2), per=4), 'with at="random" so many boxes'),
    "text as numbers": (lambda a, _: H5Dataset(a, Ragged("/names")), "is text: name it without Ragged"),
    "a word in capitals": (lambda a, _: DataLoader(H5Dataset(a, "x"), service="Auto"), "did you mean 'auto'"),
    "a service that is no text": (
        lambda a, _: DataLoader(H5Dataset(a, "x"), service=True),
        "service=True: 'auto', 'auto:64GiB', the path of a service's socket, or 'user:NAME:PATH'",
    ),
    "no state": (lambda a, _: DataLoader(H5Dataset(a, "x")).load_state_dict(None), "no state of solar's DataLoader"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_to_give_instead(mistake: str, mixed: tuple[Path, Path]) -> None:
    make, said = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError, IndexError, SolarError), match=said):
        make(*mixed)


def test_samples_of_text_are_bytes(mixed: tuple[Path, Path]) -> None:
    data = H5Dataset(mixed[0], {"name": "names", "x": "x"})
    (batch,) = DataLoader(data, 5)
    assert batch["name"] == [b"a", b"bb", b"", b"d", b"e"]
