"""What copies of a log ask of one another; what users ask of forks and owners is in `log.commands`."""

from __future__ import annotations

from msgspec import Struct, field

from millstream.command import Operation, Procedure, Read, Traits, on_copy, on_store
from millstream.errors import InvalidInput
from millstream.format.packing import check_timestamp
from millstream.log.model.block import RecordBlock
from millstream.log.model.metadata import Meta
from millstream.log.model.names import check_integer, check_name
from millstream.record import SetBackReader
from millstream.replica.chain import Mark

NAMES_MAX = 1_000
"""Logs that one question may name."""


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
    metadata: bytes = b""
    """A digest of the metadata's entries, deleted ones included; empty if there are none."""

    def check(self) -> None:
        """Refuse what another store says of a log if no log can be so."""
        check_name(self.name)
        check_name(self.owner, "store")
        for what, number in (("a start", self.start), ("an epoch", self.epoch)):
            check_integer(what, number)
        check_timestamp(self.timestamp_ms)
        self.base.check()
        Mark(self.end, self.digest).check()
        if not self.base.offset <= self.start <= self.end:
            raise InvalidInput(
                f"log {self.name!r} cannot have a base of {self.base.offset}, a start of "
                f"{self.start} and an end of {self.end}"
            )


class GetStoreId(Read[str], frozen=True):
    """The id of the store."""

    traits = Traits(needs="nothing")


class Unsynced(Struct, frozen=True, array_like=True):
    """Things of one kind that a store holds and no sync carries."""

    kind: str
    """`queue`, `cursor`, `room`, `token` or `table`, of the application."""
    count: int
    names: list[str]
    """The first of them; none of tokens."""
    messages: int = 0
    """Of all queues: those that wait, are in flight, or have failed."""


class ListUnsynced(Read[list[Unsynced]], frozen=True):
    """What the store holds that no sync carries."""

    traits = Traits(needs=(on_store("read"),))


class SummarizeLogs(Read[list[Summary]], frozen=True):
    """How logs stand, in the order of their names, after one name, at most so many."""

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int
    pattern: str = "*"


class SummarizeNamed(Read[list[Summary]], frozen=True):
    """How the logs of these names stand; those that do not exist are left out."""

    traits = Traits(needs="seen")

    names: list[str]


class SummarizeLog(Read[Summary | None], frozen=True):
    """How a log stands; None if there is none."""

    traits = Traits(needs=(on_copy("read"),))

    log: str


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


class Parcel(Struct, frozen=True, array_like=True):
    """Blocks up to an offset, and the running hash there: what is sent of a log at once."""

    end: int
    digest: bytes
    blocks: list[RecordBlock] = []
    packed: bytes = b""
    """The blocks as MessagePack and zstd, in place of `blocks`."""
    size: int = 0
    """Bytes of what is packed."""

    def weight(self) -> int:
        """Bytes that travel."""
        return len(self.packed) or sum(map(weight, self.blocks))


def weight(block: RecordBlock) -> int:
    """Bytes of a block that travel."""
    return len(block.payload) + len(block.metadata)


class SendBlocks(Read[Parcel], frozen=True):
    """Some of the records in [start, stop), from the first on, with the running hash at their end.

    Also below the start of the log.
    """

    traits = Traits(needs=(on_copy("read"),), bytes="bytes_max", is_large=True)

    log: str
    start: int
    stop: int
    bytes_max: int
    compress: bool = False


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


class AdoptParcel(Procedure[int], frozen=True):
    """Take a parcel over, in one commit; answers the log's new end.

    It is checked outside the write lock, hence no operation. Repeated, it changes nothing: the
    log no longer ends at `expect_end`.
    """

    traits = Traits(needs=(on_copy("write"),), repeat="harmless")

    log: str
    parcel: Parcel
    expect_end: int
    epoch: int


class AdoptOwner(Operation[bool], frozen=True):
    """Note who owns a log since some epoch; False if that was known."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    owner: str
    epoch: int
    expect_end: int | None = None
    """If given, only if the log ends there: records beyond would belong to no owner."""


class Adopted(Struct, frozen=True, array_like=True):
    """What one copy took over from another besides records."""

    truncated: int
    """Records that it forgot."""
    metadata: int
    """Entries of metadata that it took over."""


class AdoptState(Operation[Adopted], frozen=True):
    """Take over what is later or newer in another copy, besides its records."""

    traits = Traits(needs=(on_copy("write"),), is_step=True, tidies=True)

    log: str
    start: int = 0
    """Where the other copy begins."""
    timestamp_ms: int = 0
    """When it was changed last."""
    entries: dict[str, Meta] = field(default_factory=dict)


class Aside(Struct, frozen=True, array_like=True):
    """The end of a log that was set aside."""

    fork: str
    """The name of the log that has it now."""
    readers: list[SetBackReader] = []
    """Cursors and queues that had passed its beginning, and went back."""


class SetAside(Operation[Aside], frozen=True):
    """Move the records from an offset on into a fork; cursors and queues beyond it go back."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    at: int
    epoch: int
