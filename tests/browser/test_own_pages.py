"""A page of your own, at another origin: it loads the client from the server, and uses the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.browser.boarding import watch
from tests.browser.sites import Site, open_site

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

MODULE = """<!doctype html><meta charset=utf-8><title>yours</title>
<script type=module>
  import {{ Millstream }} from "{url}/millstream.js";
  window.ms = new Millstream({{ url: "{url}", token: "{token}" }});
</script>"""

CLASSIC = """<!doctype html><meta charset=utf-8><title>yours</title>
<script src="{url}/millstream.global.js"></script>
<script>const ms = window.ms = new millstream.Millstream({{ url: "{url}", token: "{token}" }});</script>"""

NO_SOCKETS = "window.WebSocket = class { constructor() { setTimeout(() => this.onclose(), 0); } close() {} };"


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


@pytest.fixture
def token(tmp_path: Path) -> str:
    with millstream.open(tmp_path / "a.db") as ms:
        return create_token(ms, "page", ["room:write:lobby", "log:write:*"])[1]


@pytest.fixture
def open_server(tmp_path: Path, site: Site, token: str) -> Iterator[Serving]:
    settings = Settings(port=0, auth="on", origins=(site.origin,))
    with running(tmp_path / "a.db", settings) as server:
        yield server


@pytest.mark.parametrize("form", [MODULE, CLASSIC], ids=["module", "classic script"])
@pytest.mark.parametrize("sockets", [True, False], ids=["sockets", "events"])
def test_a_page_of_a_named_origin_loads_the_client_and_joins(
    page: Any, open_server: Serving, site: Site, token: str, form: str, sockets: bool
) -> None:
    complaints = watch(page)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    if not sockets:
        page.add_init_script(NO_SOCKETS)
    site.files["/"] = form.format(url=open_server.url, token=token)
    page.goto(site.origin)
    page.wait_for_function("() => window.ms")
    scripts = [url for url in requests if url.endswith(".js")]
    assert len(scripts) == 1, "the client is one file"
    page.evaluate("() => { window.room = ms.room('lobby', { user: 'Ädä 🦆' }); }")
    page.wait_for_function("() => room.state === 'live'")
    assert page.evaluate("room.send('chat', {text: 'Grüße 🌊'})") == 1
    with millstream.open(open_server.url, token=token) as ms:
        record = next(iter(ms.room("lobby").log.read(1)))
        assert (record.json(), record.headers["from"]) == ({"text": "Grüße 🌊"}, "Ädä 🦆")
    appended = page.evaluate("ms.post('/logs/asked/records', {value: 1})")
    assert appended == {"offset": 0, "count": 1}
    refused = page.evaluate("ms.get('/logs/none/records').catch((error) => error.name)")
    assert refused == "NotFound"
    assert complaints == []


def test_a_page_of_another_origin_loads_no_module(page: Any, server: Serving, site: Site) -> None:
    site.files["/"] = MODULE.format(url=server.url, token="")
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto(site.origin)
    page.wait_for_load_state()
    assert failed == [f"{server.url}/millstream.js"]
    assert page.evaluate("window.ms") is None
