"""Compressed files: all is kept, bounds hold, what was ended goes on, and what must not be is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pytest
from kit import SHARED, open_files, same, settle
from store_kit import all_of_hdf5, smooth

from solar import DataLoader, H5Dataset, read
from solar.errors import LayoutError, PlanError, ReadError
from solar.io.codec import grid
from solar.io.codec.codec import Codec, rounded_down
from solar.io.codec.grid import Grid, chunk_shape
from solar.io.codec.store import Stored, compress
from solar.io.codec.verify import Verified, verify

Make = Callable[..., str]


def compressed(source: str | Path, target: Path, codec: object, **options: object) -> Stored:
    """The file, verified and without leftovers."""
    stored = compress(source, target, codec, **options)  # type: ignore[arg-type]
    found = verify(source, target)
    assert isinstance(found, Verified)
    assert found.holds, (found.differences, found.fields)
    assert {field.name for field in found.fields} == {part.name for part, _ in stored.parts}
    assert not [*target.parent.glob(".*solar-*")]
    assert not [one for one in open_files() if f"{target.parent}/.{target.name}.solar-" in one]
    return stored


@pytest.fixture
def zoo_of_all(tmp_path: Path) -> Path:
    all_of_hdf5(tmp_path / "a.h5")
    return tmp_path / "a.h5"


# --- what is kept ----


def test_everything_but_the_samples_is_as_it_was(zoo_of_all: Path, tmp_path: Path) -> None:
    stored = compressed(zoo_of_all, tmp_path / "b.h5", "rel=1e-4")
    assert [part.name for part, _ in stored.parts] == ["/zeta", "/fields", "/group/counts", "/filled", "/big_endian"]
    assert stored.lost == ()
    with h5py.File(zoo_of_all) as here, h5py.File(tmp_path / "b.h5") as there:
        assert list(there) == list(here)  # in the order they were made
        assert list(there["group"]) == list(here["group"])
        fields = there["fields"]
        assert fields.maxshape == (None, 32, 32)
        assert fields.attrs["unit"] == "mT"
        assert same(fields.attrs["odd"], here["fields"].attrs["odd"])
        assert list(fields.attrs["names"]) == ["x", "ypsilon", "ζ"]
        assert fields.dims[2].label == "x"
        assert fields.dims[2][0] == there["x"]
        assert there[there["group"].attrs["leads to"]] == fields
        region = there["group"].attrs["a part"]
        assert there[region].name == "/fields"
        assert h5py.h5r.get_region(region, there.id).get_select_bounds() == ((3, 0, 2), (4, 31, 2))
        references = there["group/references"][()]
        assert [there[one].name if one else None for one in references] == ["/fields", "/group", None]
        assert there["alias"] == there["group/counts"]
        assert there["group/up"] == there["/"]
        type_at = h5py.h5o.get_info(there["type"].id).addr
        assert {h5py.h5o.get_info(there[name].id.get_type()).addr for name in ("typed", "early/typed")} == {type_at}
        assert there.get("soft", getlink=True).path == "/group/counts"
        assert there.get("nowhere", getlink=True).path == "/not/there"
        assert there.get("other", getlink=True).filename == "other.h5"
        assert there["filled"].fillvalue == -7.5
        assert there["unwritten"].id.get_storage_size() == 0
        assert same(there["half"][()], here["half"][()])
        assert there["virtual"].is_virtual
        assert list(there["group/vlen"][2]) == [0, 1, 2, 3, 4]
    assert (tmp_path / "b.h5").read_bytes()[:48] == zoo_of_all.read_bytes()[:48]


def test_the_loader_reads_values_within_the_bound(zoo_of_all: Path, tmp_path: Path) -> None:
    compress(zoo_of_all, tmp_path / "b.h5", {None: "abs=0.01", "group/counts": "lossless", "zeta": None})
    names = {"fields": "fields", "counts": "group/counts", "zeta": "zeta", "big_endian": "big_endian"}
    settle(tmp_path / "b.h5")
    order = list(np.random.default_rng(0).permutation(40))
    loader = DataLoader(H5Dataset(tmp_path / "b.h5", names), batch_size=8, sampler=order)
    batches = [{name: part.numpy() for name, part in batch.items()} for batch in loader]
    with h5py.File(zoo_of_all) as file:
        for name in names:
            got = np.concatenate([batch[name] for batch in batches])
            wanted = file[names[name]][()][order]
            largest = np.abs(got.astype("f8") - wanted).max()
            assert largest <= (0.01 if name in ("fields", "big_endian") else 0), name
            assert largest > 0.001 or name in ("counts", "zeta")


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("codec", ["abs=0.02", "lossless", "rel=1e-3,coder=pack"])
def test_the_same_command_gives_the_same_bytes_with_any_number_of_threads(
    codec: str, zoo_of_all: Path, tmp_path: Path
) -> None:
    for threads in (1, 5):  # a second or more apart, perhaps
        compress(zoo_of_all, tmp_path / f"{threads}.h5", codec, threads=threads)
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "5.h5").read_bytes()


def test_a_relative_bound_is_of_the_range_without_marks(make: Make, tmp_path: Path) -> None:
    values = smooth(30, 40, 40)
    values[3, 5:8] = 1e20
    values[4] = np.nan
    path = make("a.h5", x=values, y=values)
    with h5py.File(path, "a") as file:
        file["x"].attrs["_FillValue"] = np.float32(1e20)
    stored = compressed(path, tmp_path / "b.h5", "rel=1e-3")
    bounds = {part.name: part.codec.bound for part, _ in stored.parts}
    real = values[np.isfinite(values) & (values < 1e19)].astype("f8")
    assert bounds["/x"] == rounded_down(Fraction(1e-3) * (Fraction(real.max()) - Fraction(real.min())))
    assert bounds["/y"] > 1e16  # nobody said there that 1e20 is no value
    back = read(tmp_path / "b.h5", "x")
    assert np.isnan(back[4]).all()
    assert np.all(back[3, 5:8] == np.float32(1e20))


def test_special_values_are_kept(make: Make, tmp_path: Path) -> None:
    values = smooth(20, 50, 50)
    places = np.random.default_rng(1).integers(0, values.size, 300)
    values.flat[places] = np.resize(np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, 1e-40], "f4"), 300)
    compressed(make("a.h5", x=values), tmp_path / "b.h5", "abs=1e-3")
    back = read(tmp_path / "b.h5", "x")
    odd = ~np.isfinite(values) | (values == np.float32(3e38))
    assert same(back[odd], values[odd])


@pytest.mark.slow(but=["f4", ">i2"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">f8"])
def test_every_type_of_number_is_compressed(dtype: str, make: Make, tmp_path: Path) -> None:
    values = np.clip(smooth(64, 40, 40) * 0.1, -100, 100).astype("i1").astype(dtype)
    stored = compressed(make("a.h5", x=values), tmp_path / "b.h5", "lossless")
    assert [part.name for part, _ in stored.parts] == ["/x"]
    assert np.array_equal(read(tmp_path / "b.h5", "x"), values)
    assert stored.nbytes < values.nbytes


SHAPES: list[tuple[tuple[int, ...], int | None]] = [
    *(((5000, 7), samples) for samples in (None, 16)),
    *(((37, 1, 90, 3, 8), samples) for samples in (None, 1, 16)),
    *(((3, 300, 300), samples) for samples in (None, 1, 16)),
    *(((100_000,), samples) for samples in (None, 160)),
]


@pytest.mark.slow(but=["shape1-16", "shape2-None"])
@pytest.mark.parametrize(("shape", "samples"), SHAPES)
def test_any_shape_is_compressed(shape: tuple[int, ...], samples: int | None, make: Make, tmp_path: Path) -> None:
    values = np.linspace(0, 1, int(np.prod(shape)), dtype="f4").reshape(shape)
    path = make("a.h5", x=values)
    stored = compressed(path, tmp_path / "b.h5", {"x": Codec("abs", 1e-4)}, chunk_samples=samples)
    assert np.abs(read(tmp_path / "b.h5", "x").astype("f8") - values).max() <= 1e-4
    if samples is not None:
        assert stored.parts[0][0].chunk[0] == min(samples, shape[0])


def test_samples_too_large_for_a_chunk_are_cut(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "LARGEST_CHUNK", 20_000)
    values = smooth(3, 37, 50, 60)
    stored = compressed(make("a.h5", x=values), tmp_path / "b.h5", "abs=0.01")
    assert stored.parts[0][0].chunk == (1, 1, 50, 60)
    assert np.abs(read(tmp_path / "b.h5", "x", [2, 0]).astype("f8") - values[[2, 0]]).max() <= 0.01


def test_chunks_of_a_grid_cover_it_once_in_tasks_that_fit_the_original() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        shape = tuple(int(n) for n in rng.integers(1, 40, rng.integers(1, 4)))
        chunk = tuple(int(rng.integers(1, n + 1)) for n in shape)
        if rng.random() < 0.6:
            chunk = (chunk[0], *shape[1:])
        one, seen = Grid(shape, chunk, 4), np.zeros(shape, int)
        rows = int(rng.integers(1, 9))
        for first, count in one.tasks(rows):
            seen[one.box(first, count)] += 1
            assert not one.whole_rows or one.begin(first)[0] % rows == 0
        assert (seen == 1).all()
        seen[:] = 0
        for number in range(one.chunks):
            seen[one.box(number)] += 1
        assert (seen == 1).all()


def test_chunk_shapes_are_of_bounded_size() -> None:
    assert chunk_shape((10, 4), 4) == (10, 4)
    assert chunk_shape((10**9, 4), 4) == (1024, 4)
    assert chunk_shape((5, 10**6, 10**6), 8) == (1, 2, 10**6)
    assert chunk_shape((5, 10**9), 8) == (1, 2 << 20)
    assert chunk_shape((5, 1 << 20), 4, samples=100) == (4, 1 << 20)


@pytest.mark.slow(but=["rel=1e-4-field-femm", "lossless-tomo-tooth"])
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not here")
@pytest.mark.parametrize("folder", ["climate-ukesm1", "field-femm", "neutron-chopper", "ptycho-petra3", "tomo-tooth"])
@pytest.mark.parametrize("codec", ["rel=1e-4", "lossless"])
def test_measured_data_keep_their_bounds(folder: str, codec: str, tmp_path: Path) -> None:
    files = [path for path in (SHARED / folder).iterdir() if path.suffix in (".h5", ".nc", ".nxs", ".cxi")]
    assert files
    for path in files:
        stored = compressed(path, tmp_path / path.name, codec)
        assert stored.nbytes < path.stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared files are not here")
def test_files_of_other_peoples_tests_are_kept_or_refused_in_words(tmp_path: Path) -> None:
    kept = 0
    for line in (SHARED / "hdf5-odd" / "expected.jsonl").read_text().splitlines()[::6]:
        said = json.loads(line)
        if said["status"] != "ok" or "vds" in said["file"]:
            continue  # of virtual ones the sources lie beside the original only
        path = SHARED / "hdf5-odd" / said["file"]
        stored = compress(path, tmp_path / "b.h5", "lossless", force=True)
        found = verify(path, tmp_path / "b.h5")
        assert found.holds or stored.lost, (path, found)
        kept += found.holds
    assert kept > 25


def test_what_is_no_file_of_hdf5_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(300))
    with pytest.raises(LayoutError, match="superblock has addresses or lengths of 0 bytes"):
        compress(tmp_path / "a.h5", tmp_path / "b.h5", "lossless")
    assert [*tmp_path.iterdir()] == [tmp_path / "a.h5"]


# --- what is refused ----


def test_what_would_be_lost_is_refused(make: Make, tmp_path: Path) -> None:
    path = Path(make("a.h5", x=smooth(20, 40, 40), text=["a", "b"]))
    (tmp_path / "there.h5").write_bytes(b"precious")
    os.link(path, tmp_path / "twin.h5")
    (tmp_path / "link.h5").symlink_to(path)
    for target, why in (
        ("there.h5", "is there already"),
        ("a.h5", "the file to be compressed itself"),
        ("twin.h5", "the file to be compressed itself"),
        ("link.h5", "the file to be compressed itself"),
        (".", "no plain file"),
    ):
        with pytest.raises(PlanError, match=why):
            compress(path, tmp_path / target, "lossless")
    with pytest.raises(PlanError, match="the file to be compressed itself"):
        compress(path, path, "lossless", force=True)
    with pytest.raises(ReadError, match="no such folder"):
        compress(path, tmp_path / "no" / "b.h5", "lossless")
    with pytest.raises(ReadError, match="no such file"):
        compress(tmp_path / "none.h5", tmp_path / "b.h5", "lossless")
    with pytest.raises(LayoutError, match="did you mean /text"):
        compress(path, tmp_path / "b.h5", {"texts": "lossless"})
    with pytest.raises(LayoutError, match="/text cannot be compressed: its values are no numbers"):
        compress(path, tmp_path / "b.h5", {"text": "lossless"})
    with pytest.raises(ValueError, match="chunk_samples=0"):
        compress(path, tmp_path / "b.h5", "lossless", chunk_samples=0)
    assert (tmp_path / "there.h5").read_bytes() == b"precious"
    assert not [*tmp_path.glob(".*")]


def test_a_link_for_a_name_is_followed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link.h5").symlink_to(tmp_path / "store" / "b.h5")
    compress(make("a.h5", x=smooth(20, 40, 40)), tmp_path / "link.h5", "lossless")
    assert (tmp_path / "link.h5").is_symlink()
    assert (tmp_path / "store" / "b.h5").is_file()


def test_what_would_not_be_smaller_is_left(make: Make, tmp_path: Path) -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(200_000), "u2").reshape(10, 100, 100)
    path = make("a.h5", x=noise, y=smooth(20, 40, 40))
    stored = compressed(path, tmp_path / "b.h5", "lossless")
    assert [(one.name, one.reason) for one in stored.left] == [("/x", "it would not be smaller")]
    assert [part.name for part, _ in compressed(path, tmp_path / "c.h5", {"x": "lossless"}).parts] == ["/x"]


def test_a_compressed_file_is_left_or_compressed_again_by_name(make: Make, tmp_path: Path) -> None:
    path = make("a.h5", x=smooth(20, 40, 40))
    compress(path, tmp_path / "b.h5", "abs=1e-3")
    stored = compress(tmp_path / "b.h5", tmp_path / "c.h5", "abs=1")
    assert [one.reason for one in stored.left] == ["solar compressed it already"]
    assert same(read(tmp_path / "c.h5", "x"), read(tmp_path / "b.h5", "x"))
    settle(tmp_path / "b.h5")
    compressed(tmp_path / "b.h5", tmp_path / "d.h5", {"x": "abs=1"})
    assert (tmp_path / "d.h5").stat().st_size < (tmp_path / "b.h5").stat().st_size


def test_a_virtual_dataset_that_is_named_gets_values_of_its_own(zoo_of_all: Path, tmp_path: Path) -> None:
    stored = compressed(zoo_of_all, tmp_path / "b.h5", {"virtual": "abs=0.01"})
    assert [part.name for part, _ in stored.parts] == ["/virtual"]
    with h5py.File(tmp_path / "b.h5") as file:
        assert not file["virtual"].is_virtual
        assert file["fields"].compression == "gzip"


def test_an_original_that_changes_meanwhile_is_refused(make: Make, tmp_path: Path) -> None:
    path = make("a.h5", x=smooth(20, 40, 40))
    with pytest.raises(LayoutError, match="changed while it was compressed"):
        compress(path, tmp_path / "b.h5", "lossless", progress=lambda progress: os.utime(path))
    assert [one.name for one in tmp_path.iterdir()] == ["a.h5"]


def test_a_target_that_came_to_be_meanwhile_is_kept(make: Make, tmp_path: Path) -> None:
    path = make("a.h5", x=smooth(20, 40, 40))
    with pytest.raises(PlanError, match="came to be meanwhile"):
        compress(path, tmp_path / "b.h5", "lossless", progress=lambda _: (tmp_path / "b.h5").write_text("mine"))
    assert (tmp_path / "b.h5").read_text() == "mine"
    assert not [*tmp_path.glob(".*")]


def test_a_full_disk_is_foreseen(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make("a.h5", x=smooth(20, 40, 40))
    facts = os.statvfs(tmp_path)

    class Full:
        f_bavail, f_frsize = 3, facts.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    with pytest.raises(PlanError, match="bytes will be written, and"):
        compress(path, tmp_path / "b.h5", "lossless")
    assert not [*tmp_path.glob(".*")]
