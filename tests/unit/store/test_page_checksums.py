"""Checksums of pages, an option, and of the write-ahead log: what SQLite alone would not notice is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream
from millstream import SqliteOptions
from millstream.doctor import examine
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.sqlite import engine as sqlite
from millstream.engine.sqlite import wal as sqlite_wal
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.file import connect
from millstream.engine.sqlite.pages import checksum_layer, fits, is_one_bit, sums
from millstream.engine.sqlite.wal import find_break
from millstream.errors import CannotOpen, CorruptionError

CHECKED = SqliteOptions(page_checksums=True)
PAGE = 4096
FRAME = PAGE + 24

pytestmark = pytest.mark.skipif(
    checksum_layer() is None, reason="apsw came without the checksum layer"
)


def opened(path: Path, **options: Any) -> millstream.Millstream:
    return millstream.Millstream(EmbeddedSession(open_store(SqliteEngine(path, **options))))


def fill(ms: millstream.Millstream) -> None:
    for number in range(40):
        ms.log("a").append(b"value %d" % number, key=f"key {number}")
    ms.queue("jobs", max_attempts=3).put_many([{"n": n} for n in range(20)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "store.db"
    with millstream.open(place, options=CHECKED) as ms:
        fill(ms)
        ms.fold()
        fill(ms)
    return place


def damage(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def index_page(path: Path) -> int:
    """Where the index of the records begins, by which they are found."""
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    query = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_millstream_record_1'"
    root = file.execute(query).get
    file.close()
    return (root - 1) * PAGE


def test_every_page_of_a_new_store_has_a_checksum(path: Path) -> None:
    data = path.read_bytes()
    assert all(fits(data[at : at + PAGE]) for at in range(0, len(data), PAGE))
    with millstream.open(path) as ms:
        assert ms.stats()["page_checksums"] is True
    assert examine(path).page_checksums


def test_a_flipped_bit_in_an_index_hides_no_record(path: Path) -> None:
    at = index_page(path)
    data = path.read_bytes()
    key = data.rfind(b"\x01\x08", at, at + PAGE)  # the key of an entry of a log
    damage(path, key + 9)
    with (
        pytest.raises(CorruptionError, match="checksum of a page") as noticed,
        opened(path, options=CHECKED) as ms,
    ):
        list(ms.log("a").read())
    assert "millstream doctor" in str(noticed.value)
    report = examine(path)
    assert not report.healthy
    assert any(
        f"page {at // PAGE + 1:,} does not fit" in problem.message for problem in report.problems
    )


def test_damage_comes_out_as_such_from_reads_writes_and_folds(path: Path) -> None:
    """The handle is not poisoned by it: nothing was written, and other pages can still be read."""
    pages = path.stat().st_size // PAGE
    kept = path.read_bytes()
    noticed = set()
    for number in range(1, pages):
        path.write_bytes(kept)
        damage(path, number * PAGE + 2000, bit=3)
        try:
            ms = millstream.open(path, options=CHECKED)
        except CorruptionError:
            noticed.add("open")
            continue
        for name, ask in {
            "read": lambda ms=ms: list(ms.log("a").read()),
            "append": lambda ms=ms: ms.log("a").append(b"more"),
            "append many": lambda ms=ms: ms.log("a").append_many([b"x" * 3000] * 3),
            "claim": lambda ms=ms: ms.queue("jobs").claim(1),
            "fold": lambda ms=ms: ms.fold(),
        }.items():
            try:
                ask()
            except CorruptionError:
                noticed.add(name)
        ms.close()
        for side in ("-wal", "-shm"):
            Path(f"{path}{side}").unlink(missing_ok=True)
    assert {"open", "read", "fold"} <= noticed


def test_a_store_without_the_layer_works_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "plain.db"
    with opened(path, vfs="unix") as ms:
        fill(ms)
        assert ms.stats()["page_checksums"] is False
    assert path.read_bytes()[20] == 0
    with millstream.open(path) as ms:  # it stays as it was made
        assert ms.stats()["page_checksums"] is False
        assert len(ms.log("a")) == 40
    report = examine(path)
    assert report.healthy
    assert not report.page_checksums


def test_without_the_layer_a_store_with_checksums_is_only_read(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(CannotOpen, match="would spoil them"):
        opened(path, vfs="unix")
    engine = SqliteEngine(path, vfs="unix", read_only=True)
    with engine.read() as snapshot:
        assert snapshot.last_seq()
    engine.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", [0, 18, 20, 61, 63, 70])
def test_a_damaged_header_is_called_damaged(path: Path, place: int) -> None:
    """Neither a foreign file, nor a newer one, nor one without checksums."""
    damage(path, place, bit=3 if place == 20 else 0)
    with pytest.raises(CorruptionError, match=r"header|checksum of a page"):
        millstream.open(path, options=CHECKED)
    try:
        assert not examine(path).healthy
    except CorruptionError:
        pass  # nothing can be read at all


def test_other_databases_of_the_process_are_left_alone(tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "other.db"), vfs="unix")
    other.execute("CREATE TABLE t (n)")
    other.close()
    assert (tmp_path / "other.db").read_bytes()[20] == 0


# The write-ahead log.


def left_by_a_kill(path: Path, commits: int = 6) -> Path:
    """A copy of the store as a killed process leaves it: its commits in the write-ahead log."""
    copy = path.with_name("killed.db")
    with millstream.open(path) as ms:
        for number in range(commits):
            ms.log("b").append(b"acknowledged %d" % number)
        for side in ("", "-wal"):
            Path(f"{copy}{side}").write_bytes(Path(f"{path}{side}").read_bytes())
    return copy


def rewritten(path: Path, change: Any) -> Path:
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes())
    change(data)
    wal.write_bytes(data)
    return wal


def test_an_intact_log_is_used(path: Path) -> None:
    copy = left_by_a_kill(path)
    with millstream.open(copy) as ms:
        assert len(ms.log("b")) == 6


@pytest.mark.parametrize("frame", ["first", "last"])
@pytest.mark.parametrize("place", [0, 4, 8, 16, 24, 24 + 2000, 24 + 4095])
def test_a_flipped_bit_in_the_log_loses_no_commit_silently(
    path: Path, frame: str, place: int
) -> None:
    copy = left_by_a_kill(path)
    wal = Path(f"{copy}-wal")
    last = find_last_commit(wal)
    at = 32 + (0 if frame == "first" else last) * FRAME + place
    damage(wal, at)
    before = copy.read_bytes(), wal.read_bytes()
    with pytest.raises(CorruptionError, match="write-ahead log is damaged") as noticed:
        millstream.open(copy)
    assert "accept_loss" in str(noticed.value)
    assert (copy.read_bytes(), wal.read_bytes()) == before
    with pytest.raises(CorruptionError, match="write-ahead log is damaged"):
        SqliteEngine(copy, read_only=True)


def find_last_commit(wal: Path) -> int:
    data = wal.read_bytes()
    frames = (len(data) - 32) // FRAME
    salts = data[16:24]
    return max(n for n in range(frames) if data[32 + n * FRAME + 8 : 32 + n * FRAME + 16] == salts)


def test_a_part_of_the_log_that_was_overwritten_is_noticed(path: Path) -> None:
    copy = left_by_a_kill(path)

    def overwrite(data: bytearray) -> None:
        data[32 + 24 + 512 : 32 + 24 + 1024] = b"!" * 512

    rewritten(copy, overwrite)
    with pytest.raises(CorruptionError, match="write-ahead log is damaged"):
        millstream.open(copy)


def test_a_log_without_its_header_is_noticed(path: Path) -> None:
    copy = left_by_a_kill(path)
    rewritten(copy, lambda data: data.__setitem__(slice(0, 32), bytes(32)))
    with pytest.raises(CorruptionError, match="write-ahead log is damaged at its header"):
        millstream.open(copy)


@pytest.mark.parametrize("kept", [0, 10, 24, 24 + 512, 24 + 4000])
def test_a_torn_last_transaction_is_normal(path: Path, kept: int) -> None:
    """As a power cut leaves it: any of its sectors may be missing, and none was acknowledged."""
    copy = left_by_a_kill(path)

    def tear(data: bytearray) -> None:
        at = 32 + find_last_commit(Path(f"{copy}-wal")) * FRAME
        data[at + kept : at + FRAME] = bytes(FRAME - kept)

    rewritten(copy, tear)
    with millstream.open(copy) as ms:
        assert len(ms.log("b")) == 5
        ms.log("b").append(b"life goes on")
    with millstream.open(copy) as ms:
        assert len(ms.log("b")) == 6


def test_what_is_lost_can_be_accepted_once(path: Path) -> None:
    copy = left_by_a_kill(path)
    rewritten(copy, lambda data: data.__setitem__(32 + 24 + 7, data[32 + 24 + 7] ^ 1))
    with opened(copy, accept_loss=True) as ms:
        assert len(ms.log("b")) == 0
        ms.log("b").append(b"again")
    with millstream.open(copy) as ms:
        assert len(ms.log("b")) == 1


def test_a_relaxed_store_may_lose_commits_with_the_power(path: Path) -> None:
    """Its commits are not synced one by one: also in the middle of the log frames may be missing."""
    copy = left_by_a_kill(path)

    def tear(data: bytearray) -> None:
        data[32 + FRAME + 24 : 32 + 2 * FRAME] = b"!" * PAGE

    rewritten(copy, tear)
    with pytest.raises(CorruptionError):
        opened(copy)
    with opened(copy, durability="relaxed") as ms:
        ms.log("b").append(b"life goes on")
    with millstream.open(copy) as ms:
        assert len(ms.log("b")) >= 1


def test_every_frame_is_looked_at_where_sqlite_does_not_count_them(path: Path) -> None:
    copy = left_by_a_kill(path)
    wal = Path(f"{copy}-wal")
    assert find_break(wal) is None
    damage(wal, 32 + 24 + 100)
    found = find_break(wal)
    assert found is not None
    assert (found.frame, found.commits_behind) == (1, 6)


def test_what_a_writer_commits_meanwhile_is_left_to_sqlite(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a store is opened beside a busy process: summing up its frames takes long."""
    copy = left_by_a_kill(path)
    wal = Path(f"{copy}-wal")
    frames = (wal.stat().st_size - 32) // FRAME
    summed = []

    def counted(data: bytes, *seeds: Any, **options: Any) -> tuple[int, int]:
        summed.append(len(data))
        return sums(data, *seeds, **options)

    monkeypatch.setattr(sqlite_wal, "sums", counted)
    assert find_break(wal, lambda: frames) is None
    assert len(summed) == 1  # of the log's header
    rewritten(copy, lambda data: data.extend(bytes(FRAME * 3)))  # older than this log
    assert find_break(wal, lambda: frames) is None
    assert len(summed) == 2

    damage(wal, 32 + 24 + 100)
    known = iter([0, frames])  # the first look was too early
    assert find_break(wal, lambda: next(known)) is None
    assert next(known, None) is None


