"""Files of datasets on the Hugging Face Hub: hf://datasets/OWNER/NAME[@REVISION]/PATH.

The hub answers three questions: which commit a revision is, which files a folder has, and where the bytes of a file
are. For large files that is another server, at a URL signed for an hour; ranges are requested there, without asking the
hub again, which allows few questions. The token goes to the hub alone, never to where it redirects.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from solar.errors import LayoutError, ReadError
from solar.io.system.waiting import within

COMMIT = re.compile(r"[0-9a-f]{40}")
ENDPOINT = "https://huggingface.co"
ONE_ANSWER, REPEATED_FOR = 15.0, 30.0  # seconds for one answer; from the first request to the last that repeats it
PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds before the first repetition, and before later ones at most
REDIRECTS = 5  # within the hub: a dataset may have another name now
ANSWER_NBYTES = 16 << 20  # of one answer at most; a page of a thousand files has some hundred thousand
LIST_PAGES = 10_000  # of a list of files
FRESH = 600.0  # seconds for which a signed URL is used: it is valid for longer
REMEMBERED = 4096  # files whose place and size is kept

Header = Any  # email.message.Message


class HubAnswer(NamedTuple):
    """What the hub has answered; `url` is where it redirects, if that is not the hub."""

    status: int
    headers: Header
    body: bytes
    url: str


class HubFile(NamedTuple):
    """A file of a commit: its size, what tells its bytes from others, where they are, and until when that holds."""

    nbytes: int
    mark: str
    url: str
    until: float


def at_commit(root: str) -> str:
    """Returns the root with the commit that its revision is now; for one process the first answer holds."""
    name, _, revision = root.partition("@")
    return f"{name}@{revision if COMMIT.fullmatch(revision) else _commit_of(endpoint(), name, revision)}"


@lru_cache(maxsize=REMEMBERED)
def _commit_of(hub: str, name: str, revision: str) -> str:
    of = f"{name}@{revision}"
    said = _json(_asked("GET", f"{hub}/api/{_name_in_url(name)}/revision/{quote(unquote(revision), safe='')}", of), of)
    commit = said.get("sha") if isinstance(said, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise ReadError(errno.EREMOTEIO, "the hub does not say which commit this revision is", of)
    return commit


def names(root: str, folder: str, *, below: bool) -> Iterator[str]:
    """Yields the paths of the files in a folder of a commit, and with `below` of those in its folders."""
    name, _, commit = root.partition("@")
    url = f"{endpoint()}/api/{_name_in_url(name)}/tree/{quote(unquote(commit), safe='')}"
    url += f"/{quote(folder)}" * bool(folder) + ("?recursive=true" if below else "?recursive=false")
    for _ in range(LIST_PAGES):
        answer = _asked("GET", url, f"{root}/{folder}")
        entries = _json(answer, root)
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise ReadError(errno.EREMOTEIO, "the hub answers with something other than a list of files", root)
        yield from (one["path"] for one in entries if one.get("type") == "file" and isinstance(one.get("path"), str))
        following = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', answer.headers.get("Link") or "")
        if following is None:
            return
        url = urljoin(url, following[1])
        if _origin(url) != _origin(endpoint()):
            raise ReadError(errno.EREMOTEIO, "the hub continues its list of files on another server", root)
    raise LayoutError(
        f"{root}/{folder}: the hub lists over {LIST_PAGES:,} pages of files without an end: name a folder"
    )


_files: dict[tuple[str, str], HubFile] = {}
_asking = tuple(threading.Lock() for _ in range(64))  # so that many threads ask once about a file


def file_of(root: str, path: str, refused: str | None = None) -> HubFile:
    """Returns what the hub says of a file. It is asked again after a while, or if its URL was `refused`."""
    key = (root, path)
    with _asking[hash(key) % len(_asking)]:
        known = _files.get(key)
        if known is None or known.url == refused or time.monotonic() > known.until:
            known = _look_up(root, path)
            while len(_files) >= REMEMBERED:
                _files.pop(next(iter(_files)), None)
            _files[key] = known
        return known


def identity(root: str, path: str) -> tuple[int, int, int, int]:
    """Returns what tells the file from another (io/remote/fetch.py): the hub's mark is a hash of its bytes."""
    found = file_of(root, path)
    number = int.from_bytes(hashlib.blake2b(found.mark.encode(), digest_size=8).digest(), "little") | 1
    return found.nbytes, 0, number, number >> 2


def _look_up(root: str, path: str) -> HubFile:
    name, _, commit = root.partition("@")
    of = f"{root}/{path}"
    url = f"{endpoint()}/{_name_in_url(name)}/resolve/{quote(unquote(commit), safe='')}/{quote(path)}"
    began = time.monotonic()
    answer = _asked("HEAD", url, of)
    # Of a file that is on another server the hub says in words of its own what that would say.
    words = ("X-Linked-Size", "X-Linked-ETag") if answer.status >= 300 else ("Content-Length", "ETag")
    nbytes, mark = (answer.headers.get(one) for one in words)
    if not mark or not nbytes or not re.fullmatch(r"\d{1,18}", nbytes):
        raise ReadError(errno.EREMOTEIO, "the hub does not say how large this file is, or of which bytes", of)
    if endpoint().startswith("https:") and not answer.url.startswith("https:"):
        raise ReadError(errno.EREMOTEIO, "the hub redirects to a server without encryption", of)
    return HubFile(int(nbytes), mark.removeprefix("W/").strip('"'), answer.url, began + FRESH)


