"""The actions on queues: create, find, list, describe, alter, purge and delete."""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from millstream.command import Transact
from millstream.errors import Conflict
from millstream.log.commands import SetMetadata
from millstream.queue import commands as c
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.own_logs import inbox_of
from millstream.server.gateways.sqs import shapes
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.catalog import KnownQueue
from millstream.server.gateways.sqs.errors import (
    SqsError,
    invalid,
    invalid_value,
    missing,
    no_queue,
)
from millstream.server.gateways.sqs.names import (
    QueueName,
    check_queue_name,
    is_account,
    is_queue_name,
    queue_of_arn,
    queue_of_stored,
    suffix_of,
)
from millstream.server.gateways.sqs.records import change_record
from millstream.server.gateways.sqs.settings import (
    COUNTS,
    METADATA,
    NO_RECORD,
    RETENTION_S,
    QueueRecord,
    altered_record,
    altered_spec,
    checked_settings,
    differing,
    displayed_settings,
    new_spec,
    selected_attributes,
    text_of,
)
from millstream.server.gateways.sqs.tags import check_tags

LISTED_MAX = 1_000
PURGE_MS = 60_000
"""How long a queue refuses a second purge."""


async def create_queue(call: SqsCall, request: shapes.CreateQueueRequest) -> dict[str, Any]:
    """Create a queue, or return the address of one with the same attributes."""
    if not request.queue_name:
        raise missing("QueueName")
    name = call.named(check_queue_name(request.queue_name))
    if name.is_fifo != (request.attributes.get("FifoQueue", "false").lower() == "true"):
        raise _wrong_kind(name)
    attributes = dict(request.attributes)
    if not name.is_fifo:
        attributes.pop("FifoQueue", None)  # false, as is every standard queue's
    settings = checked_settings(attributes, is_fifo=name.is_fifo)
    check_tags(request.tags, name.name)
    existing = call.catalog.find(name) or await call.catalog.freshly(name)
    if existing is None:
        try:
            await _create(call, name, settings, request.tags)
            return {"QueueUrl": call.url(name)}
        except Conflict:
            existing = await call.catalog.need(name)  # another client was faster
    await call.execute(c.DescribeQueue(existing.stored))  # the right to know of it
    different = differing(settings, settings_of(existing))
    if different is not None:
        raise SqsError(
            "QueueNameExists",
            f"A queue already exists with the same name and a different value for attribute {different}",
        )
    return {"QueueUrl": call.url(name)}


def _wrong_kind(name: QueueName) -> SqsError:
    if name.is_fifo:
        return invalid(
            "The name of a standard queue can only include alphanumeric characters, hyphens, or "
            "underscores; a name that ends with .fifo needs the attribute FifoQueue."
        )
    return invalid(
        "The name of a FIFO queue can only include alphanumeric characters, hyphens, or "
        "underscores, must end with .fifo suffix and be 1 to 80 in length."
    )


async def _create(
    call: SqsCall, name: QueueName, settings: Mapping[str, str], tags: dict[str, str]
) -> None:
    stored, now_s = name.stored(call.home), call.now_ms() // 1000
    seeded = QueueRecord(tags=tags, seed=secrets.token_hex(16))
    kept = {"MessageRetentionPeriod": RETENTION_S}
    record = altered_record(seeded, {**kept, **settings}, now_s=now_s)
    spec = altered_spec(new_spec(name), record, settings, home=call.home)
    await _check_redrive(call, name, record)
    metadata = SetMetadata(inbox_of(stored), METADATA, text_of(record), expect=None, compare=True)
    await call.execute(Transact([c.SpecifyQueue(stored, spec), metadata]))
    call.catalog.forget(name)


