"""Entries that are applied together: a large commit counts with its end, and only whole."""

from __future__ import annotations

import pytest

from millstream.cluster import entry as entries
from millstream.cluster.entry import ChunkedBody, Differs, Position, SharedEntry, encode
from millstream.cluster.node.applier import EntryBatch
from millstream.cluster.shared_log import Stored
from millstream.engine.commit import Commit
from millstream.engine.memory.engine import MemoryEngine
from millstream.format import keys

ROWS = [(keys.payload(1), b"v" * 90), (keys.delta(1), b"")]
BODY = entries.pack(Commit(ROWS), [], bytes_max=1 << 20)
PIECES = entries.cut(BODY, len(BODY) // 3 + 1)
ONE, OTHER = b"1" * entries.ID_BYTES, b"2" * entries.ID_BYTES


class Reading:
    """A batch, and the entries that are put into it one behind the other."""

    def __init__(self) -> None:
        self.batch = EntryBatch(Position(), [], b"")

    def add(self, kind: int, body: bytes, name: bytes) -> None:
        """One more entry, as a leader would have appended it."""
        position = self.batch.position
        entry = SharedEntry(kind, 1, name, position.hash, 0, 0, body)
        self.batch.add(Stored(position.sequence + 1, encode(entry)))

    def chunks(self, *pieces: bytes, name: bytes = ONE) -> None:
        """Pieces of one commit."""
        for piece in pieces:
            self.add(entries.CHUNK, piece, name)

    def end(self, *, chunks: int = len(PIECES), size: int = len(BODY), name: bytes = ONE) -> None:
        """The entry that makes the pieces before it true."""
        self.add(entries.CHUNKED, encode(ChunkedBody(chunks, size)), name)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """What a store has that applies all of it."""
        engine = MemoryEngine()
        if self.batch.noted is not None:
            with engine.write() as writer:
                self.batch.write(writer)
        return [row for row in engine.survivors() if row[0] != keys.CLUSTER_KEY]


def test_pieces_count_with_their_end_and_not_before() -> None:
    reading = Reading()
    reading.chunks(*PIECES)
    assert reading.batch.commits == 0
    assert reading.batch.noted is None, "a node that restarts begins before the first piece"
    reading.end()
    assert reading.batch.commits == 1
    assert reading.rows() == ROWS


def test_pieces_of_a_commit_that_was_given_up_do_not_count_for_the_next() -> None:
    reading = Reading()
    reading.chunks(*PIECES[:2], name=OTHER)
    reading.chunks(*PIECES)
    reading.end()
    assert reading.rows() == ROWS


def test_pieces_of_an_epoch_that_is_over_do_not_count() -> None:
    reading = Reading()
    reading.chunks(*PIECES)
    epoch = entries.EpochBody("a", "http://a", 0)
    reading.add(entries.EPOCH, encode(epoch), OTHER)
    with pytest.raises(Differs, match="ends chunks that are not there"):
        reading.end()


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        (PIECES[:-1], {}),
        (PIECES, {"chunks": len(PIECES) + 1}),
        (PIECES, {"size": len(BODY) + 1}),
        (PIECES, {"name": OTHER}),
        ([*PIECES, PIECES[0]], {}),
        ([], {}),
    ],
)
def test_an_end_that_does_not_fit_the_pieces_before_it_is_damage(
    pieces: list[bytes], said: dict[str, object]
) -> None:
    reading = Reading()
    reading.chunks(*pieces)
    with pytest.raises(Differs, match="ends chunks that are not there"):
        reading.end(**said)  # type: ignore[arg-type]
