"""Which operations an event loop may carry out itself."""

from __future__ import annotations

from millstream.embedded.loop.weight import are_light, weight_of
from millstream.rooms.commands import Broadcast, DeleteRoom, SendToRoom
from millstream.rooms.model import RoomMessage


def test_a_few_messages_to_a_room_are_light_and_many_are_not() -> None:
    def weight(count: int, size: int) -> int:
        return weight_of(Broadcast(SendToRoom("r", [RoomMessage("t", b"x" * size)] * count)))

    assert are_light([weight(1, 100)] * 100)
    assert not are_light([weight(2, 64 * 1024)])
    assert not are_light([weight(2_000, 1)])


def test_what_may_touch_more_than_it_names_is_heavy() -> None:
    assert not are_light([weight_of(DeleteRoom("r"))])
