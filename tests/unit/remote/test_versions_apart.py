"""Promise: a client and a server that are one minor version apart work together.

`tests/data/wire` has a conversation of each earlier protocol, recorded by the version that spoke it. The
name begins with the version of the protocol.
"""

from __future__ import annotations

import re
import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from millstream.errors import InvalidInput
from millstream.queue.commands import SpecifyQueue
from millstream.queue.model.spec import QueueSpec
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from millstream.wire import framing
from tests.unit.remote.recorded import FOLDER, RecordedConversation, load, play, record
from tests.unit.server.frames import SOON_S, read_head
from tests.unit.server.talking import talking

FILES = sorted(FOLDER.glob("*.json"))

ONLY_SHOWN = {("FinishClaims", "error")}
"""Later fields that change nothing about what a command does: an older server may ignore them."""

ERROR_TEXT = re.compile(r"\[2\]\[1\]$")

decode = msgspec.msgpack.decode


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> RecordedConversation:
    """A conversation of an earlier version."""
    return load(request.param)


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Yield where a value is not what a program of the earlier version expects.

    Maps may have more keys, and lists more elements, which msgspec ignores. Numbers and ids are of the
    moment, and compared by their types. So are the texts of errors.
    """
    if type(old) is not type(new):
        yield f"{place}: {old!r:.60} became {new!r:.60}"
    elif isinstance(old, dict):
        for key, value in old.items():
            if key not in new:
                yield f"{place}.{key} is missing"
            else:
                yield from differences(value, new[key], f"{place}.{key}")
    elif isinstance(old, list):
        if len(new) < len(old):
            yield f"{place}: {len(old)} elements became {len(new)}"
        for index, (value, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(value, other, f"{place}[{index}]")
    elif isinstance(old, str | bytes | bool) and old != new and not _is_of_the_moment(old, place):
        yield f"{place}: {old!r:.60} became {new!r:.60}"


def _is_of_the_moment(value: str | bytes | bool, place: str) -> bool:
    """Whether a value is an id, the text of an error, or a metadata block, which has its time."""
    if isinstance(value, bytes):
        return value.startswith(b"\xff\xff\x01\x02")
    if isinstance(value, bool):
        return False
    return bool(
        re.fullmatch(r"[0-9a-f]{8,}|[\w-]{12,}|[\w.-]+:\d+", value) or ERROR_TEXT.search(place)
    )


def test_requests_of_an_earlier_client_get_answers_that_it_understands(
    recorded: RecordedConversation, tmp_path: Path
) -> None:
    with running(tmp_path / "store.db", Settings(port=0)) as server, talking(server) as talk:
        hello = msgspec.to_builtins(talk.hello)
        assert not [*differences(decode(recorded.hello), hello)]
        for request, answer in recorded.exchanges:
            talk.socket.send(request)
            new_answer = talk.socket.recv()
            (_, command), *_ = decode(request)
            assert not [*differences(decode(answer), decode(new_answer), command["type"])]


def test_this_client_works_with_an_earlier_server(recorded: RecordedConversation) -> None:
    problems: list[str] = []
    with serving(recorded, problems) as url, millstream.open(url) as ms:
        play(ms)
    assert problems == []


def test_a_server_that_lacks_an_ability_is_not_asked(recorded: RecordedConversation) -> None:
    lacking = set(wire.ABILITIES) - set(decode(recorded.hello).get("abilities", ()))
    if "jobs" not in lacking:
        pytest.skip("the server of this recording has the abilities of this version")
    problems: list[str] = []
    with serving(recorded, problems) as url, millstream.open(url) as ms:
        queue = ms.queue("mail")
        for ask in (
            lambda: queue.group_limits(),
            lambda: queue.cancel(1, running=True),
            lambda: ms.session.execute(SpecifyQueue("q", QueueSpec(group_order=False))),
            lambda: queue.peek(state="cancelled"),
        ):
            with pytest.raises(InvalidInput, match=r"'jobs'.*update the server") as caught:
                ask()
            assert caught.value.abilities == ["jobs"]
        with pytest.raises(InvalidInput, match="'jobs'"), ms.transaction() as tx:
            tx.cancel(queue, 1)
        orders = ms.log("orders")  # the connection still works
        assert orders.append(b"zero", key=b"k", headers={"n": 0}, timestamp=1_000) == 0
    assert problems == []


def test_every_addition_to_the_protocol_has_an_ability(recorded: RecordedConversation) -> None:
    offered = {kind.__name__: kind for kind in wire.OFFERED}
    told = set(decode(recorded.hello).get("abilities", ()))
    for name, fields in recorded.commands.items():
        assert name in offered, f"{name} was removed"
        assert set(fields) <= set(offered[name].__struct_fields__), f"{name} has lost a field"
    for name, kind in offered.items():
        if name not in recorded.commands:
            assert kind.traits.ability not in {"", *told}, f"{name} is new: give it an ability"
            continue
        added = set(kind.__struct_fields__) - set(recorded.commands[name])
        declared = {
            field for field, ability in kind.traits.additions.items() if ability not in told
        }
        undeclared = {field for field in added - declared if (name, field) not in ONLY_SHOWN}
        assert not undeclared, f"{name} has new fields {undeclared}: declare an Addition"


def test_the_present_version_speaks_as_the_newest_recording() -> None:
    """A change of the protocol needs a recording: of a release, before the change."""
    newest = load(FILES[-1])
    told = set(decode(newest.hello).get("abilities", ()))
    assert told <= set(wire.ABILITIES)
    assert {Path(path).name.partition("-")[0] for path in FILES} == {str(wire.VERSION)}


def test_the_conversation_can_be_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.remote import dial

    monkeypatch.setattr(dial, "FrameCodec", dial.FrameCodec)
    recorded, newest = record(), load(FILES[-1])
    sent = [b64decode(request) for request, _ in recorded["exchanges"]]
    assert _kinds(sent) == _kinds([request for request, _ in newest.exchanges])


def _kinds(requests: list[bytes]) -> set[str]:
    """Return the types of the commands of requests."""
    return {command["type"] for request in requests for _, command in decode(request)}


# A server of recorded frames.


@contextmanager
def serving(recorded: RecordedConversation, problems: list[str]) -> Iterator[str]:
    """Answer a client with recorded frames; note requests that the earlier server would not take."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, recorded, problems))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(SOON_S)


