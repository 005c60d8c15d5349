"""SNS by boto3: topics with queues on them, filter policies, FIFO topics, and STS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import millstream
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

OPEN = Settings(port=0, stop_s=5.0)


def client_of(server: Serving, service: str, key: str = "any", secret: str = "any") -> Any:
    """A client of boto3 for a server."""
    return boto3.client(
        service,
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 1}, read_timeout=30),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with running(tmp_path_factory.mktemp("sns") / "a.db", OPEN) as serving:
        yield serving


@pytest.fixture(scope="module")
def sqs(server: Serving) -> Any:
    return client_of(server, "sqs")


@pytest.fixture(scope="module")
def sns(server: Serving) -> Any:
    return client_of(server, "sns")


def queue_with_arn(sqs: Any, name: str, **attributes: str) -> tuple[str, str]:
    """Create a queue; return its address and its ARN."""
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return url, found["Attributes"]["QueueArn"]


def bodies(sqs: Any, url: str) -> list[str]:
    """Receive what waits in a queue."""
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
    return [message["Body"] for message in received.get("Messages", [])]


def refusal(call: Any, **parameters: Any) -> str:
    """Return the code with which a call is refused."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return str(caught.value.response["Error"]["Code"])


TEXT = {"DataType": "String"}


def test_a_message_reaches_every_queue_raw_or_in_an_envelope(sqs: Any, sns: Any) -> None:
    raw, raw_arn = queue_with_arn(sqs, "raw")
    wrapped, wrapped_arn = queue_with_arn(sqs, "wrapped")
    topic = sns.create_topic(Name="orders")["TopicArn"]
    assert topic == "arn:aws:sns:us-east-1:123456789012:orders"
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=raw_arn,
        Attributes={"RawMessageDelivery": "true"},
    )
    subscribed = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=wrapped_arn)

    published = sns.publish(
        TopicArn=topic,
        Message="hello é",
        Subject="greeting",
        MessageAttributes={
            "color": {**TEXT, "StringValue": "red"},
            "size": {"DataType": "Number", "StringValue": "007"},
            "photo": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        },
    )

    (message,) = sqs.receive_message(QueueUrl=raw, MessageAttributeNames=["All"])["Messages"]
    assert message["Body"] == "hello é"
    assert message["MessageAttributes"]["size"] == {"DataType": "Number", "StringValue": "007"}
    assert message["MessageAttributes"]["photo"]["BinaryValue"] == b"\0\xff"
    envelope = json.loads(bodies(sqs, wrapped)[0])
    assert envelope["Type"] == "Notification"
    assert envelope["Message"] == "hello é"
    assert envelope["Subject"] == "greeting"
    assert envelope["TopicArn"] == topic
    assert envelope["MessageId"] == published["MessageId"]
    assert envelope["MessageAttributes"]["color"] == {"Type": "String", "Value": "red"}
    assert envelope["MessageAttributes"]["photo"] == {"Type": "Binary", "Value": "AP8="}
    sns.unsubscribe(SubscriptionArn=subscribed["SubscriptionArn"])
    sns.publish(TopicArn=topic, Message="second")
    assert bodies(sqs, raw) == ["second"]
    assert bodies(sqs, wrapped) == []


def test_a_topic_is_a_log(server: Serving, sns: Any) -> None:
    topic = sns.create_topic(Name="readable")["TopicArn"]
    sns.publish(
        TopicArn=topic, Message="kept", MessageAttributes={"color": {**TEXT, "StringValue": "red"}}
    )
    with millstream.open(server.url) as ms:
        record = ms.log("sns:readable")[0]
        assert (record.text, record.headers["color"]) == ("kept", "red")


