"""Instances: processes that serve rooms, each under a name that it holds alone by a lease.

alive    its lease holds
silent   its lease has ended, and nothing is known of its process: it hangs, or its machine is gone
free     it has stopped, its process was found to be dead, or an operator has removed it
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from millstream.errors import Fenced, Locked
from millstream.format import keys, room_keys
from millstream.log.model.cursor_state import CursorOpened, CursorState, FloorMoved
from millstream.rooms import commands as c
from millstream.rooms.holder import is_dead
from millstream.rooms.instance_state import InstanceHeld, InstanceProlonged, InstanceState
from millstream.rooms.lookup import find_room
from millstream.rooms.model import InstanceInfo, InstanceTaken
from millstream.rooms.names import check_instance, watermark_of
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store

TRIES = 8
SECTION = 1_024
"""The section of a watermark's cursor: the default of cursors."""


def take_instance(store: Store, command: c.TakeInstance) -> InstanceTaken:
    """Become an instance. Whether its holder lives is checked outside the write lock."""
    check_instance(command.name)
    for _ in range(TRIES):
        state, left_ms = store.view(partial(_state_and_lease, name=command.name))
        is_held = left_ms > 0 and state.holder != command.holder
        if is_held and not is_dead(state.holder, store.clock):
            break
        instance = store.run(partial(_take, command=command, generation=state.generation))
        if instance is not None:
            return instance
    raise Locked(
        f"instance {command.name!r} is held by another process ({state.holder}), for up to "
        f"{left_ms / 1000:.0f} s unless it goes on; choose another name: --instance OTHER",
        instance=command.name,
        holder=state.holder,
    )


def _state_and_lease(view: View, name: str) -> tuple[InstanceState, int]:
    """Return an instance, and the remaining time of its lease."""
    state = view.entity(room_keys.instance(name), InstanceState)
    return replace(state), state.until_ms - view.state.time.now()[1]


def _take(
    tx: WriteTransaction, *, command: c.TakeInstance, generation: int
) -> InstanceTaken | None:
    """Take the name from the checked generation; None if the generation has changed."""
    key = room_keys.instance(command.name)
    state = tx.entity(key, InstanceState)
    if state.generation != generation:
        return None
    ended_ms = min(state.until_ms, tx.store_ms)
    held = InstanceHeld(
        command.holder, tx.take_entity_id(), tx.store_ms + command.lease_ms, tx.wall_ms, ended_ms
    )
    tx.change(key, held)
    return InstanceTaken(
        name=command.name,
        generation=held.generation,
        lease_ms=command.lease_ms,
        is_new=not generation,
    )


def need_instance(tx: WriteTransaction, name: str, generation: int) -> InstanceState:
    """Return the instance of a name. Raises `Fenced` if its generation has ended."""
    state = tx.entity(room_keys.instance(name), InstanceState)
    if state.end_of(generation, store_ms=tx.store_ms) is not None:
        raise Fenced(
            f"generation {generation} of instance {name!r} has ended: its lease ran out, or "
            "another process took its place; take the instance again, and join again",
            epoch=state.generation,
        )
    return state


def renew_instance(tx: WriteTransaction, command: c.RenewInstance) -> None:
    """Prolong a lease, and with it the presence of the instance's connections."""
    need_instance(tx, command.name, command.generation)
    tx.change(
        room_keys.instance(command.name),
        InstanceProlonged(tx.store_ms + command.lease_ms, tx.wall_ms),
    )


def free_instance(tx: WriteTransaction, command: c.FreeInstance) -> None:
    """End a generation now, unless another process has taken its place."""
    state = tx.entity(room_keys.instance(command.name), InstanceState)
    if state.generation == command.generation and state.holder:
        _free(tx, command.name, state)


def _free(tx: WriteTransaction, name: str, state: InstanceState) -> None:
    """Free a name. A lease that has run out keeps its end."""
    ended_ms = min(state.until_ms, tx.store_ms)
    freed = InstanceHeld("", state.generation, ended_ms, tx.wall_ms, ended_ms)
    tx.change(room_keys.instance(name), freed)


def free_dead_instances(store: Store) -> int:
    """Free the instances whose processes have certainly ended, and return their number.

    The processes are looked up outside the write lock.
    """
    commands = [command for holder, command in store.view(_held) if is_dead(holder, store.clock)]
    for command in commands:
        store.run(partial(free_instance, command=command))
    return len(commands)


def _held(view: View) -> list[tuple[str, c.FreeInstance]]:
    """Return the holders of instances, each with the command that would free its instance."""
    return [
        (instance.holder, c.FreeInstance(name, instance.generation))
        for name, instance in all_instances(view)
        if instance.holder
    ]


def remove_instance(tx: WriteTransaction, command: c.RemoveInstance) -> bool:
    """Free a silent instance; False if the instance is unknown or free already."""
    state = tx.entity(room_keys.instance(command.name), InstanceState)
    if not state.holder:
        return False
    if not state.is_silent(store_ms=tx.store_ms):
        raise Locked(
            f"instance {command.name!r} is alive: its lease ends in "
            f"{(state.until_ms - tx.store_ms) / 1000:.0f} s unless it is renewed; stop its process "
            f"({state.holder}) first",
            instance=command.name,
            holder=state.holder,
        )
    _free(tx, command.name, state)
    return True


def all_instances(view: View) -> Iterator[tuple[str, InstanceState]]:
    """Yield every known instance with its name."""
    prefix = room_keys.instance("")
    for key in view.find_all(*keys.range_of(prefix)):
        yield key[len(prefix) :].decode(), view.entity(key, InstanceState)


def has_instances(view: View) -> bool:
    """Whether any instance is known."""
    return bool(view.find(*keys.range_of(room_keys.instance("")), limit=1))


def list_instances(view: View, query: c.ListInstances) -> list[InstanceInfo]:
    """Return the state of instances."""
    _, now_ms = view.state.time.now()
    return [
        InstanceInfo(
            name=name,
            holder=state.holder,
            generation=state.generation,
            is_alive=state.until_ms > now_ms,
            is_silent=state.is_silent(store_ms=now_ms),
            seen=state.seen_ms,
        )
        for name, state in all_instances(view)
    ]


def note_watermarks(tx: WriteTransaction, command: c.NoteWatermarks) -> None:
    """Move an instance's cursors forwards, and delete the cursors of rooms without listeners.

    Deleted rooms are skipped.
    """
    need_instance(tx, command.instance, command.generation)
    name = watermark_of(command.instance, command.generation)
    for room_name in command.ended:
        room = find_room(tx, room_name)
        if room is not None and tx.entity(keys.cursor(room.log_id, name), CursorState).present:
            tx.change(keys.cursor(room.log_id, name), None)
    for mark in command.marks:
        room = find_room(tx, mark.room)
        if room is None:
            continue
        key, offset = keys.cursor(room.log_id, name), min(mark.offset, room.head.end)
        state = tx.entity(key, CursorState)
        if not state.present:
            tx.change(key, CursorOpened(offset, SECTION, True))
        elif offset > state.marks.floor:
            tx.change(key, FloorMoved(offset))
