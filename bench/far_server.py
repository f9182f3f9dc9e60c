"""A server as far away as it is told: every answer begins that much later, and all share one link.

python -m bench.far_server FOLDER MILLISECONDS; it prints its port. It counts requests and bytes: GET /counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from email.utils import formatdate
from pathlib import Path

LINK = 1e9  # bytes a second, of all answers together


class Server:
    """Ranges of the files in a folder, by HTTP/1.1."""

    def __init__(self, folder: Path, delay: float) -> None:
        self.folder, self.delay = folder, delay
        self.requests = self.nbytes = 0
        self.free_at = 0.0  # when the link is
        self.open: dict[str, int] = {}

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self.answer(head.decode("latin-1").split("\r\n"), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, lines: list[str], writer: asyncio.StreamWriter) -> None:
        method, name, _ = lines[0].split(" ")
        if name == "/counts":
            text = json.dumps({"requests": self.requests, "bytes": self.nbytes}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
            return
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
        path = self.folder / name.lstrip("/")
        descriptor = self.open.setdefault(name, -1)
        if descriptor < 0:
            descriptor = self.open[name] = os.open(path, os.O_RDONLY)
        facts = os.fstat(descriptor)
        first, last = 0, facts.st_size - 1
        if "range" in headers:
            begin, _, end = headers["range"].removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
        nbytes = 0 if method == "HEAD" else last + 1 - first
        self.requests += 1
        self.nbytes += nbytes
        loop = asyncio.get_running_loop()
        self.free_at = max(self.free_at, loop.time()) + nbytes / LINK
        await asyncio.sleep(max(self.delay, self.free_at - loop.time()))
        status = "206 Partial Content" if "range" in headers else "200 OK"
        text = (
            f'HTTP/1.1 {status}\r\nContent-Length: {last + 1 - first}\r\nETag: "{facts.st_mtime_ns:x}"\r\n'
            f"Last-Modified: {formatdate(facts.st_mtime, usegmt=True)}\r\nAccept-Ranges: bytes\r\n"
        )
        if "range" in headers:
            text += f"Content-Range: bytes {first}-{last}/{facts.st_size}\r\n"
        writer.write(text.encode() + b"\r\n")
        if nbytes:
            writer.write(os.pread(descriptor, nbytes, first))
        await writer.drain()


async def main() -> None:
    server = Server(Path(sys.argv[1]), float(sys.argv[2]) / 1000)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=1 << 16, backlog=512)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