def endpoint() -> str:
    """Returns the URL of the hub, which HF_ENDPOINT names for mirrors."""
    url = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or ENDPOINT
    with suppress(ValueError):  # of what is no URL
        parts = urlsplit(url)
        extra = parts.username or parts.password or parts.query or parts.fragment
        if parts.scheme in ("http", "https") and parts.hostname and not extra and parts.port != 0:
            return url
    raise ReadError(errno.EINVAL, "HF_ENDPOINT is not the URL of a server, such as https://huggingface.co")


def token() -> str | None:
    """Returns the user's token: HF_TOKEN, or what `hf auth login` has written; None without one."""
    own = os.environ.get("HF_TOKEN", "")
    if not own:
        home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
        try:
            own = Path(os.environ.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser().read_text(errors="replace")
        except OSError:
            return None
    own = own.strip()
    if own and not re.fullmatch(r"[\x21-\x7e]+", own):
        raise ReadError(errno.EINVAL, "the token of the Hugging Face Hub (HF_TOKEN) has letters that no token has")
    return own or None


def authorization(url: str) -> str | None:
    """Returns the header that has the token, for a request to the hub itself; None for any other server."""
    own = token() if _origin(url) == _origin(endpoint()) else None
    return own and f"Bearer {own}"


def _name_in_url(name: str) -> str:
    return name.removeprefix("hf://")


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


class _Staying(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: `_follow` decides, because the token must not go along."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _asked(method: str, url: str, of: str) -> HubAnswer:
    """Returns the hub's answer, repeating the request while it is busy. Raises ReadError about `of` for a refusal."""
    begin, pause = time.monotonic(), PAUSE
    while True:
        try:
            answer = within(ONE_ANSWER, lambda: _follow(method, url, of), f"asking the hub about {of}")
            status, why = answer.status, f"status {answer.status}"
            wait = answer.headers.get("Retry-After") or ""
            pause = max(pause, float(wait)) if re.fullmatch(r"\d{1,4}", wait) else pause
        except ReadError:
            raise
        except (OSError, http.client.HTTPException) as error:  # URLError and WaitTimeout are OSErrors
            # Texts of HTTPExceptions may repeat what came.
            status, why = (
                0,
                str(getattr(error, "reason", error) if isinstance(error, OSError) else type(error).__name__),
            )
        except ValueError:
            raise ReadError(errno.EREMOTEIO, "the hub redirects to something that is no URL", of) from None
        if 200 <= status < 400:
            return answer
        if status not in (0, 408, 429) and status < 500:
            raise ReadError(*_say_refusal(answer), of)
        if time.monotonic() - begin + pause > REPEATED_FOR:
            limit = ": it allows no more requests now; a token (HF_TOKEN) allows more" if status == 429 else ""
            raise ReadError(errno.EREMOTEIO, f"the Hugging Face Hub does not answer ({why}){limit}", of)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _follow(method: str, url: str, of: str) -> HubAnswer:
    """Returns the answer to one request, followed from name to name within the hub."""
    opener = urllib.request.build_opener(_Staying)
    for _ in range(REDIRECTS):
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "solar"})
        if (own := authorization(url)) is not None:
            request.add_unredirected_header("Authorization", own)
        try:
            reply = opener.open(request, timeout=ONE_ANSWER)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            status = int(reply.status)
            if status in (301, 302, 303, 307, 308) and (place := reply.headers.get("Location")):
                url = urljoin(url, place)
                if _origin(url) == _origin(endpoint()):
                    continue
                if method != "HEAD":
                    raise ReadError(errno.EREMOTEIO, "the hub redirects a question to another server", of)
                return HubAnswer(status, reply.headers, b"", url)
            body = reply.read(ANSWER_NBYTES + 1)
            if len(body) > ANSWER_NBYTES:
                raise ReadError(errno.EREMOTEIO, f"the hub answers with more than {ANSWER_NBYTES >> 20} MiB", of)
            return HubAnswer(status, reply.headers, body, url)
    raise ReadError(errno.EREMOTEIO, "the hub redirects again and again", of)


def _say_refusal(answer: HubAnswer) -> tuple[int, str]:
    """Returns an error code and words for a refusal. Nothing of the answer's text is repeated."""
    code = answer.headers.get("X-Error-Code") or ""
    has = "is not for the token (HF_TOKEN)" if token() else "needs a token (set HF_TOKEN, or `hf auth login`)"
    known = {
        "RepoNotFound": f"there is no such dataset on the hub, or it is private and {has}",
        "GatedRepo": f"this dataset is gated and {has}: ask for access on its page",
        "RevisionNotFound": "this dataset has no such revision",
        "EntryNotFound": "there is no such file in this revision of the dataset",
    }
    if answer.status in (401, 403):
        refused = f"the hub refuses: this dataset does not exist, or {has}"
        return errno.EACCES, known.get(code, refused) + " (docs/remote.md)"
    return errno.ENOENT if answer.status == 404 else errno.EREMOTEIO, known.get(
        code, "the hub has no such dataset, revision or file" if answer.status == 404
        else f"the hub answers with status {answer.status}"
    )  # fmt: skip


def _json(answer: HubAnswer, of: str) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ReadError(errno.EREMOTEIO, "the hub answers with something other than JSON", of) from None
