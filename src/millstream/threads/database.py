# Generated from src/millstream/aio/database.py by `make generate`: change that file, not this one.

"""Opening a store, and the handle that it gives: the nouns of one store, for threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from millstream.clock import Clock
from millstream.command import (
    Command,
    Fold,
    QuerySql,
    Session,
    Stats,
    Transact,
    check_reads,
    sql_parameters,
)
from millstream.engine.place import is_address
from millstream.engine.protocol import Durability, Mode
from millstream.engine.slate.options import SlateOptions
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import CannotOpen, InvalidInput
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.numbers import checked, checked_numbers
from millstream.queue.commands import ListQueues
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.setting_help import takes_settings
from millstream.queue.model.spec import QueueSettings, spec_of
from millstream.record import LogInfo, Seconds, SqlResult, to_ms
from millstream.remote.opening import CONNECT_TIMEOUT_S, RETRY_FOR_S
from millstream.replica.commands import GetStoreId
from millstream.replica.sync.outcome import Direction, OnFork, Options, Outcome, Tell
from millstream.rooms.commands import ListInstances, ListRooms, RemoveInstance
from millstream.rooms.model import InstanceInfo, RoomInfo
from millstream.schema.history import SchemaMode, check_mode
from millstream.schema.source import schema_of
from millstream.threads.interactive import InteractiveTransaction
from millstream.threads.log import Log
from millstream.threads.opening import open_session
from millstream.threads.partitioned import PartitionedLog, open_partitioned
from millstream.threads.queue import Queue
from millstream.threads.room import Room
from millstream.threads.runtime import Event, Turn, declaring, opening
from millstream.threads.sync import follow, synced
from millstream.threads.transaction import Transaction

T = TypeVar("T")

BEGIN_TIMEOUT_S = 5.0
"""The time limit of an interactive transaction: long for a few statements, short for other writers."""

ENTRIES_PER_PAGE = 1_000
"""Logs, queues or rooms that are listed by one command."""


@opening
@checked
def open(
    path: str | os.PathLike[str] | Sequence[str],
    *,
    mode: Mode = "rw",
    create: bool = True,
    durability: Durability = "full",
    limits: Limits | None = None,
    options: SqliteOptions | SlateOptions | None = None,
    clock: Clock | None = None,
    file_mode: int | None = None,
    adopt: bool = False,
    accept_loss: bool = False,
    token: str | None = None,
    ca: str | None = None,
    connect_timeout: float = CONNECT_TIMEOUT_S,
    retry_for: float = RETRY_FOR_S,
    read_level: str = "strong",
) -> Millstream:
    """Open the store in a file, or create the file; a call returns when its change is durable.

    With `create=False` a missing file raises `CannotOpen`. With `mode="r"` the handle only reads, and
    sees the commits of other handles: it creates nothing and refuses every write.
    With `durability="relaxed"` a commit survives the death of the process but not of the machine.
    An SQLite database in WAL mode becomes a store: Millstream adds tables whose names begin with
    `millstream_`, and leaves all other tables as they are. A database in another journal mode is
    refused, unless `adopt=True` allows to change the mode to WAL.
    Only its owner may read a new file, unless `file_mode` (such as `0o640`) allows more. A store with
    a damaged write-ahead log is refused if commits would be lost; `accept_loss` opens the store
    without these commits. `options` configures the engine (`SqliteOptions`, or `SlateOptions`). The
    path `:memory:` makes a store in memory, which ends with its handle. The address of a bucket
    (`s3://`, `gs://`, `az://`) opens the store in the bucket, and fences the previous writer.

    The address of a server (`http://`, `https://`) opens the store behind it. The client
    shows `token`, or the token in MILLSTREAM_TOKEN; `ca` names a file with the certificates to trust.
    One attempt to connect may take `connect_timeout` seconds. The client replaces a lost connection
    for up to `retry_for` seconds and then repeats reads, and appends under a `Producer`. Other
    changes without an answer raise `OutcomeUnknown`. Requests that a cluster refuses for lack of a
    leader or a quorum are repeated for the same time.

    Name several nodes of a cluster as a list, or separated by commas: the client asks the leader, and
    moves to another node if the leader fails. `read_level` says how fresh reads must be:
    "strong", "bounded:SECONDS" (behind), or "eventual", which any node answers alone.
    """
    if mode not in ("rw", "r"):
        raise InvalidInput(f"mode is 'rw' or 'r', not {mode!r}")
    session = open_session(
        path,
        mode=mode,
        create=create,
        durability=durability,
        limits=limits,
        options=options,
        clock=clock,
        file_mode=file_mode,
        adopt=adopt,
        accept_loss=accept_loss,
        token=token,
        ca=ca,
        connect_timeout=connect_timeout,
        retry_for=retry_for,
        read_level=read_level,
    )
    return Millstream(ReadOnly(session) if mode == "r" else session)


class ReadOnly:
    """A session of a store that is opened to be read. The session refuses commands that write."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def limits(self) -> Limits:
        """The limits of the session beneath."""
        return self._session.limits

    @property
    def clock(self) -> Clock:
        """The clock of the session beneath."""
        return self._session.clock

    def execute(self, command: Command[T]) -> T:
        """Answer a command that changes nothing."""
        check_reads(command)
        return self._session.execute(command)

    def begin_turn(self, timeout_s: float) -> Turn:
        """Refuse an interactive transaction."""
        raise CannotOpen("ms.begin writes, and the store was opened with mode='r': use mode='rw'")

    def close(self) -> None:
        """End the session."""
        self._session.close()


