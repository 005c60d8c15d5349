"""Publish and PublishBatch: one commit appends to the topic's log and to every queue that gets the message.

A crash leaves the message in every queue with a matching filter policy, or in no queue. A queue that is missing, or
whose settings or schema refuse the message, gets no copy, as with AWS; the others do. A copy that is
refused by settings goes to the dead-letter queue of its subscription.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

from millstream.command import Transact
from millstream.errors import InvalidInput, NotFound
from millstream.format.packing import pack_single
from millstream.header import HeaderValue
from millstream.log.commands import Append
from millstream.queue.put_commands import put_batch
from millstream.server.gateways.sqs.attributes import (
    ATTRIBUTES_MAX,
    DEDUPLICATION,
    GROUP,
    MESSAGE_ID,
    OWN,
    check_body,
    check_id,
    checked_attributes,
    headers_of,
    size_of,
)
from millstream.server.gateways.sqs.batches import check_batch, of_entries
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.digests import Attribute
from millstream.server.gateways.sqs.errors import SqsError, is_misfit
from millstream.server.gateways.sqs.filter_policy import FilterPolicy, parse_filter_policy
from millstream.server.gateways.sqs.identity import sequence_number
from millstream.server.gateways.sqs.names import queue_of_arn
from millstream.server.gateways.sqs.policy_views import PolicyRefused
from millstream.server.gateways.sqs.sending import checked_letter
from millstream.server.gateways.sqs.shapes import AttributeValue, AttributeValues, MessageParameters
from millstream.server.gateways.sqs.sns_shapes import (
    PublishBatchRequest,
    PublishRequest,
    TopicMessage,
)
from millstream.server.gateways.sqs.topics import (
    KnownTopic,
    SnsError,
    Subscription,
    need_topic,
    wrong_parameter,
)

SIZE_MAX = 256 * 1024
SUBJECT_CHARS_MAX = 100
SUBJECT = OWN + "Subject"
BATCH_ERRORS = {
    "EmptyBatchRequest": "The batch request doesn't contain any entries.",
    "TooManyEntriesInBatchRequest": "The batch request contains more entries than permissible.",
    "BatchEntryIdsNotDistinct": "Two or more batch entries in the request have the same Id.",
}


class Publication(NamedTuple):
    """A checked message, ready to be handed out."""

    identity: str
    text: str
    """The message as queues get it."""
    subject: str | None
    attributes: dict[str, Attribute]
    values: AttributeValues | None
    """The attributes as the client sent them."""
    group: str | None
    deduplication: str | None


async def publish(call: SqsCall, request: PublishRequest) -> dict[str, Any]:
    """Publish one message to a topic."""
    topic = await need_topic(call, request.topic_arn or request.target_arn)
    (result,) = await _publish(call, topic, [checked_publication(topic, request)])
    if isinstance(result, SqsError):
        raise result
    return result


async def publish_batch(call: SqsCall, request: PublishBatchRequest) -> dict[str, Any]:
    """Publish up to ten messages in one commit; each entry is checked by itself."""
    topic = await need_topic(call, request.topic_arn)
    try:
        entries = check_batch("PublishBatchRequestEntry", request.publish_batch_request_entries)
    except SqsError as error:
        raise SnsError(error.code, BATCH_ERRORS.get(error.code, error.message)) from None
    publications: dict[str, Publication] = {}
    failures: dict[str, dict[str, Any] | SqsError] = {}
    for entry in entries:
        try:
            publications[str(entry.id)] = checked_publication(topic, entry)
        except SqsError as error:
            if topic.name.is_fifo or entry.message_structure:
                raise  # AWS refuses the whole batch
            failures[str(entry.id)] = error
    if sum(_size(each) for each in publications.values()) > SIZE_MAX:
        raise SnsError("BatchRequestTooLong", f"A batch has at most {SIZE_MAX} bytes.")
    results = await _publish(call, topic, [*publications.values()]) if publications else []
    answered = dict(zip(publications, results, strict=True))
    answer = of_entries([str(entry.id) for entry in entries], {**answered, **failures})
    return {"Successful": [], "Failed": [], **answer}


def checked_publication(topic: KnownTopic, message: TopicMessage) -> Publication:
    """Check a message as SNS does."""
    text = _text_for_queues(message)
    if not text:
        raise wrong_parameter("Empty message")
    subject = message.subject
    if subject is not None and not (
        0 < len(subject) <= SUBJECT_CHARS_MAX and subject.isascii() and subject.isprintable()
    ):
        raise wrong_parameter(
            f"Subject Reason: it has 1 to {SUBJECT_CHARS_MAX} printable characters"
        )
    attributes = _attributes_of(message)
    group, deduplication = message.message_group_id, message.message_deduplication_id
    try:
        check_body(text)
        if group is not None:
            check_id("MessageGroupId", group)
        if deduplication is not None:
            check_id("MessageDeduplicationId", deduplication)
    except SqsError as error:
        raise wrong_parameter(error.message) from None
    if topic.name.is_fifo:
        if group is None:
            raise wrong_parameter("The MessageGroupId parameter is required for FIFO topics")
        if deduplication is None:
            if topic.record.attributes.get("ContentBasedDeduplication") != "true":
                raise wrong_parameter(
                    "The topic should either have ContentBasedDeduplication enabled or "
                    "MessageDeduplicationId provided explicitly"
                )
            deduplication = sha256(text.encode()).hexdigest()
    elif deduplication is not None:
        raise wrong_parameter(
            "MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter "
            "that is not valid for this topic type"
        )
    values = message.message_attributes
    publication = Publication(str(uuid4()), text, subject, attributes, values, group, deduplication)
    if _size(publication) > SIZE_MAX:
        raise wrong_parameter("Message too long")
    return publication


def _attributes_of(message: TopicMessage) -> dict[str, Attribute]:
    """Check attributes; SNS has any number of them, and the type String.Array."""
    checked: dict[str, Attribute] = {}
    try:
        for name, value in (message.message_attributes or {}).items():
            checked |= checked_attributes({name: value})
    except SqsError as error:
        raise SnsError("ParameterValueInvalid", error.message) from None
    return checked


def _text_for_queues(message: TopicMessage) -> str:
    """Return the message for the protocol sqs."""
    text = message.message or ""
    if not message.message_structure:
        return text
    if message.message_structure != "json":
        raise wrong_parameter("MessageStructure Reason: it must be json")
    try:
        texts = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong_parameter("Message Structure - JSON message body failed to parse") from None
    if not isinstance(texts, dict) or not isinstance(texts.get("default"), str):
        raise wrong_parameter("Message Structure - No default entry in JSON message body")
    chosen = texts.get("sqs", texts["default"])
    if not isinstance(chosen, str):
        raise wrong_parameter("Message Structure - The entry sqs must be a string")
    return chosen


def _size(publication: Publication) -> int:
    return len(publication.text.encode()) + size_of(publication.attributes)


async def _publish(
    call: SqsCall, topic: KnownTopic, publications: Sequence[Publication]
) -> list[dict[str, Any] | SqsError]:
    """Store publications in the topic's log and in the queues, in one commit."""
    if any(publication.group is not None for publication in publications):
        await _make_fair(call, topic)
    try:
        stored = await _store(call, _steps(call, topic, publications))
    except NotFound:  # a queue was deleted a moment ago
        await call.client.core.session.ask(call.client.core.store.refresh)
        call.catalog.forget_all()
        topic = await need_topic(call, topic.name.arn)
        stored = await _store(call, _steps(call, topic, publications))
    results: list[dict[str, Any] | SqsError] = []
    for publication, offset in zip(publications, stored, strict=True):
        if isinstance(offset, SqsError):
            results.append(offset)
            continue
        result: dict[str, Any] = {"MessageId": publication.identity}
        if topic.name.is_fifo:
            result["SequenceNumber"] = sequence_number(offset)
        results.append(result)
    return results


