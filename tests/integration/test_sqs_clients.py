"""Other clients of SQS on a server of ours: the AWS CLI, Dramatiq, and a botocore before JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

OLD_BOTOCORE = Path(sys.prefix) / "botocore-1.29"
"""Where tools/setup.sh installs it with the extra sqs-dev."""

OLD_CLIENT = """
import json, os
import botocore, botocore.session
from botocore.exceptions import ClientError

assert botocore.__version__.startswith("1.29."), botocore.__version__
sqs = botocore.session.get_session().create_client("sqs", endpoint_url=os.environ["TRIAL_URL"])
assert sqs.meta.service_model.metadata["protocol"] == "query"
seen = {}

def code_of(call, **parameters):
    try:
        call(**parameters)
    except ClientError as error:
        return error.response["Error"]["Code"]

url = sqs.create_queue(QueueName="old", Attributes={"VisibilityTimeout": "40"}, tags={"a": "b"})["QueueUrl"]
body = "a \\u2603 <b> & \\r\\n\\t \\"c\\""
attributes = {
    "n": {"DataType": "Number", "StringValue": "7"},
    "raw": {"DataType": "Binary", "BinaryValue": b"\\0\\xff"},
}
sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
sent = sqs.send_message_batch(
    QueueUrl=url,
    Entries=[
        {"Id": "one", "MessageBody": "1"},
        {"Id": "late", "MessageBody": "2", "DelaySeconds": 901},
    ],
)
seen["batch"] = [sent["Successful"][0]["Id"], sent["Failed"][0]["Id"], sent["Failed"][0]["Code"]]
received = sqs.receive_message(
    QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
)["Messages"]
first = next(message for message in received if message["Body"] != "1")
seen["same"] = first["Body"] == body and first["MessageAttributes"] == attributes
seen["times"] = first["Attributes"]["ApproximateReceiveCount"]
handles = [message["ReceiptHandle"] for message in received]
sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handles[0], VisibilityTimeout=0)
sqs.delete_message(QueueUrl=url, ReceiptHandle=handles[1])
seen["attributes"] = sqs.get_queue_attributes(
    QueueUrl=url, AttributeNames=["VisibilityTimeout", "ApproximateNumberOfMessages"]
)["Attributes"]
seen["tags"] = sqs.list_queue_tags(QueueUrl=url)["Tags"]
seen["list"] = [each == url for each in sqs.list_queues(QueueNamePrefix="ol")["QueueUrls"]]
seen["codes"] = [
    code_of(sqs.get_queue_url, QueueName="none"),
    code_of(sqs.delete_message, QueueUrl=url, ReceiptHandle="x"),
    code_of(sqs.send_message_batch, QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "1"}] * 2),
    code_of(sqs.send_message_batch, QueueUrl=url, Entries=[]),
    code_of(sqs.create_queue, QueueName="old", Attributes={"VisibilityTimeout": "41"}),
]
print(json.dumps(seen))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "a.db", Settings(port=0, stop_s=5.0)) as serving:
        yield serving


def variables(server: Serving, tmp_path: Path) -> dict[str, str]:
    """The environment of a program that uses a server as if it was AWS."""
    return {
        **os.environ,
        "HOME": str(tmp_path),
        "TRIAL_URL": server.url,
        "AWS_ENDPOINT_URL_SQS": server.url,
        "AWS_DEFAULT_REGION": "eu-south-2",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def test_a_botocore_of_the_query_protocol(server: Serving, tmp_path: Path) -> None:
    if not OLD_BOTOCORE.exists():
        pytest.skip("needs the extra sqs-dev by tools/setup.sh: botocore 1.29 is not installed")
    environment = {**variables(server, tmp_path), "PYTHONPATH": str(OLD_BOTOCORE)}
    command = [sys.executable, "-W", "ignore", "-c", OLD_CLIENT]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "batch": ["one", "late", "InvalidParameterValue"],
        "same": True,
        "times": "1",
        "attributes": {"VisibilityTimeout": "40", "ApproximateNumberOfMessages": "1"},
        "tags": {"a": "b"},
        "list": [True],
        "codes": [
            "AWS.SimpleQueueService.NonExistentQueue",
            "ReceiptHandleIsInvalid",
            "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
            "AWS.SimpleQueueService.EmptyBatchRequest",
            "QueueAlreadyExists",
        ],
    }


def test_the_aws_command_line(server: Serving, tmp_path: Path) -> None:
    """Version 1 knows other addresses of SQS for older regions, and takes those first."""
    pytest.importorskip("awscli")

    def aws(*arguments: str, fails: bool = False) -> Any:
        ran = subprocess.run(
            [sys.executable, "-m", "awscli", "sqs", *arguments, "--output", "json"],
            env=variables(server, tmp_path),
            capture_output=True,
            text=True,
            timeout=90,
        )
        if fails:
            assert ran.returncode
            return ran.stderr
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout or "{}")

    url = aws("create-queue", "--queue-name", "orders")["QueueUrl"]
    attributes = '{"total": {"DataType": "Number", "StringValue": "250"}}'
    aws(
        "send-message",
        "--queue-url",
        url,
        "--message-body",
        "hello",
        "--message-attributes",
        attributes,
    )
    (message,) = aws(
        "receive-message", "--queue-url", url, "--attribute-names", "All",
        "--message-attribute-names", "All", "--wait-time-seconds", "5",
    )["Messages"]  # fmt: skip
    assert message["Body"] == "hello"
    assert message["MessageAttributes"] == json.loads(attributes)
    aws("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    counts = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")
    assert counts["Attributes"]["ApproximateNumberOfMessages"] == "0"
    elsewhere = ("--region", "us-east-1", "--endpoint-url", server.url)
    assert "NonExistentQueue" in aws(
        "get-queue-url", "--queue-name", "orders", *elsewhere, fails=True
    )


def test_dramatiq_runs_delays_and_retries(server: Serving, tmp_path: Path) -> None:
    dramatiq = pytest.importorskip("dramatiq")
    from dramatiq_sqs import SQSBroker

    broker = SQSBroker(
        namespace="shop",
        dead_letter=True,
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        middleware=[dramatiq.middleware.Retries(min_backoff=1, max_backoff=1, max_retries=3)],
    )
    notes: list[str] = []
    over = threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        if len(notes) == 44:
            over.set()

    def plain(number: int) -> None:
        note(f"plain {number}")

    def flaky() -> None:
        note("flaky")
        if notes.count("flaky") < 3:
            raise ValueError("again")

    run_plain = dramatiq.actor(plain, broker=broker)
    run_flaky = dramatiq.actor(flaky, broker=broker)
    for number in range(40):
        run_plain.send(number)
    run_flaky.send()
    run_plain.send_with_options(args=(40,), delay=1_000)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        assert over.wait(90), notes
    finally:
        worker.stop()
        broker.close()
    expected = [f"plain {number}" for number in range(41)] + ["flaky"] * 3
    assert Counter(notes) == Counter(expected)
