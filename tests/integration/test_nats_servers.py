"""Three NATS servers, some of which are lost: what the shared log says then, and that it goes on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.cluster.reports import NodeReport
from millstream.cluster.shared_log import Gone, Overtaken, Stored, Unreachable, Unsure
from tests.conformance.nats_kit import SECRET, Servers, three_servers, until

if TYPE_CHECKING:
    from millstream.cluster.nats.jetstream import JetStreamLog

pytestmark = [pytest.mark.requires("nats"), pytest.mark.faults]

WITHIN_S = 60.0
MANY = 1 << 20
_names = itertools.count(1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with three_servers(tmp_path_factory.mktemp("nats")) as started:
        yield started


@pytest.fixture
def log(servers: Servers) -> Iterator[JetStreamLog]:
    from millstream.cluster.nats.jetstream import JetStreamLog

    made = JetStreamLog(servers.line(), f"c{next(_names)}")
    made.found(timeout_s=WITHIN_S)
    yield made
    made.close()


def read_at_last(log: JetStreamLog, after: int) -> list[Stored]:
    """What stands behind an entry, once a server answers."""
    while True:
        with suppress(Unreachable):
            return log.read(after, bytes_max=MANY, timeout_s=1.0)


def read_through(log: JetStreamLog, last: int) -> list[Stored]:
    """All entries up to `last`, in several reads while the nearest server catches up."""
    found: list[Stored] = []
    while len(found) < last:
        found += read_at_last(log, len(found))
    assert [one.sequence for one in found[:last]] == [*range(1, last + 1)]
    return found


def append_at_last(log: JetStreamLog, data: bytes, *, after: int) -> int:
    """Append as a leader does that must know the outcome: reading what stands there."""
    while True:
        try:
            return log.append(data, after=after, timeout_s=5.0)
        except Unreachable:
            continue
        except (Unsure, Overtaken):
            found = read_at_last(log, after)
        if data in (stored := [one.data for one in found]):
            return found[stored.index(data)].sequence
        after += len(found)  # with nothing there, the same append again is as good as a barrier


def signal_server(servers: Servers, number: int, what: signal.Signals) -> None:
    process_id = servers.all[number].process_id
    assert process_id is not None
    os.kill(process_id, what)
    while what == signal.SIGSTOP and not is_stopped(process_id):
        pass  # a busy machine stops it a moment later


def is_stopped(process_id: int) -> bool:
    """Return whether the kernel has stopped every thread of a process."""
    threads = Path(f"/proc/{process_id}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


def test_a_reader_whose_nearest_server_has_not_caught_up_asks_the_leading_one(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS may take half a minute for a server that was restarted; its node need not stand still."""
    from millstream.cluster.nats import jetstream

    class Lagging(jetstream.JetStreamLog):
        async def _fetch(self, after: int, bytes_max: int) -> list[Stored]:
            return []  # as a server answers that has nothing of it yet

    monkeypatch.setattr(jetstream, "CERTAIN_S", 0.2)
    log = Lagging(servers.line(), f"c{next(_names)}")
    try:
        log.found(timeout_s=WITHIN_S)
        sent = [b"%d" % n for n in range(jetstream.LED_MESSAGES_MAX + 10)]
        for after, data in enumerate(sent):
            append_at_last(log, data, after=after)
        found: list[Stored] = []
        while len(found) < len(sent):
            found += read_at_last(log, len(found))
        assert [one.data for one in found] == sent
        assert [one.sequence for one in found] == [*range(1, len(sent) + 1)]
        assert log.read(len(sent), bytes_max=MANY, timeout_s=0.5) == []
    finally:
        log.close()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_server_that_was_killed_is_started_again_and_nothing_is_lost(
    servers: Servers, log: JetStreamLog, which: int
) -> None:
    for number in range(3):
        append_at_last(log, b"%d" % number, after=number)
    starts = servers.all[which].starts
    signal_server(servers, which, signal.SIGKILL)
    last = append_at_last(log, b"after", after=3)
    found = [one.data for one in read_through(log, last)]
    assert found[:3] == [b"0", b"1", b"2"]
    assert b"after" in found
    assert append_at_last(log, b"more", after=last) > last
    until(lambda: servers.all[which].starts > starts, "the server is started again")


def test_without_a_quorum_an_append_ends_in_time_and_is_certain_once_there_is_one_again(
    servers: Servers, log: JetStreamLog
) -> None:
    append_at_last(log, b"before", after=0)
    for number in (1, 2):
        signal_server(servers, number, signal.SIGSTOP)
    try:
        with pytest.raises((Unsure, Unreachable)):
            log.append(b"meanwhile", after=1, timeout_s=1.0)
    finally:
        for number in (1, 2):
            signal_server(servers, number, signal.SIGCONT)
    last = append_at_last(log, b"later", after=1)
    found = [one.data for one in read_through(log, last)]
    assert found[0] == b"before"
    assert found.count(b"meanwhile") <= 1
    assert found.count(b"later") == 1


