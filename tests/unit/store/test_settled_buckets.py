"""Buckets whose messages are all done leave memory, also where another state has folded them."""

from __future__ import annotations

from pathlib import Path

from millstream.embedded.session import EmbeddedSession, open_file
from millstream.format import keys
from millstream.store.store import Store
from millstream.threads.database import Millstream

ROUNDS = 8
SLOTS = 100


def buckets_in(store: Store) -> int:
    return sum(key[1] == keys.BUCKET for key in store.state.entities)


def test_a_process_that_follows_another_keeps_no_bucket_that_is_done(tmp_path: Path) -> None:
    """The standby of a server follows in the same way: its memory grew with every bucket."""
    worker, follower = open_file(tmp_path / "a.db"), open_file(tmp_path / "a.db")
    try:
        ms = Millstream(EmbeddedSession(worker))
        jobs = ms.create_queue("jobs", bucket_exponent=2)
        for _ in range(ROUNDS):
            jobs.put_many([b"x"] * SLOTS)
            follower.refresh()
            while got := jobs.claim(SLOTS):
                follower.refresh()
                jobs.ack(got)
            follower.refresh()
            ms.fold()
        ms.log("other").append(b"the follower sees the last fold with the next commit")
        follower.refresh()
        assert buckets_in(worker) <= 2
        assert buckets_in(follower) <= 2
    finally:
        worker.close()
        follower.close()
