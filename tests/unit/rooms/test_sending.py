"""Messages become records of the room's log, and retained values, by the same commit."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidInput, InvalidName, TooLarge
from millstream.rooms import commands as c
from millstream.rooms.model import RoomMessage
from millstream.rooms.send import MESSAGES_MAX, RETAINED_MAX
from tests.unit.rooms.serving import Served, deletion, message


def test_a_message_is_a_record_of_the_rooms_log(served: Served) -> None:
    assert served.send("hall", message("chat", {"text": "hi"}, "k"), sender="ann") == 0
    (record,) = served.records("hall")
    assert (record.json(), record.key) == ({"text": "hi"}, b"k")
    assert record.headers == {"type": "chat", "from": "ann"}
    assert served.ms.log("room:hall").end_offset() == 1


def test_messages_of_one_call_are_one_commit_and_carry_who_sent_them(served: Served) -> None:
    served.send("hall", message("chat", 0))
    first = served.send(
        "hall",
        message("chat", 1),
        message("draw", 2, "a"),
        sender="ann",
        origin="tab-1",
        number=7,
    )
    assert first == 1
    chat, draw = served.records("hall")[1:]
    assert chat.headers == {"type": "chat", "from": "ann", "origin": "tab-1", "n": 7}
    assert draw.headers == {"type": "draw", "from": "ann", "origin": "tab-1", "n": 7}
    assert [chat.key, draw.key] == [None, b"a"]


def test_the_bytes_of_a_message_stay_as_they_came(served: Served) -> None:
    data = b' {"b" : 1.50, "a":[ ]} '
    served.send("hall", RoomMessage("chat", data))
    assert served.records("hall")[0].value == data


@pytest.mark.parametrize(
    "data", [b"", b"{", b"NaN", b'"\xff"', b"1 2", b"{'a': 1}", b"1e999", b"[" * 100_000]
)
def test_what_is_no_json_is_refused(served: Served, data: bytes) -> None:
    with pytest.raises(InvalidInput, match="JSON"):
        served.send("hall", RoomMessage("chat", data))
    assert served.ask(c.DescribeRoom("hall")) is None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (message(""), "1 to 64 characters"),
        (message("x" * 65), "1 to 64 characters"),
        (message("a\nb"), "control"),
        (message("joined"), "store alone"),
        (message("left"), "store alone"),
        (message("chat", 1, ""), "not empty"),
        (message("chat", 1, "x" * 1_025), "1,025 bytes"),
        (deletion("chat", "k"), "retains nothing"),
    ],
)
def test_a_wrong_message_is_refused_with_all_of_its_call(
    served: Served, wrong: RoomMessage, told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
        served.send("hall", message("chat"), wrong)
    assert served.ask(c.DescribeRoom("hall")) is None


def test_a_call_has_messages_but_not_too_many(served: Served) -> None:
    with pytest.raises(InvalidInput, match="no message"):
        served.send("hall")
    with pytest.raises(TooLarge, match="10,001 messages"):
        served.send("hall", *[message("chat")] * (MESSAGES_MAX + 1))


@pytest.mark.parametrize("more", [{"sender": "a\x00b"}, {"origin": "x" * 65}, {"number": -1}])
def test_who_sends_is_checked(served: Served, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        served.send("hall", message("chat"), **more)


@pytest.mark.parametrize("name", ["", "x" * 251, "a\tb"])
def test_the_name_of_a_room_is_checked(served: Served, name: str) -> None:
    with pytest.raises(InvalidName):
        served.send(name, message("chat"))


def test_a_message_has_at_most_the_bytes_that_its_room_says(served: Served) -> None:
    served.specify("hall", message_bytes_max=10)
    served.send("hall", RoomMessage("chat", b"1234567890"))
    with pytest.raises(TooLarge, match="message_bytes_max") as error:
        served.send("hall", RoomMessage("chat", b"12345678901"))
    assert (error.value.size, error.value.limit) == (11, 10)


def test_the_latest_value_of_each_retained_type_and_key_is_kept(served: Served) -> None:
    served.specify("hall", retained=("rect", "title"))
    served.send("hall", message("rect", 1, "a"), message("rect", 2, "b"), message("chat", 3, "a"))
    served.send("hall", message("rect", 4, "a"), message("title", "T"), sender="bob")
    found = served.ask(c.GetRetained("hall"))
    assert found.offset == 5
    assert [(v.type, v.key, v.offset, v.sender, v.json()) for v in found.values] == [
        ("rect", "a", 3, "bob", 4),
        ("rect", "b", 1, "", 2),
        ("title", None, 4, "bob", "T"),
    ]
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert info.retained == 3


def test_a_deletion_forgets_the_value_and_is_a_message_itself(served: Served) -> None:
    served.specify("hall", retained=("rect",))
    served.send("hall", message("rect", 1, "a"), message("rect", 2, "b"))
    served.send("hall", deletion("rect", "a"), deletion("rect", "never"))
    assert served.retained("hall") == {("rect", "b"): 2}
    gone = served.records("hall")[2]
    assert (gone.json(), gone.key) == (None, b"a")
    assert gone.headers == {"type": "rect", "deleted": True}
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert info.retained == 1


def test_of_one_call_the_last_message_of_a_key_counts(served: Served) -> None:
    served.specify("hall", retained=("rect",))
    served.send("hall", message("rect", 1, "a"), message("rect", 2, "a"), message("rect", 3, "b"))
    served.send("hall", deletion("rect", "b"), message("rect", 4, "b"), deletion("rect", "a"))
    assert served.retained("hall") == {("rect", "b"): 4}
    assert [v.offset for v in served.ask(c.GetRetained("hall")).values] == [4]


def test_only_some_types_may_be_asked_for(served: Served) -> None:
    served.specify("hall", retained=("a", "ab", "b"))
    served.send("hall", message("a", 1, "k"), message("ab", 2), message("b", 3, "k"))
    found = served.ask(c.GetRetained("hall", ["b", "a"]))
    assert [(v.type, v.json()) for v in found.values] == [("a", 1), ("b", 3)]


def test_large_and_small_values_replace_each_other(served: Served) -> None:
    served.specify("hall", retained=("rect",))
    for size in (10, 5_000, 10, 5_000):
        served.send("hall", message("rect", "x" * size, "a"))
        served.ms.fold()
        assert served.retained("hall") == {("rect", "a"): "x" * size}
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert info.retained == 1
    assert 5_000 < info.retained_bytes < 5_100


def test_a_room_retains_only_what_a_joiner_can_be_sent(served: Served) -> None:
    served.specify("hall", retained=("rect",))
    served.send("hall", *[message("rect", 1, str(n)) for n in range(RETAINED_MAX)])
    with pytest.raises(TooLarge, match="10,001 values"):
        served.send("hall", message("rect", 1, "one more"))
    served.send("hall", deletion("rect", "0"), message("rect", 1, "one more"))


def test_what_is_retained_no_longer_is_forgotten(served: Served) -> None:
    served.specify("hall", retained=("rect", "title"))
    served.send("hall", message("rect", 1, "a"), message("title", "T"))
    served.specify("hall", retained=("title",))
    assert served.retained("hall") == {("title", None): "T"}
    served.specify("hall", retained=("rect", "title"))
    assert served.retained("hall") == {("title", None): "T"}
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert info.retained == 1


def test_a_room_that_is_not_there_has_retained_nothing(served: Served) -> None:
    found = served.ask(c.GetRetained("nowhere"))
    assert (found.offset, found.values) == (0, [])
