"""A web server of somebody else: files at an origin that is not the Millstream server's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MEDIA_TYPES = {"js": "text/javascript; charset=utf-8", "html": "text/html; charset=utf-8"}


class Site:
    """The files of an origin by path."""

    def __init__(self) -> None:
        site = self
        self.files: dict[str, str] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = site.files.get(self.path)
                self.send_response(404 if text is None else 200)
                kind = "js" if self.path.endswith(".js") else "html"
                self.send_header("content-type", MEDIA_TYPES[kind])
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def open_site() -> Iterator[Site]:
    """A site that is served until the block ends."""
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever)
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        thread.join()
        site.server.server_close()
