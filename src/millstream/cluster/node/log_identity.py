"""The identity of the shared log: whether it is still the log that a store has followed.

A node halts if the log is gone, or shorter than the store. The reason may pass: a NATS server
answered before it had caught up, or a disk was not mounted yet. So a halted node checks again, at
growing intervals. It resumes only on a proof: every entry carries the hash of the entry before, so
one hash at the store's position proves the identity of the log and of all earlier entries. Without
a hash at that position the node stays halted. With a different hash, the halt is final.
"""

from __future__ import annotations

import logging

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs
from millstream.cluster.node.member import ClusterMember
from millstream.cluster.node.position import NeedsSnapshot
from millstream.cluster.shared_log import Gone, Held, Unreachable

_logger = logging.getLogger("millstream.cluster")

REMEDY = (
    "This node goes on by itself once the log has what it had; if it does not come back, "
    "`millstream cluster repair` rebuilds it from the store that has most"
)


class LogIdentity:
    """A node's checks of its shared log; only the node's loop calls them."""

    def __init__(self, member: ClusterMember) -> None:
        self.resumes = 0
        """How often the node resumed by itself after a halt."""
        self._member, self._settings = member, member.settings
        self._due_s: float | None = None
        self._gap_s = self._settings.look_again_s

    def check(self) -> Held | None:
        """Return the extent of the shared log. If the log is gone or too short, halt and return
        None."""
        member, shared = self._member, self._member.shared
        position = member.position
        try:
            held = shared.held(timeout_s=self._settings.append_timeout_s)
        except Gone as error:
            if not position.sequence or position.closed:
                raise Unreachable(str(error)) from error  # the log may be created just now
            self._halt(f"{shared.place} is gone. {REMEDY}", may_pass=True)
            return None
        if held.last >= position.sequence:
            return held
        if position.closed:
            raise Unreachable(f"{shared.place} does not begin behind this store")
        self._halt(
            f"{shared.place} ends at entry {held.last}, and this store has applied "
            f"{position.sequence}: entries are missing. {REMEDY}",
            may_pass=True,
        )
        return None

    def check_same(self, held: Held) -> bool:
        """Whether the log agrees with the position on this node's disk; if not, halt for good.

        A log without an entry there does not disagree: the next entry will name its predecessor.
        """
        try:
            return not self._member.noted.sequence or self._prove(held) is not False
        except Gone as error:  # gone since `held` was read: the next check decides
            raise Unreachable(str(error)) from error

    def look_again(self) -> bool:
        """Check again at growing intervals; True if the halted node has just resumed."""
        member = self._member
        if not member.may_resume:
            return False
        now_s = member.clock.seconds()
        if self._due_s is None:
            self._due_s, self._gap_s = (
                now_s + self._settings.look_again_s,
                self._settings.look_again_s,
            )
        if now_s < self._due_s:
            return False
        self._gap_s = min(2 * self._gap_s, self._settings.look_again_s_max)
        self._due_s = now_s + self._gap_s
        try:
            return self._resume()
        except (Gone, Unreachable, NeedsSnapshot):
            return False

    def _resume(self) -> bool:
        member = self._member
        member.stand()
        held = member.shared.held(timeout_s=self._settings.append_timeout_s)
        position = member.noted
        if held.last < position.sequence:
            return False
        is_same = self._prove(held)
        if is_same is None:
            self._halt(
                f"{member.shared.place} has entries again, and shows nothing of entry "
                f"{position.sequence}, where this store stands: its first is {held.first}. Restart this "
                "node: if the others are well, it takes a copy from one of them",
                may_pass=True,
            )
        if not is_same:
            return False
        if not member.resume(backlog=held.last):
            return False
        self.resumes += 1
        self._due_s = None
        fields = {"entry": position.sequence, "last": held.last, "why_halted": member.resumed}
        _logger.warning("node_resumed", extra=fields)
        return True

    def _prove(self, held: Held) -> bool | None:
        """Compare the log's hash with the position on disk.

        True: same log. False: another log, the node halts for good. None: the log does not go back
        that far.
        """
        position = self._member.noted
        try:
            log_hash = self._hash_at(held, position.sequence)
        except Differs as error:
            self._halt(str(error))
            return False
        if log_hash is None or log_hash == position.hash:
            return None if log_hash is None else True
        self._halt(
            f"entry {position.sequence} of {self._member.shared.place} is not the one that "
            "this store has applied: the log was exchanged, or this store belongs to another cluster"
        )
        return False

    def _halt(self, reason: str, *, may_pass: bool = False) -> None:
        if reason != self._member.halted:
            _logger.warning("node_halted", extra={"why": reason})
        self._member.halt(reason, may_pass=may_pass)

    def _hash_at(self, held: Held, sequence: int) -> bytes | None:
        """Return the running hash behind an entry, from the entry itself or from its successor."""
        shared, timeout_s = self._member.shared, self._settings.append_timeout_s
        if held.first <= sequence:
            data = shared.entry(sequence, timeout_s=timeout_s)
            return None if data is None else entries.digest(data)
        if held.first > sequence + 1:
            return None
        if held.last > sequence:
            data = shared.entry(sequence + 1, timeout_s=timeout_s)
            return None if data is None else entries.decode(sequence + 1, data).previous
        return shared.begun_behind(timeout_s=timeout_s) or None