def test_filter_policies_choose_by_attributes_or_by_the_body(sqs: Any, sns: Any) -> None:
    topic = sns.create_topic(Name="filtered")["TopicArn"]
    by_color, by_color_arn = queue_with_arn(sqs, "by-color")
    by_body, by_body_arn = queue_with_arn(sqs, "by-body")
    raw = {"RawMessageDelivery": "true"}
    policy = json.dumps({"color": ["red", {"prefix": "bl"}], "size": [{"numeric": [">", 5]}]})
    color = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=by_color_arn,
        Attributes={**raw, "FilterPolicy": policy},
    )["SubscriptionArn"]
    sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=by_body_arn,
        Attributes={
            **raw,
            "FilterPolicyScope": "MessageBody",
            "FilterPolicy": '{"order": {"state": ["open"]}}',
        },
    )

    def publish(message: str, color: str, size: str) -> None:
        sns.publish(
            TopicArn=topic,
            Message=message,
            MessageAttributes={
                "color": {**TEXT, "StringValue": color},
                "size": {"DataType": "Number", "StringValue": size},
            },
        )

    publish("1", "red", "6")
    publish("2", "red", "5")
    publish('{"order": {"state": "open"}}', "blue", "7.5")
    publish('{"order": {"state": "done"}}', "green", "9")
    assert bodies(sqs, by_color) == ["1", '{"order": {"state": "open"}}']
    assert bodies(sqs, by_body) == ['{"order": {"state": "open"}}']
    sns.set_subscription_attributes(
        SubscriptionArn=color, AttributeName="FilterPolicy", AttributeValue='{"color": ["green"]}'
    )
    publish("3", "green", "0")
    assert bodies(sqs, by_color) == ["3"]
    shown = sns.get_subscription_attributes(SubscriptionArn=color)["Attributes"]
    assert shown["FilterPolicy"] == '{"color": ["green"]}'
    assert shown["FilterPolicyScope"] == "MessageAttributes"
    assert shown["Endpoint"] == by_color_arn
    code = refusal(
        sns.set_subscription_attributes,
        SubscriptionArn=color,
        AttributeName="FilterPolicy",
        AttributeValue='{"color": [{"regex": "x"}]}',
    )
    assert code == "InvalidParameter"


def test_attributes_are_shown_and_refused_as_aws_does(sqs: Any, sns: Any) -> None:
    topic = sns.create_topic(Name="described")["TopicArn"]
    shown = sns.get_topic_attributes(TopicArn=topic)["Attributes"]
    (statement,) = json.loads(shown["Policy"])["Statement"]
    assert (statement["Resource"], "SNS:Publish" in statement["Action"]) == (topic, True)
    assert json.loads(shown["EffectiveDeliveryPolicy"])["http"]
    url, arn = queue_with_arn(sqs, "described-topic")
    member = sns.subscribe(
        TopicArn=topic,
        Protocol="sqs",
        Endpoint=arn,
        Attributes={"RawMessageDelivery": "True", "FilterPolicyScope": "MessageBody"},
    )["SubscriptionArn"]
    shown = sns.get_subscription_attributes(SubscriptionArn=member)["Attributes"]
    assert "FilterPolicyScope" not in shown  # until there is a policy
    sns.publish(TopicArn=topic, Message="as it is")
    assert bodies(sqs, url) == ["as it is"]

    def reason(name: str, value: str) -> str:
        with pytest.raises(ClientError) as caught:
            sns.set_subscription_attributes(
                SubscriptionArn=member, AttributeName=name, AttributeValue=value
            )
        return str(caught.value.response["Error"]["Message"])

    for value in ("yes", ""):
        assert reason("RawMessageDelivery", value) == (
            f"Invalid parameter: RawMessageDelivery: Invalid value [{value}]. Must be true or false."
        )
    assert reason("FilterPolicyScope", "Random") == (
        "Invalid parameter: FilterPolicyScope: Invalid value [Random]. Please use either MessageBody "
        "or MessageAttributes"
    )
    many = json.dumps({name: ["x"] for name in "abcdef"})
    keys = "FilterPolicy: Filter policy can not have more than 5 keys"
    assert reason("FilterPolicy", many) == f"Invalid parameter: {keys}"
    with pytest.raises(ClientError, match=f"Invalid parameter: Attributes Reason: {keys}"):
        sns.subscribe(
            TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"FilterPolicy": many}
        )
    with pytest.raises(ClientError, match="An ARN must have at least 6 elements, not 2"):
        sns.publish(TopicArn="random:arn", Message="x")


