"""Appending: values, keys, headers, timestamps, batches, compare and set, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from millstream import Item, Limits, Log, Millstream, Record
from millstream.errors import EndMoved, InvalidInput, InvalidName, TooLarge
from millstream.testing import SimulatedClock


class Order(msgspec.Struct):
    """A value as an application has it."""

    id: int
    total: float


@pytest.fixture
def log(ms: Millstream) -> Log:
    return ms.log("orders")


def only(log: Log) -> Record:
    (record,) = log.read()
    return record


def test_offsets_are_contiguous_from_zero(log: Log) -> None:
    assert [log.append(b"a"), log.append(b"b")] == [0, 1]
    assert log.append_many([b"c", b"d", b"e"]) == range(2, 5)
    assert log.append(b"f") == 5
    assert [record.offset for record in log.read()] == [*range(6)]


def test_bytes_are_stored_as_they_are(log: Log) -> None:
    log.append_many([b"\x00\xff", bytearray(b"array"), memoryview(b"view"), b""])

    assert [(r.value, dict(r.headers)) for r in log.read()] == [
        (b"\x00\xff", {}),
        (b"array", {}),
        (b"view", {}),
        (b"", {}),
    ]


def test_text_is_utf8_and_says_so(log: Log) -> None:
    log.append("grün")

    assert only(log).value == "grün".encode()
    assert only(log).text == "grün"
    assert only(log).headers == {"content-type": "text/plain; charset=utf-8"}


@pytest.mark.parametrize("value", [{"id": 1}, [1, None, "x"], 5, 2.5, True, Order(1, 2.5)])
def test_anything_else_is_json_and_says_so(log: Log, value: Any) -> None:
    log.append(value)

    assert only(log).headers == {"content-type": "application/json"}
    assert only(log).json() == msgspec.to_builtins(value)


def test_none_is_a_null_value_and_nothing_else(log: Log) -> None:
    log.append(None, key="gone")

    assert only(log).value is None
    assert only(log).headers == {}
    with pytest.raises(InvalidInput, match="tombstone"):
        only(log).json()


def test_json_is_decoded_into_the_type_that_is_asked_for(log: Log) -> None:
    log.append({"id": 7, "total": 9.5})

    assert only(log).json(type=Order) == Order(7, 9.5)
    assert only(log).json(Order).id == 7
    with pytest.raises(InvalidInput, match=r"record at offset 0 of log .* does not fit list"):
        only(log).json(type=list[int])


def test_a_record_that_is_no_json_is_named(log: Log) -> None:
    log.append("plain text")
    with pytest.raises(InvalidInput, match=r"record at offset 0 of log .* is not valid JSON"):
        only(log).json()


@pytest.mark.parametrize("value", [float("nan"), {"a": [1, float("inf")]}])
def test_what_json_cannot_say_is_refused_wherever_it_is_handed_in(
    ms: Millstream, log: Log, value: Any
) -> None:
    queue = ms.queue("jobs", max_attempts=2)
    tries: list[Callable[[], Any]] = [
        lambda: log.append(value),
        lambda: log.append_many([b"x", value]),
        lambda: queue.put(value),
        lambda: queue.put_many([value]),
        lambda: log.metadata.__setitem__("k", value),
        lambda: log.metadata.compare_and_set("k", expect=None, value=value),
    ]
    for attempt in tries:
        with pytest.raises(InvalidInput, match="no NaN and no infinity"):
            attempt()
    with pytest.raises(InvalidInput, match="no NaN and no infinity"), ms.transaction() as tx:
        tx.append("x", value)
    assert log.info() is None


def test_the_producers_own_content_type_stays(log: Log) -> None:
    log.append({"id": 1}, headers={"content-type": "application/x-order", "n": 1})

    assert only(log).headers == {"content-type": "application/x-order", "n": 1}


@pytest.mark.parametrize("value", [object(), {1, 2j}, "\ud800", {"a": object()}])
def test_a_value_that_is_no_json_is_refused(log: Log, value: Any) -> None:
    with pytest.raises(InvalidInput):
        log.append(value)
    with pytest.raises(InvalidInput):
        log.append_many([b"ok", value])
    assert len(log) == 0


@pytest.mark.parametrize("append", ["one", "many"])
@pytest.mark.parametrize(
    "headers",
    [
        {"text": "x", "int": -(2**63), "float": 0.5, "yes": True, "none": None},
        {"large": 2**63 - 1},
        {},
        None,
    ],
)
def test_headers_keep_their_types(log: Log, append: str, headers: Mapping[str, Any] | None) -> None:
    if append == "one":
        log.append(b"x", headers=headers)
    else:
        log.append_many([b"x", b"y"], headers=[headers, None])

    found = next(log.read()).headers
    assert found == (headers or {})
    assert {k: type(v) for k, v in found.items()} == {
        k: type(v) for k, v in (headers or {}).items()
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"n": 2**63},
        {"n": -(2**63) - 1},
        {"x": [1]},
        [("x", 1), ("x", [1])],
        {1: "x"},
        {"x": "\ud800"},
    ],
)
def test_a_header_of_another_type_is_refused(log: Log, headers: Any) -> None:
    with pytest.raises(InvalidInput):
        log.append(b"x", headers=headers)
    with pytest.raises(InvalidInput):
        log.append_many([b"x", b"y"], headers=[headers, None])
    with pytest.raises(InvalidInput):
        log.append_many([b"x", b"y"], headers=[headers, {"ok": 1}])


def test_a_key_is_bytes_or_text_or_absent(log: Log) -> None:
    log.append(b"", key="é")
    log.append(b"", key=b"")
    log.append(b"")
    log.append_many([b""] * 3, keys=["a", None, b"\x00"])
    log.append_many([b""] * 2, keys=[None, None])

    assert [record.key for record in log.read()] == [
        "é".encode(),
        b"",
        None,
        b"a",
        None,
        b"\x00",
        None,
        None,
    ]
    with pytest.raises(InvalidInput):
        log.append(b"", key=5)  # type: ignore[arg-type]


def test_a_timestamp_is_the_producers_or_the_time_of_the_append(
    log: Log, clock: SimulatedClock
) -> None:
    now = clock.wall_ms()
    log.append(b"own", timestamp=5)
    log.append(b"now")
    log.append_many([b"", b""], timestamps=[1, 2])
    log.append_many([b"", b""], timestamps=3)
    log.append_many([b"", b""])

    records = list(log.read())
    assert [record.timestamp for record in records] == [5, now, 1, 2, 3, 3, now, now]
    assert {record.appended for record in records} == {now}


@pytest.mark.parametrize("timestamp", [-1, 253_402_300_800_000, True, 1.5])
def test_a_timestamp_that_is_none_is_refused(log: Log, timestamp: Any) -> None:
    with pytest.raises(InvalidInput):
        log.append(b"", timestamp=timestamp)
    with pytest.raises(InvalidInput):
        log.append_many([b"", b""], timestamps=[timestamp, 1])


def test_a_batch_may_be_items(log: Log) -> None:
    log.append_many([Item(b"a", key="k"), Item({"n": 1}, headers={"h": 1}), Item("c")])
    log.append_many([Item(b"d", timestamp=4)])

    assert [(r.value, r.key, dict(r.headers)) for r in log.read()] == [
        (b"a", b"k", {}),
        (b'{"n":1}', None, {"h": 1, "content-type": "application/json"}),
        (b"c", None, {"content-type": "text/plain; charset=utf-8"}),
        (b"d", None, {}),
    ]
    assert log.get(3) is not None
    assert log.get(3).timestamp == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "append",
    [
        lambda log: log.append_many([Item(b"a"), b"b"]),
        lambda log: log.append_many([Item(b"a"), Item(b"b")], keys=["k", "l"]),
        lambda log: log.append_many([Item(b"a", timestamp=1), Item(b"b")]),
        lambda log: log.append_many(b"bytes"),
        lambda log: log.append_many("text"),
        lambda log: log.append_many([b"a", b"b"], keys=["k"]),
        lambda log: log.append_many([b"a", b"b"], headers=[{}]),
        lambda log: log.append_many([b"a", b"b"], timestamps=[1]),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(
    log: Log, append: Callable[[Log], object]
) -> None:
    with pytest.raises(InvalidInput):
        append(log)
    assert len(log) == 0


@pytest.mark.parametrize(
    "columns", [{"keys": ["a", "b"]}, {"headers": [{}, {}]}, {"timestamps": [1, 2]}]
)
def test_one_value_with_two_of_something_is_refused(log: Log, columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        log.append_many([b"a"], **columns)


def test_a_batch_may_come_from_an_iterator_and_may_be_empty(log: Log) -> None:
    assert log.append_many(str(n) for n in range(3)) == range(3)
    assert log.append_many([]) == range(3, 3)
    assert log.append_many(iter(())) == range(3, 3)
    assert len(log) == 3


def test_an_expected_end_that_has_moved_stores_nothing(log: Log) -> None:
    assert log.append(b"a", expect_end=0) == 0
    assert log.append_many([b"b", b"c"], expect_end=1) == range(1, 3)

    for append in (lambda: log.append(b"x", expect_end=1), lambda: log.append(b"x", expect_end=4)):
        with pytest.raises(EndMoved) as refused:
            append()
        assert (refused.value.end, refused.value.log) == (3, "orders")
    assert len(log) == 3


def test_a_refused_first_append_makes_no_log(ms: Millstream) -> None:
    with pytest.raises(EndMoved):
        ms.log("never").append(b"x", expect_end=1)

    assert ms.log("never").info() is None
    assert list(ms.logs()) == []


@pytest.mark.parametrize(
    ("limits", "append"),
    [
        (Limits(value_bytes_max=3), lambda log: log.append(b"1234")),
        (Limits(value_bytes_max=3), lambda log: log.append_many([b"1", b"1234"])),
        (Limits(key_bytes_max=3), lambda log: log.append(b"", key=b"1234")),
        (Limits(key_bytes_max=3), lambda log: log.append_many([b"", b""], keys=[b"1", b"1234"])),
        (Limits(headers_bytes_max=8), lambda log: log.append(b"", headers={"long": "header"})),
        (
            Limits(headers_bytes_max=8),
            lambda log: log.append_many([b"", b""], headers=[{"long": "header"}, {}]),
        ),
        (Limits(batch_records_max=2), lambda log: log.append_many([b"", b"", b""])),
        (Limits(batch_bytes_max=99), lambda log: log.append_many([b"x" * 50, b"x" * 50])),
    ],
)
def test_what_is_over_its_limit_is_refused(
    reopen: Callable[..., Millstream], limits: Limits, append: Callable[[Log], object]
) -> None:
    log = reopen(limits).log("x")
    with pytest.raises(TooLarge) as refused:
        append(log)
    assert refused.value.size > refused.value.limit
    assert len(log) == 0


def test_what_reaches_its_limit_is_stored(reopen: Callable[..., Millstream]) -> None:
    log = reopen(Limits(value_bytes_max=3, key_bytes_max=3, batch_records_max=2)).log("x")
    log.append(b"123", key=b"123")
    log.append_many([b"123", b"123"], keys=[b"123", b"123"])

    assert len(log) == 3


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b", "a\nb", "\ud800", 5, None])
def test_a_name_that_is_none_is_refused(ms: Millstream, name: Any) -> None:
    with pytest.raises(InvalidName):
        ms.log(name)
    with pytest.raises(InvalidName):
        ms.log("x").cursor(name)
    with pytest.raises(InvalidName):
        ms.log("x").metadata[name] = 1


@pytest.mark.parametrize("name", ["a", "x" * 255, "../../etc", "a/b c", "日本", "é" * 255])
def test_any_printable_name_will_do(ms: Millstream, name: str) -> None:
    ms.log(name).append(b"x")

    assert [info.name for info in ms.logs()] == [name]


def test_everything_is_there_after_a_reopen_and_a_fold(reopen: Callable[..., Millstream]) -> None:
    log = reopen().log("x")
    log.append({"n": 0}, key="k", headers={"h": 1}, timestamp=9)
    log.append_many([b"1" * 5_000, "2"], keys=[None, "l"], headers=[{"a": 1.5}, None])
    log.append(b"3" * 5_000)
    before = list(log.read())

    again = reopen()
    assert list(again.log("x").read()) == before
    assert again.fold() > 0
    assert list(again.log("x").read()) == before
    assert list(reopen().log("x").read()) == before


def test_no_offset_is_given_out_beyond_the_largest(ms: Millstream) -> None:
    log = ms.log("orders")
    log.truncate(before=2**63 - 3, past_end=True)
    with pytest.raises(TooLarge) as refused:
        log.append_many([b"x"] * 3)
    assert refused.value.limit == 2**63 - 1
    assert log.append_many([b"x"] * 2) == range(2**63 - 3, 2**63 - 1)
    with pytest.raises(TooLarge):
        log.append(b"x")
    assert [record.offset for record in log.read()] == [2**63 - 3, 2**63 - 2]
    assert log.end_offset() == 2**63 - 1
