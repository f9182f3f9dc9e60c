"""A server of the tests that speaks as S3 does, with a bucket "runs", and writes down what it is asked for."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'solar[integrations]'")
boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install 'solar[integrations]'")

from solar.io.remote import location  # noqa: E402

SECRET = "averysecretkey"


@dataclass
class Bucket:
    """The bucket, and the method and the path of each request since it was made."""

    client: Any
    asked: list[tuple[str, str]] = field(default_factory=list)

    def upload_file(self, path: str, bucket: str, name: str) -> None:
        self.client.upload_file(path, bucket, name)

    def upload_folder(self, folder: Path) -> None:
        """Puts the files of a folder below its name."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.client.upload_file(str(path), "runs", f"{folder.name}/{path.relative_to(folder)}")

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[tuple[str, str]]]:
        """Yields a list, which has the requests of the block at its end."""
        begin = len(self.asked)
        made: list[tuple[str, str]] = []
        yield made
        made += self.asked[begin:]


@contextlib.contextmanager
def bucket_served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    from werkzeug.serving import WSGIRequestHandler

    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(WSGIRequestHandler, "log_request", lambda one, *_: asked.append((one.command, one.path)))
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
    try:
        yield Bucket(client, asked)
    finally:
        running.stop()
        location.store_of.cache_clear()
