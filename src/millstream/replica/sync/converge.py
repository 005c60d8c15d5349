"""Converging one log: which of two copies gives records to the other. No I/O.

A copy belongs to an owner with an epoch. Of two different pairs (epoch, owner) the greater leads:
the other copy's additional records were written by a store that had lost the log, and are set aside
in a fork, never lost. Under equal pairs one copy is the beginning of the other, and the longer copy
gives to the shorter. If the copies differ below both ends they are a fork, and `on_fork` decides.

The alternative is a merge that orders the records of both copies by time. It would need no owner, but
records would change their offsets, and cursors and queues would point at other records. The price of
our rule: what two stores append at the same time ends up in a fork, and users merge the fork.

Each step is one commit in one store, and leaves copies that can be synced again: a sync that is cut
off in the middle continues where it ended.
"""

from __future__ import annotations

from typing import Any

from msgspec import MsgspecError, convert
from msgspec.structs import asdict, replace

from millstream.command import Transact
from millstream.errors import (
    Conflict,
    Fenced,
    ForkDetected,
    InvalidInput,
    Truncated,
)
from millstream.log.commands import MergeFork
from millstream.log.model.metadata import Meta
from millstream.log.model.names import check_name
from millstream.replica.commands import (
    AdoptOwner,
    AdoptState,
    Aside,
    GetStampedMetadata,
    Parcel,
    SetAside,
    StartReplica,
    SummarizeLog,
    Summary,
)
from millstream.replica.metadata import news
from millstream.replica.sync.compare import Copies, compare
from millstream.replica.sync.outcome import LogOutcome, Options, Progress, SetBack, Tell
from millstream.replica.sync.shipment import ship
from millstream.replica.sync.steps import OPPOSITE, Party, Question, Steps, ask

_WRITTEN: dict[str, tuple[Party, ...]] = {
    "both": ("local", "peer"),
    "pull": ("local",),
    "push": ("peer",),
}


