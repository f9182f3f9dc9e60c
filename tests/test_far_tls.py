"""Certificates and proxies are those of the environment, as for any other program."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from far_kit import Web, served
from ready_kit import EARLY, python
from stage_kit import written

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'solar[remote]'")
READS = "import sys; from solar import H5Dataset; print(float(H5Dataset(sys.argv[1], {'x': 'x'})[7]['x'].sum()))"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with served(tmp_path) as one:
        yield one


def asked(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that reads from there, with nothing else in its environment but what importing torch reads."""
    early = {name: value for name, value in os.environ.items() if name.startswith(EARLY)}
    words = [*python(), "-c", READS, url]
    return subprocess.run(words, env=early | environment, capture_output=True, text=True, timeout=120, check=False)


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority of our own, and a key and a certificate by it for this machine."""

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=an authority")
    run("req", *key, "-keyout", "key.pem", "-out", "asked.pem", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    run(
        *("x509", "-req", "-in", "asked.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "cert.pem", "-days", "2", "-extfile", "names"),
    )
    return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make certificates")
def test_an_authority_of_ones_own_is_named_by_the_environment(tmp_path: Path) -> None:
    values = written(tmp_path / "one.h5", samples=20)
    (tmp_path / "keys").mkdir()
    authority, certificate, key = certificates(tmp_path / "keys")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with served(tmp_path, context) as web:
        url = web.url("one.h5").replace("http://", "https://")
        done = asked(url, SSL_CERT_FILE=str(authority))
        assert (done.returncode, done.stdout.strip()) == (0, str(float(values[7].sum()))), done.stderr
        stranger = asked(url)
        assert stranger.returncode != 0
        assert "ReadError" in stranger.stderr


# --- a proxy ----


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy for http, and what it was asked for."""
    passed: list[str] = []

    class Passes(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            passed.append(self.path)
            to = urlsplit(self.path)
            connection = http.client.HTTPConnection(str(to.hostname), to.port)
            kept = {name: value for name, value in self.headers.items() if name.lower() in ("range", "host")}
            connection.request(self.command, to.path, headers=kept)
            answer = connection.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "server", "date"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            connection.close()

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passes)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", passed
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
def test_a_proxy_is_named_by_the_environment(name: str, tmp_path: Path, web: Web) -> None:
    values = written(tmp_path / "one.h5", samples=20)
    with proxy() as (address, passed):
        done = asked(web.url("one.h5"), **{name: address})
        assert (done.returncode, done.stdout.strip()) == (0, str(float(values[7].sum()))), done.stderr
        assert len(passed) == len(web.sent) > 0
        passed.clear()
        around: Any = asked(web.url("one.h5"), **{name: address, "NO_PROXY": "127.0.0.1"})
        assert (around.returncode, passed) == (0, [])
