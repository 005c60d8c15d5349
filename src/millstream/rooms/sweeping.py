"""Sweeping: messages older than their room's time to live go, once every instance has passed them.

An instance guards the messages behind its watermark, which it has in each room with listeners. A
watermark counts while its own generation holds the name: a process that stopped, died or was started
again guards nothing. An instance that is silent for minutes guards nothing either; its clients are
told of a gap when they come back. The bytes go in the background, as those of any truncated log.
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
from millstream.log.rules.retention import cut
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
"""An instance that is silent for so long guards nothing any more."""

FORGOTTEN_MS = 24 * 3600 * 1000
"""An instance that was not seen for so long is forgotten; its watermarks go with it."""

ROOMS_PER_COMMIT = 200

_logger = logging.getLogger("millstream.rooms")

Generation = tuple[str, int]
"""One life of an instance: its name, and its number."""


class SweepCounts(Struct):
    """What the background of this process has done; one for each open store."""

    sweeps: int = 0
    messages: int = 0
    """Expired messages that were removed."""


class Swept(NamedTuple):
    """A room that is looked at."""

    name: str
    log_id: int
    head: Head
    ttl_ms: int
    is_ripe: bool
    """Whether it may hold messages that can go."""
    stale: list[bytes]
    """Watermarks of generations that have ended."""


class RoomUpkeep:
    """Frees dead instances, settles presence as it becomes due, and sweeps at intervals."""

    def __init__(self) -> None:
        self._swept_s = 0.0

    def __call__(self, store: Store) -> bool:
        """Do what is due; True if there is more to do right now."""
        more = False
        free_dead_instances(store)
        if store.view(needs_settling):
            store.run(partial(settle, command=c.SettlePresence()))
            more = store.view(needs_settling)
        now_s = store.clock.seconds()
        if now_s - self._swept_s >= store.limits.room_sweep_ms / 1000:
            self._swept_s = now_s
            self._sweep(store)
        return more

    def _sweep(self, store: Store) -> None:
        """Sweep, and say how many messages went; also if a damaged room stops it at the end."""
        counts = store.caches.of(SweepCounts)
        before = counts.messages
        try:
            sweep_rooms(store, c.SweepRooms())
        finally:
            if removed := counts.messages - before:
                _logger.info("rooms_swept", extra={"messages": removed})


def sweep_rooms(store: Store, _: c.SweepRooms) -> int:
    """Forget expired messages of all rooms, stale watermarks, and instances that are long gone."""
    forget_instances(store)
    counts = store.caches.of(SweepCounts)
    counts.sweeps += 1
    gone, after = 0, ""
    damage: list[CorruptionError] = []
    while page := store.view(partial(_page, after=after)):
        found = _expired(store, page, damage)
        stale = [key for room in page for key in room.stale]
        went = store.run(partial(_clean, found=found, stale=stale)) if found or stale else 0
        gone += went
        counts.messages += went
        if not went:  # a long stretch is cut in several steps
            after = page[-1].name
    if damage:
        raise damage[0]
    return gone


def _expired(
    store: Store, page: list[Swept], damage: list[CorruptionError]
) -> list[tuple[Swept, int]]:
    """Rooms that may begin later, and where; found outside the write lock.

    A room that cannot be read is left as it is, and keeps no other from being swept.
    """
    now_ms = store.clock.wall_ms()
    found = []
    for one in page:
        if one.is_ripe:
            limited = replace(one.head, retention=Retention(age_ms=one.ttl_ms))
            try:
                start = cut(store, one.log_id, limited, floor=None, now_ms=now_ms)
            except CorruptionError as error:
                damage.append(error)
                continue
            if start > one.head.start:
                found.append((one, start))
    return found


def _page(view: View, after: str) -> list[Swept]:
    """Some rooms: which hold messages that every guard has passed, and which watermarks are stale."""
    guards = _guards(view)
    held = _held(view)
    found = []
    for room in islice(all_rooms(view, after=after), ROOMS_PER_COMMIT):
        head, ttl_ms = room.head, room.settings.ttl_ms
        marks = list(_watermarks(view, room.log_id))
        is_ripe = (
            ttl_ms > 0
            and not head.owner  # a copy is its owner's
            and _lowest(marks, guards, head.end) > head.start
        )
        stale = [one.key for one in marks if one.generation not in held]
        name = room_of(head.name)
        found.append(Swept(name, room.log_id, replace(head), ttl_ms, is_ripe, stale))
    return found


def _guards(view: View) -> set[Generation]:
    """The generations that are alive, or were within minutes and may be again."""
    _, now_ms = view.state.time.now()
    oldest_ms = view.state.clock.wall_ms() - SEEN_MS
    return {
        (name, one.generation)
        for name, one in all_instances(view)
        if one.holder and (one.until_ms > now_ms or one.seen_ms >= oldest_ms)
    }


def _held(view: View) -> set[Generation]:
    """The generations that hold their names, alive or silent: their watermarks stay."""
    return {(name, one.generation) for name, one in all_instances(view) if one.holder}


class _Watermark(NamedTuple):
    """The cursor by which an instance notes how far it has come in a room."""

    key: bytes
    generation: Generation
    offset: int


def _watermarks(view: View, log_id: int) -> Iterator[_Watermark]:
    """All watermarks on the log of a room."""
    prefix = len(keys.cursor(log_id, ""))
    for key in view.find_all(*keys.range_of(keys.cursor(log_id, WATERMARK))):
        state = view.entity(key, CursorState)
        if state.present:
            yield _Watermark(key, watermark_parts(key[prefix:].decode()), state.marks.floor)


def _lowest(marks: list[_Watermark], guards: set[Generation], end: int) -> int:
    """The lowest watermark of some generations; the log's end if none has one."""
    return min([end, *(one.offset for one in marks if one.generation in guards)])


def _clean(tx: WriteTransaction, *, found: list[tuple[Swept, int]], stale: list[bytes]) -> int:
    """Delete stale watermarks, and let rooms begin no later than the lowest one as it is now."""
    for key in stale:  # a generation that has ended never holds its name again
        if tx.entity(key, CursorState).present:
            tx.change(key, None)
    guards = _guards(tx.view)
    gone = 0
    for room, start in found:
        head = tx.entity(keys.head(room.log_id), Head)
        if head.deleted or not head.name or head.owner or head.setbacks != room.head.setbacks:
            continue
        marks = list(_watermarks(tx.view, room.log_id))
        before = min(start, head.end, _lowest(marks, guards, head.end))
        gone += truncate(tx, Truncate(head.name, before))
    return gone


# Instances that are long gone.


def forget_instances(store: Store) -> None:
    """Forget instances that were not seen for a day; their watermarks are stale from then on."""
    names = store.view(_forgotten)
    if names:
        store.run(partial(_forget_all, names=names))


def _forgotten(view: View) -> list[str]:
    oldest_ms = view.state.clock.wall_ms() - FORGOTTEN_MS
    _, now_ms = view.state.time.now()
    return [
        name
        for name, one in all_instances(view)
        if one.seen_ms < oldest_ms and one.until_ms < now_ms
    ]


def _forget_all(tx: WriteTransaction, *, names: list[str]) -> None:
    for name in {*names} & {*_forgotten(tx.view)}:
        tx.change(room_keys.instance(name), None)
