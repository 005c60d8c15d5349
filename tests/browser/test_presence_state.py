"""The state of a presence in browsers: set without a rejoin, seen by all, kept over lost connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.browser.tabs import Tab
from tests.browser.test_client import NO_SOCKETS

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

Open = Callable[..., Tab]


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    tabs: list[Tab] = []

    def open_one(url: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, url, **options))
        return tabs[-1]

    yield open_one
    for one in tabs:
        one.leave()


def until_state(tab: Tab, user: str, state: Any) -> None:
    tab.until(
        "JSON.stringify(room.presence.get(it[0])?.state) === JSON.stringify(it[1])", [user, state]
    )


@pytest.mark.parametrize("scripts", [(), (NO_SOCKETS,)], ids=["socket", "events"])
def test_others_see_who_is_typing(tab: Open, tmp_path: Path, scripts: tuple[str, ...]) -> None:
    path = tmp_path / "a.db"
    with running(path, Settings(port=0)) as one, running(path, Settings(port=0)) as two:
        ada = tab(one.url, scripts=scripts).join("hall", user="Ada 🦆", presence={"on": "phone"})
        bob = tab(two.url).join("hall", user="Bob")
        until_state(bob, "Ada 🦆", {"on": "phone"})
        ada.run("room.setPresence({typing: true, draft: 'Grüße'})")
        until_state(bob, "Ada 🦆", {"typing": True, "draft": "Grüße"})
        assert bob.run("noted.presence.at(-1).present") == "Ada 🦆"
        late = tab(two.url).join("hall", user="Eve")
        until_state(late, "Ada 🦆", {"typing": True, "draft": "Grüße"})
        assert late.run("room.presence.get('Bob').state") == {}
        ada.run("room.setPresence(null)")
        until_state(bob, "Ada 🦆", {})
        assert ada.run("noted.state.filter(({state}) => state === 'live').length") == 1, "no rejoin"
        assert bob.heard() == []


def test_a_state_is_set_again_after_a_lost_connection(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with running(path, Settings(port=0)) as server:
        port = server.port
        ada, bob = tab(server.url).join("hall", user="Ada"), tab(server.url).join("hall")
        ada.run("room.setPresence({page: 1})")
        until_state(bob, "Ada", {"page": 1})
    ada.until("room.state === 'reconnecting'")
    ada.run("room.setPresence({page: 2})")
    with running(path, Settings(port=port)) as server:
        bob.until("room.state === 'live'")
        until_state(bob, "Ada", {"page": 2})


def test_a_wrong_state_is_refused_at_once_and_the_room_stays(tab: Open, server: Serving) -> None:
    ada = tab(server.url).join("stays", user="Ada")
    script = "(state) => { try { room.setPresence(state); } catch (error) { return error.name; } }"
    assert ada.run(script, [1]) == "InvalidInput"
    assert ada.run(script, {"a": "x" * 2_000}) == "TooLarge"
    unseen = tab(server.url).join("stays")
    assert unseen.run(script, {"typing": True}) == "InvalidInput"
    assert ada.run("room.state") == unseen.run("room.state") == "live"
    ada.run("room.close()")
    assert ada.run(script, {}) == "Closed"
