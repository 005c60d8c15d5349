"""The embedded session: answers commands from a store in this process.

This module opens stores with the entities and the upkeep of logs, queues and rooms. `rules` has the rule of
every command.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from millstream.clock import Clock
from millstream.command import Command, Operation, tidies
from millstream.embedded.rules import ANSWERS, SINGLE_COMMITS, answer, operation, put_for_later
from millstream.embedded.session_turn import SessionTurn
from millstream.embedded.sql_inbox import SqlInbox, has_inbox
from millstream.engine import process_fork
from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine
from millstream.errors import CannotOpen, MillstreamError
from millstream.format import keys
from millstream.format.block_join import coalesce
from millstream.limits import Limits
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Head, Name
from millstream.log.model.metadata import MetadataState
from millstream.log.model.producer import ProducerState
from millstream.log.model.users import LogUsers
from millstream.log.reading.links import LINKS
from millstream.log.rules import ancestry
from millstream.log.rules.retention import LogUpkeep, cursors_passed
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.cancel_requests import CancelRequests
from millstream.queue.model.group import Group
from millstream.queue.model.group_limits import GroupLimits
from millstream.queue.model.roster import Roster
from millstream.queue.model.state import QueueState
from millstream.queue.service.backlog import route_before
from millstream.queue.service.upkeep import QueueUpkeep, pin, queues_passed
from millstream.replica.copies import marks
from millstream.rooms.instance_state import InstanceState
from millstream.rooms.instances import has_instances
from millstream.rooms.state import RoomState
from millstream.rooms.sweep import RoomUpkeep
from millstream.store.state.entity import Kinds
from millstream.store.store import Store

T = TypeVar("T")

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
    keys.CANCELS: CancelRequests,
    keys.GROUP_LIMITS: GroupLimits,
}
"""The entities of all parts."""


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
        intake=SqlInbox() if has_inbox(engine) else None,
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
    with process_fork.opening:
        engine = make_engine()
        try:
            return open_store(engine, limits=limits, clock=clock)
        except BaseException:
            engine.close()
            raise


class EmbeddedSession:
    """A session that answers on the caller's thread."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.limits = store.limits
        self.clock = store.clock

    def execute(self, command: Command[T]) -> T:
        """Answer a command; its writes are durable on return."""
        kind = type(command)
        make = SINGLE_COMMITS.get(kind)
        if make is not None:
            committed: T = self.store.run(make(command))
            return committed
        rule = ANSWERS.get(kind)
        if rule is not None:
            answered: T = rule(self.store, command)
            return answered
        if isinstance(command, Operation):
            if queues := put_for_later(command):
                route_before(self.store, queues)
            result: T = self.store.run(operation(command))
            if tidies(command):
                self.store.tend_soon()
            return result
        return answer(self.store, command)

    def begin_turn(self, timeout_s: float) -> SessionTurn:
        """Take the writer's turn for an interactive transaction."""
        return SessionTurn(self.store, self.store.begin(timeout_s))

    def close(self) -> None:
        """Close the store."""
        self.store.close()
