"""The examination of rooms: what is kept beside their logs is sound, and the counts agree with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from millstream.doctor.examined import Found
from millstream.doctor.findings import Findings
from millstream.doctor.logs import LogExamination
from millstream.doctor.replay import Replay
from millstream.errors import CorruptionError
from millstream.format import keys, room_keys
from millstream.log.model.head import Head
from millstream.log.model.names import ROOM
from millstream.rooms.presence_state import decode_connection
from millstream.rooms.retained import decode_value
from millstream.rooms.state import RoomState


class RoomExamination:
    """Looks at everything that belongs to rooms but their messages, which are records of logs."""

    def __init__(self, replay: Replay, findings: Findings, logs: LogExamination) -> None:
        self._replay = replay
        self._findings = findings
        self._heads: dict[int, Head] = dict(logs.heads())
        self._states: dict[int, RoomState] = {}
        for key, entity in replay.entities(keys.ROOM):
            assert isinstance(entity, RoomState)
            self._states[keys.number(key)] = entity
        for _ in replay.entities(keys.INSTANCE):
            pass  # readable rows are the only requirement
        findings.report.rooms = sum(head.name.startswith(ROOM) for head in self._heads.values())

    def check_rooms(self) -> None:
        """Every row belongs to a room, and is counted by it."""
        for log_id in self._states:
            if log_id not in self._heads:
                self._wrong(f"the settings of a room belong to log {log_id}, which is gone")
        retained, sizes = self._retained()
        users, connections = self._presence()
        if self._replay.broken_at:
            return
        for log_id, head in self._heads.items():
            state = self._states.get(log_id, RoomState())
            for label, counted, actual in (
                ("retained values", state.retained, retained[log_id]),
                ("bytes of retained values", state.retained_bytes, sizes[log_id]),
                ("users", state.users, len(users[log_id])),
                ("connections", state.connections, connections[log_id]),
            ):
                if counted != actual:
                    self._wrong(f"log {head.name!r} counts {counted:,} {label}, and has {actual:,}")

    def _retained(self) -> tuple[Counter[int], Counter[int]]:
        """How many values each room retains, and their bytes."""
        counts, sizes = Counter[int](), Counter[int]()
        for row in self._sound(keys.RETAINED):
            try:
                decode_value((row.key, row.value))
            except (CorruptionError, UnicodeDecodeError) as error:
                self._replay.report_row(row.key, str(error))
                continue
            log_id = keys.owner(row.key)
            if log_id not in self._heads:
                self._wrong(f"a value is retained for log {log_id}, which is gone")
            counts[log_id] += 1
            sizes[log_id] += len(row.key) + len(row.value)
        return counts, sizes

    def _presence(self) -> tuple[dict[int, set[str]], Counter[int]]:
        """Check the users of each room and their connections against the lists."""
        listed = {row.key for row in self._sound(keys.ATTENDANCE)}
        listed |= {row.key for row in self._sound(keys.DEPARTURE)}
        users: dict[int, set[str]] = defaultdict(set)
        counts = Counter[int]()
        for row in self._sound(keys.PRESENCE):
            try:
                log_id, user, _, _ = room_keys.presence_parts(row.key)
                connection = decode_connection(row.key, row.value)
            except (CorruptionError, UnicodeDecodeError) as error:
                self._replay.report_row(row.key, str(error))
                continue
            users[log_id].add(user)
            counts[log_id] += not connection.due_ms
            key = (
                room_keys.departure(connection.due_ms, row.key)
                if connection.due_ms
                else room_keys.attendance(connection.generation, row.key)
            )
            if log_id not in self._heads:
                self._wrong(f"user {user!r} is in the room of log {log_id}, which is gone")
            elif key not in listed:
                self._wrong(
                    f"a connection of user {user!r} to {self._heads[log_id].name!r} is not listed, "
                    "and would never be forgotten"
                )
            listed.discard(key)
        self._check_listed(listed)
        return users, counts

    def _check_listed(self, listed: set[bytes]) -> None:
        """Check that listed entries exist, except entries of deleted rooms, which expire later."""
        for key in listed:
            of = room_keys.attended if keys.kind_of(key) == keys.ATTENDANCE else room_keys.departed
            log_id, user, _, _ = room_keys.presence_parts(of(key))
            if log_id in self._heads:
                self._wrong(
                    f"a connection of user {user!r} to {self._heads[log_id].name!r} is listed, "
                    "though there is none"
                )

    def _sound(self, kind: int) -> Iterator[Found]:
        """Yield rows with a correct checksum, and report the others."""
        for row in self._replay.rows(kind):
            if row.problem:
                self._replay.report_row(row.key, row.problem)
            else:
                yield row

    def _wrong(self, message: str) -> None:
        self._findings.add("room", message)
