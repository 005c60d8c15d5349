"""Gathering: the decisions of a producer, as a machine without I/O, clock, thread or await.

    handed in ──add──► gathered ──next──► sent ──stored──► settled with an offset
                          │                │
                          │                ├─ may pass ──► sent again, under the same sequence
                          │                ├─ refused ───► sent in portions; a refused message fails alone
                          └────────────────┴─ failed ────► all open messages are settled with errors

Callers add messages. A sender asks `next` for its next step: a `Transmission` to execute, a
`SenderRest`, or None at the end. Gathered messages are sent as soon as a transmission has ended. If
no transmission has just ended, the first message waits for `linger`, so that further messages can
join. A waiting caller ends the linger. `flight.py` says how many transmissions the store has at a
time, and what a failure means for those behind it.

Every portion of a transmission has the producer's next sequence for its log. Success alone uses up a
sequence, so the store sees no gap. A transmission with an unknown outcome is sent again unchanged,
and the store recognises the repeat. The sender stops after a failure: no message after a failed
message is stored.

All threads may call. Signal handlers may raise between any two steps of `add`, because `add` runs on the
caller's thread. So `add` changes the state by one `append` to a list, without the lock, and the
sender makes all other changes: a lock would cost 0.2 to 0.5 µs of the 0.7 µs of the call (2026-11).
The sender sets the counters back whenever it takes messages, because an interrupt may leave them
wrong.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from millstream import forked_process
from millstream.errors import (
    CannotOpen,
    Closed,
    Fenced,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    OutOfSequence,
)
from millstream.record import Producer
from millstream.store.commit.transactor import fresh
from millstream.streaming.flight import Flight, error_in_flight
from millstream.streaming.gathered_block import (
    BLOCK_MESSAGES_MAX,
    NOTHING,
    BlockPortion,
    Callback,
    Gathered,
    GatheredBlock,
    GatheredMessage,
    MessageHandle,
    blocks_of,
    is_callback,
)
from millstream.streaming.options import ProducerOptions
from millstream.streaming.telling import Teller
from millstream.streaming.transmission import (
    IDLE_S,
    REFUSALS,
    SenderRest,
    Transmission,
    outcome_error,
    pause_s,
    taken_portions,
    unknown_error_of,
    unsent_error_of,
)
from millstream.worker.endurance import may_pass

H = TypeVar("H", bound=MessageHandle)

FAILURES_MAX = 1_000
"""Failed messages that are remembered until a caller asks for them or flushes."""


class Gathering(Generic[H]):
    """The messages of a producer on their way to the store."""

    def __init__(
        self,
        options: ProducerOptions,
        identity: Producer,
        *,
        make_handle: Callable[[Any, Gathered], H],
        wake: Callable[[], None],
        singles_max: int = 0,
        flight_max: int = 1,
    ) -> None:
        """Send a block of up to `singles_max` messages as single records, in one commit.

        The store has at most `flight_max` transmissions at a time; each needs a sender.
        """
        self._identity = identity
        self._singles_max = singles_max
        self._linger_s = options.linger_s
        self._retry_s = options.retry_s
        self._open_max = options.in_flight
        self._open_bytes_max = options.in_flight_bytes
        self._block_max = max(1, min(BLOCK_MESSAGES_MAX, options.in_flight // (flight_max + 1)))
        self._make_handle = make_handle
        self._wake = wake
        """Ends the rest of the sender, or its next rest; from any thread."""
        self._lock = allocate_lock()
        """Guards the fields that `add` does not change."""
        self._count = self._bytes = 0
        """What was gathered since the sender last took messages. Callers on several threads may lose
        a count, so the bounds hold to within a few messages."""
        self._count_room, self._bytes_room = options.in_flight, options.in_flight_bytes
        """How much may be gathered beside the messages that the sender has taken."""
        self._gathered: dict[int, list[H]] = {}
        """The messages of each lane that the sender has not taken. A list is never replaced."""
        self._unsent: deque[GatheredBlock] = deque()
        self._split: deque[Transmission] = deque()
        """Portions of a refused transmission, and transmissions behind it; sent before all blocks."""
        self._flight = Flight(flight_max)
        self._sequences: dict[int, int] = {}
        """The next sequence of each lane."""
        self._is_idle = self._is_hurried = self._is_closing = self._is_over = False
        self._refusal: MillstreamError | None = None
        """Why no further message is taken."""
        self._failures: deque[MessageHandle] = deque(maxlen=FAILURES_MAX)
        """The handles of failed messages."""
        self._watchers: list[tuple[H, Callable[[], None]]] = []
        """Callers that wait for messages without a block."""
        self._room_watchers: list[Callable[[], None]] = []
        self._teller = Teller()
        forked_process.register(self)

    # Callers.

    def add(self, lane: int, message: Gathered, size: int) -> H | None:
        """Take a message, and return its handle; None if the producer is full.

        Raises the error that ended the producer.
        """
        if self._count >= self._count_room or self._bytes >= self._bytes_room:
            if self._refusal is not None:
                raise fresh(self._refusal)
            return None
        handle = self._make_handle(self, message)
        try:
            handles = self._gathered[lane]
        except KeyError:
            handles = self._gathered.setdefault(lane, [])
        handles.append(handle)
        self._count += 1
        self._bytes += size
        if self._refusal is not None:
            self._withdraw(lane, handle)
        if self._is_idle:
            self._is_idle = False
            self._wake()
        return handle

    def _withdraw(self, lane: int, handle: H) -> None:
        """Raise the error that ended the producer, unless the sender has taken the message."""
        with self._lock:
            handles = self._gathered[lane]
            if handle in handles:
                handles.remove(handle)
                assert self._refusal is not None
                raise fresh(self._refusal)

    def refuse(self, error: MillstreamError, callback: Callback | None) -> H:
        """Return the handle of a message that was not taken, because it is invalid."""
        if self._refusal is not None:
            raise fresh(self._refusal)
        message = GatheredMessage(NOTHING, callback if is_callback(callback) else None)
        handle = self._make_handle(self, message)
        block = GatheredBlock(0, [handle], [message], 0)
        with self._lock:
            self._settle(BlockPortion(block, 0, 1), error)
        self._teller.tell()
        return handle

    def watch(self, handle: H, ring: Callable[[], None]) -> bool:
        """Call `ring` once a message is settled, and send it soon; False if it is settled."""
        with self._lock:
            if handle.done:
                return False
            self._teller.refuse_callback()
            if handle.block is None:
                self._watchers.append((handle, ring))
                self._hurry()
            else:  # messages in a block do not linger
                handle.block.watchers.append((handle.index, ring))
        return True

    def watch_room(self, ring: Callable[[], None]) -> bool:
        """Call `ring` once there may be room for messages, and send soon; False if there is room."""
        with self._lock:
            if self._refusal is not None or (
                self._count < self._count_room and self._bytes < self._bytes_room
            ):
                return False
            self._teller.refuse_callback()
            self._room_watchers.append(ring)
            self._hurry()
        return True

    def gathers(self, lane: int) -> bool:
        """Return whether messages of a lane wait for the sender."""
        return bool(self._gathered.get(lane))

    def last_handles(self) -> list[MessageHandle]:
        """Return the last open message of each block and of each lane."""
        with self._lock:
            waiting = [handles[-1] for handles in [*self._gathered.values()] if handles]
            return [*(block.handles[-1] for block in self._open_blocks()), *waiting]

    def first_failure(self) -> MillstreamError | None:
        """Return the error of the first failed message that no caller got, and forget all failures."""
        with self._lock:
            failures = [*self._failures]
            self._failures.clear()
        for handle in failures:
            if not handle.is_reported:
                try:
                    handle.result()
                except MillstreamError as error:
                    return error
        return None

    def close(self) -> None:
        """Take no further message; the sender ends once all messages are settled."""
        with self._lock:
            self._teller.refuse_callback()
            if self._refusal is None:
                self._refusal = Closed(
                    "the producer was closed: make a new one for further messages"
                )
            self._is_closing = True
            self._hurry()

    def hurry(self) -> None:
        """Let the sender send soon; repeated calls ring once."""
        if not self._is_hurried:
            self._hurry()

    def _hurry(self) -> None:
        self._is_hurried = True
        self._wake()

    # The sender.

    def next(self, now_s: float) -> Transmission | SenderRest | None:
        """Return the next step of a sender; None if the producer has ended."""
        with self._lock:
            flight = self._flight
            if flight.repeats:
                left_s = flight.pause_left_s(now_s)  # callers wake the sender meanwhile
                return SenderRest(left_s) if left_s else flight.repeat()
            if flight.is_full or (flight.sent and self._split):
                return SenderRest(IDLE_S)
            if not (self._split or self._unsent):
                self._is_idle = True  # before the look: a message that comes now wakes the sender
                if not any(self._gathered.values()):
                    return self._at_rest()
                self._is_idle = False
                if self._linger_s and not self._is_hurried:
                    return SenderRest(self._linger_s)
                self._collect()
            if flight.sent and not self._may_follow():
                return SenderRest(IDLE_S)
            if self._split:
                transmission = self._split.popleft()
            else:
                transmission = Transmission(taken_portions(self._unsent, self._singles_max))
            flight.launch(transmission, self._identity, self._sequences, now_s=now_s)
            self._is_hurried = self._is_closing
            return transmission

    def _at_rest(self) -> SenderRest | None:
        """Return the rest of a sender without messages; None if the producer has ended."""
        if not self._flight.sent:
            if self._is_closing:
                self._is_over = True
                return None
            self._is_hurried = False
            self._collect()
            self._call_all(self._room_watchers)
        return SenderRest(IDLE_S)

    def _may_follow(self) -> bool:
        """Return whether messages may be sent before the transmission ahead is answered."""
        lanes = {block.lane for block in self._unsent}
        return self._flight.covers(lanes) and lanes <= self._sequences.keys()

    def _call_all(self, watchers: list[Callable[[], None]]) -> None:
        """Let watchers be called once the lock is free, and forget the watchers; under the lock."""
        self._teller.add((ring, ()) for ring in watchers)
        watchers.clear()

    def rested(self) -> None:
        """Note that the time of a rest has passed."""
        with self._lock:
            if self._flight.repeats:
                self._flight.pauses = False
            else:
                self._is_hurried = True

    def stored(self, transmission: Transmission, firsts: Sequence[int]) -> None:
        """Note that a transmission is durable, with the offset of the first message of each portion."""
        self._answered(transmission, [*firsts], now_s=0.0)

    def failed(
        self, transmission: Transmission, error: Exception, *, now_s: float, wall_ms: int = 0
    ) -> None:
        """Note that a transmission failed: send it again, send it in portions, or give up."""
        final_error = outcome_error(error)
        transmission.tries += 1
        transmission.failed_ms = wall_ms
        transmission.resumes_s = now_s + pause_s(transmission.tries)
        transmission.is_unknown = transmission.is_unknown or isinstance(final_error, OutcomeUnknown)
        self._answered(transmission, final_error, now_s=now_s)

    def _answered(
        self, transmission: Transmission, answer: list[int] | MillstreamError, *, now_s: float
    ) -> None:
        """Note an answer, and let all answers count whose turn has come."""
        with self._lock:
            self._flight.answered(transmission, answer)
            while (head := self._flight.decided()) is not None:
                if isinstance(head.answer, MillstreamError):
                    self._decide(head, head.answer, now_s)
                else:
                    self._note_stored(head)
            self._is_hurried = True  # messages that gathered meanwhile follow at once
            self._reckon()
            self._call_all(self._room_watchers)
        self._teller.tell()
        if self._flight.most > 1:
            self._wake()  # another sender may wait for an answer

    def _note_stored(self, head: Transmission) -> None:
        self._settle_stored(head)
        self._flight.land()

    def _settle_stored(self, transmission: Transmission) -> None:
        firsts = transmission.answer
        assert isinstance(firsts, list)
        for portion, first in zip(transmission.portions, firsts, strict=True):
            assert portion.producer is not None
            self._sequences[portion.block.lane] = portion.producer.sequence + 1
            self._settle(portion, first)

    def _decide(self, head: Transmission, error: MillstreamError, now_s: float) -> None:
        """Decide what follows from the failure of the first transmission in flight."""
        assert head.began_s is not None
        began = bool(self._sequences) or head.is_unknown
        if isinstance(error, Fenced) and not began and head.is_later(error, self._identity.epoch):
            self._fence(head, error.epoch)
        elif isinstance(error, OutOfSequence) and head.follows:
            self._repeat(head, pauses=False)  # the store has not got the transmission ahead
        elif may_pass(error) and now_s - head.began_s < self._retry_s:
            self._repeat(head, pauses=True)
        elif not isinstance(error, REFUSALS) or head.is_unknown:
            self._fail(error)
        elif len(head.portions) > 1:
            self._split_into([[portion] for portion in head.portions])
        elif head.portions[0].count > 1 and isinstance(error, InvalidInput):
            self._split_into([[half] for half in head.portions[0].halves()])
        else:
            self._settle(head.portions[0], error)
            self._split_into([])

    def _repeat(self, head: Transmission, *, pauses: bool) -> None:
        """Send the first transmission again, unchanged; the transmissions behind it later."""
        self._split.extendleft(reversed(self._flight.take_back()))
        self._flight.again(head, pauses=pauses)

    def _fence(self, head: Transmission, epoch: int) -> None:
        """Begin a higher epoch than the stored one."""
        self._identity = replace(self._identity, epoch=epoch + 1)
        self._split_into([head.portions])

    def _split_into(self, transmissions: list[list[BlockPortion]]) -> None:
        """Send the first transmission in flight as others, and then the transmissions behind it."""
        behind = self._flight.take_back()
        self._flight.land()
        made = [Transmission(portions) for portions in transmissions]
        self._split.extendleft(reversed([*made, *behind]))

    def fail(self, error: MillstreamError) -> None:
        """Settle all open messages with errors, and take no further message."""
        with self._lock:
            self._fail(error)
            self._reckon()
            self._call_all(self._room_watchers)
        self._teller.tell()
        self._wake()

    def _fail(self, error: MillstreamError) -> None:
        """Settle all open messages with errors; the caller holds the lock."""
        unsent_error = unsent_error_of(error)
        self._refusal = unsent_error
        self._is_closing = True
        self._collect()
        for transmission in self._flight.end():
            if isinstance(
                transmission.answer, list
            ):  # stored; the transmission ahead got no answer
                self._settle_stored(transmission)
                continue
            outcome = error_in_flight(transmission, error, unsent_error)
            for portion in transmission.portions:
                self._settle(portion, outcome)
        for transmission in self._split:
            outcome = unknown_error_of(error) if transmission.is_unknown else unsent_error
            for portion in transmission.portions:
                self._settle(portion, outcome)
        for block in self._unsent:
            self._settle(BlockPortion(block, 0, len(block.messages)), unsent_error)
        self._split.clear()
        self._unsent.clear()

    def _collect(self) -> None:
        """Take the gathered messages into blocks; under the lock."""
        for lane, gathered in [*self._gathered.items()]:  # callers add lanes meanwhile
            if count := len(gathered):
                handles = gathered[:count]
                self._unsent.extend(blocks_of(lane, handles, messages_max=self._block_max))
                del gathered[:count]
        self._count = self._bytes = 0
        self._reckon()
        watchers, self._watchers = self._watchers, []
        for handle, ring in watchers:
            if handle.block is None:
                self._watchers.append((handle, ring))
            else:
                handle.block.watchers.append((handle.index, ring))

    def _reckon(self) -> None:
        """Count the messages that the sender has taken; under the lock."""
        blocks = self._open_blocks()
        open_count = sum(len(block.messages) - block.settled for block in blocks)
        self._count_room = self._open_max - open_count
        self._bytes_room = self._open_bytes_max - sum(block.bytes for block in blocks)

    def _settle(self, portion: BlockPortion, outcome: int | MillstreamError) -> None:
        """Note the outcome of a portion, and the calls to make; under the lock."""
        block, stop = portion.block, portion.stop
        block.outcomes.append((portion.start, outcome))
        block.settled = stop
        handles = block.handles[portion.start : stop]
        if isinstance(outcome, MillstreamError):
            self._failures.extend(handles)
        if block.watchers:
            self._teller.add((ring, ()) for index, ring in block.watchers if index < stop)
            block.watchers = [watcher for watcher in block.watchers if watcher[0] >= stop]
        messages = portion.messages
        if GatheredMessage in {*map(type, messages)}:
            self._teller.add(
                (message.callback, (handle,))
                for handle, message in zip(handles, messages, strict=True)
                if isinstance(message, GatheredMessage) and message.callback is not None
            )
        if stop == len(block.messages):
            block.handles, block.messages, block.bytes = [], [], 0

    def _open_blocks(self) -> list[GatheredBlock]:
        """Return the blocks with open messages, in the order of sending; under the lock."""
        sent = [
            portion.block
            for transmission in (*self._flight.sent, *self._split)
            for portion in transmission.portions
        ]
        return [block for block in dict.fromkeys([*sent, *self._unsent]) if block.messages]

    def after_fork(self) -> None:
        """Refuse all use in a child process: the sender stayed in the parent."""
        self._lock = allocate_lock()
        self._room_watchers = []
        self._teller = Teller()
        self._wake = _rest
        self._collect()
        for block in self._open_blocks():
            block.watchers = []
            block.messages = [b""] * len(block.messages)  # callbacks are the parent's
        self.fail(
            CannotOpen(
                "this producer belongs to the process that forked: make a producer in the child"
            )
        )
        self._failures.clear()


def _rest() -> None:
    """Wake nobody: the sender is in another process."""
