"""What a URL names: a store of obstore, and the path in it.

Credentials come from where the library looks for them (environment, profiles, the machine's role), never from a URL: a
URL is printed, kept and compared.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from solar.errors import LayoutError, ReadError
from solar.values import UNVERSIONED, is_unversioned, is_url

SCHEMES = ("http", "https", "s3", "gs", "az", "abfs", "abfss", "hf", "file")
TIMEOUT, CONNECT_TIMEOUT = "30s", "10s"  # of one request
RETRIES = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
HUB = "hf://"
# A revision is a branch, a tag or a commit; only those of the hub itself, as refs/pr/1, have slashes.
DATASET = re.compile(
    r"hf://datasets/([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(?:@(refs/(?:convert|pr)/[^/@]+|[^/@]+))?/(.*)", re.DOTALL
)
LISTED_AT_ONCE = 1000  # objects, as many as a server tells at once
STORES = 16  # each keeps its connections open
HUB_STORES = 128  # of files of the Hugging Face Hub, each of which has a store of its own
LONGEST_QUOTED = 300  # characters of what the library says
SECRET_LENGTH = 8  # characters from which on a value is no word of a message


class FarPlace(NamedTuple):
    """One object: the root of its store, and its path in it."""

    root: str
    path: str


def place_of(url: str) -> FarPlace:
    """Its place; ReadError for a URL that cannot be read, in words that repeat no secret of it.

    >>> place_of("https://example.org/runs/scan%201.h5")
    FarPlace(root='https://example.org', path='runs/scan 1.h5')
    """
    try:
        parts = urlsplit(url.removeprefix(UNVERSIONED))
        secret = parts.username is not None or parts.password is not None
        _ = parts.port if parts.scheme.startswith("http") else None  # a ValueError, unless it is a number
    except ValueError:
        raise ReadError(errno.EINVAL, "it is no URL", public(url)) from None
    if secret and parts.scheme not in ("abfs", "abfss"):  # whose containers stand before an @
        raise ReadError(
            errno.EINVAL, "it holds a user's name or password, which would be printed and kept: take them out; "
            "they are looked for in the environment (docs/remote.md)", public(url)
        )  # fmt: skip
    if parts.scheme not in SCHEMES or (is_unversioned(url) and not parts.scheme.startswith("http")):
        known = ", ".join(f"{one}://" for one in SCHEMES)
        scheme = UNVERSIONED * is_unversioned(url) + parts.scheme
        raise ReadError(errno.EINVAL, f"{scheme}:// is not read; known are {known}", public(url))
    if not parts.netloc and parts.scheme != "file":
        raise ReadError(errno.EINVAL, "it names no host or bucket", public(url))
    if "?" in url or "#" in url:
        raise ReadError(
            errno.EINVAL, "it has a query or a fragment (what follows the ? or the #), as signed URLs have: they are "
            "not read; name the object by s3://, gs:// or az://; in a name write %3F and %23", public(url)
        )  # fmt: skip
    if parts.scheme != "hf":
        return FarPlace(f"{parts.scheme}://{parts.netloc}", unquote(parts.path).lstrip("/"))
    if (found := split_hub(url)) is None:
        what = "it names no file of a dataset of the hub: write hf://datasets/OWNER/NAME/PATH, or NAME@REVISION in it"
        raise ReadError(errno.EINVAL, what, public(url))
    return FarPlace(found[0], unquote(found[1]))


def split_hub(url: str) -> tuple[str, str] | None:
    """Returns the dataset and revision of a URL, and the path in it as it is written; None if it has none.

    >>> split_hub("hf://datasets/me/scans@v1/runs/1.h5"), split_hub("hf://datasets/me/scans/1.h5")
    (('hf://datasets/me/scans@v1', 'runs/1.h5'), ('hf://datasets/me/scans@main', '1.h5'))
    """
    found = DATASET.fullmatch(url)
    if found is None:
        return None
    name, revision, path = found[1], found[2] or "main", found[3]
    parts = [*name.split("/"), *unquote(revision).split("/"), *unquote(path).split("/")]
    return None if {".", ".."} & set(parts) else (f"hf://datasets/{name}@{revision}", path)


def at_commit(url: str) -> str:
    """Returns the URL of a file of the Hugging Face Hub with its commit, so that it means the same bytes for ever.

    Any other URL is returned as it is.
    """
    found = split_hub(url)
    if found is None:
        return url
    from solar.io.remote import hub  # imports http and ssl, which few need

    return f"{hub.at_commit(found[0])}/{found[1]}"


def sibling(url: str, name: str) -> str | None:
    """Returns what a far file means by the name of another; None for one that leads anywhere but beside it or below.

    >>> sibling("s3://bucket/run/all.h5", "parts/1.h5"), sibling("s3://bucket/run/all.h5", "../1.h5")
    ('s3://bucket/run/parts/1.h5', None)
    """
    if not name or is_url(name) or name.startswith("/") or ".." in name or any(one in name for one in "?#%"):
        return None
    return f"{url.rpartition('/')[0]}/{posixpath.normpath(name)}"


@lru_cache(maxsize=STORES)
def store_of(root: str, again: bool = False) -> Any:
    """Returns the library's store, one for each of the latest roots, so that connections are reused.

    With `again` it makes each request only once: the caller repeats it, and counts the time since the first request.
    """
    import obstore.store

    options: dict[str, Any] = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    if root.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):
        options["allow_http"] = True
    if root == "file://":
        return obstore.store.LocalStore("/")
    make: Any = obstore.store.from_url  # its type knows no options that all stores have
    return make(root, client_options=options, retry_config={**RETRIES, "max_retries": 0} if again else RETRIES)


class FarSource(NamedTuple):
    """Who has the bytes of an object: a store of the library, the path there, and the URL if that is not the user's."""

    store: Any
    path: str
    signed: str | None = None


