"""A node that missed something: it replays the log, or takes a snapshot; or it halts, with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from millstream.cluster import entry as entries
from millstream.cluster.node.snapshots import copy, read_position
from millstream.cluster.shared_log import Unreachable, Unsure
from millstream.engine.commit import Commit
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.open import open_engine
from millstream.errors import (
    CorruptionError,
    MillstreamError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
)
from millstream.format import keys
from millstream.testing import SimulatedClock
from millstream.testing.probe import corrupt
from tests.unit.cluster.stepping import Group, Stepped
from tests.unit.cluster.trio import STEADY, Machine, Trio

LARGE = 1_300_000
MANY = [b"0" * 2000] * 100
"""Records whose values have a row of their own."""


def test_a_large_commit_travels_in_pieces_and_is_whole_on_the_other_nodes() -> None:
    group = Group()
    a = group.node("a").lead()
    a.put(1, size=LARGE)

    kinds = [entries.decode(0, data).kind for data in group.log.entries]
    assert kinds == [entries.EPOCH, *[entries.CHUNK] * 3, entries.CHUNKED]
    assert max(map(len, group.log.entries)) < 600_000
    b = group.node("b").follow()
    assert b.inner.last_seq() == a.inner.last_seq()
    with a.inner.read() as mine, b.inner.read() as others:
        assert mine.get(keys.payload(1)) == others.get(keys.payload(1))


def test_pieces_without_their_end_are_nothing() -> None:
    group = Group()
    a = group.node("a").lead()
    a.faults.on("sending", Unsure("gone"), nth=3)
    for nth in range(1, 200):
        a.faults.on("reading", Unreachable("gone"), nth=nth)
    with pytest.raises(NoQuorum, match="nothing was stored"):
        a.put(1, size=LARGE)
    a.door.hook = None

    b = group.node("b").follow().lead()
    b.put(2, size=LARGE)

    assert a.follow().numbers() == b.numbers() == group.node("c").follow().numbers() == [2]


def test_a_node_that_starts_anew_between_pieces_reads_all_of_them_again() -> None:
    group = Group()
    a = group.node("a").lead()
    while group.log.last < 61:
        a.node.barrier(1)
    b = group.node("b")

    def hook(step: str) -> None:
        if step == "stored" and group.log.last == 64:  # a barrier that would be noted elsewhere
            b.follow()
        a.faults(step)

    a.door.hook = hook
    a.faults.on("sent", Unsure("gone"), nth=3)
    a.put(1, size=LARGE)
    assert entries.decode(64, group.log.entries[63]).kind == entries.BARRIER
    assert b.node.state().sequence == 64
    engine = b.inner
    assert isinstance(engine, MemoryEngine)
    again = group.node("b", engine.reopen())

    assert again.follow().numbers() == a.numbers() == [1]


def test_every_64th_barrier_is_noted_alike_on_all_nodes() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b")
    while group.log.last < 130:
        a.node.barrier(1)
    b.follow()

    for one in (a, b):
        with one.inner.read() as snapshot:
            assert entries.decode_position(snapshot.get(keys.CLUSTER_KEY)).sequence == 128


def halted(node: Stepped) -> str:
    assert node.role == "halted"
    with pytest.raises(NotLeader, match="halted"):
        node.put(99)
    return node.node.state().reason


def test_an_entry_that_does_not_follow_the_chain_halts_the_node() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b").follow()
    a.put(1)
    group.log.entries[-1] = group.log.entries[0]

    assert "does not follow" in halted(b.follow())
    assert b.numbers() == []


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x97\x09\x01\xc4\x00\xc4\x00\x00\x00\xc4\x00"])
def test_an_entry_that_cannot_be_read_halts_the_node(data: bytes) -> None:
    group = Group()
    group.node("a").lead()
    b = group.node("b").follow()
    group.log.entries.append(data)

    assert "entry 2" in halted(b.follow())


def test_a_node_halts_at_an_entry_of_a_newer_version_and_applies_nothing_of_it() -> None:
    group = Group()
    a = group.node("a").lead()
    b = group.node("b").follow()
    a.put(1)
    last = entries.decode(group.log.last, group.log.entries[-1])
    newer = msgspec.structs.replace(last, kind=9, previous=entries.digest(group.log.entries[-1]))
    assert group.log.store(entries.encode(newer), group.log.last)

    b.follow()
    with pytest.raises(OutcomeUnknown):
        a.put(2)

    for one in (a, b):
        stance = one.node.state()
        assert stance.role == "halted"
        assert "a newer version leads. Upgrade this node" in stance.reason
        assert one.numbers() == [1]


def test_a_log_that_is_shorter_than_what_was_applied_halts_the_node() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b")
    a.put(1)
    b.follow()
    del group.log.entries[1:]

    assert "repair" in halted(b.follow())
    engine = b.inner
    assert isinstance(engine, MemoryEngine)
    assert "ends at entry 1" in halted(group.node("b", engine.reopen()))


def test_a_log_that_is_gone_halts_the_node() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b").follow()
    group.log.is_gone = True
    with pytest.raises(MillstreamError):
        a.put(1)

    assert "gone" in halted(b.follow())


def test_a_store_that_is_not_the_leader_s_halts_its_node_at_the_next_epoch() -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b").follow()
    with b.inner.write() as writer:  # as if the file had been written by another program
        writer.commit(Commit([(keys.delta(1), b"")]))
    c = group.node("c").follow()
    c.lead()

    assert "stands at commit 1" in halted(b.follow())
    assert a.role == "leader"


def test_time_goes_on_when_another_node_leads_whatever_its_wall_clock_says() -> None:
    group = Group()
    a, b = group.node("a"), group.node("b")
    b.clock.jump(3600)
    a.lead()
    b.follow()
    for _ in range(10):
        a.clock.advance(60)
        b.clock.advance(60)
        a.node.step()
        b.follow(1)
    apart_ms = b.node.clock.boot_ms() - a.node.clock.boot_ms()
    assert abs(apart_ms) < 5_000

    before_ms = a.node.clock.boot_ms()
    b.clock.advance(30)  # nobody writes for a while
    b.lead().put(1)
    assert 30_000 <= b.node.clock.boot_ms() - before_ms < 60_000
    assert b.node.clock.boot_id() == a.node.clock.boot_id()


def test_a_node_that_starts_after_a_while_counts_the_time_by_its_wall_clock() -> None:
    group = Group()
    a = group.node("a").lead()
    a.put(1)
    before_ms = a.node.clock.boot_ms()
    engine = a.inner
    assert isinstance(engine, MemoryEngine)

    clock = SimulatedClock(a.clock.wall_ms())
    clock.advance(3600)
    again = group.node("a", engine.reopen(), clock)

    assert again.node.clock.boot_ms() == before_ms + 3_600_000


# Snapshots, on files.


def test_a_node_that_is_too_far_behind_takes_a_snapshot_and_replays_the_rest(
    tmp_path: Path,
) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b")
        leader = trio.leader()
        for number in range(30):
            leader.ms.log("orders").append(str(number).encode())
        trio.settle()
        trio.log.trim(trio.log.last - 2)
        trio.start("c")
        leader.ms.log("orders").append(b"30")
        trio.settle()

        late = trio.machines["c"]
        assert late.node.state().snapshots == 1
        assert [record.value for record in late.ms.log("orders").read()][-2:] == [b"29", b"30"]


def test_an_open_store_goes_on_over_the_file_that_took_its_place(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        leader = trio.leader()
        log = leader.ms.log("orders")
        log.append(b"0")
        trio.settle()
        late = trio.followers()[0]
        assert [record.value for record in late.ms.log("orders").read()] == [b"0"]

        trio.cut_off(late)
        behind = late.node.member.position.sequence
        for number in range(1, 30):
            log.append(str(number).encode())
        leader.ms.fold()
        trio.log.trim(behind + 10)
        late.door.hook = None
        trio.settle()

        assert late.node.state().snapshots == 1
        assert len(list(late.ms.log("orders").read())) == 30


def test_a_damaged_node_never_leads_keeps_its_file_and_is_repaired_from_another(
    tmp_path: Path,
) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        leader = trio.leader()
        leader.ms.log("orders").append(b"0")
        trio.settle()
        damaged = trio.followers()[0]
        with damaged.node.member.turn:
            damaged.node.member.progress.damaged = "a row does not fit its checksum"
        assert not damaged.node.member.campaign()
        trio.until(lambda: damaged.node.state().snapshots == 1)
        leader.ms.log("orders").append(b"1")
        trio.settle()

        assert damaged.node.state().reason == ""
        assert (tmp_path / f"{damaged.name}.db.aside-1").exists()


def spoil(machine: Machine) -> None:
    """Damage a value on one node's disk: nothing meets it but reads."""
    kinds = (keys.PAYLOAD, keys.PAYLOAD_BLOCK)
    stored = next(key for key, _ in machine.rows() if key[1] in kinds)
    corrupt(machine.inner, stored)
    machine.reopen()


