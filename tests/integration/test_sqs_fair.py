"""Fair queues of SQS: how long a quiet group waits beside a noisy one, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock

NOISY = 10_000
QUIET = 10
WORKERS = 10
BATCH = 10
WORK_S = 10
"""How long a worker works on a batch."""

Send = Callable[[str], None]
"""Sends the messages of the quiet group to a queue."""


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def server(tmp_path: Path, clock: SimulatedClock) -> Iterator[Serving]:
    settings = Settings(port=0, stop_s=5.0)
    with running(tmp_path / "a.db", settings, clock=clock) as serving:
        yield serving


@pytest.fixture
def sqs(server: Serving) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )


@pytest.fixture(params=["boto3", "kombu"])
def send(request: pytest.FixtureRequest, server: Serving, sqs: Any) -> Iterator[Send]:
    if request.param == "boto3":
        yield lambda name: fill(sqs, name, "quiet", QUIET)
        return
    kombu = pytest.importorskip("kombu")
    pytest.importorskip("pycurl")
    broker = f"sqs://any:any@127.0.0.1:{urlsplit(server.url).port}//"
    options = {"region": "us-east-1", "is_secure": False}
    with kombu.Connection(broker, transport_options=options) as connection:

        def send_by_kombu(name: str) -> None:
            with connection.SimpleQueue(name) as queue:
                for number in range(QUIET):
                    queue.put({"number": number}, properties={}, MessageGroupId="quiet")

        yield send_by_kombu


def fill(sqs: Any, name: str, group: str, count: int) -> None:
    """Send messages of a group, by tens."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    for first in range(0, count, 10):
        entries = [
            {"Id": str(number), "MessageBody": "work", "MessageGroupId": group}
            for number in range(min(10, count - first))
        ]
        assert "Failed" not in sqs.send_message_batch(QueueUrl=url, Entries=entries)


def dwells(sqs: Any, clock: SimulatedClock, send: Send, *, name: str, noisy: int) -> list[int]:
    """Return the seconds from the send to the delete of ten quiet messages that meet a working crew.

    The workers begin in turns, so in each second a tenth of them delete their messages and receive.
    """
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    fill(sqs, name, "noisy", noisy)
    held: list[list[dict[str, Any]]] = [[] for _ in range(WORKERS)]
    for second in range(WORK_S):  # until the crew is busy
        turn(sqs, url, held, second)
        clock.advance(1)
    send(name)
    seconds: list[int] = []
    for second in range(1_000):
        seconds += [second] * turn(sqs, url, held, second)
        if len(seconds) == QUIET:
            return seconds
        clock.advance(1)
    raise AssertionError(f"after {second} seconds {len(seconds)} quiet messages are done")


def turn(sqs: Any, url: str, held: list[list[dict[str, Any]]], second: int) -> int:
    """Let the workers of one second end their work and receive; return the ended quiet messages."""
    ended = 0
    for worker in range(second % WORK_S, len(held), WORK_S):
        for message in held[worker]:
            ended += message["Attributes"]["MessageGroupId"] == "quiet"
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        answer = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=BATCH,
            MessageSystemAttributeNames=["MessageGroupId"],
        )
        held[worker] = answer.get("Messages", [])
    return ended


def test_a_quiet_group_waits_at_most_twice_as_long_beside_ten_thousand_messages(
    sqs: Any, clock: SimulatedClock, send: Send
) -> None:
    alone = dwells(sqs, clock, send, name="alone", noisy=0)
    beside = dwells(sqs, clock, send, name="beside", noisy=NOISY)
    assert max(beside) <= 2 * max(alone), (alone, beside)
    assert sum(beside) <= 2 * sum(alone), (alone, beside)
    url = sqs.get_queue_url(QueueName="beside")["QueueUrl"]
    count = "ApproximateNumberOfMessages"
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[count])["Attributes"]
    assert int(attributes[count]) > NOISY - 1_000  # the noisy group was still there