class Convergence:
    """One log of two stores, while both copies are made equal."""

    def __init__(
        self, log: str, options: Options, *, stores: dict[Party, str], tell: Tell | None
    ) -> None:
        self.log = log
        self.outcome = LogOutcome(log=log)
        self._options = options
        self._stores = stores
        self._tell = tell
        self._written = _WRITTEN[options.direction]
        self._copies: Copies = {}

    def run(self, local: Summary | None, peer: Summary | None) -> Steps[None]:
        """Make both copies equal, as far as the direction allows."""
        self._copies.clear()
        for party, copy in (("local", local), ("peer", peer)):
            if copy is not None:
                copy.check()
                self._copies[party] = copy  # type: ignore[index]
        if len(self._copies) < 2 and not (yield from self._start()):
            return
        if local is not None and peer is not None and _same(local, peer):
            return
        yield from self._refuse_strangers()
        # A comparison needs a range of offsets that both copies have, so `_meet` and `_anchor` come
        # first. The state comes last: the start that a copy takes over must lie within its records.
        if (yield from self._meet()):
            yield from self._anchor()
            yield from self._converge_records()
        yield from self._converge_state()

    # Beginnings.

    def _start(self) -> Steps[bool]:
        """Make the missing copy; False if the direction does not write to that store."""
        (present,) = self._copies
        missing = OPPOSITE[present]
        if missing not in self._written:
            return False
        summary = self._copies[present]
        yield from self._begin_at(missing, summary)
        return True

    def _begin_at(self, party: Party, source: Summary) -> Steps[None]:
        """Let a copy begin at the base of the source.

        The copy's former records lie below that base. The source no longer has them and cannot tell
        whether they were equal, so a fork keeps them.
        """
        base, owner, epoch = source.base, source.owner, source.epoch
        before = self._copies.get(party)
        if before is not None and not _is_virgin(before):
            owner, epoch = before.owner, before.epoch
        start = StartReplica(self.log, base, owner, epoch)
        if before is not None and before.end > before.start:
            aside = SetAside(self.log, before.end, before.epoch)
            aside_answer, was_started = yield from ask(party, Transact([aside, start]))
            self._note_aside(party, aside_answer)
        else:
            was_started = yield from ask(party, start)
        if not was_started:
            raise Conflict(f"log {self.log!r} came to exist meanwhile; sync again", log=self.log)
        if before is not None:
            self.outcome.truncated += before.end - before.start
        made = Summary(
            name=self.log,
            start=base.offset,
            end=base.offset,
            base=base,
            digest=base.digest,
            owner=owner,
            epoch=epoch,
            timestamp_ms=0,
            metadata=b"",
        )
        if before is not None:
            made = replace(made, metadata=before.metadata, timestamp_ms=before.timestamp_ms)
        self._copies[party] = made

    def _meet(self) -> Steps[bool]:
        """Let a copy that ends before the base of the opposite copy start again at that base.

        False if the direction does not write to the copy: no records can then be exchanged.
        """
        for party in ("local", "peer"):
            copy, opposite = self._copies[party], self._copies[OPPOSITE[party]]
            if copy.end >= opposite.base.offset:
                continue
            if _pair(copy) > _pair(opposite) and not _is_virgin(copy):
                raise self._truncated_apart(copy, opposite)
            if party not in self._written:
                return False
            if not self._options.truncate:
                raise Truncated(
                    f"this copy of log {self.log!r} ends at {copy.end}, and the other one has nothing "
                    f"before {opposite.base.offset}; it cannot go on there and forget nothing",
                    log=self.log,
                    offset=copy.end,
                    start=opposite.base.offset,
                )
            yield from self._begin_at(party, opposite)
        return True

    def _anchor(self) -> Steps[None]:
        """Check the hashes of copies that meet at an offset without overlapping."""
        apart: list[Party] = [
            party
            for party in ("local", "peer")
            for copy, base in ((self._copies[party], self._copies[OPPOSITE[party]].base),)
            if copy.end == base.offset and copy.digest != base.digest
        ]
        if not apart:
            return
        party = min(
            apart, key=lambda party: (_pair(self._copies[party]), self._copies[party].digest)
        )
        opposite = self._copies[OPPOSITE[party]]
        copy = self._copies[party]
        if _pair(copy) > _pair(opposite) and not _is_virgin(copy):
            raise self._truncated_apart(copy, opposite)
        if party in self._written:
            yield from self._begin_at(party, opposite)

    # Records.

    def _compare(self, taker: Party | None) -> Steps[int | None]:
        """Return the first difference; `taker` is the party that would give way, if decided."""
        comparison = yield from compare(self.log, self._copies)
        if comparison.is_chained:
            return comparison.difference
        bases = {party: copy.base.offset for party, copy in self._copies.items()}
        if taker is None:
            local, peer = self._copies["local"], self._copies["peer"]
            taker = "local" if local.end < peer.end else "peer"
        giver = OPPOSITE[taker]
        if bases[taker] > bases[giver]:
            raise self._truncated_apart(self._copies[giver], self._copies[taker])
        return bases[giver]

    def _converge_records(self) -> Steps[None]:
        local, peer = self._copies["local"], self._copies["peer"]
        if _pair(local) != _pair(peer):
            yield from self._follow_leader()
            return
        difference = yield from self._compare(None)
        if difference is not None:
            yield from self._settle_fork(difference)
            return
        if local.end != peer.end:
            yield from self._fill(shorter="local" if local.end < peer.end else "peer")

    def _follow_leader(self) -> Steps[None]:
        """Make the older epoch's copy follow the leading copy, and set its extra records aside."""
        leader: Party = max(self._copies, key=lambda party: _pair(self._copies[party]))
        follower = OPPOSITE[leader]
        ahead, behind = self._copies[leader], self._copies[follower]
        if _is_virgin(ahead):
            if _is_virgin(behind):
                return
            leader, follower, ahead, behind = follower, leader, behind, ahead
        difference = yield from self._compare(follower)
        at = ahead.end if difference is None else difference
        if follower not in self._written:
            if difference is None and behind.end <= ahead.end:
                return
            raise Fenced(
                f"log {self.log!r} is owned by {ahead.owner} since epoch {ahead.epoch}, and this "
                f"direction cannot tell the copy of epoch {behind.epoch}: sync in both directions",
                log=self.log,
                epoch=ahead.epoch,
                owner=ahead.owner,
            )
        # A tail is set aside in the commit that changes the owner. Without a tail the owner changes
        # after the fill, and only if the log still ends there: the owner of a record that was
        # appended meanwhile would be unknown.
        if behind.end > at:
            yield from self._set_aside(follower, at, leader=ahead)
            yield from self._fill(shorter=follower)
        else:
            yield from self._fill(shorter=follower)
            end = self._copies[follower].end
            yield from ask(follower, AdoptOwner(self.log, ahead.owner, ahead.epoch, end))
        self.outcome.owner = ahead.owner

    def _refuse_strangers(self) -> Steps[None]:
        """Refuse two logs that were made independently under the same name."""
        local, peer = self._copies["local"], self._copies["peer"]
        if local.epoch or peer.epoch or local.owner == peer.owner:
            return
        if _is_virgin(local) or _is_virgin(peer):
            return
        comparison = yield from compare(self.log, self._copies)
        difference = (
            min(local.end, peer.end) if comparison.difference is None else comparison.difference
        )
        raise ForkDetected(
            f"log {self.log!r} was made in both stores ({local.owner} and {peer.owner}): these are two "
            "logs of one name. Take one of them over, sync another name, or move one to another log",
            log=self.log,
            offset=difference,
        )

    def _settle_fork(self, at: int) -> Steps[None]:
        """Resolve a fork of copies of the same owner and epoch, by the rule of the options."""
        local, peer = self._copies["local"], self._copies["peer"]
        rule = self._options.on_fork
        if rule == "refuse":
            raise ForkDetected(
                f"the copies of log {self.log!r} differ from offset {at} on; on_fork='longest' or "
                "'rebase' says which of them is to count",
                log=self.log,
                offset=at,
            )
        # The longer copy wins; the digest breaks ties, so that both stores decide alike whichever
        # of them runs the sync. A rebase instead lets the owner's store give way: only there can
        # records be appended again.
        winner: Party = "local" if (local.end, local.digest) > (peer.end, peer.digest) else "peer"
        home = self._home()
        if rule == "rebase" and home is not None:
            winner = OPPOSITE[home]
        loser = OPPOSITE[winner]
        if loser not in self._written:
            raise ForkDetected(
                f"the copies of log {self.log!r} differ from offset {at} on, and this direction "
                "cannot change the one that is to give way: sync in both directions",
                log=self.log,
                offset=at,
            )
        fork = yield from self._set_aside(loser, at)
        yield from self._fill(shorter=loser)
        if rule == "rebase" and loser == home:
            merged = yield from ask(loser, MergeFork(fork, "rebase"))
            self._move(loser, merged.end, b"")
            if winner in self._written:
                yield from self._again(loser)
                yield from self._fill(shorter=winner)

    def _home(self) -> Party | None:
        """Return the party whose store may append to the log."""
        for party, copy in self._copies.items():
            if copy.owner == self._stores[party]:
                return party
        return None

    def _set_aside(self, party: Party, at: int, *, leader: Summary | None = None) -> Steps[str]:
        """Set a tail aside, and change the owner in the same commit: no append comes between."""
        copy = self._copies[party]
        if at < copy.start:
            raise self._truncated_apart(leader or self._copies[OPPOSITE[party]], copy)
        aside = SetAside(self.log, at, copy.epoch)
        if leader is None:
            answer = yield from ask(party, aside)
        else:
            owner = AdoptOwner(self.log, leader.owner, leader.epoch)
            answer, _ = yield from ask(party, Transact([aside, owner]))
        fork = self._note_aside(party, answer)
        self._move(party, at, b"")
        if leader is not None:
            self._copies[party] = replace(
                self._copies[party], owner=leader.owner, epoch=leader.epoch
            )
        source = self._copies[OPPOSITE[party]]
        if at == source.base.offset:
            yield from self._begin_at(party, source)
        return fork

    def _note_aside(self, party: Party, answer: Any) -> str:
        """Record a tail that became a fork and readers that were set back; return the fork's name."""
        try:  # the wire gives the results of a transaction without their types
            aside = answer if isinstance(answer, Aside) else convert(answer, Aside)
        except MsgspecError as error:
            raise InvalidInput(
                f"the peer set records aside, and does not say where: {error}"
            ) from error
        check_name(aside.fork)
        self.outcome.set_aside.append(aside.fork)
        for reader in aside.readers:
            self.outcome.set_back.append(SetBack(store=self._stores[party], **asdict(reader)))
        return aside.fork

    def _truncated_apart(self, leader: Summary, copy: Summary) -> Conflict:
        """Return the error for a copy that has forgotten where it parted from the other copy."""
        return Conflict(
            f"a copy of log {self.log!r} (epoch {copy.epoch}, of {copy.owner}) has forgotten the "
            f"records at which it parted from that of {leader.owner} (epoch {leader.epoch}), up to "
            f"{copy.start}; fork it to keep what it has, delete it, and sync again",
            log=self.log,
            start=copy.start,
            owner=leader.owner,
        )

    def _fill(self, *, shorter: Party) -> Steps[None]:
        """Send the records that the shorter copy lacks, in parcels."""
        if shorter not in self._written:
            return
        source, first = self._copies[OPPOSITE[shorter]], self._copies[shorter].end

        def took(parcel: Parcel, count: int) -> None:
            self._note(shorter, parcel, count, parcel.end - first, source.end - first)

        compress = self._options.compress
        end = yield from ship(
            self.log, source, taker=shorter, start=first, compress=compress, took=took
        )
        self._move(shorter, end, source.digest)

    def _note(self, party: Party, parcel: Parcel, count: int, done: int, total: int) -> None:
        if party == "local":
            self.outcome.pulled += count
        else:
            self.outcome.pushed += count
        self.outcome.bytes += parcel.weight()
        if self._tell is not None:
            way = "pull" if party == "local" else "push"
            self._tell(Progress(self.log, way, done, total, self.outcome.bytes))  # type: ignore[arg-type]

    # State besides the records.

    def _converge_state(self) -> Steps[None]:
        """Take over the newer metadata, the later start and the later timestamp."""
        local, peer = self._copies["local"], self._copies["peer"]
        entries: dict[Party, dict[str, Meta]] = {"local": {}, "peer": {}}
        if local.metadata != peer.metadata:
            question = GetStampedMetadata(self.log)
            mine, theirs = yield [Question("local", question), Question("peer", question)]
            entries = {"local": news(mine, theirs), "peer": news(theirs, mine)}
        latest = max(local.timestamp_ms, peer.timestamp_ms)
        for party in self._written:
            copy, start = self._copies[party], max(local.start, peer.start)
            if not (self._options.truncate and copy.start < start <= copy.end):
                start = 0
            if start or entries[party] or copy.timestamp_ms < latest:
                adopted = yield from ask(party, AdoptState(self.log, start, latest, entries[party]))
                self.outcome.truncated += adopted.truncated
                self.outcome.metadata += adopted.metadata

    # The summaries as they change.

    def _move(self, party: Party, end: int, digest: bytes) -> None:
        self._copies[party] = replace(self._copies[party], end=end, digest=digest)

    def _again(self, party: Party) -> Steps[None]:
        """Summarize a copy again."""
        summary = yield from ask(party, SummarizeLog(self.log))
        if summary is not None:
            summary.check()
            self._copies[party] = summary


def _pair(copy: Summary) -> tuple[int, str]:
    return copy.epoch, copy.owner


def _is_virgin(copy: Summary) -> bool:
    """Whether the log was never written to: an empty log at epoch 0 gives way to any other."""
    return not copy.end and not copy.epoch


def _same(local: Summary, peer: Summary) -> bool:
    """Whether the summaries are equal, so that there is nothing to do."""
    return all(
        (
            (local.start, local.end, local.digest) == (peer.start, peer.end, peer.digest),
            _pair(local) == _pair(peer),
            local.metadata == peer.metadata,
            local.timestamp_ms == peer.timestamp_ms,
        )
    )