def source_of(url: str, again: bool = False, refused: str | None = None) -> FarSource:
    """Returns who has the bytes. `refused` is a `signed` URL that is no longer valid."""
    root, path = place_of(url)
    if not root.startswith(HUB):
        return FarSource(store_of(root, again), path)
    from solar.io.remote import hub  # imports http and ssl, which few need

    signed = hub.file_of(root, path, refused).url
    return FarSource(_store_at(signed, again, hub.authorization(signed)), "", signed)


@lru_cache(maxsize=HUB_STORES)
def _store_at(url: str, again: bool, authorization: str | None) -> Any:
    """Returns a store of the one object at this URL."""
    import obstore.store

    options: dict[str, Any] = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    options |= {"allow_http": True} if url.startswith("http:") else {}
    options |= {"default_headers": {"Authorization": authorization}} if authorization else {}
    make: Any = obstore.store.HTTPStore
    return make(url, client_options=options, retry_config={**RETRIES, "max_retries": 0} if again else RETRIES)


def can_list(url: str) -> bool:
    """Returns whether the store of a URL tells what lies there: a web server does not."""
    return not url.removeprefix(UNVERSIONED).startswith("http")


def listed(url: str, suffixes: Iterable[str]) -> list[str]:
    """Returns the URLs that a pattern or a folder (ending in a slash) means, sorted by their bytes."""
    root, path = place_of(url)
    if not can_list(url):
        raise LayoutError(f"{public(url)}: a web server does not tell what lies there: give a list of URLs")
    whole = path.endswith("/") or not path
    fixed = path if whole else re.split(r"[*?\[]", path)[0].rpartition("/")[0]
    ends = tuple(suffixes)
    found = []
    for name in _names(root, fixed.rstrip("/"), below=not whole):
        inside = name[len(path) :] if whole else ""
        if (name.lower().endswith(ends) and "/" not in inside) if whole else fnmatch.fnmatchcase(name, path):
            found.append(f"{root}/{re.sub('[%?#]', lambda one: quote(one[0]), name)}")
    if not found:
        raise LayoutError(f"{url}: " + (f"no object ends in {' '.join(ends)}" if whole else "no object matches"))
    return sorted(found, key=lambda one: one.encode("utf-8", "surrogateescape"))


def _names(root: str, folder: str, *, below: bool) -> Iterator[str]:
    """Yields the paths of a store's objects in a folder, and at least with `below` of those in its folders."""
    if root.startswith(HUB):
        from solar.io.remote import hub  # imports http and ssl, which few need

        return hub.names(root, folder, below=below)
    import obstore

    return (one["path"] for page in obstore.list(store_of(root), folder or None) for one in page)


def objects_below(url: str) -> Iterator[tuple[str, Any]]:
    """Yields what a folder of a store has, at any depth: each name behind that of the folder, and facts about it."""
    import obstore

    root, path = place_of(url)
    for page in obstore.list(store_of(root), f"{path}/", chunk_size=LISTED_AT_ONCE):
        yield from ((one["path"][len(path) + 1 :], one) for one in page)


def folders_in(url: str) -> list[str]:
    """Returns the names of the folders in one of a store, sorted."""
    import obstore

    root, path = place_of(url)
    found = obstore.list_with_delimiter(store_of(root), f"{path}/" if path else None)["common_prefixes"]
    return sorted(one.rstrip("/").rpartition("/")[2] for one in found)


def public(url: str) -> str:
    """Returns what may be printed of a URL that is refused: no user and password, no query and no fragment.

    >>> public("https://me:a/secret@example.org/a.h5?token='1"), public("https://example.org/a.h5#my token")
    ('https://example.org/a.h5?...', 'https://example.org/a.h5#...')
    """
    scheme, _, rest = url.partition("://")
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    mark = f"{rest[len(place)]}..." if len(place) < len(rest) else ""
    if not (scheme == "hf" and place.startswith("datasets/")):  # whose revision is after an @
        place = place.rpartition("@")[2]
    return printable_url(f"{scheme}://{place}") + mark


def printable_url(text: str) -> str:
    """Returns what may be printed of a URL, or of the library's words: without users, passwords, queries and fragments.

    >>> printable_url("https://me:secret@example.org/a.h5?token=1"), printable_url("https://example.org/a.h5#token=1")
    ('https://example.org/a.h5?...', 'https://example.org/a.h5#...')
    """
    # What a server says beside its status may repeat what it was sent, key and token; its code does not.
    code = re.search(r"<Code>(\w{1,60})</Code>", text)
    text = re.sub(r"(?s)(status code: \d+[^:\n]*):.*", r"\1" + (f" ({code[1]})" if code else ""), text)
    for name, value in os.environ.items():
        if len(value) >= SECRET_LENGTH and re.match("(AWS|GOOGLE|AZURE|HF)_.*(KEY|TOKEN|SECRET|PASSWORD)", name):
            text = text.replace(value, "...")
    text = re.sub(r"(?<=://)[^/@\s]*@", "", text)
    text = re.sub(r"\?[^\s\"')]+", "?...", text)
    text = re.sub(r"(://[^\s\"'#]*#)[^\s\"']+", r"\1...", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = " ".join(lines[: next((at for at, one in enumerate(lines) if one.startswith("Debug source")), 3)])
    return line if len(line) <= LONGEST_QUOTED else line[:LONGEST_QUOTED] + "..."


def ready(paths: Iterable[str]) -> None:
    """Starts the threads that fetch, if one of the paths is a URL. Raises ReadError if that is impossible."""
    url = next(filter(is_url, paths), None)
    if url is not None:
        place_of(url)
        from solar.io.remote.fetch import start_fetching

        start_fetching(url)
