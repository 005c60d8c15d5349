"""The streaming socket, spoken to frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from millstream.command import Transact
from millstream.errors import EndMoved, InvalidInput, InvalidName, NotFound, Overloaded
from millstream.log import commands as logs
from millstream.queue import commands as queues
from millstream.queue.model.message import messages_of
from millstream.queue.model.routing_marks import Wishes
from millstream.queue.model.spec import QueueSpec
from millstream.record import Producer
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from tests.unit.server.talking import EACH_TRANSPORT, batch, each_transport, single, talking

transport = EACH_TRANSPORT(each_transport)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "store.db", Settings(port=0)) as server:
        yield server


def claim(queue: str, count: int, *, wait_ms: int | None = None) -> queues.ClaimMessages:
    return queues.ClaimMessages(queue, count, None, "tester", wait_ms, [])


def test_the_first_frame_says_what_the_server_is(server: Serving) -> None:
    with talking(server) as one, talking(server) as other:
        assert one.socket.subprotocol == wire.SUBPROTOCOL
        assert one.hello.version == wire.VERSION
        assert one.hello == other.hello
        assert server.core is not None
        assert one.hello.limits == server.core.store.limits
        assert one.hello.requests_max == server.settings.requests_in_flight_max
        assert one.hello.frame_bytes_max == server.settings.frame_bytes_max


def test_a_client_of_another_protocol_is_refused_at_the_door(server: Serving) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(server.socket_url, subprotocols=["other.v9"], open_timeout=60),
    ):
        pass
    assert refused.value.response.status_code == 400
    assert b"millstream.v1" in (refused.value.response.body or b"")


@pytest.mark.parametrize("path", ["/", "/sockets", "/socket/x", "/logs/a/records"])
def test_a_socket_at_a_wrong_address_is_told_where_there_is_one(server: Serving, path: str) -> None:
    url = server.socket_url.removesuffix("/socket") + path
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(url, subprotocols=[wire.SUBPROTOCOL], open_timeout=60),
    ):
        pass
    answer = refused.value.response
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    told = msgspec.json.decode(answer.body or b"")
    assert told["title"] == "NotFound"
    assert "/socket" in told["detail"]
    assert "/rooms/" in told["detail"]


def test_what_is_appended_is_read_back_as_it_was_packed(server: Serving) -> None:
    with talking(server) as talk:
        assert talk.ask(logs.Append("a", single({"n": 1}, key="k", headers={"h": 2}))) == 0
        packed = batch(["x", b"y", None], keys=["p", None, "r"], timestamps=[5, 6, 7])
        assert talk.ask(logs.Append("a", packed)) == 1
        blocks = talk.ask(logs.ReadBlocks("a", 0, 10, 10_000))
    records = [record for block in blocks for record in block.records()]
    assert [record.value for record in records] == [b'{"n":1}', b"x", b"y", None]
    assert [record.key for record in records] == [b"k", b"p", None, b"r"]
    assert records[0].headers["h"] == 2
    assert [record.timestamp for record in records[1:]] == [5, 6, 7]


def test_answers_come_in_the_order_in_which_requests_are_done(server: Serving) -> None:
    with talking(server) as talk:
        talk.send((7, logs.WaitForOffset("a", 0, None)), (8, logs.GetBounds("a")))
        assert talk.frame()[0][0] == 8
        talk.send((9, logs.Append("a", single("x"))))
        assert talk.answers(2) == {7: True, 9: 0}


def test_appends_of_one_connection_keep_their_order(server: Serving) -> None:
    with talking(server) as talk:
        for first in range(0, 200, 100):
            talk.send(
                *[
                    (n, logs.Append("a", single(b"%d" % n), producer=Producer("p", n)))
                    for n in range(first, first + 100)
                ]
            )
        assert talk.answers(200) == {n: n for n in range(200)}


def test_a_large_frame_keeps_its_place_before_a_small_one(server: Serving) -> None:
    with talking(server) as talk:
        talk.send((1, logs.Append("a", batch([bytes(1000)] * 1000))))
        talk.send((2, logs.Append("a", single("behind"))))
        assert talk.answers(2) == {1: 0, 2: 1000}


def test_what_is_done_together_is_answered_in_one_frame(server: Serving) -> None:
    with talking(server) as talk:
        talk.send(*[(n, logs.Append("a", single("x"))) for n in range(50)])
        assert len(talk.frame()) == 50


def test_an_error_goes_to_its_own_request_only(server: Serving) -> None:
    with talking(server) as talk:
        talk.send(
            (1, logs.Append("a", single("x"))),
            (2, logs.Append("a", single("y"), expect_end=9)),
            (3, logs.MoveCursor("none", "c", 4)),
            (4, logs.CreateLog("bad\nname")),
        )
        found = talk.answers(4)
    assert found[1] == 0
    assert isinstance(found[2], EndMoved)
    assert found[2].end == 1
    assert isinstance(found[3], NotFound)
    assert isinstance(found[4], InvalidName)


def test_a_transaction_is_all_or_nothing(server: Serving) -> None:
    with talking(server) as talk:
        append = logs.Append("a", single("x"))
        assert talk.ask(Transact([append, logs.Append("b", batch(["y", "z"]))])) == [0, 0]
        with pytest.raises(EndMoved):
            talk.ask(Transact([append, logs.Append("b", single("x"), expect_end=0)]))
        assert talk.ask(logs.GetBounds("a")) == (0, 1)


def test_messages_are_claimed_renewed_and_finished(server: Serving) -> None:
    with talking(server) as talk:
        talk.ask(queues.SpecifyQueue("q", QueueSpec(sources=("a",), start="earliest")))
        talk.ask(logs.Append("a", batch(["x", "y"])))
        first, second = messages_of(talk.ask(claim("q", 5)))
        assert (first.value, second.value) == (b"x", b"y")
        run = (first.claim_id, 2, first.attempt)
        assert talk.ask(queues.RenewClaims("q", [run], 60_000)).until > first.until
        assert talk.ask(queues.FinishClaims("q", [run], "ack")) == []
        assert talk.ask(claim("q", 5)) == []


def test_a_waiting_claim_gets_what_is_published_meanwhile(server: Serving) -> None:
    with talking(server) as consumer, talking(server) as producer:
        producer.ask(queues.SpecifyQueue("q", QueueSpec(sources=("a",))))
        consumer.send((1, claim("q", 1, wait_ms=30_000)))
        producer.ask(logs.Append("a", single("x")))
        ((number, _),) = consumer.frame()
        assert number == 1


def test_waits_end_when_the_server_says_so(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0, wait_ms_max=20)) as server,
        talking(server) as talk,
    ):
        talk.ask(queues.SpecifyQueue("q", QueueSpec(sources=("a",))))
        assert talk.ask(logs.WaitForOffset("a", 0, None)) is False
        assert talk.ask(claim("q", 1, wait_ms=10**12)) == []


def test_reads_are_cut_to_what_the_store_gives_at_once(server: Serving) -> None:
    with talking(server) as talk:
        for _ in range(6):
            talk.ask(logs.Append("a", batch([bytes(1024 * 1024)] * 1)))
        blocks = talk.ask(logs.ReadBlocks("a", 0, 6, 2**62))
        assert 1 <= sum(len(block) for block in blocks) < 6


def test_more_reads_than_run_at_once_are_all_answered(server: Serving) -> None:
    with talking(server) as talk:
        talk.ask(logs.Append("a", batch(["x"] * 100)))
        talk.send(*[(n, logs.ReadBlocks("a", n, n + 1, 1000)) for n in range(100)])
        found = talk.answers(100)
        assert sorted(found) == list(range(100))
        assert all(blocks[0][1] == n for n, blocks in found.items())


def test_a_client_holds_only_so_many_messages(tmp_path: Path) -> None:
    settings = Settings(port=0, claims_open_max=3)
    with running(tmp_path / "store.db", settings) as server, talking(server) as talk:
        talk.ask(queues.SpecifyQueue("q", QueueSpec(sources=("a",), start="earliest")))
        talk.ask(logs.Append("a", batch(["x"] * 10)))
        assert len(messages_of(talk.ask(claim("q", 2)))) == 2
        held = messages_of(talk.ask(claim("q", 100)))
        assert len(held) == 1
        with pytest.raises(Overloaded, match="finish some"):
            talk.ask(claim("q", 1))
        run = (held[0].claim_id, 1, held[0].attempt)
        talk.ask(Transact([queues.FinishClaims("q", [run], "ack")]))
        assert len(talk.ask(claim("q", 1))) == 1
        with talking(server) as other:
            assert len(messages_of(other.ask(claim("q", 2)))) == 2


def test_a_batch_that_does_not_hold_together_is_not_stored(server: Serving) -> None:
    packed = batch(["x", "y"])
    wrong = type(packed)(
        2, packed.payload, packed.payload_crc ^ 1, packed.columns, packed.metadata, 0, None
    )
    with talking(server) as talk:
        for command in (
            logs.Append("a", wrong),
            Transact([logs.Append("a", single("fine")), logs.Append("a", wrong)]),
            queues.PutMessages("q", wrong, delay_ms=5),
        ):
            with pytest.raises(InvalidInput, match="does not hold together"):
                talk.ask(command)
        assert talk.ask(logs.GetBounds("a")) == (0, 0)


def test_wishes_are_for_each_message_or_for_none(server: Serving) -> None:
    with talking(server) as talk:
        talk.ask(queues.SpecifyQueue("q", QueueSpec(priority_by="p")))
        with pytest.raises(InvalidInput, match="one wish per message is expected: 2, not 1"):
            talk.ask(queues.PutMessages("q", batch(["x", "y"]), [Wishes(5)]))
        wishes = [Wishes(5), Wishes()]
        assert talk.ask(queues.PutMessages("q", batch(["x", "y"]), wishes)) == 0
