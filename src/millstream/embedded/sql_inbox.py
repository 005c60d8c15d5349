"""The SQL inbox: messages that any SQLite connection posts by an INSERT in its own transaction.

    column         meaning
    queue, log     the destination: the name of a queue, or of a log; exactly one of them
    value          TEXT is JSON, a BLOB is bytes, a number is JSON
    headers        a JSON object, or NULL
    key            text, bytes or a whole number, or NULL
    deliver_at     seconds since 1970, milliseconds since 1970, or a text as of SQL's `datetime()`
                   in UTC; only for a queue
    message_group, priority, dedup    as the arguments of `Queue.put`

Every handle that may write looks for rows every 20 ms while the file is written (`store/keeper.py`), and
moves them in the order of their ids. One commit deletes the rows and stores the messages, so each row
is moved once, whichever process is killed. Rows are read and checked before this commit. Meanwhile
another process may move them, and SQLite gives their ids to new rows. So the commit reads the rows
again, and stores nothing if they differ. A row that can never be moved goes to
`millstream_inbox_failed`, with the reason.

SQLite cannot notify another process, so the handles poll. Linux reports writes to the file, so there an
idle handle sleeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from millstream.command import Operation
from millstream.embedded.rules import operation, put_for_later
from millstream.engine.protocol import Engine, SqlReader
from millstream.errors import Conflict, CorruptionError, Denied, InvalidInput, Locked, NotFound
from millstream.format.packing import pack_many
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.log.model.names import check_name
from millstream.queue.model.routing_marks import Wishes, check_wishes
from millstream.queue.put_commands import put_batch
from millstream.queue.service.backlog import route_before
from millstream.record import wall_ms_of
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store

T = TypeVar("T")

ROWS_MAX = 5_000
"""The largest number of rows that a commit moves."""

STEP_ROWS = 500
"""Rows that are read before their size is known."""

BYTES_MAX = 8 * 1024 * 1024
"""Rows of one commit end after this number of bytes; a single row may be larger."""

_COLUMNS = "queue, log, value, headers, key, deliver_at, message_group, priority, dedup"
_LOOK = "SELECT 1 FROM millstream_inbox LIMIT 1"
_READ = f"SELECT id, {_COLUMNS} FROM millstream_inbox WHERE id > ? ORDER BY id LIMIT ?"
_AMONG = "millstream_inbox WHERE id IN (SELECT value FROM json_each(?))"
_BETWEEN = "millstream_inbox WHERE id BETWEEN ? AND ?"
_KEEP = (
    f"INSERT INTO millstream_inbox_failed ({_COLUMNS}, reason, failed_at) "
    f"SELECT {_COLUMNS}, ?, ? FROM millstream_inbox WHERE id = ?"
)
_decode_headers = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode

NO_WISHES = Wishes()

_REFUSED = InvalidInput, NotFound, Conflict, Denied
"""Errors that a repetition does not cure."""

_HELD_BACK = Locked, CorruptionError
"""Errors of one destination, whose posts wait: a staging handle holds the log, or a row is damaged."""

_MS_FROM = 100_000_000_000
"""A number from here on is in milliseconds: as seconds it would be the year 5138."""


Post = tuple[Any, ...]
"""A row of the inbox, as SQLite returns it: a thousand objects of a class would wake Python's garbage
collector, which took 1 µs per row."""

_id, _queue, _value, _headers, _key = map(itemgetter, (0, 1, 3, 4, 5))
_destination, _wish = itemgetter(1, 2, 6), itemgetter(7, 8, 9)
"""Columns are read by `map`: Python looks at a column faster than at the rows one by one. That and plain
rows made the inbox twice as fast for rows that only name a queue and a value (2026-11)."""


class PostDelivery(NamedTuple):
    """Posts of one destination, and the command that stores the posts."""

    command: Operation[Any]
    posts: list[Post]


class PostRefusal(NamedTuple):
    """A post that can never be moved."""

    post: Post
    reason: str


class PostsTaken(Conflict):
    """The posts are not as they were read: another process has moved them, or a tool changed them."""


def has_inbox(engine: Engine) -> bool:
    """Return whether an application can post into a store; on a node of a cluster it cannot."""
    return "sql" in engine.abilities and "replicated" not in engine.abilities


class SqlInbox:
    """Moves posts into the queues and logs that they name."""

    def is_waiting(self, store: Store) -> bool:
        """Return whether posts wait; False if another tool has dropped the table."""
        try:
            return bool(_select(store.engine, _LOOK, ()))
        except InvalidInput:
            return False

    def move(self, store: Store) -> bool:
        """Move the first posts; return whether more may wait."""
        try:
            posts = read_posts(store.engine)
        except UnicodeDecodeError:
            now_ms = store.clock.wall_ms()
            return store.run(partial(_undecodable_refused, now_ms))
        if not posts:
            return False
        deliveries, refusals = planned(posts, store.limits)
        _refuse(store, refusals)
        have_moved = [_move_batch(store, batch) for batch in in_commits(deliveries)]
        return bool(refusals) or any(have_moved)


def in_commits(deliveries: Iterable[PostDelivery]) -> list[list[PostDelivery]]:
    """Split deliveries into commits: earlier messages of a queue are routed before a put for later.

    Otherwise a message for later would come first in its group, and hold the group back.
    """
    batches: list[list[PostDelivery]] = [[]]
    queues: set[str] = set()
    for delivery in deliveries:
        if put_for_later(delivery.command) & queues:
            batches.append([])
            queues = set()
        batches[-1].append(delivery)
        queues.add(_queue(delivery.posts[0]))
    return [batch for batch in batches if batch]


def _move_batch(store: Store, batch: list[PostDelivery]) -> bool:
    """Store deliveries by one commit. After a refusal, store each delivery by a separate commit.

    Returns False if all posts still wait.
    """
    try:
        _store(store, [post for delivery in batch for post in delivery.posts], batch, [])
    except PostsTaken:
        pass  # the next call reads the posts that are left
    except (*_REFUSED, *_HELD_BACK):
        # Nothing was stored. Only the refused posts fail, such as those of a missing queue.
        return sum(_deliver(store, delivery) for delivery in batch) > 0
    return True


def _deliver(store: Store, delivery: PostDelivery) -> bool:
    """Store one delivery; if a rule refuses it, the posts of the delivery fail.

    Returns False if the posts wait.
    """
    posts = delivery.posts
    try:
        _store(store, posts, [delivery], [])
    except PostsTaken:
        pass
    except _HELD_BACK:
        return False
    except _REFUSED as error:
        if isinstance(error, NotFound) or len(posts) == 1:
            _refuse(store, [PostRefusal(post, error.message) for post in posts])
        else:
            for post in posts:
                _deliver(store, PostDelivery(_command([post], store.limits), [post]))
    return True


def _refuse(store: Store, refusals: list[PostRefusal]) -> None:
    if refusals:
        with suppress(PostsTaken):
            _store(store, [refusal.post for refusal in refusals], [], refusals)


def read_posts(engine: Engine) -> list[Post]:
    """Read the first posts, in order."""
    posts: list[Post] = []
    size, step = 0, STEP_ROWS
    while len(posts) < ROWS_MAX and size < BYTES_MAX:
        last = _id(posts[-1]) if posts else -math.inf
        page = _select(engine, _READ, (last, step))
        posts += page
        size += _size(list(map(_value, page)))
        if len(page) < step:
            break
        if size * (ROWS_MAX // STEP_ROWS) < BYTES_MAX:  # the rows are small
            step = ROWS_MAX - len(posts)
    return posts


def _size(values: list[Any]) -> int:
    """Return the number of bytes or characters of values; a number takes few bytes."""
    if not set(map(type, values)) <= {bytes, str}:
        values = [value for value in values if isinstance(value, str | bytes)]
    return sum(map(len, values))


def _select(engine: Engine, statement: str, parameters: tuple[Any, ...]) -> list[Post]:
    with engine.read() as snapshot:
        return cast(SqlReader, snapshot).select(statement, parameters)


def _store(
    store: Store, posts: list[Post], deliveries: list[PostDelivery], refusals: list[PostRefusal]
) -> None:
    later: set[str] = set()
    for delivery in deliveries:
        later |= put_for_later(delivery.command)
    if later:
        route_before(store, later)
    now_ms = store.clock.wall_ms()
    store.run(partial(_moved, sorted(posts, key=_id), deliveries, refusals, now_ms))


def _moved(
    posts: list[Post],
    deliveries: list[PostDelivery],
    refusals: list[PostRefusal],
    now_ms: int,
    tx: WriteTransaction,
) -> None:
    with tx.savepoint():
        which, bounds = _rows_of(posts)
        if tx.select(f"SELECT id, {_COLUMNS} FROM {which} ORDER BY id", bounds) != posts:
            raise PostsTaken("the posts are not as they were read")
        for post, reason in refusals:
            tx.sql(_KEEP, (reason, now_ms, _id(post)))
        tx.sql(f"DELETE FROM {which}", bounds)
        for delivery in deliveries:
            operation(delivery.command)(tx)


def _undecodable_refused(now_ms: int, tx: WriteTransaction) -> bool:
    """Refuse those of the first posts that have a TEXT of other bytes than UTF-8; return whether any has.

    SQLite stores such a text, and Python cannot read it. `CAST` makes it from bytes.
    """
    refused = False
    for (number,) in tx.select("SELECT id FROM millstream_inbox ORDER BY id LIMIT ?", (ROWS_MAX,)):
        try:
            tx.select(f"SELECT {_COLUMNS} FROM millstream_inbox WHERE id = ?", (number,))
        except UnicodeDecodeError as error:
            tx.sql(_KEEP, (f"a text is not UTF-8: {error}", now_ms, number))
            tx.sql("DELETE FROM millstream_inbox WHERE id = ?", (number,))
            refused = True
    return refused


def _rows_of(posts: list[Post]) -> tuple[str, tuple[int | str, ...]]:
    """Return the condition for the rows of posts, which are in the order of their ids."""
    ids = list(map(_id, posts))
    if ids[-1] - ids[0] + 1 == len(ids):  # one range takes a third of the time of single ids
        return _BETWEEN, (ids[0], ids[-1])
    return _AMONG, (msgspec.json.encode(ids).decode(),)


def planned(posts: list[Post], limits: Limits) -> tuple[list[PostDelivery], list[PostRefusal]]:
    """Return the commands that store the posts, and the posts that no command can store.

    Posts of one destination keep their order, and share a command if they have the same time.
    """
    destinations = list(map(_destination, posts))
    stretches: dict[tuple[Any, Any, Any], list[Post]] = {}
    if len(set(destinations)) == 1:
        stretches[destinations[0]] = posts
    else:
        for destination, post in zip(destinations, posts, strict=True):
            stretches.setdefault(destination, []).append(post)
    deliveries: list[PostDelivery] = []
    refusals: list[PostRefusal] = []
    for stretch in stretches.values():
        try:
            deliveries.append(PostDelivery(_command(stretch, limits), stretch))
        except InvalidInput:
            sound = _without_refused(stretch, limits, refusals)
            if sound:
                deliveries.append(PostDelivery(_command(sound, limits), sound))
    return deliveries, refusals


def _without_refused(
    stretch: list[Post], limits: Limits, refusals: list[PostRefusal]
) -> list[Post]:
    """Return the posts that a command can store; add the others to the refusals."""
    sound = []
    for post in stretch:
        try:
            _command([post], limits)
            sound.append(post)
        except InvalidInput as error:
            refusals.append(PostRefusal(post, error.message))
    return sound


def _command(stretch: list[Post], limits: Limits) -> Operation[Any]:
    """Return the command for posts of one destination and one time. Raises `InvalidInput`."""
    queue, log, deliver_at = _destination(stretch[0])
    if (queue is None) == (log is None):
        raise InvalidInput("a row names either a queue or a log")
    values = list(map(_value, stretch))
    if set(map(type, values)) != {bytes}:
        values = list(map(_packed, values))
    keys = _converted(map(_key, stretch), _name)
    headers = _converted(map(_headers, stretch), _header_map)
    wishes = _converted(map(_wish, stretch), _wishes, default=(None, None, None))
    if queue is not None:
        check_name(queue, "queue")
        command, _ = put_batch(
            queue,
            values,
            keys=keys,
            headers=headers,
            delay=None,
            at=None if deliver_at is None else _wall_ms(deliver_at),
            limits=limits,
            wishes=wishes,
        )
        assert command is not None
        return command
    if deliver_at is not None or wishes is not None:
        raise InvalidInput(
            "deliver_at, message_group, priority and dedup are for a queue, and this row names a log"
        )
    check_name(log, "log")
    records = pack_many(values, keys=keys, headers=headers, timestamps=None, limits=limits)
    assert records is not None
    return Append(log, records)


def _converted(
    column: Iterable[Any], convert: Callable[[Any], T], *, default: Any = None
) -> list[T] | None:
    """Convert the values of a column; return None if every value is the default."""
    values = list(column)
    return None if values.count(default) == len(values) else list(map(convert, values))


def _wishes(wished: tuple[Any, Any, Any]) -> Wishes:
    group, priority, dedup = wished
    if group is None and priority is None and dedup is None:
        return NO_WISHES
    wishes = Wishes(priority, group, dedup)
    check_wishes(wishes)
    return wishes


def _packed(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        data = value.encode()
        try:
            msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(
                f"the value is text, and not valid JSON: {error}; json_quote() makes a JSON string "
                "of a text, and a BLOB is taken as it is"
            ) from error
        return data
    if value is None:
        raise InvalidInput("the value is NULL; 'null' is the JSON value")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"the value is {value!r}, and JSON has only finite numbers")
    return msgspec.json.encode(value)


def _header_map(headers: Any) -> dict[str, Any] | None:
    if headers is None:
        return None
    try:
        return _decode_headers(headers)
    except (msgspec.MsgspecError, TypeError) as error:
        raise InvalidInput(f"headers is a JSON object of plain values: {error}") from error


def _name(key: Any) -> bytes | str | None:
    if key is None:
        return None
    if isinstance(key, float):
        raise InvalidInput(f"key is text, bytes or a whole number, not {key!r}")
    return str(key) if isinstance(key, int) else key


def _wall_ms(at: Any) -> int:
    """Return a time in milliseconds since 1970."""
    if isinstance(at, int | float) and math.isfinite(at):
        return round(at if at >= _MS_FROM else at * 1000)
    if isinstance(at, str):
        with suppress(ValueError):
            time = datetime.fromisoformat(at)
            return wall_ms_of(time if time.tzinfo else time.replace(tzinfo=UTC))
    raise InvalidInput(
        f"deliver_at is a number of seconds or milliseconds since 1970, or a time as of SQL's "
        f"datetime(), not {at!r}"
    )
