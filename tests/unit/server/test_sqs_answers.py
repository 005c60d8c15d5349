"""SQS by boto3: answers and errors in the words that AWS itself gives."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from millstream.server.serving import Serving, running
from tests.unit.server.test_sqs import OPEN, sqs_of
from tests.unit.server.test_sqs_features import ACCOUNT, bodies, code_of, made, redrive_to


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with running(tmp_path_factory.mktemp("sqs") / "a.db", OPEN) as serving:
        yield serving


@pytest.fixture(scope="module")
def sqs(server: Serving) -> Any:
    return sqs_of(server)


@pytest.fixture
def queue(sqs: Any, request: pytest.FixtureRequest) -> str:
    return made(sqs, request.node.name[-80:].replace("[", "-").replace("]", "").replace(".", "_"))


def error_of(call: Any, **parameters: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return str(error["Code"]), str(error["Message"])


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (["*"], {"Hello", "Help.Me", "General"}),
        ([".*"], {"Hello", "Help.Me", "General"}),
        (["Hel.*"], {"Hello", "Help.Me"}),
        (["Help", "General"], {"General"}),
        (["AWS."], set()),
    ],
)
def test_attributes_are_selected_by_names_and_wildcards(
    sqs: Any, wanted: list[str], names: set[str]
) -> None:
    queue = made(sqs, "wildcards", VisibilityTimeout="0")
    attributes = {
        name: {"DataType": "String", "StringValue": "x"} for name in ("Hello", "Help.Me", "General")
    }
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)
    (message,) = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=wanted)["Messages"]
    assert message.get("MessageAttributes", {}).keys() == names
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_a_type_has_up_to_256_characters_and_a_value_only_those_of_bodies(
    sqs: Any, queue: str
) -> None:
    def attributes(data_type: str, value: str) -> dict[str, Any]:
        return {"a": {"DataType": data_type, "StringValue": value}}

    send = sqs.send_message
    longest = "Number." + "x" * 249
    send(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes(longest, "1"))
    for wrong in (attributes(longest + "x", "1"), attributes("String", "a\x08")):
        code = code_of(send, QueueUrl=queue, MessageBody="x", MessageAttributes=wrong)
        assert code == "InvalidParameterValue"


def test_a_batch_without_the_ids_of_a_fifo_queue_is_refused_as_a_whole(sqs: Any) -> None:
    queue = made(sqs, "ids.fifo", FifoQueue="true")
    good = {"Id": "1", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for missing in ("MessageGroupId", "MessageDeduplicationId"):
        bad = {"Id": "2", **{name: good[name] for name in good if name not in ("Id", missing)}}
        code, message = error_of(sqs.send_message_batch, QueueUrl=queue, Entries=[good, bad])
        assert code == "InvalidParameterValue"
        assert missing in message
    assert bodies(sqs, queue) == []


def test_errors_have_the_texts_of_aws(sqs: Any, queue: str) -> None:
    def reason(call: Any, **parameters: Any) -> str:
        return error_of(call, QueueUrl=queue, **parameters)[1]

    assert reason(sqs.receive_message, MaxNumberOfMessages=11) == (
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if "
        "provided."
    )
    assert reason(sqs.delete_message, ReceiptHandle="garbage") == (
        'The input receipt handle "garbage" is not a valid receipt handle.'
    )
    assert reason(sqs.untag_queue, TagKeys=[]).startswith("Tag keys must be between 1 and 128")
    many = {f"key {number}": "x" for number in range(51)}
    assert reason(sqs.tag_queue, Tags=many).startswith("Too many tags added for queue test_errors")
    allow = {"Label": "one", "AWSAccountIds": ["210987654321"]}
    assert reason(sqs.add_permission, **allow, Actions=["DeleteQueue"]) == (
        "Value SQS:DeleteQueue for parameter ActionName is invalid. Reason: Only the queue owner is "
        "allowed to invoke this action."
    )
    assert reason(sqs.add_permission, **allow, Actions=["SendMessage"] * 8) == (
        "8 Actions were found, maximum allowed is 7."
    )
    nobody = {**allow, "AWSAccountIds": [], "Actions": ["SendMessage"]}
    assert reason(sqs.add_permission, **nobody).endswith(
        "PrincipalId is invalid. Reason: Unable to verify."
    )
    fifo = made(sqs, "kind.fifo", FifoQueue="true")
    kind = error_of(sqs.set_queue_attributes, QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    assert kind == (
        "InvalidAttributeValue",
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    )


def test_the_address_of_a_queue_may_be_its_name(server: Serving, sqs: Any) -> None:
    made(sqs, "named")
    for address in (
        "named",
        f"https://queue.amazonaws.com/{ACCOUNT}/named",
        f"{server.url}/queue/us-east-1/{ACCOUNT}/named",
    ):
        sqs.send_message(QueueUrl=address, MessageBody="x")
        assert bodies(sqs, address) == ["x"]
    for nowhere in ("unnamed", "http://localhost", f"http://localhost/{ACCOUNT}/un/named"):
        code = code_of(sqs.send_message, QueueUrl=nowhere, MessageBody="x")
        assert code in ("AWS.SimpleQueueService.NonExistentQueue", "InvalidAddress")
    missing = "http://whatever-incorrect-queue-address"
    assert code_of(sqs.purge_queue, QueueUrl=missing).endswith("NonExistentQueue")


def test_move_tasks_are_refused_in_the_words_of_aws(sqs: Any) -> None:
    def token(**fields: str) -> str:
        return base64.b64encode(json.dumps(fields).encode()).decode()

    def arn(name: str) -> str:
        return f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"

    made(sqs, "letters")
    made(sqs, "source-of-letters", RedrivePolicy=redrive_to("letters"))
    cancel, start = sqs.cancel_message_move_task, sqs.start_message_move_task
    for garbage in ("foobared", "é", token(taskId="x")):
        assert error_of(cancel, TaskHandle=garbage) == (
            "InvalidParameterValue",
            "Value for parameter TaskHandle is invalid.",
        )
    code, message = error_of(cancel, TaskHandle=token(taskId="x", sourceArn=arn("none")))
    assert (code, "SourceArn" in message) == ("ResourceNotFoundException", True)
    assert error_of(cancel, TaskHandle=token(taskId="x", sourceArn=arn("letters"))) == (
        "ResourceNotFoundException",
        "Task does not exist.",
    )
    destination = made(sqs, "destination")
    for body in "abc":
        sqs.send_message(QueueUrl=made(sqs, "letters"), MessageBody=body)
    slow = {"DestinationArn": arn("destination"), "MaxNumberOfMessagesPerSecond": 1}
    handle = start(SourceArn=arn("letters"), **slow)["TaskHandle"]
    assert json.loads(base64.b64decode(handle))["sourceArn"] == arn("letters")
    assert error_of(start, SourceArn=arn("letters"), **slow)[0] == "InvalidParameterValue"
    sqs.delete_queue(QueueUrl=destination)
    while (task := sqs.list_message_move_tasks(SourceArn=arn("letters"))["Results"][0])[
        "Status"
    ] == "RUNNING":
        pass
    assert task["FailureReason"] == "AWS.SimpleQueueService.NonExistentQueue"


def test_a_purged_message_makes_no_repeat(sqs: Any) -> None:
    queue = made(sqs, "purged.fifo", FifoQueue="true")
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sqs.send_message(QueueUrl=queue, MessageBody="first", **ids)
    sqs.purge_queue(QueueUrl=queue)
    for body in ("second", "third"):
        sqs.send_message(QueueUrl=queue, MessageBody=body, **ids)
    (message,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["All"])["Messages"]
    assert message["Body"] == "second"
    assert message["Attributes"]["MessageDeduplicationId"] == "d"


def test_the_trace_of_a_request_goes_with_its_messages(sqs: Any, queue: str) -> None:
    trace = "Root=1-3152b799-8954dae64eda91bc9a23a7e8;Parent=7fa8c0f79203be72;Sampled=1"

    def add(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = trace

    sqs.meta.events.register("before-sign.sqs.SendMessage", add)
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    sqs.send_message(QueueUrl=queue, MessageBody="y", MessageSystemAttributes=system)
    sqs.meta.events.unregister("before-sign.sqs.SendMessage", add)
    sqs.send_message(QueueUrl=queue, MessageBody="z")
    answer = sqs.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, MessageSystemAttributeNames=["AWSTraceHeader"]
    )
    traces = [message["Attributes"].get("AWSTraceHeader") for message in answer["Messages"]]
    assert traces == [trace, "Root=1", None]


def test_permissions_are_statements_of_the_policy(sqs: Any, queue: str) -> None:
    def labels() -> list[str]:
        read = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])
        policy = json.loads(read.get("Attributes", {}).get("Policy", "{}"))
        return [statement["Sid"] for statement in policy.get("Statement", [])]

    statements = [{"Sid": label, "Effect": "Allow", "Principal": "*"} for label in ("one", "two")]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
    allow = {"QueueUrl": queue, "AWSAccountIds": ["210987654321"], "Actions": ["SendMessage"]}
    assert error_of(sqs.add_permission, Label="two", **allow)[1].endswith("Already exists.")
    sqs.add_permission(Label="three", **allow)
    assert labels() == ["one", "two", "three"]
    for label, remaining in (("one", ["two", "three"]), ("three", ["two"]), ("two", [])):
        sqs.remove_permission(QueueUrl=queue, Label=label)
        assert labels() == remaining
    code = code_of(sqs.remove_permission, QueueUrl=queue, Label="two")
    assert code == "InvalidParameterValue"


def test_a_standard_queue_may_be_made_as_no_fifo_queue(sqs: Any) -> None:
    queue = made(sqs, "plain", FifoQueue="false")
    read = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert "FifoQueue" not in read
    change = sqs.set_queue_attributes
    code = code_of(change, QueueUrl=queue, Attributes={"FifoQueue": "false"})
    assert code == "InvalidAttributeName"
