"""Ray Data over HDF5 files: rows as h5py has them, blocks of whole chunks, what is known before anything is read."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from solar import CSR, CodecError, Field, H5Dataset, LayoutError, PlanError, Ragged, ReadError
from solar.samples.windows import Windows

QUIET = {  # no usage statistics, no other interface than the loopback, and no more processes than needed
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
os.environ.update(QUIET)
ray: Any = pytest.importorskip("ray", reason="ray is not installed: pip install 'ray[data]', which is large")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'ray[data]', which is large")

from solar.integrations.ray import NOT_OF_RAY, H5Datasource, block_bounds, names_of, nearest_chunks, read_hdf5  # noqa: E402

# Ray warns of its own arguments.
pytestmark = [pytest.mark.alone, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SAMPLES = 103
TYPES = ("f2", "f4", "f8", "i1", "u2", "i4", ">i8", "?")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """Two workers on this machine, and none of them left afterwards."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # a path of a socket is short
    ray.init(num_cpus=2, object_store_memory=128 << 20, include_dashboard=False, log_to_driver=False,
             _node_ip_address="127.0.0.1", _temp_dir=folder)  # fmt: skip
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    try:
        yield
    finally:
        ray.shutdown()
    end = time.monotonic() + 30
    while (left := _of_ray(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []
    shutil.rmtree(folder, ignore_errors=True)


def _of_ray(folder: str) -> list[str]:
    """The commands of processes that belong to the cluster of this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [said] if folder in said else []
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files of 103 and 41 samples, some of whose datasets are chunked."""
    folder, made = tmp_path_factory.mktemp("files"), []
    for number, samples in enumerate((SAMPLES, 41)):
        rng = np.random.default_rng(number)
        path = folder / f"run{number}.h5"
        with h5py.File(path, "w") as file:
            image = rng.random((samples, 12, 10)).astype("f4")
            file.create_dataset("image", data=image, chunks=(8, 12, 5), compression="gzip")
            file["y"] = np.arange(samples) + 1000 * number
            file["name"] = [f"sample {i}" for i in range(samples)]
            file["code"] = np.array([f"c{i}".encode() for i in range(samples)], "S6")
            lengths = rng.integers(0, 7, samples)
            file["hits"], file["ends"] = rng.random((lengths.sum(), 3)), np.cumsum(lengths)
            for kind in TYPES:
                file[f"types/{kind}"] = rng.integers(0, 2 if kind == "?" else 100, (samples, 2)).astype(kind)
            file["good"] = np.arange(samples) % 3 > 0
            file["complex"] = np.zeros(samples, "c8")
        made.append(str(path))
    return made


def rows(files: list[str], name: str) -> np.ndarray[Any, Any]:
    values = []
    for path in files:
        with h5py.File(path) as file:
            values.append(file[name][()])
    return np.concatenate(values)


def column(dataset: Any, name: str) -> list[Any]:
    return [row[name] for row in dataset.take_all()]


def test_rows_are_those_of_h5py(files: list[str]) -> None:
    dataset = read_hdf5(files, {"image": "image", "y": "y", "types": {kind: f"types/{kind}" for kind in TYPES}})
    found = dataset.take_all()
    assert len(found) == SAMPLES + 41
    for name in ("image", "y", *(f"types/{kind}" for kind in TYPES)):
        expected = rows(files, name)
        values = np.stack([row[name] for row in found])
        assert values.dtype == expected.dtype.newbyteorder("=")
        assert values.tobytes() == expected.astype(values.dtype).tobytes(), name
    assert read_hdf5(files, "image").schema().names == ["image"]


def test_a_folder_a_pattern_and_a_url_are_the_same_files(files: list[str]) -> None:
    folder = Path(files[0]).parent
    expected = rows(files, "y").tolist()
    ways: list[Any] = [folder, f"{folder}/run*.h5"]
    if pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'"):
        ways.append(f"file://{folder}/")
    for paths in ways:
        assert column(read_hdf5(paths, {"y": "y"}), "y") == expected


def test_fields_are_converted_as_with_h5dataset(files: list[str]) -> None:
    fields = {"x": Field("image", mean=0.5, std=2, select=np.s_[2:9, ::3]), "steps": Field("image", steps=range(3))}
    dataset = read_hdf5(files, fields, samples=Windows(every=5))
    data = H5Dataset(files, fields, samples=Windows(every=5))
    expected = data.read_batch(range(len(data)))
    found = dataset.take_all()
    for name in fields:
        assert np.stack([row[name] for row in found]).tobytes() == expected[name].tobytes()


def test_samples_of_unequal_length_are_tensors_of_variable_shape(files: list[str]) -> None:
    dataset = read_hdf5(files, {"hits": Ragged("hits", ends="ends"), "y": "y"})
    expected = list(H5Dataset(files, {"hits": Ragged("hits", ends="ends")}))
    found = dataset.take_all()
    assert len(found) == len(expected)
    for row, sample in zip(found, expected, strict=True):
        assert row["hits"].shape == sample["hits"].shape
        assert row["hits"].tobytes() == sample["hits"].tobytes()
    assert 0.5 < dataset.size_bytes() / (sum(sample["hits"].nbytes + 8 for sample in expected)) < 2


def test_text_and_paths_are_columns(files: list[str]) -> None:
    dataset = read_hdf5(files, ("name", "code"), include_paths=True, override_num_blocks=5)
    assert column(dataset, "name") == rows(files, "name").tolist()
    assert column(dataset, "code") == rows(files, "code").tolist()
    assert column(dataset, "path") == [files[0]] * SAMPLES + [files[1]] * 41


def test_a_mask_leaves_samples_out(files: list[str]) -> None:
    good = rows(files, "good")
    assert column(read_hdf5(files, {"y": "y", "image": "image"}, where="good"), "y") == rows(files, "y")[good].tolist()


def test_all_is_known_before_anything_is_read(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = read_hdf5(files, {"image": "image", "y": "y"})
    with monkeypatch.context() as patched:
        patched.setattr(ray.data.Dataset, "materialize", None)
        patched.setattr(ray.data.Dataset, "take_all", None)
        assert dataset.count() == SAMPLES + 41
        assert dataset.size_bytes() == (SAMPLES + 41) * (12 * 10 * 4 + 8)
        assert sorted(dataset.input_files()) == files
        schema = dataset.schema(fetch_if_missing=False)
    assert schema.names == ["image", "y"]
    assert schema.base_schema.types == dataset.materialize().schema().base_schema.types


def test_blocks_begin_where_chunks_do(files: list[str]) -> None:
    data = H5Dataset(files, {"y": "y", "image": "image"})
    begins = {*range(0, SAMPLES, 8), *range(SAMPLES, SAMPLES + 41, 8), SAMPLES + 41}
    for asked in (1, 2, 3, 7, 20, 500):
        bounds = block_bounds(data, 10**9, asked)
        assert set(bounds.tolist()) <= begins
        assert bounds[0] == 0 and bounds[-1] == SAMPLES + 41
        assert len(bounds) - 1 == asked or asked >= 15
    assert set(block_bounds(data, 10**9, 500).tolist()) == begins  # every chunk is a block of its own
    few = np.diff(block_bounds(data, 24, 1))
    assert few.max() <= 32 and len(few) >= 6
    where = H5Dataset(files, {"image": "image"}, where="good")
    kept = np.flatnonzero(rows(files, "good"))
    starts = kept[block_bounds(where, 10**9, 9)[1:-1]]
    assert len(starts) == 8 and all({one, one - 1} & begins for one in starts.tolist())
    plain = H5Dataset(files, "y")
    assert len(block_bounds(plain, 10, 1)) == 16  # of no chunks: evenly
    layout = data.layouts["image"]
    assert nearest_chunks(layout, np.array([3, 5, 101, 102])).tolist() == [0, 8, 103, 103]


def test_tasks_are_as_many_as_ray_asks_for_and_blocks_as_large(files: list[str]) -> None:
    source = H5Datasource(H5Dataset(files, {"image": "image"}), ["image"])
    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = 20 * 480
    tasks = source.get_read_tasks(3, None, context)
    assert len(tasks) == 3
    blocks = [[len(block) for block in task()] for task in tasks]
    assert [sum(one) for one in blocks] == [task.metadata.num_rows for task in tasks]
    assert max(max(one) for one in blocks) <= 24
    assert len(blocks[0]) > 1
    assert len(pickle.dumps(tasks[0].read_fn.args[1:])) < 2000  # what goes with each task is small
    assert source.estimate_inmemory_data_size() == 144 * 480
    assert read_hdf5(files, "image", override_num_blocks=4).materialize().num_blocks() == 4
    limited = source.get_read_tasks(1, 5)[0]
    assert sum(map(len, limited())) == 5


def test_blocks_are_the_memory_that_was_read_into(files: list[str]) -> None:
    source = H5Datasource(H5Dataset(files, {"y": "y", "image": "image"}), ["y", "image"])
    values = np.arange(24.0).reshape(4, 6)
    from solar.integrations.ray import arrow_column

    for one in (values, values[:, 0].copy()):
        made = arrow_column(one)
        storage = getattr(made, "storage", made)
        buffers = storage.buffers()
        assert one.ctypes.data in [part.address for part in buffers if part is not None]
    assert source.get_name() == "HDF5"


def test_two_workers_read_at_once_with_the_cores_they_are_assigned(files: list[str], tmp_path: Path) -> None:
    def seen(batch: dict[str, Any]) -> dict[str, Any]:
        (tmp_path / str(os.getpid())).touch()
        end = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:  # the other is about to take its part
            time.sleep(0.01)
        return {"worker": np.full(len(batch["y"]), os.getpid())}

    dataset = read_hdf5(files, "y", override_num_blocks=8, concurrency=2, ray_remote_args={"num_cpus": 1})
    workers = set(column(dataset.map_batches(seen), "worker"))
    assert len(workers) == 2 and os.getpid() not in workers

    @ray.remote(num_cpus=1)
    def threads(shared: Any, columns: Any) -> int:
        import solar
        from solar.integrations.ray import read_blocks

        assert sum(map(len, read_blocks(shared[0], columns, [0, 50, 144]))) == 144
        return solar.get_num_threads()

    source = H5Datasource(H5Dataset(files, "y"), ["y"])
    shared = ray.put(source._dataset)
    assert ray.get(threads.remote([shared], source._columns)) == 1


def test_a_shuffle_and_batches_of_torch_are_rays(files: list[str]) -> None:
    dataset = read_hdf5(files, {"image": "image", "y": "y"})
    shuffled = dataset.random_shuffle(seed=3)
    found = column(shuffled, "y")
    assert found != rows(files, "y").tolist() and sorted(found) == sorted(rows(files, "y").tolist())
    image, y = rows(files, "image"), rows(files, "y")
    at = 0
    for batch in dataset.iter_torch_batches(batch_size=50):
        size = len(batch["y"])
        assert batch["image"].numpy().tobytes() == image[at : at + size].tobytes()
        assert batch["y"].tolist() == y[at : at + size].tolist()
        at += size
    assert at == len(y)
    parts = dataset.split(2)
    assert sum(part.count() for part in parts) == len(y)


def test_ray_trains_workers_get_parts_that_an_actor_has_read(files: list[str]) -> None:
    parts = read_hdf5(files, {"image": "image", "y": "y"}).streaming_split(2)  # what get_dataset_shard gives
    image = dict(zip(rows(files, "y").tolist(), rows(files, "image"), strict=True))

    def take(part: Any) -> list[int]:
        seen = []
        for batch in part.iter_torch_batches(batch_size=16):
            for number, one in zip(batch["y"].tolist(), batch["image"].numpy(), strict=True):
                assert one.tobytes() == image[number].tobytes()
                seen.append(number)
        return seen

    with ThreadPoolExecutor(2) as pool:
        taken = list(pool.map(take, parts))
    assert all(taken)
    assert sorted(taken[0] + taken[1]) == sorted(image)


def test_errors_are_solars_in_words_and_kind(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="no such file"):
        read_hdf5(tmp_path / "none.h5", "x")
    with pytest.raises(LayoutError, match="did you mean"):
        read_hdf5(files, "imag")
    for fields, said in {
        "complex": "are no column of Arrow's",
        Ragged("hits", ends="ends", batch="padded"): "leave batch='padded' out",
    }.items():
        with pytest.raises(PlanError, match=said):
            read_hdf5(files, {"x": fields})
    with pytest.raises(PlanError, match="two fields would be a column 'y'"):
        read_hdf5(files, ["y", "/y"])
    with pytest.raises(PlanError, match="a field has this name"):
        read_hdf5(files, {"path": "y"}, include_paths=True)
    for name, instead in NOT_OF_RAY.items():
        with pytest.raises(PlanError, match=re.escape(f"read_hdf5 takes no {name}=7: {instead}")):
            read_hdf5(files, "y", **{name: 7})
    with pytest.raises(TypeError, match="read_hdf5 takes no concurrent=; did you mean concurrency="):
        read_hdf5(files, "y", concurrent=2)
    assert read_hdf5(files, "y", parallelism=None, shuffle=False).count() == read_hdf5(files, "y").count()
    path = tmp_path / "broken.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(4000.0).reshape(40, 100), chunks=(10, 100), fletcher32=True)
        place = file["x"].id.get_chunk_info(2).byte_offset
    broken = bytearray(path.read_bytes())
    broken[place + 5] ^= 1
    path.write_bytes(broken)
    with pytest.raises(CodecError, match=r"broken\.h5: /x, sample 20, .* checksum is wrong") as raised:
        read_hdf5(path, "x").take_all()
    assert isinstance(raised.value, ray.exceptions.RayTaskError)


def test_names_of_columns() -> None:
    assert names_of({"a": ("x", Field("/b/y")), "c": CSR("/X")}) == ["a/0", "a/1", "c"]
    assert names_of("/entry/data/x") == ["entry/data/x"]