def _serve(listening: socket.socket, recorded: RecordedConversation, problems: list[str]) -> None:
    try:
        connection, _ = listening.accept()
    except OSError:
        return  # the test has ended
    with closing(connection):
        connection.settimeout(SOON_S)
        _, behind = read_head(connection)
        connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
            b"Upgrade: millstream\r\n\r\n" + framing.frame(recorded.hello)
        )
        unframer = framing.Unframer(1 << 30)
        unused = [*recorded.exchanges]
        received = unframer.feed(behind)
        while True:
            for kind, data in received:
                if kind == framing.CLOSE:
                    return
                for number, command in decode(data):
                    place = _place_of(command, unused)
                    (request, answer), unused = unused[place], unused[place + 1 :]
                    (_, old_command), *_ = decode(request)
                    problems += differences(old_command, command, old_command["type"])
                    ((_, failed, result),) = decode(answer)
                    frame = msgspec.msgpack.encode([(number, failed, result)])
                    connection.sendall(framing.frame(frame))
            received = unframer.feed(connection.recv(65_536))


def _place_of(command: Any, unused: list[tuple[bytes, bytes]]) -> int:
    """Return the place of the recorded request that a client makes now.

    A client of this version may leave out up to two requests of the earlier version. Without a
    fitting request the next recorded request is compared.
    """
    for place, (request, _) in enumerate(unused[:3]):
        (_, old_command), *_ = decode(request)
        if old_command["type"] == command["type"] and not [*differences(old_command, command)]:
            return place
    return 0
