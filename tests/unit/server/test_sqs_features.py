"""SQS by boto3: FIFO, dead letters, move tasks, tags, permissions, purges and their refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace

import millstream
from millstream.server.gateways.sqs import moves
from millstream.server.serving import Serving, running
from millstream.testing import SimulatedClock
from tests.unit.server.test_sns import client_of
from tests.unit.server.test_sqs import OPEN, sqs_of

ACCOUNT = "123456789012"


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


def made(sqs: Any, name: str, **attributes: str) -> str:
    return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def bodies(sqs: Any, queue: str, **options: Any) -> list[str]:
    answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, **options)
    return [message["Body"] for message in answer.get("Messages", [])]


def counts(sqs: Any, queue: str) -> tuple[int, int, int]:
    names = [f"ApproximateNumberOfMessages{each}" for each in ("", "NotVisible", "Delayed")]
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return int(answer[names[0]]), int(answer[names[1]]), int(answer[names[2]])


def code_of(call: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return str(caught.value.response["Error"]["Code"])


def test_a_message_is_visible_again_after_its_timeout(sqs: Any, clock: SimulatedClock) -> None:
    queue = made(sqs, "again", VisibilityTimeout="5")
    sqs.send_message(QueueUrl=queue, MessageBody="work")
    (first,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    assert bodies(sqs, queue) == []
    assert counts(sqs, queue) == (0, 1, 0)
    clock.advance(5.1)
    assert counts(sqs, queue) == (1, 0, 0)
    (second,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["All"])["Messages"]

    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"])
    assert counts(sqs, queue) == (0, 1, 0)  # a stale handle deletes nothing that another has
    change = sqs.change_message_visibility
    stale = {"QueueUrl": queue, "ReceiptHandle": first["ReceiptHandle"]}
    assert code_of(change, VisibilityTimeout=9, **stale).endswith("MessageNotInflight")
    clock.advance(5.1)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"])
    assert counts(sqs, queue) == (0, 0, 0)  # the last handle deletes a message that waits again


def test_delays_of_queues_and_messages(sqs: Any, clock: SimulatedClock) -> None:
    queue = made(sqs, "late", DelaySeconds="10")
    sqs.send_message(QueueUrl=queue, MessageBody="as the queue")
    sqs.send_message(QueueUrl=queue, MessageBody="at once", DelaySeconds=0)
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=60)
    assert bodies(sqs, queue) == ["at once"]
    assert counts(sqs, queue)[2] == 2
    clock.advance(11)
    assert bodies(sqs, queue) == ["as the queue"]
    clock.advance(50)
    assert "later" in bodies(sqs, queue)


def test_messages_beyond_the_retention_are_gone(sqs: Any, clock: SimulatedClock) -> None:
    queue = made(sqs, "short", MessageRetentionPeriod="60")
    sqs.send_message(QueueUrl=queue, MessageBody="old")
    clock.advance(61)
    sqs.send_message(QueueUrl=queue, MessageBody="new")
    assert bodies(sqs, queue) == ["new"]
    assert counts(sqs, queue) == (0, 1, 0)


def test_a_fifo_queue_drops_repeats_for_five_minutes(sqs: Any, clock: SimulatedClock) -> None:
    queue = made(sqs, "once.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    message = {"QueueUrl": queue, "MessageBody": "pay", "MessageGroupId": "a"}
    first, repeat = sqs.send_message(**message), sqs.send_message(**message)
    assert (first["MessageId"], first["SequenceNumber"]) == (
        repeat["MessageId"],
        repeat["SequenceNumber"],
    )
    assert bodies(sqs, queue) == ["pay"]
    clock.advance(301)
    assert sqs.send_message(**message)["SequenceNumber"] > first["SequenceNumber"]
    explicit = made(sqs, "named.fifo", FifoQueue="true")
    sent = {"QueueUrl": explicit, "MessageBody": "x", "MessageGroupId": "a"}
    assert code_of(sqs.send_message, **sent) == "InvalidParameterValue"
    assert code_of(sqs.send_message, QueueUrl=queue, MessageBody="x") == "MissingParameter"
    sqs.send_message(**sent, MessageDeduplicationId="1")
    sqs.send_message(**sent, MessageDeduplicationId="2")
    assert counts(sqs, explicit)[0] == 2


def test_a_standard_queue_with_groups_is_shared_fairly(server: Serving, sqs: Any) -> None:
    queue = made(sqs, "fair")
    busy = [{"Id": str(n), "MessageBody": f"a{n}", "MessageGroupId": "a"} for n in range(10)]
    for _ in range(10):
        sqs.send_message_batch(QueueUrl=queue, Entries=busy)
    sqs.send_message(QueueUrl=queue, MessageBody="quiet", MessageGroupId="b")
    received = [body for _ in range(5) for body in bodies(sqs, queue)]
    assert "quiet" in received
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert "FifoQueue" not in answer


def test_each_group_may_have_deduplication_ids_of_its_own(sqs: Any) -> None:
    queue = made(
        sqs,
        "scoped.fifo",
        FifoQueue="true",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
    )
    for group in "ab":
        sqs.send_message(
            QueueUrl=queue, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="same"
        )
    answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, AttributeNames=["All"])
    ids = [each["Attributes"]["MessageDeduplicationId"] for each in answer["Messages"]]
    assert ids == ["same", "same"]


def test_a_receive_without_a_timeout_has_each_message_once(sqs: Any) -> None:
    plain = made(sqs, "peeked")
    fifo = made(sqs, "peeked.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    visible = made(sqs, "always-visible", VisibilityTimeout="0")
    for body in "abc":
        sqs.send_message(QueueUrl=fifo, MessageBody=body, MessageGroupId="g")
        for queue in (plain, visible):
            sqs.send_message(QueueUrl=queue, MessageBody=body)
    for _ in range(3):
        assert bodies(sqs, visible) == ["a", "b", "c"]
        for queue in (plain, fifo):
            assert bodies(sqs, queue, VisibilityTimeout=0) == ["a", "b", "c"]
            assert counts(sqs, queue) == (3, 0, 0)
    answer = sqs.receive_message(QueueUrl=plain, AttributeNames=["All"], VisibilityTimeout=0)
    (message,) = answer["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "4"
    sqs.delete_message(QueueUrl=plain, ReceiptHandle=message["ReceiptHandle"])
    assert bodies(sqs, plain) == ["b", "c"]


def test_a_lease_below_a_second_holds(sqs: Any, server: Serving, clock: SimulatedClock) -> None:
    with millstream.open(server.url) as ms:
        ms.queue("short", lease=0.5).put(b"x")
    queue = sqs.get_queue_url(QueueName="short")["QueueUrl"]
    assert [bodies(sqs, queue), bodies(sqs, queue)] == [["x"], []]
    clock.advance(0.6)
    assert bodies(sqs, queue) == ["x"]


def test_dead_letters_and_their_way_back(sqs: Any, clock: SimulatedClock) -> None:
    dead = made(sqs, "dead")
    policy = {
        "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead",
        "maxReceiveCount": "2",
    }
    queue = made(sqs, "source", VisibilityTimeout="1", RedrivePolicy=json.dumps(policy))
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]
    sent = sqs.send_message(
        QueueUrl=queue,
        MessageBody="bad",
        MessageAttributes={"k": {"DataType": "String", "StringValue": "v"}},
    )
    for _ in range(2):
        assert bodies(sqs, queue) == ["bad"]
        clock.advance(1.5)
    assert bodies(sqs, queue) == []
    (letter,) = sqs.receive_message(
        QueueUrl=dead, AttributeNames=["All"], MessageAttributeNames=["All"], VisibilityTimeout=0
    )["Messages"]
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["MessageAttributes"] == {"k": {"DataType": "String", "StringValue": "v"}}
    assert letter["Attributes"]["DeadLetterQueueSourceArn"].endswith(":source")

    clock.advance(1)
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
    bodies(sqs, dead, VisibilityTimeout=1)
    clock.advance(2)  # a message whose lease has ended waits as well
    handle = sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
    assert bodies(sqs, queue, WaitTimeSeconds=5) == ["bad"]
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert task["ApproximateNumberOfMessagesMoved"] == 1
    assert task["ApproximateNumberOfMessagesToMove"] == 1
    cancel = sqs.cancel_message_move_task
    assert code_of(cancel, TaskHandle=handle).endswith("UnsupportedOperation")
    source = f"arn:aws:sqs:us-east-1:{ACCOUNT}:source"
    assert code_of(sqs.start_message_move_task, SourceArn=source) == "InvalidParameterValue"


def test_a_redrive_allow_policy_refuses_sources(sqs: Any) -> None:
    made(sqs, "closed", RedriveAllowPolicy=json.dumps({"redrivePermission": "denyAll"}))
    policy = {
        "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:closed",
        "maxReceiveCount": 3,
    }
    refused = {"RedrivePolicy": json.dumps(policy)}
    assert code_of(sqs.create_queue, QueueName="x", Attributes=refused) == "InvalidParameterValue"
    missing = json.dumps({**policy, "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:no"})
    refused = {"RedrivePolicy": missing}
    assert code_of(sqs.create_queue, QueueName="x", Attributes=refused) == "InvalidParameterValue"


def test_a_purge_deletes_all_and_has_a_pause(sqs: Any, clock: SimulatedClock) -> None:
    queue = made(sqs, "purged")
    for body in "abc":
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    sqs.receive_message(QueueUrl=queue)
    sqs.purge_queue(QueueUrl=queue)
    assert counts(sqs, queue) == (0, 0, 0)
    with pytest.raises(ClientError, match="PurgeQueueInProgress") as caught:
        sqs.purge_queue(QueueUrl=queue)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    clock.advance(61)
    sqs.purge_queue(QueueUrl=queue)


def test_a_receive_beyond_the_messages_in_flight_is_refused_as_aws_does(tmp_path: Path) -> None:
    settings = replace(OPEN, claims_open_max=1)
    with running(tmp_path / "a.db", settings) as serving:
        sqs = sqs_of(serving)
        standard = made(sqs, "standard")
        fifo = made(sqs, "f.fifo", FifoQueue="true", ContentBasedDeduplication="true")
        for body in "ab":
            sqs.send_message(QueueUrl=standard, MessageBody=body)
            sqs.send_message(QueueUrl=fifo, MessageBody=body, MessageGroupId=body)
        assert bodies(sqs, standard) == ["a"]
        assert code_of(sqs.receive_message, QueueUrl=standard) == "OverLimit"
        assert bodies(sqs, fifo) == []


def test_a_token_of_no_page_is_refused(sqs: Any) -> None:
    assert code_of(sqs.list_queues, NextToken="%%%") == "InvalidParameterValue"


def test_tags_permissions_and_attributes(sqs: Any) -> None:
    queue = made(sqs, "described")
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "a", "env": "test"})
    sqs.untag_queue(QueueUrl=queue, TagKeys=["env"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "a"}

    allow = {"AWSAccountIds": ["210987654321"], "Actions": ["SendMessage"]}
    sqs.add_permission(QueueUrl=queue, Label="one", **allow)
    read = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])["Attributes"]
    assert json.loads(read["Policy"])["Statement"][0]["Sid"] == "one"
    sqs.remove_permission(QueueUrl=queue, Label="one")
    sqs.set_queue_attributes(
        QueueUrl=queue, Attributes={"VisibilityTimeout": "7", "ReceiveMessageWaitTimeSeconds": "1"}
    )
    read = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert (read["VisibilityTimeout"], read["ReceiveMessageWaitTimeSeconds"]) == ("7", "1")
    assert "Policy" not in read


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("VisibilityTimeout", "43201", "InvalidAttributeValue"),
        ("DelaySeconds", "-1", "InvalidAttributeValue"),
        ("MaximumMessageSize", "1048577", "InvalidAttributeValue"),
        ("MessageRetentionPeriod", "59", "InvalidAttributeValue"),
        ("RedrivePolicy", "{", "InvalidParameterValue"),
        ("RedrivePolicy", "{}", "InvalidParameterValue"),
        (
            "RedrivePolicy",
            '{"deadLetterTargetArn": 1, "maxReceiveCount": 1}',
            "InvalidParameterValue",
        ),
        ("RedriveAllowPolicy", '{"redrivePermission": "byQueue"}', "InvalidParameterValue"),
        ("Nonsense", "1", "InvalidAttributeName"),
        ("ContentBasedDeduplication", "true", "InvalidAttributeName"),
    ],
)
def test_attributes_out_of_range_are_refused(sqs: Any, name: str, value: str, code: str) -> None:
    create = sqs.create_queue
    assert code_of(create, QueueName="refused", Attributes={name: value}) == code
    assert code_of(sqs.get_queue_url, QueueName="refused").endswith("NonExistentQueue")


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"maxReceiveCount": 3}, "mandatory attribute: deadLetterTargetArn"),
        ({"deadLetterTargetArn": "arn"}, "mandatory attribute: maxReceiveCount"),
        ({"deadLetterTargetArn": "arn", "maxReceiveCount": 1001}, "maxReceiveCount: 1001"),
        ({"deadLetterTargetArn": "arn", "maxReceiveCount": "3"}, "value for deadLetterTargetArn"),
        ({"deadLetterTargetArn": "arn", "maxReceiveCount": 3, "more": 1}, "unknown field `more`"),
    ],
)
def test_a_wrong_redrive_policy_is_refused_with_the_reason(
    sqs: Any, policy: dict[str, Any], reason: str
) -> None:
    attributes = {"RedrivePolicy": json.dumps(policy)}
    with pytest.raises(ClientError, match=reason):
        sqs.create_queue(QueueName="refused", Attributes=attributes)


def test_batches_and_parameters_are_checked(sqs: Any) -> None:
    queue = made(sqs, "checked")
    send, entry = sqs.send_message_batch, {"Id": "a", "MessageBody": "x"}
    prefix = "AWS.SimpleQueueService."
    assert code_of(send, QueueUrl=queue, Entries=[]) == f"{prefix}EmptyBatchRequest"
    twice = [entry, entry]
    assert code_of(send, QueueUrl=queue, Entries=twice) == f"{prefix}BatchEntryIdsNotDistinct"
    many = [{"Id": str(n), "MessageBody": "x"} for n in range(11)]
    assert code_of(send, QueueUrl=queue, Entries=many) == f"{prefix}TooManyEntriesInBatchRequest"
    bad = [{"Id": "a b", "MessageBody": "x"}]
    assert code_of(send, QueueUrl=queue, Entries=bad) == f"{prefix}InvalidBatchEntryId"
    long = [{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)]
    assert code_of(send, QueueUrl=queue, Entries=long) == f"{prefix}BatchRequestTooLong"
    one = sqs.send_message
    assert code_of(one, QueueUrl=queue, MessageBody="\x00") == "InvalidMessageContents"
    assert code_of(one, QueueUrl=queue, MessageBody="") == "MissingParameter"
    assert code_of(one, QueueUrl=queue, MessageBody="x" * 1_048_577) == "InvalidParameterValue"
    sqs.send_message(QueueUrl=queue, MessageBody="x" * 1_048_576)
    receive = sqs.receive_message
    assert code_of(receive, QueueUrl=queue, MaxNumberOfMessages=11) == "InvalidParameterValue"
    assert code_of(receive, QueueUrl=queue, WaitTimeSeconds=21) == "InvalidParameterValue"
    delete = sqs.delete_message
    assert code_of(delete, QueueUrl=queue, ReceiptHandle="no") == "ReceiptHandleIsInvalid"
    assert code_of(sqs.create_queue, QueueName="a b") == "InvalidParameterValue"


def redrive_to(name: str) -> str:
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})


def test_a_fifo_dead_letter_queue_gets_every_letter(sqs: Any, clock: SimulatedClock) -> None:
    dead = made(sqs, "letters.fifo", FifoQueue="true")
    sources = [
        made(
            sqs,
            name,
            FifoQueue="true",
            VisibilityTimeout="1",
            RedrivePolicy=redrive_to("letters.fifo"),
        )
        for name in ("first.fifo", "second.fifo")
    ]
    same = {"MessageGroupId": "g", "MessageDeduplicationId": "same"}
    for body in "ab":
        for queue in sources:
            sqs.send_message(QueueUrl=queue, MessageBody=body, **same)
        clock.advance(360)
    assert [bodies(sqs, queue) for queue in sources] == [["a", "b"], ["a", "b"]]
    clock.advance(1.5)
    assert [bodies(sqs, queue) for queue in sources] == [[], []]
    letters = []
    while received := sqs.receive_message(QueueUrl=dead).get("Messages"):
        letters.append(received[0]["Body"])
        sqs.delete_message(QueueUrl=dead, ReceiptHandle=received[0]["ReceiptHandle"])
    assert sorted(letters) == ["a", "a", "b", "b"]


def test_a_queue_of_other_makers_keeps_old_messages(
    server: Serving, sqs: Any, clock: SimulatedClock
) -> None:
    with millstream.open(server.url) as ms:
        ms.create_queue("archive")
        ms.queue("archive").put("old")
    ours = made(sqs, "with-default")
    sqs.send_message(QueueUrl=ours, MessageBody="old")
    clock.advance(5 * 24 * 3_600)
    queue = sqs.get_queue_url(QueueName="archive")["QueueUrl"]
    assert bodies(sqs, queue) == ["old"]
    assert bodies(sqs, ours) == []


def test_an_odd_policy_stays_readable(sqs: Any) -> None:
    queue = made(sqs, "odd", Policy='{"Statement": 5}')
    sqs.add_permission(
        QueueUrl=queue, Label="one", AWSAccountIds=["210987654321"], Actions=["SendMessage"]
    )
    read = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])["Attributes"]
    five, added = json.loads(read["Policy"])["Statement"]
    assert (five, added["Sid"]) == (5, "one")


def ended_task(sqs: Any, arn: str) -> dict[str, Any]:
    """The last move task of a queue, once it has ended."""
    while True:
        (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        if task["Status"] != "RUNNING":
            return dict(task)


def test_a_move_that_fails_returns_its_messages_at_once(sqs: Any) -> None:
    dead = made(sqs, "no-letters")
    made(sqs, "fails", RedrivePolicy=redrive_to("no-letters"))
    for body in "abc":
        sqs.send_message(QueueUrl=dead, MessageBody=body)
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:no-letters"
    sqs.start_message_move_task(SourceArn=arn)
    task = ended_task(sqs, arn)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("FAILED", 0)
    assert "names no queue" in task["FailureReason"]
    assert sorted(bodies(sqs, dead)) == ["a", "b", "c"]


def test_a_move_with_a_mistake_of_ours_ends(sqs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = made(sqs, "mistaken")
    made(sqs, "mistakes", RedrivePolicy=redrive_to("mistaken"))
    sqs.send_message(QueueUrl=dead, MessageBody="a")

    async def broken(*_: Any) -> None:
        raise RuntimeError("the secret is swordfish")

    monkeypatch.setattr(moves, "_move", broken)
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:mistaken"
    sqs.start_message_move_task(SourceArn=arn)
    task = ended_task(sqs, arn)
    assert task["Status"] == "FAILED"
    assert "swordfish" not in task["FailureReason"]
    assert bodies(sqs, dead) == ["a"]


def test_parallel_changes_of_a_queue_and_a_topic_all_count(server: Serving, sqs: Any) -> None:
    queue, sns = made(sqs, "busy"), client_of(server, "sns")
    topic = sns.create_topic(Name="busy")["TopicArn"]

    def change(number: int) -> None:
        sqs.tag_queue(QueueUrl=queue, Tags={f"t{number}": "x"})
        endpoint = f"arn:aws:sqs:us-east-1:{ACCOUNT}:q{number}"
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=endpoint)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(change, range(16)))
    assert len(sqs.list_queue_tags(QueueUrl=queue)["Tags"]) == 16
    assert len(sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]) == 16


def test_a_queue_that_was_deleted_a_moment_ago_does_not_keep_others_from_a_message(
    server: Serving, sqs: Any
) -> None:
    sns, kept = client_of(server, "sns"), made(sqs, "kept")
    topic = sns.create_topic(Name="moment")["TopicArn"]
    made(sqs, "deleted")
    for name in ("kept", "deleted"):
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}",
            Attributes={"RawMessageDelivery": "true"},
        )
    sns.publish(TopicArn=topic, Message="first")
    with millstream.open(server.url) as ms:
        ms.queue("deleted").delete()
    sns.publish(TopicArn=topic, Message="second")
    assert bodies(sqs, kept) == ["first", "second"]


def test_a_queue_has_one_type_of_encryption(sqs: Any) -> None:
    """The settings are stored and shown; nothing is encrypted."""
    both = {"KmsMasterKeyId": "alias/aws/sqs", "SqsManagedSseEnabled": "true"}
    create = sqs.create_queue
    assert code_of(create, QueueName="both", Attributes=both) == "InvalidAttributeName"
    queue = made(sqs, "sealed", KmsMasterKeyId="alias/aws/sqs")
    names = ["KmsMasterKeyId", "SqsManagedSseEnabled"]

    def read() -> Any:
        return sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]

    assert read() == {"KmsMasterKeyId": "alias/aws/sqs", "SqsManagedSseEnabled": "false"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"SqsManagedSseEnabled": "true"})
    assert read() == {"SqsManagedSseEnabled": "true"}
