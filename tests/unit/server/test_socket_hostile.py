"""What a hostile client gets from the socket: a close code and a reason, while others go on."""

from __future__ import annotations

import select
import socket as sockets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from millstream.errors import Conflict, InvalidInput, MillstreamError, TooLarge
from millstream.log import commands as logs
from millstream.queue import commands as queues
from millstream.queue.model.spec import QueueSpec
from millstream.server.listen import connection
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from tests.unit.server.talking import EACH_TRANSPORT, Talk, batch, each_transport, single, talking

transport = EACH_TRANSPORT(each_transport)

pack = msgspec.msgpack.encode
DEEP = b"\x91" * 100_000
GARBAGE = {
    "nothing": b"",
    "garbage": b"\xc1\xff\x00",
    "a number": pack(7),
    "a map": pack({"type": "GetBounds", "log": "a"}),
    "an array without requests": pack([1, 2]),
    "a request without a command": pack([[1]]),
    "an unknown command": pack([[1, {"type": "Explode"}]]),
    "a command of the inside": pack([[1, {"type": "ClaimRouted", "queue": "q"}]]),
    "SQL": pack([[1, {"type": "Sql", "statement": "drop table logs", "parameters": []}]]),
    "a transaction in a transaction": pack(
        [[1, {"type": "Transact", "steps": [{"type": "Transact", "steps": []}]}]]
    ),
    "a query in a transaction": pack(
        [[1, {"type": "Transact", "steps": [{"type": "GetBounds", "log": "a"}]}]]
    ),
    "a wrong type": pack([[1, {"type": "GetBounds", "log": 5}]]),
    "a number that is text": pack([["1", {"type": "GetBounds", "log": "a"}]]),
    "text that is not UTF-8": b"\x91\x92\x01\x82\xa4type\xa9GetBounds\xa3log\xa2\xff\xfe",
    "an array that claims 4 billion requests": b"\xdd\xff\xff\xff\xff\x92\x01",
    "a map that claims 4 billion entries": b"\x91\x92\x01\xdf\xff\xff\xff\xff",
    "bytes that claim 4 billion": b"\x91\x92\x01\x81\xa4type\xc6\xff\xff\xff\xff",
    "deep nesting": DEEP,
    "deep nesting in a value": b"\x91\x92\x01\x84\xa4type\xabSetMetadata\xa3log\xa1a\xa3key\xa1k\xa5value"
    + DEEP,
    "a cut frame": pack([[1, {"type": "GetBounds", "log": "a"}]])[:-1],
    "more after the frame": pack([[1, {"type": "GetBounds", "log": "a"}]]) + b"\x00",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("hostile") / "store.db"
    with running(path, Settings(port=0, requests_in_flight_max=8)) as server:
        yield server


@pytest.mark.parametrize("frame", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_frame_of_requests_ends_the_connection(server: Serving, frame: bytes) -> None:
    with talking(server) as neighbour:
        with talking(server) as talk:
            talk.socket.send(frame)
            code, reason = talk.ending()
            assert code == 1007
            assert reason.startswith("not a frame of requests")
        assert neighbour.ask(logs.GetBounds("a")) == (0, 0)


def test_text_is_refused(server: Serving) -> None:
    with connect(
        server.socket_url, subprotocols=[Subprotocol(wire.SUBPROTOCOL)], open_timeout=60
    ) as websocket:
        talk = Talk(websocket)
        talk.socket.send("[]")
        assert talk.ending() == (1003, "frames are binary, this one is text")


def test_who_asks_more_than_agreed_is_sent_away(server: Serving) -> None:
    with talking(server) as talk:
        talk.send(*[(n, logs.WaitForOffset("a", 5, None)) for n in range(8)])
        talk.send((8, logs.GetBounds("a")))
        assert talk.ending() == (1008, "more than 8 requests without an answer")


def test_as_many_as_agreed_are_fine_again_and_again(server: Serving) -> None:
    with talking(server) as talk:
        for _ in range(20):
            talk.send(*[(n, logs.GetBounds("a")) for n in range(8)])
            assert len(talk.answers(8)) == 8


def test_a_number_is_not_used_twice_at_once(server: Serving) -> None:
    with talking(server) as talk:
        talk.send((3, logs.WaitForOffset("a", 5, None)), (3, logs.GetBounds("a")))
        assert talk.ending() == (1008, "request 3 again, before its answer")


def test_a_frame_over_the_limit_is_not_even_read(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0, frame_bytes_max=10_000)) as server,
        talking(server) as talk,
    ):
        talk.socket.send(bytes(10_001))
        assert talk.ending()[0] == 1009


