"""A node that does not lead hands commands of its clients' sockets on to the one that does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import millstream
from millstream import Producer, aio
from millstream.errors import InvalidName, NotFound, NotLeader
from tests.unit.remote.conftest import Call
from tests.unit.server.cluster.pretending import Pair


def test_a_follower_takes_every_command(pair: Pair) -> None:
    with millstream.open(pair.url("b")) as ms:
        assert ms.log("a").append(b"0") == 0
        assert ms.log("a").append(b"1", producer=Producer("p", 0)) == 1
        queue = ms.create_queue("q", sources=["a"], start="earliest")
        messages = queue.claim(2)
        assert [one.value for one in messages] == [b"0", b"1"]
        queue.ack(messages)
        assert queue.info().done == 2
        with ms.transaction() as tx:
            tx.append("a", b"2")
            tx.append("b", b"3")
        assert [one.value for one in ms.log("a").read()] == [b"0", b"1", b"2"]
        assert ms.fold() >= 0


def test_errors_of_the_leading_node_come_back_as_they_are(pair: Pair) -> None:
    with millstream.open(pair.url("b")) as ms:
        with pytest.raises(NotFound, match="no queue"):
            ms.queue("none").claim(1)
        with pytest.raises(InvalidName):
            ms.log("").append(b"x")


def test_a_claim_waits_at_the_leading_node(pair: Pair) -> None:
    with millstream.open(pair.url("b")) as ms, millstream.open(pair.url("a")) as leader:
        queue = ms.create_queue("q")
        asked = Call(lambda: queue.claim(wait=30))
        leader.queue("q").put(b"x")
        assert [one.value for one in asked.result()] == [b"x"]


def test_when_the_lead_changes_clients_notice_nothing(pair: Pair) -> None:
    with millstream.open(pair.url("b")) as ms:
        for number in range(6):
            assert ms.log("a").append(b"x") == number
            pair.lead("ab"[number % 2])
        pair.lead("b")
        pair.stop("a")
        assert ms.log("a").append(b"x") == 6


def test_a_client_of_several_addresses_goes_to_the_leading_node(pair: Pair) -> None:
    with millstream.open([pair.url("b"), pair.url("a")]) as ms:
        assert pair.url("a") in repr(ms.session)
        ms.log("a").append(b"0")
        seat = pair.servers["b"].core.seat  # type: ignore[union-attr]
        assert seat is not None
        assert seat.handed_on == 0


def test_while_no_node_leads_it_is_said_in_bounded_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.open(pair.url("b"), retry_for=0.1) as ms:
        ms.log("a").append(b"0")
        pair.lead(None)
        with monkeypatch.context() as hasty:
            hasty.setattr("millstream.server.cluster.forwarder.FORWARD_S", 0.2)
            hasty.setattr("millstream.server.core.FORWARD_S", 0.2)
            with pytest.raises(NotLeader, match="no leader is known"):
                ms.log("a").append(b"1")
        pair.lead("a")
        assert ms.log("a").append(b"1") == 1


async def test_a_wait_survives_a_change_of_the_lead(pair: Pair) -> None:
    async with await aio.open(pair.url("b")) as ms:
        queue = await ms.create_queue("q")
        waiting = asyncio.ensure_future(queue.claim(wait=30))
        await ms.log("a").append(b"the claim was sent before this")
        pair.lead("b")
        await (await ms.queue("q")).put(b"x")
        found: Any = await waiting
        assert [one.value for one in found] == [b"x"]


async def test_many_commands_of_one_client_keep_their_order(pair: Pair) -> None:
    async with await aio.open(pair.url("b")) as ms:
        log = ms.log("a")
        found = await asyncio.gather(*(log.append(b"%d" % i) for i in range(200)))
        assert found == list(range(200))
        values = [record.value async for record in log.read()]
        assert values == [b"%d" % i for i in range(200)]


# How fresh reads are.


def test_a_strong_read_is_proved_and_many_share_the_proof(pair: Pair) -> None:
    with millstream.open(pair.url("a")) as ms:
        ms.log("a").append(b"0")
        before = pair.nodes["a"].barriers
        assert ms.log("a").end_offset() == 1
        assert pair.nodes["a"].barriers == before + 1


def test_an_eventual_read_is_answered_by_the_node_that_is_asked(pair: Pair) -> None:
    with (
        millstream.open(pair.url("a")) as writer,
        millstream.open([pair.url("b"), pair.url("a")], read_level="eventual") as ms,
    ):
        writer.log("a").append(b"0")
        before = pair.nodes["a"].barriers
        assert ms.log("a").wait(0, timeout=30)
        assert [one.value for one in ms.log("a").read()] == [b"0"]
        seat = pair.servers["b"].core.seat  # type: ignore[union-attr]
        assert seat is not None
        assert seat.handed_on == 0
        assert pair.nodes["a"].barriers == before
        ms.log("a").append(b"1")
        assert seat.handed_on == 1, "what writes goes to the leading node"


def test_a_bounded_read_goes_to_the_leading_node_if_this_one_is_too_far_behind(pair: Pair) -> None:
    seat = pair.servers["b"].core.seat  # type: ignore[union-attr]
    assert seat is not None
    with millstream.open(pair.url("b"), read_level="bounded:5") as ms:
        ms.log("a").append(b"0")
        handed_on = seat.handed_on
        ms.log("a").end_offset()
        assert seat.handed_on == handed_on
        pair.nodes["b"].progress_age_s = 6.0
        ms.log("a").end_offset()
        assert seat.handed_on == handed_on + 1
        pair.nodes["b"].progress_age_s, pair.nodes["b"].lag = 0.0, 3
        ms.log("a").end_offset()
        assert seat.handed_on == handed_on + 2


def test_a_read_of_a_leader_that_was_deposed_unseen_is_not_answered(pair: Pair) -> None:
    with millstream.open(pair.url("a")) as ms:
        ms.log("a").append(b"0")
        pair.nodes["a"].on_change, heard = None, pair.nodes["a"].on_change
        pair.lead("b")
        pair.nodes["a"].on_change = heard
        assert len(ms.log("a")) == 1
        assert pair.servers["a"].core.seat.handed_on >= 1  # type: ignore[union-attr]
