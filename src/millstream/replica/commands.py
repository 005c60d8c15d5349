"""What copies of a log ask of one another; what users ask of forks and owners is in `log.commands`."""

from __future__ import annotations

from msgspec import Struct

from millstream.command import Operation, Procedure, Read, Traits, on_copy
from millstream.log.block import Block
from millstream.log.metadata import Meta, Stamp
from millstream.record import SetBackReader
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


class GetStoreId(Read[str], frozen=True):
    """The id of the store."""

    traits = Traits(needs="nothing")


class SummarizeLogs(Read[list[Summary]], frozen=True):
    """How logs stand, in the order of their names, after one name, at most so many."""

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int
    pattern: str = "*"


class SummarizeLog(Read[Summary | None], frozen=True):
    """How a log stands; None if there is none."""

    traits = Traits(needs=(on_copy("read"),))

    log: str


class GetMarks(Read[list[Mark]], frozen=True):
    """The marks with start <= offset < stop, ascending, at most so many; the base is the first."""

    traits = Traits(needs=(on_copy("read"),), page="limit")

    log: str
    start: int
    stop: int
    limit: int


class GetChain(Read[bytes], frozen=True):
    """The running hash at an offset."""

    traits = Traits(needs=(on_copy("read"),))

    log: str
    offset: int


class DigestRange(Read[bytes], frozen=True):
    """The digest of the records in [start, stop), whatever lies before."""

    traits = Traits(needs=(on_copy("read"),))

    log: str
    start: int
    stop: int


class TransferBlocks(Read[list[Block]], frozen=True):
    """Some of the records in [start, stop), from the first on; also below the start of the log."""

    traits = Traits(needs=(on_copy("read"),), bytes="bytes_max", is_large=True)

    log: str
    start: int
    stop: int
    bytes_max: int


class GetStampedMetadata(Read[dict[str, Meta]], frozen=True):
    """Every metadata entry with its stamp, deleted ones included."""

    traits = Traits(needs=(on_copy("read"),))

    log: str


class StartReplica(Operation[bool], frozen=True):
    """Make an empty copy that begins where another one can be read from.

    A copy that ends before that point begins anew there. False if there is a log that does not.
    """

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    base: Mark
    owner: str
    epoch: int


class AdoptBlocks(Procedure[int], frozen=True):
    """Append blocks as another copy has them, in one commit; answers the new end.

    Everything is checked before, outside of the write lock: that is why it is no operation.
    """

    traits = Traits(needs=(on_copy("write"),), repeat="harmless")

    log: str
    blocks: list[Block]
    expect_end: int
    digest: bytes
    """The running hash that the log has with these blocks."""
    epoch: int


class AdoptOwner(Operation[bool], frozen=True):
    """Note who owns a log since some epoch; False if that was known."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    owner: str
    epoch: int
    expect_end: int | None = None
    """If given, only if the log ends there: records beyond would belong to no owner."""


class AdoptTimestamp(Operation[bool], frozen=True):
    """Note when another copy was last changed; False if this one was later."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    timestamp_ms: int


class AdoptMetadata(Operation[int], frozen=True):
    """Take over metadata entries whose stamps are newer; answers how many."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    entries: dict[str, Meta]


class Aside(Struct, frozen=True, array_like=True):
    """The end of a log that was set aside."""

    fork: str
    """The name of the log that has it now."""
    readers: list[SetBackReader] = []
    """Cursors and queues that had passed its beginning, and went back."""


class SetAside(Operation[Aside], frozen=True):
    """Move the records from an offset on into a fork of their own."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    at: int
    epoch: int
    set_back: bool = False
    """Whether cursors and queues that have passed the offset go back; else it is refused."""
