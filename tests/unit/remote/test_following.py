"""Clients of several nodes: they find one that answers, and follow the one that leads."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Producer, aio
from millstream.errors import CannotOpen, NotLeader, OutcomeUnknown
from millstream.remote import nodes
from tests.unit.remote.conftest import Call
from tests.unit.remote.proxy import proxied
from tests.unit.remote.refusing import Pair, paired


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with paired(tmp_path / "shared.db") as found:
        yield found


def test_a_node_that_is_away_is_passed_over(pair: Pair) -> None:
    with millstream.open(f"http://127.0.0.1:1,{pair.url}") as ms:
        ms.log("a").append(b"0")
        assert [one.value for one in ms.log("a").read()] == [b"0"]


@pytest.fixture
def hole() -> Iterator[str]:
    """A machine that takes a connection and never answers, as the kernel does for a stopped process.

    It takes no second one: where all nodes are slower than the first round, the next is not kept.
    """
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            held.append(listener.accept()[0])
            listener.close()

        taking = threading.Thread(target=take)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        taking.start()
        yield url
        taking.join()
    for one in held:
        one.close()


def test_a_node_that_never_answers_is_passed_over_long_before_the_time_to_connect_is_up(
    pair: Pair, hole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "FIRST_ROUND_S", 0.2)
    with millstream.open(f"{hole},{pair.url}", connect_timeout=3600) as ms:
        assert ms.log("a").append(b"0") == 0


async def test_coroutines_pass_over_a_node_that_never_answers(
    pair: Pair, hole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "FIRST_ROUND_S", 0.2)
    async with await aio.open(f"{hole},{pair.url}", connect_timeout=3600) as ms:
        assert await ms.log("a").append(b"0") == 0


def test_a_node_that_is_only_slow_is_given_its_whole_time_in_the_second_round(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "FIRST_ROUND_S", 0.0)
    with millstream.open(f"http://127.0.0.1:1,{pair.url}", connect_timeout=90) as ms:
        assert ms.log("a").append(b"0") == 0


def test_of_nodes_that_all_refuse_or_never_answer_the_caller_is_told(
    hole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "FIRST_ROUND_S", 0.1)
    with pytest.raises(CannotOpen, match="none of"):
        millstream.open(f"{hole},http://127.0.0.1:1", connect_timeout=0.4)


def test_a_node_that_falls_silent_is_left_for_another(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PING_SEVERAL_S", 0.1)
    with (
        proxied(pair.servers[0].port) as proxy,
        millstream.open(f"{proxy.url},{pair.servers[1].url}") as ms,
    ):
        ms.log("a").append(b"0", producer=Producer("p", 0))  # repeated, if a node is too slow
        proxy.loses_requests = True
        assert len(ms.log("a")) == 1
        assert Call(lambda: ms.log("a").append(b"1", producer=Producer("p", 1))).result() == 1


async def test_coroutines_leave_a_node_that_falls_silent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PING_SEVERAL_S", 0.1)
    with proxied(pair.servers[0].port) as proxy:
        async with await aio.open(f"{proxy.url},{pair.servers[1].url}") as ms:
            await ms.log("a").append(b"0", producer=Producer("p", 0))
            proxy.loses_requests = True
            assert await ms.log("a").end_offset() == 1


def test_a_node_that_goes_away_is_left_for_another(pair: Pair) -> None:
    with millstream.open(pair.url) as ms:
        ms.log("a").append(b"0")
        pair.stop(0)
        ms.log("a").append(b"1")
        assert [one.value for one in ms.log("a").read()] == [b"0", b"1"]


@pytest.mark.parametrize("named", [True, False])
def test_a_write_follows_the_leading_node(pair: Pair, named: bool) -> None:
    with millstream.open(pair.url) as ms:
        ms.log("a").append(b"0")
        pair.lead(1, named=named)
        assert ms.log("a").append(b"1") == 1
        assert pair.engines[0].refusals == 1
        assert ms.log("a").append(b"2") == 2
        assert pair.engines[0].refusals == 1, "it stays where it was let write"


def test_a_write_that_may_have_been_done_is_not_repeated_at_another_node(pair: Pair) -> None:
    second = pair.servers[1].url
    with (
        proxied(pair.servers[0].port) as proxy,
        millstream.open(f"{proxy.url},{second}") as ms,
    ):
        ms.log("a").append(b"0")
        proxy.loses_answers = True
        asked = Call(lambda: ms.log("a").append(b"1"))
        assert proxy.lost.wait(30)
        proxy.cut()
        assert isinstance(asked.result(), OutcomeUnknown)
        assert [one.value for one in ms.log("a").read()] == [b"0", b"1"]


def test_while_no_node_leads_a_write_is_refused_in_bounded_time(pair: Pair) -> None:
    with millstream.open(pair.url, retry_for=0.3) as ms:
        ms.log("a").append(b"0")
        pair.lead(None)
        with pytest.raises(NotLeader):
            ms.log("a").append(b"1")
        assert len(ms.log("a")) == 1, "reads go on"
        pair.lead(1)
        assert ms.log("a").append(b"1") == 1


def test_a_wait_for_a_message_outlives_the_node_that_it_began_at(pair: Pair) -> None:
    with millstream.open(pair.url) as ms, millstream.open(pair.servers[1].url) as other:
        ms.create_queue("q")
        pair.lead(1)
        asked = Call(lambda: ms.queue("q").claim(wait=30))
        other.queue("q").put(b"x")
        (message,) = asked.result()
        assert message.value == b"x"


async def test_coroutines_follow_as_well(pair: Pair) -> None:
    async with await aio.open(pair.url) as ms:
        await ms.log("a").append(b"0")
        pair.lead(1)
        found = await asyncio.gather(*(ms.log("a").append(b"%d" % i) for i in range(1, 20)))
        assert sorted(found) == list(range(1, 20))
        pair.lead(0, named=False)
        assert await ms.log("a").append(b"20") == 20
        await asyncio.to_thread(pair.stop, 1)
        assert await ms.log("a").append(b"21") == 21


async def test_coroutines_are_refused_in_bounded_time(pair: Pair) -> None:
    async with await aio.open(pair.url, retry_for=0.3) as ms:
        await ms.log("a").append(b"0")
        pair.lead(None)
        found: Any = await asyncio.gather(ms.log("a").append(b"1"), return_exceptions=True)
        assert isinstance(found[0], NotLeader)
