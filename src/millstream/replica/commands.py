"""The commands that copies of a log exchange; users' commands for forks and owners: `log.commands`."""

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
"""Log names in one command."""


class Summary(Struct, frozen=True, array_like=True):
    """The state of a log's copy, as one small message."""

    name: str
    start: int
    end: int
    base: Mark
    """The first offset that can be compared and copied; records below it were dropped."""
    digest: bytes
    """The running hash at the end."""
    owner: str
    """The id of the store that may append."""
    epoch: int
    timestamp_ms: int
    metadata: bytes = b""
    """A digest of the metadata's entries, deleted entries included; empty without entries."""

    def check(self) -> None:
        """Refuse a summary of a peer that no log can have."""
        check_name(self.name)
        check_name(self.owner, "store")
        for label, number in (("a start", self.start), ("an epoch", self.epoch)):
            check_integer(label, number)
        check_timestamp(self.timestamp_ms)
        self.base.check()
        Mark(self.end, self.digest).check()
        if not self.base.offset <= self.start <= self.end:
            raise InvalidInput(
                f"log {self.name!r} cannot have a base of {self.base.offset}, a start of "
                f"{self.start} and an end of {self.end}"
            )


class GetStoreId(Read[str], frozen=True):
    """Return the id of the store."""

    traits = Traits(needs="nothing")


class Unsynced(Struct, frozen=True, array_like=True):
    """Entities of one kind that a store holds and no sync carries."""

    kind: str
    """`queue`, `cursor`, `room`, `token` or `table`, of the application."""
    count: int
    names: list[str]
    """The first names; empty for tokens, whose names stay private."""
    messages: int = 0
    """Messages of all queues that wait, are in flight, or have failed."""


class ListUnsynced(Read[list[Unsynced]], frozen=True):
    """List the entities of the store that no sync carries."""

    traits = Traits(needs=(on_store("read"),))


class SummarizeLogs(Read[list[Summary]], frozen=True):
    """Summarize logs in the order of their names, after a name, up to a limit."""

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int
    pattern: str = "*"


class SummarizeNamed(Read[list[Summary]], frozen=True):
    """Summarize the logs of the listed names; names without a log are left out."""

    traits = Traits(needs="seen")

    names: list[str]


class SummarizeLog(Read[Summary | None], frozen=True):
    """Summarize a log; None if the log does not exist."""

    traits = Traits(needs=(on_copy("read"),))

    log: str


class GetChain(Read[bytes], frozen=True):
    """Return the running hash at an offset."""

    traits = Traits(needs=(on_copy("read"),))

    log: str
    offset: int


class DigestRange(Read[bytes], frozen=True):
    """Return the digest of the records in [start, stop), independent of earlier records."""

    traits = Traits(needs=(on_copy("read"),))

    log: str
    start: int
    stop: int


class Parcel(Struct, frozen=True, array_like=True):
    """Blocks up to an offset, and the running hash at that offset: one step of a transfer."""

    end: int
    digest: bytes
    blocks: list[RecordBlock] = []
    packed: bytes = b""
    """The blocks as MessagePack and zstd, in place of `blocks`."""
    size: int = 0
    """Bytes of the blocks before compression."""

    def weight(self) -> int:
        """Return how many bytes travel."""
        return len(self.packed) or sum(map(weight, self.blocks))


def weight(block: RecordBlock) -> int:
    """Return how many bytes of a block travel."""
    return len(block.payload) + len(block.metadata)


class SendBlocks(Read[Parcel], frozen=True):
    """Read records of [start, stop), from the first on, with the running hash at their end.

    Records below the start of the log are read too, if their bytes are still there.
    """

    traits = Traits(needs=(on_copy("read"),), bytes="bytes_max", is_large=True)

    log: str
    start: int
    stop: int
    bytes_max: int
    compress: bool = False


class GetStampedMetadata(Read[dict[str, Meta]], frozen=True):
    """Return every metadata entry with its stamp, deleted entries included."""

    traits = Traits(needs=(on_copy("read"),))

    log: str


class StartReplica(Operation[bool], frozen=True):
    """Make an empty copy that begins at the base of a peer's copy.

    A copy that ends before the base begins anew at the base. False if a log exists that ends behind
    it.
    """

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    base: Mark
    owner: str
    epoch: int


class AdoptParcel(Procedure[int], frozen=True):
    """Append the records of a parcel in one commit, and return the log's new end.

    The parcel is checked outside the write lock, so this command is no operation. A repeat changes
    nothing: the log no longer ends at `expect_end`.
    """

    traits = Traits(needs=(on_copy("write"),), repeat="harmless")

    log: str
    parcel: Parcel
    expect_end: int
    epoch: int


class AdoptOwner(Operation[bool], frozen=True):
    """Record the owner of a log and its epoch; False if the log has them already."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    owner: str
    epoch: int
    expect_end: int | None = None
    """If set, the log must end here: records beyond would belong to no owner."""


class Adopted(Struct, frozen=True, array_like=True):
    """The changes that a copy took over besides records."""

    truncated: int
    """Records that the copy forgot."""
    metadata: int
    """Entries of metadata that the copy took over."""


class AdoptState(Operation[Adopted], frozen=True):
    """Take over the later start and the newer metadata of another copy."""

    traits = Traits(needs=(on_copy("write"),), is_step=True, tidies=True)

    log: str
    start: int = 0
    """The start of the sender's copy."""
    timestamp_ms: int = 0
    """When the other copy was changed last."""
    entries: dict[str, Meta] = field(default_factory=dict)


class Aside(Struct, frozen=True, array_like=True):
    """The tail of a log that was set aside."""

    fork: str
    """The name of the log that holds the tail now."""
    readers: list[SetBackReader] = []
    """Cursors and queues that had passed the start of the tail, and were set back."""


class SetAside(Operation[Aside], frozen=True):
    """Move the records from an offset on into a fork, and set cursors and queues beyond it back."""

    traits = Traits(needs=(on_copy("write"),), is_step=True)

    log: str
    at: int
    epoch: int