@checked_numbers
class Millstream:
    """One open store, for any thread; close it, or use `with`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session(self) -> Session:
        """What answers the commands of the nouns; for parts of Millstream, not for applications."""
        return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @overload
    def log(self, name: str, *, schema: Any = None, schema_mode: SchemaMode = "enforce") -> Log: ...
    @overload
    def log(
        self,
        name: str,
        *,
        partitions: int,
        schema: Any = None,
        schema_mode: SchemaMode = "enforce",
    ) -> PartitionedLog: ...
    def log(
        self,
        name: str,
        *,
        partitions: int | None = None,
        schema: Any = None,
        schema_mode: SchemaMode = "enforce",
    ) -> Log | PartitionedLog:
        """Return the log of this name, which need not exist; the first append creates the log.

        With a number of `partitions` (default: a plain log), records are spread by key, and stay in
        order per key. A number that differs from the number of the log raises `Partitioned`.

        `schema` (default: the log's own, if it has one) is what `set_schema` of the log takes: a msgspec
        struct, a dataclass, a TypedDict, a JSON Schema or an Avro schema. The log is created, and has
        the schema from then on; records that do not fit are refused, or with `schema_mode="warn"`
        counted. docs/SCHEMAS.md explains schemas and their versions.
        """
        session = self._session
        if partitions is None:
            log: Log | PartitionedLog = Log(session, name)
        else:
            log = PartitionedLog(session, name, partitions)
        if schema is None:
            _check_mode_alone(schema_mode)
            return log
        steps: list[Any] = [] if partitions is None else [c.CreatePartitions(name, partitions)]
        declared = c.SetSchema(log.name, schema_of(schema), check_mode(schema_mode))
        session = declaring(session, Transact([*steps, declared]) if steps else declared)
        if partitions is None:
            return Log(session, name)
        return PartitionedLog(session, name, partitions)

    def partitioned_log(self, name: str) -> PartitionedLog:
        """Return the partitioned log of this name; `NotFound` if the log has no partitions."""
        return open_partitioned(self._session, name)

    def logs(self, *, partitions: bool = False) -> Iterator[LogInfo]:
        """List all logs in the order of their names.

        A log with partitions is one entry with sums, at the position of its first partition. With
        `partitions` the list has an entry per partition instead.
        """
        after = ""
        while page := self._session.execute(c.ListLogs(after, ENTRIES_PER_PAGE, partitions)):
            yield from page
            after = page[-1].name

    @takes_settings
    def queue(
        self,
        name: str,
        *,
        schema: Any = None,
        schema_mode: SchemaMode = "enforce",
        **settings: Unpack[QueueSettings],
    ) -> Queue:
        """The queue of that name, which need not exist; with settings, what `create_queue` gives."""
        if not settings and schema is None:
            _check_mode_alone(schema_mode)
            return Queue(self._session, name)
        return self.create_queue(name, schema=schema, schema_mode=schema_mode, **settings)

    @takes_settings
    def create_queue(
        self,
        name: str,
        *,
        schema: Any = None,
        schema_mode: SchemaMode = "enforce",
        **settings: Unpack[QueueSettings],
    ) -> Queue:
        """Create a queue, or alter it to these settings; docs/QUEUES.md explains each setting.

        Settings that are not named get their defaults, even if the queue was altered before. So many
        processes may create the queue at each start. A setting that differs and cannot be altered
        now raises `Conflict`, and nothing changes. `schema` (default: the queue's own, if it has one) is
        the schema of the messages that are put, as `ms.log` takes it.
        """
        queue = Queue(self._session, name)
        spec = spec_of(**settings)
        if schema is not None:
            checked = schema_of(schema)
            check_mode(schema_mode)
            queue.specify(spec)
            queue.set_schema(checked, mode=schema_mode)
            return queue
        _check_mode_alone(schema_mode)
        queue.specify(spec)
        return queue

    def queues(self) -> Iterator[QueueInfo]:
        """How every queue stands, in the order of their names."""
        after = ""
        while page := self._session.execute(ListQueues(after, ENTRIES_PER_PAGE)):
            yield from page
            after = page[-1].name

    def room(self, name: str, *, user: str = "") -> Room:
        """The room of that name, which need not exist; what is sent is shown as sent by `user`."""
        return Room(self._session, name, user=user)

    def rooms(self) -> Iterator[RoomInfo]:
        """How every room stands, in the order of their names."""
        after = ""
        while page := self._session.execute(ListRooms(after, ENTRIES_PER_PAGE)):
            yield from page
            after = page[-1].name

    def instances(self) -> list[InstanceInfo]:
        """The servers that serve the rooms of this store, or did within a day, by name."""
        return self._session.execute(ListInstances())

    def remove_instance(self, name: str) -> bool:
        """Forget a server that died without a clean stop; False if no such server is registered.

        Raises `Locked` if the server is alive.
        """
        return self._session.execute(RemoveInstance(name))

    def transaction(self) -> Transaction:
        """Several operations in one commit: they are gathered, and happen when the block ends."""
        return Transaction(self._session)

    def begin(self, *, timeout: Seconds = BEGIN_TIMEOUT_S) -> InteractiveTransaction:
        """Begin an interactive transaction: its `sql` runs at once, and its block ends in one commit.

        The block holds the turn of the only writer: all other writers of the store wait, in every
        process, and readers go on. After `timeout` seconds the transaction is rolled back, other
        writers go on, and the next call inside the block raises `TransactionExpired`. Only a program
        that opened the file can do this: servers and clusters refuse.
        """
        timeout_s = BEGIN_TIMEOUT_S
        if timeout != BEGIN_TIMEOUT_S:
            timeout_s = to_ms(timeout, "timeout") / 1000
            if timeout_s <= 0:
                raise InvalidInput(f"timeout is a number of seconds above 0, not {timeout!r}")
        return InteractiveTransaction(self._session, timeout_s)

    def sql(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> SqlResult:
        """Read the application's own tables in the store's file; a transaction's `sql` writes them.

        Only a program that opened the file can do this: servers and clusters refuse.
        """
        return self._session.execute(QuerySql(statement, sql_parameters(parameters)))

    def sync(
        self,
        peer: Millstream | str | os.PathLike[str],
        *,
        direction: Direction = "both",
        logs: str = "*",
        on_fork: OnFork = "refuse",
        compress: bool = False,
        truncate: bool = True,
        progress: Tell | None = None,
        token: str | None = None,
        create: bool = False,
    ) -> Outcome:
        """Exchange missing records with another store in both directions; see docs/REPLICAS.md.

        `peer` is an open store, a file, or the address of a server that accepts `token`. `create` makes
        a missing file. The error of a log is raised after the other logs are synced.
        """
        options = Options(
            direction=direction, logs=logs, on_fork=on_fork, compress=compress, truncate=truncate
        )
        options.check()
        with _session_of(peer, token, create=create) as session:
            return synced(self._session, session, options, progress)

    def follow(
        self,
        peer: Millstream | str | os.PathLike[str],
        *,
        direction: Direction = "both",
        logs: str = "*",
        on_fork: OnFork = "refuse",
        compress: bool = False,
        truncate: bool = True,
        progress: Tell | None = None,
        token: str | None = None,
        create: bool = False,
        stop: Event | None = None,
    ) -> Iterator[Outcome]:
        """Sync now and after every change, until `stop` is set; gives each outcome with news."""
        options = Options(
            direction=direction, logs=logs, on_fork=on_fork, compress=compress, truncate=truncate
        )
        options.check()
        with _session_of(peer, token, create=create) as session:
            yield from follow(self._session, session, options, tell=progress, stop=stop)

    def store_id(self) -> str:
        """The name of this store among its peers: a log is handed over to this name."""
        return self._session.execute(GetStoreId())

    def stats(self) -> dict[str, Any]:
        """Facts and counters: durability, sizes, what is unfolded."""
        return self._session.execute(Stats())

    def fold(self) -> int:
        """Move every commit into its records now rather than in the background."""
        return self._session.execute(Fold())

    def close(self) -> None:
        """Let go of the store; a second call does nothing."""
        self._session.close()


@contextmanager
def _session_of(
    peer: Millstream | str | os.PathLike[str], token: str | None, *, create: bool
) -> Iterator[Session]:
    """Yield the session of a peer; close the session if this function opened it."""
    if isinstance(peer, Millstream):
        yield peer.session
        return
    if not isinstance(peer, str | os.PathLike):
        raise InvalidInput(
            f"a peer is an open store, a path or an address, not {type(peer).__name__}"
        )
    with open(peer, token=token, create=create or is_address(peer)) as opened:
        yield opened.session


def _check_mode_alone(mode: str) -> None:
    """Refuse a mode without its schema, which would have no effect."""
    if check_mode(mode) != "enforce":
        raise InvalidInput(
            f"schema_mode={mode!r} has no effect without a schema: give the schema as well"
        )
