"""Producers for coroutines: single messages at streaming speed.

A producer takes single messages and returns a light handle for each at once. A sender beside the
caller stores the gathered messages as blocks (`millstream.streaming.gathering` decides which, and
when). Messages of a log are stored in the order of the calls, and each message once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from millstream.aio.runtime import Lock, yield_turn
from millstream.aio.worker_runtime import Bell, SideCall, senders_of
from millstream.command import AsyncSession, Operation
from millstream.errors import InvalidInput, MillstreamError, OutcomeUnknown, Overloaded
from millstream.header import HeadersLike
from millstream.log.partitioner import Spreader
from millstream.numbers import checked_numbers
from millstream.queue.model.routing_marks import Wishes, check_later, check_wishes
from millstream.queue.put_commands import due_ms_of
from millstream.record import PartitionOffset, Seconds, optional_ms
from millstream.streaming.destinations import (
    INBOX_LANE,
    LATER_LANE,
    Destination,
    LogDestination,
    PartitionsDestination,
    QueueDestination,
    command_of,
    firsts_of,
)
from millstream.streaming.gathered_block import (
    MESSAGE_BYTES,
    Callback,
    Gathered,
    MessageHandle,
    message_of,
)
from millstream.streaming.gathering import Gathering
from millstream.streaming.options import ProducerOptions
from millstream.streaming.transmission import SenderRest, Transmission

TURN_MESSAGES = 1_024
"""After so many messages a caller lets others run. It is a power of two."""


@checked_numbers
class AppendHandle(MessageHandle, eq=False, gc=False):
    """A record that was handed to a producer of a log."""

    async def offset(self, timeout: Seconds | None = None) -> int:
        """Wait until the record is durable, and return its offset; or raise why it was not stored.

        Raises `TimeoutError` after `timeout` (default: no end); the record stays on its way.
        """
        await _settled(self, timeout)
        return self.result()


@checked_numbers
class PartitionedHandle(MessageHandle, eq=False, gc=False):
    """A record that was handed to a producer of a partitioned log."""

    async def offset(self, timeout: Seconds | None = None) -> PartitionOffset:
        """Wait until the record is durable, and return its partition and offset; or raise why not.

        Raises `TimeoutError` after `timeout` (default: no end); the record stays on its way.
        """
        await _settled(self, timeout)
        offset = self.result()
        assert self.block is not None
        return PartitionOffset(self.block.lane, offset)


@checked_numbers
class PutHandle(MessageHandle, eq=False, gc=False):
    """A message that was handed to a producer of a queue."""

    async def id(self, timeout: Seconds | None = None) -> int:
        """Wait until the message is durable, and return its id; or raise why it was not stored.

        Raises `TimeoutError` after `timeout` (default: no end); the message stays on its way.
        """
        await _settled(self, timeout)
        return self.result()


async def _settled(handle: MessageHandle, timeout: Seconds | None = None) -> None:
    """Wait until the outcome of a message is known."""
    if handle.done:
        return
    timeout_ms = optional_ms(timeout, "timeout")
    within_s = None if timeout_ms is None else timeout_ms / 1000
    bell = Bell()
    if handle.gathering.watch(handle, bell.ring) and not await bell.wait(within_s):
        raise TimeoutError(f"the message was not stored within {timeout} seconds")


H = TypeVar("H", bound=MessageHandle)


class AnyProducer(Generic[H]):
    """What the producers of logs, partitioned logs and queues have in common."""

    def __init__(
        self,
        session: AsyncSession,
        options: ProducerOptions,
        destination: Destination,
        *,
        make_handle: Callable[[Any, Gathered], H],
        execute: Callable[[Operation[Any]], Awaitable[Any]] | None = None,
    ) -> None:
        self._limits = session.limits
        self._clock = session.clock
        self._execute = execute or session.execute
        self._destination = destination
        self._waits = options.wait
        self._bell = Bell()
        self._looking = Lock()
        """Held by the sender that looks for its next step."""
        count = senders_of(session)
        self._gathering = Gathering(
            options,
            options.identity(session.clock),
            make_handle=make_handle,
            wake=self._bell.ring,
            singles_max=destination.singles_max,
            flight_max=count,
        )
        self._senders = [SideCall(self._send, name="millstream-producer") for _ in range(count)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._destination.name!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except MillstreamError:
            if kind is None:
                raise  # else the error of the block is the one to see

    async def flush(self) -> None:
        """Wait until all messages that were handed in are durable.

        Raises the first error of a message whose handle was not asked, since the last flush.
        """
        for handle in self._gathering.last_handles():
            await _settled(handle)
        self._raise_failure()

    async def close(self) -> None:
        """Store all messages that were handed in, and end; later messages raise `Closed`.

        Raises as `flush` does. The end of the `async with` block closes.
        """
        self._gathering.close()
        for sender in self._senders:
            await sender.ends()
        self._raise_failure()

    async def _add(self, lane: int, message: Gathered) -> H:
        """Hand in a packed message, and return its handle."""
        size = MESSAGE_BYTES + len(message) if isinstance(message, bytes) else message.size
        while (handle := self._gathering.add(lane, message, size)) is None:
            await self._room()
        return handle

    def _raise_failure(self) -> None:
        failure = self._gathering.first_failure()
        if failure is not None:
            raise failure

    async def _room(self) -> None:
        """Wait until there may be room for a message; or raise `Overloaded`."""
        if not self._waits:
            self._gathering.hurry()
            raise Overloaded(
                "as many messages as in_flight or in_flight_bytes allow are on their way, and the "
                "producer was made with wait=False: slow down, and try again"
            )
        bell = Bell()
        if self._gathering.watch_room(bell.ring):
            await bell.wait(None)

    async def _send(self) -> None:
        """Store gathered messages until the producer is closed."""
        try:
            while True:
                async with self._looking:
                    transmission = await self._next()
                if transmission is None:
                    return
                await self._store(transmission)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            self._gathering.fail(
                OutcomeUnknown(f"the sender of the producer was broken off by {text}", cause=text)
            )
            raise

    async def _next(self) -> Transmission | None:
        """Wait for the next transmission; None if the producer has ended."""
        gathering, bell = self._gathering, self._bell
        while True:
            bell.clear()
            step = gathering.next(self._clock.seconds())
            if isinstance(step, SenderRest):
                if not await bell.wait(step.seconds):
                    gathering.rested()
                continue
            if step is None or self._build(step):
                return step

    def _build(self, transmission: Transmission) -> bool:
        """Build the command of a transmission; False if the messages cannot be packed."""
        try:
            if transmission.command is None:
                transmission.command = command_of(self._destination, transmission.portions)
        except Exception as error:
            self._gathering.failed(transmission, error, now_s=self._clock.seconds())
            return False
        return True

    async def _store(self, transmission: Transmission) -> None:
        """Store the portions of a transmission in one commit, and report the outcome."""
        try:
            answer = await self._execute(transmission.command)
        except Exception as error:
            clock = self._clock
            self._gathering.failed(
                transmission, error, now_s=clock.seconds(), wall_ms=clock.wall_ms()
            )
        else:
            self._gathering.stored(transmission, firsts_of(transmission.portions, answer))


class LogProducer(AnyProducer[AppendHandle]):
    """Appends single records to a log at streaming speed: `log.producer()` makes it."""

    def __init__(self, session: AsyncSession, log: str, options: ProducerOptions) -> None:
        super().__init__(session, options, LogDestination(log), make_handle=AppendHandle)
        self._calls = 0

    async def append(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | None = None,
        callback: Callback | None = None,
    ) -> AppendHandle:
        """Hand in a record, and return its handle at once; `handle.offset()` waits until it is stored.

        The arguments are those of `Log.append`. `callback` is called with the handle once the outcome
        is known. The callback must not wait. The call waits at the bounds of the producer, or raises
        `Overloaded` if the producer has `wait=False`. An invalid record fails its own handle.
        """
        try:
            message = message_of(value, key, headers, timestamp, callback, self._limits)
        except InvalidInput as error:
            return self._gathering.refuse(error, callback)
        size = MESSAGE_BYTES + len(message) if isinstance(message, bytes) else message.size
        while (handle := self._gathering.add(0, message, size)) is None:
            await self._room()
        self._calls += 1
        if not self._calls & TURN_MESSAGES - 1:
            await yield_turn()
        return handle


class PartitionedProducer(AnyProducer[PartitionedHandle]):
    """Appends single records to a partitioned log: `log.producer()` makes it."""

    def __init__(
        self,
        session: AsyncSession,
        spreader: Spreader,
        options: ProducerOptions,
        execute: Callable[[Operation[Any]], Awaitable[Any]],
    ) -> None:
        destination = PartitionsDestination(spreader.log)
        super().__init__(
            session, options, destination, make_handle=PartitionedHandle, execute=execute
        )
        self._spreader = spreader
        self._turn = spreader.turn()
        """The partition of records without a key, until its block is sent."""

    async def append(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
        callback: Callback | None = None,
    ) -> PartitionedHandle:
        """Hand in a record for the partition of its key, and return its handle at once.

        The arguments are those of `PartitionedLog.append`, and `callback` is that of
        `LogProducer.append`. Records of a partition are stored in the order of the calls.
        """
        try:
            message = message_of(value, key, headers, timestamp, callback, self._limits)
            lane = self._lane(key, partition)
        except InvalidInput as error:
            return self._gathering.refuse(error, callback)
        return await self._add(lane, message)

    def _lane(self, key: bytes | str | None, partition: int | None) -> int:
        """Return the partition of a record; records without a key stay together in a block."""
        if partition is not None:
            return self._spreader.check(partition)
        if key is not None:
            return self._spreader.of_key(key, self._limits)
        if not self._gathering.gathers(self._turn):
            self._turn = self._spreader.turn()
        return self._turn


class QueueProducer(AnyProducer[PutHandle]):
    """Puts single messages into a queue at streaming speed: `queue.producer()` makes it."""

    def __init__(self, session: AsyncSession, queue: str, options: ProducerOptions) -> None:
        super().__init__(session, options, QueueDestination(queue), make_handle=PutHandle)

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
        callback: Callback | None = None,
    ) -> PutHandle:
        """Hand in a message, and return its handle at once; `handle.id()` waits until it is stored.

        The arguments are those of `Queue.put`, and `callback` is that of `LogProducer.append`.
        Messages with an equal `delay` or `at` are stored together, in the order of the calls.
        """
        try:
            wishes = None
            if priority is not None or group is not None or dedup is not None:
                wishes = Wishes(priority, group, dedup)
                check_wishes(wishes)
            later = None
            if delay is not None or at is not None:
                later = optional_ms(delay, "delay"), due_ms_of(at)
                check_later(*later)
            message = message_of(value, key, headers, None, callback, self._limits, wishes, later)
        except InvalidInput as error:
            return self._gathering.refuse(error, callback)
        return await self._add(INBOX_LANE if later is None else LATER_LANE, message)
