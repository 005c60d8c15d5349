"""What copies of a log ask of one another; what users ask of forks and owners is in `log.commands`."""

from __future__ import annotations

from msgspec import Struct

from millstream.command import Mutation, Query
from millstream.log.block import Block
from millstream.log.metadata import Meta, Stamp
from millstream.replica.chain import Mark


class Summary(Struct, frozen=True, array_like=True):
    """How a copy of a log stands: one small message."""

    name: str
    start: int
    end: int
    base: Mark
    """From here on the log can be compared and copied; what is below was dropped."""
    digest: bytes
    """The running hash at the end."""
    owner: str
    """The id of the store that may append."""
    epoch: int
    timestamp_ms: int
    stamp: Stamp | None
    """The newest of the metadata's entries, deleted ones included."""
    metadata: bytes = b""
    """A digest of all of them; empty if there are none."""


class GetStoreId(Query[str], frozen=True):
    """The id of the store."""


class SummarizeLogs(Query[list[Summary]], frozen=True):
    """How logs stand, in the order of their names, after one name, at most so many."""

    after: str
    limit: int
    pattern: str = "*"


class SummarizeLog(Query[Summary | None], frozen=True):
    """How a log stands; None if there is none."""

    log: str


class GetMarks(Query[list[Mark]], frozen=True):
    """The marks with start <= offset < stop, ascending, at most so many; the base is the first."""

    log: str
    start: int
    stop: int
    limit: int


class GetChain(Query[bytes], frozen=True):
    """The running hash at an offset."""

    log: str
    offset: int


class DigestRange(Query[bytes], frozen=True):
    """The digest of the records in [start, stop), whatever lies before."""

    log: str
    start: int
    stop: int


class TransferBlocks(Query[list[Block]], frozen=True):
    """Some of the records in [start, stop), from the first on; also below the start of the log."""

    log: str
    start: int
    stop: int
    bytes_max: int


class GetStampedMetadata(Query[dict[str, Meta]], frozen=True):
    """Every metadata entry with its stamp, deleted ones included."""

    log: str


class StartReplica(Mutation[bool], frozen=True):
    """Make an empty copy that begins where another one can be read from.

    A copy that ends before that point begins anew there. False if there is a log that does not.
    """

    log: str
    base: Mark
    owner: str
    epoch: int


class AdoptBlocks(Query[int], frozen=True):
    """Append blocks as another copy has them, in one commit; answers the new end.

    Everything is checked before, outside of the write lock: that is why it is no plain mutation.
    """

    log: str
    blocks: list[Block]
    expect_end: int
    digest: bytes
    """The running hash that the log has with these blocks."""
    epoch: int


class AdoptOwner(Mutation[bool], frozen=True):
    """Note who owns a log since some epoch; False if that was known."""

    log: str
    owner: str
    epoch: int
    expect_end: int | None = None
    """If given, only if the log ends there: what else was appended would be nobody's."""


class AdoptMetadata(Mutation[int], frozen=True):
    """Take over metadata entries whose stamps are newer; answers how many."""

    log: str
    entries: dict[str, Meta]


class SetAside(Mutation[str], frozen=True):
    """Move the records from an offset on into a fork of their own; answers its name."""

    log: str
    at: int
    epoch: int
