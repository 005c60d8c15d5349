"""The embedded session: answers commands from a store in this process.

This module knows all parts: the entities, the rule of every command, and the upkeep.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from millstream import command as base
from millstream.clock import Clock
from millstream.command import Command, Operation, Procedure, Read, tidies
from millstream.embedded.unsynced import list_unsynced
from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine, query_tables
from millstream.errors import CannotOpen, InvalidInput, MillstreamError
from millstream.format import keys
from millstream.format.joining import coalesce
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Head, Name
from millstream.log.model.metadata import MetadataState
from millstream.log.model.producer import ProducerState
from millstream.log.model.users import LogUsers
from millstream.log.reading import queries
from millstream.log.reading.links import LINKS
from millstream.log.rules import ancestry, publishing
from millstream.log.rules import cursor_operations as cursors
from millstream.log.rules import operations as rules
from millstream.log.rules.appending import Appending
from millstream.log.rules.guards import GuardedRule
from millstream.log.rules.retention import LogUpkeep, cursors_passed
from millstream.queue import commands as q
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.group import Group
from millstream.queue.model.roster import Roster
from millstream.queue.model.state import QueueState
from millstream.queue.rules import claims, endings, partitions, putting, replacement
from millstream.queue.rules import operations as queues
from millstream.queue.service import (
    assigning,
    consuming,
    finding,
    info,
    peeking,
    recording,
    scanning,
    thread_waiting,
)
from millstream.queue.service.keeping import QueueUpkeep, pin, queue_past, queues_passed
from millstream.queue.service.withdrawal import set_queues_back
from millstream.record import SqlResult
from millstream.replica import commands as r
from millstream.replica import metadata, owner
from millstream.replica.copies import adopting, copying, marks, parcel
from millstream.replica.forks import aside, fork
from millstream.replica.sync import following
from millstream.rooms import commands as m
from millstream.rooms import instances, presence, resuming, retaining, sending, sweeping, tickets
from millstream.rooms import operations as rooms
from millstream.rooms.instance_state import InstanceState
from millstream.rooms.instances import has_instances
from millstream.rooms.state import RoomState
from millstream.rooms.sweeping import RoomUpkeep
from millstream.store import forking
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.sleep import Waiting, wait
from millstream.store.state.entity import Kinds
from millstream.store.state.view import View
from millstream.store.store import Store

T = TypeVar("T")

STEPS_MAX = 10_000
"""The most commands in a transaction, because they run under the write lock."""


KINDS: Kinds = {
    keys.NAME: Name,
    keys.HEAD: Head,
    keys.METADATA: MetadataState,
    keys.CURSOR: CursorState,
    keys.PRODUCER: ProducerState,
    keys.QUEUE: QueueState,
    keys.BUCKET: Bucket,
    keys.GROUP: Group,
    keys.ROOM: RoomState,
    keys.INSTANCE: InstanceState,
    keys.ROSTER: Roster,
}
"""The entities of all parts."""

_APPEND = GuardedRule(rules.append, putting.APPEND_GUARD)

_OPERATIONS: dict[type[Operation[Any]], Callable[[WriteTransaction, Any], Any]] = {
    c.CreateLog: rules.create_log,
    c.CreatePartitions: partitions.create_partitions,
    c.Append: _APPEND,
    c.Truncate: rules.truncate,
    c.DeleteLog: GuardedRule(rules.delete_log, rooms.DELETE_GUARD),
    c.SetMetadata: rules.set_metadata,
    c.SetRetention: rules.set_retention,
    c.TakeLog: rules.take_log,
    c.FreeLog: rules.free_log,
    c.ForkLog: fork.fork_log,
    c.HandOver: owner.hand_over,
    c.TakeOver: owner.take_over,
    r.StartReplica: adopting.start_replica,
    r.AdoptOwner: adopting.adopt_owner,
    r.AdoptState: adopting.adopt_state,
    r.SetAside: lambda tx, command: aside.set_aside(tx, command, set_queues_back),
    publishing.PublishParts: publishing.publish_parts,
    c.OpenCursor: cursors.open_cursor,
    c.Acknowledge: cursors.acknowledge,
    c.MoveCursor: cursors.move_cursor,
    c.DeleteCursor: cursors.delete_cursor,
    q.SpecifyQueue: queues.specify,
    q.DeleteQueue: queues.delete,
    q.PauseQueue: queues.pause,
    q.PurgeQueue: queues.purge,
    q.RedriveClaims: queues.redrive,
    q.ReplaceFailed: replacement.replace_failed,
    q.PutMessages: putting.put,
    q.ClaimRouted: claims.claim,
    q.FinishClaims: endings.finish,
    q.ReturnClaims: endings.give_back,
    q.RenewClaims: endings.renew,
    m.SendToRoom: sending.send,
    m.Broadcast: lambda tx, command: sending.Broadcasting(command)(tx),
    m.SpecifyRoom: rooms.specify,
    m.DeleteRoom: rooms.delete,
    m.JoinRoom: presence.join,
    m.ResumeInRoom: resuming.resume,
    m.LeaveRooms: presence.leave,
    m.SettlePresence: presence.settle,
    m.RenewInstance: instances.renew_instance,
    m.FreeInstance: instances.free_instance,
    m.RemoveInstance: instances.remove_instance,
    m.NoteWatermarks: instances.note_watermarks,
}

_MADE: dict[type[Operation[Any]], Callable[[Any], Callable[[WriteTransaction], Any]]] = {
    c.Append: partial(Appending, _APPEND),
    q.PutMessages: putting.Putting,
    q.ClaimRouted: claims.Claiming,
    m.SendToRoom: sending.Sending,
    m.Broadcast: sending.Broadcasting,
}
"""Commands whose operation is an object: it declares an `order`, or runs together with others (`joins`)."""

_PLAIN = frozenset(
    kind
    for kind in _OPERATIONS
    if kind not in (q.PutMessages, q.ReplaceFailed) and not kind.traits.tidies
)
"""Operations before and after which nothing is to be done, whatever they say."""

_PROCEDURES: dict[type[Procedure[Any]], Callable[[Store, Any], Any]] = {
    c.EnforceRetention: queries.enforce_retention,
    c.MergeFork: lambda store, query: fork.merge_fork(store, query, queue_past),
    r.AdoptParcel: adopting.adopt_parcel,
    assigning.AssignMessages: assigning.assign_messages,
    q.ClaimMessages: thread_waiting.claim_messages,
    m.TakeInstance: instances.take_instance,
    m.SweepRooms: sweeping.sweep_rooms,
    m.MintTicket: tickets.mint_ticket,
    base.Fold: lambda store, _: store.fold(),
}


def _query_sql(store: Store, query: base.QuerySql) -> SqlResult:
    store.refresh()
    return query_tables(store.engine, query.statement, query.parameters)


_READS: dict[type[Read[Any]], Callable[[Store, Any], Any]] = {
    c.GetBounds: queries.get_bounds,
    c.GetExtent: queries.get_extent,
    c.ReadBlocks: queries.read_blocks,
    publishing.FindPublished: publishing.find_published,
    r.GetStoreId: copying.get_store_id,
    r.ListUnsynced: list_unsynced,
    r.SummarizeLogs: copying.summarize_logs,
    r.SummarizeLog: copying.summarize_log,
    r.GetChain: copying.get_chain,
    r.DigestRange: copying.digest_range,
    r.SummarizeNamed: copying.summarize_named,
    r.SendBlocks: parcel.send_blocks,
    scanning.ListAttempts: scanning.list_attempts,
    scanning.ListUnrouted: scanning.list_unrouted,
    scanning.ListPositions: scanning.list_positions,
    q.PeekMessages: peeking.peek_messages,
    q.GetAttempts: consuming.get_attempts,
    q.FindMessage: finding.find_message,
    q.ListRecords: recording.list_records,
    q.DescribeQueue: info.describe_queue,
    q.ListQueues: info.list_queues,
    m.GetRetained: retaining.get_retained,
    m.ReadRetained: retaining.read_retained,
    m.GetPresence: presence.get_presence,
    m.LookIntoRoom: rooms.look_into_room,
    base.Stats: lambda store, _: store.stats(),
    base.QuerySql: _query_sql,
}

_VIEWS: dict[type[Read[Any]], Callable[[View, Any], Any]] = {
    c.GetMetadata: queries.get_metadata,
    c.DescribeLog: queries.describe_log,
    c.DescribePartitions: queries.describe_partitions,
    c.ListLogs: queries.list_logs,
    c.DescribeCursor: queries.describe_cursor,
    c.ListCursors: queries.list_cursors,
    c.GetOwner: owner.get_owner,
    c.GetParent: fork.get_parent,
    r.GetStampedMetadata: metadata.stamped_metadata,
    m.DescribeRoom: rooms.describe_room,
    m.ListRooms: rooms.list_rooms,
    m.ListInstances: instances.list_instances,
}
"""Reads that a single look at the entities answers."""

WAITS: dict[type[Read[Any]], Callable[[Store, Any], Waiting[Any]]] = {
    c.WaitForOffset: queries.wait_for_offset,
    c.WaitForPartitions: queries.wait_for_partitions,
    following.WaitForChange: following.wait_for_change,
}
"""Reads that wait: a thread sleeps, a coroutine awaits."""

COMMANDS: tuple[type[Command[Any]], ...] = (
    base.Transact,
    base.Sql,
    *_OPERATIONS,
    *_PROCEDURES,
    *_READS,
    *_VIEWS,
    *WAITS,
)
"""All commands. A command outside this list has no rule and is refused everywhere."""


def _viewing(rule: Callable[[View, Any], T]) -> Callable[[Store, Any], T]:
    """Return the rule of a read that looks at the entities once."""
    return lambda store, command: store.view(lambda view: rule(view, command))


def _sleeping(rule: Callable[[Store, Any], Waiting[T]]) -> Callable[[Store, Any], T]:
    """Return the rule of a wait, for a thread that sleeps."""
    return lambda store, command: wait(store.watch, rule(store, command))


_ANSWERS: dict[type, Callable[[Store, Any], Any]] = {
    **_PROCEDURES,
    **_READS,
    **{kind: _viewing(rule) for kind, rule in _VIEWS.items()},
    **{kind: _sleeping(rule) for kind, rule in WAITS.items()},
}


def open_store(
    engine: Engine, *, limits: Limits | None = None, clock: Clock | None = None
) -> Store:
    """Open a store with all parts over an engine."""
    store = Store(
        engine,
        KINDS,
        limits=limits,
        clock=clock,
        upkeep=(LogUpkeep(), QueueUpkeep(), RoomUpkeep()),
        parts=(
            LogUsers(pins=(pin, ancestry.pin, marks.pin), readers=(cursors_passed, queues_passed)),
        ),
        join_rows=coalesce,
        links=LINKS,
    )
    if _may_have_ghosts(store):
        store.start_keeper()
    return store


def _may_have_ghosts(store: Store) -> bool:
    """Return whether a killed server may have left users in rooms, which the keeper must remove.

    A look at an object store costs requests: there, a writer or a listener starts the keeper.
    """
    if "paced" in store.engine.abilities:
        return False
    try:
        return store.view(has_instances)
    except MillstreamError:
        return True  # the upkeep reports the damage


def open_file(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> Store:
    """Open the store at a place, such as a file; the options are those of `open_engine`.

    Every surface opens stores by this function.
    """

    def make_engine() -> Engine:
        engine = open_engine(path, limits=limits, clock=clock, **options)
        try:
            _refuse_member(engine)
        except BaseException:
            engine.close()
            raise
        return engine

    return open_over(make_engine, limits=limits, clock=clock)


def _refuse_member(engine: Engine) -> None:
    """Refuse to write the file of a node of a cluster: the nodes would differ afterwards."""
    if engine.read_only or "exchange" not in engine.abilities:
        return
    with engine.read() as snapshot:
        position = snapshot.get(keys.CLUSTER_KEY)
    if position is not None:
        raise CannotOpen(
            f"{engine.place} belongs to a node of a cluster, and only the cluster writes it: ask the "
            "node by its address, or open the file to read: mode='r'",
            path=engine.place,
        )


def open_over(
    make_engine: Callable[[], Engine], *, limits: Limits | None = None, clock: Clock | None = None
) -> Store:
    """Open a store over a new engine. No process fork may happen in between, and no engine is
    leaked.
    """
    with forking.opening:
        engine = make_engine()
        try:
            return open_store(engine, limits=limits, clock=clock)
        except BaseException:
            engine.close()
            raise


def operation(command: Operation[T]) -> Callable[[WriteTransaction], T]:
    """Return the function that the transactor runs for an operation."""
    kind = type(command)
    make = _MADE.get(kind)
    if make is not None:
        return make(command)
    return _ruled(_transact if kind is base.Transact else _rule(kind), command)


def _ruled(rule: Callable[[WriteTransaction, Any], T], command: Any) -> Callable[..., T]:
    return lambda tx: rule(tx, command)


def is_plain(command: Command[Any]) -> bool:
    """Return whether a command is an operation without work before or after its commit."""
    return type(command) in _PLAIN


def put_for_later(command: Command[Any]) -> set[str]:
    """Return the queues that a command puts messages for later into; they are routed first."""
    kind = type(command)
    if kind is not q.PutMessages and kind is not q.ReplaceFailed and kind is not base.Transact:
        return set()
    steps: list[Any] = command.steps if isinstance(command, base.Transact) else [command]
    return {
        step.queue
        for step in steps
        if (type(step) is q.PutMessages and step.is_for_later) or type(step) is q.ReplaceFailed
    }


def answer(store: Store, command: Command[T]) -> T:
    """Answer a read or a procedure, outside the transactor."""
    rule = _ANSWERS.get(type(command))
    if rule is None:
        raise _unknown(type(command))
    result: T = rule(store, command)
    return result


def _rule(kind: type[Operation[Any]]) -> Callable[[WriteTransaction, Any], Any]:
    rule = _OPERATIONS.get(kind)
    if rule is None:
        raise _unknown(kind)
    return rule


def _unknown(kind: type) -> InvalidInput:
    return InvalidInput(f"{kind.__name__} has no rule: name one in `embedded.py`")


def _transact(tx: WriteTransaction, command: base.Transact) -> list[Any]:
    if len(command.steps) > STEPS_MAX:
        raise InvalidInput(f"{len(command.steps)} steps in a transaction; the limit is {STEPS_MAX}")
    if not any(isinstance(step, base.Sql) for step in command.steps):
        return [_rule(type(step))(tx, step) for step in command.steps]
    with tx.savepoint():
        return [_step(tx, step) for step in command.steps]


def _step(tx: WriteTransaction, step: Any) -> Any:
    if isinstance(step, base.Sql):
        return tx.sql(step.statement, step.parameters)
    return _rule(type(step))(tx, step)


class EmbeddedSession:
    """A session that answers on the caller's thread."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.limits = store.limits
        self.clock = store.clock

    def execute(self, command: Command[T]) -> T:
        """Answer a command; its writes are durable on return."""
        if type(command) in _PLAIN:
            return self.store.run(operation(command))  # type: ignore[arg-type]
        if isinstance(command, Operation):
            if queues := put_for_later(command):
                consuming.route_before(self.store, queues)
            result: T = self.store.run(operation(command))
            if tidies(command):
                self.store.tend_soon()
            return result
        return answer(self.store, command)

    def close(self) -> None:
        """Close the store."""
        self.store.close()
