"""A backup through a server: complete, incremental, resumed, and only with the right."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream
from millstream import doctor
from millstream.backup.chunks import Piece
from millstream.backup.increment import (
    FIRST_LINE,
    CutStream,
    IncrementReader,
    KnownChunks,
    encode_known,
    failure_frame,
    frames_of,
)
from millstream.backup.place import BackupPlace
from millstream.backup.point import BackupPoint
from millstream.backup.restore import restore, restore_stream
from millstream.backup.verify import verify
from millstream.embedded.session import open_file
from millstream.engine.row_copy import Heard
from millstream.errors import CannotOpen, CorruptionError, Denied, InvalidInput, Overloaded
from millstream.remote import backup as remote_backup
from millstream.remote.backup import ServerStore, back_up_server, stream_server
from millstream.server.auth.tokens import create_token
from millstream.server.backup_downloads import DOWNLOADS_MAX, BackupDownloads
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.remote.proxy import proxied
from tests.unit.store.test_store_copy import fill, rows_of

SETTINGS = Settings(port=0, stop_s=1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "a.db")
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("large").append_many([os.urandom(60_000) for _ in range(40)])
    return tmp_path / "a.db"


@pytest.fixture
def served(path: Path) -> Iterator[Serving]:
    with running(path, SETTINGS) as server:
        yield server


def no_pause(_seconds: float) -> None:
    """Repeat at once."""


def back_up(url: str, place: Path, **options: Any) -> Any:
    return back_up_server(ServerStore(url), str(place), pause=no_pause, **options)


def test_everything_is_in_the_backup_of_a_server(
    served: Serving, path: Path, tmp_path: Path
) -> None:
    place = tmp_path / "backup"
    first = back_up(served.url, place)
    assert first.stored_chunks == first.chunks
    assert verify(place).damage == []
    restore(place, tmp_path / "b.db")
    assert doctor.examine(tmp_path / "b.db").healthy
    assert rows_of(tmp_path / "b.db") == rows_of(path)
    with millstream.open(tmp_path / "b.db") as ms:
        assert ms.sql("SELECT count(*) FROM names").rows == [(200,)]


def test_the_second_backup_downloads_only_what_is_new(served: Serving, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    first = back_up(served.url, place)
    source = ServerStore(served.url)
    with millstream.open(served.url) as ms:
        ms.log("orders").append(b"one more")
    again = back_up_server(source, str(place))
    assert again.point.seq == first.point.seq + 1
    assert 0 < source.chunks_read < first.chunks / 2
    assert len(BackupPlace(place).points()) == 2
    restore(place, tmp_path / "b.db")
    with millstream.open(tmp_path / "b.db") as ms:
        assert ms.log("orders").last().value == b"one more"


def test_a_broken_connection_is_opened_again(served: Serving, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    with proxied(served.port, budgets=[1 << 20, 900_000, 900_000]) as proxy:
        source = ServerStore(proxy.url)
        report = back_up_server(source, str(place), pause=no_pause)
        assert proxy.connections > 2
    assert report.point.seq
    assert verify(place).damage == []
    restore(place, tmp_path / "b.db")
    assert doctor.examine(tmp_path / "b.db").healthy


class BreakingStore(ServerStore):
    """A server whose stream breaks behind the fourth piece, twice."""

    breaks = 2

    @contextmanager
    def capture(
        self, known_names: Collection[str], *, checks_rows: bool, heard: Heard
    ) -> Iterator[tuple[BackupPoint, Iterator[Piece]]]:
        with super().capture(known_names, checks_rows=checks_rows, heard=heard) as captured:
            yield captured[0], self._cut(captured[1])

    def _cut(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for number, piece in enumerate(pieces):
            if number == 4 and self.breaks:
                self.breaks -= 1
                raise CutStream("the stream was cut")
            yield piece


def test_chunks_that_have_arrived_are_not_sent_again(served: Serving, tmp_path: Path) -> None:
    source = BreakingStore(served.url)
    report = back_up_server(source, str(tmp_path / "backup"), pause=no_pause)
    assert source.breaks == 0
    assert report.stored_chunks == report.chunks - 4
    assert verify(tmp_path / "backup").damage == []


def test_a_server_that_stays_away_is_one_sentence(served: Serving, tmp_path: Path) -> None:
    pauses: list[float] = []
    with (
        proxied(served.port, budgets=[10_000] + [0] * 50) as proxy,
        pytest.raises(CannotOpen, match="there is no new point: run the backup again"),
    ):
        back_up_server(ServerStore(proxy.url), str(tmp_path / "p"), pause=pauses.append)
    assert pauses == sorted(pauses)
    assert 0 < len(pauses) < remote_backup.TRIES
    assert BackupPlace(tmp_path / "p").points() == []


def test_an_address_without_a_server_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(CannotOpen, match=rf"cannot reach {url}: Connection refused; there is no"):
        back_up(url, tmp_path / "p")


def test_a_stream_of_a_server_is_one_backup(served: Serving, path: Path, tmp_path: Path) -> None:
    output = BytesIO()
    stream_server(ServerStore(served.url), output, heard=lambda _stage, _done, _total: None)
    restore_stream(BytesIO(output.getvalue()), tmp_path / "b.db")
    assert rows_of(tmp_path / "b.db") == rows_of(path)


def test_only_a_token_with_the_right_backs_up(path: Path, tmp_path: Path) -> None:
    with millstream.open(path) as ms:
        tokens = {
            right: create_token(ms, right, [right])[1]
            for right in ("store:backup", "store:admin", "*:admin", "store:read", "log:admin")
        }
    settings = Settings(port=0, stop_s=1.0, auth="on")
    with running(path, settings) as server:
        for right in ("*:admin", "store:read", "log:admin"):
            source = ServerStore(server.url, token=tokens[right])
            with pytest.raises(Denied, match=r"may not back up the store.*store:backup"):
                back_up_server(source, str(tmp_path / "denied"))
        assert not (tmp_path / "denied").exists()
        for right in ("store:backup", "store:admin"):
            source = ServerStore(server.url, token=tokens[right])
            assert back_up_server(source, str(tmp_path / "backup")).chunks
        with (
            millstream.open(server.url, token=tokens["store:backup"]) as ms,
            pytest.raises(Denied),
        ):
            ms.log("orders").last()


def test_a_damaged_store_gets_no_first_point(path: Path, tmp_path: Path) -> None:
    with closing(apsw.Connection(str(path))) as file:
        file.execute("UPDATE millstream_block SET value = zeroblob(length(value))")
        assert file.changes()
    with running(path, SETTINGS) as server, pytest.raises(CorruptionError):
        back_up(server.url, tmp_path / "backup")
    assert BackupPlace(tmp_path / "backup").points() == []


def test_the_place_of_another_store_is_refused(served: Serving, tmp_path: Path) -> None:
    fill(tmp_path / "other.db")
    with running(tmp_path / "other.db", SETTINGS) as other:
        back_up(other.url, tmp_path / "backup")
    with pytest.raises(CannotOpen, match="backup of another store"):
        back_up(served.url, tmp_path / "backup")


def test_downloads_are_few_and_end_with_the_server(path: Path) -> None:
    async def test() -> None:
        store = open_file(path)
        try:
            downloads = BackupDownloads(store.engine, store.clock)
            running_parts = []
            for _ in range(DOWNLOADS_MAX):
                parts = downloads.begin(KnownChunks(b""), checks_rows=False)
                assert (await anext(parts)).startswith(FIRST_LINE)
                running_parts.append(parts)
            with pytest.raises(Overloaded, match="backups of this store are downloaded now"):
                downloads.begin(KnownChunks(b""), checks_rows=False)
            await downloads.close()
            for parts in running_parts:
                await parts.aclose()
            assert downloads.age_s() is None
            parts = downloads.begin(KnownChunks(b""), checks_rows=True)
            data = b"".join([part async for part in parts])
            assert len(read_all(data)) > 5
            assert downloads.age_s() is not None
        finally:
            store.close()

    asyncio.run(test())


def test_known_chunks_are_found_by_the_first_bytes_of_their_hashes() -> None:
    names = [os.urandom(32) for _ in range(1_000)]
    known = KnownChunks(encode_known([name.hex() for name in names]))
    assert all(known.has(name) for name in names)
    assert not any(known.has(os.urandom(32)) for _ in range(1_000))
    assert not KnownChunks(b"").has(names[0])
    with pytest.raises(InvalidInput, match="multiple of 8"):
        KnownChunks(b"123")


def increment() -> bytes:
    point = BackupPoint(
        store="s",
        seq=1,
        committed_ms=1,
        taken_ms=0,
        checked_ms=0,
        page_bytes=4096,
        pages=2,
        has_checksums=False,
        lists=[],
    )
    frames = frames_of(point, iter([b"a" * 100, b"b" * 100]), KnownChunks(b""))
    return FIRST_LINE + b"".join(frames)


def read_all(data: bytes) -> list[Any]:
    reader = IncrementReader(BytesIO(data).read, "http://there")
    return [reader.point().seq, *reader.pieces()]


def test_every_cut_and_every_flipped_bit_of_a_stream_is_noticed() -> None:
    data = increment()
    assert read_all(data) == [1, b"a" * 100, b"b" * 100]
    for end in range(len(data)):
        with pytest.raises((CutStream, CorruptionError)):
            read_all(data[:end])
    chunks_start = data.index(b"C\x00\x00")
    for at in range(chunks_start, len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises((CutStream, CorruptionError)):
            read_all(bytes(changed))


def test_an_error_of_the_server_is_raised_by_the_reader() -> None:
    with pytest.raises(Overloaded, match="the server stops"):
        read_all(FIRST_LINE + failure_frame("Overloaded", "the server stops"))


def test_a_server_over_a_bucket_is_backed_up(tmp_path: Path) -> None:
    bucket = f"file://{tmp_path}/bucket"
    with running(bucket, SETTINGS) as server:
        with millstream.open(server.url) as ms:
            ms.log("x").append_many([b"%d" % number for number in range(50)])
        back_up(server.url, tmp_path / "backup")
        with millstream.open(server.url) as ms:
            ms.log("x").append(b"50")
        back_up(server.url, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "b.db")
    assert doctor.examine(tmp_path / "b.db").healthy
    with millstream.open(tmp_path / "b.db") as ms:
        assert [record.value for record in ms.log("x").read()] == [b"%d" % n for n in range(51)]