def test_a_frame_that_claims_more_than_it_may_is_refused_by_its_head(
    server: Serving, transport: str
) -> None:
    heads = {
        "websocket": b"\x82\xff" + (2**40).to_bytes(8, "big") + bytes(4),
        "frames": b"\x00\xff\xff\xff\xff",
    }
    with talking(server) as talk:
        raw: sockets.socket = talk.socket.socket
        raw.sendall(heads[transport])
        assert talk.ending()[0] == 1009


HEAVY = {
    "a value of many empty arrays": b"\x84\xa4type\xabSetMetadata\xa3log\xa1a\xa3key\xa1k\xa5value",
    "an expectation of many": b"\x84\xa4type\xabSetMetadata\xa3log\xa1a\xa3key\xa1k\xa6expect",
    "a field that nobody knows": b"\x83\xa4type\xa9GetBounds\xa3log\xa1a\xa5other",
}


@pytest.mark.parametrize("inner", [b"\x90", b"\x80", b"\xc0", b"\x91\x00"])
@pytest.mark.parametrize("start", HEAVY.values(), ids=HEAVY.keys())
def test_a_frame_of_very_many_parts_is_refused_before_it_is_decoded(
    server: Serving, start: bytes, inner: bytes
) -> None:
    count = 2_000_000
    with talking(server) as neighbour, talking(server) as talk:
        talk.socket.send(
            b"\x91\x92\x01" + start + b"\xdd" + count.to_bytes(4, "big") + inner * count
        )
        assert talk.ending() == (1009, "a frame of too many parts; send less at once, or blocks")
        assert neighbour.ask(logs.GetBounds("a")) == (0, 0)


def test_a_large_frame_of_few_parts_is_fine(server: Serving) -> None:
    with talking(server) as talk:
        values = [b"\x90" * 100_000] * 20
        assert talk.ask(logs.Append("large", batch(values))) == 0


def test_a_hundred_thousand_claims_fit_into_a_frame(server: Serving) -> None:
    with talking(server) as talk:
        talk.ask(queues.SpecifyQueue("many", QueueSpec()))
        claims: list[Any] = [(2**40 + 3 * one, 1, 1) for one in range(100_000)]
        with pytest.raises(MillstreamError) as found:
            talk.ask(queues.FinishClaims("many", claims, "ack"))
        assert not isinstance(found.value, TooLarge)


def test_a_reader_who_never_reads_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PING_S", 1_000.0)  # a missing pong would cut it as well
    settings = Settings(port=0, send_bytes_max=200_000)
    with running(tmp_path / "store.db", settings) as server, talking(server) as neighbour:
        neighbour.ask(logs.SetMetadata("a", "k", "x" * 60_000))
        with sockets.socket() as raw:
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", server.port))
            raw.sendall(HANDSHAKE)
            assert raw.recv(12) == b"HTTP/1.1 101"  # and never again
            frame = pack([[n, {"type": "GetMetadata", "log": "a"}] for n in range(200)])
            raw.sendall(b"\x82\xfe" + len(frame).to_bytes(2, "big") + bytes(4) + frame)
            broken = select.poll()
            broken.register(raw, 0)
            # The server looks at the bound when it adds an answer behind one that is not taken.
            with suppress(ConnectionError):  # the reset may come between a look and the next frame
                for n in range(200, 5_200):
                    frame = pack([[n, {"type": "GetMetadata", "log": "a"}]])
                    raw.sendall(b"\x82" + bytes([0x80 | len(frame)]) + bytes(4) + frame)
                    if broken.poll(20):
                        break
                else:
                    pytest.fail("the server goes on keeping answers for nobody")
        assert neighbour.ask(logs.GetBounds("a")) == (0, 0)


