"""Every command with extreme values in every field, over the real socket: never an internal error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from millstream.command import Command, Transact
from millstream.errors import InvalidInput, MillstreamError
from millstream.log.commands import (
    Acknowledge,
    Append,
    CreateLog,
    DeleteLog,
    ForkLog,
    GetBounds,
    MergeFork,
    MoveCursor,
    OpenCursor,
    ReadBlocks,
    SetRetention,
    TakeOver,
)
from millstream.queue.commands import (
    ClaimMessages,
    DeleteQueue,
    FinishClaims,
    PeekMessages,
    PurgeQueue,
    PutMessages,
    RedriveClaims,
    RenewClaims,
    ReplaceFailed,
    SpecifyQueue,
)
from millstream.queue.model.message import messages_of
from millstream.queue.model.routing_marks import Wishes
from millstream.queue.model.spec import QueueSpec
from millstream.queue.service.assignment import Assignment, AssignMessages
from millstream.record import Producer, Retention
from millstream.replica.commands import DigestRange, SendBlocks
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from tests.unit.samples import offered, required, sample
from tests.unit.server.talking import EACH_TRANSPORT, Talk, batch, each_transport, single, talking

transport = EACH_TRANSPORT(each_transport)

EXTREMES: dict[type, list[Any]] = {
    int: [-(2**63), -(2**31), -1, 0, 10, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1],
    str: [
        "",
        "\0",
        "x" * 256,
        "x" * 100_000,
        "日本",
        "*",
        "queue:",
        "queue:a",
        "millstream:tokens",
    ],
    float: [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-320, 1e308],
    bytes: [b"", b"x" * 16, b"\0" * 32, b"\xff" * 100_000],
    bool: [False, True],
}
FAILED = "the server failed"
FULL = QueueSpec(
    sources=("a",), start="earliest", priority_by="p", group_by="g", group_in_flight=0, dedup_by="d"
)
PLAIN_QUEUE = QueueSpec(sources=("a",), start="earliest")
ASSIGNED = QueueSpec(sources=("a",), start="earliest", router="spark")
QUEUES = {"websocket": FULL, "frames": PLAIN_QUEUE}
"""The queue that there is, by transport: what a command does to it does not depend on how it came."""

RUNS = [(1, 1, 1)]
SOUND: dict[type, list[Any]] = {
    Append: [Append("a", single(b"x")), Append("a", single(b"x"), producer=Producer("p", 0))],
    SetRetention: [SetRetention("a", Retention(count=5)), SetRetention("a", Retention(age_ms=1))],
    Acknowledge: [Acknowledge("a", "a", [(1, 2)]), Acknowledge("a", "a", [], 0, [(1, 2)])],
    OpenCursor: [OpenCursor("a", "b", 0, 10, True), OpenCursor("a", "b", "latest", 10, False)],
    ReadBlocks: [ReadBlocks("a", 0, 5, 100)],
    MergeFork: [MergeFork("fork", "rebase"), MergeFork("fork", "longest")],
    SpecifyQueue: [SpecifyQueue("a", PLAIN_QUEUE, PLAIN_QUEUE), SpecifyQueue("b", FULL)],
    PurgeQueue: [PurgeQueue("a", "failed")],
    PeekMessages: [PeekMessages("a", state, 5) for state in ("available", "failed", "done")],
    PutMessages: [
        PutMessages("a", single(b"x"), [Wishes(1, "g", "d")], 5),
        PutMessages("a", single(b"x"), due_ms=5),
        PutMessages("a", single(b"x"), [Wishes(1)], producer=Producer("p", 0)),
    ],
    FinishClaims: [
        FinishClaims("a", RUNS, "nack", 5, "why", True),
        FinishClaims("a", RUNS, "ack"),
        FinishClaims("a", RUNS, "fail"),
    ],
    RenewClaims: [RenewClaims("a", RUNS, 1_000)],
    RedriveClaims: [RedriveClaims("a", [3, 4], 5.0, 1)],
    ReplaceFailed: [ReplaceFailed("a", 3, single(b"x"))],
    ClaimMessages: [
        ClaimMessages("a", 2, 1_000, "c", 1, []),
        ClaimMessages("a", 2, 1_000, "c", None, RUNS),
        ClaimMessages("a", 2, None, "c", None, [], True),
    ],
    DigestRange: [DigestRange("a", 0, 5)],
    SendBlocks: [SendBlocks("a", 0, 5, 100)],
    Transact: [
        Transact([Append("a", single(b"x")), FinishClaims("a", RUNS, "nack", 5)]),
        Transact([MoveCursor("a", "a", 5), SpecifyQueue("c", FULL)]),
    ],
    AssignMessages: [AssignMessages([Assignment("s", "a", 0, 5, [(0, 2)], None)])],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("extremes") / "store.db"
    with running(path, Settings(port=0, wait_ms_max=1), durability="relaxed") as server:
        yield server


def mutated(value: Any, hint: Any, field: str = "") -> Iterator[Any]:
    """The value with one extreme leaf each."""
    if isinstance(value, Struct):
        hints = get_type_hints(type(value), include_extras=True)
        for one in fields(value):
            now = getattr(value, one.name)
            for found in mutated(now, hints[one.name], one.name):
                yield replace(value, **{one.name: found})
    elif isinstance(value, list | tuple) and value:
        inner = get_args(hint)[0] if get_args(hint) else Any
        for turn, one in enumerate(value):
            for found in mutated(one, inner, field):
                yield type(value)([*value[:turn], found, *value[turn + 1 :]])
        yield type(value)(value * 1_000)
        yield type(value)()
    elif value is None or (isinstance(value, list | tuple | dict) and not value):
        other = sample(hint, field=field) if hint not in (Any, None) else 1
        if other is not None and other != value:
            yield other
            yield from mutated(other, hint, field)
    else:
        yield from (found for found in EXTREMES.get(type(value), []) if found != value)


def bases(kind: type[Command[Any]]) -> list[Any]:
    """Sound commands of a kind, to begin with."""
    return SOUND.get(kind, []) or [required(kind)]


def ask(talk: Talk, command: Command[Any]) -> Any:
    """The answer, or the error; sent without the client's own checks."""
    talk.socket.send(msgspec.msgpack.encode([(1, command)]))
    ((_, found),) = talk.frame()
    return found


