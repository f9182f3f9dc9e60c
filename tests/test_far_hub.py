"""Files of datasets on the Hugging Face Hub, which a server on this machine plays, and another that has the bytes."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far_kit import Asked
from hub_kit import RESOLVE, Hub, forget, hub_served
from stage_kit import written

from solar import DataLoader, H5Dataset, LayoutError, ReadError
from solar.cli import main

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
from solar.io.remote import hub as asking
from solar.io.remote import location

TOKEN = "hf_tokenthatnobodysees"
SCANS = "hf://datasets/me/scans"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with hub_served(tmp_path) as one:
        monkeypatch.setenv("HF_ENDPOINT", one.web.url("") + "/")
        yield one


def epoch(data: H5Dataset, **options: Any) -> list[bytes]:
    with DataLoader(data, 7, shuffle=True, **options) as loader:
        return [batch["x"].numpy().tobytes() for batch in loader]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("buffer", [0, "400KiB"])
def test_batches_are_those_of_the_file_here(small: bool, buffer: Any, hub: Hub) -> None:
    import torch

    written(hub.folder(hub.first) / "one.h5", "gzip")
    hub.small = ("one.h5",) if small else ()
    torch.manual_seed(3)
    here = epoch(H5Dataset(hub.folder(hub.first) / "one.h5", {"x": "x"}), buffer=buffer)
    torch.manual_seed(3)
    assert epoch(H5Dataset(f"{SCANS}/one.h5", {"x": "x"}), buffer=buffer) == here
    heads = [path for method, path, _ in hub.asked if method == "HEAD"]
    assert heads == [f"{RESOLVE}{hub.first}/one.h5"]  # once for all ranges, which come from where it leads
    assert (len(hub.blobs.data()) > 5) is not small


def test_a_revision_is_the_same_bytes_from_then_on(hub: Hub) -> None:
    old, new = written(hub.folder(hub.first) / "one.h5"), written(hub.folder(hub.second) / "one.h5", seed=1)
    data = H5Dataset(f"{SCANS}/one.h5", {"x": "x"})
    assert data.layouts["x"].paths == (f"{SCANS}@{hub.first}/one.h5",)
    hub.branches["main"] = hub.second
    assert np.array_equal(data[3]["x"], old[3])
    assert np.array_equal(pickle.loads(pickle.dumps(data))[5]["x"], old[5])
    again = H5Dataset(f"{SCANS}/one.h5", {"x": "x"})  # of the same program
    assert np.array_equal(again[3]["x"], old[3])
    for revision in (hub.second, "refs/pr/1", "refs%2Fpr%2F1"):
        assert np.array_equal(H5Dataset(f"{SCANS}@{revision}/one.h5", {"x": "x"})[3]["x"], new[3])
    forget()
    assert np.array_equal(H5Dataset(f"{SCANS}/one.h5", {"x": "x"})[3]["x"], new[3])


def test_folders_and_patterns(hub: Hub) -> None:
    (hub.folder(hub.first) / "runs" / "more").mkdir(parents=True)
    names = ["runs/run10.h5", "runs/run9.h5", "runs/50% of it.h5", "runs/more/run11.h5", "two.h5"]
    values = {name: written(hub.folder(hub.first) / name, samples=6, seed=seed) for seed, name in enumerate(names)}
    (hub.folder(hub.first) / "runs" / "notes.txt").write_text("x")
    for url, found in {
        f"{SCANS}/runs/": ["runs/50% of it.h5", "runs/run10.h5", "runs/run9.h5"],
        f"{SCANS}/": ["two.h5"],
        f"{SCANS}/runs/run*.h5": ["runs/run10.h5", "runs/run9.h5"],
        f"{SCANS}/*/run1*.h5": ["runs/more/run11.h5", "runs/run10.h5"],
    }.items():
        data = H5Dataset(url, {"x": "x"})
        expected = np.concatenate([values[name] for name in found])
        assert np.array_equal(data.read_batch(range(len(data)))["x"], expected), url
    assert {path.split("/")[6] for _, path, _ in hub.asked if "/tree/" in path} == {hub.first}
    with pytest.raises(LayoutError, match="no object matches"):
        H5Dataset(f"{SCANS}/walk*.h5", {"x": "x"})


def test_the_second_epoch_of_a_stage_asks_nobody(hub: Hub, tmp_path: Path) -> None:
    values = written(hub.folder(hub.first) / "one.h5")
    (tmp_path / "stage").mkdir()
    for _ in range(2):
        data = H5Dataset(f"{SCANS}/one.h5", {"x": "x"}, stage=tmp_path / "stage")
        assert sum(map(len, epoch(data, buffer=0))) == values.nbytes
        first, hub.blobs.sent[:] = len(hub.blobs.data()), []
        forget()
    assert first < 5  # the file's metadata, of which a stage keeps nothing


def test_a_signed_place_is_asked_for_again_when_it_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    values = written(hub.folder(hub.first) / "one.h5")
    data = H5Dataset(f"{SCANS}/one.h5", {"x": "x"})
    assert np.array_equal(data[0]["x"], values[0])
    hub.signature += 1
    assert np.array_equal(data[200]["x"], values[200])
    heads = [one for one in hub.asked if one[0] == "HEAD"]
    assert len(heads) == 2
    monkeypatch.setattr(asking, "FRESH", -1.0)  # what is asked from now on is old at once
    forget()
    assert np.array_equal(data.read_batch([100, 250])["x"], values[[100, 250]])
    hub.blobs.fault = lambda asked, _: bool(asked.status(403)) or True
    with pytest.raises(ReadError, match="the server refuses"):
        data[60]


@pytest.mark.parametrize("kept", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_token_is_sent_to_the_hub_alone(
    kept: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = TOKEN
    place = {"HF_TOKEN_PATH": "my", "HF_HOME": "home/token", "XDG_CACHE_HOME": "cache/huggingface/token"}.get(kept)
    if place is None:
        monkeypatch.setenv(kept, TOKEN)
    else:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"{TOKEN}\n")
        monkeypatch.setenv(kept, str(tmp_path / place.removesuffix("huggingface/token").removesuffix("/token")))
    written(hub.folder(hub.first) / "one.h5")
    for small in ((), ("one.h5",)):
        hub.small = small
        forget()
        assert len(epoch(H5Dataset(f"{SCANS}/*.h5", {"x": "x"}), buffer=0)) == 43
    assert {authorization for _, _, authorization in hub.asked} == {f"Bearer {TOKEN}"}
    assert any(method == "GET" and RESOLVE in path for method, path, _ in hub.asked)
    assert set(hub.blobs_authorized) == {""}


def test_nor_is_it_sent_along_if_the_hub_redirects_only_later(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    values = written(hub.folder(hub.first) / "one.h5")
    hub.small = ("one.h5",)
    place = f"{hub.blobs.url('')}{hub.first}/one.h5?Signature=sig1nobodysees"

    def later(asked: Asked, path: str) -> bool:
        return asked.command == "GET" and RESOLVE in path and (bool(asked.status(302, Location=place)) or True)

    hub.instead = later
    assert np.array_equal(H5Dataset(f"{SCANS}/one.h5", {"x": "x"})[3]["x"], values[3])
    assert len(hub.blobs_authorized) > 1 and set(hub.blobs_authorized) == {""}


def test_neither_token_nor_signature_is_told(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "kept").mkdir()
    written(hub.folder(hub.first) / "one.h5", "gzip")
    data = H5Dataset(f"{SCANS}/one.h5", {"x": "x"}, stage=tmp_path / "kept")
    loader = DataLoader(data, 7, shuffle=True, buffer="400KiB")
    assert len(list(loader)) == 43
    said = json.dumps(loader.state_dict()) + loader.report() + repr(data) + repr(vars(data)) + repr(loader.stats())
    said += pickle.dumps(data).decode("latin-1")
    for command in (
        ["inspect", f"{SCANS}/one.h5", "--json"],
        ["digest", f"{SCANS}/one.h5", "x", "--batch-size", "7", "--json"],
        ["compress", f"{SCANS}/one.h5", str(tmp_path / "kept" / "out.h5"), "--lossless"],
    ):
        assert main(command) == 0

    def repeats(asked: Asked, _: int) -> bool:
        body = f"{asked.headers} {TOKEN} {asked.path}".encode()
        asked.send_response(403)
        asked.send_header("Content-Length", str(len(body)))
        asked.end_headers()
        asked.wfile.write(b"" if asked.command == "HEAD" else body)
        return True

    hub.blobs.fault = repeats
    fresh = H5Dataset(hub.folder(hub.first) / "one.h5", {"x": "x"})  # so that what follows is about the server
    assert len(fresh) == 300
    forget()
    with pytest.raises(ReadError) as refused:
        H5Dataset(f"{SCANS}@{hub.first}/other.h5", {"x": "x"})
    hub.web.fault = repeats
    forget()
    with pytest.raises(ReadError) as raised:
        H5Dataset(f"{SCANS}/one.h5", {"x": "x"})
    captured = capfd.readouterr()
    said += captured.out + captured.err + caplog.text + repr(refused.value) + repr(raised.value) + str(raised.value)
    said += "".join(path.read_bytes().decode("latin-1") for path in (tmp_path / "kept").rglob("*") if path.is_file())
    said += "".join(path.read_bytes().decode("latin-1") for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert "nobodysees" not in said
    assert f"{SCANS}@{hub.first}/one.h5" in said


def test_what_the_hub_refuses_is_said_with_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    written(hub.folder(hub.first) / "one.h5")
    for url, said in {
        "hf://datasets/me/walks/one.h5": "there is no such dataset on the hub, or it is private",
        f"{SCANS}@v9/one.h5": "this dataset has no such revision",
        f"{SCANS}/two.h5": "there is no such file in this revision",
        "hf://me/model/one.h5": "it names no file of a dataset of the hub: write hf://datasets/OWNER/NAME/PATH",
        "hf://datasets/me/one.h5": "it names no file of a dataset of the hub",
        f"{SCANS}/../../one.h5": "it names no file of a dataset of the hub",
        f"{SCANS}@%2e%2e/one.h5": "it names no file of a dataset of the hub",
    }.items():
        with pytest.raises(ReadError, match=said):
            H5Dataset(url, {"x": "x"})
    hub.token = TOKEN
    with pytest.raises(ReadError, match="needs a token \\(set HF_TOKEN") as raised:
        H5Dataset(f"{SCANS}@main2/one.h5", {"x": "x"})
    assert raised.value.errno == 13
    monkeypatch.setenv("HF_TOKEN", "other")
    with pytest.raises(ReadError, match="not for the token"):
        H5Dataset(f"{SCANS}@main2/one.h5", {"x": "x"})
    monkeypatch.setenv("HF_TOKEN", "hf_a\r\nX: y")
    with pytest.raises(ReadError, match="letters that no token has"):
        H5Dataset(f"{SCANS}@main2/one.h5", {"x": "x"})
    monkeypatch.delenv("HF_TOKEN")
    for wrong in ("huggingface.co", "ftp://host", "https://me:secret@host", "http://[::1", "http://host?a=b"):
        monkeypatch.setenv("HF_ENDPOINT", wrong)
        with pytest.raises(ReadError, match="HF_ENDPOINT is not the URL of a server"):
            H5Dataset(f"{SCANS}@main2/one.h5", {"x": "x"})


def body(asked: Asked, text: bytes, status: int = 200, **headers: str) -> bool:
    asked.send_response(status)
    for name, value in {"Content-Length": str(len(text)), **headers}.items():
        asked.send_header(name, value)
    asked.end_headers()
    asked.wfile.write(text)
    return True


ELSEWHERE = "http://localhost:1/elsewhere"
ANSWERS: dict[str, Any] = {
    "no JSON": (lambda asked, path: body(asked, b"<html>"), "other than JSON"),
    "deep JSON": (lambda asked, path: body(asked, b"[" * 99999), "other than JSON"),
    "no commit": (lambda asked, path: body(asked, b'{"sha": 7}'), "does not say which commit"),
    "a list": (lambda asked, path: body(asked, b"[]"), "does not say which commit"),
    "long": (lambda asked, path: body(asked, b" " * (16 << 20) + b"{}"), "more than 16 MiB"),
    "elsewhere": (lambda asked, path: bool(asked.status(302, Location=ELSEWHERE)) or True, "to another server"),
    "round and round": (lambda asked, path: bool(asked.status(302, Location=asked.path)) or True, "again and again"),
    "no URL": (lambda asked, path: bool(asked.status(302, Location="http://[")) or True, "that is no URL"),
    "teapot": (lambda asked, path: bool(asked.status(418)) or True, "answers with status 418"),
}


@pytest.mark.parametrize("name", ["scan.zarr", "scan.json", "*.zarr"])
def test_zarr_stores_of_the_hub_are_refused_with_words(name: str, hub: Hub) -> None:
    with pytest.raises(LayoutError, match=r"Hub only zip files are read: .* copy the store to a local disk"):
        H5Dataset(f"{SCANS}/{name}", {"x": "x"})
    assert not hub.asked


def test_zip_files_with_zarr_stores_are_read(hub: Hub) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")
    values = np.random.default_rng(1).integers(0, 9, (40, 8)).astype("f4")
    with zarr.storage.ZipStore(hub.folder(hub.first) / "scan.zarr.zip", mode="w") as store:
        zarr.open_group(store, mode="w").create_array("x", data=values, chunks=(4, 8))
    data = H5Dataset(f"{SCANS}/scan.zarr.zip", {"x": "x"})
    assert np.array_equal(data.read_batch(range(40))["x"], values)


@pytest.mark.parametrize("kind", ANSWERS)
def test_answers_of_a_strange_hub_are_refused(kind: str, hub: Hub) -> None:
    hub.instead, said = ANSWERS[kind]
    with pytest.raises(ReadError, match=said):
        H5Dataset(f"{SCANS}/one.h5", {"x": "x"})


FILES: dict[str, Any] = {
    "no size": ({"Location": ELSEWHERE, "X-Linked-ETag": '"a"'}, 302, "does not say how large"),
    "a size that is none": ({"Location": ELSEWHERE, "X-Linked-ETag": '"a"', "X-Linked-Size": "-7"}, 302, "how large"),
    "no mark": ({"X-Linked-Size": "9"}, 200, "or of which bytes"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_a_strange_hub_are_refused(kind: str, hub: Hub) -> None:
    headers, status, said = FILES[kind]
    hub.instead = lambda asked, path: path.startswith(RESOLVE) and body(asked, b"", status, **headers)
    with pytest.raises(ReadError, match=said):
        H5Dataset(f"{SCANS}/one.h5", {"x": "x"})


def test_a_list_without_an_end_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LIST_PAGES", 20)
    link = {"Link": f'<{hub.web.url("")}api/again>; rel="next"'}
    hub.instead = lambda asked, path: ("/tree/" in path or "again" in path) and body(asked, b"[]", **link)
    with pytest.raises(LayoutError, match="lists over 20 pages of files without an end"):
        H5Dataset(f"{SCANS}/*.h5", {"x": "x"})
    link["Link"] = f"<{ELSEWHERE}>; rel=next"
    with pytest.raises(ReadError, match="continues its list of files on another server"):
        H5Dataset(f"{SCANS}/*.h5", {"x": "x"})


def test_a_busy_hub_is_asked_again_for_half_a_minute(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    values, busy = written(hub.folder(hub.first) / "one.h5"), [429, 503]
    monkeypatch.setattr(asking, "PAUSE", 0.01)
    hub.instead = lambda asked, path: bool(busy) and (bool(asked.status(busy.pop())) or True)
    assert np.array_equal(H5Dataset(f"{SCANS}/one.h5", {"x": "x"})[3]["x"], values[3])
    monkeypatch.setattr(asking, "REPEATED_FOR", 0.1)
    hub.instead = lambda asked, path: bool(asked.status(429, Retry_After="600")) or True
    with pytest.raises(ReadError, match=r"does not answer \(status 429\): .* a token \(HF_TOKEN\) allows more"):
        H5Dataset(f"{SCANS}@other/one.h5", {"x": "x"})
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ReadError, match="does not answer"):
        H5Dataset(f"{SCANS}@other/one.h5", {"x": "x"})


def test_a_hub_by_https_leads_to_no_server_without_encryption(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    written(hub.folder(hub.first) / "one.h5")
    answer = asking._asked("HEAD", f"{hub.web.url('')}{RESOLVE.lstrip('/')}{hub.first}/one.h5", "one.h5")
    monkeypatch.setattr(asking, "_asked", lambda *_: answer)
    monkeypatch.setenv("HF_ENDPOINT", "https://example.invalid")
    with pytest.raises(ReadError, match="without encryption"):
        H5Dataset(f"{SCANS}@{hub.first}/one.h5", {"x": "x"})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert asking.authorization("https://example.invalid/a") == f"Bearer {TOKEN}"
    for other in ("http://example.invalid/a", "https://example.invalid:444/a", "https://cdn.example.invalid/a"):
        assert asking.authorization(other) is None


def test_a_file_beside_it_is_of_the_same_commit() -> None:
    url = f"{SCANS}@{'1f' * 20}/runs/all.h5"
    assert location.sibling(url, "parts/1.h5") == f"{SCANS}@{'1f' * 20}/runs/parts/1.h5"
    assert location.public(f"{SCANS}@main/a.h5?x=secret") == f"{SCANS}@main/a.h5?..."
