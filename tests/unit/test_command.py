"""Commands are declared once: every trait is there, and what is not declared is refused."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import millstream
from millstream.command import (
    Command,
    Operation,
    Procedure,
    Read,
    Signed,
    Sql,
    Traits,
    Transact,
    is_repeatable,
    on_log,
    tidies,
    waits,
)
from millstream.embedded.loop.session import WAITING
from millstream.embedded.rules import COMMANDS, SINGLE_COMMITS, put_for_later
from millstream.errors import CannotOpen, Denied, InvalidInput, InvalidName, OutcomeUnknown
from millstream.log.commands import Append, GetBounds, WaitForOffset
from millstream.queue.commands import CancelMessage, ClaimMessages, PutMessages
from millstream.record import Producer
from millstream.remote.repeats import RepeatFate, fate_of, unreachable
from millstream.replica.sync.follow import WaitForChange
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.auth.permission import parse_permission
from millstream.server.bounds import check_command
from millstream.server.core import Core
from millstream.wire import commands as wire
from tests.unit.samples import SINGLE, required
from tests.unit.server.guarded import guarded, in_loop

BASES = {Operation, Procedure, Read}


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def every_command() -> list[type[Command[Any]]]:
    """Every command of the product, wherever it is declared."""
    for module in pkgutil.walk_packages(millstream.__path__, "millstream."):
        if module.name.split(".")[1] in ("log", "queue", "rooms", "replica", "store", "command"):
            import_module(module.name)
    found = set(subclasses(Command)) - BASES
    return [one for one in found if one.__module__.startswith("millstream.")]


class CompactLog(Procedure[int], frozen=True):
    """A new command that writes, whose author has said no more than must be said."""

    traits = Traits(needs=(on_log("admin"),))

    log: str
    level: int = 0
    change: Signed = 0


def who(*texts: str) -> Principal:
    return Principal("somebody", tuple(parse_permission(text) for text in texts))


def test_a_plain_operation_neither_puts_for_later_nor_leaves_bytes_to_delete() -> None:
    commands = [required(kind) for kind in COMMANDS if kind is not Transact]
    plain = [command for command in commands if type(command) in SINGLE_COMMITS]
    assert any(isinstance(command, Append) for command in plain)
    for command in plain:
        assert isinstance(command, Operation)
        assert not tidies(command)
        assert not put_for_later(command)
    assert PutMessages not in SINGLE_COMMITS
    assert Transact not in SINGLE_COMMITS


def test_every_command_has_every_trait_and_a_rule() -> None:
    assert set(COMMANDS) == set(every_command())
    for kind in COMMANDS:
        assert isinstance(kind.__dict__["traits"], Traits)
        assert len(BASES & set(kind.__mro__)) == 1, f"{kind.__name__} runs nowhere, or everywhere"
        assert kind.writes is not issubclass(kind, Read)
        assert kind.traits.needs != (), f"{kind.__name__}: say 'nothing' if it needs nothing"


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_the_fields_that_a_command_declares_are_there(kind: type[Command[Any]]) -> None:
    traits = kind.traits
    named = [*traits.names, traits.page, traits.bytes]
    if traits.waits is not None:
        named += [traits.waits.field, *traits.waits.once]
    if not isinstance(traits.needs, str):
        named += [right.field.split(".")[0] for right in traits.needs]
    assert {name for name in named if name} <= set(kind.__struct_fields__)
    assert issubclass(kind, Operation | CancelMessage) or not traits.is_step, (
        "a step is an operation"
    )
    assert not (traits.repeat == "sequence" and "producer" not in kind.__struct_fields__)


def test_a_name_that_a_right_is_about_is_never_left_unchecked() -> None:
    for kind in wire.OFFERED:
        if {"log", "queue", "room"} & set(kind.__struct_fields__):
            assert not isinstance(kind.traits.needs, str), kind.__name__


def test_a_command_without_traits_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match=r"Undeclared declares no traits.*needs="):

        class Undeclared(Read[int], frozen=True):
            log: str


def test_traits_are_not_inherited() -> None:
    with pytest.raises(TypeError, match="declares no traits"):

        class GetMoreBounds(GetBounds, frozen=True):
            more: bool


def test_rights_must_be_declared() -> None:
    with pytest.raises(TypeError, match="needs"):
        Traits()  # type: ignore[call-arg]


def test_a_new_command_that_writes_is_refused_to_readers() -> None:
    command = CompactLog("orders")
    for less in ("log:read:orders", "log:write:orders", "queue:admin", "log:admin:other"):
        with pytest.raises(Denied, match="log:admin:orders"):
            who(less).check(command)
    who("log:admin:orders").check(command)


def test_a_new_command_that_writes_is_not_repeated_and_never_falsely_failed() -> None:
    command = CompactLog("orders")
    assert not is_repeatable(command)
    assert fate_of(command) is RepeatFate.TELL
    away = CannotOpen("nobody there")
    assert isinstance(unreachable(command, sent=True, why=away), OutcomeUnknown)
    assert isinstance(unreachable(command, sent=False, why=away), CannotOpen)


def test_a_new_commands_fields_are_checked() -> None:
    check_command(CompactLog("orders", change=-1))
    with pytest.raises(InvalidName):
        check_command(CompactLog(""))
    for level in (-1, 2**63):
        with pytest.raises(InvalidInput, match="level"):
            check_command(CompactLog("orders", level))
    with pytest.raises(InvalidInput, match="change"):
        check_command(CompactLog("orders", change=2**64))


def test_a_command_without_a_rule_is_refused_everywhere() -> None:
    with pytest.raises(InvalidInput, match="CompactLog"):
        wire.encode_command(CompactLog("orders"))

    async def test() -> None:
        async with guarded() as at:
            with pytest.raises(InvalidInput, match="CompactLog has no rule"):
                await at.core.execute(ANYONE_HERE, CompactLog("orders"))
            with pytest.raises(InvalidInput, match="CompactLog has no rule"):
                at.ms.session.execute(CompactLog("orders"))

    in_loop(test)


def test_what_is_internal_is_refused_to_everybody() -> None:
    internal = [kind for kind in COMMANDS if kind.traits.needs == "internal"]
    assert {kind.__name__ for kind in internal} == {
        "Sql",
        "QuerySql",
        "ClaimRouted",
        "PublishParts",
        "FindPublished",
        "LookIntoRoom",
        "ReadRetained",
        "Broadcast",
        "JoinRoom",
        "SetPresence",
        "LeaveRooms",
        "SettlePresence",
        "TakeInstance",
        "RenewInstance",
        "ResumeInRoom",
        "FreeInstance",
        "NoteWatermarks",
        "SweepRooms",
    }
    everything = who(
        "*:admin", "store:admin", "log:admin", "queue:admin", "room:admin", "replica:admin"
    )
    for kind in internal:
        for command in (required(kind), Transact([required(kind)])):
            with pytest.raises(Denied, match="no client may"):
                everything.check(command)
        assert kind not in wire.OFFERED
    with pytest.raises(InvalidInput, match=r"tx\.sql"):
        wire.encode_command(Transact([Sql("SELECT 1", [])]))


def test_a_listing_that_the_server_cannot_sort_out_is_refused() -> None:
    class ListSecrets(Read[list[str]], frozen=True):
        traits = Traits(needs="seen")

    async def test(core: Core) -> None:
        with pytest.raises(Denied, match="ListSecrets"):
            await core.execute(ANYONE_HERE, ListSecrets())

    async def run() -> None:
        async with guarded() as at:
            await test(at.core)

    in_loop(run)


def test_waits_are_known_to_everybody_alike() -> None:
    assert {kind for kind in COMMANDS if kind.traits.waits is not None} == set(WAITING)
    claim = ClaimMessages("q", 1, None, "", None, [])
    for command, expected in (
        (WaitForOffset("a", 1, None), True),
        (WaitForOffset("a", 1, 5), True),
        (WaitForOffset("a", 1, 0), False),
        (WaitForChange(1, 5), True),
        (WaitForChange(1, 0), False),
        (claim, False),
        (ClaimMessages("q", 1, None, "", 5, []), True),
        (GetBounds("a"), False),
    ):
        assert waits(command) is expected, command


def test_a_sequence_makes_an_append_repeatable() -> None:
    assert not is_repeatable(Append("a", SINGLE))
    assert is_repeatable(Append("a", SINGLE, producer=Producer("p", 0)))
