"""The frozen values that travel: what users hand in and get back.

Nothing here knows a store: a record read from a file, a server or a Spark task is the same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar, overload

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput, NotFound
from millstream.header import NO_HEADERS, Headers, HeadersLike
from millstream.numbers import NUMBER_MAX
from millstream.partitioning import partition_of

Seconds = float | timedelta
"""Durations are seconds, or a `timedelta`."""

Time = datetime | timedelta | int
"""A time: a `datetime` with a time zone, a `timedelta` for so long ago, or milliseconds since the
epoch."""

Status = Literal["healthy", "warning", "critical"]
"""How well something is."""

T = TypeVar("T")


def to_ms(duration: Seconds, what: str = "a duration") -> int:
    """A duration in whole milliseconds, rounded up so that a wait is never cut short.

    An error names `what` the duration is of.
    """
    if isinstance(duration, timedelta):
        return -(-duration // _MILLISECOND)
    try:
        if type(duration) is bool:
            raise TypeError
        return -int(-duration * 1000 // 1)
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        raise InvalidInput(
            f"{what} is a number of seconds or a timedelta, not {duration!r:.100}"
        ) from None


def optional_ms(duration: Seconds | None, what: str = "a duration") -> int | None:
    """Convert a duration to milliseconds; None stays None."""
    return None if duration is None else to_ms(duration, what)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def moment(wall_ms: int) -> datetime:
    """A time in UTC, from milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=wall_ms)


def wall_ms_of(moment: datetime) -> int:
    """Milliseconds since the epoch, from a time."""
    return (moment - _EPOCH) // _MILLISECOND


def time_ms_of(time: Time) -> tuple[int, bool]:
    """Return milliseconds since the epoch, and False; or for so long ago, milliseconds and True.

    Fractions of a millisecond are cut off, as in the times of records. A time before the epoch is the
    epoch.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidInput(
                "a time needs a time zone, such as datetime(..., tzinfo=UTC) or "
                f"datetime.now().astimezone(); {time.isoformat()} has none"
            )
        return max(0, wall_ms_of(time)), False
    if isinstance(time, timedelta):
        if time < timedelta(0):
            raise InvalidInput(f"a time as a timedelta is so long ago, and not negative: {time}")
        return to_ms(time), True
    if type(time) is int and 0 <= time <= NUMBER_MAX:
        return time, False
    raise InvalidInput(
        "a time is a datetime with a time zone, a timedelta for so long ago, or milliseconds since the "
        f"epoch, not {time!r:.100}"
    )


class _Valued(Protocol):
    @property
    def value(self) -> bytes | None: ...
    @property
    def log(self) -> str: ...
    @property
    def offset(self) -> int: ...
    def _place(self) -> tuple[str, dict[str, Any]]: ...


def _value_of(record: _Valued) -> bytes:
    """The value of a record or message; `InvalidInput` if it is null."""
    if record.value is None:
        raise InvalidInput(
            f"the record at {record.offset} of log {record.log!r} is a tombstone: it has neither text nor "
            "JSON; ask whether `value is None` first"
        )
    return record.value


class Legible:
    """Reads its value as text or as JSON: what records and messages have in common."""

    __slots__ = ()

    @property
    def text(self: _Valued) -> str:
        """The value as UTF-8 text."""
        return _value_of(self).decode()

    @overload
    def json(self: _Valued) -> Any: ...
    @overload
    def json(self: _Valued, type: type[T]) -> T: ...
    def json(self: _Valued, type: Any = Any) -> Any:
        """Return the value decoded from JSON, checked against a type if a type is given.

        Raises `InvalidInput`, which names the record, if the value is no JSON or does not fit.
        """
        try:
            return msgspec.json.decode(_value_of(self), type=type)
        except msgspec.DecodeError as error:
            wrong = "is not valid JSON"
            if isinstance(error, msgspec.ValidationError):
                wrong = f"does not fit {getattr(type, '__name__', type)}"
            name, data = self._place()
            raise InvalidInput(f"{name} {wrong}: {error}", **data) from error

    def _place(self: _Valued) -> tuple[str, dict[str, Any]]:
        """Return what an error calls this object, and the facts that the error carries."""
        name = f"the record at offset {self.offset} of log {self.log!r}"
        return name, {"log": self.log, "offset": self.offset}


class Record(Legible, Struct, frozen=True, gc=False):
    """One record of a log, at its permanent offset."""

    log: str
    offset: int
    value: bytes | None
    """None is a tombstone: the key has no value any more."""
    timestamp: int
    """The producer's timestamp, or when it was appended: milliseconds since the epoch."""
    key: bytes | None = None
    headers: Headers = NO_HEADERS
    appended: int = 0
    """When the store appended it: milliseconds since the epoch."""

    @property
    def partition(self) -> int:
        """The number of the partition in the name of `log`; 0 for a log without partitions."""
        name_and_number = partition_of(self.log)
        return 0 if name_and_number is None else name_and_number[1]


