"""Applying: entries of other nodes in the shared log become rows of this node."""

from __future__ import annotations

from collections.abc import Container

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody
from millstream.cluster.node.batch import EntryBatch
from millstream.cluster.node.position import LogProgress, NeedsSnapshot
from millstream.cluster.shared_log import Stored


class Applier:
    """Applies entries as a follower; everything happens in the member's turn."""

    def __init__(self, progress: LogProgress, *, campaigns: Container[bytes]) -> None:
        """`campaigns` holds the ids of epoch entries that this process has sent."""
        self.replays = 0
        """Commits that were applied."""
        self.backlog = 0
        """Entries up to here were stored before this node joined: only wall clocks tell their age.
        """
        self._progress, self._campaigns = progress, campaigns

    def apply(self, read_entries: list[Stored]) -> bool:
        """Apply entries in order; return whether an entry closes the log.

        Raises `Differs` after applying all earlier entries, and `NeedsSnapshot`.
        """
        progress, is_closed = self._progress, False
        batch = EntryBatch(progress.position, progress.chunks, progress.chunks_of)
        for stored in read_entries:
            if stored.sequence <= batch.position.sequence:
                continue  # a repeated entry
            if stored.sequence != batch.position.sequence + 1:
                break  # missing entries are read again
            try:
                entry, epoch = batch.add(stored)
            except Differs:
                self._flush(batch)  # the earlier entries are valid
                raise
            progress.clock.follow(entry, live=stored.sequence > self.backlog)
            if epoch is not None:
                self._flush(batch)
                self._check_same(stored.sequence, epoch)
                progress.begin(entry.epoch, epoch, is_own=entry.id in self._campaigns)
            elif batch.is_full:
                self._flush(batch)
            is_closed = is_closed or entry.kind == entries.CLOSED
        self._flush(batch)
        progress.leadership.heard(progress.clock.seconds())
        return is_closed

    def _flush(self, batch: EntryBatch) -> None:
        """Store the gathered entries, with the position of the last noted entry."""
        progress = self._progress
        if batch.noted is not None:
            with progress.engine.write() as writer:
                batch.write(writer)
            self.replays += batch.commits
            progress.noted = batch.noted
            batch.clear()
        progress.chunks, progress.chunks_of = batch.chunks, batch.chunks_of
        progress.position = batch.position
        progress.tell()

    def _check_same(self, sequence: int, epoch: EpochBody) -> None:
        local_seq = self._progress.engine.last_seq()
        if local_seq == epoch.last_seq:
            return
        if sequence == 1 and not local_seq:  # the cluster began with a store that had rows
            raise NeedsSnapshot(f"the cluster began with a store of {epoch.node} that had rows")
        raise Differs(
            f"at entry {sequence} this store stands at commit {local_seq}, and that of {epoch.node} at "
            f"{epoch.last_seq}"
        )