async def _store(call: SqsCall, steps: list[list[Any]]) -> list[int | SqsError]:
    """Commit publications, and return their offsets in the topic's log, or why one is refused.

    A publication that does not fit the schema of the topic's log is left out, and so is a copy that does
    not fit the schema of its queue.
    """
    refused: dict[int, SqsError] = {}
    while any(steps):
        places = [(number, at) for number, each in enumerate(steps) for at in range(len(each))]
        try:
            answers = await call.execute(Transact([steps[number][at] for number, at in places]))
            break
        except InvalidInput as error:
            if not is_misfit(error):
                raise
            number, at = places[error.data["step"]]
            if at == 0:
                refused[number] = wrong_parameter(f"Message Reason: {error.message}")
                steps[number] = []
            else:
                del steps[number][at]
    offsets = (
        {
            number: int(answer)
            for (number, at), answer in zip(places, answers, strict=True)
            if at == 0
        }
        if any(steps)
        else {}
    )
    return [refused.get(number, offsets.get(number, 0)) for number in range(len(steps))]


def _steps(
    call: SqsCall, topic: KnownTopic, publications: Sequence[Publication]
) -> list[list[Any]]:
    """Return the commands that store each publication: the first appends it to the topic's log."""
    limits = call.client.core.store.limits
    subscriptions = topic.record.subscriptions
    steps: list[list[Any]] = []
    for publication in publications:
        headers = _headers(publication)
        record = pack_single(
            publication.text.encode(), key=None, headers=headers, timestamp=None, limits=limits
        )
        copies = [
            copy
            for key, subscription in subscriptions.items()
            for copy in _copies(call, topic, key, subscription, publication)
        ]
        steps.append([Append(topic.log, record), *copies])
    return steps