class Item(Struct, frozen=True, gc=False):
    """A record to append, for batches with keys, headers or timestamps per record."""

    value: Any
    key: bytes | str | None = None
    headers: HeadersLike | None = None
    timestamp: int | None = None


class Retention(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a log may forget; a record goes as soon as any rule lets it go. Empty keeps all."""

    age_ms: int | None = None
    bytes: int | None = None
    count: int | None = None
    consumed: bool = False
    """Drop what every durable cursor and queue on the log has passed."""

    def __bool__(self) -> bool:
        """Return True if a rule is set."""
        return self != Retention()


def retention_of(
    *, age: Seconds | None, bytes: int | None, count: int | None, consumed: bool
) -> Retention:
    """What a log may forget; the store checks the numbers."""
    age_ms = optional_ms(age, "retention by age")
    return Retention(age_ms=age_ms, bytes=bytes, count=count, consumed=consumed)


class LogInfo(Struct, frozen=True, kw_only=True):
    """What a listing says of a log."""

    name: str
    start_offset: int
    end_offset: int
    bytes: int
    created: datetime
    """When it was made, in UTC."""
    timestamp: int
    """The largest timestamp of a record, or when it was made: milliseconds since the epoch."""
    retention: Retention = Retention()
    partitions: int = 0
    """The number of partitions, of which all other figures are sums; 0 for a plain log."""
    id: int = 0
    """The id of the log in its store. A log that is deleted and made again gets a new id.

    0 if the id is unknown, or a partition does not exist yet. A partitioned log has the id of its first
    partition.
    """

    def __len__(self) -> int:
        """Records present."""
        return self.end_offset - self.start_offset


def joined_info(log: str, infos: Sequence[LogInfo]) -> LogInfo:
    """Describe a log with partitions for a listing: offsets and bytes are sums over the partitions."""
    return LogInfo(
        name=log,
        start_offset=sum(info.start_offset for info in infos),
        end_offset=sum(info.end_offset for info in infos),
        bytes=sum(info.bytes for info in infos),
        created=infos[0].created,
        timestamp=max(info.timestamp for info in infos),
        retention=infos[0].retention,
        partitions=len(infos),
        id=infos[0].id,
    )


class PartitionOffset(Struct, frozen=True, order=True, gc=False):
    """Where a record of a log with partitions went."""

    partition: int
    offset: int


class CursorInfo(Struct, frozen=True, kw_only=True):
    """What a listing says of a cursor."""

    name: str
    floor: int
    ranges: list[tuple[int, int]]
    """Acknowledged above the floor, half-open."""
    lag: int
    """Records in the log that are not acknowledged."""
    section: int
    durable: bool
    set_back: int = 0
    """How often the cursor was set back, because records that it had passed were set aside."""
    log_id: int = 0
    """The id of the log; another log has the name once records were set aside."""
    lost: int = 0
    """How many records retention deleted before the cursor acknowledged them, ever."""
    lost_ranges: list[tuple[int, int]] = []
    """Half-open ranges of deleted records that the cursor has neither acknowledged nor passed over."""


class Extent(Struct, frozen=True, array_like=True):
    """The start and end of a log, and its id; a name may stand for another log later."""

    start: int
    end: int
    id: int = 0
    """The id of the log; 0 if there is no log."""
    equal_below: int | None = None
    """Below this offset the log has the records of the log that the caller knew, whose last records
    were set aside. None if the log is the same, or unrelated."""

    def position_of(self, position: int) -> int:
        """Return where a reader continues that stands at a position of the log that it knew."""
        return position if self.equal_below is None else min(position, self.equal_below)


class Producer(Struct, frozen=True):
    """The producer, epoch and sequence of an append; a repeated append stores nothing.

    Sequences count the appends of one producer to one log, by one. A higher epoch fences the
    producer's earlier incarnations.
    """

    name: str
    sequence: int
    epoch: int = 0


class SqlRow(tuple[Any, ...]):
    """A row of a statement's result: a tuple whose values also have the names of their columns.

    `row[0]`, `row["name"]`, `name, total = row` and `dict(row)` work.
    """

    __slots__ = ()
    columns: ClassVar[tuple[str, ...]] = ()
    """The names of the columns, in order."""
    _places: ClassVar[dict[str, int]] = {}

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns, in order."""
        return self.columns

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            try:
                place = self._places[place]
            except KeyError:
                names = ", ".join(self.columns)
                raise KeyError(f"no column {place!r}; the columns are {names}") from None
        return super().__getitem__(place)

    def __reduce__(self) -> tuple[Any, ...]:
        return _sql_row, (self.columns, tuple(self))


@lru_cache(maxsize=1_000)
def sql_row_type(columns: tuple[str, ...]) -> type[SqlRow]:
    """Return the class of rows with these columns; of two columns with one name the first has it."""
    places = {name: at for at, name in reversed(list(enumerate(columns)))}
    return type("SqlRow", (SqlRow,), {"__slots__": (), "columns": columns, "_places": places})


def _sql_row(columns: tuple[str, ...], values: tuple[Any, ...]) -> SqlRow:
    return sql_row_type(columns)(values)


class SqlResult(Struct, frozen=True):
    """The result of a statement on the application's own tables; iteration gives the rows."""

    rows: list[SqlRow]
    changed: int = 0
    """How many rows it inserted, updated or deleted."""
    rowcount: int = -1
    """As of `sqlite3`: the number of changed rows; -1 for a statement that only reads."""
    lastrowid: int | None = None
    """The rowid of the last row that the transaction has inserted; None if no row was inserted."""

    def __iter__(self) -> Iterator[SqlRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def all(self) -> list[SqlRow]:
        """Return every row."""
        return self.rows

    def one(self) -> SqlRow:
        """Return the only row; raise `NotFound` without a row, `InvalidInput` for several rows."""
        row = self.one_or_none()
        if row is None:
            raise NotFound("the statement gave no row, and one() needs one; see one_or_none()")
        return row

    def one_or_none(self) -> SqlRow | None:
        """Return the only row, or None; raise `InvalidInput` for several rows."""
        if len(self.rows) > 1:
            raise InvalidInput(
                f"the statement gave {len(self.rows)} rows, and one row was expected; see all()"
            )
        return self.rows[0] if self.rows else None

    def scalar(self) -> Any:
        """Return the first value of the first row; None without a row."""
        return next(iter(self.rows[0])) if self.rows else None


class Owner(Struct, frozen=True, kw_only=True):
    """Which store may append to a log."""

    store: str
    """The store's id."""
    epoch: int
    """How often the owner has changed."""
    here: bool
    """True for the store that answers."""


class SetBackReader(Struct, frozen=True, kw_only=True):
    """A cursor or a queue that went back, because records that it had passed were set aside."""

    kind: Literal["cursor", "queue"]
    name: str
    passed: int
    """How far it had come."""
    offset: int
    """The offset of the next record."""
    withdrawn: int = 0
    """Of a queue: messages that were available or in flight, and that only the fork has now."""


class Merged(Struct, frozen=True, kw_only=True):
    """The outcome of a merge of a fork."""

    parent: str
    """The parent log of the merge."""
    adopted: int
    """Records that the parent took over."""
    start: int
    """The first offset of the parent."""
    end: int
    """The end offset of the parent."""
    set_aside: str | None = None
    """The log that holds what was the parent's own behind the fork point, if the fork won."""
