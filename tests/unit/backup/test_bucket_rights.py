"""A bucket that refuses its requests: the error says whose fault it is, and what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import millstream
from millstream.backup.run import back_up
from millstream.errors import StoreError

pytest.importorskip("obstore")

DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class _Refusing(BaseHTTPRequestHandler):
    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(403)
        self.send_header("Content-Length", str(len(DENIED)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(DENIED)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _refuse  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_bucket_without_permission_is_refused_in_one_sentence(
    tmp_path: Path, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        ms.log("x").append(b"1")
    with pytest.raises(
        StoreError, match="need the rights to read, write, delete and list"
    ) as caught:
        back_up(path, "s3://depot/shop")
    assert "\n" not in str(caught.value)
