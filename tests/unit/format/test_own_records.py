"""Our own records: the rows of two small stores, byte for byte as docs/FORMAT.md shows them.

The document is the only place where the bytes are written down; here they are read from it. `??`
stands for a byte that is random. One store has logs, another one has a queue, a third one a room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import apsw
import google_crc32c
import msgspec
import pytest

from millstream import Producer
from millstream.command import Transact
from millstream.embedded.session import KINDS, EmbeddedSession, open_store
from millstream.engine.protocol import Engine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.file import APPLICATION_ID, PAGE_BYTES
from millstream.engine.sqlite.rows import NUMBERED
from millstream.engine.sqlite.schema import RECORD, SECOND_INDEX
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.format.version import FORMAT
from millstream.log.model.cursor_state import CursorState
from millstream.log.model.head import Head
from millstream.log.rules import retention
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.state import QueueState
from millstream.queue.service.upkeep import QueueUpkeep
from millstream.replica.commands import SetAside, SummarizeLog
from millstream.rooms import commands as rooms
from millstream.rooms.instance_state import InstanceState
from millstream.rooms.model import Leaving, RoomMessage
from millstream.rooms.settings import RoomSettings
from millstream.rooms.state import RoomState
from millstream.store.state import delta as deltas
from millstream.store.state.entity import Entity
from millstream.store.store import Store
from millstream.testing import MemoryEngine, Probe, SimulatedClock
from millstream.threads.database import Millstream

FORMAT_MD = Path(__file__).parents[3] / "docs" / "FORMAT.md"
SECTION = "## Our own records (from 0x07)"
QUEUES = "### Records of queues\n"
COPIES = "### Records of forks and copies (0x1b to 0x1e)"
ROOMS = "### Records of rooms (0x23 to 0x28)"
BYTES = r"(?:[0-9a-f]{2}|\?\?)(?: (?:[0-9a-f]{2}|\?\?))*"
LINE = re.compile(rf"(?P<part>key|value)?\s*(?P<bytes>{BYTES})(?:\s{{2,}}.*)?")
CHANGE = re.compile(rf"\| `0x(?P<kind>..)` \| (?P<name>[^|]+) \| [^|]+ \| `(?P<bytes>{BYTES})` \|")
TAGGED: dict[int, type[Entity]] = {
    keys.HEAD: Head,
    keys.CURSOR: CursorState,
    keys.QUEUE: QueueState,
    keys.BUCKET: Bucket,
    keys.ROOM: RoomState,
    keys.INSTANCE: InstanceState,
}
QUEUE_TYPES = (*range(keys.QUEUE, keys.SEEN_UNTIL + 1), keys.AGING, keys.ROSTER)
COPY_TYPES = range(keys.FORK, keys.FORMER + 1)
ROOM_TYPES = range(keys.ROOM, keys.INSTANCE + 1)
TYPE = re.compile(r"\| `0x(?P<kind>..)` \| (?P<name>[^|]+) \| [^|]+ \| [^|]+ \|")


@dataclass(frozen=True)
class Golden:
    """Bytes as the document shows them; None where it does not say."""

    cells: tuple[int | None, ...]

    @classmethod
    def of(cls, text: str) -> Golden:
        return cls(tuple(None if cell == "??" else int(cell, 16) for cell in text.split()))

    def matches(self, data: bytes) -> bool:
        return len(data) == len(self.cells) and all(
            cell in (None, byte) for cell, byte in zip(self.cells, data, strict=True)
        )


def section() -> str:
    _, found, text = FORMAT_MD.read_text(encoding="utf-8").partition(SECTION)
    assert found
    return text


def parts() -> tuple[str, str, str, str]:
    """What the document says of the stores with logs, with a queue, with forks, and with a room."""
    before, found, rest = section().partition(QUEUES)
    assert found
    queues, found, rest = rest.partition(COPIES)
    assert found
    copies, found, rest = rest.partition(ROOMS)
    assert found
    of_rooms, found, rest = rest.partition("\n### ")
    assert found
    _, found, after = rest.partition("\n### ")  # that of clusters is seen in tests/unit/cluster
    assert found
    return before + after, queues, copies, of_rooms


def shown_rows(text: str) -> list[tuple[bytes, Golden]]:
    """Every row that a part of the document shows: its key and its value."""
    rows = []
    for block in re.findall(r"^```\n(key .*?)^```$", text, re.MULTILINE | re.DOTALL):
        parts = {"key": "", "value": ""}
        part = "key"
        for line in block.splitlines():
            found = LINE.fullmatch(line.strip())
            assert found, f"not a line of bytes: {line!r}"
            part = found["part"] or part
            parts[part] += found["bytes"] + " "
        rows.append((bytes.fromhex(parts["key"]), Golden.of(parts["value"])))
    return rows


def shown_changes() -> list[tuple[int, str, Golden]]:
    found = CHANGE.finditer(section())
    return [(int(row["kind"], 16), row["name"], Golden.of(row["bytes"])) for row in found]


@contextmanager
def example(engine: Engine) -> Iterator[Millstream]:
    """The store of the document, not yet folded."""
    clock = SimulatedClock(1_000)
    store = open_store(engine, clock=clock)
    Probe(store).pause_keeper()
    with Millstream(EmbeddedSession(store)) as ms:
        news, gone = ms.log("news"), ms.log("gone")
        news.append(b"one", key="k", headers={"n": 1})
        clock.advance(1)
        news.append(b"two", timestamp=5)
        news.append_many(
            [b"three", b"four"],
            keys=[b"k", None],
            headers=[{"n": 2}, None],
            producer=Producer("p", 7),
        )
        reader = news.cursor("r")
        reader.ack([0, 2])
        reader.seek(1)
        reader.ack(2)
        news.metadata["owner"] = "ann"
        news.retain(count=9)
        news.stage().close()
        gone.append(b"x")
        gone.append(b"y")
        gone.truncate(before=1)
        retention.tend(store, 2)
        gone.delete()
        retention.tend(store, 2)
        yield ms


Rows = dict[bytes, bytes]


@dataclass(frozen=True)
class Stored:
    """The rows of an example: its deltas, before they were folded, and what was left in the end."""

    deltas: Rows
    folded: Rows

    def changes(self) -> Iterator[tuple[int, bytes]]:
        """Every change that was made: the type of its entity, and its bytes."""
        for row, value in self.deltas.items():
            for key, raw in deltas.decode(keys.number(row), value).changes:
                yield key[1], bytes(raw)


def unfolded(engine: MemoryEngine) -> Rows:
    return {key: value for key, value in engine.survivors() if key[1] == keys.DELTA}


@pytest.fixture(scope="module")
def stored() -> Stored:
    """The store with logs."""
    engine = MemoryEngine()
    with example(engine) as ms:
        before = unfolded(engine)
        ms.fold()
        return Stored(before, dict(engine.survivors()))


@pytest.fixture(scope="module")
def with_queue() -> Stored:
    """The store with a queue. What is done lets its log go only once it is folded."""
    engine = MemoryEngine()
    clock = SimulatedClock(1_000)
    store = open_store(engine, clock=clock)
    Probe(store).pause_keeper()
    with Millstream(EmbeddedSession(store)) as ms:
        clock.advance(1)
        log = ms.log("a")
        log.append_many([b"0", b"1", b"2", b"3", b"4"])
        queue = ms.queue(
            "q",
            sources="a",
            start="earliest",
            priority_by="p",
            priority_step=0.1,
            group_by="g",
            dedup_by="d",
            bucket_exponent=1,
        )
        *good, bad = queue.claim(5, consumer="w")
        queue.renew(bad, lease=60)
        queue.ack(good)
        queue.fail(bad, reason="no")
        queue.redrive()
        log.truncate(before=5)
        first = unfolded(engine)
        ms.fold()
        retention.tend(store, 1)
        queue.put(b"5", priority=2, dedup="i")
        queue.put(b"6", group="x")
        queue.put(b"7", group="x")
        urgent, _ = queue.claim(2, consumer="w")
        queue.nack(urgent, delay=4)
        queue.put(b"8", at=9_000)
        queue.put(b"9", group="y")
        queue.peek()
        queue.pause()
        second = unfolded(engine)
        ms.fold()
        return Stored({**first, **second}, dict(engine.survivors()))


def opened(engine: Engine) -> Store:
    """A store that does nothing by itself."""
    store = open_store(engine, clock=SimulatedClock(1_000))
    Probe(store).pause_keeper()
    return store


@pytest.fixture(scope="module")
def with_strides() -> Stored:
    """A store with a plain queue of small buckets, worked off one message after the other.

    A second after their retention, what was done is forgotten. Then two more come, and a third that
    is cancelled. The consumer of the last one is asked to stop.
    """
    engine, clock = MemoryEngine(), SimulatedClock(1_000)
    store = open_store(engine, clock=clock)
    Probe(store).pause_keeper()
    with Millstream(EmbeddedSession(store)) as ms:
        queue = ms.queue("s", bucket_exponent=1)
        queue.put_many([b"0", b"1", b"2"])
        held = queue.claim(1, consumer="w")
        held = queue.claim(1, consumer="w", ack=held)
        queue.ack(held)
        clock.advance(7 * 24 * 60 * 60 + 1)
        QueueUpkeep()(store)
        queue.put(b"3")
        held = queue.claim(2, consumer="w")
        queue.put(b"4")
        (running,) = queue.claim(1, consumer="w", ack=held)
        queue.cancel(queue.put(b"5"))
        queue.cancel(running, running=True)
        ms.queue("g", group_by="g").limit_group("x", in_flight=10)
        return Stored(unfolded(engine), dict(engine.survivors()))


@pytest.fixture(scope="module")
def without_queue() -> Stored:
    """A store whose only queue, with buckets of ten, got one message and was deleted."""
    engine = MemoryEngine()
    with Millstream(EmbeddedSession(opened(engine))) as ms:
        queue = ms.create_queue("r", bucket_exponent=1)
        queue.put(b"x")
        queue.peek()
        queue.delete()
        ms.log("a").append(b"the newest delta stays")
        before = unfolded(engine)
        ms.fold()
        return Stored(before, dict(engine.survivors()))


@pytest.fixture(scope="module")
def with_forks() -> Stored:
    """The store with forks, a hash, and a log that is owned elsewhere."""
    engine = MemoryEngine()
    store = opened(engine)
    with Millstream(EmbeddedSession(store)) as ms:
        log = ms.log("a")
        log.append(b"x" * 2**20)
        EmbeddedSession(store).execute(SummarizeLog("a"))
        fork = log.fork("b")
        fork.append_many([b"1", b"2"])
        log.append(b"one")
        fork.merge(on_fork="longest")
        log.append(b"three")
        fork.append(b"3")
        fork.merge(on_fork="rebase")
        log.hand_over("0123456789abcdef")
        before = unfolded(engine)
        ms.fold()
        return Stored(before, dict(engine.survivors()))


@pytest.fixture(scope="module")
def with_log_set_aside() -> Stored:
    """A store with a log and a room that were set aside, and readers that had passed the offset."""
    engine = MemoryEngine()
    with Millstream(EmbeddedSession(opened(engine))) as ms:
        log = ms.log("a")
        log.append_many([b"0", b"1", b"2", b"3", b"4"])
        queue = ms.queue("q", sources="a", start="earliest", bucket_exponent=1)
        reader = log.cursor("r")
        reader.ack(reader.take(3))
        queue.ack(queue.claim(4, consumer="w")[:3])
        ms.session.execute(SetAside("a", 2, 0))
        generation = ms.session.execute(rooms.TakeInstance("i", "h")).generation
        ms.session.execute(rooms.JoinRoom("r", "i", generation, "1", "c", "ann"))
        ms.session.execute(SetAside("room:r", 0, 0))
        late = ms.log("late")
        late.append_many([b"0", b"1"])
        behind = late.cursor("r")
        late.truncate(before=1)
        behind.ack(behind.take(1))
        return Stored(unfolded(engine), dict(engine.survivors()))


@pytest.fixture(scope="module")
def with_room() -> Stored:
    """A store with a room in which one user is, and which another one has just left."""
    engine, clock = MemoryEngine(), SimulatedClock(1_000)
    store = open_store(engine, clock=clock)
    Probe(store).pause_keeper()
    with Millstream(EmbeddedSession(store)) as ms:
        ask = ms.session.execute
        first = ask(rooms.TakeInstance("i", "h")).generation
        ask(Transact([rooms.RenewInstance("i", first), rooms.FreeInstance("i", first)]))
        clock.advance(1)
        second = ask(rooms.TakeInstance("i", "h")).generation
        ask(rooms.SpecifyRoom("r", RoomSettings(ttl=9.0, retained=("t",))))
        ask(
            rooms.SendToRoom("r", [RoomMessage("t", b"5", "k")], sender="ann", origin="o", number=1)
        )
        for user, connection in (("ann", "1"), ("bob", "2")):
            ask(rooms.JoinRoom("r", "i", second, connection, "c", user))
        ask(rooms.LeaveRooms("i", second, [Leaving("r", "bob", "2")]))
        ask(rooms.ResumeInRoom("r", "c", "i", second))
        ms.log("a").append(b"the newest delta stays")
        before = unfolded(engine)
        ms.fold()
        return Stored(before, dict(engine.survivors()))


def named(rows: list[tuple[bytes, Golden]]) -> list[object]:
    return [pytest.param(key, golden, id=key.hex(" ", 8)) for key, golden in rows]


@pytest.mark.parametrize(("key", "golden"), named(shown_rows(parts()[0])))
def test_a_row_has_the_bytes_that_the_document_shows(
    key: bytes, golden: Golden, stored: Stored
) -> None:
    value = (stored.deltas if key[1] == keys.DELTA else stored.folded)[key]
    assert golden.matches(value), f"the code writes {value.hex(' ')}"


@pytest.mark.parametrize(("key", "golden"), named(shown_rows(parts()[1])))
def test_a_row_of_a_queue_has_the_bytes_that_the_document_shows(
    key: bytes, golden: Golden, with_queue: Stored, without_queue: Stored
) -> None:
    store = without_queue if key == keys.CLAIMS_KEY else with_queue
    value = store.folded[key]
    assert golden.matches(value), f"the code writes {value.hex(' ')}"


@pytest.mark.parametrize(("key", "golden"), named(shown_rows(parts()[2])))
def test_a_row_of_a_fork_has_the_bytes_that_the_document_shows(
    key: bytes, golden: Golden, with_forks: Stored
) -> None:
    value = with_forks.folded[key]
    assert golden.matches(value), f"the code writes {value.hex(' ')}"


@pytest.mark.parametrize(("key", "golden"), named(shown_rows(parts()[3])))
def test_a_row_of_a_room_has_the_bytes_that_the_document_shows(
    key: bytes, golden: Golden, with_room: Stored
) -> None:
    value = with_room.folded[key]
    assert golden.matches(value), f"the code writes {value.hex(' ')}"


def test_the_document_shows_every_row_of_rooms(with_room: Stored) -> None:
    shown = [key for key, _ in shown_rows(parts()[3])]
    assert len(shown) == len(set(shown))
    written = {key for key in with_room.folded if key[1] in ROOM_TYPES}
    assert written <= set(shown)
    assert {key[1] for key in written} == set(ROOM_TYPES)


def test_the_document_shows_every_row_of_forks(with_forks: Stored) -> None:
    shown = [key for key, _ in shown_rows(parts()[2])]
    assert len(shown) == len(set(shown))
    written = {key for key in with_forks.folded if key[1] in COPY_TYPES}
    assert written <= set(shown)
    assert {key[1] for key in written} == set(COPY_TYPES)


def test_the_document_shows_every_row_of_the_folded_store(stored: Stored) -> None:
    shown = [key for key, _ in shown_rows(parts()[0])]
    assert len(shown) == len(set(shown))
    assert {key for key in stored.folded if key[1] != keys.PAYLOAD} <= set(shown)


def test_the_document_shows_every_row_of_the_queue(with_queue: Stored) -> None:
    shown = [key for key, _ in shown_rows(parts()[1])]
    assert len(shown) == len(set(shown))
    written = {key for key in with_queue.folded if key[1] in QUEUE_TYPES}
    assert written <= set(shown)
    assert {key[1] for key in written} == set(QUEUE_TYPES)


def test_the_document_lists_every_type_that_the_store_knows() -> None:
    table, _, _ = section().partition("###")
    listed = {int(row["kind"], 16) for row in TYPE.finditer(table)}
    assert {keys.PAYLOAD_BLOCK, keys.ENTRY, keys.DELTA, keys.ID_BLOCK, keys.FOLD} <= listed
    known = {*KINDS, *COPY_TYPES, *ROOM_TYPES}
    assert {keys.STORE, *known, keys.CLAIMS, keys.REMAINS, keys.CLUSTER} <= listed


def test_each_change_has_the_bytes_that_the_document_shows(
    stored: Stored,
    with_queue: Stored,
    with_strides: Stored,
    with_forks: Stored,
    with_log_set_aside: Stored,
    with_room: Stored,
) -> None:
    stores = (stored, with_queue, with_strides, with_forks, with_log_set_aside, with_room)
    written = [change for store in stores for change in store.changes()]
    shown = shown_changes()
    for kind, name, golden in shown:
        assert any(k == kind and golden.matches(raw) for k, raw in written), name


def test_the_document_shows_every_kind_of_change() -> None:
    shown = [(kind, golden.cells) for kind, _, golden in shown_changes()]
    assert {keys.STORE, *KINDS} <= {kind for kind, _ in shown}
    for kind, entity in TAGGED.items():
        tags = {change.__struct_config__.tag for change in get_args(entity.changes)}
        assert tags <= {cells[1] for k, cells in shown if k == kind and len(cells) > 1}


def test_further_fields_at_the_end_are_ignored_and_missing_ones_refused(stored: Stored) -> None:
    key, value = next(iter(stored.deltas.items()))
    seq, fields = keys.number(key), msgspec.msgpack.decode(value)
    longer = msgspec.msgpack.encode([*fields, "from a later version"])
    assert deltas.decode(seq, longer) == deltas.decode(seq, value)
    with pytest.raises(CorruptionError):
        deltas.decode(seq, msgspec.msgpack.encode(fields[:-1]))


def test_the_sqlite_file_is_as_the_document_says(tmp_path: Path) -> None:
    path = tmp_path / "example.db"
    memory = MemoryEngine()
    with example(memory) as other, example(SqliteEngine(path)) as ms:
        ms.fold()
        other.fold()
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert file.pragma("application_id") == APPLICATION_ID
    assert file.pragma("user_version") == FORMAT
    assert file.reserve_bytes() == 0
    assert file.pragma("page_size") == PAGE_BYTES
    assert file.pragma("journal_mode") == "wal"
    rows = [(key, value, crc) for key, value, crc in file.execute(f"SELECT * FROM {RECORD}")]
    for kind, table in NUMBERED.items():
        rows += [
            (keys.prefix(kind) + number.to_bytes(8, "big"), value, crc)
            for number, value, crc in file.execute(f"SELECT id, value, crc FROM {table}")
        ]
    file.close()
    assert sorted(key for key, _, _ in rows) == [key for key, _ in memory.survivors()]
    for key, value, crc in rows:
        assert crc == google_crc32c.value(key + value)

    text = section()
    assert f"`{APPLICATION_ID.to_bytes(4, 'big').hex(' ')}`" in text
    assert f"| user version | {FORMAT:,}:" in text
    assert f"| page size | {PAGE_BYTES:,} bytes |" in text
    for table in (RECORD, *NUMBERED.values()):
        assert f"| `{table}` |" in text
    assert f"`{SECOND_INDEX}`" in text
    key, value, crc = next(row for row in rows if row[0] == keys.FOLD_KEY)
    assert f"| key `{key.hex(' ')}`, value `{value.hex(' ')}` | `{crc}` |" in text