async def _check_redrive(call: SqsCall, name: QueueName, record: QueueRecord) -> None:
    """Refuse a dead-letter queue that is missing, of another kind, or does not allow this queue."""
    redrive = record.redrive
    if redrive is None:
        return
    target = queue_of_arn(redrive.dead_letter_target_arn)
    assert target is not None
    dead = call.catalog.find(target) or await call.catalog.freshly(target)
    if dead is None:
        raise _bad_redrive(
            f"Value {redrive.dead_letter_target_arn} for parameter deadLetterTargetArn is invalid. "
            "Reason: Dead letter target does not exist."
        )
    if target.is_fifo != name.is_fifo:
        raise _bad_redrive("Dead-letter queue must be same type of queue as the source.")
    if target == name:
        raise _bad_redrive("A queue cannot be its own dead-letter queue.")
    if (target.region, target.account) != (name.region, name.account):
        raise _bad_redrive("A dead-letter queue is in the region and account of its queue.")
    allow = dead.record.redrive_allow
    if allow is None or allow.redrive_permission == "allowAll":
        return
    if allow.redrive_permission == "denyAll" or name.arn not in allow.source_queue_arns:
        raise _bad_redrive(
            f"The RedriveAllowPolicy of {target.arn} does not allow this queue as a source."
        )


def _bad_redrive(reason: str) -> SqsError:
    return SqsError(
        "InvalidParameterValueException",
        f"Invalid value for the parameter RedrivePolicy. Reason: {reason}",
    )


def settings_of(existing: KnownQueue) -> dict[str, str]:
    """Return the attributes of a queue except its counts."""
    return displayed_settings(
        existing.name, existing.spec, existing.record, existing.created_ms // 1000
    )


async def delete_queue(call: SqsCall, request: shapes.QueueRequest) -> None:
    """Delete a queue with its messages."""
    queue = await call.queue(request.queue_url)
    await call.execute(c.DeleteQueue(queue.stored))
    call.catalog.forget(queue.name)


async def get_queue_url(call: SqsCall, request: shapes.GetQueueUrlRequest) -> dict[str, Any]:
    """Return the address of a queue."""
    if not request.queue_name:
        raise missing("QueueName")
    account = request.queue_owner or call.account
    if not is_queue_name(request.queue_name) or not is_account(account):
        raise no_queue()
    queue = await call.catalog.need(QueueName(call.region, account, request.queue_name))
    await call.execute(c.DescribeQueue(queue.stored))
    return {"QueueUrl": call.url(queue.name)}


async def list_queues(call: SqsCall, request: shapes.ListQueuesRequest) -> dict[str, Any]:
    """List the queues of the region and account, in the order of their names."""
    limit = checked_limit(request.max_results)
    after = after_of(request.next_token)
    prefix, suffix = request.queue_name_prefix, suffix_of(call.region, call.account, call.home)
    if prefix and not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", prefix):
        return {}

    def takes(name: QueueName) -> bool:
        is_here = (name.region, name.account) == (call.region, call.account)
        return is_here and name.name.startswith(prefix)

    names: list[QueueName] = []
    after = max(after, prefix[:-1] + chr(ord(prefix[-1]) - 1) + "~" if prefix else "")
    while len(names) <= limit:
        page = await call.execute(c.ListQueues(after, LISTED_MAX))
        for info in page:
            name = queue_of_stored(info.name, call.home)
            if name is not None and takes(name):
                names.append(name)
        if len(page) < LISTED_MAX or page[-1].name[: len(prefix)] > prefix:
            break
        after = page[-1].name
    answer: dict[str, Any] = {}
    if names:
        answer["QueueUrls"] = [call.url(name) for name in names[:limit]]
    if len(names) > limit and request.max_results is not None:
        answer["NextToken"] = token_of(names[limit - 1].name + suffix)
    return answer


def checked_limit(limit: int | None) -> int:
    """Return the length of a page."""
    if limit is not None and not 1 <= limit <= LISTED_MAX:
        raise invalid_value(
            "MaxResults", limit, f"MaxResults must be an integer between 1 and {LISTED_MAX}."
        )
    return LISTED_MAX if limit is None else limit


def token_of(name: str) -> str:
    """Return the token of the page behind a name."""
    return urlsafe_b64encode(name.encode()).decode()


def after_of(token: str | None) -> str:
    """Return the name behind which a page begins."""
    if not token:
        return ""
    with suppress(Base64Error, ValueError):
        name = urlsafe_b64decode(token.encode()).decode()
        if token_of(name) == token:  # the decoder skips foreign characters
            return name
    raise invalid_value("NextToken", token[:100], "Invalid NextToken.")


