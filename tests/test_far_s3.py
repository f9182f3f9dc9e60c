"""Objects of a server that speaks as S3 does: read, listed, and no secret told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bucket_kit import SECRET, Bucket, bucket_served
from stage_kit import epoch, written

from solar import DataLoader, H5Dataset, LayoutError, ReadError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with bucket_served(monkeypatch) as made:
        yield made


def test_objects_and_patterns_of_them(bucket: Bucket, tmp_path: Path) -> None:
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


def test_what_is_not_there_is_told_without_secrets(bucket: Bucket) -> None:
    for url in ("s3://runs/nothing.h5", "s3://nobody/scan.h5"):
        with pytest.raises(ReadError) as raised:
            H5Dataset(url, {"x": "x"})
        assert url in str(raised.value)
        assert "there is no such object" in str(raised.value)
        assert SECRET not in str(raised.value)


def test_an_object_written_anew_is_another_one(bucket: Bucket, tmp_path: Path) -> None:
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


def test_states_and_digests_know_no_secret(bucket: Bucket, tmp_path: Path) -> None:
    written(tmp_path / "one.h5", samples=30)
    bucket.upload_file(str(tmp_path / "one.h5"), "runs", "scan.h5")
    data = H5Dataset("s3://runs/scan.h5", {"x": "x"})
    loader = DataLoader(data, batch_size=5, shuffle=True)
    next(iter(loader))
    assert SECRET not in repr(loader.state_dict()) + loader.report() + repr(data) + repr(data.__dict__)
