"""Converging one log: which of two copies gives what to the other. No I/O.

A copy belongs to an owner with an epoch; of two different pairs (epoch, owner) the greater leads. What
the other one holds beyond it was written by a store that no longer may: it is set aside as a fork of
its own, never lost. Under one pair the copies are a log and its beginning, the longer gives to the
shorter; if they differ below both ends they are a fork, and `on_fork` says what to do.

Each step is one commit on one side, and leaves copies that can be synced again: a side that is cut off
in the middle goes on where it ended.
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
from millstream.replica.sync.shipping import ship
from millstream.replica.sync.steps import OTHER, Question, Side, Steps, ask

_WRITTEN: dict[str, tuple[Side, ...]] = {
    "both": ("own", "peer"),
    "pull": ("own",),
    "push": ("peer",),
}


class Convergence:
    """One log of two stores, on its way to being the same in both."""

    def __init__(
        self, log: str, options: Options, *, stores: dict[Side, str], tell: Tell | None
    ) -> None:
        self.log = log
        self.outcome = LogOutcome(log=log)
        self._options = options
        self._stores = stores
        self._tell = tell
        self._written = _WRITTEN[options.direction]
        self._copies: Copies = {}

    def run(self, own: Summary | None, peer: Summary | None) -> Steps[None]:
        """Bring both copies together, as far as the direction allows."""
        self._copies.clear()
        for side, copy in (("own", own), ("peer", peer)):
            if copy is not None:
                copy.check()
                self._copies[side] = copy  # type: ignore[index]
        if len(self._copies) < 2 and not (yield from self._start()):
            return
        if own is not None and peer is not None and _same(own, peer):
            return
        yield from self._refuse_strangers()
        if (yield from self._meet()):
            yield from self._anchor()
            yield from self._converge_records()
        yield from self._converge_state()

    # Beginnings.

    def _start(self) -> Steps[bool]:
        """Make the copy that is missing; False if that is not ours to do."""
        (there,) = self._copies
        missing = OTHER[there]
        if missing not in self._written:
            return False
        found = self._copies[there]
        yield from self._begin_at(missing, found)
        return True

    def _begin_at(self, side: Side, source: Summary) -> Steps[None]:
        """Have a side begin where the source can be read from.

        What it had lies below that. The source no longer has it, and cannot say whether it was
        the same: a fork keeps it.
        """
        base, owner, epoch = source.base, source.owner, source.epoch
        before = self._copies.get(side)
        if before is not None and not _is_virgin(before):
            owner, epoch = before.owner, before.epoch
        start = StartReplica(self.log, base, owner, epoch)
        if before is not None and before.end > before.start:
            aside = SetAside(self.log, before.end, before.epoch)
            found, begun = yield from ask(side, Transact([aside, start]))
            self._note_aside(side, found)
        else:
            begun = yield from ask(side, start)
        if not begun:
            raise Conflict(f"log {self.log!r} came to exist meanwhile; sync again", log=self.log)
        if before is not None:
            self.outcome.truncated += before.end - before.start
        made = Summary(self.log, base.offset, base.offset, base, base.digest, owner, epoch, 0, b"")
        if before is not None:
            made = replace(made, metadata=before.metadata, timestamp_ms=before.timestamp_ms)
        self._copies[side] = made

    def _meet(self) -> Steps[bool]:
        """Where one copy ends before the other begins, it has to begin there too.

        False if it is not ours to change: then neither has records for the other.
        """
        for side in ("own", "peer"):
            copy, other = self._copies[side], self._copies[OTHER[side]]
            if copy.end >= other.base.offset:
                continue
            if _pair(copy) > _pair(other) and not _is_virgin(copy):
                raise self._truncated_apart(copy, other)
            if side not in self._written:
                return False
            if not self._options.truncate:
                raise Truncated(
                    f"this copy of log {self.log!r} ends at {copy.end}, and the other one has nothing "
                    f"before {other.base.offset}; it cannot go on there and forget nothing",
                    log=self.log,
                    offset=copy.end,
                    start=other.base.offset,
                )
            yield from self._begin_at(side, other)
        return True

    def _anchor(self) -> Steps[None]:
        """Where one copy ends just where the other begins, their hashes must agree there."""
        apart: list[Side] = [
            side
            for side in ("own", "peer")
            for copy, base in ((self._copies[side], self._copies[OTHER[side]].base),)
            if copy.end == base.offset and copy.digest != base.digest
        ]
        if not apart:
            return
        side = min(apart, key=lambda one: (_pair(self._copies[one]), self._copies[one].digest))
        other = self._copies[OTHER[side]]
        copy = self._copies[side]
        if _pair(copy) > _pair(other) and not _is_virgin(copy):
            raise self._truncated_apart(copy, other)
        if side in self._written:
            yield from self._begin_at(side, other)

    # Records.

    def _compare(self, taker: Side | None) -> Steps[int | None]:
        """From where on the copies differ; `taker` is the one that would give way, if known."""
        found = yield from compare(self.log, self._copies)
        if found.is_chained:
            return found.difference
        bases = {side: copy.base.offset for side, copy in self._copies.items()}
        if taker is None:
            own, peer = self._copies["own"], self._copies["peer"]
            taker = "own" if own.end < peer.end else "peer"
        giver = OTHER[taker]
        if bases[taker] > bases[giver]:
            raise self._truncated_apart(self._copies[giver], self._copies[taker])
        return bases[giver]

    def _converge_records(self) -> Steps[None]:
        own, peer = self._copies["own"], self._copies["peer"]
        if _pair(own) != _pair(peer):
            yield from self._follow_leader()
            return
        difference = yield from self._compare(None)
        if difference is not None:
            yield from self._settle_fork(difference)
            return
        if own.end != peer.end:
            yield from self._fill(shorter="own" if own.end < peer.end else "peer")

    def _follow_leader(self) -> Steps[None]:
        """Copies of different owners: what the leader lacks is set aside, the rest is its."""
        leader: Side = max(self._copies, key=lambda side: _pair(self._copies[side]))
        follower = OTHER[leader]
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
        if behind.end > at:
            yield from self._set_aside(follower, at, leader=ahead)
            yield from self._fill(shorter=follower)
        else:
            yield from self._fill(shorter=follower)
            end = self._copies[follower].end
            yield from ask(follower, AdoptOwner(self.log, ahead.owner, ahead.epoch, end))
        self.outcome.owner = ahead.owner

    def _refuse_strangers(self) -> Steps[None]:
        """Two logs that have nothing but their name in common are no copies of one another."""
        own, peer = self._copies["own"], self._copies["peer"]
        if own.epoch or peer.epoch or own.owner == peer.owner:
            return
        if _is_virgin(own) or _is_virgin(peer):
            return
        found = yield from compare(self.log, self._copies)
        difference = min(own.end, peer.end) if found.difference is None else found.difference
        raise ForkDetected(
            f"log {self.log!r} was made in both stores ({own.owner} and {peer.owner}): these are two "
            "logs of one name. Take one of them over, sync another name, or move one to another log",
            log=self.log,
            offset=difference,
        )

    def _settle_fork(self, at: int) -> Steps[None]:
        """Copies of one owner and epoch that differ: as was asked for."""
        own, peer = self._copies["own"], self._copies["peer"]
        rule = self._options.on_fork
        if rule == "refuse":
            raise ForkDetected(
                f"the copies of log {self.log!r} differ from offset {at} on; on_fork='longest' or "
                "'rebase' says which of them is to count",
                log=self.log,
                offset=at,
            )
        winner: Side = "own" if (own.end, own.digest) > (peer.end, peer.digest) else "peer"
        home = self._home()
        if rule == "rebase" and home is not None:
            winner = OTHER[home]
        loser = OTHER[winner]
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

    def _home(self) -> Side | None:
        """The side at which the log may be written."""
        for side, copy in self._copies.items():
            if copy.owner == self._stores[side]:
                return side
        return None

    def _set_aside(self, side: Side, at: int, *, leader: Summary | None = None) -> Steps[str]:
        """Keep a tail as a fork; in the same commit the log changes hands, so nothing is added."""
        copy = self._copies[side]
        if at < copy.start:
            raise self._truncated_apart(leader or self._copies[OTHER[side]], copy)
        aside = SetAside(self.log, at, copy.epoch)
        if leader is None:
            found = yield from ask(side, aside)
        else:
            owner = AdoptOwner(self.log, leader.owner, leader.epoch)
            found, _ = yield from ask(side, Transact([aside, owner]))
        fork = self._note_aside(side, found)
        self._move(side, at, b"")
        if leader is not None:
            self._copies[side] = replace(self._copies[side], owner=leader.owner, epoch=leader.epoch)
        source = self._copies[OTHER[side]]
        if at == source.base.offset:
            yield from self._begin_at(side, source)
        return fork

    def _note_aside(self, side: Side, found: Any) -> str:
        """Tell of a tail that became a fork, and of readers that went back; the fork's name."""
        try:  # in a transaction the wire knows no type of it
            aside = found if isinstance(found, Aside) else convert(found, Aside)
        except MsgspecError as error:
            raise InvalidInput(
                f"the peer set records aside, and does not say where: {error}"
            ) from error
        check_name(aside.fork)
        self.outcome.set_aside.append(aside.fork)
        for one in aside.readers:
            self.outcome.set_back.append(SetBack(store=self._stores[side], **asdict(one)))
        return aside.fork

    def _truncated_apart(self, leader: Summary, other: Summary) -> Conflict:
        """One copy went its own way and forgot where: that says nothing of the other's records."""
        return Conflict(
            f"a copy of log {self.log!r} (epoch {other.epoch}, of {other.owner}) has forgotten the "
            f"records at which it parted from that of {leader.owner} (epoch {leader.epoch}), up to "
            f"{other.start}; fork it to keep what it has, delete it, and sync again",
            log=self.log,
            start=other.start,
            owner=leader.owner,
        )

    def _fill(self, *, shorter: Side) -> Steps[None]:
        """Send what one side has more, in parcels."""
        if shorter not in self._written:
            return
        source, first = self._copies[OTHER[shorter]], self._copies[shorter].end

        def took(parcel: Parcel, count: int) -> None:
            self._note(shorter, parcel, count, parcel.end - first, source.end - first)

        compress = self._options.compress
        end = yield from ship(
            self.log, source, taker=shorter, start=first, compress=compress, took=took
        )
        self._move(shorter, end, source.digest)

    def _note(self, side: Side, parcel: Parcel, count: int, done: int, total: int) -> None:
        if side == "own":
            self.outcome.pulled += count
        else:
            self.outcome.pushed += count
        self.outcome.bytes += parcel.weight()
        if self._tell is not None:
            way = "pull" if side == "own" else "push"
            self._tell(Progress(self.log, way, done, total, self.outcome.bytes))  # type: ignore[arg-type]

    # What else there is.

    def _converge_state(self) -> Steps[None]:
        """The newer entries of metadata, the later start and the later change count."""
        own, peer = self._copies["own"], self._copies["peer"]
        entries: dict[Side, dict[str, Meta]] = {"own": {}, "peer": {}}
        if own.metadata != peer.metadata:
            question = GetStampedMetadata(self.log)
            mine, theirs = yield [Question("own", question), Question("peer", question)]
            entries = {"own": news(mine, theirs), "peer": news(theirs, mine)}
        latest = max(own.timestamp_ms, peer.timestamp_ms)
        for side in self._written:
            copy, start = self._copies[side], max(own.start, peer.start)
            if not (self._options.truncate and copy.start < start <= copy.end):
                start = 0
            if start or entries[side] or copy.timestamp_ms < latest:
                found = yield from ask(side, AdoptState(self.log, start, latest, entries[side]))
                self.outcome.truncated += found.truncated
                self.outcome.metadata += found.metadata

    # What is known of the copies.

    def _move(self, side: Side, end: int, digest: bytes) -> None:
        self._copies[side] = replace(self._copies[side], end=end, digest=digest)

    def _again(self, side: Side) -> Steps[None]:
        """Look at a copy once more."""
        found = yield from ask(side, SummarizeLog(self.log))
        if found is not None:
            found.check()
            self._copies[side] = found


def _pair(copy: Summary) -> tuple[int, str]:
    return copy.epoch, copy.owner


def _is_virgin(copy: Summary) -> bool:
    """Whether it was never written to: such a log gives way to any other."""
    return not copy.end and not copy.epoch


def _same(own: Summary, peer: Summary) -> bool:
    """Whether nothing is left to do: one look at both summaries."""
    return all(
        (
            (own.start, own.end, own.digest) == (peer.start, peer.end, peer.digest),
            _pair(own) == _pair(peer),
            own.metadata == peer.metadata,
            own.timestamp_ms == peer.timestamp_ms,
        )
    )
