"""The examination of logs: names and heads, entries without a gap, and the payloads behind them.

Every record that a log's head promises must be found: its entry, and the payload that the entry
points to. What lies below the start is on its way to deletion, or kept for queues, which say
themselves what they miss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from millstream.doctor.coverage import Coverage
from millstream.doctor.examined import ExaminedRows, Found
from millstream.doctor.findings import Findings
from millstream.doctor.lineage import Lineage
from millstream.doctor.message_ids import Visited
from millstream.doctor.partitions import check_partitions
from millstream.doctor.replay import Replay
from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.format.lineage import Fork
from millstream.log.model.acknowledged import AcknowledgedRanges
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Head, Name
from millstream.log.model.metadata import MetadataState
from millstream.log.model.producer import ProducerState
from millstream.log.rules.sparse import bytes_below
from millstream.store.state.view import Rows


class LogExamination:
    """Examines all records of logs, kind by kind."""

    def __init__(self, rows: ExaminedRows, replay: Replay, findings: Findings) -> None:
        self._rows = rows
        self._replay = replay
        self._findings = findings
        self._report = findings.report
        self._heads: dict[int, Head] = {}
        self._names: dict[int, str] = {}
        self._lineage = Lineage(rows, replay, findings)
        self._forks: dict[int, Fork] = {}
        self._seen = {keys.PAYLOAD: Visited(), keys.PAYLOAD_BLOCK: Visited()}
        self.highest_id = -1
        self.sound: dict[int, Coverage] = {}
        """Log id → the offsets whose entry and payload are there, below the start as well."""

    def check_names(self) -> None:
        """Every name stands for a log, and every log has its name."""
        for key, entity in self._replay.entities(keys.HEAD):
            assert isinstance(entity, Head)
            self._heads[keys.number(key)] = entity
        for key, entity in self._replay.entities(keys.NAME):
            assert isinstance(entity, Name)
            self._names[entity.log_id] = keys.name_of_log(key)
        for log_id, name in self._names.items():
            head = self._heads.get(log_id)
            if head is None:
                self._findings.add(
                    "name", f"log {name!r} is lost: its head {log_id} is gone", log=name
                )
            elif head.name != name or head.deleted:
                self._findings.add(
                    "name", f"the name {name!r} stands for log {log_id}, which is not it", log=name
                )
        self._forks = self._lineage.find_forks(self._heads)
        for log_id, head in self._heads.items():
            if head.deleted:
                continue
            self._report.logs += 1
            self._report.records += head.end - head.start
            self._check_head(log_id, head)

    def check_entries(self) -> None:
        """Check that entries cover each log from start to end, and that every payload exists."""
        checked = set()
        rows = self._replay.rows(keys.ENTRY)
        for log_id, group in groupby(rows, key=lambda row: _log_id(row.key)):
            checked.add(log_id)
            head = self._heads.get(log_id)
            if head is None:
                self._without_head(log_id, group)
            else:
                self._check_log(log_id, head, group)
        for log_id, head in self._heads.items():
            if log_id not in checked and not head.deleted:
                self._check_log(log_id, head, ())
            self._lost_behind(log_id, head)
        self._lineage.check_prefixes(self._heads, self._forks, self.sound)

    def check_marks(self) -> None:
        """Check the stored hashes of logs against their records."""
        if not self._replay.broken_at:
            self._lineage.check_marks(self._heads, self.sound)

    def check_payloads(self) -> None:
        """What no entry points to: checked as well, and counted as waste."""
        unreachable = size_total = 0
        for kind, visited in self._seen.items():
            for number, size in self._rows.numbers(kind):
                if number in visited:
                    continue
                unreachable, size_total = unreachable + 1, size_total + size
                self._note_id(number)
                if number < 0:
                    self._findings.add("payload", f"a payload has the negative id {number}")
                    continue
                try:
                    self._rows.payload(_numbered(kind, number))
                except CorruptionError as error:
                    self._findings.add(
                        "payload", f"payload {number}, which no entry points to: {error}"
                    )
        self._report.payloads_unreachable = unreachable
        if unreachable:
            self._findings.add(
                "payload",
                f"payloads that belong to no log: {unreachable:,}, {size_total:,} bytes",
                severity="waste",
            )

    def check_readers(self) -> None:
        """Cursors, producers and metadata belong to logs that exist, and lie within them."""
        for key, entity in self._replay.entities(keys.CURSOR):
            assert isinstance(entity, CursorState)
            self._report.cursors += 1
            head = self._owner(key, "cursor")
            if head is not None:
                self._check_cursor(
                    keys.trailing_name(key, errors="backslashreplace"), entity.marks, head
                )
        for key, entity in self._replay.entities(keys.PRODUCER):
            assert isinstance(entity, ProducerState)
            self._report.producers += 1
            head = self._owner(key, "producer")
            if head is not None and any(first + n > head.end for first, n in entity.offsets):
                self._findings.add(
                    "cursor",
                    f"producer {keys.trailing_name(key, errors='backslashreplace')!r} remembers offsets past the end {head.end}",
                    log=head.name,
                )
        metadata = {}
        for key, entity in self._replay.entities(keys.METADATA):
            assert isinstance(entity, MetadataState)
            head = self._owner(key, "metadata")
            if head is not None:
                metadata[head.name] = entity
        if not self._replay.broken_at:
            living = [head for head in self._heads.values() if not head.deleted]
            check_partitions(living, metadata, self._findings)

    def check_counter(self, next_id: int) -> None:
        """No id is in use that could be given out again."""
        if self._replay.broken_at:
            return
        if self.highest_id >= next_id:
            self._findings.add(
                "counter",
                f"message id {self.highest_id} is in use, but the counter stands at {next_id}: "
                "new records would overwrite old ones; do not write to this store",
            )
        highest_log = max(self._heads, default=0)
        if highest_log >= self._replay.next_log:
            self._findings.add(
                "counter",
                f"log id {highest_log} is in use, but the counter stands at "
                f"{self._replay.next_log}: a new log would overwrite it; do not write to this store",
            )

    # One log.

    def _check_head(self, log_id: int, head: Head) -> None:
        if log_id not in self._names:
            self._findings.add(
                "name", f"log {head.name!r} is there, but its name leads nowhere", log=head.name
            )
        if not 0 <= head.dropped <= head.start <= head.end:
            self._findings.of_log(
                head.name,
                f"the head is out of order: dropped {head.dropped}, start {head.start}, "
                f"end {head.end}",
            )
        edges = [edge for gap in head.gaps for edge in gap]
        if edges != sorted(set(edges)) or max(edges, default=0) > head.start:
            self._findings.of_log(
                head.name,
                f"the gaps {head.gaps} are not in order, or not below the start {head.start}",
            )

    def heads(self) -> Iterator[tuple[int, Head]]:
        """The logs that are not deleted."""
        return ((log_id, head) for log_id, head in self._heads.items() if not head.deleted)

    def _check_log(self, log_id: int, head: Head, rows: Iterable[Found]) -> None:
        fork = self._forks.get(log_id)
        position = head.start if fork is None else max(head.start, min(fork.point, head.end))
        size, dropped_bytes, doubtful = 0, 0, False
        why = "the entry is missing"
        for row in rows:
            try:
                stop = keys.pair(row.key)[1] + 1
                if row.problem:
                    raise CorruptionError(row.problem)
                entry = entries.decode(row.value)
            except CorruptionError as error:
                why, doubtful = f"the entry is damaged: {error}", True
                continue
            first = stop - len(entry)
            if first >= head.end or (first < head.dropped and not head.kept):
                doubtful = True
                self._stray(head, first, stop, entry)
                continue
            if stop > head.start:
                position, why = self._follow(head, position, first, stop, why)
            entry_bytes = self._check_payloads_of(log_id, first, row.value, entry)
            if entry_bytes is None:
                doubtful = True
            else:
                size += entry_bytes
                dropped_bytes += (
                    entry_bytes if stop <= head.dropped else self._below(row, head.dropped)
                )
        if position < head.end:
            doubtful = True
            self._findings.lose("log", why, log=head.name, start=position, stop=head.end)
        if (
            not doubtful
            and (size, dropped_bytes) != (head.bytes, head.kept)
            and not self._replay.broken_at
        ):
            self._findings.of_log(
                head.name,
                f"the head counts {head.bytes:,} bytes, {head.kept:,} of them below what was "
                f"dropped; there are {size:,} and {dropped_bytes:,}",
            )

    def _follow(
        self, head: Head, position: int, first: int, stop: int, why: str
    ) -> tuple[int, str]:
        """Go on to the next entry; what lies between is lost, what lies twice is reported."""
        if first > position:
            self._findings.lose("log", why, log=head.name, start=position, stop=first)
        elif first < position and position > head.start:
            self._findings.of_log(
                head.name, f"two entries cover offset {first}: one of them is wrong"
            )
        if stop > head.end:
            self._findings.of_log(head.name, f"an entry reaches to {stop}, past the end {head.end}")
        return max(position, stop), "the entry is missing"

    def _check_payloads_of(
        self, log_id: int, first: int, value: bytes, entry: entries.Entry
    ) -> int | None:
        """Return the bytes of an entry and its payloads; None if a payload is lost."""
        head, sound = self._heads[log_id], self.sound.setdefault(log_id, Coverage())
        try:
            if entry.packed:
                size = self._check_block(value, entry.ids)
                sound.add(first, first + len(entry))
                return size
        except CorruptionError as error:
            self._lose(head, first, len(entry), str(error))
            return None
        try:
            size = len(self._payload(keys.PAYLOAD, entry.ids[0]))
        except CorruptionError as error:
            self._lose(head, first, 1, str(error))
            return None
        sound.add(first, first + 1)
        return size + len(value) - entries.SINGLE_HEAD_BYTES

    def _below(self, row: Found, offset: int) -> int:
        """What an entry counts for below an offset: the fold may have joined records across it."""
        return bytes_below(Rows(self._replay.overlay, self._rows), (row.key, row.value), offset)

    def _check_block(self, value: bytes, ids: Sequence[int]) -> int:
        count = len(ids)
        header = blocks.decode_header(value, kind=blocks.METADATA)
        payload = self._payload(keys.PAYLOAD_BLOCK, header.first_id)
        self._note_id(max(ids))
        try:
            block = blocks.Block(payload, kind=blocks.PAYLOAD)
        except CorruptionError as error:
            raise CorruptionError(f"the payload is damaged: {error}") from error
        if (block.count, block.header.first_id) != (count, header.first_id):
            raise CorruptionError(f"the payload holds {block.count} records, not {count}")
        if block.header.body_bytes != header.payload_bytes:
            raise CorruptionError("the payload is not the one that was written")
        return header.log_bytes

    def _payload(self, kind: int, number: int) -> bytes:
        self._note_id(number)
        if not self._seen[kind].add(number):
            raise CorruptionError("the payload belongs to another record as well")
        key = _numbered(kind, number)
        value = self._replay.overlay.get(key)
        try:
            value = self._rows.payload(key) if value is None else value
        except CorruptionError as error:
            raise CorruptionError(f"the payload is damaged: {error}") from error
        if value is None:
            raise CorruptionError("the payload is missing")
        return value

    def _lose(self, head: Head, first: int, count: int, why: str) -> None:
        start = max(first, head.start)
        if start < first + count:
            self._report.payloads_lost += 1
            self._findings.lose("payload", why, log=head.name, start=start, stop=first + count)

    def _stray(self, head: Head, first: int, stop: int, entry: entries.Entry) -> None:
        """An entry outside of its log: below what was dropped, or behind the end."""
        for message_id in entry.ids[:1] if entry.packed else entry.ids:
            self._note_id(message_id)
            self._seen[keys.PAYLOAD_BLOCK if entry.packed else keys.PAYLOAD].add(message_id)
        if not self._replay.broken_at:
            self._findings.of_log(
                head.name,
                f"an entry for offsets {first} to {stop - 1} lies outside of the log, which has "
                f"{head.start} to {head.end - 1}",
            )

    def _without_head(self, log_id: int, rows: Iterable[Found]) -> None:
        count = 0
        for row in rows:
            try:
                count += entries.count(row.value)
            except CorruptionError:
                count += 1
        name = self._names.get(log_id)
        self._report.records_lost += count
        self._findings.add(
            "log",
            f"{count:,} records of log {log_id} cannot be reached: its head is gone",
            log=name,
        )

    def _lost_behind(self, log_id: int, head: Head) -> None:
        count = self._replay.appended_behind.get(log_id, 0)
        if count:
            self._findings.lose(
                "commit",
                "appended behind a damaged commit; there may be more",
                log=head.name,
                start=head.end,
                stop=head.end + count,
            )

    # Readers.

    def _owner(self, key: bytes, label: str) -> Head | None:
        log_id = _log_id(key)
        head = self._heads.get(log_id)
        if head is None or head.deleted:
            name = keys.trailing_name(key, errors="backslashreplace")
            shown = f" {name!r}" if name else ""
            self._findings.add(
                "cursor", f"the {label}{shown} belongs to log {log_id}, which is gone"
            )
            return None
        return head

    def _check_cursor(self, name: str, marks: AcknowledgedRanges, head: Head) -> None:
        top = max([marks.floor, *(stop for _, stop in marks.ranges())])
        if marks.floor < 0 or top > head.end:
            self._findings.add(
                "cursor",
                f"cursor {name!r} has acknowledged up to {top}, past the end {head.end}",
                log=head.name,
            )

    def name_of(self, log_id: int) -> str:
        """The name of a log, as far as it is known."""
        head = self._heads.get(log_id)
        return f"log {log_id}" if head is None else head.name

    def _note_id(self, number: int) -> None:
        self.highest_id = max(self.highest_id, number)


def _numbered(kind: int, number: int) -> bytes:
    return keys.payload(number) if kind == keys.PAYLOAD else keys.payload_block(number)


def _log_id(key: bytes) -> int:
    """Return the log of a key; 0, which no log has, if the key is cut."""
    try:
        return keys.owner(key)
    except CorruptionError:
        return 0