HANDSHAKE = (
    b"GET /socket HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"sec-websocket-protocol: millstream.v1\r\n\r\n"
)

NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 5, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
NAMES = st.sampled_from(["a", "q", "none", "", "x" * 256, "\x00", "é", "millstream:tokens"])
RUNS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=2)
ODD = st.one_of(
    st.builds(logs.ReadBlocks, NAMES, NUMBERS, NUMBERS, NUMBERS),
    st.builds(logs.WaitForOffset, NAMES, NUMBERS, st.sampled_from([-5, 0, 1])),
    st.builds(logs.Truncate, NAMES, NUMBERS),
    st.builds(logs.OpenCursor, NAMES, NAMES, st.one_of(NUMBERS, NAMES), NUMBERS, st.booleans()),
    st.builds(logs.Acknowledge, NAMES, NAMES, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=2)),
    st.builds(logs.MoveCursor, NAMES, NAMES, NUMBERS, st.booleans()),
    st.builds(logs.ListLogs, NAMES, NUMBERS),
    st.builds(logs.Append, NAMES, st.just(single("x")), NUMBERS),
    st.builds(logs.TakeLog, NAMES, NAMES),
    st.builds(logs.SetMetadata, NAMES, NAMES, st.sampled_from([b"bytes", 1.5, {"a": [None]}])),
    st.builds(queues.FinishClaims, NAMES, RUNS, st.sampled_from(["ack", "nack", "fail", "x"])),
    st.builds(queues.RenewClaims, NAMES, RUNS, NUMBERS),
    st.builds(queues.ClaimMessages, NAMES, NUMBERS, NUMBERS, NAMES, st.just(0), RUNS),
    st.builds(queues.PeekMessages, NAMES, NAMES, NUMBERS, NUMBERS),
    st.builds(queues.GetAttempts, NAMES, NUMBERS),
    st.builds(queues.FindMessage, NAMES, NUMBERS),
    st.builds(queues.ListRecords, NAMES, st.binary(max_size=30), NUMBERS),
    st.builds(queues.RedriveClaims, NAMES, st.lists(NUMBERS, max_size=2), st.none(), NUMBERS),
    st.builds(queues.ReplaceFailed, NAMES, NUMBERS, st.just(single(b"x"))),
    st.builds(queues.PurgeQueue, NAMES, NAMES),
    st.builds(queues.ListQueues, NAMES, NUMBERS),
)


def test_a_run_of_claims_without_end_is_refused(server: Serving) -> None:
    with talking(server) as talk:
        talk.ask(queues.SpecifyQueue("q", QueueSpec(sources=("a",))))
        for command in (
            queues.FinishClaims("q", [(0, 2**62, 1)], "ack", each=True),
            queues.RenewClaims("q", [(0, 99_999, 1), (0, 2, 1)], 5),
            queues.ClaimMessages("q", 1, None, "me", None, [(0, 2**62, 1)]),
        ):
            with pytest.raises(TooLarge):
                talk.ask(command)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(command=ODD)
def test_odd_numbers_and_names_never_make_the_server_fail(
    server: Serving, caplog: pytest.LogCaptureFixture, command: Any
) -> None:
    with talking(server) as talk:
        talk.ask(queues.SpecifyQueue("q", QueueSpec(sources=("a",))))
        talk.send((1, command))
        talk.one_answer()
    assert not [record for record in caplog.records if "request_failed" in record.message]


@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_frame_never_makes_the_server_fail(server: Serving, data: Any) -> None:
    frame = bytearray(
        pack([(1, logs.Append("damaged", batch(["x", "yy"], headers=[{"a": 1}, {"b": "c"}])))])
    )
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    with talking(server) as talk:
        talk.socket.send(bytes(frame))
        found = talk.one_answer()
    assert isinstance(found, int | InvalidInput | Conflict), found
    with talking(server) as talk:
        for info in talk.ask(logs.ListLogs("", 1_000)):
            for block in talk.ask(
                logs.ReadBlocks(
                    info.name, max(info.start_offset, info.end_offset - 2), info.end_offset, 1_000
                )
            ):
                assert block.records()  # whatever was let in can be read