def test_what_a_queue_does_not_get_goes_to_the_dead_letters(sqs: Any, sns: Any) -> None:
    topic = sns.create_topic(Name="redriven")["TopicArn"]
    dead, dead_arn = queue_with_arn(sqs, "redriven-letters")
    gone, gone_arn = queue_with_arn(sqs, "redriven-gone")
    small, small_arn = queue_with_arn(sqs, "redriven-small", MaximumMessageSize="1024")
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn})}
    for endpoint in (gone_arn, small_arn):
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=endpoint,
            Attributes={**policy, "RawMessageDelivery": "true"},
        )
    sns.publish(TopicArn=topic, Message="first")
    sqs.delete_queue(QueueUrl=gone)
    attributes = {"color": {**TEXT, "StringValue": "red"}}
    sns.publish(TopicArn=topic, Message="second", MessageAttributes=attributes)
    sns.publish(TopicArn=topic, Message="x" * 1_025)
    assert bodies(sqs, small) == ["first", "second"]
    answer = sqs.receive_message(
        QueueUrl=dead, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )["Messages"]
    assert [message["Body"] for message in answer] == ["second", *["x" * 1_025] * 2]
    assert answer[0]["MessageAttributes"] == attributes
    member = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"][0]["SubscriptionArn"]
    for wrong in ('{"deadLetterTargetArn": "queue"}', "{wrong"):
        code = refusal(
            sns.set_subscription_attributes,
            SubscriptionArn=member,
            AttributeName="RedrivePolicy",
            AttributeValue=wrong,
        )
        assert code == "InvalidParameter"


def test_a_batch_for_a_fifo_topic_without_ids_is_refused_as_a_whole(sns: Any) -> None:
    topic = sns.create_topic(Name="ids.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    good = {"Id": "1", "Message": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for missing in ("MessageGroupId", "MessageDeduplicationId"):
        bad = {**{name: good[name] for name in good if name != missing}, "Id": "2"}
        with pytest.raises(ClientError, match=missing):
            sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[good, bad])
    with pytest.raises(ClientError, match="have the same Id"):
        sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[good, good])
    empty = {"TopicArn": topic, "PublishBatchRequestEntries": []}
    assert refusal(sns.publish_batch, **empty) == "EmptyBatchRequest"
    assert refusal(sns.list_topics, NextToken="bad") == "InvalidParameter"
    of_queues = {"TopicArn": topic, "Label": "l", "AWSAccountId": ["1"], "ActionName": ["Publish"]}
    assert refusal(sns.add_permission, **of_queues) == "InvalidAction"
    sns.create_topic(Name="untagged", Tags=[])


def test_the_link_of_an_envelope_ends_its_subscription(sqs: Any, sns: Any) -> None:
    topic = sns.create_topic(Name="linked")["TopicArn"]
    url, arn = queue_with_arn(sqs, "linked-topic")
    member = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)["SubscriptionArn"]
    sns.publish(TopicArn=topic, Message="x")
    (envelope,) = bodies(sqs, url)
    link = json.loads(envelope)["UnsubscribeURL"]
    assert link.endswith(f"/?Action=Unsubscribe&SubscriptionArn={member}")
    assert httpx.get(link).status_code == 200
    assert sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []


def test_a_fifo_topic_keeps_the_order_and_drops_repeats(sqs: Any, sns: Any) -> None:
    fifo = {"FifoTopic": "true", "ContentBasedDeduplication": "true"}
    topic = sns.create_topic(Name="steps.fifo", Attributes=fifo)["TopicArn"]
    url, arn = queue_with_arn(sqs, "steps.fifo", FifoQueue="true")
    sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    first = sns.publish(TopicArn=topic, Message="a", MessageGroupId="g")
    second = sns.publish(TopicArn=topic, Message="b", MessageGroupId="g")
    assert int(first["SequenceNumber"]) < int(second["SequenceNumber"])
    sns.publish(TopicArn=topic, Message="a", MessageGroupId="g")
    received = []
    while len(received) < 2:
        received += sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])[
            "Messages"
        ]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=received[-1]["ReceiptHandle"])
    assert [message["Body"] for message in received] == ["a", "b"]
    assert {message["Attributes"]["MessageGroupId"] for message in received} == {"g"}
    assert bodies(sqs, url) == []
    assert refusal(sns.publish, TopicArn=topic, Message="a") == "InvalidParameter"
    standard = sns.create_topic(Name="standard")["TopicArn"]
    code = refusal(sns.subscribe, TopicArn=standard, Protocol="sqs", Endpoint=arn)
    assert code == "InvalidParameter"


def test_groups_of_messages_make_a_standard_queue_fair(sqs: Any, sns: Any) -> None:
    topic = sns.create_topic(Name="tenants")["TopicArn"]
    url, arn = queue_with_arn(sqs, "tenants")
    sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    for tenant in ["noisy"] * 50 + ["quiet"] * 5:
        sns.publish(TopicArn=topic, Message="x", MessageGroupId=tenant)
    groups: list[str] = []
    for _ in range(4):
        received = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["MessageGroupId"]
        )
        groups += [each["Attributes"]["MessageGroupId"] for each in received["Messages"]]
    assert groups == ["noisy"] * 30 + ["quiet"] * 5 + ["noisy"] * 5


