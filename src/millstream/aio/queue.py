"""The queue as coroutines hold it: put, claim and finish; each method sends a few commands."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, Unpack, overload

from millstream.aio.message_fates import MessageFates
from millstream.aio.worker import Worker
from millstream.command import AsyncSession
from millstream.errors import InvalidInput
from millstream.format.packing import pack_single
from millstream.format.rfc import RfcRecord
from millstream.header import HeadersLike
from millstream.log.model.names import check_name
from millstream.numbers import checked_numbers
from millstream.queue import commands as c
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.message import (
    Ending,
    Message,
    PeekState,
    PurgeState,
    PutResult,
    QueueInfo,
    messages_of,
)
from millstream.queue.model.note import Result
from millstream.queue.model.setting_help import takes_changes
from millstream.queue.model.spec import QueueSettings, QueueSpec, altered, lease_ms_of, no_queue
from millstream.queue.put_commands import put_batch, put_one, reported
from millstream.queue.runs import Messages, chosen_of, results_of, runs_of
from millstream.record import Producer, Seconds, optional_ms, to_ms
from millstream.rooms.commands import BrowserRight, MintBrowserTicket
from millstream.rooms.model import NounTicket
from millstream.worker.handler import Handler
from millstream.worker.options import WorkerOptions
from millstream.worker.stats import WorkerStats


@checked_numbers
class Queue(MessageFates):
    """Messages to be worked on, each by one consumer at a time."""

    def __init__(self, session: AsyncSession, name: str) -> None:
        self.name = check_name(name, "queue")
        self._session = session
        self._consumer = f"{socket.gethostname()[:100]}:{os.getpid()}"

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    @property
    def session(self) -> AsyncSession:
        """What answers the commands of the queue; for parts of Millstream, not for applications."""
        return self._session

    # What it is.

    async def specify(self, spec: QueueSpec) -> bool:
        """Create the queue, or alter it to the spec; True if the queue is new.

        A field that differs and cannot be altered now raises `Conflict`, and nothing changes.
        """
        info = await self._session.execute(c.DescribeQueue(self.name))
        if info is not None and info.spec == spec:
            return False
        return await self._session.execute(c.SpecifyQueue(self.name, spec))

    @takes_changes
    async def alter(self, **changes: Unpack[QueueSettings]) -> QueueSpec:
        """Change some settings; settings that are not named stay, and `start` is never changed."""
        old = (await self.info()).spec
        new = altered(old, changes)
        await self._session.execute(c.SpecifyQueue(self.name, new, old))
        return new

    async def info(self) -> QueueInfo:
        """Return the state and counts of the queue; `NotFound` if it does not exist."""
        info = await self._session.execute(c.DescribeQueue(self.name))
        if info is None:
            raise no_queue(self.name)
        return info

    async def exists(self) -> bool:
        """Return whether the queue exists."""
        return await self._session.execute(c.DescribeQueue(self.name)) is not None

    async def pause(self) -> None:
        """Hold claims back; messages keep arriving."""
        await self._session.execute(c.PauseQueue(self.name, True))

    async def resume(self) -> None:
        """Let messages be claimed again."""
        await self._session.execute(c.PauseQueue(self.name, False))

    async def limit_group(
        self, group: str, *, in_flight: int | None = None, rate: float | None = None
    ) -> bool:
        """Give one group limits of its own, from now on; return whether anything changed.

        `in_flight` and `rate` replace `group_in_flight` and `group_rate` of the queue for this group;
        0 is any number, and None the queue's own. Without both, the group's own limits are removed.
        """
        return await self._session.execute(
            c.LimitGroup(self.name, group, GroupLimit(in_flight, rate))
        )

    async def group_limits(self) -> dict[str, GroupLimit]:
        """Return the groups that have limits of their own, by name."""
        return await self._session.execute(c.ListGroupLimits(self.name))

    async def ticket(
        self, can: Literal["put", "read", "write"] = "put", expires: Seconds = 60
    ) -> NounTicket:
        """Return a ticket by which a browser uses this queue, for up to an hour.

        With `put` the browser puts messages, and neither reads nor claims any.
        """
        rights: dict[str, BrowserRight] = {
            "put": "queue:put",
            "read": "queue:read",
            "write": "queue:write",
        }
        if can not in rights:
            raise InvalidInput(
                f"a ticket of a queue can 'put', 'read' or 'write', not {can!r:.100}"
            )
        seconds = to_ms(expires, "expires") / 1000
        return await self._session.execute(MintBrowserTicket(self.name, rights[can], seconds))

    async def delete(self) -> bool:
        """Delete the queue, its messages and its inbox, but not its sources; False if it did not exist."""
        return await self._session.execute(c.DeleteQueue(self.name))

    # Messages in.

    @overload
    async def put(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        priority: int | None = None,
        group: str | None = None,
        dedup: str | None = None,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
        producer: Producer | None = None,
        detail: Literal[False] = False,
    ) -> int: ...
    @overload
    async def put(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        priority: int | None = None,
        group: str | None = None,
        dedup: str | None = None,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
        producer: None = None,
        detail: Literal[True],
    ) -> PutResult: ...
    async def put(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        priority: int | None = None,
        group: str | None = None,
        dedup: str | None = None,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
        producer: Producer | None = None,
        detail: bool = False,
    ) -> int | PutResult:
        """Put one message straight to the queue, past its filter, and return its id.

        `message`, `cancel` and `wait` take the id. `delay` and `at` (a time, or wall milliseconds)
        hold the message back. `priority`, `group` and `dedup` go into the headers that the queue's
        spec names for them. With `detail` the answer is a `PutResult`, which reports a repeat.
        """
        command = put_one(
            self.name,
            value,
            key=key,
            headers=headers,
            priority=priority,
            group=group,
            dedup=dedup,
            delay=delay,
            at=at,
            producer=producer,
            limits=self._session.limits,
        )
        if detail:
            return await self._session.execute(reported(self.name, command))
        return await self._session.execute(command)

    async def put_many(
        self,
        values: Iterable[Any],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersLike | None] | None = None,
        delay: Seconds | None = None,
        at: datetime | int | None = None,
    ) -> range:
        """Put a batch, all or nothing, and return the ids. `delay` and `at` apply to every message."""
        command, count = put_batch(
            self.name,
            values,
            keys=keys,
            headers=headers,
            delay=delay,
            at=at,
            limits=self._session.limits,
        )
        if command is None:
            await self.info()  # raises if there is no queue
            return range(0)
        first = await self._session.execute(command)
        return range(first, first + count)

    # Messages out.

    async def claim(
        self,
        n: int = 1,
        *,
        lease: Seconds | None = None,
        wait: Seconds | None = None,
        consumer: str | None = None,
        ack: Messages = (),
        results: Sequence[bytes | None] | None = None,
    ) -> list[Message]:
        """Claim up to `n` messages for a while; acknowledges `ack` in the same commit.

        `results` has the result of each message of `ack`, or None for a message without a result.
        """
        acked = ack if isinstance(ack, Message) else list(ack)
        lots = await self._session.execute(
            c.ClaimMessages(
                self.name,
                n,
                lease_ms_of(lease),
                self._consumer if consumer is None else consumer,
                optional_ms(wait, "wait"),
                runs_of(acked, self.name),
                results=results_of(acked, results) if results else [],
            )
        )
        return messages_of(lots)

    async def pop(self, n: int = 1, *, wait: Seconds | None = None) -> list[Message]:
        """Claim and acknowledge in one commit: each message at most once."""
        wait_ms = optional_ms(wait, "wait")
        lots = await self._session.execute(
            c.ClaimMessages(self.name, n, None, self._consumer, wait_ms, [], pop=True)
        )
        return messages_of(lots)

    async def ack(
        self, messages: Messages, *, result: bytes | Sequence[bytes | None] | None = None
    ) -> None:
        """The work is done. Repeating it is a success; coming late raises `LeaseLost`.

        `result` is stored with the message, for `message` and `wait`. For several messages it is a
        list with the result of each, or None. A repeat does not replace the first result.
        """
        await self._finish(messages, "ack", result=result)

    async def nack(
        self,
        messages: Messages,
        *,
        delay: Seconds | None = None,
        reason: str = "",
        error: bytes | None = None,
    ) -> None:
        """Try again, after the queue's backoff or a delay of one's own; or fail, at last.

        `error`, up to 64 KiB, is stored with each message, for `message` and `wait`.
        """
        delay_ms = optional_ms(delay, "delay")
        await self._finish(messages, "nack", delay_ms=delay_ms, reason=reason, error=error)

    async def fail(
        self, messages: Messages, *, reason: str = "", error: bytes | None = None
    ) -> None:
        """Give up on messages, whatever attempts are left; `error` is stored with each message."""
        await self._finish(messages, "fail", reason=reason, error=error)

    async def finish_each(
        self,
        messages: Messages,
        outcome: Ending,
        *,
        delay: Seconds | None = None,
        reason: str = "",
        result: bytes | Sequence[bytes | None] | None = None,
        error: bytes | None = None,
    ) -> list[Message]:
        """End attempts whose lease still holds; answers the messages whose lease was lost.

        `result` is as in `ack`, and `error` as in `nack`.
        """
        chosen = [messages] if isinstance(messages, Message) else list(messages)
        delay_ms = optional_ms(delay, "delay")
        lost = await self._finish(
            chosen,
            outcome,
            delay_ms=delay_ms,
            reason=reason,
            each=True,
            result=result,
            error=error,
        )
        gone = {claim_id + i for claim_id, count, _ in lost for i in range(count)}
        return [message for message in chosen if message.claim_id in gone]

    async def renew(self, messages: Messages, *, lease: Seconds | None = None) -> datetime:
        """Prolong leases; until when."""
        lease_ms = lease_ms_of(lease)
        end = await self._session.execute(
            c.RenewClaims(self.name, runs_of(messages, self.name), lease_ms)
        )
        return end.until

    def worker(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: int | None = None,
        lease: Seconds | None = None,
        time_limit: Seconds | None = None,
        on_error: Callable[[Message, BaseException], None] | None = None,
        on_progress: Callable[[WorkerStats], None] | None = None,
    ) -> Worker:
        """A worker that runs a handler, `handler(message)` or `handler(message, tx)`, on messages.

        It claims as many as can begin at once, or up to `batch`. A task over its `time_limit` is
        cancelled; a function on a thread cannot be stopped, so its lease is let go and its result
        is dropped.
        """
        options = WorkerOptions(
            handler=handler,
            concurrency=concurrency,
            batch=batch,
            lease=lease,
            time_limit=time_limit,
            on_error=on_error,
            on_progress=on_progress,
        )
        return Worker(self, self._session, options)

    # Looking after it.

    async def peek(
        self, n: int = 1, *, state: PeekState = "available", after: int = -1
    ) -> list[Message]:
        """Return messages in a state, without claiming them; `after` a claim id.

        `until` of a delayed message is its due time.
        """
        lots = await self._session.execute(c.PeekMessages(self.name, state, n, after))
        return messages_of(lots)

    async def records(self) -> AsyncIterator[RfcRecord]:
        """Yield the queue as records of the RFC, types 0x02 to 0x06, in key order.

        The records are made bucket by bucket, each bucket as of one commit.
        """
        after = b""
        while page := await self._session.execute(c.ListRecords(self.name, after)):
            for record in page:
                yield record
            after = page[-1].key

    async def purge(self, *, state: PurgeState = "available") -> int:
        """Delete all available, or all failed messages, and return their number."""
        return await self._session.execute(c.PurgeQueue(self.name, state))

    async def failed(self, where: str | None = None) -> AsyncIterator[Message]:
        """Yield the failed messages that match a filter.

        A message with unreadable headers matches no filter.
        """
        condition = None
        if where:
            from millstream.filters import parse  # only users of filters pay for their parser

            condition = parse(where)
        after = -1
        while page := await self.peek(c.REDRIVE_PER_COMMIT, state="failed", after=after):
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

    async def redrive(
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
        async for message in self.failed(where):
            if limit is not None and total + len(chosen) >= limit:
                break
            chosen.append(message.claim_id)
            if len(chosen) == c.REDRIVE_PER_COMMIT:
                total += await self._redrive(chosen, total, rate, dry_run=dry_run)
                chosen = []
        if chosen:
            total += await self._redrive(chosen, total, rate, dry_run=dry_run)
        return total

    async def replace(
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
        return await self._session.execute(c.ReplaceFailed(self.name, claim_id, record))

    async def _redrive(
        self, chosen: list[int], before: int, rate: float | None, *, dry_run: bool
    ) -> int:
        if dry_run:
            return len(chosen)
        return await self._session.execute(c.RedriveClaims(self.name, chosen, rate, before))

    async def _finish(
        self,
        messages: Messages,
        outcome: Ending,
        *,
        delay_ms: int | None = None,
        reason: str = "",
        each: bool = False,
        result: bytes | Sequence[bytes | None] | None = None,
        error: bytes | None = None,
    ) -> list[c.Run]:
        results: list[Result] = []
        if result is not None:
            messages = chosen_of(messages)
            results = results_of(messages, result)
        runs = runs_of(messages, self.name)
        if not runs:
            return []
        return await self._session.execute(
            c.FinishClaims(self.name, runs, outcome, delay_ms, reason, each, results, error)
        )
