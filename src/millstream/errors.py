"""One tree of exceptions; each carries data, and says whether a retry can help.

    MillstreamError
    ├── InvalidInput            the request can never succeed as it stands   (also a ValueError)
    │   ├── InvalidName         a log, cursor, producer or queue name
    │   ├── TooLarge            a value, header, batch or filter over its limit
    │   ├── InvalidFilter       a filter that does not parse: line, column, what was expected
    │   └── ConstraintViolation a statement against a constraint of the application's tables
    ├── NotFound                no such log, cursor or queue                 (also a LookupError)
    ├── OutOfRange              a position at or past the end                (also an IndexError)
    ├── Truncated               a position whose record was dropped          (also an IndexError)
    │   └── RecordsLost         retention deleted records before a cursor read them
    ├── Conflict                the state is not what the caller expected
    │   ├── AlreadyExists       a name is taken
    │   ├── EndMoved            compare-and-set append: the log has grown
    │   ├── MetadataConflict    compare-and-set of a metadata entry
    │   ├── OutOfSequence       a producer's sequence is too old, or has a gap
    │   ├── Fenced              a newer epoch of the same producer or writer exists
    │   ├── LeaseLost           a claim does not hold: its lease ended, or the message did
    │   ├── NotOwner            the log is written elsewhere
    │   ├── Partitioned         the log has partitions: one is asked, or all as one
    │   └── ForkDetected        two copies of a log differ below both ends
    ├── Denied                  a token that may not do this
    │   └── Unauthenticated     no token, or one that is not known
    ├── Locked                  a staging handle holds the log exclusively   (retry)
    ├── Overloaded              a bound was reached; slow down               (retry)
    ├── CorruptionError         bytes that are not what was written: what, and where
    └── StoreError
        ├── CannotOpen          not ours, newer, read-only, missing: names the file
        ├── Closed              the handle was closed
        ├── Poisoned            something acknowledged is missing from the disk: the handle has ended
        ├── WriteFailed         the write failed and nothing of it was stored (retry)
        │   ├── DiskFull        there is too little room on the disk         (retry)
        │   ├── Recovering      an earlier write failed, and is being looked into (retry)
        │   ├── TransactionExpired  an interactive transaction lasted too long (retry)
        │   ├── StoreGone       the store's file was removed or replaced while it was open
        │   ├── NotLeader       another node of the cluster takes writes     (retry)
        │   └── NoQuorum        too few servers of the cluster answer        (retry)
        └── OutcomeUnknown      the write may or may not have become durable

An unknown outcome is never reported as a failure: after `OutcomeUnknown` the caller must look, or
repeat the call under a producer sequence, which makes the repeat exactly once.
"""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar


class MillstreamError(Exception):
    """The root. `data` holds the facts behind the message; they are attributes as well."""

    retry: ClassVar[bool] = False

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


class InvalidInput(MillstreamError, ValueError):
    """The request can never succeed as it stands."""


class InvalidName(InvalidInput):
    """A log, cursor, producer or queue name that is empty, too long, or holds control characters."""


class TooLarge(InvalidInput):
    """A value, header, batch or filter over its limit. Data: `limit`, `size`."""


class InvalidFilter(InvalidInput):
    """A filter that does not parse. Data: `line`, `column`, `expected`."""


class ConstraintViolation(InvalidInput):
    """A statement would break a constraint of the application's tables, and changed nothing.

    Data: `kind` ("unique", "primary key", "not null", "check", "foreign key", "datatype" or "other"),
    `table` and `columns` of the constraint, `constraint` (its name or expression, if SQLite says it)
    and `statement`. Of a foreign key, `table` is the table that the statement changes.
    """


class NotFound(MillstreamError, LookupError):
    """No such log, cursor or queue. Data: `name`."""


class OutOfRange(MillstreamError, IndexError):
    """A position at or past the end. Data: `position`, `end`."""


class Truncated(MillstreamError, IndexError):
    """A position whose record was dropped. Data: `log`, `offset`, `start`."""


class RecordsLost(Truncated):
    """Retention deleted records before a cursor with `on_loss="raise"` read them.

    Data: `log`, `cursor`, `count`, `ranges` (half-open), `offset` (the first lost record), `start`
    (the first record that is left).
    """


class Conflict(MillstreamError):
    """The state is not what the caller expected."""


class AlreadyExists(Conflict):
    """A name is taken. Data: `name`."""


class EndMoved(Conflict):
    """A compare-and-set append found another end. Data: `log`, `expected`, `end`."""


class MetadataConflict(Conflict):
    """A compare-and-set of a metadata entry found another value. Data: `key`, `found`."""


