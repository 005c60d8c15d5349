"""A connection that is lost at the worst moment: nothing is stored twice, nothing falsely failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream, Producer, aio
from millstream.errors import CannotOpen, OutcomeUnknown
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.remote.conftest import SETTINGS, Call
from tests.unit.remote.proxy import Proxy, proxied


def lose_the_answer(proxy: Proxy, call: Callable[[], Any]) -> Any:
    """Let the server hear a request, but not the client its answer; then cut the connection."""
    proxy.loses_answers = True
    asked = Call(call)
    assert proxy.lost.wait(30)
    proxy.heal()
    proxy.cut()
    return asked.result()


def lose_the_request(proxy: Proxy, call: Callable[[], Any]) -> Any:
    """Let the server hear nothing; then cut the connection."""
    proxy.loses_requests = True
    asked = Call(call)
    assert proxy.lost.wait(30)
    proxy.heal()
    proxy.cut()
    return asked.result()


EITHER = pytest.mark.parametrize("lose", [lose_the_answer, lose_the_request])


@EITHER
def test_a_read_is_asked_again(proxy: Proxy, lose: Callable[..., Any]) -> None:
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        log.append(b"0")
        assert lose(proxy, log.end_offset) == 1
        assert [record.value for record in lose(proxy, lambda: list(log.read()))] == [b"0"]


@EITHER
def test_an_append_under_a_sequence_is_stored_once(proxy: Proxy, lose: Callable[..., Any]) -> None:
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        log.append(b"before")
        assert lose(proxy, lambda: log.append(b"once", producer=Producer("p", 0))) == 1
        assert [record.value for record in log.read()] == [b"before", b"once"]


@pytest.mark.parametrize(("lose", "stored"), [(lose_the_answer, 1), (lose_the_request, 0)])
def test_of_another_append_nobody_knows(
    proxy: Proxy, lose: Callable[..., Any], stored: int
) -> None:
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        found = lose(proxy, lambda: log.append(b"perhaps"))
        assert isinstance(found, OutcomeUnknown)
        assert "Producer" in found.message
        assert len(log) == stored


@EITHER
def test_of_a_transaction_nobody_knows(proxy: Proxy, lose: Callable[..., Any]) -> None:
    def transact() -> None:
        with ms.transaction() as tx:
            tx.append("a", b"x", producer=Producer("p", 0))
            tx.append("b", b"x")

    with millstream.open(proxy.url) as ms:
        assert isinstance(lose(proxy, transact), OutcomeUnknown)
        assert len(ms.log("a")) == len(ms.log("b"))


@EITHER
def test_a_lost_claim_ends_with_its_lease(proxy: Proxy, lose: Callable[..., Any]) -> None:
    with millstream.open(proxy.url) as ms:
        queue = ms.queue("jobs", lease=0.05)
        queue.put(b"job")
        found = lose(proxy, queue.claim)
        assert isinstance(found, OutcomeUnknown)
        assert "lease" in found.message
        [message] = queue.claim(wait=60)
        assert message.value == b"job"


@EITHER
def test_of_a_pop_nobody_knows(proxy: Proxy, lose: Callable[..., Any]) -> None:
    with millstream.open(proxy.url) as ms:
        queue = ms.queue("jobs", lease=10)
        found = lose(proxy, queue.pop)
        assert isinstance(found, OutcomeUnknown)
        assert "gone" in found.message


def test_a_wait_goes_on_over_another_connection(proxy: Proxy) -> None:
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        waiting = Call(lambda: log.wait(0))
        for _ in range(3):
            assert log.end_offset() == 0  # the wait was sent before, or goes out with it
            proxy.cut()
        log.append(b"x", producer=Producer("p", 0))
        assert waiting.result() is True


def test_it_may_be_cut_after_any_byte(server: Serving) -> None:
    with proxied(server.port) as proxy, millstream.open(proxy.url):
        greeted_bytes = proxy.carried_bytes
    enough = greeted_bytes + 800
    budgets = [one for few in range(greeted_bytes + 1, enough, 11) for one in (enough, few)]
    with proxied(server.port, budgets) as proxy, millstream.open(proxy.url) as ms:
        log = ms.log("a")
        sequence = 0
        while proxy.connections < len(budgets):
            offsets = log.append_many([b"x" * 10, b"y"], producer=Producer("p", sequence))
            assert offsets == range(2 * sequence, 2 * sequence + 2)
            sequence += 1
            assert log.end_offset() == 2 * sequence
        assert len(log) == 2 * sequence


def test_many_producers_while_it_is_cut_again_and_again(proxy: Proxy) -> None:
    """Each append is lost at most a few times: a connection is cut once it has brought all a step on."""
    stored, moved = dict.fromkeys("abcd", 0), threading.Condition()

    def produce(name: str) -> list[int]:
        offsets: list[int] = []
        try:
            for n in range(150):
                offsets.append(ms.log(name).append(b"x", producer=Producer(name, n)))
                with moved:
                    stored[name] += 1
                    moved.notify_all()
        finally:
            with moved:
                stored[name] = 150
                moved.notify_all()
        return offsets

    with millstream.open(proxy.url) as ms:
        calls = [Call(lambda name=name: produce(name)) for name in stored]  # type: ignore[misc]
        cuts = 0
        with moved:
            while any(count < 150 for count in stored.values()):
                before = dict(stored)
                proxy.cut()
                cuts += 1
                assert moved.wait_for(
                    lambda before=before: all(
                        count > before[name] or count == 150 for name, count in stored.items()
                    ),
                    60,
                )
        assert [call.result() for call in calls] == [[*range(150)]] * 4
    assert cuts > 1


def test_what_was_not_sent_is_sent_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with running(path, SETTINGS) as server:
        ms = millstream.open(server.url)
        ms.log("a").append(b"before")
    again = Settings(port=server.port, stop_s=1.0)
    meanwhile = Call(lambda: ms.log("a").append(b"meanwhile"))
    with running(path, again):
        found = meanwhile.result()
        assert found == 1 or isinstance(found, OutcomeUnknown)
        assert ms.log("a").append(b"after", producer=Producer("p", 0)) == len(ms.log("a")) - 1
        ms.close()


def test_another_store_at_the_same_address_gets_no_repeats(
    proxy: Proxy, server: Serving, tmp_path: Path
) -> None:
    with running(tmp_path / "other.db", SETTINGS) as other, millstream.open(proxy.url) as ms:
        log = ms.log("a")
        log.append(b"x")

        def move() -> Any:
            return log.append(b"y", producer=Producer("p", 0))

        proxy.target = other.port
        found = lose_the_answer(proxy, move)
        assert isinstance(found, OutcomeUnknown)
        assert "another store" in found.message
        assert log.end_offset() == 0


def test_a_server_that_stays_away_is_told_and_tried_again_later(proxy: Proxy) -> None:
    with millstream.open(proxy.url, retry_for=0.1) as ms:
        log = ms.log("a")
        proxy.loses_answers = True
        sent = Call(lambda: log.append(b"0", producer=Producer("p", 0)))
        assert proxy.lost.wait(30)
        proxy.takes_nobody = True
        proxy.cut()
        assert isinstance(sent.result(), OutcomeUnknown)
        with pytest.raises(CannotOpen):
            log.append(b"never sent")
        with pytest.raises(CannotOpen):
            log.end_offset()
        proxy.heal()
        assert log.append(b"0", producer=Producer("p", 0)) == 0
        assert len(log) == 1


async def test_coroutines_see_the_same(proxy: Proxy) -> None:
    async with await aio.open(proxy.url) as ms:
        log = ms.log("a")
        await log.append(b"0")
        proxy.loses_answers = True
        asked = [
            asyncio.ensure_future(log.append(b"once", producer=Producer("p", 0))),
            asyncio.ensure_future(log.append(b"perhaps")),
            asyncio.ensure_future(log.end_offset()),
            asyncio.ensure_future(log.wait(2)),
        ]
        await asyncio.to_thread(proxy.lost.wait, 30)
        proxy.heal()
        proxy.cut()
        once, perhaps, end, waited = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(perhaps, OutcomeUnknown)
        assert (once, waited) == (1, True)
        assert end in (2, 3)
        assert [r.value async for r in log.read()][:2] == [b"0", b"once"]


def test_a_child_has_a_connection_of_its_own(proxy: Proxy, in_child: Callable[..., str]) -> None:
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        waiting = Call(lambda: log.wait(2))
        log.append(b"parent")

        assert in_child(lambda: _append_in_child(ms)) == "1 2"
        assert log.append(b"parent") == 2
        assert waiting.result() is True
        assert proxy.connections == 2


def _append_in_child(ms: Millstream) -> str:
    found = f"{ms.log('a').append(b'child')} {len(ms.log('a'))}"
    ms.close()
    return found


async def test_a_child_must_open_its_own_for_coroutines(
    server: Serving, in_child: Callable[..., str]
) -> None:
    async with await aio.open(server.url) as ms:
        session = ms.session

        def ask() -> str:
            asking = ms.log("a").end_offset()
            try:
                asking.send(None)
            except CannotOpen as error:
                return error.message
            return "it answered"

        assert "open one in the child" in in_child(ask)
        assert await ms.log("a").end_offset() == 0
        assert session is ms.session
