"""Commands: what can be asked of a store, as values, each declared once.

The nouns that users hold (`Log`, `Cursor`, …) only build commands and hand them to a session. So
an embedded store, a server across the wire, and a coroutine's view of either share their nouns:
they differ in the session alone.

A command's base class says where it runs, its `traits` say everything else that a session, a
client or a server must know of it. Nobody keeps a list of commands of their own. What a command
does not declare is refused: a class without traits cannot be defined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from millstream.clock import Clock
from millstream.errors import CannotOpen, InvalidInput
from millstream.limits import Limits
from millstream.record import SqlResult

T = TypeVar("T")

Action = Literal["read", "put", "write", "admin", "backup"]
"""`put` is for queues alone: to put messages, but neither to read nor to claim them. `backup` is for
the store alone: to copy all of it, with tokens and application tables."""

Signed = Annotated[int, "signed"]
"""A field for any 64-bit integer; every other integer of a command is from 0 to 2^63 - 1."""


class Right(Struct, frozen=True):
    """A right that a command needs, on the object that a field names."""

    noun: Literal["log", "queue", "room", "copy", "store"]
    """A `copy` is a log as its replicas read and change it."""
    action: Action
    field: str = ""
    """The field; `spec.sources` is a field of a field. A list names several, None names nothing."""
    is_pattern: bool = False
    """Whether the field may hold patterns of names."""
    of_parent: bool = False
    """Whether the right is needed on the log that the named one was forked from."""
    is_fork: bool = False
    """Whether it is needed on a fork of the log, under whatever name the store gives it."""
    when: tuple[str, Any] | None = None
    """A field and a value: the right is needed only if the field has that value."""


def on_log(action: Action, field: str = "log", *, is_pattern: bool = False) -> Right:
    """A right on the log that a field names."""
    return Right("log", action, field, is_pattern)


def on_parent(action: Action) -> Right:
    """A right on the log that the command's log was forked from, if it is a fork."""
    return Right("log", action, "log", of_parent=True)


def on_fork(when: tuple[str, Any], *, of_parent: bool = False) -> Right:
    """A right on a fork that the store names: a token that may create the fork may delete it."""
    return Right("log", "admin", "log", of_parent=of_parent, is_fork=True, when=when)


def on_queue(action: Action, field: str = "queue") -> Right:
    """A right on the queue that a field names."""
    return Right("queue", action, field)


def on_room(action: Action, field: str = "room") -> Right:
    """A right on the room that a field names."""
    return Right("room", action, field)


def on_copy(action: Action) -> Right:
    """A right on the copy of a log, for replicas."""
    return Right("copy", action, "log")


def on_store(action: Action) -> Right:
    """A right on the store as a whole."""
    return Right("store", action)


Exemption = Literal["nothing", "seen", "steps", "internal"]
"""Why a command declares no rights. `nothing`: the answer is harmless. `seen`: the server removes
hidden names from the answer. `steps`: the steps declare the rights. `internal`: clients may not send
the command."""


class Wait(Struct, frozen=True):
    """How a command waits for something to happen."""

    field: str
    """The field that says how long, in milliseconds."""
    is_endless: bool = False
    """None means: wait without a limit; otherwise do not wait."""
    once: tuple[str, ...] = ()
    """Lists that are carried out before the wait; a caller that asks again for the rest of the wait
    leaves them out."""
    count: str = ""
    """The field that says how much is wanted: for nothing, nobody waits."""


class Traits(Struct, frozen=True, kw_only=True):
    """The properties of a command, besides its base class and its answer."""

    needs: tuple[Right, ...] | Exemption
    """What a client of a server must be allowed to do; the fields of rights hold checked names."""
    repeat: Literal["unknown", "harmless", "sequence"] = "unknown"
    """What a repeat of a writing command does whose answer was lost: the same again (`unknown`);
    nothing that was not wanted (`harmless`); nothing, if a producer's sequence came with it."""
    is_step: bool = False
    """Whether a client may ask for it as a step of a transaction."""
    waits: Wait | None = None
    """Whether it may wait for something to happen, and for how long."""
    names: tuple[str, ...] = ()
    """Fields that hold names, besides the fields in `needs`."""
    page: str = ""
    """The field that says how many entries the answer may have, if that has a bound."""
    bytes: str = ""
    """The field that says how many bytes the answer may have, if that has a bound."""
    is_large: bool = False
    """Whether the answer holds payloads: a connection gets only a few of those at a time."""
    holds: bool = False
    """Whether it changes which messages the client has claimed."""
    tidies: bool = False
    """Whether there may be bytes to delete afterwards."""
    may_be_for_later: bool = False
    """Whether it may place messages for later (`is_for_later`): the queue is routed before the command
    runs."""
    ability: str = ""
    """The ability that brought the command to the protocol; "": the command is as old as abilities."""
    step_ability: str = ""
    """The ability that allowed the command as a step of a transaction."""
    additions: dict[str, str] = {}  # msgspec copies it
    """The abilities that brought fields, by the fields: `results`, `spec.group_order`, or one value of
    a field, `state=cancelled`. A server without the ability would ignore the field, and carry out
    another command than the caller meant.
    """