class OutOfSequence(Conflict):
    """A producer's sequence is older than what is remembered, or leaves a gap. Data: `expected`."""


class Fenced(Conflict):
    """A newer epoch of the same producer or writer exists. Data: `epoch`."""


class LeaseLost(Conflict):
    """A claim does not hold. Data: `queue`; `lost`, runs of claims; `why`, for each of these what
    became of the messages: expired, claimed_again, given_back, done, failed or unknown."""


class NotOwner(Conflict):
    """The log is written elsewhere. Data: `owner`."""


class Partitioned(Conflict):
    """The log has partitions: name a partition, or use the partitioned log. Data: `log`, `partitions`."""


class ForkDetected(Conflict):
    """Two copies of a log differ below both ends. Data: `offset`."""


class Denied(MillstreamError):
    """The token lacks the right. Data: `noun`, `action`, `name`."""


class Unauthenticated(Denied):
    """A missing, wrong, revoked or expired token or ticket; the text does not tell the cases apart."""

    def __init__(
        self,
        message: str = "send a valid token: `Authorization: Bearer ms_…`; "
        "`millstream token create` makes one",
        **data: Any,
    ) -> None:
        super().__init__(message, **data)


class Locked(MillstreamError):
    """A staging handle holds the log exclusively. Data: `log`, `until`."""

    retry = True


class Overloaded(MillstreamError):
    """A bound was reached; slow down and try again."""

    retry = True


class CorruptionError(MillstreamError):
    """Bytes differ from the bytes that were written. Data: `what`, `where`.

    For records also `log`, `offset` and `stop`: records in [offset, stop) cannot be read. For a log in
    a listing its `name`; for a damaged queue its `queue`.
    """


class StoreError(MillstreamError):
    """The store itself, rather than what was asked of it."""


class CannotOpen(StoreError):
    """Not ours, newer, read-only, missing. Data: `path`. The file is left untouched."""


class Closed(StoreError):
    """The handle was closed."""


class Poisoned(StoreError):
    """A write failed, and then not everything acknowledged was found on disk: the handle has ended."""


class WriteFailed(StoreError):
    """The write failed, and nothing of it was stored."""

    retry = True


class DiskFull(WriteFailed):
    """Too little room on the disk, so nothing was stored; reads go on. Data: `path`, `free_bytes`.

    Once there is room, the same handle takes writes again.
    """


class Recovering(WriteFailed):
    """An earlier write failed, and the handle is making sure of what is on disk; reads go on.

    It takes writes again by itself, mostly within milliseconds. Data: `cause`.
    """


class TransactionExpired(WriteFailed):
    """An interactive transaction lasted longer than its time limit, and was rolled back.

    Other writers went on. Data: `timeout`, in seconds.
    """


class StoreGone(WriteFailed):
    """The store's file, or its write-ahead log, was removed, renamed or replaced while it was open.

    Nothing was stored, because the commit would be lost. Reads go on unless another file has the
    name. Once the file is back, the same handle takes writes again. A handle refuses reads and
    writes after the file was overwritten in place. Data: `path`.
    """

    retry = False


class NotLeader(WriteFailed):
    """Another node of the cluster takes writes. Data: `leader` (its address, or None), `epoch`."""


class NoQuorum(WriteFailed):
    """Too few servers of the cluster's shared log answer, so nothing was stored; reads go on."""


class OutcomeUnknown(StoreError):
    """The write may or may not have become durable: look, or repeat it under a producer sequence."""


STORE = "STORE"
"""What a client reads in place of a path of the server."""

_PATH = re.compile(r"(?<![\w:/.~])(?:/[^\s/:;,'\"`()]+){2,}/?")
"""A path of at least two names; addresses of servers and their pages do not match."""


def told_elsewhere(error: MillstreamError) -> tuple[str, dict[str, Any]]:
    """The message and the data of an error, for a client on another machine.

    Where the server keeps its files is nothing that a client may know, or could use.
    """
    if not isinstance(error, StoreError | CorruptionError | Overloaded | Denied):
        return error.message, error.data
    named = (error.data.get(key) for key in ("path", "where"))
    places = {str(place) for place in named if _is_path(place)}
    places |= {os.path.dirname(place) for place in places} - {"", "/"}
    message, data = error.message, dict(error.data)
    for place in sorted(places, key=len, reverse=True):
        message = message.replace(place, STORE)
    message = _PATH.sub(STORE, message)
    for key, value in data.items():
        if _is_path(value):
            data[key] = STORE
        elif isinstance(value, str):
            data[key] = _PATH.sub(STORE, value)
    return message, data


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike) or (isinstance(value, str) and os.path.isabs(value))
