"""Objects of a server that speaks as S3 does: read, listed, and no secret told."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stage_kit import epoch, written

from solar import DataLoader, H5Dataset, LayoutError, ReadError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'solar[integrations]'")
boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'solar[integrations]'")
from solar.io.remote import location  # noqa: E402

SECRET = "averysecretkey"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    told = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1"}
    for name, value in {**told, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    location.store_of.cache_clear()
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")).close()
    client = boto3.client("s3", endpoint_url=endpoint, region_name="eu-west-1")
    client.create_bucket(Bucket="runs", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    yield client
    running.stop()
    location.store_of.cache_clear()


def test_objects_and_patterns_of_them(bucket: Any, tmp_path: Path) -> None:
    parts = []
    for number in range(3):
        path = tmp_path / f"scan{number}.h5"
        parts.append(written(path, "gzip", samples=30, seed=number))
        bucket.upload_file(str(path), "runs", f"may/{path.name}")
    epoch(H5Dataset("s3://runs/may/scan1.h5", {"x": "x"}), parts[1])
    for url in ("s3://runs/may/", "s3://runs/may/scan*.h5"):
        data = H5Dataset(url, {"x": "x"})
        epoch(data, np.concatenate(parts))
        epoch(data, np.concatenate(parts), "400KiB")
    with pytest.raises(LayoutError, match="no object matches"):
        H5Dataset("s3://runs/june/*.h5", {"x": "x"})


def test_what_is_not_there_is_told_without_secrets(bucket: Any) -> None:
    for url in ("s3://runs/nothing.h5", "s3://nobody/scan.h5"):
        with pytest.raises(ReadError) as raised:
            H5Dataset(url, {"x": "x"})
        assert url in str(raised.value)
        assert "there is no such object" in str(raised.value)
        assert SECRET not in str(raised.value)


def test_an_object_written_anew_is_another_one(bucket: Any, tmp_path: Path) -> None:
    """Within the same second, with the same length: its ETag tells."""
    for seed in (0, 1):
        written(tmp_path / f"{seed}.h5", samples=30, seed=seed)
    bucket.upload_file(str(tmp_path / "0.h5"), "runs", "scan.h5")
    data = H5Dataset("s3://runs/scan.h5", {"x": "x"})
    with DataLoader(data, batch_size=1, buffer=0, ahead=2) as loader:
        batches = iter(loader)
        next(batches)
        bucket.upload_file(str(tmp_path / "1.h5"), "runs", "scan.h5")
        with pytest.raises(ReadError, match="changed since it was inspected"):
            for _ in range(40):
                next(batches)


def test_states_and_digests_know_no_secret(bucket: Any, tmp_path: Path) -> None:
    written(tmp_path / "one.h5", samples=30)
    bucket.upload_file(str(tmp_path / "one.h5"), "runs", "scan.h5")
    data = H5Dataset("s3://runs/scan.h5", {"x": "x"})
    loader = DataLoader(data, batch_size=5, shuffle=True)
    next(iter(loader))
    assert SECRET not in repr(loader.state_dict()) + loader.report() + repr(data) + repr(data.__dict__)
