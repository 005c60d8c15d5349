"""The table from every command to the function that answers the command.

Operations run inside the transactor, procedures and reads outside. Every part of the program adds
its commands here, and no other table of commands exists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from millstream import command as base
from millstream.command import Command, Operation, Procedure, Read
from millstream.embedded.space import stats_of
from millstream.embedded.unsynced_contents import list_unsynced
from millstream.engine.protocol import query_tables
from millstream.errors import InvalidInput, MillstreamError
from millstream.log import commands as c
from millstream.log.model.partitioned import count_partitions
from millstream.log.reading import queries
from millstream.log.rules import cursor_operations as cursors
from millstream.log.rules import operations as rules
from millstream.log.rules import partitions, publishing, schemas
from millstream.log.rules.ancestry import Tail
from millstream.log.rules.append import Appending
from millstream.log.rules.guards import GuardedRule
from millstream.queue import commands as q
from millstream.queue import schema_commands
from millstream.queue.rules import change_log, claims, endings, job_groups, limiting, puts
from millstream.queue.rules import operations as queues
from millstream.queue.rules import partitions as queue_partitions
from millstream.queue.rules import schemas as queue_schemas
from millstream.queue.service import (
    assignment,
    bulk_reads,
    by_dedup,
    by_id,
    cancel_wait,
    info,
    message_fate,
    message_wait,
    peek,
    rfc_records,
    thread_lines,
)
from millstream.queue.service.upkeep import queue_past
from millstream.queue.service.withdrawal import move_queues
from millstream.record import SetBackReader, SqlResult
from millstream.replica import commands as r
from millstream.replica import metadata, owner
from millstream.replica.copies import adoption, giver, parcel
from millstream.replica.forks import fork, setting_aside
from millstream.replica.sync import follow
from millstream.rooms import commands as m
from millstream.rooms import history, instances, presence, resume, retained, send, sweep, tickets
from millstream.rooms import operations as rooms
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.sleep import Waiting, wait
from millstream.store.state.view import View
from millstream.store.store import Store

T = TypeVar("T")

STEPS_MAX = 10_000
"""The most commands in a transaction, because they run under the write lock."""


def _follow(tx: WriteTransaction, tail: Tail) -> list[SetBackReader]:
    """Move the room and the queues of a log that was set aside to the log that took its name."""
    rooms.move_room(tx, tail)
    return move_queues(tx, tail)


def _create_partitions(tx: WriteTransaction, command: c.CreatePartitions) -> int:
    """Make a log with partitions, or raise their number; queues take from a new log's partitions."""
    is_new = not count_partitions(tx, command.log)
    count = partitions.create_partitions(tx, command)
    if is_new:
        queue_partitions.take_new_partitions(tx, command.log)
    return count


_READERS = setting_aside.Readers(queue_past, _follow)


def _maker(
    rule: Callable[..., Any],
) -> Callable[[Any], Callable[[WriteTransaction], Any]]:
    """Return the function that binds a rule to a command."""
    return lambda command: partial(rule, command=command)


_OPERATIONS: dict[type[Operation[Any]], Callable[[WriteTransaction, Any], Any]] = {
    c.CreateLog: rules.create_log,
    c.CreatePartitions: _create_partitions,
    c.Truncate: rules.truncate,
    c.DeleteLog: GuardedRule(rules.delete_log, change_log.DELETE_GUARD, rooms.DELETE_GUARD),
    c.SetMetadata: rules.set_metadata,
    c.SetRetention: rules.set_retention,
    c.SetSchema: schemas.set_schema,
    c.DeleteSchema: schemas.delete_schema,
    c.TakeLog: rules.take_log,
    c.FreeLog: rules.free_log,
    c.ForkLog: fork.fork_log,
    c.HandOver: owner.hand_over,
    c.TakeOver: owner.take_over,
    r.StartReplica: adoption.start_replica,
    r.AdoptOwner: adoption.adopt_owner,
    r.AdoptState: adoption.adopt_state,
    r.SetAside: lambda tx, command: setting_aside.set_aside(tx, command, _READERS),
    publishing.PublishParts: publishing.publish_parts,
    c.OpenCursor: cursors.open_cursor,
    c.Acknowledge: cursors.acknowledge,
    c.MoveCursor: cursors.move_cursor,
    c.DeleteCursor: cursors.delete_cursor,
    q.SpecifyQueue: queues.specify,
    schema_commands.SetQueueSchema: queue_schemas.set_queue_schema,
    schema_commands.DeleteQueueSchema: queue_schemas.delete_queue_schema,
    q.DeleteQueue: queues.delete,
    q.PauseQueue: queues.pause,
    q.PurgeQueue: queues.purge,
    q.RedriveClaims: queues.redrive,
    q.PutFresh: puts.put_fresh,
    q.ReplaceFailed: puts.replace_failed,
    q.FinishClaims: endings.finish,
    q.ReturnClaims: endings.give_back,
    q.RenewClaims: endings.renew,
    q.CancelWaiting: by_id.cancel_waiting_in_commit,
    q.NoteProgress: endings.note_progress,
    q.EndMember: job_groups.end_member,
    q.LimitGroup: limiting.limit_group,
    m.SpecifyRoom: rooms.specify,
    m.DeleteRoom: rooms.delete,
    m.JoinRoom: presence.join,
    m.ResumeInRoom: resume.resume,
    m.SetPresence: presence.set_state,
    m.LeaveRooms: presence.leave,
    m.SettlePresence: presence.settle,
    m.RenewInstance: instances.renew_instance,
    m.FreeInstance: instances.free_instance,
    m.RemoveInstance: instances.remove_instance,
    m.NoteWatermarks: instances.note_watermarks,
}