async def _make_fair(call: SqsCall, topic: KnownTopic) -> None:
    """Let standard queues share their consumers fairly, as with the first group that SQS sends."""
    for subscription in topic.record.subscriptions.values():
        name = queue_of_arn(subscription.endpoint)
        queue = None if name is None else call.catalog.find(name)
        if queue is not None and not queue.spec.group_by:
            await call.catalog.make_fair(queue)


def _headers(publication: Publication) -> dict[str, HeaderValue]:
    """Return the headers of a message in the topic's log."""
    headers = headers_of(publication.attributes)
    headers[MESSAGE_ID] = publication.identity
    if publication.subject is not None:
        headers[SUBJECT] = publication.subject
    if publication.group is not None:
        headers[GROUP] = publication.group
    if publication.deduplication is not None:
        headers[DEDUPLICATION] = publication.deduplication
    return headers


def _copies(
    call: SqsCall,
    topic: KnownTopic,
    key: str,
    subscription: Subscription,
    publication: Publication,
) -> Iterable[Any]:
    """Yield the command that puts a message into the queue of one subscription, if the queue gets it.

    If the queue is missing or refuses the message, its dead-letter queue gets it.
    """
    attributes = subscription.attributes
    if policy_text := attributes.get("FilterPolicy"):
        policy = _policy(policy_text, attributes.get("FilterPolicyScope", "MessageAttributes"))
        try:
            if not policy.matches(publication.attributes, publication.text):
                return
        except PolicyRefused as error:
            raise SnsError("InvalidParameter", error.message) from None
    message = MessageParameters(message_body=publication.text, message_group_id=publication.group)
    if not subscription.is_raw:
        message.message_body = _envelope(call, f"{topic.name.arn}:{key}", topic, publication)
    elif len(publication.attributes) > ATTRIBUTES_MAX:
        return
    elif publication.values:
        message.message_attributes = {
            each: AttributeValue(
                attribute.data_type,
                attribute.value if isinstance(attribute.value, str) else None,
                attribute.value if isinstance(attribute.value, bytes) else None,
            )
            for each, attribute in publication.attributes.items()
        }
    for arn in (subscription.endpoint, subscription.dead_letters):
        name = queue_of_arn(arn)
        queue = None if name is None else call.catalog.find(name)
        if queue is None:
            continue
        message.message_deduplication_id = publication.deduplication if queue.name.is_fifo else None
        try:
            letter = checked_letter(call, queue, message)
        except SqsError:
            continue  # a message that the queue's settings refuse
        command, _ = put_batch(
            queue.stored,
            [letter.body],
            keys=None,
            headers=[letter.headers],
            delay=None,
            at=None,
            limits=call.client.core.store.limits,
        )
        yield command
        return


@lru_cache(maxsize=1_000)
def _policy(text: str, scope: str) -> FilterPolicy:
    return parse_filter_policy(text, scope)


def _envelope(call: SqsCall, arn: str, topic: KnownTopic, publication: Publication) -> str:
    """Return the JSON in which a queue gets a message that is not raw. It carries no signature."""
    at = datetime.fromtimestamp(call.now_ms() / 1000, UTC)
    envelope: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": publication.identity,
        "TopicArn": topic.name.arn,
    }
    if publication.subject is not None:
        envelope["Subject"] = publication.subject
    envelope |= {
        "Message": publication.text,
        "Timestamp": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z",
        "UnsubscribeURL": f"{call.base}/?Action=Unsubscribe&SubscriptionArn={arn}",
    }
    if publication.values:
        envelope["MessageAttributes"] = {
            name: {"Type": attribute.data_type, "Value": _shown(publication.values[name])}
            for name, attribute in publication.attributes.items()
        }
    return json.dumps(envelope, ensure_ascii=False)


def _shown(value: AttributeValue) -> str:
    if value.binary_value is None:
        return value.string_value or ""
    return b64encode(value.binary_value).decode()