def prepare(talk: Talk, spec: QueueSpec) -> None:
    """A log, a fork of it, a cursor and a queue, with messages in every state."""
    for command in (
        TakeOver("a"),
        DeleteLog("fork"),
        DeleteLog("a"),
        DeleteQueue("a"),
        CreateLog("a"),
        SpecifyQueue("a", spec),
        SpecifyQueue("s", ASSIGNED),
        OpenCursor("a", "a", 0, 10, True),
        Append("a", batch([b"x"] * 20, headers=[{"p": 1, "g": "g"}] * 20)),
        ForkLog("a", "fork"),
    ):
        ask(talk, command)
    for outcome in ("ack", "fail", ""):
        found = talk.ask(ClaimMessages("a", 2, None, "c", None, []))
        runs = [(one.claim_id, 1, one.attempt) for one in messages_of(found)]
        if outcome:
            talk.ask(FinishClaims("a", runs, outcome))


@pytest.mark.parametrize("kind", offered(), ids=lambda kind: kind.__name__)
def test_an_extreme_value_gets_an_answer_or_a_clean_error(
    server: Serving, transport: str, kind: type[Command[Any]]
) -> None:
    failures = []
    with talking(server) as talk:
        for base in bases(kind):
            prepare(talk, QUEUES[transport])
            for command in mutated(base, kind):
                frame = msgspec.msgpack.encode([(1, command)])
                try:
                    wire.decode_requests(frame)
                except InvalidInput:
                    continue  # it is no request: the connection would be closed
                found = ask(talk, command)
                if isinstance(found, MillstreamError) and FAILED in found.message:
                    failures.append(command)
        assert not isinstance(ask(talk, GetBounds("a")), MillstreamError), "the store goes on"
    assert not failures


@pytest.mark.parametrize(
    "put",
    [
        {"wishes": [Wishes(-(2**63))]},
        {"wishes": [Wishes(-1)]},
        {"wishes": [Wishes(10)]},
        {"wishes": [Wishes(2**63 - 1)]},
        {"delay_ms": -1},
        {"delay_ms": 2**63 - 1},
        {"due_ms": 2**63 - 1},
        {"delay_ms": 1, "due_ms": 1},
        {"delay_ms": 1, "wishes": [Wishes()] * 2},
    ],
    ids=str,
)
def test_a_put_that_no_noun_would_ask_for_is_refused(server: Serving, put: dict[str, Any]) -> None:
    with talking(server) as talk:
        prepare(talk, FULL)
        before = [talk.ask(GetBounds(log)) for log in ("queue:a", "queue-later:a")]
        for command in (PutMessages("a", single(b"x"), **put),):
            with pytest.raises(InvalidInput):
                talk.ask(command)
            with pytest.raises(InvalidInput):
                talk.ask(Transact([command]))
        assert [talk.ask(GetBounds(log)) for log in ("queue:a", "queue-later:a")] == before


def test_the_steps_of_a_transaction_are_checked_too(server: Serving) -> None:
    with talking(server) as talk:
        prepare(talk, FULL)
        for step in (
            FinishClaims("a", [(-1, 1, 1)], "ack"),
            FinishClaims("a", [(1, 2**62, 1)], "ack"),
            FinishClaims("a", [(1, 1, 1)], "nack", delay_ms=-(2**63)),
        ):
            with pytest.raises(MillstreamError) as refused:
                talk.ask(Transact([CreateLog("b"), step]))
            assert FAILED not in refused.value.message
        assert talk.ask(GetBounds("b")) == (0, 0)


@pytest.mark.parametrize("messages", [0, 1])
@pytest.mark.parametrize("wait_ms", [None, 60_000])
def test_a_lease_that_is_over_at_once_is_refused_whether_or_not_there_are_messages(
    server: Serving, messages: int, wait_ms: int | None
) -> None:
    with talking(server) as talk:
        queue = f"leased-{messages}-{wait_ms}"
        talk.ask(SpecifyQueue(queue, QueueSpec()))
        if messages:
            talk.ask(PutMessages(queue, single(b"x")))

        with pytest.raises(InvalidInput, match="lease_ms is at least 1, not 0"):
            talk.ask(ClaimMessages(queue, 1, 0, "", wait_ms, []))
        with pytest.raises(InvalidInput, match="lease_ms is at least 1, not 0"):
            talk.ask(RenewClaims(queue, [], 0))
