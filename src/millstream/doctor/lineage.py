"""The examination of forks and hashes: parents hold the first records, hashes fit the records.

The records of a fork below its fork point lie in its parent and must be sound. A log lists the former
logs of its name. The marks of the running hash of a log are computed again from its sound records.
"""

from __future__ import annotations

from millstream.doctor.coverage import Coverage
from millstream.doctor.examined import ExaminedRows
from millstream.doctor.findings import Findings
from millstream.doctor.replay import Replay
from millstream.errors import CorruptionError, InvalidInput
from millstream.format import keys
from millstream.format.lineage import Fork, decode_former, decode_marks
from millstream.log.model.head import Head
from millstream.log.reading.reader import RowMoved, find_blocks
from millstream.log.rules.ancestry import fork_of
from millstream.replica.chain import Chain, Mark
from millstream.store.state.view import Rows

READ_BYTES = 4 * 1024 * 1024
DEPTH_MAX = 1_000
"""Forks of forks; more would be a circle."""


class Lineage:
    """What is known of forks and marks."""

    def __init__(self, rows: ExaminedRows, replay: Replay, findings: Findings) -> None:
        self._replay = replay
        self._stored = Rows(replay.overlay, rows)
        self._findings = findings

    def find_forks(self, heads: dict[int, Head]) -> dict[int, Fork]:
        """Where the first records of forks lie."""
        forks: dict[int, Fork] = {}
        for log_id, head in heads.items():
            try:
                fork = fork_of(self._stored, log_id)
            except CorruptionError as error:
                self._findings.of_log(head.name, f"where it was forked from: {error}")
                continue
            if fork is not None:
                forks[log_id] = fork
                self._check_fork(log_id, head, fork, heads)
        for row in self._replay.sound_rows(keys.FORKS, key_bytes=18):
            parent_id, child_id = keys.pair(row.key)
            if child_id in heads and forks.get(child_id, Fork(0, 0)).parent_id != parent_id:
                self._findings.of_log(
                    heads[child_id].name,
                    f"it is listed as a fork of log {parent_id}, and does not say so itself",
                )
        self._check_formers(heads)
        return forks

    def _check_formers(self, heads: dict[int, Head]) -> None:
        """Check that former logs are equal to their successors only below the end of both."""
        for row in self._replay.sound_rows(keys.FORMER, key_bytes=18):
            log_id, former_id = keys.pair(row.key)
            head = heads.get(log_id)
            if head is None:
                text = f"log {log_id} has a former log {former_id}, and is gone"
                self._findings.add("log", text, severity="waste")
                continue
            try:
                former = decode_former(row.value)
            except CorruptionError as error:
                self._findings.of_log(head.name, f"the former log {former_id}: {error}")
                continue
            former_head = heads.get(former_id, head)
            if former.equal_below > min(head.end, former_head.end):
                self._findings.of_log(
                    head.name,
                    f"it is to have the records of log {former_id} below {former.equal_below}, and "
                    f"they end at {head.end} and {former_head.end}",
                )

    def _check_fork(self, log_id: int, head: Head, fork: Fork, heads: dict[int, Head]) -> None:
        if fork.point > head.end or fork.merged > head.end:
            self._findings.of_log(
                head.name,
                f"its fork point is {fork.point}, merged up to {fork.merged}, and it ends at "
                f"{head.end}",
            )
        key = keys.forks(fork.parent_id, log_id)
        if not self._is_stored(key):
            self._findings.of_log(
                head.name,
                f"log {fork.parent_id} does not know that it is a fork of it: what it needs may go",
            )
        if fork.parent_id not in heads and head.dropped < fork.point:
            self._findings.lose(
                "log",
                f"log {fork.parent_id}, which it was forked from, is gone",
                log=head.name,
                start=max(head.start, head.dropped),
                stop=max(fork.point, head.start),
            )

    def _is_stored(self, key: bytes) -> bool:
        try:
            return self._stored.get(key) is not None
        except CorruptionError:
            return True  # reported with the other rows

    def check_prefixes(
        self, heads: dict[int, Head], forks: dict[int, Fork], sound: dict[int, Coverage]
    ) -> None:
        """Check that the parent holds the records of the fork, and mark them as sound for the fork."""
        done: set[int] = set()

        def settle(log_id: int, depth: int) -> None:
            fork = forks.get(log_id)
            if fork is None or log_id in done or depth > DEPTH_MAX:
                return
            done.add(log_id)
            settle(fork.parent_id, depth + 1)
            parent = sound.get(fork.parent_id, Coverage())
            own_ranges = sound.get(log_id, Coverage())
            sound[log_id] = joined = Coverage()
            for start, stop in sorted((*parent.up_to(fork.point), *own_ranges.up_to(2**63))):
                joined.add(start, stop)
            head = heads[log_id]
            if head.deleted or fork.parent_id not in heads:
                return
            for start, stop in joined.missing(head.start, min(fork.point, head.end)):
                why = (
                    f"it is missing in log {heads[fork.parent_id].name!r}, which it was forked from"
                )
                self._findings.lose("log", why, log=head.name, start=start, stop=stop)

        for log_id in heads:
            settle(log_id, 0)

    def check_marks(self, heads: dict[int, Head], sound: dict[int, Coverage]) -> None:
        """The marks of each log, computed again."""
        marks: dict[int, list[Mark]] = {}
        for row in self._replay.sound_rows(keys.MARKS, key_bytes=18):
            try:
                row_marks = [Mark(*fields) for fields in decode_marks(row.value)]
            except CorruptionError as error:
                self._findings.add("row", f"the marks {row.key.hex()}: {error}")
                continue
            marks.setdefault(keys.pair(row.key)[0], []).extend(row_marks)
        for log_id, log_marks in marks.items():
            head = heads.get(log_id)
            if head is None:
                self._findings.add("log", f"log {log_id} has marks, and is gone", severity="waste")
            elif (
                not head.deleted
            ):  # otherwise retention deletes them with the last bytes of the log
                self._check_chain(log_id, head, log_marks, sound.get(log_id, Coverage()))

    def _check_chain(self, log_id: int, head: Head, marks: list[Mark], sound: Coverage) -> None:
        kept_marks = [mark for mark in marks if mark.offset >= head.dropped]
        if not kept_marks or kept_marks[-1].offset > head.end:
            self._findings.of_log(
                head.name,
                f"its marks reach from {marks[0].offset} to {marks[-1].offset}, the log from "
                f"{head.dropped} to {head.end}",
            )
            return
        base, last = kept_marks[0], kept_marks[-1]
        if any(sound.missing(base.offset, last.offset)):
            return  # the loss was reported already
        try:
            wrong = self._first_wrong(log_id, head, base, kept_marks[1:])
        except (CorruptionError, RowMoved, InvalidInput) as error:
            self._findings.of_log(head.name, f"its hash cannot be computed: {error}")
            return
        if wrong is not None:
            self._findings.of_log(
                head.name,
                f"its records up to offset {wrong} are not those whose hash was kept there",
            )

    def _first_wrong(self, log_id: int, head: Head, base: Mark, marks: list[Mark]) -> int | None:
        chain, position = Chain(base), base.offset
        expected = iter(marks)
        while marks and position < marks[-1].offset:
            for block in find_blocks(
                self._stored,
                log_id,
                head.name,
                start=position,
                stop=marks[-1].offset,
                bytes_max=READ_BYTES,
            ):
                for computed in chain.extend(block):
                    mark = next(expected, None)
                    if mark != computed:
                        return computed.offset if mark is None else mark.offset
                position = block.offsets.stop
        missing_mark = next(expected, None)
        return None if missing_mark is None else missing_mark.offset
