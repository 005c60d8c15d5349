"""Deletion: the name is free at once, and what is made under it again is another log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from millstream import Log, Millstream, Producer
from millstream.errors import Fenced, NotFound, OutOfSequence
from millstream.log.rules import retention
from millstream.testing import Probe

Reopen = Callable[..., Millstream]


@pytest.fixture
def log(ms: Millstream) -> Log:
    log = ms.log("x")
    log.append_many([b"0", b"1", b"2"])
    log.append(b"3", producer=Producer("p", 5, epoch=3))
    log.metadata["k"] = 1
    log.retain(count=100)
    log.cursor("c").ack_up_to(2)
    return log


def test_it_answers_whether_there_was_one(log: Log) -> None:
    assert log.delete()
    assert not log.delete()


@pytest.mark.parametrize("fold", [False, True])
def test_nothing_of_it_is_left(ms: Millstream, log: Log, fold: bool) -> None:
    if fold:
        ms.fold()
    log.delete()
    if fold:
        ms.fold()

    assert (log.info(), list(log.read()), log.cursors(), dict(log.metadata)) == (None, [], [], {})
    assert not log.retention()
    assert list(ms.logs()) == []


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_recreated_name_is_a_new_log(
    ms: Millstream, log: Log, reopen: Reopen, fold: bool, again: bool
) -> None:
    if fold:
        ms.fold()
    log.delete()
    assert log.append(b"new") == 0
    if again:
        log = reopen().log("x")

    assert [(record.offset, record.value) for record in log.read()] == [(0, b"new")]
    assert log.cursors() == []
    assert dict(log.metadata) == {}
    assert not log.retention()
    assert log.cursor("c").floor() == 0


def test_old_handles_of_cursors_are_told(log: Log) -> None:
    cursor = log.cursor("c")
    log.delete()
    with pytest.raises(NotFound):
        cursor.ack(0)
    log.append_many([b"a", b"b"])

    with pytest.raises(NotFound):
        cursor.ack(0)
    with pytest.raises(NotFound):
        cursor.info()
    assert not cursor.delete()


def test_producers_are_forgotten_with_it(log: Log) -> None:
    with pytest.raises(OutOfSequence):
        log.append(b"x", producer=Producer("p", 9, epoch=3))
    with pytest.raises(Fenced):
        log.append(b"x", producer=Producer("p", 9, epoch=2))
    log.delete()

    assert log.append(b"x", producer=Producer("p", 9, epoch=0)) == 0


def test_other_logs_do_not_notice(ms: Millstream, log: Log) -> None:
    other = ms.log("y")
    other.append(b"stays")
    other.cursor("c").ack_up_to(1)
    log.delete()
    ms.fold()

    assert [record.value for record in other.read()] == [b"stays"]
    assert other.cursor("c").floor() == 1
    assert [info.name for info in ms.logs()] == ["y"]


def test_it_lasts_over_and_over(reopen: Reopen) -> None:
    for n in range(5):
        ms = reopen()
        log = ms.log("x")
        log.delete()
        for _ in range(n + 1):
            log.append(str(n))
        if n % 2:
            ms.fold()

    assert [record.text for record in reopen().log("x").read()] == ["4"] * 5


def test_no_row_of_it_is_left_on_disk(ms: Millstream, log: Log, tmp_path: Path) -> None:
    ms.fold()
    log.append(b"large" * 1_000)
    log.append_many([b"large" * 1_000] * 2)
    log.delete()
    while retention.tend(Probe(ms).store, 1):
        pass
    ms.log("other").append(b"so that there is a newer commit")
    ms.fold()
    ms.close()

    with closing(apsw.Connection(str(tmp_path / "store.db"))) as file:
        left = [key for (key,) in file.execute("SELECT key FROM millstream_record")]
        payloads = file.execute("SELECT count(*) FROM millstream_payload").fetchone()
        blocks = file.execute("SELECT count(*) FROM millstream_block").fetchone()
    one = (1).to_bytes(8, "big")
    assert [key.hex() for key in left if key[2:10] == one] == []
    assert (payloads, blocks) == ((0,), (0,))


def test_a_cursor_is_deleted_alone(log: Log) -> None:
    log.cursor("d")
    assert log.delete_cursor("c")
    assert not log.delete_cursor("c")
    assert not log.delete_cursor("never")

    assert [info.name for info in log.cursors()] == ["d"]
    assert log.cursor("c").floor() == 0
