"""solar.inspect says where the samples are, and refuses what is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from kit import open_files

import solar


def test_every_dataset_is_there_with_the_shape_and_dtype_h5py_gives(zoo: str) -> None:
    layouts = solar.inspect(zoo)
    with h5py.File(zoo) as file:
        assert set(layouts) == {f"/{name}" for name in file}
        for name, layout in layouts.items():
            if name not in ("/null", "/reference"):
                assert (layout.shape, layout.dtype) == (file[name].shape, file[name].dtype), name


def test_what_native_code_cannot_read_goes_to_h5py_with_a_reason(zoo: str) -> None:
    readers = {name.strip("/"): layout.reader for name, layout in solar.inspect(zoo).items()}
    assert {name for name, reader in readers.items() if reader == "h5py"} >= {"text", "scalar_text", "vlen"}
    assert {name for name, reader in readers.items() if reader == "direct"} >= {
        "contiguous", "deflate", "lzf", "big_endian", "complex", "bool", "struct", "array", "partly_written", "scalar",
        "virtual",
    }  # fmt: skip
    assert all(layout.reason for layout in solar.inspect(zoo).values() if layout.reader != "direct")
    assert solar.inspect(zoo)["/null"].reader == "none"


def test_chunk_arrays_agree_with_h5py(zoo: str) -> None:
    with h5py.File(zoo) as file:
        for name in ("deflate", "lzf", "partly_written"):
            dataset, layout = file[name], solar.inspect(zoo, name)
            grid = [-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
            theirs = {}
            for i in range(dataset.id.get_num_chunks()):
                chunk = dataset.id.get_chunk_info(i)
                place = [first // length for first, length in zip(chunk.chunk_offset, dataset.chunks, strict=True)]
                theirs[int(np.ravel_multi_index(place, grid))] = (chunk.byte_offset, chunk.size, chunk.filter_mask)
            index = layout.chunk_index.tolist() or range(len(layout.chunk_offset))
            ours = zip(
                layout.chunk_offset.tolist(), layout.chunk_nbytes.tolist(), layout.chunk_mask.tolist(), strict=True
            )
            assert dict(zip(index, ours, strict=True)) == theirs, name


def test_a_dense_table_needs_no_index(zoo: str) -> None:
    assert len(solar.inspect(zoo, "deflate").chunk_index) == 0
    assert len(solar.inspect(zoo, "partly_written").chunk_index) > 0


def test_the_structure_of_fields_is_the_structure_of_layouts(zoo: str) -> None:
    found = solar.inspect(zoo, {"x": "contiguous", "more": ("bool", ["complex"])})
    assert found["x"].name == "/contiguous"
    assert found["more"][0].name == "/bool"
    assert found["more"][1][0].name == "/complex"
    with pytest.raises(TypeError, match="a field is"):
        solar.inspect(zoo, 3)


def test_fields_of_one_sample_must_have_as_many_samples(make: Callable[..., str]) -> None:
    path = make("a.h5", x=np.zeros((5, 2)), y=np.zeros(4))
    with pytest.raises(solar.LayoutError, match="/x has 5 samples, /y has 4"):
        solar.inspect(path, ("x", "y"))


def test_a_misspelt_name_is_answered_with_the_near_miss(make: Callable[..., str]) -> None:
    path = make("a.h5", images=np.zeros(3))
    with pytest.raises(solar.LayoutError, match=r"imagse.*images"):
        solar.inspect(path, "imagse")


def test_files_are_ordered_by_the_bytes_of_their_paths(make: Callable[..., str], tmp_path: Path) -> None:
    for name in ("b.h5", "a10.h5", "a9.h5", "B.hdf5"):
        make(name, x=np.zeros(2))
    (tmp_path / "notes.txt").write_text("no data")
    wanted = ["B.hdf5", "a10.h5", "a9.h5", "b.h5"]
    for path in (tmp_path, str(tmp_path), f"{tmp_path}/*5"):
        assert [Path(one).name for one in solar.inspect(path, "x").paths] == wanted
    given = [tmp_path / "b.h5", tmp_path / "a9.h5"]
    assert [Path(one).name for one in solar.inspect(given, "x").paths] == ["b.h5", "a9.h5"]


def test_a_file_whose_name_is_a_pattern_is_itself(make: Callable[..., str]) -> None:
    path = make("scan[1].h5", x=np.zeros(3))
    assert solar.inspect(path, "x").paths == (path,)


def test_what_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(solar.ReadError, match=r"gone\.h5"):
        solar.inspect(tmp_path / "gone.h5", "x")
    with pytest.raises(solar.LayoutError, match=r"\*\.h5"):
        solar.inspect(tmp_path / "*.h5", "x")
    with pytest.raises(solar.LayoutError, match="no file ends in"):
        solar.inspect(tmp_path, "x")
    with pytest.raises(solar.LayoutError, match="no files"):
        solar.inspect([], "x")
    (tmp_path / "text.h5").write_text("not HDF5 at all")
    with pytest.raises(solar.LayoutError, match=r"text\.h5"):
        solar.inspect(tmp_path / "text.h5")


@pytest.mark.parametrize("other", [np.zeros((3, 5)), np.zeros((3, 4), "f4"), np.zeros(3), np.zeros((3, 4, 1))])
def test_files_that_do_not_fit_each_other_are_both_named(make: Callable[..., str], tmp_path: Path, other: Any) -> None:
    make("a.h5", x=np.zeros((2, 4)))
    make("b.h5", x=other)
    with pytest.raises(solar.LayoutError, match=r"b\.h5.*a\.h5"):
        solar.inspect(tmp_path, "x")


def test_with_one_sample_per_file_a_sample_is_a_whole_dataset(make: Callable[..., str], tmp_path: Path) -> None:
    values = np.arange(60).reshape(5, 4, 3)
    for i, value in enumerate(values):
        make(f"{i}.h5", x=(value, {"chunks": (3, 2)} if i % 2 else {}), y=float(i))
    x, y = solar.inspect(tmp_path, ("x", "y"), samples="files")
    assert x.shape == (5, 4, 3)
    assert y.shape == (5,)
    assert {form.chunk for form in x.forms} == {(1, 3, 2), (0, 4, 3)}
    assert x.reader == y.reader == "direct"
    with pytest.raises(solar.LayoutError, match='samples="files"'):
        solar.inspect(tmp_path, "y")
    with pytest.raises(ValueError, match="samples"):
        solar.inspect(tmp_path, "y", samples="chunks")  # type: ignore[call-overload]


def test_the_digest_tells_files_times_and_datasets_apart(make: Callable[..., str]) -> None:
    a, b = make("a.h5", x=np.zeros(3), y=np.zeros(3)), make("b.h5", x=np.zeros(3))
    digests = [solar.inspect(path, name).digest for path, name in ((a, "x"), (a, "y"), (b, "x"))]
    assert len(set(digests)) == 3
    assert solar.inspect(a, "x").digest == digests[0]
    with Path(a).open("r+b") as file:
        file.seek(0, 2)
        file.write(b"\0")
    assert solar.inspect(a, "x").digest != digests[0]


def test_no_file_stays_open(zoo: str) -> None:
    before = open_files()
    solar.inspect(zoo)
    assert not open_files() - before
