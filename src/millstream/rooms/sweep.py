"""Sweeping: expired messages of rooms are deleted once every instance has delivered them.

An instance guards the messages behind its watermark, which it has in each room with listeners. A
watermark counts while its generation holds the name: a process that stopped, died or was restarted
guards nothing. An instance that is silent for minutes guards nothing either; its clients are told
of a gap when they come back. The bytes are deleted in the background, as after any truncation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import CorruptionError
from millstream.format import keys, room_keys
from millstream.log.commands import Truncate
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Head
from millstream.log.rules.operations import truncate
from millstream.log.rules.retention import plan_start
from millstream.record import Retention
from millstream.rooms import commands as c
from millstream.rooms.instances import all_instances, free_dead_instances
from millstream.rooms.names import WATERMARK, room_of, watermark_parts
from millstream.rooms.operations import all_rooms
from millstream.rooms.presence import needs_settling, settle
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

SEEN_MS = 5 * 60 * 1000
"""An instance that is silent for this time no longer guards messages."""

FORGOTTEN_MS = 24 * 3600 * 1000
"""An instance that was not seen for this time is forgotten, together with its watermarks."""

ROOMS_PER_COMMIT = 200

_logger = logging.getLogger("millstream.rooms")

Generation = tuple[str, int]
"""A generation of an instance: the instance's name, and a number."""


class SweepCounts(Struct):
    """The sweeps of this process; counted per open store."""

    sweeps: int = 0
    messages: int = 0
    """Deleted expired messages."""


class Swept(NamedTuple):
    """A room in a sweep."""

    name: str
    log_id: int
    head: Head
    ttl_ms: int
    is_ripe: bool
    """Whether the room may hold messages that can be deleted."""
    stale: list[bytes]
    """Watermarks of ended generations."""


class RoomUpkeep:
    """Frees dead instances, settles presence, and sweeps at intervals."""

    def __init__(self) -> None:
        self._swept_s = 0.0

    def __call__(self, store: Store) -> bool:
        """Do the due work; True if more work is due right now."""
        has_more = False
        free_dead_instances(store)
        if store.view(needs_settling):
            store.run(partial(settle, command=c.SettlePresence()))
            has_more = store.view(needs_settling)
        now_s = store.clock.seconds()
        if now_s - self._swept_s >= store.limits.room_sweep_ms / 1000:
            self._swept_s = now_s
            self._sweep(store)
        return has_more

    def _sweep(self, store: Store) -> None:
        """Sweep, and log how many messages were deleted, even if a damaged room ends the sweep."""
        counts = store.caches.of(SweepCounts)
        before = counts.messages
        try:
            sweep_rooms(store, c.SweepRooms())
        finally:
            if removed := counts.messages - before:
                _logger.info("rooms_swept", extra={"messages": removed})


def sweep_rooms(store: Store, _: c.SweepRooms) -> int:
    """Delete expired messages of all rooms, stale watermarks, and forgotten instances."""
    forget_instances(store)
    counts = store.caches.of(SweepCounts)
    counts.sweeps += 1
    gone, after = 0, ""
    damage: list[CorruptionError] = []
    while page := store.view(partial(_page, after=after)):
        expired = _expired(store, page, damage)
        stale = [key for room in page for key in room.stale]
        went = store.run(partial(_clean, expired=expired, stale=stale)) if expired or stale else 0
        gone += went
        counts.messages += went
        if not went:  # a long range is deleted in several steps
            after = page[-1].name
    if damage:
        raise damage[0]
    return gone


def _expired(
    store: Store, page: list[Swept], damage: list[CorruptionError]
) -> list[tuple[Swept, int]]:
    """Return the rooms that may begin later, and their new starts; outside the write lock.

    A room that cannot be read is left as it is, and does not keep other rooms from being swept.
    """
    expired = []
    for room in page:
        if room.is_ripe:
            try:
                planned = plan_start(store, room.log_id, partial(_limited_head, room=room))
            except CorruptionError as error:
                damage.append(error)
                continue
            if planned is not None:
                expired.append((room, planned[1]))
    return expired


