"""Zarr stores of a server that speaks as S3 does: by a request for metadata, and one for each thousand chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_kit import SECRET, Bucket, bucket_served
from test_zarr_far import same_epochs

import solar
from solar import DataLoader, H5Dataset
from solar.errors import LayoutError, ReadError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
zarr = pytest.importorskip("zarr", reason="zarr-python, the oracle, is not installed")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with bucket_served(monkeypatch) as made:
        yield made


def made_store(folder: Path, **options: Any) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(2).integers(0, 9, (60, 8, 8)).astype("f4")
    values[20:25] = 0
    group = zarr.open_group(str(folder), mode="w")
    group.create_array("x", data=values, config={"write_empty_chunks": False}, **options)
    group.create_array("one", data=np.arange(3), chunks=(3,))
    with pytest.warns(UserWarning):
        zarr.consolidate_metadata(str(folder))
    return values


def test_a_store_takes_one_request_for_metadata_and_one_for_a_list(bucket: Bucket, tmp_path: Path) -> None:
    values = made_store(tmp_path / "scan1.zarr", chunks=(1, 8, 8))
    bucket.upload_folder(tmp_path / "scan1.zarr")
    with bucket.counted() as made:
        data = H5Dataset("s3://runs/scan1.zarr", "x")
    assert [method for method, _ in made] == ["GET", "GET"]
    assert "list-type=2" in made[1][1]
    with bucket.counted() as made, DataLoader(data, batch_size=8, shuffle=True, buffer="1MiB", epochs=2) as loader:
        for _ in range(2):
            assert sum(len(batch) for batch in loader) == 60
    chunks = [path for method, path in made if method == "GET"]
    assert len(chunks) == len(set(chunks)) == 55  # those that are written, each once for both epochs
    assert {path for method, path in made if method == "HEAD"} <= {"/runs/scan1.zarr/zarr.json"}
    same_epochs(data, values)
    assert int(H5Dataset("s3://runs/scan1.zarr", "one")[2]) == 2


def test_shards_and_what_is_not_consolidated(bucket: Bucket, tmp_path: Path) -> None:
    values = made_store(tmp_path / "scan2.zarr", chunks=(1, 8, 8), shards=(20, 8, 8))
    bucket.upload_folder(tmp_path / "scan2.zarr")
    with bucket.counted() as made:
        data = H5Dataset("s3://runs/scan2.zarr", "x")
    assert len(made) == 2 + 3  # and the index of each shard
    same_epochs(data, values)
    zarr.open_group(str(tmp_path / "b.zarr"), mode="w").create_group("in").create_array("x", data=values)
    bucket.upload_folder(tmp_path / "b.zarr")
    assert list(solar.inspect("s3://runs/b.zarr")) == ["/in/x"]
    same_epochs(H5Dataset("s3://runs/b.zarr", "in/x"), values)
    same_epochs(H5Dataset(["s3://runs/b.zarr/in", "s3://runs/scan2.zarr"], "x"), np.concatenate([values, values]))
    with pytest.raises(LayoutError, match="did you mean /in/x"):
        H5Dataset("s3://runs/b.zarr", "x")


def test_lists_longer_than_a_page(bucket: Bucket, tmp_path: Path) -> None:
    for number in range(1234):
        bucket.client.put_object(Bucket="runs", Key=f"long.zarr/c/{number}", Body=np.int16(number).tobytes())
    zarr.create_array(str(tmp_path / "long.zarr"), shape=(1300,), dtype="i2", chunks=(1,), compressors=None)
    bucket.upload_folder(tmp_path / "long.zarr")
    with bucket.counted() as made:
        values = H5Dataset("s3://runs/long.zarr", "/")
    assert len([path for _, path in made if "list-type=2" in path]) == 2
    assert [int(values[i]) for i in (0, 77, 1233, 1234, 1299)] == [0, 77, 1233, 0, 0]


def test_an_object_that_was_written_again_is_noticed(bucket: Bucket, tmp_path: Path) -> None:
    made_store(tmp_path / "scan4.zarr", chunks=(1, 8, 8), compressors=None)
    bucket.upload_folder(tmp_path / "scan4.zarr")
    data = H5Dataset("s3://runs/scan4.zarr", "x")
    assert np.array_equal(data[1], data[1])
    bucket.client.put_object(Bucket="runs", Key="scan4.zarr/x/c/1/0/0", Body=bytes(256))
    with pytest.raises(ReadError, match="changed since it was inspected"):
        data[1]


def test_errors_tell_no_secret(bucket: Bucket) -> None:
    for url in ("s3://nobody/scan5.zarr", "s3://runs/nothing.zarr"):
        with pytest.raises((ReadError, LayoutError)) as raised:
            H5Dataset(url, "x")
        assert url in str(raised.value)
        assert SECRET not in str(raised.value)
