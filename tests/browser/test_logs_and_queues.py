"""Logs and queues in a browser: follow over lost connections, put, and tickets for one noun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.browser.tabs import Tab

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

Open = Callable[..., Tab]

BEGIN = """async (options) => {
  const { Millstream } = await import("/millstream.js");
  window.ms = new Millstream(options ?? {});
  window.follow = (name, options = {}) => {
    window.noted = { records: [], states: [], gaps: [] };
    window.stop = ms.log(name).follow((record) => { noted.records.push(record); }, {
      ...options,
      onState: (state, error) => noted.states.push(error ? `${state}: ${error.name}` : state),
      onGap: (gap) => noted.gaps.push(gap),
    });
  };
}"""


@pytest.fixture
def tab(browser: Any) -> Iterator[Open]:
    tabs: list[Tab] = []

    def open_one(url: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, url))
        tabs[-1].run(BEGIN, options)
        return tabs[-1]

    yield open_one
    for one in tabs:
        one.leave()


def follow(tab: Tab, name: str, **options: Any) -> None:
    tab.run("([name, options]) => follow(name, options)", [name, options])


def until_read(tab: Tab, *values: Any) -> None:
    tab.until("noted.records.length >= it", len(values))
    assert tab.run("noted.records.map(({value}) => value)") == list(values)


def until_at_the_end(tab: Tab) -> None:
    tab.until("noted.states.includes('live')")


def test_new_records_are_followed_in_order(tab: Open, server: Serving) -> None:
    with millstream.open(server.url) as ms:
        log = ms.log("grüße/🦆")
        log.append({"before": True})
        one = tab(server.url)
        follow(one, log.name)
        until_at_the_end(one)
        one.until("noted.states.length > 0")
        offset = one.run(
            "(name) => ms.log(name).append({text: 'ä'}, {key: 'k', headers: {a: 1}})", log.name
        )
        assert offset == 1
        log.append("text", key="schlüssel")
        log.append(b"\x00\xff")
        one.until("noted.records.length >= 3")
        first, second, third = one.run(
            "noted.records.map((one) => ({...one, value: one.value instanceof Uint8Array ? [...one.value] : one.value}))"
        )
        assert (first["offset"], first["value"], first["key"]) == (1, {"text": "ä"}, "k")
        assert first["headers"]["a"] == 1
        assert (second["value"], second["key"]) == ("text", "schlüssel")
        assert third["value"] == [0, 255]
        one.run("() => stop()")
        assert one.run("noted.states") == ["live", "closed"]
        log.append("unheard")
        assert (
            one.run(
                "(name) => ms.log(name).read({start: 4}).then(({records}) => records[0].value)",
                log.name,
            )
            == "unheard"
        )
        assert one.run("noted.records.length") == 3


@pytest.mark.parametrize(("start", "expected"), [("start", [0, 1, 2, 3]), (2, [2, 3]), (4, [])])
def test_a_log_is_followed_from_a_place(
    tab: Open, server: Serving, start: Any, expected: list[int]
) -> None:
    name = f"from {start}"
    with millstream.open(server.url) as ms:
        ms.log(name).append_many([0, 1, 2, 3])
        one = tab(server.url)
        follow(one, name, start=start)
        until_read(one, *expected)
        until_at_the_end(one)
        ms.log(name).append("new")
        until_read(one, *expected, "new")
        assert one.run("noted.gaps") == []


def test_a_log_that_does_not_exist_yet_is_followed(tab: Open, server: Serving) -> None:
    one = tab(server.url)
    follow(one, "not yet")
    until_at_the_end(one)
    with millstream.open(server.url) as ms:
        ms.log("not yet").append("first")
    until_read(one, "first")


def test_records_that_are_gone_are_told_as_a_gap(tab: Open, server: Serving) -> None:
    with millstream.open(server.url) as ms:
        ms.log("short").append_many([0, 1, 2, 3])
        ms.log("short").truncate(before=3)
        one = tab(server.url)
        follow(one, "short", start=1)
        until_read(one, 3)
        assert one.run("noted.gaps") == [{"from": 1, "to": 3}]
        follow(one, "short", start="start")
        until_read(one, 3)
        assert one.run("noted.gaps") == [], "all that is left was asked for"
        follow(one, "short", start=9)
        until_read(one, 3)
        assert one.run("noted.gaps") == [{"from": 4, "to": 9}], "the log was made anew"


def test_a_log_is_followed_over_a_lost_server(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with running(path, Settings(port=0)) as server:
        port = server.port
        with millstream.open(server.url) as ms:
            ms.log("kept").append(1)
        one = tab(server.url)
        follow(one, "kept", start="start")
        until_read(one, 1)
    one.until("noted.states.at(-1).startsWith('reconnecting')")
    with millstream.open(path) as ms:
        ms.log("kept").append(2)
    with running(path, Settings(port=port)) as server:
        until_read(one, 1, 2)
        with millstream.open(server.url) as ms:
            ms.log("kept").append(3)
        until_read(one, 1, 2, 3)
        assert one.run("noted.states.at(-1)") == "live"


def test_the_next_record_waits_for_a_page_that_is_busy(tab: Open, server: Serving) -> None:
    with millstream.open(server.url) as ms:
        ms.log("busy").append_many([0, 1, 2])
    one = tab(server.url)
    one.run(
        """() => { window.seen = [];
        window.stop = ms.log("busy").follow((record) => new Promise((done) => {
          seen.push(record.value); window.next = done; }), { start: "start" }); }"""
    )
    one.until("seen.length === 1")
    one.run("() => next()")
    one.until("seen.length === 2")
    one.run("() => { stop(); next(); }")
    assert one.run("new Promise((done) => setTimeout(() => done(seen.length), 0))") == 2


@pytest.mark.parametrize("start", [-1, 1.5, "middle"])
def test_a_wrong_place_is_refused_at_once(tab: Open, server: Serving, start: Any) -> None:
    script = "(start) => { try { ms.log('a').follow(() => {}, {start}); } catch (error) { return error.name; } }"
    assert tab(server.url).run(script, start) == "InvalidInput"


def test_a_page_puts_work_that_a_worker_does(tab: Open, server: Serving) -> None:
    with millstream.open(server.url) as ms:
        queue = ms.create_queue("mail", dedup_by="header")
        one = tab(server.url)
        number = one.run("ms.queue('mail').put({to: 'zoë@example.org'}, {key: 'k'})")
        assert one.run("(id) => ms.queue('mail').find(id).then(({state}) => state)", number) == (
            "available"
        )
        repeated = "ms.queue('mail').put('twice', {dedup: 'only once'})"
        one.run(repeated)
        one.run(repeated)
        ids = one.run("ms.queue('mail').putMany([{value: 1}, {value: 2}])")
        assert ids == [ids[0], ids[0] + 1]
        one.run("ms.queue('mail').put('later', {at: new Date(Date.now() + 3600000)})")
        one.run("ms.queue('mail').put('later', {delay: 3600})")
        messages = queue.claim(10)
        assert messages[0].json() == {"to": "zoë@example.org"}
        assert messages[0].key == b"k"
        assert [each.value for each in messages[1:]] == [b"twice", b"1", b"2"]
        queue.ack(messages)
        refused = "ms.queue('none').put(1).catch((error) => [error.name, error.status])"
        assert one.run(refused) == ["NotFound", 404]


class TicketOffice:
    """Makes tickets for pages, as an application's own server would."""

    def __init__(self, ms: Any) -> None:
        self.ms = ms
        self.asked: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, noun: Any) -> str:
        with self._lock:
            self.asked.append(noun)
            if noun["noun"] == "queue":
                return str(self.ms.queue(noun["name"]).ticket("put").ticket)
            if noun["noun"] == "room":
                return str(self.ms.room(noun["name"]).ticket("ada").ticket)
            return str(self.ms.log(noun["name"]).ticket("read").ticket)


