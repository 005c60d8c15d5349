"""SendMessage and SendMessageBatch: a body becomes the value of a message, attributes its headers.

A batch is one commit. If a batch on a FIFO queue has a repeat, each of its messages is put alone, because
a repeat is answered with the id of the first message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

from millstream.errors import InvalidInput, MillstreamError
from millstream.format.packing import Batch, Single, pack_many, pack_single
from millstream.header import HeaderValue
from millstream.limits import Limits
from millstream.queue.commands import PutFresh, PutReported
from millstream.queue.put_commands import put_packed
from millstream.server.gateways.sqs import shapes
from millstream.server.gateways.sqs.attributes import (
    DEDUPLICATION,
    GROUP,
    SENDER,
    TRACE,
    check_body,
    check_id,
    checked_attributes,
    checked_system_attributes,
    has_only_allowed,
    headers_of,
    size_of,
)
from millstream.server.gateways.sqs.batches import check_batch, of_entries
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.catalog import KnownQueue
from millstream.server.gateways.sqs.digests import Attribute, digest_of_attributes
from millstream.server.gateways.sqs.errors import (
    SqsError,
    aws_error_of,
    invalid,
    invalid_value,
    is_misfit,
    missing,
)
from millstream.server.gateways.sqs.identity import digest_of_value, id_of_put, sequence_number
from millstream.server.gateways.sqs.settings import SIZE_MAX

DELAY_S_MAX = 900


class Letter(NamedTuple):
    """A checked message, ready to be put."""

    body: bytes
    headers: dict[str, HeaderValue]
    delay_s: int | None
    """The delay that differs from the queue's; None for the queue's own."""
    digests: dict[str, str]
    """The digests in the answer, by their names there."""
    size: int


async def send_message(call: SqsCall, request: shapes.SendMessageRequest) -> dict[str, Any]:
    """Send one message."""
    queue = await call.queue(request.queue_url)
    letter = checked_letter(call, queue, request)
    (result,) = await _put(call, queue, [letter])
    if isinstance(result, SqsError):
        raise result
    return result


async def send_message_batch(
    call: SqsCall, request: shapes.SendMessageBatchRequest
) -> dict[str, Any]:
    """Send up to ten messages; each entry succeeds or fails by itself."""
    queue = await call.queue(request.queue_url)
    entries = check_batch("SendMessageBatchRequestEntry", request.entries)
    letters: dict[str, Letter] = {}
    failures: dict[str, SqsError] = {}
    total = sum(_raw_size(entry) for entry in entries)
    if total > SIZE_MAX:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {SIZE_MAX} bytes. You have sent {total} bytes.",
        )
    if queue.name.is_fifo:
        _check_ids(queue, entries)
    for entry in entries:
        name = str(entry.id)
        try:
            letters[name] = checked_letter(call, queue, entry)
        except SqsError as error:
            failures[name] = error
    results = dict(zip(letters, await _put(call, queue, [*letters.values()]), strict=True))
    return of_entries([str(entry.id) for entry in entries], {**results, **failures})


def _check_ids(queue: KnownQueue, entries: Sequence[shapes.SendEntry]) -> None:
    """Refuse a whole batch, as AWS does, if an entry lacks the ids that a FIFO queue needs."""
    for entry in entries:
        if entry.message_group_id is None:
            raise invalid(missing("MessageGroupId").message)
        if entry.message_deduplication_id is None and not queue.record.hashes_bodies:
            raise _no_deduplication()


def _no_deduplication() -> SqsError:
    return invalid(
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly"
    )


def _raw_size(entry: shapes.MessageParameters) -> int:
    """Return the bytes of an entry as a client sends it, before it is checked."""
    size = len((entry.message_body or "").encode("utf-8", "surrogatepass"))
    for name, value in (entry.message_attributes or {}).items():
        size += len(name.encode("utf-8", "surrogatepass")) + len(value.data_type or "")
        size += len(value.binary_value or b"")
        size += len((value.string_value or "").encode("utf-8", "surrogatepass"))
    return size


def checked_letter(call: SqsCall, queue: KnownQueue, message: shapes.MessageParameters) -> Letter:
    """Check a message as AWS checks it, and return it as a value with headers."""
    text = message.message_body
    if not text:
        raise missing("MessageBody")
    check_body(text)
    body = text.encode()
    attributes: dict[str, Attribute] = {}
    digests: dict[str, str] = {}
    headers: dict[str, HeaderValue] = {}
    if message.message_attributes:
        attributes = checked_attributes(message.message_attributes)
        headers = headers_of(attributes)
        digests["MD5OfMessageAttributes"] = digest_of_attributes(attributes)
    if message.message_system_attributes:
        system = checked_system_attributes(message.message_system_attributes)
        headers[TRACE] = system["AWSTraceHeader"].value
        digests["MD5OfMessageSystemAttributes"] = digest_of_attributes(system)
    size = len(body) + (size_of(attributes) if attributes else 0)
    if size > queue.record.size_max:
        raise invalid(
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{queue.record.size_max} bytes."
        )
    if sender := call.client.principal.token:
        headers[SENDER] = sender
    if call.trace and TRACE not in headers and has_only_allowed(call.trace):
        headers[TRACE] = call.trace
    _add_group(queue, message, headers, body)
    return Letter(body, headers, _delay(queue, message.delay_seconds), digests, size)


def _add_group(
    queue: KnownQueue,
    message: shapes.MessageParameters,
    headers: dict[str, HeaderValue],
    body: bytes,
) -> None:
    group, dedup = message.message_group_id, message.message_deduplication_id
    if group is not None:
        headers[GROUP] = check_id("MessageGroupId", group)
    if not queue.name.is_fifo:
        if dedup is not None:
            raise invalid_value(
                "MessageDeduplicationId",
                dedup[:200],
                "The request include parameter that is not valid for this queue type.",
            )
        return
    if group is None:
        raise missing("MessageGroupId")
    if dedup is not None:
        check_id("MessageDeduplicationId", dedup)
    elif queue.record.hashes_bodies:
        dedup = sha256(body).hexdigest()
    else:
        raise _no_deduplication()
    scope = [group] if queue.record.dedups_by_group else []
    if queue.record.purges:
        scope.append(str(queue.record.purges))
    headers[DEDUPLICATION] = "\0".join([*scope, dedup])


def _delay(queue: KnownQueue, delay_s: int | None) -> int | None:
    if delay_s is None:
        return None
    if queue.name.is_fifo:
        if delay_s == 0:
            return None
        raise invalid_value(
            "DelaySeconds",
            delay_s,
            "The request include parameter that is not valid for this queue type.",
        )
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise invalid_value(
            "DelaySeconds", delay_s, f"DelaySeconds must be >= 0 and <= {DELAY_S_MAX}."
        )
    return None if delay_s == queue.spec.delay else delay_s


async def _put(
    call: SqsCall, queue: KnownQueue, letters: list[Letter]
) -> list[dict[str, Any] | SqsError]:
    """Put letters; return the answer of each, or its error."""
    if not letters:
        return []
    if queue.spec.dedup_by:
        return await _put_unrepeated(call, queue, letters)
    if not queue.spec.group_by and any(GROUP in letter.headers for letter in letters):
        await call.catalog.make_fair(queue)
    by_delay: dict[int | None, list[int]] = {}
    for number, letter in enumerate(letters):
        by_delay.setdefault(letter.delay_s, []).append(number)
    results: list[dict[str, Any] | SqsError] = [{} for _ in letters]
    puts = [_put_alike(call, queue, letters, numbers, results) for numbers in by_delay.values()]
    if len(puts) == 1:
        await puts[0]
    else:
        await asyncio.gather(*puts)
    return results


async def _put_alike(
    call: SqsCall,
    queue: KnownQueue,
    letters: list[Letter],
    numbers: list[int],
    results: list[dict[str, Any] | SqsError],
) -> None:
    """Put letters with the same delay in one commit, and write their answers.

    A letter that does not fit the schema of the queue fails alone, and the others are put without it.
    """
    if not numbers:
        return
    alike = [letters[number] for number in numbers]
    limits, delay_s = call.client.core.store.limits, alike[0].delay_s
    command = put_packed(queue.stored, _packed(alike, limits), delay=delay_s)
    try:
        first = await call.execute(command)
    except MillstreamError as error:
        if is_misfit(error):
            misfit = numbers[error.data["index"]]
            results[misfit] = aws_error_of(error)
            fitting = [number for number in numbers if number != misfit]
            await _put_alike(call, queue, letters, fitting, results)
            return
        if len(numbers) == len(letters):
            raise
        for number in numbers:
            results[number] = aws_error_of(error)
        return
    for place, number in enumerate(numbers):
        results[number] = _sent(queue, first + place, alike[place])


async def _put_unrepeated(
    call: SqsCall, queue: KnownQueue, letters: list[Letter]
) -> list[dict[str, Any] | SqsError]:
    """Put letters in one commit, or each alone if one may be a repeat or does not fit the schema."""
    first = None
    with suppress(InvalidInput):
        records = _packed(letters, call.client.core.store.limits)
        first = await call.execute(PutFresh(queue.stored, records))
    if first is None:
        return [await _put_reported(call, queue, letter) for letter in letters]
    return [_sent(queue, first + place, letter) for place, letter in enumerate(letters)]


async def _put_reported(
    call: SqsCall, queue: KnownQueue, letter: Letter
) -> dict[str, Any] | SqsError:
    record = _packed([letter], call.client.core.store.limits)
    try:
        result = await call.execute(PutReported(queue.stored, record))
    except MillstreamError as error:
        return aws_error_of(error)
    return _sent(queue, result.id or 0, letter)


def _packed(letters: list[Letter], limits: Limits) -> Single | Batch:
    """Return letters as records; a single letter takes half the time of a batch of one."""
    if len(letters) == 1:
        letter = letters[0]
        return pack_single(
            letter.body, key=None, headers=letter.headers, timestamp=None, limits=limits
        )
    headers = [letter.headers for letter in letters]
    batch = pack_many(
        [letter.body for letter in letters],
        keys=None,
        headers=headers if any(headers) else None,
        timestamps=None,
        limits=limits,
    )
    assert batch is not None
    return batch


def _sent(queue: KnownQueue, put: int, letter: Letter) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "MD5OfMessageBody": digest_of_value(letter.body),
        **letter.digests,
        "MessageId": id_of_put(queue.seed, put),
    }
    if queue.name.is_fifo:
        answer["SequenceNumber"] = sequence_number(put)
    return answer
