"""Recorded conversations: the frames of a client and a server of an earlier version.

`python -m tests.unit.remote.recorded FILE` plays a fixed conversation with the Millstream on the path of
Python, and writes its frames. A release adds a recording of its version; no recording is ever changed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from millstream.errors import EndMoved, NotFound
from millstream.remote import dial
from millstream.remote.codec import FrameCodec
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.wire import commands as wire

FOLDER = Path(__file__).parents[2] / "data" / "wire"


def play(ms: millstream.Millstream) -> None:
    """Use logs, cursors, queues, transactions and rooms, one request at a time."""
    _play_logs(ms)
    _play_queues(ms)
    _play_rooms(ms)
    with ms.transaction() as tx:
        offset = tx.append("orders", b"in a transaction")
        tx.put("mail", b"letter")
    assert offset.result == 4
    assert sorted(log.name for log in ms.logs())[:2] == ["branch", "clicks"]


def _play_logs(ms: millstream.Millstream) -> None:
    orders = ms.log("orders")
    assert orders.append(b"zero", key=b"k", headers={"n": 0}, timestamp=1_000) == 0
    assert orders.append_many([b"one", None, b"three"], timestamps=[1_001, 1_002, 1_003]) == range(
        1, 4
    )
    first, *_ = orders.read()
    assert (first.value, first.key, dict(first.headers)) == (b"zero", b"k", {"n": 0})
    assert [record.value for record in orders.read(1)] == [b"one", None, b"three"]
    assert (orders.end_offset(), orders.wait(2), orders.offset_at(1_002)) == (4, True, 2)
    orders.metadata["owner"] = {"name": "ada"}
    assert dict(orders.metadata) == {"owner": {"name": "ada"}}
    cursor = orders.cursor("billing")
    assert [record.offset for record in cursor.take(2)] == [0, 1]
    cursor.ack(0)
    assert (cursor.flush(), cursor.info().floor) == (1, 1)
    assert ms.log("clicks", partitions=2).append(b"click", key=b"ada").offset == 0
    assert orders.fork("branch").append(b"only here") == 4
    with pytest.raises(EndMoved) as moved:
        orders.append(b"late", expect_end=2)
    assert moved.value.end == 4
    assert orders.truncate(before=1) == 1


def _play_queues(ms: millstream.Millstream) -> None:
    mail = ms.create_queue("mail", lease=60, max_attempts=2)
    put = [mail.put(b"a", headers={"n": 1}), *mail.put_many([b"b", b"c"])]
    messages = mail.claim(3)
    assert [message.value for message in messages] == [b"a", b"b", b"c"]
    mail.renew(messages[2:])
    mail.ack(messages[0])
    mail.nack(messages[1], delay=0)
    mail.fail(messages[2], reason="broken")
    (again,) = mail.claim(1)
    assert (again.value, again.attempt) == (b"b", 2)
    assert [message.value for message in mail.peek(1, state="failed")] == [b"c"]
    assert mail.message(put[0]).state == "done"
    assert [attempt.outcome for attempt in mail.attempts(messages[2])] == ["failed"]
    assert mail.cancel(mail.put(b"d", delay=60)) is True
    info = mail.info()
    assert (info.done, info.failed, info.in_flight) == (1, 1, 1)
    assert [queue.name for queue in ms.queues()] == ["mail"]
    with pytest.raises(NotFound) as missing:
        ms.queue("absent").claim()
    assert missing.value.name == "absent"


def _play_rooms(ms: millstream.Millstream) -> None:
    hall = ms.room("hall", user="ann")
    hall.specify(retained=["shape"], ttl=60)
    assert hall.send("shape", {"x": 1}, key="a") >= 0
    assert [value.key for value in hall.retained().values] == ["a"]
    assert hall.presence() == []
    assert [room.name for room in ms.rooms()] == ["hall"]


@dataclass(frozen=True)
class RecordedConversation:
    """The frames of a conversation, and the commands of the version that recorded it."""

    commands: dict[str, list[str]]
    """The names of the fields, by the names of the commands."""
    hello: bytes
    exchanges: list[tuple[bytes, bytes]]
    """A frame of a request, and the frame of its answer."""


def load(path: Path) -> RecordedConversation:
    """Read a recording."""
    data = json.loads(path.read_text())
    exchanges = [(b64decode(sent), b64decode(answer)) for sent, answer in data["exchanges"]]
    return RecordedConversation(data["commands"], b64decode(data["hello"]), exchanges)


def record() -> dict[str, Any]:
    """Play the conversation with a server of this process, and return its frames."""
    sent: list[bytes] = []
    received: list[bytes] = []

    class NotingCodec(FrameCodec):
        def frame(self, data: bytes) -> bytes:
            sent.append(data)
            return super().frame(data)

        def feed(self, data: bytes) -> list[bytes]:
            frames = super().feed(data)
            received.extend(frames)
            return frames

    dial.FrameCodec = NotingCodec  # type: ignore[misc]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "store.db", Settings(port=0)) as server,
        millstream.open(server.url) as ms,
    ):
        play(ms)
    hello, *answers = received
    for frames in (sent, answers):
        assert all(len(msgspec.msgpack.decode(frame)) == 1 for frame in frames)
    return {
        "commands": {kind.__name__: list(kind.__struct_fields__) for kind in wire.OFFERED},
        "hello": b64encode(hello).decode(),
        "exchanges": [
            [b64encode(request).decode(), b64encode(answer).decode()]
            for request, answer in zip(sent, answers, strict=True)
        ],
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1) + "\n")
