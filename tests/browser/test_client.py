"""`/millstream.js` in a browser, against real servers: join, send, resume, gap, and ways around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cluster.trial import free_ports
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.browser.tabs import Tab

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

NO_SOCKETS = """window.WebSocket = class extends EventTarget {
  constructor() { super(); setTimeout(() => this.onclose?.(), 0); }
  close() {}
};"""
"""A proxy that refuses every upgrade, as a page sees it."""

Open = Callable[..., Tab]


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    """Opens tabs, and closes them when the test ends."""
    tabs: list[Tab] = []

    def open_one(url: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, url, **options))
        return tabs[-1]

    yield open_one
    for one in tabs:
        one.leave()


def stored(path: Path, room: str) -> list[Any]:
    """The data of all chat messages that a room remembers."""
    with millstream.open(path) as ms:
        records = ms.room(room).log.read()
        return [one.json() for one in records if one.headers.get("type") == "chat"]


def test_all_others_hear_what_is_sent_once_and_in_order(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with running(path, Settings(port=0)) as one, running(path, Settings(port=0)) as two:
        ada = tab(one.url).join("lobby", user="Ada")
        bob = tab(one.url).join("lobby", user="Bob")
        eve = tab(two.url).join("lobby", user="Eve", types=["chat"])
        ada.until("room.presence.size === 3")
        first = ada.send("chat", {"text": "a"})
        assert isinstance(first, int)
        offset = ada.run(
            "room.sendMany([{type: 'chat', data: 'b'}, {type: 'news', data: 'c'}, {type: 'chat', data: 'd'}])"
        )
        assert offset > first
        bob.until_heard({"text": "a"}, "b", "c", "d")
        eve.until_heard({"text": "a"}, "b", "d")
        bob.send("chat", "e")
        ada.until_heard("e")
        assert ada.run("noted.message[0].from") == "Bob"
        bob.run("room.close()")
        ada.until("noted.presence.some((one) => one.left === 'Bob')")


def test_a_pointer_is_sent_with_the_tick_the_latest_only(tab: Open, server: Serving) -> None:
    ada, bob = tab(server.url).join("pointing"), tab(server.url).join("pointing")
    answers = ada.run(
        "Promise.all(Array.from({length: 500}, (_, i) => room.send('pointer', {x: i})))"
    )
    assert set(answers) == {None}
    bob.until("noted.message.at(-1)?.data.x === 499")
    assert len(bob.heard()) < 20
    assert ada.run("noted.error.length") == 0


def test_a_server_that_comes_back_is_resumed_with_nothing_lost_or_doubled(
    tab: Open, tmp_path: Path
) -> None:
    path = tmp_path / "shared.db"
    with running(path, Settings(port=0)) as server:
        port = server.port
        ada, bob = tab(server.url).join("lobby"), tab(server.url).join("lobby")
        ada.send("chat", 1)
        bob.until_heard(1)
        silent = tab(server.url).join("lobby")
    ada.until("room.state === 'reconnecting'")
    ada.run("window.later = [2, 3].map((data) => room.send('chat', data))")
    with millstream.open(path) as ms:
        ms.room("lobby").send("chat", "meanwhile")
    with running(path, Settings(port=port)):
        for one in (ada, bob, silent):
            one.until("room.state === 'live'")
        assert all(isinstance(one, int) for one in ada.run("Promise.all(later)"))
        bob.until_heard(1, "meanwhile", 2, 3)
        ada.until_heard("meanwhile")
        silent.until_heard("meanwhile", 2, 3)
    assert stored(path, "lobby") == [1, "meanwhile", 2, 3]


class Cut:
    """Stands between a tab and its server, and cuts the first connection instead of its first answer."""

    def __init__(self, before_the_next: Callable[[], None] = lambda: None) -> None:
        self.connections = 0
        self.lost = ""
        self._before_the_next = before_the_next

    def __call__(self, line: Any) -> None:
        """Take a connection."""
        self.connections += 1
        number = self.connections
        if number == 2:
            self._before_the_next()
        server = line.connect_to_server()

        def answer(text: str) -> None:
            if number == 1 and (self.lost or '"sent":1' in text):
                self.lost = self.lost or text
                server.close()
                line.close()
            else:
                line.send(text)

        server.on_message(answer)


def test_a_send_whose_answer_was_lost_is_stored_once(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with running(path, Settings(port=0)) as server:
        ada, cut = tab(server.url), Cut()
        ada.page.route_web_socket("**/rooms/**", cut)
        ada.join("lobby")
        assert ada.send("chat", "once") is None
        assert isinstance(ada.send("chat", "twice"), int)
        assert cut.lost
        assert cut.connections == 2
    assert stored(path, "lobby") == ["once", "twice"]


def test_if_the_room_has_forgotten_a_send_its_outcome_is_unknown(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "shared.db"

    def forget() -> None:
        with millstream.open(path) as ms:
            log = ms.room("lobby").log
            log.truncate(before=log.end_offset())

    with running(path, Settings(port=0)) as server:
        ada, cut = tab(server.url), Cut(forget)
        ada.page.route_web_socket("**/rooms/**", cut)
        ada.join("lobby")
        answer = ada.run("room.send('chat', 'once').catch((error) => error.name)")
        assert answer == "OutcomeUnknown"
        ada.send("chat", "then")
    assert stored(path, "lobby") == ["then"]


def test_a_ticket_says_who_enters(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms:
        create_token(ms, "any", ["room:read:lobby"])
        write, read = ms.room("lobby").ticket("Ada"), ms.room("lobby").ticket("Bob", can="read")
    with running(path, Settings(port=0, auth="on")) as server:
        bob = tab(server.url).join("lobby", options={"ticket": read.ticket})
        ada = tab(server.url).join("lobby", options={"ticket": write.ticket}, user="Ada")
        assert (ada.run("room.user"), bob.run("room.user")) == ("Ada", "Bob")
        ada.send("chat", 1)
        bob.until_heard(1)
        assert bob.run("noted.message[0].from") == "Ada"
        assert bob.run("room.send('chat', 2).catch((error) => error.status)") == 403
        options = {"ticket": write.ticket}
        proxied = tab(server.url, scripts=(NO_SOCKETS,)).join("lobby", options=options)
        proxied.send("chat", 3)
        bob.until_heard(1, 3)
        assert bob.run("noted.message[1].from") == "Ada"
        mallory = tab(server.url).join("lobby", wait=False, options=options, user="Mallory")
        mallory.until("room.state === 'refused'")
        assert "for the user 'Ada'" in mallory.run("noted.state.at(-1).error.message")


def test_where_sockets_are_refused_it_listens_by_events_and_sends_by_requests(
    tab: Open, server: Serving
) -> None:
    ada = tab(server.url, scripts=(NO_SOCKETS,)).join("proxied", user="Ada")
    bob = tab(server.url).join("proxied", user="Bob")
    assert ada.run("noted.state.at(-1).via") == "events"
    ada.until("room.presence.has('Bob')")
    assert isinstance(ada.send("chat", "by request"), int)
    bob.until_heard("by request")
    assert bob.run("noted.message[0].from") == "Ada"
    bob.send("chat", "by event")
    ada.until_heard("by event")
    refused = ada.run("room.send('joined', 1).catch((error) => [error.name, error.status])")
    assert refused == ["InvalidInput", 422]


def test_a_client_resumes_on_another_of_its_servers(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    ports = free_ports(2)  # two servers must know each other's addresses beforehand
    origins = tuple(f"http://127.0.0.1:{port}" for port in ports)
    options = [Settings(port=port, origins=origins) for port in ports]
    with running(path, options[1]) as other:
        with running(path, options[0]) as first:
            ada = tab(first.url).join("lobby", options={"url": [first.url, other.url]})
            bob = tab(other.url).join("lobby")
            ada.send("chat", 1)
            bob.until_heard(1)
            assert ada.run("room.url") == first.url
        ada.until("room.state === 'live' && room.url === " + repr(other.url))
        ada.send("chat", 2)
        bob.until_heard(1, 2)
        bob.send("chat", 3)
        ada.until_heard(3)


def test_what_has_expired_is_a_gap_and_what_is_retained_is_there(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with millstream.open(path) as ms:
        ms.room("lobby").specify(retained=["shape"])
        ms.room("lobby").send("shape", "gone", key="b")
    with running(path, Settings(port=0)) as server:
        port = server.port
        ada = tab(server.url).join("lobby")
        assert ada.values("shape") == {"b": "gone"}
        ada.send("shape", "mine", key="m")
        at = ada.run("room.offset")
    with millstream.open(path) as ms:
        room = ms.room("lobby")
        room.send("shape", "kept", key="a")
        room.delete("shape", "b")
        end = room.log.end_offset()
        room.log.truncate(before=end)
    with running(path, Settings(port=port)):
        ada.until("noted.gap.length > 0")
        gap = ada.run("noted.gap[0]")
        assert gap["from"] == at or gap["from"] == at + 1
        assert gap["to"] >= end
        assert ada.values("shape") == {"a": "kept", "m": "mine"}
        assert ada.heard() == []


def test_a_room_that_was_deleted_is_joined_anew(tab: Open, server: Serving) -> None:
    ada, bob = tab(server.url).join("deleted", user="Ada"), tab(server.url).join("deleted")
    ada.run("ms.put('/rooms/deleted/settings', {retained: ['shape']})")
    ada.run("room.close()")
    ada.join("deleted", user="Ada")
    for number in range(5):
        ada.send("shape", number, key="a")
    assert ada.values("shape") == {"a": 4}
    bob.run("ms.delete('/rooms/deleted')")
    for one in (ada, bob):
        one.until("noted.state.filter(({ state }) => state === 'live').length === 2")
    assert ada.values("shape") == {}
    bob.send("chat", "anew")
    ada.until_heard("anew")


def test_a_room_that_may_not_be_read_is_refused_and_says_why(tab: Open, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        _, reader = create_token(ms, "reader", ["room:read:lobby"])
        _, writer = create_token(ms, "writer", ["room:write:lobby"])
    with running(tmp_path / "a.db", Settings(port=0, auth="on")) as server:
        stranger = tab(server.url).join("lobby", wait=False)
        stranger.until("room.state === 'refused'")
        assert stranger.run("noted.state.at(-1).error.status") == 401
        assert stranger.run("room.send('chat', 1).catch((error) => error.name)") == "Closed"
        listener = tab(server.url).join("lobby", options={"token": reader}, user="Bob")
        author = tab(server.url).join("lobby", options={"token": writer}, user="Ada")
        author.send("chat", 1)
        listener.until_heard(1)
        denied = listener.run("room.send('chat', 2).catch((error) => error.status)")
        assert denied == 403


def test_the_http_interface_is_asked_and_its_refusals_are_raised(
    tab: Open, server: Serving
) -> None:
    one = tab(server.url).join("asking")
    assert one.run("ms.post('/logs/asked/records', {records: [{value: 1}]})") == {
        "offset": 0,
        "count": 1,
    }
    error = one.run(
        "ms.get('/logs/none').catch((error) => [error.name, error.status, error.retry])"
    )
    assert error == ["NotFound", 404, False]
    assert "millstream_" in one.run("ms.get('/metrics')")


def test_live_figures_come_and_end(tab: Open, server: Serving) -> None:
    one = tab(server.url).join("figures")
    one.run("() => { window.figures = []; window.end = ms.live((one) => figures.push(one)); }")
    one.until("figures.length >= 2")
    one.run("() => { end(); window.ended = figures.length; window.more = []; }")
    one.run("() => { window.stop = ms.live((one) => more.push(one)); }")
    one.until("more.length >= 2")
    assert one.run("() => figures.length === ended"), "others hear figures, and this one no more"
    one.run("stop()")
