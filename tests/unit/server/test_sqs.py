"""SQS by boto3: queues, messages, receipts and batches, as programs use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import millstream
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

OPEN = Settings(port=0, stop_s=5.0)


def sqs_of(
    server: Serving, region: str = "us-east-1", key: str = "any", secret: str = "any"
) -> Any:
    """A client of boto3 for a server."""
    config = Config(retries={"max_attempts": 1}, read_timeout=30)
    return boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=config,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with running(tmp_path_factory.mktemp("sqs") / "a.db", OPEN) as serving:
        yield serving


@pytest.fixture(scope="module")
def sqs(server: Serving) -> Any:
    return sqs_of(server)


@pytest.fixture
def queue(sqs: Any, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[:80]
    return str(sqs.create_queue(QueueName=name)["QueueUrl"])


def test_a_message_is_sent_received_and_deleted(sqs: Any, queue: str) -> None:
    sent = sqs.send_message(
        QueueUrl=queue,
        MessageBody="hello",
        MessageAttributes={
            "color": {"DataType": "String", "StringValue": "red"},
            "size": {"DataType": "Number.int", "StringValue": "007"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        },
    )
    (message,) = sqs.receive_message(
        QueueUrl=queue, AttributeNames=["All"], MessageAttributeNames=["All"]
    )["Messages"]

    assert message["Body"] == "hello"
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MessageAttributes"]["size"] == {"DataType": "Number.int", "StringValue": "007"}
    assert message["MessageAttributes"]["raw"]["BinaryValue"] == b"\0\xff"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_the_messages_are_those_of_a_queue_of_ours(server: Serving, sqs: Any, queue: str) -> None:
    sqs.send_message(
        QueueUrl=queue,
        MessageBody="from SQS",
        MessageAttributes={"total": {"DataType": "Number", "StringValue": "250"}},
    )
    with millstream.open(server.url) as ms:
        ours = ms.queue(queue.rpartition("/")[2])
        (message,) = ours.claim()
        assert (message.text, message.headers["total"]) == ("from SQS", 250)
        ours.ack(message)
        ours.put("from us", headers={"kind": "plain", "n": 7})
    (received,) = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
    assert received["Body"] == "from us"
    assert received["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "7"}


def test_a_batch_answers_each_entry(sqs: Any, queue: str) -> None:
    answer = sqs.send_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "good", "MessageBody": "one"},
            {"Id": "bad", "MessageBody": "two", "DelaySeconds": 901},
            {"Id": "control", "MessageBody": "\x01"},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [
        ("bad", "InvalidParameterValue"),
        ("control", "InvalidMessageContents"),
    ]
    (message,) = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    deleted = sqs.delete_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "a", "ReceiptHandle": message["ReceiptHandle"]},
            {"Id": "b", "ReceiptHandle": "no handle"},
        ],
    )
    assert deleted["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"
    assert [entry["Id"] for entry in deleted["Successful"]] == ["a"]


def test_a_body_that_does_not_fit_the_schema_of_its_queue_is_refused(
    server: Serving, sqs: Any, queue: str
) -> None:
    with millstream.open(server.url) as ms:
        ms.queue(queue.rpartition("/")[2]).set_schema(
            {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
        )
    for delay in (0, 60):
        with pytest.raises(ClientError, match=r"expected integer at \$\.id") as caught:
            sqs.send_message(QueueUrl=queue, MessageBody='{"id": "x"}', DelaySeconds=delay)
        assert caught.value.response["Error"]["Code"] == "InvalidMessageContents"
    bodies = ['{"id": 1}', "no json", '{"id": 2}', "{}"]
    answer = sqs.send_message_batch(
        QueueUrl=queue,
        Entries=[{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["0", "2"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [
        ("1", "InvalidMessageContents"),
        ("3", "InvalidMessageContents"),
    ]
    received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in received] == ['{"id": 1}', '{"id": 2}']


def test_regions_have_queues_of_their_own(server: Serving, sqs: Any, queue: str) -> None:
    elsewhere = sqs_of(server, "eu-west-1")
    name = queue.rpartition("/")[2]
    with pytest.raises(elsewhere.exceptions.QueueDoesNotExist):
        elsewhere.get_queue_url(QueueName=name)
    elsewhere.create_queue(QueueName=name)
    elsewhere.send_message(QueueUrl=queue, MessageBody="elsewhere")
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    assert elsewhere.list_queues(QueueNamePrefix=name)["QueueUrls"] == [queue]


def test_a_queue_that_differs_is_not_created_again(sqs: Any, queue: str) -> None:
    name = queue.rpartition("/")[2]
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == queue
    with pytest.raises(sqs.exceptions.QueueNameExists) as caught:
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "31"})
    assert caught.value.response["Error"]["Code"] == "QueueAlreadyExists"


def test_the_dashboard_is_still_at_the_root(server: Serving, tmp_path: Path) -> None:
    import urllib.request

    with urllib.request.urlopen(server.url) as answer:
        assert answer.headers["content-type"].startswith("text/html")