def test_a_ticket_is_for_one_noun(tab: Open, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms:
        create_token(ms, "any", ["log:read:news"])
        ms.create_queue("mail")
        ms.create_queue("other")
        ms.log("news").append("hello")
        ms.log("secret").append("secret")
        office = TicketOffice(ms)
        with running(path, Settings(port=0, auth="on")) as server:
            one = tab(server.url)
            one.page.expose_function("ticketFor", office)
            one.run(
                "async () => { const { Millstream } = await import('/millstream.js');"
                " window.ms = new Millstream({ ticket: (noun) => ticketFor(noun) }); }"
            )
            follow(one, "news", start="start")
            until_read(one, "hello")
            assert one.run("ms.queue('mail').put('a')") >= 0
            assert one.run("ms.queue('mail').put('b')") >= 0
            one.run("() => { window.room = ms.room('hall'); }")
            one.until("room.state === 'live'")
            assert one.run("room.user") == "ada"
            assert office.asked == [
                {"noun": "log", "name": "news"},
                {"noun": "queue", "name": "mail"},
                {"noun": "room", "name": "hall"},
            ], "a ticket is used again while it lasts"
            for wrong in (
                "ms.log('news').append(1)",
                "ms.queue('mail').find(0)",
            ):
                assert one.run(f"{wrong}.catch((error) => error.status)") == 403
            put = ms.queue("mail").ticket("put").ticket
            for method, place in (
                ("POST", "/queues/mail/claims"),
                ("GET", "/queues/mail/messages"),
                ("GET", "/logs/secret/records"),
                ("GET", "/logs/news/records"),
                ("POST", "/queues/other/messages"),
                ("POST", "/tickets"),
                ("GET", "/rooms/hall/presence"),
            ):
                body: dict[str, Any] = {"value": 1} if place.endswith("messages") else {}
                if place == "/tickets":
                    body = {"permissions": ["queue:put:mail"]}
                status = one.run(
                    "async ([method, path, body, ticket]) => (await fetch(path, {method, headers:"
                    " {authorization: `Bearer ${ticket}`, 'content-type': 'application/json'},"
                    " body: method === 'POST' ? JSON.stringify(body) : undefined})).status",
                    [method, place, body, put],
                )
                assert status == 403, place


def test_a_ticket_that_has_expired_is_replaced_and_a_refusal_ends(
    tab: Open, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms:
        create_token(ms, "any", ["log:read:news"])
        ms.log("news").append("hello")
        good = ms.log("news").ticket().ticket
        with running(path, Settings(port=0, auth="on")) as server:
            one = tab(server.url)
            one.run(
                "async (good) => { const { Millstream } = await import('/millstream.js');"
                " window.given = []; window.tickets = ['mt_expired.x', good];"
                " window.ms = new Millstream({ ticket: () => { given.push(1); return tickets[0]; } }); }",
                good,
            )
            read = (
                "ms.log('news').read().then(({records}) => records.length, (error) => error.status)"
            )
            assert one.run(read) == 401
            assert one.run("given.length") == 1, (
                "a new ticket that is refused is not asked for again"
            )
            one.run("() => { tickets.shift(); }")
            assert one.run(read) == 1
            follow(one, "other")
            one.until("noted.states.length > 0")
            assert one.run("noted.states") == ["refused: Denied"]