def test_a_batch_is_published_entry_by_entry(sqs: Any, sns: Any) -> None:
    topic = sns.create_topic(Name="batched")["TopicArn"]
    url, arn = queue_with_arn(sqs, "batched")
    sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    entries = [{"Id": str(number), "Message": f"m{number}"} for number in range(9)]
    wrong = {"Id": "wrong", "Message": "x", "MessageDeduplicationId": "d"}
    answer = sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=[*entries, wrong])
    assert [entry["Id"] for entry in answer["Successful"]] == [entry["Id"] for entry in entries]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [
        ("wrong", "InvalidParameter")
    ]
    assert bodies(sqs, url) == [entry["Message"] for entry in entries]
    call = sns.publish_batch
    twice = [entries[0], entries[0]]
    assert refusal(call, TopicArn=topic, PublishBatchRequestEntries=twice) == (
        "BatchEntryIdsNotDistinct"
    )
    many = [{"Id": str(number), "Message": "x"} for number in range(11)]
    assert refusal(call, TopicArn=topic, PublishBatchRequestEntries=many) == (
        "TooManyEntriesInBatchRequest"
    )


def test_topics_and_subscriptions_are_listed_by_pages_and_described(sqs: Any, sns: Any) -> None:
    names = [f"listed-{number:03}" for number in range(101)]
    arns = [sns.create_topic(Name=name)["TopicArn"] for name in names]
    pages = list(sns.get_paginator("list_topics").paginate())
    assert len(pages) >= 2
    listed = [topic["TopicArn"] for page in pages for topic in page["Topics"]]
    assert [arn for arn in listed if ":listed-" in arn] == arns
    _, queue = queue_with_arn(sqs, "listed")
    subscription = sns.subscribe(TopicArn=arns[0], Protocol="sqs", Endpoint=queue)[
        "SubscriptionArn"
    ]
    again = sns.subscribe(TopicArn=arns[0], Protocol="sqs", Endpoint=queue)
    assert again["SubscriptionArn"] == subscription
    (member,) = sns.list_subscriptions_by_topic(TopicArn=arns[0])["Subscriptions"]
    assert member["Endpoint"] == queue
    assert subscription in [
        each["SubscriptionArn"] for each in sns.list_subscriptions()["Subscriptions"]
    ]
    sns.set_topic_attributes(
        TopicArn=arns[0], AttributeName="DisplayName", AttributeValue="a <b> & c"
    )
    shown = sns.get_topic_attributes(TopicArn=arns[0])["Attributes"]
    assert (shown["DisplayName"], shown["SubscriptionsConfirmed"]) == ("a <b> & c", "1")
    sns.tag_resource(ResourceArn=arns[0], Tags=[{"Key": "team", "Value": "red"}])
    sns.tag_resource(ResourceArn=arns[0], Tags=[{"Key": "cost", "Value": "7"}])
    sns.untag_resource(ResourceArn=arns[0], TagKeys=["team"])
    tags = sns.list_tags_for_resource(ResourceArn=arns[0])["Tags"]
    assert tags == [{"Key": "cost", "Value": "7"}]
    sns.delete_topic(TopicArn=arns[0])
    sns.delete_topic(TopicArn=arns[0])
    assert refusal(sns.publish, TopicArn=arns[0], Message="x") == "NotFound"
    assert refusal(sns.get_subscription_attributes, SubscriptionArn=subscription) == "NotFound"


def test_a_queue_that_is_gone_or_too_strict_does_not_keep_the_others_from_a_message(
    sqs: Any, sns: Any
) -> None:
    topic = sns.create_topic(Name="partly")["TopicArn"]
    gone, gone_arn = queue_with_arn(sqs, "gone")
    _, strict_arn = queue_with_arn(sqs, "strict", MaximumMessageSize="1024")
    good, good_arn = queue_with_arn(sqs, "good")
    for arn in (gone_arn, strict_arn, good_arn):
        sns.subscribe(
            TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
        )
    sqs.delete_queue(QueueUrl=gone)
    sns.publish(TopicArn=topic, Message="x" * 2_000)
    assert bodies(sqs, good) == ["x" * 2_000]


