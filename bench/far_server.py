"""A server as far away as it is told: every answer begins that much later, and all share one link.

python -m bench.far_server FOLDER MILLISECONDS; it prints its port. It counts requests and bytes: GET /counts. Of S3 it
knows what readers of public data ask for: objects, ranges of them, and lists (a folder there is a bucket).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LINK = 1e9  # bytes a second, of all answers together


class Server:
    """Ranges of the files in a folder, by HTTP/1.1."""

    def __init__(self, folder: Path, delay: float) -> None:
        self.folder, self.delay = folder, delay
        self.requests = self.nbytes = 0
        self.free_at = 0.0  # when the link is

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self.answer(head.decode("latin-1").split("\r\n"), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, lines: list[str], writer: asyncio.StreamWriter) -> None:
        method, target, _ = lines[0].split(" ")
        asked = urlsplit(target)
        if asked.path == "/counts":
            counts = {"requests": self.requests, "bytes": self.nbytes}
            return self.send(writer, "200 OK", "", json.dumps(counts).encode())
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
        query, path = parse_qs(asked.query), self.folder / unquote(asked.path).lstrip("/")
        if "list-type" in query:
            found = listed(path, query.get("prefix", [""])[0], "delimiter" in query)
            await self.come(len(found))
            return self.send(writer, "200 OK", "", found)
        try:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                first, last = ends(headers.get("range"), facts.st_size)
                body = b"" if method == "HEAD" else os.pread(file.fileno(), last + 1 - first, first)
        except OSError:
            await self.come(0)
            return self.send(writer, "404 Not Found", "", b"<Error><Code>NoSuchKey</Code></Error>")
        await self.come(len(body))
        text = (
            f'ETag: "{facts.st_mtime_ns:x}"\r\nAccept-Ranges: bytes\r\n'
            f"Last-Modified: {formatdate(facts.st_mtime, usegmt=True)}\r\n"
        )
        part = "range" in headers
        if part:
            text += f"Content-Range: bytes {first}-{last}/{facts.st_size}\r\n"
        self.send(writer, "206 Partial Content" if part else "200 OK", text, body, last + 1 - first)
        await writer.drain()

    async def come(self, nbytes: int) -> None:
        """Counts an answer, and waits until it would have come."""
        self.requests += 1
        self.nbytes += nbytes
        loop = asyncio.get_running_loop()
        self.free_at = max(self.free_at, loop.time()) + nbytes / LINK
        await asyncio.sleep(max(self.delay, self.free_at - loop.time()))

    def send(
        self, writer: asyncio.StreamWriter, status: str, text: str, body: bytes, length: int | None = None
    ) -> None:
        length = len(body) if length is None else length
        writer.write(f"HTTP/1.1 {status}\r\n{text}Content-Length: {length}\r\n\r\n".encode())
        writer.write(body)


def ends(asked: str | None, nbytes: int) -> tuple[int, int]:
    """The first and the last byte of what is asked for."""
    begin, _, end = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
    if not begin:
        return max(0, nbytes - int(end)), nbytes - 1
    return int(begin), min(int(end or nbytes - 1), nbytes - 1)


def listed(bucket: Path, prefix: str, grouped: bool) -> bytes:
    """Objects of a bucket as S3 lists them; with `grouped` folders below the prefix are named alone."""
    at = bucket / prefix.rpartition("/")[0]
    parts = []
    for path in sorted(at.iterdir() if grouped else at.rglob("*")) if at.is_dir() else ():
        key = path.relative_to(bucket).as_posix()
        if not key.startswith(prefix):
            continue
        if path.is_dir():
            parts += [f"<CommonPrefixes><Prefix>{escape(key)}/</Prefix></CommonPrefixes>"] if grouped else []
            continue
        facts = path.stat()
        when = datetime.fromtimestamp(facts.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        parts.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>"
            f"<ETag>&quot;{facts.st_mtime_ns:x}&quot;</ETag><Size>{facts.st_size}</Size></Contents>"
        )
    about = f"<Name>{escape(bucket.name)}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
    return f"<ListBucketResult>{about}{''.join(parts)}</ListBucketResult>".encode()


async def main() -> None:
    server = Server(Path(sys.argv[1]), float(sys.argv[2]) / 1000)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=1 << 16, backlog=512)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
