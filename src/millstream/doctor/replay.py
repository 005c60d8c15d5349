"""The replay of unfolded commits over the records, as far as the commits are sound.

Deltas are contiguous. A damaged or missing delta stops the replay, and the store cannot be opened. The
later commits are used only to say which records are lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

import msgspec

from millstream.doctor.examined import ExaminedRows, Found
from millstream.doctor.findings import Findings
from millstream.embedded import session as embedded
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.format.described import describe
from millstream.log.model.head import Head, RecordsAppended
from millstream.store.state import delta as deltas
from millstream.store.state.entity import Entity, Kinds
from millstream.store.state.instance import Instance
from millstream.store.state.overlay import Overlay

KINDS: Kinds = {**embedded.KINDS, keys.STORE: Instance}


class Replay:
    """Records plus deltas, up to the first delta that is not sound."""

    def __init__(self, rows: ExaminedRows, findings: Findings) -> None:
        self._rows = rows
        self._findings = findings
        self._entities: dict[bytes, Entity | None] = {}
        """Entities with changes in deltas; None if the stored record is damaged."""
        self.overlay = Overlay()
        self.last_seq = 0
        self.next_id = 0
        self.next_log = 1
        self.broken_at = 0
        """The first delta that cannot be applied; 0 if all can."""
        self.appended_behind: dict[int, int] = {}
        """Log id → records appended by readable deltas behind the broken one."""

    def run(self) -> None:
        """Apply every delta."""
        first, expected = 0, 0
        for row in self._rows.walk_deltas():
            seq = keys.number(row.key) if len(row.key) == 10 else -1
            first = first or seq
            self._take(row, seq, expected or seq)
            expected = seq + 1
            self.last_seq = max(self.last_seq, seq)
            self._findings.report.commits_unfolded += 1
        if self.broken_at:
            self._findings.add(
                "commit",
                f"the store cannot be opened: commits {self.broken_at} to {self.last_seq} "
                "cannot be applied, and what they appended, acknowledged or set is lost",
            )

    def entities(self, kind: int) -> Iterator[tuple[bytes, Entity]]:
        """Yield every sound entity of a type, and report damaged entities."""
        start, stop = keys.range_of(keys.prefix(kind))
        for row in self._rows.walk(start, stop):
            entity = self._entities.get(row.key)
            if row.problem:
                if row.key not in self._entities:
                    self.report_row(row.key, row.problem)
            elif entity is None and row.key not in self._entities:
                entity = self._load(row.key)
            if entity is not None and entity.exists():
                self._check_age(row.key, entity)
                yield row.key, entity
            self._entities.pop(row.key, None)
        for key in sorted(key for key in self._entities if start <= key < stop):
            entity = self._entities.pop(key)
            if entity is not None and entity.exists():
                yield key, entity

    def rows(self, kind: int) -> Iterator[Found]:
        """Every row of a type in the order of the keys, wherever it lies; what is not folded counts."""
        start, stop = keys.range_of(keys.prefix(kind))
        held, key_of = self.overlay, attrgetter("key")
        unfolded = (Found(key, held.get(key) or b"") for key in sorted(held.keys(start, stop)))
        rows = heapq.merge(unfolded, self._rows.walk(start, stop), key=key_of)
        for _, versions in groupby(rows, key=key_of):
            yield next(versions)

    def sound_rows(self, kind: int, *, key_bytes: int) -> Iterator[Found]:
        """Yield rows with a correct checksum and a complete key, and report the others."""
        for row in self.rows(kind):
            if row.problem or len(row.key) != key_bytes:
                self.report_row(row.key, row.problem or "its key is cut")
            else:
                yield row

    def report_row(self, key: bytes, problem: str) -> None:
        """Note a damaged record, in the words of what it was for."""
        self._findings.add("row", f"{describe(key)} is damaged: {problem}")

    def _take(self, row: Found, seq: int, expected: int) -> None:
        try:
            if row.problem or seq < 0:
                raise CorruptionError(row.problem or "its number is negative")
            delta = deltas.decode(seq, row.value)
        except CorruptionError as error:
            self._break(expected, f"commit {seq} is damaged: {error}")
            return
        if seq != expected:
            gone = "is" if seq == expected + 1 else f"to {seq - 1} are"
            self._break(expected, f"commit {expected} {gone} missing though {seq} exists")
        if self.broken_at:
            self._remember(delta)
        else:
            self._apply(delta)

    def _break(self, seq: int, message: str) -> None:
        self._findings.add("commit", message)
        self.broken_at = self.broken_at or seq

    def _apply(self, delta: deltas.StoredDelta) -> None:
        for key, raw in delta.changes:
            try:
                self._change(key, raw, delta.seq)
            except (CorruptionError, msgspec.MsgspecError, TypeError, AttributeError) as error:
                self._findings.add("commit", f"commit {delta.seq}, {describe(key)}: {error}")
        self.overlay.drop_all(delta.drops)
        self.overlay.put(delta.seq, delta.puts)
        self.next_id = max(self.next_id, delta.next_id)
        self.next_log = max(self.next_log, delta.next_entity)

    def _change(self, key: bytes, raw: msgspec.Raw, seq: int) -> None:
        kind = KINDS.get(keys.kind_of(key))
        if kind is None:
            raise CorruptionError("a record of unknown type; was it written by a newer version?")
        if key not in self._entities:
            self._entities[key] = self._load(key)
        entity = self._entities[key]
        if entity is None or seq <= entity.lsn:
            return
        change = kind.decode_change(raw)
        if change is None:
            self._entities[key] = kind.gone(entity.lsn)
        else:
            entity.apply(change)

    def _load(self, key: bytes) -> Entity | None:
        try:
            return KINDS[key[1]].load(key, self._rows)
        except CorruptionError as error:
            self.report_row(key, str(error))
            return None

    def _check_age(self, key: bytes, entity: Entity) -> None:
        if entity.lsn > self.last_seq:
            self._findings.add(
                "commit",
                f"{describe(key)} includes commit {entity.lsn}, but the newest commit is "
                f"{self.last_seq}: the commits between are lost",
            )

    def _remember(self, delta: deltas.StoredDelta) -> None:
        for key, raw in delta.changes:
            if key.startswith(keys.prefix(keys.HEAD)):
                try:
                    change = Head.decode_change(raw)
                except msgspec.MsgspecError:
                    continue
                if isinstance(change, RecordsAppended):
                    log_id = keys.number(key)
                    self.appended_behind[log_id] = (
                        self.appended_behind.get(log_id, 0) + change.count
                    )