def unfinished(path: Path) -> tuple[Path, int]:
    """A copy with a commit of which only the first frame was written; how many stand before it."""
    copy = path.with_name("unfinished.db")
    with millstream.open(path) as ms:
        ms.log("b").append(b"committed")
        ms.log("b").append(bytes(100_000))
        data = Path(f"{path}-wal").read_bytes()
        copy.write_bytes(path.read_bytes())
    commits = [data[at + 4 : at + 8] != bytes(4) for at in range(32, len(data), FRAME)]
    known = commits.index(False, commits.index(True))
    Path(f"{copy}-wal").write_bytes(data[: 32 + (known + 1) * FRAME])
    return copy, known


def test_a_commit_that_is_being_written_is_left_to_its_writer(path: Path) -> None:
    """What a living process has not committed cannot be lost; what a dead one has left may be."""
    copy, known = unfinished(path)
    wal = Path(f"{copy}-wal")
    assert find_break(wal, lambda: known) is None
    damage(wal, 32 + known * FRAME + 24 + 100)
    assert find_break(wal, lambda: known) is not None
    assert find_break(wal, lambda: known, lambda: True) is None


def test_a_log_with_an_unfinished_commit_opens_where_nobody_may_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, _ = unfinished(path)
    made: list[str] = []

    def connecting(place: Path, **options: Any) -> apsw.Connection:
        made.append(str(place))
        if len(made) == 1:
            return connect(place, **options)
        return apsw.Connection(str(place), flags=apsw.SQLITE_OPEN_READONLY, vfs=options["vfs"])

    monkeypatch.setattr(sqlite, "connect", connecting)
    with opened(copy, read_only=True) as ms:
        assert len(made) == 2  # the second one asked whether somebody writes
        assert [record.value for record in ms.log("b").read()] == [b"committed"]


def test_one_flipped_bit_is_told_from_more() -> None:
    data = bytes(range(256)) * 16
    stored = sums(data, (3, 5), swap=False)
    for place in range(0, len(data), 97):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        assert is_one_bit(sums(bytes(flipped), (3, 5), swap=False), stored, len(data))
        flipped[place ^ 1] ^= 0x55
        assert not is_one_bit(sums(bytes(flipped), (3, 5), swap=False), stored, len(data))
