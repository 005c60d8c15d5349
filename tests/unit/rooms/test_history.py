"""The history of a room: the last messages, and not what the store or others have to say."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidInput
from millstream.rooms import commands as c
from millstream.rooms.history import SEARCHED_MAX
from millstream.rooms.names import HISTORY_MAX
from tests.unit.rooms.serving import Served, message


def find(served: Served, count: int, *types: str) -> int:
    return served.ask(c.FindHistory("hall", count, [*types] or None))


def test_the_last_messages_are_found(served: Served) -> None:
    assert find(served, 5) == 0
    served.send("hall", *[message("chat", number) for number in range(10)])
    assert [find(served, count) for count in (0, 1, 9, 10, 11)] == [10, 9, 1, 0, 0]


def test_other_types_and_announcements_are_not_counted(served: Served) -> None:
    served.send("hall", message("chat"), message("draw"), message("chat"))
    served.join("hall", "ann", ("one", served.take("one")))
    served.send("hall", *[message("draw")] * 1_000)
    assert find(served, 2, "chat") == 0
    assert find(served, 1, "chat") == 2
    assert find(served, 1_000) == 4
    assert find(served, 1, "none") == 1_004


def test_what_was_appended_by_hand_counts(served: Served) -> None:
    log = served.ms.room("hall").log
    log.append("by hand")
    assert find(served, 1) == 0
    assert find(served, 1, "record") == 0


def test_expired_messages_are_left_out(served: Served) -> None:
    served.send("hall", *[message("chat", number) for number in range(10)])
    served.ms.room("hall").log.truncate(before=7)
    assert find(served, 5) == 7


def test_the_search_has_an_end(served: Served) -> None:
    served.send("hall", message("chat"))
    for _ in range(SEARCHED_MAX // 5_000):
        served.send("hall", *[message("draw")] * 5_000)
    assert find(served, 1, "chat") == SEARCHED_MAX + 1


@pytest.mark.parametrize("count", [-1, HISTORY_MAX + 1])
def test_a_number_out_of_range_is_refused(served: Served, count: int) -> None:
    with pytest.raises(InvalidInput, match="from 0 to 1,000"):
        find(served, count)


def test_a_program_listens_with_a_history(served: Served) -> None:
    room = served.ms.room("hall")
    other = served.ms.room("hall")
    other.send_many([("chat", number) for number in range(5)])

    def heard(**more: Any) -> list[Any]:
        return [event.json() for event in room.listen(timeout=0, **more)]

    assert heard(history=2) == [3, 4]
    assert heard() == []
    assert heard(history=2, types=["draw"]) == []
    with pytest.raises(InvalidInput, match="not both"):
        next(room.listen(0, history=2))
