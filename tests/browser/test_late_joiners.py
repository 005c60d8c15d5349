"""A page that joins late: `room.join({history})` and `room.join({since})`, over lost connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.browser.tabs import Tab
from tests.browser.test_client import NO_SOCKETS

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

Open = Callable[..., Tab]

JOIN = """async ([name, about, options]) => {
  const { Millstream } = await import("/millstream.js");
  window.ms = new Millstream();
  window.room = ms.room(name, about);
  window.noted = { message: [], gap: [], presence: [], state: [] };
  for (const event of Object.keys(noted)) room.on(event, (value) => noted[event].push(value));
  try {
    return (await room.join(options)).state;
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
}"""


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    tabs: list[Tab] = []

    def open_one(url: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, url, **options))
        return tabs[-1]

    yield open_one
    for one in tabs:
        one.leave()


def fill(url: str, room: str, *texts: str) -> None:
    with millstream.open(url) as ms:
        ms.room(room).send_many([("chat", text) for text in texts])


@pytest.mark.parametrize("scripts", [(), (NO_SOCKETS,)], ids=["socket", "events"])
def test_a_late_joiner_reads_what_was_said(
    tab: Open, server: Serving, scripts: tuple[str, ...]
) -> None:
    name = f"late {len(scripts)}"
    fill(server.url, name, "ä", "β", "🦆", "d")
    late = tab(server.url, scripts=scripts)
    assert late.run(JOIN, [name, {"user": "Zoë"}, {"history": 3}]) == "live"
    late.until_heard("β", "🦆", "d")
    assert late.run("room.presence.has('Zoë')")
    assert late.run("noted.presence.length") == 1, "no news of who came before"
    fill(server.url, name, "e")
    late.until_heard("β", "🦆", "d", "e")


def test_a_history_is_not_repeated_after_a_lost_connection(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with running(path, Settings(port=0)) as server:
        port = server.port
        fill(server.url, "hall", "a", "b", "c")
        late = tab(server.url)
        assert late.run(JOIN, ["hall", {}, {"history": 2}]) == "live"
        late.until_heard("b", "c")
    late.until("room.state === 'reconnecting'")
    with millstream.open(path) as ms:
        ms.room("hall").send("chat", "meanwhile")
    with running(path, Settings(port=port)) as server:
        late.until("room.state === 'live'")
        fill(server.url, "hall", "later")
        late.until_heard("b", "c", "meanwhile", "later")
        assert late.run("noted.gap.length") == 0


def test_what_has_expired_since_an_offset_is_told(tab: Open, server: Serving) -> None:
    fill(server.url, "expired", *"abcdef")
    with millstream.open(server.url) as ms:
        ms.room("expired").log.truncate(before=4)
    late = tab(server.url)
    assert late.run(JOIN, ["expired", {}, {"since": 1}]) == "live"
    late.until_heard("e", "f")
    assert late.run("noted.gap") == [{"from": 1, "to": 4}]


def test_a_join_that_cannot_be_right_is_refused_and_says_why(tab: Open, server: Serving) -> None:
    fill(server.url, "short", "a")
    one = tab(server.url)
    for options, reason in (
        ({"history": -1}, "InvalidInput: history is a number of messages from 0 to 1000, not -1"),
        ({"history": "many"}, "InvalidInput: history is a number"),
        ({"history": 5_000}, "not 5000"),
        ({"since": -1}, "InvalidInput: since is an offset"),
        ({"since": 7}, "OutOfRange: room 'short' ends at 1, before 7"),
    ):
        assert reason in one.run(JOIN, ["short", {}, options])
    assert one.run("room.state") == "refused"


def test_a_room_that_was_joined_is_joined_anew_with_a_history(tab: Open, server: Serving) -> None:
    fill(server.url, "again", "a", "b")
    one = tab(server.url).join("again")
    assert one.heard() == []
    assert one.run("room.join({history: 10}).then(({state}) => state)") == "live"
    one.until_heard("a", "b")
    assert one.run("room.join({since: 1}).then(({state}) => state)") == "live"
    one.until_heard("a", "b", "b")
    one.send("chat", "own")
    fill(server.url, "again", "c")
    one.until_heard("a", "b", "b", "c")
    assert one.run("room.join().then(({state}) => state)") == "live"
    one.run("room.close()")
    assert one.run("room.join({history: 1}).catch((error) => error.name)") == "Closed"
