"""Applying: what other nodes have appended to the shared log becomes true in this node's rows."""

from __future__ import annotations

from collections.abc import Container

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody
from millstream.cluster.node.batch import EntryBatch
from millstream.cluster.node.position import Footing, NeedsSnapshot
from millstream.cluster.shared_log import Stored


class Applier:
    """What a follower does with entries; everything happens in the member's turn."""

    def __init__(self, footing: Footing, *, campaigns: Container[bytes]) -> None:
        """`campaigns` has the ids of epoch entries that this life of this node has sent."""
        self.replays = 0
        """Commits that were applied."""
        self.backlog = 0
        """Entries up to here were stored before this node joined: how long ago, only wall clocks say."""
        self._footing, self._campaigns = footing, campaigns

    def apply(self, found: list[Stored]) -> bool:
        """Apply entries in order; answers whether one of them closes the log.

        Raises `Differs`, with all applied that came before, and `NeedsSnapshot`.
        """
        footing, is_closed = self._footing, False
        batch = EntryBatch(footing.position, footing.chunks, footing.chunks_of)
        for stored in found:
            if stored.sequence <= batch.position.sequence:
                continue  # it came twice
            if stored.sequence != batch.position.sequence + 1:
                break  # what is missing in between is read again
            try:
                entry, epoch = batch.add(stored)
            except Differs:
                self._flush(batch)  # what came before it is true
                raise
            footing.clock.follow(entry, live=stored.sequence > self.backlog)
            if epoch is not None:
                self._flush(batch)
                self._check_same(stored.sequence, epoch)
                footing.begin(entry.epoch, epoch, own=entry.id in self._campaigns)
            elif batch.is_full:
                self._flush(batch)
            is_closed = is_closed or entry.kind == entries.CLOSED
        self._flush(batch)
        footing.leadership.heard(footing.clock.seconds())
        return is_closed

    def _flush(self, batch: EntryBatch) -> None:
        """Keep what was gathered, with the position of the last entry that is noted."""
        footing = self._footing
        if batch.noted is not None:
            with footing.engine.write() as writer:
                batch.write(writer)
            self.replays += batch.commits
            footing.noted = batch.noted
            batch.clear()
        footing.chunks, footing.chunks_of = batch.chunks, batch.chunks_of
        footing.position = batch.position
        footing.tell()

    def _check_same(self, sequence: int, epoch: EpochBody) -> None:
        own = self._footing.engine.last_seq()
        if own == epoch.last_seq:
            return
        if sequence == 1 and not own:  # the cluster was begun with a store that had rows already
            raise NeedsSnapshot(f"the cluster began with a store of {epoch.node} that had rows")
        raise Differs(
            f"at entry {sequence} this store stands at commit {own}, and that of {epoch.node} at "
            f"{epoch.last_seq}"
        )
