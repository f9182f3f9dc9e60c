"""A Hugging Face Hub of the tests: the answers of its API, and another server, to which it redirects for the bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from far_kit import Asked, Web, served

from solar.io.remote import hub, location

API, RESOLVE = "/api/datasets/me/scans/", "/datasets/me/scans/resolve/"


@dataclass
class Hub:
    """The dataset me/scans: a folder for each commit, and `main`, which is one of them."""

    web: Web
    blobs: Web
    branches: dict[str, str] = field(default_factory=dict)
    token: str = ""  # without it nothing is told
    signature: int = 1  # that the other server accepts
    page: int = 2  # files of a page of a list
    small: tuple[str, ...] = ()  # files that the hub sends itself
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path and authorization
    blobs_authorized: list[str] = field(default_factory=list)  # what the other server was sent of it
    instead: Callable[[Asked, str], bool] | None = None

    def __post_init__(self) -> None:
        # Commits of this hub alone: what a commit has is remembered for a while.
        self.first, self.second = f"{self.web.port:039x}1", f"{self.web.port:039x}2"
        self.branches |= {"main": self.first, "refs/pr/1": self.second}

    def folder(self, commit: str) -> Path:
        made = self.blobs.folder / commit
        made.mkdir(exist_ok=True)
        return made

    def answer(self, asked: Asked, _: int) -> bool:
        parts, authorization = urlsplit(asked.path), asked.headers.get("Authorization", "")
        self.asked.append((asked.command, parts.path, authorization))
        path = unquote(parts.path)
        if self.instead is not None and self.instead(asked, path):
            return True
        if self.token and authorization != f"Bearer {self.token}":
            asked.status(401, X_Error_Code="RepoNotFound")
        elif path.startswith(f"{API}revision/"):
            commit = self.branches.get(path.removeprefix(f"{API}revision/"))
            self.tell(asked, {"sha": commit}) if commit else asked.status(404, X_Error_Code="RevisionNotFound")
        elif path.startswith(f"{API}tree/"):
            self.list(asked, path.removeprefix(f"{API}tree/"), parse_qs(parts.query))
        elif path.startswith(RESOLVE):
            self.resolve(asked, path.removeprefix(RESOLVE))
        else:
            asked.status(404, X_Error_Code="RepoNotFound")
        return True

    def tell(self, asked: Asked, told: Any, **headers: str) -> None:
        body = json.dumps(told).encode()
        asked.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            asked.send_header(name, value)
        asked.end_headers()
        asked.wfile.write(body)

    def list(self, asked: Asked, name: str, query: dict[str, list[str]]) -> None:
        commit, _, inside = name.partition("/")
        root = self.blobs.folder / commit
        below = query["recursive"] == ["true"]
        found = sorted((root / inside).rglob("*") if below else (root / inside).iterdir())
        first = int(query.get("cursor", ["0"])[0])
        entries = [
            {"type": "file" if one.is_file() else "directory", "path": str(one.relative_to(root)), "size": 1}
            for one in found[first : first + self.page]
        ]
        more = {}
        if first + self.page < len(found):
            url = f"{self.web.url('')}{asked.path.partition('?')[0].lstrip('/')}"
            more["Link"] = f'<{url}?recursive={query["recursive"][0]}&cursor={first + self.page}>; rel="next"'
        self.tell(asked, entries, **more)

    def resolve(self, asked: Asked, name: str) -> None:
        commit, _, inside = name.partition("/")
        path = self.blobs.folder / self.branches.get(commit, commit) / inside
        if not path.is_file():
            return asked.status(404, X_Error_Code="EntryNotFound")
        mark = hashlib.sha256(path.read_bytes()).hexdigest()
        if inside in self.small:
            nbytes = path.stat().st_size
            if asked.command == "HEAD":
                return asked.head(200, nbytes, path, mark=mark)
            first, last = asked.range(nbytes)
            asked.head(206, last + 1 - first, path, f"bytes {first}-{last}/{nbytes}", mark)
            asked.wfile.write(asked.bytes_of(path, first, last + 1 - first))
            return None
        place = self.blobs.url("") + quote(str(path.relative_to(self.blobs.folder)))
        place += f"?Signature=sig{self.signature}nobodysees"
        size = str(path.stat().st_size)
        return asked.status(302, Location=place, X_Linked_Size=size, X_Linked_ETag=f'"{mark}"', ETag='"other"')

    def blob(self, asked: Asked, _: int) -> bool:
        self.blobs_authorized.append(asked.headers.get("Authorization", ""))
        path, _, query = asked.path.partition("?")
        if query != f"Signature=sig{self.signature}nobodysees" or asked.command != "GET":
            asked.status(403)  # what is signed for GET is not for HEAD
            return True
        asked.path = unquote(path)
        return False


@contextlib.contextmanager
def hub_served(folder: Path) -> Iterator[Hub]:
    """Serves a hub with commits in folders of `folder`/blobs."""
    for name in ("hub", "blobs"):
        (folder / name).mkdir()
    forget()
    with served(folder / "hub") as web, served(folder / "blobs") as blobs:
        made = Hub(web, blobs)
        web.fault, blobs.fault = made.answer, made.blob
        try:
            yield made
        finally:
            forget()


def forget() -> None:
    """Has the next dataset ask the hub again."""
    hub._files.clear()
    hub._commit_of.cache_clear()
    location._store_at.cache_clear()
