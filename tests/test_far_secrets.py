"""No credential is ever told: not in states, reports, digests, logs, errors, nor in what lies on a disk."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_kit import Asked, Web, served
from stage_kit import written

from solar import DataLoader, H5Dataset, LayoutError, ReadError, inspect, read
from solar.cli import main

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
from solar.io.remote import location

SECRETS = {
    "AWS_ACCESS_KEY_ID": "keyidthatnobodysees",
    "AWS_SECRET_ACCESS_KEY": "secretthatnobodysees",
    "AWS_SESSION_TOKEN": "tokenthatnobodysees",
}


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server that gives what is asked for, however it is signed, as an S3 endpoint."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    location.store_of.cache_clear()
    with served(tmp_path) as one:
        folder = tmp_path / f"bucket{one.port}"  # what was looked at a moment ago, by another test, is not asked for
        folder.mkdir()
        written(folder / "one.h5", "gzip", samples=60)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{one.port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield one
    location.store_of.cache_clear()


def url(web: Web, name: str = "one.h5") -> str:
    return f"s3://bucket{web.port}/{name}"


def told(text: str) -> list[str]:
    return [name for name, value in SECRETS.items() if value in text]


def test_the_requests_are_signed(web: Web) -> None:
    """So that the others can fail."""
    signed = []
    web.fault = lambda asked, before: bool(signed.append(asked.headers.get("Authorization", "")))
    H5Dataset(url(web), {"x": "x"})
    assert all(SECRETS["AWS_ACCESS_KEY_ID"] in one for one in signed)
    assert told(signed[0]) == ["AWS_ACCESS_KEY_ID"]


def test_what_is_kept_and_shown(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    stage = tmp_path / "stage"
    stage.mkdir()
    data = H5Dataset(url(web), {"x": "x"}, stage=stage)
    loader = DataLoader(data, batch_size=7, shuffle=True, buffer="200KiB")
    assert sum(len(batch["x"]) for batch in loader) == 60
    shown = json.dumps(loader.state_dict()) + loader.report() + repr(data) + repr(vars(data)) + repr(loader.stats())
    assert told(shown + pickle.dumps(data).decode("latin-1")) == []
    for command in (
        ["digest", url(web), "x", "--batch-size", "7", "--json"],
        ["inspect", url(web), "--json"],
        ["plan", url(web), "x", "--memory", "1MiB", "--json"],
        ["compress", url(web), str(tmp_path / "out.h5"), "--lossless"],
    ):
        assert main(command) == 0
    captured = capfd.readouterr()
    assert told(captured.out + captured.err + caplog.text) == []
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or told(path.read_bytes().decode("latin-1")) == [], path


@pytest.mark.parametrize("code", [301, 400, 403, 404, 501])
def test_errors(code: int, web: Web, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    data = H5Dataset(url(web), {"x": "x"})

    def repeats(asked: Asked, before: int) -> bool:
        """A server that says in its error what it was sent, as some do."""
        body = f"<Error><Message>{asked.headers}</Message></Error>".encode()
        asked.send_response(code)
        asked.send_header("Location", f"http://127.0.0.1:{web.port}/?X-Amz-Credential={SECRETS['AWS_ACCESS_KEY_ID']}")
        asked.send_header("Content-Length", str(len(body)))
        asked.end_headers()
        asked.wfile.write(b"" if asked.command == "HEAD" else body)
        return True

    web.fault = repeats
    with pytest.raises(ReadError) as raised, DataLoader(data, batch_size=7, buffer=0) as loader:
        next(iter(loader))
    assert main(["inspect", url(web, "another.h5")]) == 1
    captured = capfd.readouterr()
    assert told(str(raised.value) + repr(raised.value) + captured.out + captured.err + caplog.text) == []


SECRET = "sesamethatnobodysees"
WITH_SECRETS = {
    "a fragment": f"https://host.invalid/one.h5#{SECRET}",
    "a fragment behind spaces": f"https://host.invalid/one.h5#my {SECRET}",
    "a query": f"https://host.invalid/one.h5?key={SECRET}",
    "a query behind a bracket and a quote": f"https://host.invalid/one.h5?key=)'{SECRET}",
    "both": f"s3://bucket/one*.h5?a={SECRET}#b={SECRET}",
    "a password": f"https://me:{SECRET}@host.invalid/one.h5",
    "a password with a slash": f"https://me:a/b{SECRET}@host.invalid/one.h5",
    "another scheme": f"ftp://me:{SECRET}@host.invalid/one.h5#{SECRET}",
    "no URL": f"https://[host.invalid/one.h5#{SECRET}",
    "a word before": f"unversioned+https://host.invalid/one.h5#{SECRET}",
}


@pytest.mark.parametrize("kind", WITH_SECRETS)
def test_a_url_that_is_refused_is_not_repeated_with_its_secret(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    given = WITH_SECRETS[kind]
    for command in (
        ["inspect", given, "--json"],
        ["plan", given, "x"],
        ["digest", given, "x", "--batch-size", "4"],
        ["probe", given],
        ["compress", given, str(tmp_path / "out.h5"), "--lossless"],
        ["verify", given],
        ["verify", "in.h5", given],
        ["stage", given, "--to", str(tmp_path)],
        ["bench", given, "x"],
    ):
        assert main(command) == 1
    said = []
    for use in (H5Dataset, inspect, read):
        with pytest.raises((ReadError, LayoutError)) as raised:
            use([given], "x")
        said += [str(raised.value), repr(raised.value)]
    captured = capfd.readouterr()
    assert SECRET not in captured.out + captured.err + caplog.text + "".join(said)
    assert "host.invalid" in "".join(said) or kind == "both"