@pytest.mark.parametrize("leads", [True, False])
def test_a_node_whose_reads_meet_damage_leads_no_more_and_is_repaired_from_another(
    tmp_path: Path, leads: bool
) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        leader = trio.leader()
        leader.ms.log("orders").append_many(MANY)
        trio.settle()
        hit = leader if leads else trio.followers()[0]
        epoch = leader.node.state().epoch
        spoil(hit)
        with pytest.raises(CorruptionError):
            hit.ms.log("orders").get(0)

        trio.until(lambda: hit.node.state().snapshots == 1)
        if leads:
            trio.until(lambda: trio.leader().node.state().epoch > epoch)
        else:
            assert leader.leads
        trio.leader().ms.log("orders").append(b"1")
        trio.settle()
        assert [one.value for one in hit.ms.log("orders").read()] == [*MANY, b"1"]
        assert (tmp_path / f"{hit.name}.db.aside-1").exists(), "what is damaged is never deleted"


def test_a_leader_without_followers_goes_on_in_spite_of_damage(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a")
        leader = trio.leader()
        leader.ms.log("orders").append_many(MANY)
        trio.settle()
        spoil(leader)
        with pytest.raises(CorruptionError):
            leader.ms.log("orders").get(0)
        before = leader.node.member.position.sequence
        trio.until(lambda: leader.node.member.position.sequence > before + 3)
        assert leader.leads
        assert leader.ms.log("orders").append(b"1") == len(MANY)


def test_a_node_whose_position_is_damaged_begins_anew_and_keeps_its_file(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        leader = trio.leader()
        leader.ms.log("orders").append(b"0")
        trio.settle()
        name = trio.followers()[0].name
        trio.stop(name)
        engine = open_engine(tmp_path / f"{name}.db")
        corrupt(engine, keys.CLUSTER_KEY)
        engine.close()
        leader.ms.log("orders").append(b"1")

        trio.start(name)
        trio.settle()

        assert (tmp_path / f"{name}.db.aside-1").exists()


def test_a_node_without_progress_takes_a_snapshot(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        leader = trio.leader()
        leader.ms.log("orders").append(b"0")
        trio.settle()
        stalled = trio.followers()[0]
        stalled.door.seen = stalled.node.member.position.sequence  # its reads see nothing new
        leader.ms.log("orders").append(b"1")

        trio.until(lambda: stalled.node.state().snapshots > 0)

        stalled.door.seen = None
        trio.settle()


def test_a_cluster_begins_with_a_store_that_has_rows_already(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.prepare("a").log("orders").append(b"0")
        trio.start("a")
        trio.leader().ms.log("orders").append(b"1")
        trio.start("b")
        trio.settle()

        late = trio.machines["b"]
        assert late.node.state().snapshots == 1
        assert [record.value for record in late.ms.log("orders").read()] == [b"0", b"1"]


def test_a_snapshot_says_where_it_stands(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a")
        leader = trio.leader()
        leader.ms.log("orders").append(b"0")

        position = copy(leader.inner, tmp_path / "copy.db")

        assert position == read_position(tmp_path / "copy.db")
        assert position == leader.node.member.noted
        assert not (tmp_path / "copy.db-wal").exists()


def test_a_node_that_is_many_entries_behind_takes_a_snapshot_rather_than_replay(
    tmp_path: Path,
) -> None:
    settings = replace(STEADY, snapshot_entries_min=20)
    with Trio(tmp_path, settings) as trio:
        trio.start("a", "b")
        leader = trio.leader()
        for number in range(30):
            leader.ms.log("orders").append(str(number).encode())
        trio.until(lambda: trio.bulletin.reports()[leader.name][0].sequence > 30)

        trio.start("c")
        trio.until(lambda: trio.machines["c"].node.state().snapshots == 1)
        trio.settle()

        assert trio.machines["c"].node.state().replays < 5


def test_a_snapshot_that_cannot_be_fetched_is_tried_again(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b")
        trio.leader().ms.log("orders").append(b"0")
        trio.settle()
        trio.log.trim(trio.log.last)
        trio.fetches_fail = 2

        trio.start("c")
        trio.settle()

        assert trio.fetches_fail == 0
        assert trio.machines["c"].node.state().snapshots >= 1


def test_a_file_that_cannot_be_opened_goes_aside_and_its_node_begins_anew(tmp_path: Path) -> None:
    with Trio(tmp_path, STEADY) as trio:
        trio.start("a", "b", "c")
        leader = trio.leader()
        leader.ms.log("orders").append(b"0")
        trio.settle()
        name = trio.followers()[0].name
        trio.stop(name)
        path = tmp_path / f"{name}.db"
        data = bytearray(path.read_bytes())
        data[18] ^= 8  # the kind of journal: no SQLite file has this one
        path.write_bytes(bytes(data))

        trio.start(name)
        trio.settle()

        assert [one.value for one in trio.machines[name].ms.log("orders").read()] == [b"0"]
        assert (tmp_path / f"{name}.db.aside-1").read_bytes() == bytes(data)


def test_a_commit_that_the_shared_log_could_not_hold_is_refused_and_the_leader_goes_on() -> None:
    group = Group()
    a = group.node("a").lead()
    before = group.log.last
    with pytest.raises(Overloaded, match="send less at once"):
        a.put(1, size=a.node.settings.commit_bytes_max + 1)

    a.put(2)
    assert (a.numbers(), group.log.last) == ([2], before + 1)
