"""Messages of other systems move into a queue: all of them, once, and none is lost by a crash."""

from __future__ import annotations

import sqlite3
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from millstream import Message, Millstream
from millstream.errors import CannotOpen, InvalidInput, Overloaded
from millstream.exchange.foreign import huey_file as huey_source
from millstream.exchange.foreign.kinds import SourceKind
from millstream.exchange.foreign.message import ForeignMessage, ForeignQueue, needed
from millstream.exchange.foreign.moving import (
    move_messages,
    open_source,
    target_queue,
)


@pytest.fixture
def ms() -> Iterator[Millstream]:
    with millstream.open(":memory:") as ms:
        yield ms


def moved(ms: Millstream, source: ForeignQueue) -> list[Message]:
    """Move everything, and claim what has arrived."""
    move_messages(ms, "mail", source)
    return ms.queue("mail").claim(1_000)


class Crash(Exception):
    """The end of a process between two steps."""


class CrashingQueue:
    """A source whose process ends before it removes messages."""

    def __init__(self, source: ForeignQueue) -> None:
        self._source = source

    def take(self, count: int) -> Any:
        return self._source.take(count)

    def remove(self, messages: Any) -> None:
        raise Crash

    def close(self) -> None:
        self._source.close()


def check_crash(ms: Millstream, kind: SourceKind, address: str, queue: str) -> list[Message]:
    """Crash between storing and removing, then move again; every message is there once."""
    with pytest.raises(Crash):
        move_messages(ms, "mail", CrashingQueue(open_source(kind, address, queue)))
    messages = moved(ms, open_source(kind, address, queue))
    ids = [message.headers["import-id"] for message in messages]
    assert len(ids) == len(set(ids))
    assert moved(ms, open_source(kind, address, queue)) == []
    return messages


def test_a_missing_package_is_named() -> None:
    with pytest.raises(InvalidInput, match="needs the package no_such_package"):
        needed("no_such_package", "rq")


def test_a_queue_without_a_dedup_id_is_told(ms: Millstream) -> None:
    class Once:
        def __init__(self) -> None:
            self.waiting = [ForeignMessage(id="1", value=b"a")]

        def take(self, count: int) -> list[ForeignMessage]:
            return self.waiting

        def remove(self, messages: Any) -> None:
            self.waiting = []

        def close(self) -> None:
            pass

    plain = ms.create_queue("plain")
    summary = move_messages(ms, "plain", Once())
    assert (summary.moved, summary.repeats_are_dropped) == (1, False)
    assert [message.value for message in plain.claim(10)] == [b"a"]


def test_a_source_that_fails_leaves_the_store_as_it_is(ms: Millstream) -> None:
    class Failing(CrashingQueue):
        def __init__(self) -> None:
            pass

        def take(self, count: int) -> Any:
            raise InvalidInput("SQS: access is denied")

        def close(self) -> None:
            pass

    with pytest.raises(InvalidInput, match="denied"):
        move_messages(ms, "mail", Failing())
    assert not ms.queue("mail").exists()


@pytest.fixture
def huey_file(tmp_path: Path) -> str:
    huey = pytest.importorskip("huey")
    path = str(tmp_path / "huey.db")
    app = huey.SqliteHuey("shop", filename=path)

    @app.task()
    def send(to: str) -> None: ...

    for name in ("ada", "bob", "cy"):
        send(name)
    app.storage.add_to_schedule(b"dan", datetime(2999, 1, 1))  # as its consumer does
    app.storage.close()
    return path


def test_huey_tasks_move_with_their_due_times(ms: Millstream, huey_file: str) -> None:
    messages = check_crash(ms, SourceKind.HUEY, huey_file, "shop")
    assert len(messages) == 3
    assert {m.headers["content-type"] for m in messages} == {"application/x-python-pickle"}
    for message, name in zip(messages, (b"ada", b"bob", b"cy"), strict=True):
        assert message.value is not None
        assert name in message.value
    assert ms.queue("mail").info().delayed == 1


def test_a_file_without_huey_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("huey")
    with pytest.raises(CannotOpen, match="there is no file"):
        open_source(SourceKind.HUEY, str(tmp_path / "none.db"), "shop")
    (tmp_path / "text.db").write_text("no store" * 100)
    with pytest.raises(InvalidInput, match="no file of SQLite"):
        open_source(SourceKind.HUEY, str(tmp_path / "text.db"), "shop")
    millstream.open(tmp_path / "ours.db").close()
    with pytest.raises(InvalidInput, match="no tables of Huey"):
        open_source(SourceKind.HUEY, str(tmp_path / "ours.db"), "shop")


def test_a_file_that_huey_writes_is_told(huey_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huey_source, "LOCK_S", 0.0)
    source = open_source(SourceKind.HUEY, huey_file, "shop")
    with closing(sqlite3.connect(huey_file, isolation_level=None)) as consumer:
        consumer.execute("BEGIN IMMEDIATE")
        with pytest.raises(Overloaded, match="stop the consumers of Huey"):
            source.remove([])
    source.remove([])
    source.close()


@pytest.fixture
def redis_address() -> Iterator[str]:
    fakeredis = pytest.importorskip("fakeredis")
    pytest.importorskip("redis")
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()
    thread.join()


def redis_client(address: str) -> Any:
    import redis

    return redis.Redis.from_url(address)