_APPEND = GuardedRule(rules.append, puts.APPEND_GUARD)

_OPERATION_OBJECTS: dict[
    type[Operation[Any]], Callable[[Any], Callable[[WriteTransaction], Any]]
] = {
    c.Append: partial(Appending, _APPEND),
    q.PutMessages: puts.Putting,
    q.ClaimRouted: claims.Claiming,
    m.SendToRoom: send.Sending,
    m.Broadcast: send.Broadcasting,
}
"""Commands whose operation is an object, because it declares an `order` or can be joined (`joins`)."""

_PROCEDURE_STEPS: dict[type[Command[Any]], Callable[[WriteTransaction, Any], Any]] = {
    q.CancelMessage: by_id.cancel_in_commit,
}
"""Procedures that a transaction can carry out as a step, in its own commit."""

SINGLE_COMMITS: dict[type, Callable[[Any], Callable[[WriteTransaction], Any]]] = {
    kind: _OPERATION_OBJECTS.get(kind) or _maker(_OPERATIONS[kind])
    for kind in (*_OPERATIONS, *_OPERATION_OBJECTS)
    if not kind.traits.tidies and not kind.traits.may_be_for_later
}
"""Operations without work before or after their commit → the function that makes what the transactor runs."""

_PROCEDURES: dict[type[Procedure[Any]], Callable[[Store, Any], Any]] = {
    c.EnforceRetention: queries.enforce_retention,
    c.MergeFork: lambda store, query: fork.merge_fork(store, query, _READERS),
    r.AdoptParcel: adoption.adopt_parcel,
    assignment.AssignMessages: assignment.assign_messages,
    q.ClaimMessages: thread_lines.claim_messages,
    q.CancelMessage: by_id.cancel_message,
    q.PutReported: by_id.put_and_report,
    m.TakeInstance: instances.take_instance,
    m.SweepRooms: sweep.sweep_rooms,
    m.MintTicket: tickets.mint_ticket,
    m.MintBrowserTicket: tickets.mint_browser_ticket,
    base.Fold: lambda store, _: store.fold(),
}


def _query_sql(store: Store, query: base.QuerySql) -> SqlResult:
    store.refresh()
    return query_tables(store.engine, query.statement, query.parameters)


_READS: dict[type[Read[Any]], Callable[[Store, Any], Any]] = {
    c.GetBounds: queries.get_bounds,
    c.GetExtent: queries.get_extent,
    c.ReadBlocks: queries.read_blocks,
    c.FindOffset: queries.find_offset,
    publishing.FindPublished: publishing.find_published,
    r.GetStoreId: giver.get_store_id,
    r.ListUnsynced: list_unsynced,
    r.SummarizeLogs: giver.summarize_logs,
    r.SummarizeLog: giver.summarize_log,
    r.GetChain: giver.get_chain,
    r.DigestRange: giver.digest_range,
    r.SummarizeNamed: giver.summarize_named,
    r.SendBlocks: parcel.send_blocks,
    bulk_reads.ListAttempts: bulk_reads.list_attempts,
    bulk_reads.ListUnrouted: bulk_reads.list_unrouted,
    bulk_reads.ListPositions: bulk_reads.list_positions,
    q.PeekMessages: peek.peek_messages,
    q.GetAttempts: message_fate.get_attempts,
    q.FindMessage: message_fate.find_message,
    q.FindMessages: message_fate.find_messages,
    q.ListRecords: rfc_records.list_records,
    q.DescribeQueue: info.describe_queue,
    q.ListQueues: info.list_queues,
    m.GetRetained: retained.get_retained,
    m.ReadRetained: retained.read_retained,
    m.FindHistory: history.find_history,
    m.GetPresence: presence.get_presence,
    m.LookIntoRoom: rooms.look_into_room,
    base.Stats: lambda store, _: stats_of(store),
    base.QuerySql: _query_sql,
}

