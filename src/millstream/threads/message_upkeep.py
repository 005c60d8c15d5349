# Generated from src/millstream/aio/message_upkeep.py by `make generate`: change that file, not this one.

"""The upkeep of messages as threads do it: look at messages unclaimed, purge, redrive, replace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.command import Session
from millstream.format.packing import pack_single
from millstream.format.rfc import RfcRecord
from millstream.header import HeadersLike
from millstream.numbers import checked_numbers
from millstream.queue import commands as c
from millstream.queue.model.message import Message, PeekState, PurgeState, messages_of


@checked_numbers
class MessageUpkeep:
    """The part of a queue that looks at messages without a claim, and moves or deletes them."""

    name: str
    _session: Session

    def peek(self, n: int = 1, *, state: PeekState = "available", after: int = -1) -> list[Message]:
        """Return messages in a state, without claiming them; `after` a claim id.

        `until` of a delayed message is its due time.
        """
        lots = self._session.execute(c.PeekMessages(self.name, state, n, after))
        return messages_of(lots)

    def records(self) -> Iterator[RfcRecord]:
        """Yield the queue as records of the RFC, types 0x02 to 0x06, in key order.

        The records are made bucket by bucket, each bucket as of one commit.
        """
        after = b""
        while page := self._session.execute(c.ListRecords(self.name, after)):
            yield from page
            after = page[-1].key

    def purge(self, *, state: PurgeState = "available") -> int:
        """Delete the available or the failed messages, and return the number of deleted messages."""
        return self._session.execute(c.PurgeQueue(self.name, state))

    def failed(self, where: str | None = None) -> Iterator[Message]:
        """Yield the failed messages that match a filter.

        A message with unreadable headers matches no filter.
        """
        condition = None
        if where:
            from millstream.filters import parse  # only users of filters pay for their parser

            condition = parse(where)
        after = -1
        while page := self.peek(c.REDRIVE_PER_COMMIT, state="failed", after=after):
            after = page[-1].claim_id
            for message in page:
                if condition is None or (
                    message.damage != "record"
                    and condition.matches(
                        message.headers,
                        message.key,
                        message.timestamp,
                        message.log,
                        has_value=message.value is not None,
                    )
                ):
                    yield message

    def redrive(
        self,
        where: str | None = None,
        *,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Make failed messages available again under new claim ids, and return their number.

        `rate` limits how many messages become due per second.
        """
        total = 0
        chosen: list[int] = []
        for message in self.failed(where):
            if limit is not None and total + len(chosen) >= limit:
                break
            chosen.append(message.claim_id)
            if len(chosen) == c.REDRIVE_PER_COMMIT:
                total += self._redrive(chosen, total, rate, dry_run=dry_run)
                chosen = []
        if chosen:
            total += self._redrive(chosen, total, rate, dry_run=dry_run)
        return total

    def replace(
        self,
        message: Message | int,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
    ) -> int:
        """Put another message in the place of a failed one; the id that `message` takes.

        It can be claimed at once, and keeps the attempts that were made. Raises `Conflict` if the
        message is not failed any more.
        """
        claim_id = message.claim_id if isinstance(message, Message) else message
        limits = self._session.limits
        record = pack_single(value, key=key, headers=headers, timestamp=None, limits=limits)
        return self._session.execute(c.ReplaceFailed(self.name, claim_id, record))

    def _redrive(self, chosen: list[int], before: int, rate: float | None, *, dry_run: bool) -> int:
        if dry_run:
            return len(chosen)
        return self._session.execute(c.RedriveClaims(self.name, chosen, rate, before))
