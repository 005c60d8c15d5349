"""Clients that come back: frames of the earlier connections are refused.

A client that lost its connection asks another server for the stored frames, and sends the missing
frames again. The first server may still be about to store some of them. So the client's return is
committed before the question is answered: frames that were stored before this commit are found, and
later frames of the earlier connection are refused.
"""

from __future__ import annotations

from millstream.errors import Fenced
from millstream.format import room_keys
from millstream.rooms.commands import ResumeInRoom, SendToRoom
from millstream.rooms.instance_state import InstanceState
from millstream.rooms.instances import all_instances
from millstream.rooms.lookup import FoundRoom, find_room
from millstream.rooms.packed_messages import check_client
from millstream.rooms.state import ClientResumed
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View


def resume(tx: WriteTransaction, command: ResumeInRoom) -> int:
    """Note that a client is back, and return the generation of its next frames.

    Nothing is written if no other process can hold frames of the client.
    """
    room = find_room(tx, command.room)
    if room is None:
        return 0
    check_client(command.client)
    if not _is_alone(tx.view, command):
        tx.change(room.key, ClientResumed(command.client))
    return room.state.generation


def _is_alone(view: View, command: ResumeInRoom) -> bool:
    """Whether no other process has ever served rooms, as far as is remembered."""
    instance = view.entity(room_keys.instance(command.instance), InstanceState)
    if instance.generation != command.instance_generation or instance.ended:
        return False
    return all(name == command.instance for name, _ in all_instances(view))


def check_generation(room: FoundRoom, command: SendToRoom) -> None:
    """Refuse a frame that a client has sent before it came back elsewhere."""
    later = room.state.resumed.get(command.origin)
    if later is not None and command.generation is not None and command.generation < later:
        raise Fenced(
            f"the client {command.origin!r} has come back to room {command.room!r} over another "
            "connection: what it sent before is not stored any more; it sends it again there",
            epoch=later,
        )