async def counted(call: SqsCall, queue: KnownQueue) -> QueueInfo:
    """Return a queue with its counts; expired leases count as in flight until a claim."""
    info = await call.execute(c.DescribeQueue(queue.stored))
    if info is not None and info.in_flight:
        await call.catalog.end_leases(queue)
        info = await call.execute(c.DescribeQueue(queue.stored))
    if info is None:
        raise no_queue()
    return info


async def get_queue_attributes(
    call: SqsCall, request: shapes.GetQueueAttributesRequest
) -> dict[str, Any]:
    """Return attributes of a queue."""
    queue = await call.queue(request.queue_url)
    selection = selected_attributes(request.attribute_names)
    displayed = settings_of(queue)
    if COUNTS & selection:
        info = await counted(call, queue)
        displayed |= {
            "ApproximateNumberOfMessages": str(info.available + info.unrouted),
            "ApproximateNumberOfMessagesNotVisible": str(info.in_flight),
            "ApproximateNumberOfMessagesDelayed": str(info.delayed),
        }
        assert displayed.keys() >= COUNTS
    elif await call.execute(c.DescribeQueue(queue.stored)) is None:
        raise no_queue()
    attributes = {name: value for name, value in displayed.items() if name in selection}
    return {"Attributes": attributes} if attributes else {}


async def set_queue_attributes(call: SqsCall, request: shapes.SetQueueAttributesRequest) -> None:
    """Alter attributes of a queue. The next request obeys the new attributes."""
    queue = await call.queue(request.queue_url)
    if not request.attributes:
        raise missing("Attribute.Name")
    changes = checked_settings(request.attributes, is_fifo=queue.name.is_fifo)

    def alter(record: QueueRecord) -> QueueRecord:
        altered = altered_record(record, changes, now_s=call.now_ms() // 1000)
        return replace(altered, permissions={}) if "Policy" in changes else altered

    await _check_redrive(call, queue.name, altered_record(NO_RECORD, changes, now_s=0))
    await change_record(call, queue, alter, changes)


async def purge_queue(call: SqsCall, request: shapes.QueueRequest) -> None:
    """Delete all messages of a queue, also those in flight; once a minute."""
    queue = await call.queue(request.queue_url)
    call.catalog.note_purge(queue, PURGE_MS)
    try:
        await _purge(call, queue)
        if queue.name.is_fifo:
            await change_record(call, queue, lambda old: replace(old, purges=old.purges + 1))
    except BaseException:
        call.catalog.forget_purge(queue)
        raise


async def _purge(call: SqsCall, queue: KnownQueue) -> None:
    await call.execute(c.PurgeQueue(queue.stored, "available"))
    while lots := await call.execute(_in_flight(queue)):
        runs = [(lot.label.claim_id, len(lot.values), lot.label.attempt) for lot in lots]
        lost: list[c.Run] = await call.execute(c.FinishClaims(queue.stored, runs, "ack", each=True))
        if sum(run[1] for run in lost) == sum(run[1] for run in runs):
            break  # their leases ended meanwhile; the next receive decides


def _in_flight(queue: KnownQueue) -> Any:
    return c.PeekMessages(queue.stored, "in_flight", LISTED_MAX, route=False)


async def list_dead_letter_sources(
    call: SqsCall, request: shapes.ListDeadLetterSourceQueuesRequest
) -> dict[str, Any]:
    """List the queues whose redrive policy names a queue."""
    queue = await call.queue(request.queue_url)
    limit = checked_limit(request.max_results)
    after, log = after_of(request.next_token), inbox_of(queue.stored)
    sources: list[QueueName] = []
    while len(sources) <= limit:
        page = await call.execute(c.ListQueues(after, LISTED_MAX))
        for info in page:
            name = queue_of_stored(info.name, call.home) if info.spec.dead_letter == log else None
            if name is not None:
                sources.append(name)
        if len(page) < LISTED_MAX:
            break
        after = page[-1].name
    answer: dict[str, Any] = {"queueUrls": [call.url(name) for name in sources[:limit]]}
    if len(sources) > limit:
        answer["NextToken"] = token_of(sources[limit - 1].stored(call.home))
    return answer