_VIEWS: dict[type[Read[Any]], Callable[[View, Any], Any]] = {
    c.GetMetadata: queries.get_metadata,
    c.GetSchemas: schemas.get_schemas,
    c.DescribeLog: queries.describe_log,
    c.DescribePartitions: queries.describe_partitions,
    c.ListLogs: queries.list_logs,
    c.DescribeCursor: queries.describe_cursor,
    c.ListCursors: queries.list_cursors,
    c.GetOwner: owner.get_owner,
    c.GetParent: fork.get_parent,
    r.GetStampedMetadata: metadata.stamped_metadata,
    q.FindByDedup: by_dedup.find_by_dedup,
    schema_commands.GetQueueSchemas: queue_schemas.get_queue_schemas,
    q.ListGroupLimits: limiting.list_group_limits,
    m.DescribeRoom: rooms.describe_room,
    m.ListRooms: rooms.list_rooms,
    m.ListInstances: instances.list_instances,
}
"""Reads that a single look at the entities answers."""

WAITS: dict[type[Read[Any]], Callable[[Store, Any], Waiting[Any]]] = {
    c.WaitForOffset: queries.wait_for_offset,
    c.WaitForPartitions: queries.wait_for_partitions,
    follow.WaitForChange: follow.wait_for_change,
    q.WaitForMessage: message_wait.wait_for_message,
    q.WaitForCancels: cancel_wait.wait_for_cancels,
}
"""Reads that wait: a thread sleeps, a coroutine awaits."""

COMMANDS: tuple[type[Command[Any]], ...] = (
    base.Transact,
    base.Sql,
    *_OPERATIONS,
    *_OPERATION_OBJECTS,
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


ANSWERS: dict[type, Callable[[Store, Any], Any]] = {
    **_PROCEDURES,
    **_READS,
    **{kind: _viewing(rule) for kind, rule in _VIEWS.items()},
    **{kind: _sleeping(rule) for kind, rule in WAITS.items()},
}
"""The rules of reads and procedures, which run outside the transactor."""


def operation(command: Operation[T]) -> Callable[[WriteTransaction], T]:
    """Return the function that the transactor runs for an operation."""
    kind = type(command)
    make = _OPERATION_OBJECTS.get(kind)
    if make is not None:
        return make(command)
    rule: Any = (
        _transact if kind is base.Transact else _OPERATIONS.get(kind) or _PROCEDURE_STEPS.get(kind)
    )
    if rule is None:
        raise _no_rule(kind)
    return partial(rule, command=command)


def put_for_later(command: Command[Any]) -> set[str]:
    """Return the queues that a command puts messages for later into; they are routed first."""
    steps: list[Any] = command.steps if isinstance(command, base.Transact) else [command]
    later = [step for step in steps if step.traits.may_be_for_later]
    return {step.queue for step in later if step.is_for_later}


def answer(store: Store, command: Command[T]) -> T:
    """Answer a read or a procedure, outside the transactor."""
    rule = ANSWERS.get(type(command))
    if rule is None:
        raise _no_rule(type(command))
    result: T = rule(store, command)
    return result


def _no_rule(kind: type) -> InvalidInput:
    return InvalidInput(f"{kind.__name__} has no rule: name one in `embedded/rules.py`")


_STEPS: dict[type, Callable[[WriteTransaction, Any], Any]] = {
    **_OPERATIONS,
    **_PROCEDURE_STEPS,
    c.Append: _APPEND,
}
"""The rules of steps, which run alone: a step is neither ordered nor joined."""


def run_steps(tx: WriteTransaction, steps: list[Any]) -> list[Any]:
    """Run the steps of a transaction that are no SQL, and return their answers.

    An error carries the number of its step, from 0.
    """
    if len(steps) > STEPS_MAX:
        raise InvalidInput(f"{len(steps)} steps in a transaction; the limit is {STEPS_MAX}")
    answers: list[Any] = []
    try:
        for step in steps:
            rule = _STEPS.get(type(step))
            answers.append(operation(step)(tx) if rule is None else rule(tx, step))
    except MillstreamError as error:
        error.data.setdefault("step", len(answers))
        raise
    return answers


def _transact(tx: WriteTransaction, command: base.Transact) -> list[Any]:
    steps = command.steps
    if not any(isinstance(step, base.Sql) for step in steps):
        return run_steps(tx, steps)
    if len(steps) > STEPS_MAX:
        raise InvalidInput(f"{len(steps)} steps in a transaction; the limit is {STEPS_MAX}")
    with tx.savepoint():
        return [_step(tx, step) for step in steps]


def _step(tx: WriteTransaction, step: Any) -> Any:
    if isinstance(step, base.Sql):
        return tx.sql(step.statement, step.parameters)
    result: object = operation(step)(tx)
    return result
