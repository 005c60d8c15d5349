"""Topics and subscriptions: create, delete, list, describe, alter, tag; and the caller's identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from millstream.command import Transact
from millstream.errors import Conflict
from millstream.log.commands import (
    CreateLog,
    DeleteLog,
    DescribeLog,
    ListLogs,
    SetMetadata,
    SetRetention,
)
from millstream.record import Retention
from millstream.server.gateways.sqs import sns_shapes as shapes
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.errors import SqsError
from millstream.server.gateways.sqs.filter_policy import parse_filter_policy
from millstream.server.gateways.sqs.names import queue_of_arn
from millstream.server.gateways.sqs.policy_views import PolicyRefused
from millstream.server.gateways.sqs.queues import after_of, token_of
from millstream.server.gateways.sqs.topics import (
    METADATA,
    PREFIX,
    KnownTopic,
    SnsError,
    Subscription,
    TopicName,
    TopicRecord,
    change_topic,
    dead_letters_of,
    find_topic,
    is_topic_name,
    need_topic,
    no_subscription,
    parsed_arn,
    text_of_topic,
    topic_of_log,
    wrong_parameter,
)

PAGE = 100
LISTED_MAX = 1_000
TAGS_MAX = 50
KEPT_MS = 4 * 24 * 3600 * 1000
"""How long the log of a new topic keeps what was published; queues have their own copies."""

_TOPIC_ATTRIBUTES = frozenset(
    ("DisplayName", "Policy", "DeliveryPolicy", "KmsMasterKeyId", "FifoTopic", "TracingConfig",
     "ContentBasedDeduplication", "SignatureVersion", "FifoThroughputScope")
)  # fmt: skip
DEFAULT_ACTIONS = (
    "GetTopicAttributes", "SetTopicAttributes", "AddPermission", "RemovePermission", "DeleteTopic",
    "Subscribe", "ListSubscriptionsByTopic", "Publish",
)  # fmt: skip
DELIVERY_POLICY = json.dumps(
    {
        "http": {
            "defaultHealthyRetryPolicy": {
                "minDelayTarget": 20,
                "maxDelayTarget": 20,
                "numRetries": 3,
                "numMaxDelayRetries": 0,
                "numNoDelayRetries": 0,
                "numMinDelayRetries": 0,
                "backoffFunction": "linear",
            },
            "disableSubscriptionOverrides": False,
            "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
        }
    }
)
"""The policy that AWS shows of every topic; here it has no effect."""

_SUBSCRIPTION_ATTRIBUTES = frozenset(
    ("RawMessageDelivery", "FilterPolicy", "FilterPolicyScope", "RedrivePolicy", "DeliveryPolicy",
     "SubscriptionRoleArn")
)  # fmt: skip


async def create_topic(call: SqsCall, request: shapes.CreateTopicRequest) -> dict[str, Any]:
    """Create a topic, or return the ARN of one with the same attributes."""
    name = TopicName(call.region, call.account, request.name or "")
    if not is_topic_name(name.name):
        raise wrong_parameter("Topic Name")
    attributes = {key: value for key, value in request.attributes.items() if value != ""}
    for key, value in attributes.items():
        _check_topic_attribute(key, value)
    if name.is_fifo != (attributes.get("FifoTopic") == "true"):
        reason = "Fifo Topic names must end with .fifo" if not name.is_fifo else "Topic Name"
        raise wrong_parameter(reason)
    _check_tags(request.tags)
    existing = await find_topic(call, name)
    if existing is None:
        record = TopicRecord(attributes, request.tags)
        log = name.log(call.home)
        retention = SetRetention(log, Retention(age_ms=KEPT_MS))
        metadata = SetMetadata(log, METADATA, text_of_topic(record), expect=None, compare=True)
        try:
            await call.execute(Transact([CreateLog(log), metadata, retention]))
            return {"TopicArn": name.arn}
        except Conflict:
            existing = await find_topic(call, name)  # another client was faster
    record = existing.record if existing is not None else TopicRecord()
    if any(record.attributes.get(key) != value for key, value in attributes.items()):
        raise wrong_parameter("Attributes Reason: Topic already exists with different attributes")
    if request.tags and request.tags != record.tags:
        raise wrong_parameter("Tags Reason: Topic already exists with different tags")
    return {"TopicArn": name.arn}


async def delete_topic(call: SqsCall, request: shapes.TopicRequest) -> None:
    """Delete a topic with its subscriptions; a missing topic is no error."""
    name, _ = parsed_arn(request.topic_arn)
    topic = await find_topic(call, name)
    if topic is not None:
        await call.execute(DeleteLog(topic.log))


async def list_topics(call: SqsCall, request: shapes.PageRequest) -> dict[str, Any]:
    """List the topics of the region and account."""
    topics, token = _page(await _topics(call), request.next_token, lambda topic: topic.log)
    return {"Topics": [{"TopicArn": topic.name.arn} for topic in topics], **token}


async def _topics(call: SqsCall) -> list[KnownTopic]:
    """Return the topics of the region and account, in the order of their logs."""
    topics: list[KnownTopic] = []
    after = PREFIX
    while True:
        page = await call.execute(ListLogs(after, LISTED_MAX))
        for info in page:
            name = topic_of_log(info.name, call.home)
            if name is not None and (name.region, name.account) == (call.region, call.account):
                topic = await find_topic(call, name)
                topics += [topic] if topic is not None else []
        if len(page) < LISTED_MAX or not page[-1].name.startswith(PREFIX):
            return topics
        after = page[-1].name


def _page(items: list[Any], token: str | None, key: Any) -> tuple[list[Any], dict[str, str]]:
    """Return the items behind a token, and the token of the next page if there is one."""
    try:
        after = after_of(token)
    except SqsError:
        raise wrong_parameter("nextToken") from None
    behind = [item for item in items if key(item) > after] if after else items
    page = behind[:PAGE]
    return page, {"NextToken": token_of(key(page[-1]))} if len(behind) > PAGE else {}


async def get_topic_attributes(call: SqsCall, request: shapes.TopicRequest) -> dict[str, Any]:
    """Return the attributes of a topic."""
    topic = await _readable(call, await need_topic(call, request.topic_arn))
    attributes = {
        "TopicArn": topic.name.arn,
        "Owner": topic.name.account,
        "DisplayName": "",
        "SubscriptionsConfirmed": str(len(topic.record.subscriptions)),
        "SubscriptionsPending": "0",
        "SubscriptionsDeleted": "0",
        "Policy": _default_policy(topic.name),
        "EffectiveDeliveryPolicy": DELIVERY_POLICY,
        **topic.record.attributes,
    }
    if topic.name.is_fifo:
        attributes.setdefault("ContentBasedDeduplication", "false")
    return {"Attributes": attributes}


def _default_policy(name: TopicName) -> str:
    """Return the policy that AWS shows of a topic whose maker has set none."""
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{action}" for action in DEFAULT_ACTIONS],
        "Resource": name.arn,
        "Condition": {"StringEquals": {"AWS:SourceOwner": name.account}},
    }
    policy = {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}
    return json.dumps(policy)


async def _readable(call: SqsCall, topic: KnownTopic) -> KnownTopic:
    """Return a topic if the caller has the right to know of it."""
    await call.execute(DescribeLog(topic.log))
    return topic


async def set_topic_attributes(call: SqsCall, request: shapes.SetTopicAttributesRequest) -> None:
    """Set one attribute of a topic."""
    topic = await need_topic(call, request.topic_arn)
    name, value = request.attribute_name or "", request.attribute_value
    _check_topic_attribute(name, value)
    if name == "FifoTopic":
        raise wrong_parameter("AttributeName")
    await change_topic(
        call, topic, lambda old: replace(old, attributes=_with(old.attributes, name, value))
    )


def _check_topic_attribute(name: str, value: str) -> None:
    if name not in _TOPIC_ATTRIBUTES:
        raise wrong_parameter(f"AttributeName Reason: {name[:100]!r} is no attribute of a topic")
    if name in ("FifoTopic", "ContentBasedDeduplication") and value not in ("true", "false"):
        raise wrong_parameter(f"Attributes Reason: {name} must be true or false")


def _with(attributes: Mapping[str, str], name: str, value: str) -> dict[str, str]:
    """Return attributes with one more; an empty value removes the attribute."""
    remaining = {key: text for key, text in attributes.items() if key != name}
    return {**remaining, name: value} if value else remaining


async def subscribe(call: SqsCall, request: shapes.SubscribeRequest) -> dict[str, Any]:
    """Subscribe a queue to a topic, or return the ARN of its subscription with these attributes."""
    topic = await need_topic(call, request.topic_arn)
    if request.protocol != "sqs":
        raise wrong_parameter(
            f"Protocol Reason: only sqs is supported here, not {(request.protocol or '')[:100]!r}"
        )
    queue = queue_of_arn(request.endpoint or "")
    if queue is None:
        raise wrong_parameter("Endpoint Reason: SQS endpoint ARN is not valid")
    if queue.is_fifo and not topic.name.is_fifo:
        raise wrong_parameter(
            "Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS topics"
        )
    attributes = {key: value for key, value in request.attributes.items() if value != ""}
    _check_subscription(attributes, of="Attributes Reason: ")
    chosen: list[str] = []

    def alter(record: TopicRecord) -> TopicRecord:
        for key, existing in record.subscriptions.items():
            if existing.endpoint == queue.arn:
                if attributes and existing.attributes != attributes:
                    raise wrong_parameter(
                        "Attributes Reason: Subscription already exists with different attributes"
                    )
                chosen[:] = [key]
                return record
        chosen[:] = [str(uuid4())]
        added = {chosen[0]: Subscription(queue.arn, attributes)}
        return replace(record, subscriptions={**record.subscriptions, **added})

    await change_topic(call, topic, alter)
    return {"SubscriptionArn": f"{topic.name.arn}:{chosen[0]}"}


def _check_subscription(attributes: Mapping[str, str], *, of: str = "") -> None:
    """Refuse wrong attributes; `of` begins the reason."""
    for name in attributes:
        if name not in _SUBSCRIPTION_ATTRIBUTES:
            raise wrong_parameter(f"AttributeName Reason: {name[:100]!r} is no such attribute")
    raw = attributes.get("RawMessageDelivery", "true")
    if raw.lower() not in ("true", "false"):
        reason = f"RawMessageDelivery: Invalid value [{raw[:100]}]. Must be true or false."
        raise wrong_parameter(f"{of}{reason}")
    scope = attributes.get("FilterPolicyScope", "MessageAttributes")
    try:
        dead_letters_of(attributes.get("RedrivePolicy", "{}"))
        parse_filter_policy(attributes.get("FilterPolicy", "{}"), scope)
    except PolicyRefused as error:
        raise wrong_parameter(of + error.message.removeprefix("Invalid parameter: ")) from None


async def unsubscribe(call: SqsCall, request: shapes.SubscriptionRequest) -> None:
    """End a subscription; a missing one is no error."""
    name, subscription = parsed_arn(request.subscription_arn, "SubscriptionArn")
    topic = await find_topic(call, name)
    if topic is not None and subscription in topic.record.subscriptions:
        await change_topic(call, topic, lambda record: _without(record, subscription))


def _without(record: TopicRecord, subscription: str) -> TopicRecord:
    remaining = {key: each for key, each in record.subscriptions.items() if key != subscription}
    return replace(record, subscriptions=remaining)


async def list_subscriptions(call: SqsCall, request: shapes.PageRequest) -> dict[str, Any]:
    """List the subscriptions of all topics of the region and account."""
    members = [each for topic in await _topics(call) for each in _members(topic)]
    return _page_of_members(members, request.next_token)


async def list_subscriptions_by_topic(
    call: SqsCall, request: shapes.TopicPageRequest
) -> dict[str, Any]:
    """List the subscriptions of one topic."""
    topic = await _readable(call, await need_topic(call, request.topic_arn))
    return _page_of_members(_members(topic), request.next_token)


def _members(topic: KnownTopic) -> list[dict[str, str]]:
    return [
        {
            "SubscriptionArn": f"{topic.name.arn}:{key}",
            "Owner": topic.name.account,
            "Protocol": "sqs",
            "Endpoint": subscription.endpoint,
            "TopicArn": topic.name.arn,
        }
        for key, subscription in topic.record.subscriptions.items()
    ]


def _page_of_members(members: list[dict[str, str]], token: str | None) -> dict[str, Any]:
    members.sort(key=lambda member: member["SubscriptionArn"])
    page, following = _page(members, token, lambda member: member["SubscriptionArn"])
    return {"Subscriptions": page, **following}


async def _need_subscription(call: SqsCall, arn: str | None) -> tuple[KnownTopic, str]:
    name, subscription = parsed_arn(arn, "SubscriptionArn")
    topic = await find_topic(call, name)
    if topic is None or subscription not in topic.record.subscriptions:
        raise no_subscription()
    return topic, subscription


async def get_subscription_attributes(
    call: SqsCall, request: shapes.SubscriptionRequest
) -> dict[str, Any]:
    """Return the attributes of a subscription."""
    topic, key = await _need_subscription(call, request.subscription_arn)
    await _readable(call, topic)
    subscription = topic.record.subscriptions[key]
    attributes = {
        "SubscriptionArn": f"{topic.name.arn}:{key}",
        "TopicArn": topic.name.arn,
        "Owner": topic.name.account,
        "Protocol": "sqs",
        "Endpoint": subscription.endpoint,
        "PendingConfirmation": "false",
        "ConfirmationWasAuthenticated": "true",
        "RawMessageDelivery": "false",
        **subscription.attributes,
    }
    if "FilterPolicy" in attributes:
        attributes.setdefault("FilterPolicyScope", "MessageAttributes")
    else:
        attributes.pop("FilterPolicyScope", None)  # AWS shows it with a policy only
    return {"Attributes": attributes}


async def set_subscription_attributes(
    call: SqsCall, request: shapes.SetSubscriptionAttributesRequest
) -> None:
    """Set one attribute of a subscription; it counts from the next message on."""
    topic, key = await _need_subscription(call, request.subscription_arn)
    name, value = request.attribute_name or "", request.attribute_value
    if name not in _SUBSCRIPTION_ATTRIBUTES:
        raise wrong_parameter("AttributeName")
    if name == "RawMessageDelivery":
        _check_subscription({name: value})  # never empty

    def alter(record: TopicRecord) -> TopicRecord:
        if key not in record.subscriptions:
            raise no_subscription()
        old = record.subscriptions[key]
        attributes = _with(old.attributes, name, value)
        _check_subscription(attributes)
        altered = replace(old, attributes=attributes)
        return replace(record, subscriptions={**record.subscriptions, key: altered})

    await change_topic(call, topic, alter)


async def tag_resource(call: SqsCall, request: shapes.ResourceRequest) -> dict[str, Any]:
    """Add tags to a topic, or replace their values."""
    topic = await _need_resource(call, request)

    def alter(record: TopicRecord) -> TopicRecord:
        tags = {**record.tags, **request.tags}
        _check_tags(tags)
        return replace(record, tags=tags)

    await change_topic(call, topic, alter)
    return {}


async def untag_resource(call: SqsCall, request: shapes.ResourceRequest) -> dict[str, Any]:
    """Remove tags of a topic."""
    topic = await _need_resource(call, request)

    def alter(record: TopicRecord) -> TopicRecord:
        remaining = {
            key: value for key, value in record.tags.items() if key not in request.tag_keys
        }
        return replace(record, tags=remaining)

    await change_topic(call, topic, alter)
    return {}


async def list_tags(call: SqsCall, request: shapes.ResourceRequest) -> dict[str, Any]:
    """Return the tags of a topic."""
    tags = (await _readable(call, await _need_resource(call, request))).record.tags
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


async def _need_resource(call: SqsCall, request: shapes.ResourceRequest) -> KnownTopic:
    name, _ = parsed_arn(request.resource_arn, "ResourceArn")
    topic = await find_topic(call, name)
    if topic is None:
        raise SnsError("ResourceNotFound", "Resource does not exist", 404)
    return topic


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise SnsError("TagLimitExceeded", f"A topic has at most {TAGS_MAX} tags.")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256 or key.lower().startswith("aws:"):
            raise wrong_parameter("Tags Reason: a key has 1 to 128 characters, a value up to 256")


async def get_caller_identity(call: SqsCall, request: shapes.EmptyRequest) -> dict[str, Any]:
    """Return the account, and the token that has signed the request."""
    user = call.client.principal.token or "root"
    path = "root" if user == "root" else f"user/{user}"
    return {"Arn": f"arn:aws:iam::{call.account}:{path}", "UserId": user, "Account": call.account}