def test_a_stream_that_was_deleted_is_gone(servers: Servers, log: JetStreamLog) -> None:
    append_at_last(log, b"one", after=0)
    line = servers.line()
    try:
        subject = f"$JS.API.STREAM.DELETE.{log.stream}"

        async def delete() -> None:
            await line.connected()
            await line.request(subject, b"")

        line.call(delete(), timeout_s=WITHIN_S)
    finally:
        line.close()
    with pytest.raises(Gone):
        log.read(1, bytes_max=MANY, timeout_s=WITHIN_S)
    with pytest.raises(Gone):
        log.held(timeout_s=WITHIN_S)
    with pytest.raises(Unreachable):
        log.append(b"two", after=1, timeout_s=5.0)


def test_reports_reach_all_nodes_and_the_newest_counts(servers: Servers) -> None:
    from millstream.cluster.nats.reports import NatsReportChannel

    lines = [servers.line(number) for number in range(3)]
    try:
        boards = [NatsReportChannel(line, "reports") for line in lines]
        sequences = itertools.count(1)

        def all_heard() -> bool:
            sequence = next(sequences)
            for name, board in zip("abc", boards, strict=True):
                board.post(NodeReport(name, f"http://{name}", "follower", 1, sequence, b"hash"))
            heard = [{n: r.sequence for n, (r, _) in board.reports().items()} for board in boards]
            return all(set(one) == set("abc") and min(one.values()) > 3 for one in heard)

        until(all_heard, "every node hears of every other")
        assert all(age >= 0 for board in boards for _, age in board.reports().values())
    finally:
        for line in lines:
            line.close()


def test_a_client_that_does_not_know_the_secret_is_not_let_in(servers: Servers) -> None:
    from millstream.cluster.nats.access import NatsAccess
    from millstream.cluster.nats.connection import NatsConnection
    from millstream.cluster.nats.jetstream import JetStreamLog

    for password in ("", "guessed"):
        access = NatsAccess((servers.all[0].me.nats_url,), user="millstream", password=password)
        line = NatsConnection(access, name="x")
        log = JetStreamLog(line, "c1")
        with pytest.raises(Unreachable):
            log.held(timeout_s=1.0)
        until(lambda line=line: "does not let this node in" in line.refusal, "NATS refuses")  # type: ignore[misc]
        log.close()


ORPHAN = """
    import sys, os, signal
    from pathlib import Path
    from millstream.cluster.nats.server import NatsServer
    from millstream.cluster.peers import Peer
    from millstream.cluster.trial import HOST, free_ports

    me = Peer("a", HOST, free_ports(1)[0])
    server = NatsServer(me, [me], Path(sys.argv[1]), secret=sys.argv[2])
    server.start()
    print(server.process_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_server_goes_with_its_node_even_if_that_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ORPHAN), str(tmp_path), SECRET],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    process_id = int(done.stdout)
    state = Path(f"/proc/{process_id}/stat")

    def is_over() -> bool:
        try:
            return state.read_text().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            return True

    until(is_over, "the server ends")


def test_the_lead_of_a_stream_goes_to_another_server_when_it_is_asked_for(
    servers: Servers, log: JetStreamLog
) -> None:
    from millstream.clock import SystemClock
    from millstream.cluster.nats.stream_leader import StreamLead

    append_at_last(log, b"before", after=0)
    first = log.look(timeout_s=WITHIN_S).leader
    lead = StreamLead(log, first, clock=SystemClock())

    def is_due() -> bool:
        log.look(timeout_s=WITHIN_S)
        return lead.is_due()

    until(is_due, "another server could lead")
    lead.move()
    assert lead.moves == 1
    assert log.look(timeout_s=WITHIN_S).leader not in ("", first)
    assert {one.name for one in log.servers.replicas} | {log.servers.leader} == set("abc")
    append_at_last(log, b"after", after=1)

    def has_both() -> bool:  # the nearest server may be a moment behind
        found = log.read(0, bytes_max=MANY, timeout_s=WITHIN_S)
        return [one.data for one in found] == [b"before", b"after"]

    until(has_both, "both are read")


def test_a_stream_that_is_known_to_be_gone_is_dropped_and_made_again(log: JetStreamLog) -> None:
    log.drop(timeout_s=WITHIN_S)
    with pytest.raises(Gone):
        log.held(timeout_s=WITHIN_S)
    log.drop(timeout_s=WITHIN_S)
    log.found(timeout_s=WITHIN_S, first=8, behind=b"\x07" * 32)
    assert log.held(timeout_s=WITHIN_S) == (8, 7)
    assert log.begun_behind(timeout_s=WITHIN_S) == b"\x07" * 32


@pytest.mark.parametrize("replicas", [1, 3])
def test_what_a_rehearsal_left_when_it_was_broken_off_is_no_rehearsal(
    servers: Servers, log: JetStreamLog, replicas: int
) -> None:
    from millstream.cluster.nats.jetstream import JetStreamLog

    name = log.stream.removeprefix("millstream-")
    left = JetStreamLog(servers.line(), f"{name}-rehearsed", replicas=replicas)
    try:
        left.found(timeout_s=WITHIN_S)
        log.rehearse(timeout_s=WITHIN_S)
        with pytest.raises(Gone):
            left.held(timeout_s=WITHIN_S)
    finally:
        left.close()