def test_a_redis_list_moves_in_order_and_equal_values_stay(
    ms: Millstream, redis_address: str
) -> None:
    with redis_client(redis_address) as client:
        client.rpush("mail", b"1", b"2", b"2", b"\xff")
        messages = check_crash(ms, SourceKind.REDIS_LIST, redis_address, "mail")
        assert [message.value for message in messages] == [b"1", b"2", b"2", b"\xff"]
        assert client.keys("*") == []
        client.rpush("mail", b"2")
    assert [
        m.value for m in moved(ms, open_source(SourceKind.REDIS_LIST, redis_address, "mail"))
    ] == [b"2"]


def test_rq_jobs_move_with_their_descriptions(ms: Millstream, redis_address: str) -> None:
    rq = pytest.importorskip("rq")
    with redis_client(redis_address) as client:
        jobs = [
            rq.job.Job.create("shop.tasks.send", args=(name,), connection=client, origin="shop")
            for name in ("ada", "bob")
        ]
        for job in jobs:  # as `enqueue` does, in commands that the server of the test knows
            fields = {name: value for name, value in job.to_dict().items() if value is not None}
            client.hset(f"rq:job:{job.id}", mapping=fields)
            client.rpush("rq:queue:shop", job.id)
        messages = check_crash(ms, SourceKind.RQ, redis_address, "shop")
        assert client.keys("rq:job:*") == []
    assert [message.headers["rq-job"] for message in messages] == [job.id for job in jobs]
    assert messages[0].headers["rq-description"] == "shop.tasks.send('ada')"
    assert messages[0].value is not None
    assert b"ada" in messages[0].value


def envelope(number: int, **task: Any) -> bytes:
    """A message as Celery's transport writes it."""
    body = msgspec.json.encode([[number], {}, {}])
    return msgspec.json.encode(
        {
            "body": b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"task": "shop.send", "id": f"task-{number}", "eta": None, **task},
            "properties": {"body_encoding": "base64", "priority": 0, "delivery_tag": str(number)},
        }
    )


def test_celery_messages_move_with_task_and_due_time(ms: Millstream, redis_address: str) -> None:
    with redis_client(redis_address) as client:
        client.lpush("celery", envelope(1))
        client.lpush("celery", envelope(2))
        client.lpush("celery\x06\x169", envelope(3))
        client.lpush("celery", envelope(4, eta="2999-01-01T00:00:00+00:00"))
        messages = check_crash(ms, SourceKind.CELERY_REDIS, redis_address, "celery")
        assert client.keys("*") == []
    assert [message.json() for message in messages] == [[[n], {}, {}] for n in (1, 2, 3)]
    assert [message.headers["celery-id"] for message in messages] == ["task-1", "task-2", "task-3"]
    assert ms.queue("mail").info().delayed == 1


def test_an_unknown_envelope_is_an_error_and_stays(ms: Millstream, redis_address: str) -> None:
    with redis_client(redis_address) as client:
        client.lpush("celery", b"no JSON")
        with pytest.raises(InvalidInput, match="no JSON envelope"):
            moved(ms, open_source(SourceKind.CELERY_REDIS, redis_address, "celery"))
        assert client.lrange("celery:millstream", 0, -1) == [b"no JSON"]


def test_a_server_that_does_not_answer_is_an_error() -> None:
    pytest.importorskip("redis")
    with pytest.raises(InvalidInput, match="Redis:"):
        open_source(SourceKind.REDIS_LIST, "redis://127.0.0.1:1/0", "mail")
    with pytest.raises(InvalidInput, match="is an address such as redis://localhost"):
        open_source(SourceKind.CELERY_REDIS, "127.0.0.1", "mail")


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """A client, and the address of a queue, of a server with the protocol of SQS."""
    boto3 = pytest.importorskip("boto3")
    server_module = pytest.importorskip("moto.server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("sqs", endpoint_url=f"http://{host}:{port}")
    yield client, client.create_queue(QueueName="mail")["QueueUrl"]
    client.close()
    server.stop()


def test_sqs_messages_move_with_their_attributes(ms: Millstream, sqs: tuple[Any, str]) -> None:
    client, address = sqs
    for number in range(12):
        client.send_message(
            QueueUrl=address,
            MessageBody=str(number),
            MessageAttributes={"kind": {"DataType": "String", "StringValue": "sale"}},
        )
    source = open_source(SourceKind.SQS, address, "")
    received = source.take(10)
    repeated = ForeignMessage(id=received[0].id, value=received[0].value)
    queue = target_queue(ms, "mail")
    queue.put(repeated.value, headers={"import-id": repeated.id})  # a crash left it in both
    for message in received:  # they are visible again, as after the time of a crash
        client.change_message_visibility(
            QueueUrl=address, ReceiptHandle=message.receipt, VisibilityTimeout=0
        )
    messages = moved(ms, source)
    values = sorted(int(message.text) for message in messages)
    assert values == list(range(12))
    assert {m.headers.get("kind") for m in messages} == {"sale", None}
    assert moved(ms, open_source(SourceKind.SQS, address, "")) == []


def test_a_wrong_address_of_sqs_is_refused() -> None:
    pytest.importorskip("boto3")
    with pytest.raises(InvalidInput, match="address of a queue"):
        open_source(SourceKind.SQS, "mail", "")


def test_sqs_without_a_region_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(InvalidInput, match="specify a region; boto3 reads the region from AWS_"):
        open_source(SourceKind.SQS, "http://127.0.0.1:1/1/mail", "")
