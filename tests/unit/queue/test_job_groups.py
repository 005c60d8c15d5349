"""Groups of jobs: each member counts once, and the commit of the last member puts the callback."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.format.packing import pack_single
from millstream.queue.commands import EndMember

pytestmark = pytest.mark.embedded


def end(ms: Millstream, member: int, size: int, **options: Any) -> bool:
    def pack(value: bytes) -> Any:
        return pack_single(value, key=None, headers=None, timestamp=None, limits=ms.session.limits)

    command = EndMember(
        "group", pack(b"%d" % member), member, size, following=pack(b"all"), **options
    )
    return ms.session.execute(command)


@pytest.fixture
def ms() -> Any:
    with millstream.open(":memory:") as ms:
        ms.log("group").metadata["made"] = True
        ms.create_queue("after")
        yield ms


def put(ms: Millstream) -> list[bytes | None]:
    return [message.value for message in ms.queue("after").peek(9)]


def test_the_last_member_puts_the_message_that_follows(ms: Millstream) -> None:
    assert end(ms, 2, 3, queue="after")
    assert end(ms, 0, 3, queue="after")
    assert put(ms) == []
    assert end(ms, 1, 3, queue="after")
    assert put(ms) == [b"all"]
    assert [record.value for record in ms.log("group")] == [b"2", b"0", b"1"]


def test_a_member_that_ends_again_changes_nothing(ms: Millstream) -> None:
    assert end(ms, 0, 2, queue="after")
    assert not end(ms, 0, 2, queue="after", has_failed=True)
    assert end(ms, 1, 2, queue="after")
    assert not end(ms, 1, 2, queue="after")  # also the last one, once the group is complete
    assert put(ms) == [b"all"]
    assert len(ms.log("group")) == 2


@pytest.mark.parametrize("follows_failures", [False, True])
def test_a_failed_member_keeps_the_message_back_unless_it_follows_failures(
    ms: Millstream, follows_failures: bool
) -> None:
    end(ms, 0, 2, queue="after", has_failed=True, follows_failures=follows_failures)
    end(ms, 1, 2, queue="after", follows_failures=follows_failures)
    assert put(ms) == ([b"all"] if follows_failures else [])


def test_members_that_end_at_the_same_time_do_not_conflict(ms: Millstream) -> None:
    size = 64
    members = 3 * list(range(size))
    random.Random(1).shuffle(members)
    with ThreadPoolExecutor(8) as threads:
        counted = list(threads.map(lambda member: end(ms, member, size, queue="after"), members))
    assert counted.count(True) == size
    assert sorted(int(record.value or b"") for record in ms.log("group")) == list(range(size))
    assert put(ms) == [b"all"]


def test_a_deleted_log_takes_no_outcome(ms: Millstream) -> None:
    ms.log("group").delete()
    assert not end(ms, 0, 1, queue="after")
    assert [log.name for log in ms.logs() if log.name == "group"] == []
    assert put(ms) == []


def test_a_missing_queue_undoes_the_end(ms: Millstream) -> None:
    with pytest.raises(NotFound, match="there is no queue 'nowhere'"):
        end(ms, 0, 1, queue="nowhere")
    assert len(ms.log("group")) == 0
    assert end(ms, 0, 1, queue="after")


@pytest.mark.parametrize(("member", "size"), [(1, 1), (0, 0), (0, 10_001), (10_000, 10_000)])
def test_a_member_outside_of_its_group_is_refused(ms: Millstream, member: int, size: int) -> None:
    with pytest.raises(InvalidInput, match="a group has up to 10,000 members, numbered from 0"):
        end(ms, member, size)


@pytest.mark.parametrize("entry", ["ff", {"members": "-1"}, {"members": "g"}, {"members": ""}])
def test_metadata_of_a_user_is_refused(ms: Millstream, entry: Any) -> None:
    ms.log("group").metadata["ended"] = entry
    with pytest.raises(InvalidInput, match="'ended' of log 'group' is not the store's own"):
        end(ms, 0, 1)
