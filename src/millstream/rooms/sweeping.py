"""Sweeping: messages older than their room's time to live go, once every instance has passed them.

An instance that was not seen for minutes does not count: it has died, and its clients are told of a
gap when they come back. The bytes go in the background, as those of any truncated log.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from millstream.errors import CorruptionError
from millstream.format import keys, room_keys
from millstream.log.commands import Truncate
from millstream.log.cursor_state import CursorState
from millstream.log.head import Head
from millstream.log.operations import truncate
from millstream.log.retention import cut
from millstream.record import Retention
from millstream.rooms import commands as c
from millstream.rooms.instances import all_instances
from millstream.rooms.names import room_of, watermark_of
from millstream.rooms.operations import all_rooms
from millstream.rooms.presence import needs_settling, settle
from millstream.store.rows import View
from millstream.store.store import Store
from millstream.store.transaction import WriteTransaction

SWEEP_S = 30.0
"""How often expired messages are cleaned."""

SEEN_MS = 5 * 60 * 1000
"""An instance that was not seen for so long guards nothing any more."""

FORGOTTEN_MS = 24 * 3600 * 1000
"""An instance that was not seen for so long is forgotten, with its watermarks."""

ROOMS_PER_COMMIT = 200


class Swept(NamedTuple):
    """A room that is looked at."""

    name: str
    log_id: int
    head: Head
    ttl_ms: int
    is_ripe: bool
    """Whether it may hold messages that can go."""


class RoomUpkeep:
    """Settles presence as it becomes due, and sweeps every 30 s."""

    def __init__(self) -> None:
        self._swept_s = 0.0

    def __call__(self, store: Store) -> bool:
        """Do what is due; True if there is more to do right now."""
        more = False
        if store.view(needs_settling):
            store.run(partial(settle, command=c.SettlePresence()))
            more = store.view(needs_settling)
        now_s = store.clock.seconds()
        if now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            sweep_rooms(store, c.SweepRooms())
        return more


def sweep_rooms(store: Store, _: c.SweepRooms) -> int:
    """Forget expired messages of all rooms, and instances that are long gone."""
    gone, after = 0, ""
    damage: list[CorruptionError] = []
    while page := store.view(partial(_page, after=after)):
        found = _expired(store, page, damage)
        went = store.run(partial(_truncate_all, found=found)) if found else 0
        gone += went
        if not went:  # a long stretch is cut in several steps
            after = page[-1].name
    forget_instances(store)
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
    """Some rooms, and which of them hold messages that every living instance has passed."""
    names = _living(view)
    found = []
    for room in islice(all_rooms(view, after=after), ROOMS_PER_COMMIT):
        head, ttl_ms = room.head, room.settings.ttl_ms
        is_ripe = (
            ttl_ms > 0
            and not head.owner  # a copy is its owner's
            and lowest(view, room.log_id, names, head.end) > head.start
        )
        found.append(Swept(room_of(head.name), room.log_id, replace(head), ttl_ms, is_ripe))
    return found


def _living(view: View) -> list[str]:
    """The instances that were seen within minutes."""
    oldest_ms = view.state.clock.wall_ms() - SEEN_MS
    return [name for name, one in all_instances(view) if one.seen_ms >= oldest_ms]


def lowest(view: View, log_id: int, instances: list[str], end: int) -> int:
    """The lowest watermark of some instances on a room's log; its end if none has one."""
    for name in instances:
        state = view.entity(keys.cursor(log_id, watermark_of(name)), CursorState)
        if state.present:
            end = min(end, state.marks.floor)
    return end


def _truncate_all(tx: WriteTransaction, *, found: list[tuple[Swept, int]]) -> int:
    """Let rooms begin later; no further than the lowest watermark as it is now."""
    names = _living(tx.view)
    gone = 0
    for room, start in found:
        head = tx.entity(keys.head(room.log_id), Head)
        if head.deleted or not head.name or head.owner or head.setbacks != room.head.setbacks:
            continue
        before = min(start, head.end, lowest(tx.view, room.log_id, names, head.end))
        gone += truncate(tx, Truncate(head.name, before))
    return gone


# Instances that are long gone.


def forget_instances(store: Store) -> None:
    """Forget instances that were not seen for a day, and their watermarks."""
    names = store.view(_forgotten)
    if not names:
        return
    after = ""
    while page := store.view(partial(_page, after=after)):
        after = page[-1].name
        store.run(partial(_forget_watermarks, names=names, rooms=page))
    store.run(partial(_forget_all, names=names))


def _forgotten(view: View) -> list[str]:
    oldest_ms = view.state.clock.wall_ms() - FORGOTTEN_MS
    _, now_ms = view.state.time.now()
    return [
        name
        for name, one in all_instances(view)
        if one.seen_ms < oldest_ms and one.until_ms < now_ms
    ]


def _forget_watermarks(tx: WriteTransaction, *, names: list[str], rooms: list[Swept]) -> None:
    for name in {*names} & {*_forgotten(tx.view)}:
        for room in rooms:
            key = keys.cursor(room.log_id, watermark_of(name))
            if tx.entity(key, CursorState).present:
                tx.change(key, None)


def _forget_all(tx: WriteTransaction, *, names: list[str]) -> None:
    for name in {*names} & {*_forgotten(tx.view)}:
        tx.change(room_keys.instance(name), None)
