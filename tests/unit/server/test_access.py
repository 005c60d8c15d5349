"""Permissions: what each command needs, and what each text allows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.command import Fold, Stats, Transact
from millstream.errors import InvalidInput
from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.log import commands as logs
from millstream.queue import commands as queues
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.spec import QueueSpec
from millstream.queue.schema_commands import DeleteQueueSchema, GetQueueSchemas, SetQueueSchema
from millstream.queue.service.assignment import Assignment, AssignMessages
from millstream.queue.service.bulk_reads import ListAttempts, ListPositions, ListUnrouted
from millstream.record import Retention
from millstream.replica import commands as copies
from millstream.replica.chain import ZERO, Mark
from millstream.replica.commands import AdoptParcel, Parcel, SendBlocks
from millstream.rooms import commands as rooms
from millstream.rooms.settings import RoomSettings
from millstream.schema.model import IntegerType, SchemaField, StructType
from millstream.server.auth.access import ANYONE_HERE, Denied, Principal, copyable, visible
from millstream.server.auth.need import Need, needs_of
from millstream.server.auth.permission import (
    Permission,
    covers,
    matches,
    parse_permission,
    parse_permissions,
)
from millstream.wire import commands as wire
from tests.unit.server.guarded import guarded, in_loop

SCHEMA = StructType(fields=(SchemaField(name="id", type=IntegerType()),))
MARK = Mark(0, ZERO)
ONE = pack_single(b"x", key=None, headers=None, timestamp=None, limits=Limits())


def who(*texts: str) -> Principal:
    return Principal("somebody", tuple(parse_permission(text) for text in texts))


def may(principal: Principal, command: Any) -> bool:
    try:
        principal.check(command)
    except Denied:
        return False
    return True


TABLE: list[tuple[Any, str]] = [
    (logs.CreateLog("orders"), "log:write:orders"),
    (logs.CreatePartitions("orders", 4), "log:write:orders"),
    (logs.Append("orders", ONE), "log:write:orders"),
    (logs.Truncate("orders", 1), "log:admin:orders"),
    (logs.DeleteLog("orders"), "log:admin:orders"),
    (logs.SetMetadata("orders", "k", 1), "log:write:orders"),
    (logs.SetSchema("orders", SCHEMA), "log:write:orders"),
    (logs.SetSchema("orders", SCHEMA, "enforce", force=True), "log:admin:orders"),
    (logs.SetSchema("orders", SCHEMA, "warn"), "log:admin:orders"),
    (logs.DeleteSchema("orders"), "log:admin:orders"),
    (logs.GetSchemas("orders"), "log:read:orders"),
    (SetQueueSchema("mail", SCHEMA), "queue:admin:mail"),
    (DeleteQueueSchema("mail"), "queue:admin:mail"),
    (GetQueueSchemas("mail"), "queue:read:mail"),
    (logs.SetRetention("orders", Retention()), "log:admin:orders"),
    (logs.TakeLog("orders", "t"), "log:write:orders"),
    (logs.FreeLog("orders", "t"), "log:write:orders"),
    (logs.OpenCursor("orders", "c", 0, 1, True), "log:write:orders"),
    (logs.Acknowledge("orders", "c", []), "log:write:orders"),
    (logs.MoveCursor("orders", "c", 0), "log:write:orders"),
    (logs.DeleteCursor("orders", "c"), "log:write:orders"),
    (logs.GetBounds("orders"), "log:read:orders"),
    (logs.GetExtent("orders", 0), "log:read:orders"),
    (ListAttempts("mail", 1), "queue:read:mail"),
    (ListUnrouted("mail"), "queue:read:mail"),
    (logs.ReadBlocks("orders", 0, 1, 1), "log:read:orders"),
    (logs.FindOffset("orders", 0), "log:read:orders"),
    (logs.WaitForOffset("orders", 0, 0), "log:read:orders"),
    (logs.WaitForPartitions("orders", [0], 0), "log:read:orders"),
    (logs.DescribePartitions("orders"), "log:read:orders"),
    (logs.GetMetadata("orders"), "log:read:orders"),
    (logs.DescribeLog("orders"), "log:read:orders"),
    (logs.DescribeCursor("orders", "c"), "log:read:orders"),
    (logs.ListCursors("orders"), "log:read:orders"),
    (logs.EnforceRetention("orders"), "log:admin:orders"),
    (queues.SpecifyQueue("mail", QueueSpec()), "queue:admin:mail"),
    (queues.DeleteQueue("mail"), "queue:admin:mail"),
    (queues.PauseQueue("mail", True), "queue:admin:mail"),
    (queues.PurgeQueue("mail", "failed"), "queue:admin:mail"),
    (queues.RedriveClaims("mail", []), "queue:admin:mail"),
    (queues.ReplaceFailed("mail", 1, ONE), "queue:admin:mail"),
    (queues.FinishClaims("mail", [], "ack"), "queue:write:mail"),
    (queues.ReturnClaims("mail", []), "queue:write:mail"),
    (queues.RenewClaims("mail", []), "queue:write:mail"),
    (queues.PutMessages("mail", ONE), "queue:put:mail"),
    (queues.PutFresh("mail", ONE), "queue:put:mail"),
    (queues.PutReported("mail", ONE), "queue:put:mail"),
    (queues.CancelMessage("mail", 1), "queue:write:mail"),
    (queues.EndMember("orders", ONE, 0, 1), "log:write:orders"),
    (queues.FindByDedup("mail", "nightly"), "queue:read:mail"),
    (queues.CancelWaiting("mail", 1, 1), "queue:write:mail"),
    (queues.WaitForMessage("mail", 1, 0), "queue:read:mail"),
    (queues.WaitForCancels("mail", 0, 0), "queue:read:mail"),
    (queues.LimitGroup("mail", "acme", GroupLimit(2)), "queue:admin:mail"),
    (queues.ListGroupLimits("mail"), "queue:read:mail"),
    (queues.NoteProgress("mail", [], b""), "queue:write:mail"),
    (queues.FindMessages("mail", [1]), "queue:read:mail"),
    (queues.ClaimMessages("mail", 1, None, "c", None, []), "queue:write:mail"),
    (queues.PeekMessages("mail", "failed", 1), "queue:read:mail"),
    (queues.GetAttempts("mail", 1), "queue:read:mail"),
    (queues.FindMessage("mail", 1), "queue:read:mail"),
    (queues.ListRecords("mail"), "queue:read:mail"),
    (queues.DescribeQueue("mail"), "queue:read:mail"),
    (ListAttempts("mail", 1), "queue:read:mail"),
    (ListUnrouted("mail"), "queue:read:mail"),
    (ListPositions("mail"), "queue:read:mail"),
    (logs.Append("queue:mail", ONE), "queue:put:mail"),
    (logs.ReadBlocks("queue-later:mail", 0, 1, 1), "queue:read:mail"),
    (logs.Truncate("queue:mail", 1), "queue:admin:mail"),
    (rooms.SendToRoom("hall", []), "room:write:hall"),
    (rooms.SpecifyRoom("hall", RoomSettings()), "room:admin:hall"),
    (rooms.DeleteRoom("hall"), "room:admin:hall"),
    (rooms.DescribeRoom("hall"), "room:read:hall"),
    (rooms.GetRetained("hall"), "room:read:hall"),
    (rooms.GetPresence("hall"), "room:read:hall"),
    (rooms.FindHistory("hall", 5), "room:read:hall"),
    (rooms.MintTicket("hall", "ann"), "room:write:hall"),
    (rooms.MintBrowserTicket("orders", "log:read"), "log:read:orders"),
    (rooms.MintBrowserTicket("orders", "log:write"), "log:write:orders"),
    (rooms.MintBrowserTicket("mail", "queue:put"), "queue:put:mail"),
    (rooms.MintBrowserTicket("mail", "queue:read"), "queue:read:mail"),
    (rooms.MintBrowserTicket("mail", "queue:write"), "queue:write:mail"),
    (rooms.MintTicket("hall", "ann", "read"), "room:read:hall"),
    (logs.Append("room:hall", ONE), "room:write:hall"),
    (logs.ReadBlocks("room:hall", 0, 1, 1), "room:read:hall"),
    (logs.DeleteLog("room:hall"), "room:admin:hall"),
    (logs.HandOver("orders", "s"), "log:admin:orders"),
    (logs.TakeOver("orders"), "log:admin:orders"),
    (logs.MergeFork("orders"), "log:write:orders"),
    (logs.GetOwner("orders"), "log:read:orders"),
    (logs.GetParent("orders"), "log:read:orders"),
    (copies.SummarizeLog("orders"), "replica:read:orders"),
    (copies.ListUnsynced(), "store:read"),
    (copies.GetChain("orders", 0), "replica:read:orders"),
    (copies.DigestRange("orders", 0, 1), "replica:read:orders"),
    (copies.GetStampedMetadata("orders"), "replica:read:orders"),
    (SendBlocks("orders", 0, 1, 1), "replica:read:orders"),
    (copies.StartReplica("orders", MARK, "s", 0), "replica:write:orders"),
    (copies.AdoptOwner("orders", "s", 1), "replica:write:orders"),
    (copies.AdoptState("orders", 1), "replica:write:orders"),
    (copies.SetAside("orders", 0, 0), "replica:write:orders"),
    (AdoptParcel("orders", Parcel(0, b""), 0, 0), "replica:write:orders"),
    (rooms.ListInstances(), "store:read"),
    (rooms.RemoveInstance("one"), "store:admin"),
    (Stats(), "store:read"),
    (Fold(), "store:admin"),
]
LESS = {"admin": "write", "write": "read"}


@pytest.mark.parametrize(("command", "needed"), TABLE, ids=lambda one: str(one)[:40])
def test_a_command_needs_exactly_this_permission(command: Any, needed: str) -> None:
    noun, action, *pattern = needed.split(":")
    assert may(who(needed), command)
    assert may(who(":".join([noun, "admin", *pattern])), command)
    assert may(who(f"*:{action}"), command)
    assert not may(Principal("nobody", ()), command)
    assert not may(
        who(*(f"{other}:admin" for other in {"log", "queue", "room", "replica", "store"} - {noun})),
        command,
    )
    if action in LESS:
        assert not may(who(":".join([noun, LESS[action], *pattern])), command)
    if pattern:
        assert not may(who(f"{noun}:admin:{pattern[0]}x", f"{noun}:admin:x*"), command)


def test_to_put_is_neither_to_read_nor_to_claim() -> None:
    browser = who("queue:put:mail")
    assert may(browser, queues.PutMessages("mail", ONE))
    assert may(browser, logs.Append("queue:mail", ONE))
    for denied in (
        queues.PutMessages("other", ONE),
        queues.FinishClaims("mail", [], "ack"),
        queues.DescribeQueue("mail"),
        queues.PauseQueue("mail", True),
        logs.ReadBlocks("queue:mail", 0, 1, 1),
        logs.SetMetadata("queue:mail", "k", 1),
        logs.Append("queue-later:mail", ONE),
        logs.Append("mail", ONE),
    ):
        assert not may(browser, denied)
    assert not may(who("queue:read:mail"), queues.PutMessages("mail", ONE))
    with pytest.raises(InvalidInput, match="put is an action on queues"):
        who("log:put:orders")


def test_assigning_needs_every_queue_and_every_log_that_it_names() -> None:
    command = AssignMessages([Assignment("mail", "orders", 0, 1, [])])
    assert may(who("queue:write:mail", "log:read:orders"), command)
    assert not may(who("queue:write:mail"), command)
    assert not may(who("queue:read:mail", "log:admin:orders"), command)
    other = AssignMessages([*command.assignments, Assignment("post", "orders", 0, 1, [])])
    assert not may(who("queue:write:mail", "log:read:orders"), other)


def test_the_table_names_every_command_that_can_be_sent() -> None:
    sent = {kind.__name__ for kind in wire.OFFERED}
    known = {type(command).__name__ for command, _ in TABLE}
    free = {
        "ListLogs",
        "ListQueues",
        "ListRooms",
        "AssignMessages",
        "SummarizeLogs",
        "SummarizeNamed",
        "GetStoreId",
        "WaitForChange",
    }
    assert sent - known == {"Transact", "AssignMessages", "ForkLog"} | free


def test_the_end_of_a_member_needs_its_log_and_the_queue_of_the_callback() -> None:
    command = queues.EndMember("orders", ONE, 0, 1, queue="mail", following=ONE)
    assert may(who("log:write:orders", "queue:put:mail"), command)
    assert not may(who("log:write:orders"), command)
    assert not may(who("queue:admin:mail"), command)


def test_to_assign_messages_needs_the_queue_and_the_log() -> None:
    command = AssignMessages([Assignment("mail", "orders", 0, 1, [(0, 1)])])
    assert may(who("queue:write:mail", "log:read:orders"), command)
    assert not may(who("queue:write:mail", "log:read:other"), command)
    assert not may(who("queue:read:mail", "log:admin:orders"), command)
    assert not may(who("queue:admin:other", "log:admin:orders"), command)


def test_a_listing_of_copies_shows_what_may_be_copied() -> None:
    names = ["a", "b", "queue:b", "millstream:tokens"]
    assert copyable(who("replica:read:b"), names) == ["b"]
    assert copyable(who("replica:read"), names) == ["a", "b"]
    assert copyable(who("replica:read", "queue:read:b"), names) == ["a", "b", "queue:b"]
    assert copyable(who("log:admin", "queue:admin"), names) == []


def test_a_fork_needs_the_right_to_delete_it() -> None:
    named, unnamed = logs.ForkLog("orders", "other"), logs.ForkLog("orders")
    assert not may(who("log:write:orders"), named)
    assert not may(who("log:write:orders", "log:write:other"), named)
    assert may(who("log:write:orders", "log:admin:other"), named)
    assert not may(who("log:admin:other"), named)
    for less in ("log:admin:orders", "log:write", "log:admin:orders~fork-a*"):
        assert not may(who("log:write:orders", less), unnamed)
    for enough in ("log:admin:orders~fork-*", "log:admin:orders*", "log:admin"):
        assert may(who("log:write:orders", enough), unnamed)
    inbox = logs.ForkLog("queue:mail")
    assert may(who("queue:admin:mail*"), inbox)
    assert not may(who("queue:admin:mail"), inbox)
    long = logs.ForkLog("x" * 255)
    assert may(who("log:write", "log:admin:x*"), long)


def test_a_queues_own_log_is_copied_by_whoever_may_do_both() -> None:
    copy = copies.GetChain("queue:mail", 0)
    assert not may(who("replica:read"), copy)
    assert not may(who("queue:read:mail"), copy)
    assert may(who("replica:read", "queue:read:mail"), copy)
    assert not may(who("*:admin"), copies.GetChain("millstream:tokens", 0))


def test_a_transaction_needs_what_its_steps_need() -> None:
    both = Transact([logs.Append("a", ONE), queues.FinishClaims("b", [], "ack")])
    assert may(who("log:write:a", "queue:write:b"), both)
    assert not may(who("log:write:a"), both)
    assert not may(who("queue:write:b"), both)


def test_the_stores_own_logs_are_reached_by_an_explicit_store_admin_only() -> None:
    read = logs.GetMetadata("millstream:tokens")
    assert not may(ANYONE_HERE, read)
    assert not may(who("log:admin", "queue:admin", "*:admin", "log:admin:m*", "store:write"), read)
    assert may(who("store:admin"), read)


def test_a_queue_needs_its_sources_and_its_dead_letters() -> None:
    def specify(**spec: Any) -> queues.SpecifyQueue:
        return queues.SpecifyQueue("mail", QueueSpec(**spec))

    admin = "queue:admin:mail"
    assert not may(who(admin), specify(sources=("orders",)))
    assert may(who(admin, "log:read:orders"), specify(sources=("orders",)))
    assert not may(who(admin, "log:read:orders"), specify(sources=("orders*",)))
    assert may(who(admin, "log:read:ord*"), specify(sources=("orders*", "order?")))
    assert not may(who(admin, "log:read:dead"), specify(dead_letter="dead"))
    assert may(who(admin, "log:write:dead"), specify(dead_letter="dead"))
    assert not may(who(admin, "log:read"), specify(sources=("queue:other",)))
    assert may(who(admin, "queue:read:other"), specify(sources=("queue:other",)))
    assert not may(who(admin, "*:admin"), specify(sources=("millstream:tokens",)))
    assert not may(who(admin, "*:admin"), specify(dead_letter="millstream:tokens"))


def test_partitions_are_part_of_their_log() -> None:
    append, read = logs.Append("orders-partition-3", ONE), logs.GetBounds("orders-partition-3")
    assert may(who("log:write:orders"), append)
    assert may(who("log:write:ord*"), append)
    assert not may(who("log:read:orders"), append)
    assert not may(who("log:write:orders-partition-3"), append)
    assert not may(who("log:write:other"), append)
    assert may(who("log:read:orders"), read)
    assert not may(who("log:read:orders"), logs.GetBounds("orders-partition-x"))
    assert may(who("replica:read:orders"), copies.GetChain("orders-partition-0", 0))
    assert not may(ANYONE_HERE, logs.GetBounds("millstream:tokens-partition-0"))
    more = logs.CreatePartitions("orders", 4, grows=True)
    assert not may(who("log:write:orders"), more)
    assert may(who("log:admin:orders"), more)
    sources = queues.SpecifyQueue("mail", QueueSpec(sources=("orders-partition-*",)))
    assert may(who("queue:admin:mail", "log:read:orders"), sources)
    assert not may(who("queue:admin:mail", "log:read:order"), sources)
    every = queues.SpecifyQueue("mail", QueueSpec(sources=("*-partition-*",)))
    assert not may(who("queue:admin:mail", "log:read:orders"), every)
    assert may(who("queue:admin:mail", "log:read"), every)


@pytest.mark.parametrize(
    "text", ["log:write:orders*", "queue:admin:mail", "store:read", "*:admin", "log:read:a:b[1]?"]
)
def test_a_permission_is_printed_as_it_is_written(text: str) -> None:
    assert str(parse_permission(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "log",
        "log:",
        "log:own",
        "hall:read",
        "log:read:",
        "store:read:x",
        "log:read:queue:mail",
        "log:read:queue-later:*",
        "log:admin:millstream:tokens",
        "LOG:read",
        "log:read:a\nb",
        f"log:read:{'a' * 256}",
    ],
)
def test_what_is_no_permission_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_permission(text)


def test_a_token_has_one_to_a_hundred_permissions() -> None:
    with pytest.raises(InvalidInput):
        parse_permissions([])
    with pytest.raises(InvalidInput):
        parse_permissions(f"log:read:{n}" for n in range(101))
    assert len(parse_permissions(["log:read", "log:read"])) == 1


@pytest.mark.parametrize(
    ("held", "wanted", "is_part"),
    [
        ("log:write:orders*", "log:read:orders-eu", True),
        ("log:write:orders*", "log:admin:orders-eu", False),
        ("log:write:orders*", "log:write:order*", False),
        ("log:write:orders*", "queue:read:orders", False),
        ("*:write", "log:write:x*", True),
        ("*:write", "store:read", True),
        ("*:admin", "*:admin", True),
        ("*:admin", "store:admin", False),
        ("*:admin:a*", "*:read", False),
        ("*:admin:a*", "store:read", False),
        ("store:admin", "store:admin", True),
        ("log:read", "log:read:?", True),
        ("log:read:?*", "log:read", False),
    ],
)
def test_a_part_of_what_is_held(held: str, wanted: str, is_part: bool) -> None:
    assert who(held).grants([parse_permission(wanted)]) is is_part


# What a text says, written once more in the plainest way.

LETTERS = st.text("ab*?", max_size=6)
NAMES = st.text("ab*?:", max_size=6)
PERMISSIONS = st.builds(
    Permission,
    st.sampled_from(["log", "queue", "room", "store", "*"]),
    st.sampled_from(["read", "write", "admin"]),
    LETTERS,
)


def means(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return means(pattern[1:], name) or (bool(name) and means(pattern, name[1:]))
    return bool(name) and pattern[0] in ("?", name[0]) and means(pattern[1:], name[1:])


@given(LETTERS, NAMES)
def test_a_pattern_matches_what_it_means(pattern: str, name: str) -> None:
    assert matches(pattern, name) is means(pattern, name)


@given(LETTERS, LETTERS, st.lists(NAMES, max_size=20))
def test_a_pattern_covers_no_more_than_it_means(held: str, other: str, names: list[str]) -> None:
    if covers(held, other):
        for name in names:
            assert not means(other, name) or means(held, name)
    assert covers(held, held)
    assert covers("*", other)


@given(
    PERMISSIONS,
    st.sampled_from(["log", "queue", "room", "store"]),
    st.sampled_from(["read", "write", "admin"]),
    NAMES,
    st.booleans(),
)
def test_a_permission_never_allows_more_than_its_text_says(
    permission: Permission, noun: Any, action: Any, name: str, is_explicit: bool
) -> None:
    need = Need(noun, action, name, is_explicit=is_explicit)
    order = ["read", "write", "admin"]
    says = (
        (permission.noun == noun or (permission.noun == "*" and not is_explicit))
        and order.index(permission.action) >= order.index(action)
        and means(permission.pattern, name)
    )
    assert permission.allows(need) is says


@given(st.lists(PERMISSIONS, max_size=3), PERMISSIONS, st.lists(NAMES, max_size=10))
def test_a_granted_part_allows_nothing_that_the_whole_does_not(
    held: list[Permission], wanted: Permission, names: list[str]
) -> None:
    whole, part = Principal("whole", tuple(held)), Principal("part", (wanted,))
    if not whole.grants([wanted]):
        return
    needs = [Need("store", "read", ""), Need("store", "admin", "")]
    needs.append(Need("store", "admin", "", is_explicit=True))  # only admin is ever explicit
    for name in names:
        needs += [
            Need("log", "read", name),
            Need("log", "admin", name),
            Need("queue", "write", name),
        ]
    for need in needs:
        assert not part.allows(need) or whole.allows(need)


def test_a_pattern_of_many_stars_is_not_slow() -> None:
    assert not matches("*a" * 120, "a" * 119 + "b" * 136)
    assert not covers("*a" * 120 + "c", "*a" * 119 + "b")


def test_listings_show_only_what_one_may_read() -> None:
    async def test() -> None:
        async with guarded() as at:
            for name in ("hidden", "orders", "payments"):
                at.ms.log(name).append(b"x")
            at.ms.queue("mail", max_attempts=2).put(b"x")
            at.ms.queue("other", max_attempts=2)
            at.token("log:read", name="one")
            core = at.core

            async def names(principal: Principal, command: Any) -> list[str]:
                return [info.name for info in await core.execute(principal, command)]

            every = logs.ListLogs("", 1_000)
            assert await names(who("log:read:orders"), every) == ["orders"]
            assert await names(who("log:read:orders"), logs.ListLogs("", 1)) == ["orders"]
            assert await names(who("log:read:orders"), logs.ListLogs("orders", 1)) == []
            assert await names(who("queue:read:mail"), every) == ["queue:mail"]
            assert await names(who("store:admin"), every) == ["millstream:tokens"]
            assert "millstream:tokens" not in await names(ANYONE_HERE, every)
            assert await names(Principal("nobody", ()), every) == []
            assert await names(who("queue:read:m*"), queues.ListQueues("", 10)) == ["mail"]
            assert await names(who("queue:read"), queues.ListQueues("", 10)) == ["mail", "other"]
            assert visible(who("log:read"), []) == []

    in_loop(test)


def test_a_listing_goes_on_past_pages_of_which_nothing_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.server.core.LISTED_AT_ONCE", 3)

    async def test() -> None:
        async with guarded() as at:
            for number in range(20):
                at.ms.log(f"l{number:02}").append(b"x")
            found = await at.core.execute(who("log:read:l?9"), logs.ListLogs("", 2))
            assert [info.name for info in found] == ["l09", "l19"]
            first = await at.core.execute(who("log:read:l?9"), logs.ListLogs("", 1))
            assert [info.name for info in first] == ["l09"]

    in_loop(test)


def test_a_refusal_says_what_is_missing() -> None:
    with pytest.raises(Denied, match="log:write:orders") as found:
        who("log:read").check(logs.CreateLog("orders"))
    assert (found.value.noun, found.value.action, found.value.name) == ("log", "write", "orders")
    assert not needs_of(logs.ListLogs("", 1))


def test_one_permission_means_everything() -> None:
    everything = parse_permissions(["admin"])
    assert [str(permission) for permission in everything] == ["*:admin", "store:admin"]
    administrator = Principal("operator", everything)
    assert administrator.grants(parse_permissions(["*:admin", "store:admin", "queue:put:mail"]))
    assert may(administrator, logs.DeleteLog("orders"))
    assert may(administrator, logs.Truncate("millstream:tokens", 1))
    assert not may(who("*:admin"), logs.Truncate("millstream:tokens", 1))
    assert parse_permissions(["admin", "*:admin", "log:read"])[2:] == parse_permissions(
        ["log:read"]
    )