def _limited_head(view: View, *, room: Swept) -> tuple[Head, None] | None:
    """Return the head of a room's log, with the time to live as its only rule of retention."""
    head = view.entity(keys.head(room.log_id), Head)
    if head.deleted:
        return None
    return replace(head, retention=Retention(age_ms=room.ttl_ms)), None


def _page(view: View, after: str) -> list[Swept]:
    """Return a page of rooms, with messages that every guard has delivered, and stale watermarks."""
    guards = _guards(view)
    held = _held(view)
    rooms = []
    for room in islice(all_rooms(view, after=after), ROOMS_PER_COMMIT):
        head, ttl_ms = room.head, room.settings.ttl_ms
        marks = list(_watermarks(view, room.log_id))
        is_ripe = (
            ttl_ms > 0
            and not head.owner  # the owner sweeps a copy
            and _lowest(marks, guards, head.end) > head.start
        )
        stale = [mark.key for mark in marks if mark.generation not in held]
        name = room_of(head.name)
        rooms.append(
            Swept(
                name=name,
                log_id=room.log_id,
                head=replace(head),
                ttl_ms=ttl_ms,
                is_ripe=is_ripe,
                stale=stale,
            )
        )
    return rooms


def _guards(view: View) -> set[Generation]:
    """Return the generations that are alive, or were alive within minutes and may return."""
    _, now_ms = view.state.time.now()
    oldest_ms = view.state.clock.wall_ms() - SEEN_MS
    return {
        (name, instance.generation)
        for name, instance in all_instances(view)
        if instance.holder and (instance.until_ms > now_ms or instance.seen_ms >= oldest_ms)
    }


def _held(view: View) -> set[Generation]:
    """Return the generations that hold their names, alive or silent: their watermarks stay."""
    return {
        (name, instance.generation) for name, instance in all_instances(view) if instance.holder
    }


class _Watermark(NamedTuple):
    """The cursor by which an instance stores its progress in a room."""

    key: bytes
    generation: Generation
    offset: int


def _watermarks(view: View, log_id: int) -> Iterator[_Watermark]:
    """Yield all watermarks on the log of a room."""
    prefix = len(keys.cursor(log_id, ""))
    for key in view.find_all(*keys.range_of(keys.cursor(log_id, WATERMARK))):
        state = view.entity(key, CursorState)
        if state.present:
            yield _Watermark(key, watermark_parts(key[prefix:].decode()), state.marks.floor)


def _lowest(marks: list[_Watermark], guards: set[Generation], end: int) -> int:
    """Return the lowest watermark of the guards; without watermarks, the log's end."""
    return min([end, *(mark.offset for mark in marks if mark.generation in guards)])


def _clean(tx: WriteTransaction, *, expired: list[tuple[Swept, int]], stale: list[bytes]) -> int:
    """Delete stale watermarks, and truncate rooms up to the lowest watermark at present."""
    for key in stale:  # an ended generation never holds its name again
        if tx.entity(key, CursorState).present:
            tx.change(key, None)
    guards = _guards(tx.view)
    gone = 0
    for room, start in expired:
        head = tx.entity(keys.head(room.log_id), Head)
        if head.deleted or head.name != room.head.name or head.owner:
            continue
        marks = list(_watermarks(tx.view, room.log_id))
        before = min(start, head.end, _lowest(marks, guards, head.end))
        gone += truncate(tx, Truncate(head.name, before))
    return gone


# Forgotten instances.


def forget_instances(store: Store) -> None:
    """Delete instances that were not seen for a day; their watermarks become stale."""
    names = store.view(_forgotten)
    if names:
        store.run(partial(_forget_all, names=names))


def _forgotten(view: View) -> list[str]:
    oldest_ms = view.state.clock.wall_ms() - FORGOTTEN_MS
    _, now_ms = view.state.time.now()
    return [
        name
        for name, instance in all_instances(view)
        if instance.seen_ms < oldest_ms and instance.until_ms < now_ms
    ]


def _forget_all(tx: WriteTransaction, *, names: list[str]) -> None:
    for name in {*names} & {*_forgotten(tx.view)}:
        tx.change(room_keys.instance(name), None)
