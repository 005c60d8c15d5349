"""The consumer of a queue: single messages under leases, which are renewed until each is settled."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from millstream.aio.claim_source import ClaimSource
from millstream.aio.consumer import PrefetchingConsumer
from millstream.aio.worker_runtime import idle_wait_s
from millstream.command import AsyncSession
from millstream.errors import InvalidInput
from millstream.log.model.names import check_text
from millstream.numbers import checked_numbers
from millstream.queue import commands as c
from millstream.queue.model.message import Message
from millstream.queue.model.note import check_error, check_result
from millstream.queue.model.spec import DELAY_MS_MAX, lease_ms_of
from millstream.queue.runs import runs_of
from millstream.record import Seconds, to_ms
from millstream.streaming.claim_prefetching import ClaimPrefetching
from millstream.streaming.prefetching import FinishKind, PrefetchPlan, Refill, Settle
from millstream.worker.effects import Renew


@checked_numbers
class QueueConsumer(PrefetchingConsumer[Message]):
    """Yields the messages of a queue one by one; each is settled by `ack`, `nack` or `fail`.

    Any coroutine may settle messages. An ending is noted at once, and sent with others: by the next
    claim, or after `linger`. A message that is not settled when the block ends is given back.
    """

    _machine: ClaimPrefetching

    def __init__(
        self,
        queue: ClaimSource,
        session: AsyncSession,
        *,
        prefetch: int,
        lease: Seconds | None,
        auto_ack: bool,
        linger: Seconds,
        timeout: Seconds | None,
    ) -> None:
        super().__init__(session, queue.name)
        self._queue = queue
        self._session = session
        self._auto_ack = auto_ack
        self._lease_ms = lease_ms_of(lease)
        self._plan = PrefetchPlan(
            prefetch=prefetch,
            linger_s=to_ms(linger, "linger") / 1000,
            wait_s=idle_wait_s(session),
            timeout_s=None if timeout is None else to_ms(timeout, "timeout") / 1000,
        )

    async def ack(self, message: Message, *, result: bytes | None = None) -> None:
        """Note that the work is done; `result` is stored with the message. `flush` stores the note."""
        if result is not None:
            check_result(result, self._session.limits.value_bytes_max)
        try:
            must_wake = self._machine.ack(message, result)
        except (AttributeError, KeyError):  # no machine, or a message that it does not hold
            must_wake = self._checked(message).ack_unknown(message, result)
        if must_wake:
            self._wake()

    async def nack(
        self,
        message: Message,
        *,
        delay: Seconds | None = None,
        reason: str = "",
        error: bytes | None = None,
    ) -> None:
        """Note that the message is to be tried again, after the queue's backoff or a delay of one's own."""
        delay_s = None
        if delay is not None:
            delay_ms = to_ms(delay, "delay")
            if not 0 <= delay_ms <= DELAY_MS_MAX:
                raise InvalidInput(
                    f"delay must be from 0 to {DELAY_MS_MAX / 1000:,.0f} seconds, got {delay!r}"
                )
            delay_s = delay_ms / 1000
        self._finish(message, ("nack", reason, delay_s, error))

    async def fail(self, message: Message, *, reason: str = "", error: bytes | None = None) -> None:
        """Note that the message has failed, whatever attempts are left."""
        self._finish(message, ("fail", reason, None, error))

    async def renew(self, message: Message, *, lease: Seconds | None = None) -> datetime:
        """Prolong the lease of a message now, for `lease` or the lease of the consumer; until when.

        The consumer renews leases by itself; this call also tells whether the lease still holds.
        """
        self._checked(message)
        return await self._queue.renew(message, lease=self._lease_s if lease is None else lease)

    def _checked(self, message: Message) -> ClaimPrefetching:
        """Return the machine of an open consumer for a message of its queue."""
        self._open_machine()
        if getattr(message, "queue", None) != self.name:
            raise InvalidInput(
                f"a message of queue {self.name!r} is expected, not {message!r:.100}"
            )
        if message.attempt < 1:
            raise InvalidInput(f"a claimed message is expected: {message!r:.100} was peeked at")
        return self._machine

    def _finish(self, message: Message, kind: FinishKind) -> None:
        machine = self._checked(message)
        _, reason, _, error = kind
        check_text("a reason", reason)
        if error is not None:
            check_error(error)
        if machine.finish(message, kind):
            self._wake()

    # Steps.

    async def _begin(self) -> ClaimPrefetching:
        spec = (await self._queue.info()).spec
        self._lease_s = spec.lease_for(self._lease_ms) / 1000
        plan = self._plan.limited(wait_s=self._lease_s / 4)
        return ClaimPrefetching(plan, lease_s=self._lease_s, attempts_max=spec.max_attempts)

    async def _claim(self, refill: Refill[Message]) -> Sequence[Message]:
        return await self._queue.claim(
            refill.n,
            lease=self._lease_s,
            wait=refill.wait_s,
            ack=refill.acks,
            results=refill.results,
        )

    async def _settle(self, settle: Settle[Message]) -> int:
        if settle.how == "return":
            runs = runs_of(settle.messages, self.name)
            await self._session.execute(c.ReturnClaims(self.name, runs))
            return 0
        lost = await self._queue.finish_each(
            settle.messages,
            settle.how,
            delay=settle.delay_s,
            reason=settle.reason,
            result=settle.results,
            error=settle.error,
        )
        return len(lost)

    async def _renew(self, renew: Renew) -> None:
        machine, since_s = self._machine, self._clock.seconds()
        try:
            await self._queue.renew(renew.messages, lease=self._lease_s)
        except Exception as error:
            with self._lock:
                machine.refused(renew.messages, error, now_s=self._clock.seconds())
            if machine.error is not None:
                self._news.ring()
        else:
            with self._lock:
                machine.renewed(renew.messages, since_s=since_s)

    def _endings(self, error: BaseException | None) -> list[Settle[Message]]:
        return self._machine.endings(error)
