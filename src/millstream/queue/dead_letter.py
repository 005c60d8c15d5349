"""Dead letters: a failed message is published to a log as well, with why and after what."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from millstream.errors import InvalidInput, Locked, NotOwner
from millstream.format import keys
from millstream.format.packing import Single, pack_single
from millstream.log.commands import Append
from millstream.log.head import Head
from millstream.log.operations import append
from millstream.log.salvage import salvage
from millstream.queue.bucket import Bucket
from millstream.queue.slots import Slots
from millstream.queue.state import QueueState
from millstream.record import Headers, Record, Scalar
from millstream.store.transaction import Transaction


def publish_failed(
    tx: Transaction, queue: QueueState, bucket: Bucket, slots: Slots, reason: str
) -> None:
    """Append failed messages to the queue's dead-letter log, in the commit that fails them."""
    for span in bucket.sources(*slots):
        found = salvage(
            tx.state.overlay,
            tx.writer,
            span.log_id,
            tx.entity(keys.head(span.log_id), Head).name,
            start=span.offset,
            stop=span.offset + span.count,
        )
        records = [(record, damage) for some, damage in found for record in some]
        for slot, (record, damage) in enumerate(records, span.slot):
            history = [
                {"claimed": one.at_ms, "consumer": one.consumer}
                for one in bucket.tries
                if one.start <= slot < one.stop
            ]
            headers: dict[str, Scalar] = {
                **record.headers,
                "dead-letter-queue": queue.name,
                "dead-letter-reason": reason,
                "dead-letter-attempts": msgspec.json.encode(history).decode(),
                "dead-letter-log": record.log,
                "dead-letter-offset": record.offset,
            }
            if damage is not None:
                headers["dead-letter-damage"] = damage.message
            try:
                letter = _pack(tx, record, headers)
            except InvalidInput:
                letter = _pack(tx, record, {"dead-letter-queue": queue.name})
            with suppress(Locked, NotOwner):  # held, or a copy: the message is only failed
                append(tx, Append(queue.spec.dead_letter, letter))


def _pack(tx: Transaction, record: Record, headers: Headers) -> Single:
    return pack_single(
        record.value,
        key=record.key,
        headers=headers,
        timestamp=record.timestamp or None,
        limits=tx.limits,
    )