class Command(Struct, Generic[T], frozen=True, tag=True):
    """Something to ask; `T` is the type of its answer. Commands derive from the bases below."""

    traits: ClassVar[Traits]
    writes: ClassVar[bool] = True
    """Whether it leaves something behind that callers can see."""

    def __init_subclass__(cls) -> None:
        """Refuse a command that is not declared; bases declare nothing."""
        super().__init_subclass__()
        is_base = cls.__module__ == __name__ and cls.__name__ in ("Operation", "Procedure", "Read")
        if not is_base and not isinstance(cls.__dict__.get("traits"), Traits):
            raise TypeError(
                f"{cls.__name__} declares no traits: write `traits = Traits(needs=...)` in it"
            )


class Operation(Command[T], Generic[T], frozen=True):
    """Runs inside the transactor, as part of one commit; durable when it is answered."""


class Procedure(Command[T], Generic[T], frozen=True):
    """Changes the store in several steps, with commits of its own; durable when it is answered."""


class Read(Command[T], Generic[T], frozen=True):
    """Changes nothing that callers can see.

    It may leave upkeep behind that the background does as well, such as routing and hashes.
    """

    writes: ClassVar[bool] = False


class Transact(Operation[list[Any]], frozen=True):
    """Commits several operations together, or commits none of the operations."""

    traits = Traits(needs="steps", holds=True)

    steps: list[Any]


class Sql(Operation[SqlResult], frozen=True):
    """A statement on the application's own tables, in the same commit as what else is asked."""

    traits = Traits(needs="internal")

    statement: str
    parameters: list[Any] | dict[str, Any]


class QuerySql(Read[SqlResult], frozen=True):
    """A look at the application's own tables."""

    traits = Traits(needs="internal")

    statement: str
    parameters: list[Any] | dict[str, Any]


def sql_parameters(parameters: Any) -> list[Any] | dict[str, Any]:
    """What a statement's places are filled with: several values in order, or by their names."""
    if isinstance(parameters, Mapping):
        return dict(parameters)
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Iterable):
        raise InvalidInput(
            f"the parameters of a statement are a list or a mapping, not {type(parameters).__name__}"
        )
    return list(parameters)


class Stats(Read[dict[str, Any]], frozen=True):
    """Facts and counters of the store."""

    traits = Traits(needs=(on_store("read"),))


class Fold(Procedure[int], frozen=True):
    """Fold everything that is unfolded now; how many commits were folded."""

    traits = Traits(needs=(on_store("admin"),), repeat="harmless")


def waits(command: Command[Any]) -> bool:
    """Whether a command may wait for something to happen."""
    wait = command.traits.waits
    if wait is None or (wait.count and not getattr(command, wait.count)):
        return False
    wanted_ms = getattr(command, wait.field)
    return wait.is_endless if wanted_ms is None else wanted_ms > 0


def is_repeatable(command: Command[Any]) -> bool:
    """Whether a command may be asked again if its outcome is unknown."""
    if not command.writes:
        return True
    repeat = command.traits.repeat
    if repeat == "sequence":
        return command.producer is not None  # type: ignore[attr-defined]
    return repeat == "harmless"


def tidies(command: Command[Any]) -> bool:
    """Whether there may be bytes to delete after a command."""
    if isinstance(command, Transact):
        return any(step.traits.tidies for step in command.steps)
    return command.traits.tidies


def check_reads(command: Command[Any]) -> None:
    """Refuse what writes, where the store was opened to be read."""
    if command.writes:
        raise CannotOpen(
            f"{type(command).__name__} writes, and the store was opened with mode='r': it is only "
            "read; open it with mode='rw' to write"
        )


class Session(Protocol):
    """What answers commands, on the caller's thread."""

    @property
    def limits(self) -> Limits:
        """What may be asked for at once."""

    @property
    def clock(self) -> Clock:
        """The time that callers measure waits by."""

    def execute(self, command: Command[T]) -> T:
        """Answer a command; its writes are durable on return. Raises a `MillstreamError`."""

    def close(self) -> None:
        """End the session."""


class AsyncSession(Protocol):
    """What answers commands, to coroutines."""

    @property
    def limits(self) -> Limits:
        """What may be asked for at once."""

    @property
    def clock(self) -> Clock:
        """The time that callers measure waits by."""

    async def execute(self, command: Command[T]) -> T:
        """Answer a command as `Session.execute` does, while other coroutines run."""

    async def close(self) -> None:
        """End the session."""
