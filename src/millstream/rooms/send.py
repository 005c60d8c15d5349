"""Sending: messages become records of the room's log, and retained values, in one commit."""

from __future__ import annotations

from millstream.errors import InvalidInput, TooLarge
from millstream.format import room_keys
from millstream.format.packing import Batch, Single
from millstream.limits import MiB, too_large
from millstream.log.commands import Append
from millstream.log.rules.operations import append
from millstream.rooms.commands import Broadcast, SendToRoom
from millstream.rooms.frame_order import take_turn
from millstream.rooms.lookup import FoundRoom, make_room
from millstream.rooms.model import Sent
from millstream.rooms.names import log_of
from millstream.rooms.packed_messages import pack_messages
from millstream.rooms.resume import check_generation
from millstream.rooms.retained import encode_value
from millstream.rooms.state import RetainedCounted
from millstream.store.commit.transaction import WriteTransaction

MESSAGES_MAX = 10_000
"""Messages in a call."""

RETAINED_MAX = 10_000
"""Retained values of a room; a joiner receives them in full."""

RETAINED_BYTES_MAX = 16 * MiB
"""Bytes of the retained values."""


class Sending:
    """The operation of a call, with messages that the caller's thread has packed before."""

    def __init__(self, command: SendToRoom) -> None:
        if len(command.messages) > MESSAGES_MAX:
            raise too_large("a call", len(command.messages), MESSAGES_MAX, unit="messages")
        self._command = command
        self._log = log_of(command.room)
        self._records = pack_messages(
            command.messages,
            sender=command.sender,
            origin=command.origin,
            number=command.number,
        )

    def __call__(self, tx: WriteTransaction) -> int:
        """Append the messages, and retain messages of retained types."""
        room = make_room(tx, self._command.room)
        if room.state.resumed:
            check_generation(room, self._command)
        _check_sizes(room, self._command, self._records, tx.limits.batch_bytes_max)
        last = _last_of_each(room, self._command)
        offset = append(tx, Append(self._log, self._records))
        if last:
            _retain(tx, room, self._command, last=last, offset=offset)
        return offset


def send(tx: WriteTransaction, command: SendToRoom) -> int:
    """Send as a step of a transaction."""
    return Sending(command)(tx)


class Broadcasting(Sending):
    """Sends messages, and returns the time that they carry."""

    def __init__(self, command: Broadcast) -> None:
        super().__init__(command.send)
        self._turn = command.turn

    def __call__(self, tx: WriteTransaction) -> Sent:  # type: ignore[override]
        """Send, unless an earlier frame of the same connection was not stored."""
        if self._turn is not None:
            take_turn(tx, self._turn)
        return Sent(super().__call__(tx), tx.wall_ms)


def _check_sizes(
    room: FoundRoom, command: SendToRoom, records: Single | Batch, bytes_max: int
) -> None:
    bytes_limit = room.settings.message_bytes_max
    largest = max([len(message.data) for message in command.messages])
    if largest > bytes_limit:
        raise TooLarge(
            f"a message of {largest:,} bytes; the limit of room {command.room!r} is {bytes_limit:,} "
            "(its setting message_bytes_max)",
            size=largest,
            limit=bytes_limit,
        )
    if isinstance(records, Batch) and len(records.payload) + len(records.metadata) > bytes_max:
        raise too_large("a call", len(records.payload) + len(records.metadata), bytes_max)


def _last_of_each(room: FoundRoom, command: SendToRoom) -> dict[tuple[str, str], int]:
    """Return the index of the last message for each retained type and key."""
    kinds = room.settings.retained_types
    last = {}
    for index, message in enumerate(command.messages):
        if message.type in kinds:
            last[message.type, message.key or ""] = index
        elif message.deleted:
            raise InvalidInput(
                f"room {command.room!r} retains nothing of the type {message.type!r}, so there is "
                "nothing to delete; name the type in its setting `retained`"
            )
    return last


def _retain(
    tx: WriteTransaction,
    room: FoundRoom,
    command: SendToRoom,
    *,
    last: dict[tuple[str, str], int],
    offset: int,
) -> None:
    """Store the last message of each retained type and key, or delete the stored value."""
    count = size = 0
    for (kind, key), index in last.items():
        row = room_keys.retained(room.log_id, kind, key)
        before = tx.get(row)
        message = command.messages[index]
        if before is not None:
            count -= 1
            size -= len(row) + len(before)
        if not message.deleted:
            value = encode_value(offset + index, command.sender, tx.wall_ms, message.data)
            count += 1
            size += len(row) + len(value)
            tx.put(row, value)
        elif before is not None:
            tx.erase(row)
    if count or size:
        _check_retained(room, command.room, count, size)
        tx.change(room.key, RetainedCounted(count, size))


def _check_retained(room: FoundRoom, name: str, count: int, size: int) -> None:
    """Refuse to retain more than a joiner can be sent."""
    for unit, present, added, limit in (
        ("values", room.state.retained, count, RETAINED_MAX),
        ("bytes", room.state.retained_bytes, size, RETAINED_BYTES_MAX),
    ):
        if added > 0 and present + added > limit:
            raise TooLarge(
                f"room {name!r} would retain {present + added:,} {unit}; the limit is {limit:,}: "
                "delete some, or retain fewer types",
                size=present + added,
                limit=limit,
            )
