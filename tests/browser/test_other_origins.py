"""A page of another origin cannot write to a server on this machine, however a browser sends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import millstream
from millstream.server.serving import Serving

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

FORM = """<!doctype html><form method=post enctype=text/plain action="{url}"><input name=a value=b></form>
<script>document.forms[0].submit()</script>"""


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>elsewhere</title>"
        if self.path.startswith("/form?"):
            body = FORM.format(url=self.path.removeprefix("/form?")).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """Another origin: the same machine, another port."""
    pages = HTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=pages.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{pages.server_port}"
    pages.shutdown()
    thread.join()
    pages.server_close()


SIMPLE = """async ([url, body]) => {
  try {
    const answer = await fetch(url, {method: "POST", mode: "no-cors", body,
      headers: {"content-type": "text/plain"}});
    return answer.type;
  } catch (error) { return String(error); }
}"""


def test_a_simple_post_changes_nothing(page: Any, server: Serving, elsewhere: str) -> None:
    page.goto(elsewhere)
    url = f"{server.url}/logs/hacked/records"
    assert page.evaluate(SIMPLE, [url, "x"]) == "opaque"
    page.goto(f"{elsewhere}/form?{url}")
    page.wait_for_load_state()
    assert "WrongOrigin" in page.content()
    with millstream.open(server.url) as ms:
        assert "hacked" not in [log.name for log in ms.logs()]


def test_a_socket_is_not_opened(page: Any, server: Serving, elsewhere: str) -> None:
    script = """([url]) => new Promise((done) => {
      const socket = new WebSocket(url, "millstream.v1");
      socket.onopen = () => done("open"); socket.onerror = () => done("refused");
    })"""
    page.goto(elsewhere)
    assert page.evaluate(script, [server.socket_url]) == "refused"


def test_an_answer_cannot_be_read(page: Any, server: Serving, elsewhere: str) -> None:
    page.goto(elsewhere)
    read = (
        "async (url) => { try { return await (await fetch(url)).text(); } catch { return null; } }"
    )
    assert page.evaluate(read, f"{server.url}/logs") is None