def test_a_message_is_checked_against_the_schemas_of_topic_and_queues(
    server: Serving, sqs: Any, sns: Any
) -> None:
    topic = sns.create_topic(Name="typed")["TopicArn"]
    any_url, any_arn = queue_with_arn(sqs, "any-value")
    strict_url, strict_arn = queue_with_arn(sqs, "typed-value")
    for arn in (any_arn, strict_arn):
        sns.subscribe(
            TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
        )
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    with millstream.open(server.url) as ms:
        ms.queue("typed-value").set_schema(schema)
        sns.publish(TopicArn=topic, Message="no json")
        sns.publish(TopicArn=topic, Message='{"id": 1}')
        assert bodies(sqs, any_url) == ["no json", '{"id": 1}']
        assert bodies(sqs, strict_url) == ['{"id": 1}']
        ms.log("sns:typed").set_schema(schema)
    assert refusal(sns.publish, TopicArn=topic, Message="no json") == "InvalidParameter"
    answer = sns.publish_batch(
        TopicArn=topic,
        PublishBatchRequestEntries=[
            {"Id": "good", "Message": '{"id": 2}'},
            {"Id": "bad", "Message": '{"id": "x"}'},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]
    assert [(each["Id"], each["Code"]) for each in answer["Failed"]] == [
        ("bad", "InvalidParameter")
    ]
    assert bodies(sqs, any_url) == bodies(sqs, strict_url) == ['{"id": 2}']


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"Message": ""}, "InvalidParameter"),
        ({"Message": "x" * 262_145}, "InvalidParameter"),
        ({"Message": "a\0b"}, "InvalidParameter"),
        ({"Message": "x", "Subject": "two\nlines"}, "InvalidParameter"),
        ({"Message": "{}", "MessageStructure": "json"}, "InvalidParameter"),
        ({"Message": "x", "MessageDeduplicationId": "d"}, "InvalidParameter"),
        (
            {"Message": "x", "MessageAttributes": {"a": {"DataType": "Odd", "StringValue": "x"}}},
            "ParameterValueInvalid",
        ),
    ],
)
def test_a_wrong_message_is_refused(sns: Any, parameters: dict[str, Any], code: str) -> None:
    topic = sns.create_topic(Name="strict-topic")["TopicArn"]
    assert refusal(sns.publish, TopicArn=topic, **parameters) == code
    assert refusal(sns.publish, TopicArn="arn:aws:sns:x", Message="x") == "InvalidParameter"
    assert refusal(sns.create_topic, Name="no good") == "InvalidParameter"
    assert refusal(sns.create_topic, Name="x", Attributes={"FifoTopic": "true"}) == (
        "InvalidParameter"
    )
    endpoint = "arn:aws:sqs:us-east-1:123456789012:q"
    assert refusal(sns.subscribe, TopicArn=topic, Protocol="http", Endpoint=endpoint) == (
        "InvalidParameter"
    )


def test_json_structure_chooses_the_text_for_queues(sqs: Any, sns: Any) -> None:
    topic = sns.create_topic(Name="structured")["TopicArn"]
    url, arn = queue_with_arn(sqs, "structured")
    sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    sns.publish(
        TopicArn=topic,
        Message=json.dumps({"default": "all", "sqs": "queues"}),
        MessageStructure="json",
    )
    sns.publish(TopicArn=topic, Message=json.dumps({"default": "all"}), MessageStructure="json")
    assert bodies(sqs, url) == ["queues", "all"]


def test_topics_and_subscriptions_outlive_the_server(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with running(path, OPEN) as server:
        sqs, sns = client_of(server, "sqs"), client_of(server, "sns")
        _, arn = queue_with_arn(sqs, "kept")
        topic = sns.create_topic(Name="kept")["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    with running(path, OPEN) as server:
        sqs, sns = client_of(server, "sqs"), client_of(server, "sns")
        sns.publish(TopicArn=topic, Message="after the restart")
        url = sqs.get_queue_url(QueueName="kept")["QueueUrl"]
        assert json.loads(bodies(sqs, url)[0])["Message"] == "after the restart"


def test_sts_tells_the_account(server: Serving) -> None:
    identity = client_of(server, "sts").get_caller_identity()
    assert identity["Account"] == "123456789012"
    assert identity["Arn"].startswith("arn:aws:iam::123456789012:")
