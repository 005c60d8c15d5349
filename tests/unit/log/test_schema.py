"""A log with a schema: every way in is checked, versions follow each other, values come back typed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import millstream
from millstream import Item, Millstream
from millstream.errors import InvalidInput, NotOwner, TooLarge
from millstream.log.model.metadata import SCHEMA_KEY
from millstream.schema.history import version_at


class Order(Struct):
    id: int
    note: str = ""


class WiderOrder(Struct):
    id: float
    note: str | None = None
    paid: bool = False


class OtherOrder(Struct):
    id: str
    total: int


GOOD = {"id": 1, "note": "a"}
BAD = {"id": "x"}


@pytest.fixture
def ms() -> Any:
    with millstream.open(":memory:") as ms:
        yield ms


def test_the_schema_is_stored_with_the_log(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("orders", schema=Order)
    with millstream.open(tmp_path / "a.db") as ms:
        version = ms.log("orders").schema()
        assert version is not None
        assert (version.version, version.start, version.mode) == (1, 0, "enforce")
        assert version.json_schema()["required"] == ["id"]
        assert version.avro()["name"] == "Order"
        assert version.spark() == "`id` BIGINT NOT NULL, `note` STRING"
        with pytest.raises(InvalidInput, match=r"at \$\.id"):
            ms.log("orders").append(BAD)


def _by_producer(ms: Millstream) -> None:
    with ms.log("orders").producer() as producer:
        producer.append(BAD)


def _by_stage(ms: Millstream) -> None:
    with ms.log("orders").stage() as stage:
        stage.append(BAD)


def _by_transaction(ms: Millstream) -> None:
    with ms.transaction() as tx:
        tx.append(ms.log("others"), GOOD)
        tx.append(ms.log("orders"), BAD)


WAYS: dict[str, Callable[[Millstream], object]] = {
    "append": lambda ms: ms.log("orders").append(BAD),
    "text": lambda ms: ms.log("orders").append("no JSON"),
    "append_many": lambda ms: ms.log("orders").append_many([GOOD, None, BAD]),
    "items": lambda ms: ms.log("orders").append_many([Item(GOOD, key="k"), Item(BAD)]),
    "one of one": lambda ms: ms.log("orders").append_many([BAD]),
    "expect_end": lambda ms: ms.log("orders").append(BAD, expect_end=0),
    "producer sequence": lambda ms: ms.log("orders").append(
        BAD, producer=millstream.Producer("p", 0)
    ),
    "producer": _by_producer,
    "stage": _by_stage,
    "transaction": _by_transaction,
    "fork": lambda ms: ms.log("orders").fork("copy").append(BAD),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_is_checked(ms: Millstream, way: str) -> None:
    orders = ms.log("orders", schema=Order)
    with pytest.raises(InvalidInput, match=r"schema of log .*at \$"):
        WAYS[way](ms)
    assert orders.end_offset() == ms.log("others").end_offset() == 0


def test_the_error_names_the_record_and_the_field(ms: Millstream) -> None:
    with pytest.raises(InvalidInput) as caught:
        ms.log("orders", schema=Order).append_many([GOOD, BAD])
    error = caught.value
    assert str(error) == (
        "record 2 of 2 does not fit the schema of log 'orders' (version 1): expected integer at $.id, "
        'given the text "x". Nothing was stored'
    )
    assert (error.field, error.index, error.version) == ("$.id", 1, 1)


def test_a_tombstone_fits_every_schema(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    orders.append(None, key="k")
    orders.append_many([Item(GOOD), Item(None, key="k")])
    assert list(orders.read(type=Order)) == [None, Order(1, "a"), None]


def test_only_the_faulty_caller_of_a_group_is_refused(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    with orders.producer() as producer:
        handles = [producer.append(GOOD if n % 3 else BAD) for n in range(9)]
        results = [_offset_or_error(handle) for handle in handles]
    assert [type(each) for each in results] == [InvalidInput, int, int] * 3
    assert orders.end_offset() == 6


def _offset_or_error(handle: Any) -> Any:
    try:
        return handle.offset()
    except InvalidInput as error:
        return error


def test_warn_stores_and_logs_what_does_not_fit(
    ms: Millstream, caplog: pytest.LogCaptureFixture
) -> None:
    orders = ms.log("orders", schema=Order, schema_mode="warn")
    with caplog.at_level(logging.WARNING, "millstream.schema"):
        orders.append_many([GOOD, BAD, "text"])
    assert orders.end_offset() == 3
    (line,) = caplog.messages
    assert line.startswith("schema_misfit log='orders' version=1 records=2 field='$.id'")
    with pytest.raises(InvalidInput, match="record 1 of log 'orders' is no Order"):
        list(orders.read(type=Order))
    ms.log("orders", schema=Order)
    with pytest.raises(InvalidInput):
        orders.append(BAD)


def test_a_compatible_schema_is_a_new_version(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    orders.append(GOOD)
    ms.log("orders", schema=WiderOrder)
    orders.append({"id": 1.5, "note": None, "paid": True})
    versions = orders.schemas()
    assert [(each.version, each.start, each.forced) for each in versions] == [
        (1, 0, False),
        (2, 1, False),
    ]
    assert [version_at(versions, at).version for at in (0, 1, 9)] == [1, 2, 2]  # type: ignore[union-attr]
    assert list(orders.read(type=WiderOrder)) == [
        WiderOrder(1, "a", False),
        WiderOrder(1.5, None, True),
    ]


def test_an_earlier_version_that_is_set_again_changes_nothing(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    ms.log("orders", schema=WiderOrder)
    ms.log("orders", schema=Order)
    assert [each.version for each in orders.schemas()] == [1, 2]
    assert orders.set_schema(Order, force=True).version == 3


def test_an_incompatible_schema_needs_force(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    with pytest.raises(InvalidInput) as caught:
        ms.log("orders", schema=OtherOrder)
    assert caught.value.conflicts == orders.check_schema(OtherOrder)
    assert caught.value.conflicts == [
        "$.id: integer cannot become text",
        "$.total: a required field is added; make it optional",
    ]
    assert [each.version for each in orders.schemas()] == [1]
    forced = orders.set_schema(OtherOrder, force=True)
    assert (forced.version, forced.forced) == (2, True)


def test_a_wrong_mode_or_schema_changes_nothing(ms: Millstream) -> None:
    with pytest.raises(InvalidInput, match="'enforce' or 'warn'"):
        ms.log("orders", schema=Order, schema_mode="maybe")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="a schema is a type"):
        ms.log("orders", schema=5)
    assert ms.log("orders").schema() is None


def test_a_mode_without_a_schema_is_refused(ms: Millstream) -> None:
    with pytest.raises(InvalidInput, match="no effect without a schema"):
        ms.log("orders", schema_mode="warn")
    with pytest.raises(InvalidInput, match="no effect without a schema"):
        ms.queue("jobs", schema_mode="warn")
    with pytest.raises(InvalidInput, match="no effect without a schema"):
        ms.create_queue("jobs", schema_mode="warn", max_attempts=2)
    assert list(ms.queues()) == []


def test_a_schema_is_deleted(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    assert orders.delete_schema()
    assert not orders.delete_schema()
    assert orders.schema() is None
    orders.append("anything")


def test_the_schema_is_no_metadata(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    assert dict(orders.metadata) == {}
    with pytest.raises(InvalidInput, match="set_schema"):
        orders.metadata[SCHEMA_KEY] = []
    with pytest.raises(KeyError):
        del orders.metadata[SCHEMA_KEY]
    orders.metadata["team"] = "blue"
    with pytest.raises(InvalidInput):
        orders.append(BAD)


def test_every_partition_has_the_schema(ms: Millstream) -> None:
    orders = ms.log("orders", partitions=2, schema=Order)
    for number in range(2):
        with pytest.raises(InvalidInput):
            orders.append(BAD, partition=number)
    orders.append(GOOD, partition=0)
    ms.log("orders", partitions=2, schema=WiderOrder)
    assert [each.start for each in orders.partition(0).schemas()] == [0, 1]
    assert [each.start for each in orders.partition(1).schemas()] == [0, 0]
    orders.add_partitions(3)
    with pytest.raises(InvalidInput):
        orders.append(BAD, partition=2)
    assert [each.version for each in orders.partition(2).schemas()] == [2]
    assert list(orders.read(type=WiderOrder)) == [WiderOrder(1, "a")]
    with pytest.raises(InvalidInput, match="is a partition"):
        orders.partition(0).set_schema(Order)
    assert orders.delete_schema()
    orders.append("anything", partition=2)


@pytest.mark.parametrize("name", ["queue:mail", "room:lobby"])
def test_logs_of_other_parts_take_no_schema(ms: Millstream, name: str) -> None:
    with pytest.raises(InvalidInput, match="belongs to a queue, a room or the store"):
        ms.log(name, schema=Order)


def test_a_queue_checks_what_is_put(ms: Millstream) -> None:
    mail = ms.queue("mail", schema=Order)
    for put in (
        lambda: mail.put(BAD),
        lambda: mail.put(BAD, delay=60),
        lambda: mail.put_many([BAD]),
    ):
        with pytest.raises(InvalidInput, match=r"at \$\.id"):
            put()
    mail.put(GOOD)
    mail.put(GOOD, delay=60)
    (message,) = mail.claim(5)
    assert message.json(type=Order) == Order(1, "a")
    with pytest.raises(InvalidInput, match="cannot become"):
        ms.queue("mail", schema=OtherOrder)
    version = mail.schema()
    assert version is not None
    assert version.version == 1
    assert [each.version for each in mail.schemas()] == [1]
    assert mail.check_schema(WiderOrder) == []
    with pytest.raises(InvalidInput) as refused:
        mail.set_schema(OtherOrder)
    assert refused.value.conflicts == mail.check_schema(OtherOrder) != []
    assert mail.delete_schema()
    assert mail.check_schema(OtherOrder) == []
    mail.put("anything")


def test_a_queue_must_exist(ms: Millstream) -> None:
    with pytest.raises(millstream.MillstreamError, match="no queue 'mail'"):
        ms.queue("mail").set_schema(Order)


def test_a_copy_has_the_schema_and_its_owner_sets_it(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as first, millstream.open(tmp_path / "b.db") as second:
        orders = first.log("orders", schema=Order)
        orders.append(GOOD)
        second.sync(first)
        copy = second.log("orders")
        assert copy.schemas() == orders.schemas()
        with pytest.raises(NotOwner):
            copy.set_schema(WiderOrder)
        copy.take_over()
        with pytest.raises(InvalidInput):
            copy.append(BAD)
        copy.set_schema(WiderOrder)
        second.sync(first)
        assert [each.version for each in orders.schemas()] == [1, 2]


def test_values_are_read_typed(ms: Millstream) -> None:
    orders = ms.log("orders", schema=Order)
    orders.append_many([Order(1), Order(2, "b")])
    assert list(orders.read(1, type=Order)) == [Order(2, "b")]
    assert orders.get(0, type=Order) == Order(1)
    assert orders.get(9, type=Order) is None
    assert next(orders.tail(-1, type=Order)) == Order(2, "b")
    assert next(orders.read(type=dict)) == {"id": 1, "note": ""}
    with pytest.raises(InvalidInput, match="cannot be read as"):
        list(orders.read(type=list[int] | set[int]))


def test_old_versions_without_records_make_room(ms: Millstream) -> None:
    """A log whose schema changes for years can still change, once its old records are gone."""
    orders = ms.log("orders")
    fields = {f"field_{n:04}": {"type": "string", "description": "x" * 20} for n in range(700)}
    document: dict[str, Any] = {"type": "object", "properties": fields}

    def change_often() -> None:
        for number in range(5):
            fields[f"more_{number}"] = {"type": "string"}
            orders.append(dict.fromkeys(fields, "x"))
            orders.set_schema(document)

    with pytest.raises(TooLarge, match="truncate the records of its oldest version"):
        change_often()
    before = [each.version for each in orders.schemas()]
    orders.truncate(before=orders.end_offset() - 1)
    newest = orders.set_schema(document)
    assert newest.version == before[-1] + 1
    assert orders.schemas()[0].version > 1


def test_forks_and_merges_keep_the_schema(ms: Millstream) -> None:
    log = ms.log("orders", schema=Order)
    log.append({"id": 1})
    fork = log.fork("trial")
    with pytest.raises(InvalidInput, match=r"\$\.id"):
        fork.append({"id": "x"})
    fork.set_schema(WiderOrder)
    fork.append({"id": 2, "note": "late"})
    assert len(log.schemas()) == 1
    fork.merge()
    assert [version.version for version in log.schemas()] == [1, 2]
    assert [record.json() for record in log.read()] == [{"id": 1}, {"id": 2, "note": "late"}]


def test_a_rebase_checks_records_against_a_schema_that_was_set_since(ms: Millstream) -> None:
    log = ms.log("orders", schema=Order)
    log.append({"id": 1})
    fork = log.fork("trial")
    fork.append({"id": 2})
    log.set_schema(OtherOrder, force=True)
    log.append({"id": "x", "total": 1})
    with pytest.raises(InvalidInput, match=r"schema of log 'orders' .*expected text at \$\.id"):
        fork.merge(on_fork="rebase")
    assert len(list(log.read())) == 2
    log.set_schema(WiderOrder, force=True)
    fork.merge(on_fork="rebase")
    assert [record.json()["id"] for record in log.read()] == [1, "x", 2]


def test_consumers_yield_typed_values_where_a_type_is_asked(ms: Millstream) -> None:
    ms.log("orders", schema=Order).append_many([{"id": 1}, {"id": 2}])
    with ms.log("orders").consumer("reader", timeout=0) as consumer:
        assert [record.json(type=Order).id for record in consumer] == [1, 2]
    assert [record.json(type=Order).id for record in ms.log("orders").cursor("c").take(5)] == [1, 2]
    queue = ms.queue("mail", schema=Order)
    queue.put_many([{"id": 3}, {"id": 4}])
    with queue.consumer(timeout=0, auto_ack=True) as messages:
        assert [message.json(type=Order).id for message in messages] == [3, 4]
