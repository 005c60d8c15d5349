"""SQS by boto3: what one receive of a FIFO queue holds, and how a receive is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.server.gateways.sqs.attempts import BYTES_MAX, ReceiveAttempts, Received
from millstream.server.serving import Serving, running
from millstream.testing import SimulatedClock
from tests.unit.server.test_sqs import OPEN, sqs_of
from tests.unit.server.test_sqs_features import code_of


@pytest.fixture(scope="module")
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, clock: SimulatedClock) -> Iterator[Serving]:
    with running(tmp_path_factory.mktemp("sqs") / "a.db", OPEN, clock=clock) as serving:
        yield serving


@pytest.fixture(scope="module")
def sqs(server: Serving) -> Any:
    return sqs_of(server)


@pytest.fixture
def queue(sqs: Any, request: pytest.FixtureRequest) -> str:
    """A FIFO queue with a1, a2, b1, a3 and b2: the group and a number."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    name = request.node.name[-70:] + ".fifo"
    url = str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])
    entries = [
        {"Id": body, "MessageBody": body, "MessageGroupId": body[0]}
        for body in ("a1", "a2", "b1", "a3", "b2")
    ]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)
    return url


def receive(sqs: Any, queue: str, count: int = 10, **options: Any) -> dict[str, str]:
    """Receive messages; returns their bodies in order, each with its handle."""
    answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=count, **options)
    return {each["Body"]: each["ReceiptHandle"] for each in answer.get("Messages", [])}


def test_a_receive_holds_several_messages_of_a_group(sqs: Any, queue: str) -> None:
    received = receive(sqs, queue)
    assert list(received) == ["a1", "a2", "a3", "b1", "b2"]
    assert receive(sqs, queue) == {}


def test_a_receive_is_filled_with_one_group_first(sqs: Any, queue: str) -> None:
    received = receive(sqs, queue, 3)
    assert list(received) == ["a1", "a2", "a3"]
    assert list(receive(sqs, queue, 3)) == ["b1", "b2"]


def test_a_group_is_blocked_until_all_its_messages_are_deleted(sqs: Any, queue: str) -> None:
    received = receive(sqs, queue, 2)
    assert list(received) == ["a1", "a2"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=received["a2"])
    assert list(receive(sqs, queue)) == ["b1", "b2"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=received["a1"])
    assert list(receive(sqs, queue)) == ["a3"]


def test_the_first_message_comes_again_before_the_later(
    sqs: Any, queue: str, clock: SimulatedClock
) -> None:
    received = receive(sqs, queue, VisibilityTimeout=10)
    for body in ("a2", "a3"):
        sqs.change_message_visibility(
            QueueUrl=queue, ReceiptHandle=received[body], VisibilityTimeout=100
        )
    clock.advance(11)
    assert list(receive(sqs, queue)) == ["b1", "b2"]  # a2 and a3 are in flight
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=received["a2"])
    clock.advance(100)
    assert [body for body in receive(sqs, queue) if body[0] == "a"] == ["a1", "a3"]


def test_a_repeated_receive_has_the_same_messages(
    sqs: Any, queue: str, clock: SimulatedClock
) -> None:
    options: dict[str, Any] = {"ReceiveRequestAttemptId": "try-1", "VisibilityTimeout": 10}
    first = receive(sqs, queue, 2, **options)
    clock.advance(9)
    assert receive(sqs, queue, 2, **options) == first
    clock.advance(9)  # the visibility timeout has begun again
    assert receive(sqs, queue, 2, ReceiveRequestAttemptId="try-2").keys() == {"b1", "b2"}
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["a1"])
    assert receive(sqs, queue, 2, **options) == {"a2": first["a2"]}
    clock.advance(11)
    again = receive(sqs, queue, 2, **options)
    assert list(again) == ["a2", "a3"]
    assert again["a2"] != first["a2"]


def test_the_id_of_a_receive_is_checked(sqs: Any, queue: str) -> None:
    options = {"QueueUrl": queue, "ReceiveRequestAttemptId": "x" * 129}
    assert code_of(sqs.receive_message, **options) == "InvalidParameterValue"
    standard = sqs.create_queue(QueueName="standard")["QueueUrl"]
    options = {"QueueUrl": standard, "ReceiveRequestAttemptId": "x"}
    assert code_of(sqs.receive_message, **options) == "InvalidParameterValue"


def test_receives_are_forgotten_after_five_minutes_or_if_they_are_too_large() -> None:
    attempts = ReceiveAttempts()
    attempts.keep("q", "a", Received(1_000, []))
    assert attempts.find("q", "a", 300_999) is not None
    assert attempts.find("q", "a", 301_000) is None
    assert attempts.find("other", "a", 1_000) is None

    class Large:
        value = bytes(BYTES_MAX // 2)

    for name in ("b", "c"):
        attempts.keep("q", name, Received(2_000, [Large()]))  # type: ignore[list-item]
    found = [attempts.find("q", name, 2_000) is not None for name in ("a", "b", "c")]
    assert found == [False, False, True]


def test_a_batch_of_deletes_names_handles_whose_time_is_over(
    sqs: Any, queue: str, clock: SimulatedClock
) -> None:
    received = receive(sqs, queue, VisibilityTimeout=10)
    sqs.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=received["b1"], VisibilityTimeout=100
    )
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=received["a1"])
    clock.advance(11)
    entries = [{"Id": body, "ReceiptHandle": handle} for body, handle in received.items()]
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert {entry["Id"] for entry in answer["Successful"]} == {"a1", "b1"}
    assert {entry["Id"] for entry in answer["Failed"]} == {"a2", "a3", "b2"}
    assert {entry["Code"] for entry in answer["Failed"]} == {"InvalidParameterValue"}
