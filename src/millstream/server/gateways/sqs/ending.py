"""DeleteMessage, ChangeMessageVisibility and their batches: the ends and the leases of claims."""

from __future__ import annotations

import asyncio
from typing import Any

from millstream.errors import LeaseLost, MillstreamError
from millstream.queue.commands import CancelMessage, FinishClaims, RenewClaims, Run
from millstream.server.gateways.sqs import shapes
from millstream.server.gateways.sqs.batches import check_batch, of_entries
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.catalog import KnownQueue
from millstream.server.gateways.sqs.errors import SqsError, aws_error_of, invalid_value, missing
from millstream.server.gateways.sqs.receipts import Receipt, receipt_of
from millstream.server.gateways.sqs.settings import VISIBILITY_S_MAX

Results = dict[str, dict[str, Any] | SqsError]


async def delete_message(call: SqsCall, request: shapes.DeleteMessageRequest) -> None:
    """Delete a received message; a repeated delete succeeds."""
    queue = await call.queue(request.queue_url)
    receipt = _receipt(queue, request.receipt_handle)
    if await _delete(call, queue, [receipt]) and queue.name.is_fifo:
        await _check_deleted(call, queue, receipt, str(request.receipt_handle))


async def delete_message_batch(
    call: SqsCall, request: shapes.DeleteMessageBatchRequest
) -> dict[str, Any]:
    """Delete up to ten messages in one commit; each entry succeeds or fails by itself."""
    queue = await call.queue(request.queue_url)
    entries = check_batch("DeleteMessageBatchRequestEntry", request.entries)
    results: Results = {}
    receipts: dict[str, Receipt] = {}
    for entry in entries:
        try:
            receipts[str(entry.id)] = _receipt(queue, entry.receipt_handle)
            results[str(entry.id)] = {}
        except SqsError as error:
            results[str(entry.id)] = error
    lost = await _delete(call, queue, [*receipts.values()]) if receipts else set()
    if lost and queue.name.is_fifo:
        for entry in entries:
            name = str(entry.id)
            if name in receipts and receipts[name].claim_id in lost:
                try:
                    await _check_deleted(call, queue, receipts[name], str(entry.receipt_handle))
                except SqsError as error:
                    results[name] = error
    return of_entries([str(entry.id) for entry in entries], results)


async def change_visibility(call: SqsCall, request: shapes.ChangeMessageVisibilityRequest) -> None:
    """Change how long a received message stays invisible, from now."""
    queue = await call.queue(request.queue_url)
    await _change(call, queue, request.receipt_handle, request.visibility_timeout)


async def change_visibility_batch(
    call: SqsCall, request: shapes.ChangeMessageVisibilityBatchRequest
) -> dict[str, Any]:
    """Change up to ten leases; each entry succeeds or fails by itself."""
    queue = await call.queue(request.queue_url)
    entries = check_batch("ChangeMessageVisibilityBatchRequestEntry", request.entries)

    async def change(entry: shapes.VisibilityEntry) -> dict[str, Any] | SqsError:
        try:
            await _change(call, queue, entry.receipt_handle, entry.visibility_timeout)
        except SqsError as error:
            return error
        except MillstreamError as error:
            return aws_error_of(error)
        return {}

    names = [str(entry.id) for entry in entries]
    answers = await asyncio.gather(*map(change, entries))
    return of_entries(names, dict(zip(names, answers, strict=True)))


def _receipt(queue: KnownQueue, handle: str | None) -> Receipt:
    if not handle:
        raise missing("ReceiptHandle")
    return receipt_of(handle, queue.stored)


async def _delete(call: SqsCall, queue: KnownQueue, receipts: list[Receipt]) -> set[int]:
    """Acknowledge claims; return the claims whose lease ended. On a standard queue their messages are
    deleted as well, unless a consumer has them now.
    """
    runs = _runs(receipts)
    lost_runs = await call.execute(FinishClaims(queue.stored, runs, "ack", each=True))
    lost = {first + place for first, count, _ in lost_runs for place in range(count)}
    if not queue.name.is_fifo:
        for claim_id in lost:
            await call.execute(CancelMessage(queue.stored, None, claim_id))
    return lost


def _runs(receipts: list[Receipt]) -> list[Run]:
    """Return claims as runs; neighbours, as one receive returns them, are one run."""
    runs: list[Run] = []
    first = behind = attempt = -1
    for receipt in sorted(receipts):
        if receipt.claim_id == behind and receipt.attempt == attempt:
            behind += 1
            runs[-1] = first, behind - first, attempt
        else:
            first, attempt = receipt.claim_id, receipt.attempt
            behind = first + 1
            runs.append((first, 1, attempt))
    return runs


async def _check_deleted(call: SqsCall, queue: KnownQueue, receipt: Receipt, handle: str) -> None:
    """Refuse the delete of a message of a FIFO queue whose lease has ended."""
    run = (receipt.claim_id, 1, receipt.attempt)
    try:
        await call.execute(FinishClaims(queue.stored, [run], "ack"))
    except LeaseLost as error:
        if error.data["why"][0] in ("expired", "claimed_again", "given_back"):
            raise invalid_value(
                "ReceiptHandle", handle, "The receipt handle has expired."
            ) from None


async def _change(
    call: SqsCall, queue: KnownQueue, handle: str | None, timeout_s: int | None
) -> None:
    receipt = _receipt(queue, handle)
    if timeout_s is None:
        raise missing("VisibilityTimeout")
    if not 0 <= timeout_s <= VISIBILITY_S_MAX:
        raise invalid_value(
            "VisibilityTimeout",
            timeout_s,
            f"Must be between 0 and {VISIBILITY_S_MAX}, if provided.",
        )
    held_ms = call.now_ms() - receipt.received_ms
    if timeout_s and held_ms + timeout_s * 1000 > (VISIBILITY_S_MAX + 1) * 1000:
        raise invalid_value(
            "VisibilityTimeout",
            timeout_s,
            "Total VisibilityTimeout for the message is beyond the limit "
            f"[{VISIBILITY_S_MAX} seconds].",
        )
    run = (receipt.claim_id, 1, receipt.attempt)
    try:
        if timeout_s:
            await call.execute(RenewClaims(queue.stored, [run], timeout_s * 1000))
        else:
            await call.execute(FinishClaims(queue.stored, [run], "nack", 0))
    except LeaseLost as error:
        raise _not_in_flight(str(handle), error.data["why"][0]) from None


def _not_in_flight(handle: str, why: str) -> SqsError:
    if why in ("done", "unknown", "cancelled"):
        return invalid_value(
            "ReceiptHandle",
            handle,
            "Message does not exist or is not available for visibility timeout change.",
        )
    return SqsError("MessageNotInflight", "The message referred to is not in flight.")
