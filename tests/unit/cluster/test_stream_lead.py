"""The server that leads the stream is another one than that of the node that leads."""

from __future__ import annotations

from millstream.cluster.nats.stream_leader import (
    AGAIN_S,
    HEARD_NS,
    StreamLead,
    StreamReplica,
    StreamServers,
)
from millstream.cluster.shared_log import Unreachable


class Clock:
    """A clock that stands still until it is set."""

    now_s = 100.0

    def wall_ms(self) -> int:
        return 0

    def boot_ms(self) -> int:
        return 0

    def boot_id(self) -> str:
        return "boot"

    def seconds(self) -> float:
        return self.now_s


class Stream:
    """A stream on simulated servers: what was heard of it last, and how it stands now."""

    def __init__(self, leader: str, *replicas: StreamReplica) -> None:
        self.servers = self.now = StreamServers(leader, list(replicas))
        self.asked: list[str] = []
        self.is_away = False

    def look(self, *, timeout_s: float) -> StreamServers:
        if self.is_away:
            raise Unreachable("simulated")
        self.servers = self.now
        return self.servers

    def hand_over(self, server: str, *, timeout_s: float) -> None:
        self.asked.append(server)
        self.servers = self.now = StreamServers(server, self.now.replicas)


SOUND = StreamReplica("b", current=True, active=HEARD_NS - 1)


def lead_of(stream: Stream, clock: Clock | None = None) -> StreamLead:
    return StreamLead(stream, "a", clock=clock or Clock())


def test_a_leading_node_has_another_server_lead_the_stream() -> None:
    stream = Stream("a", StreamReplica("c"), SOUND)
    lead = lead_of(stream)
    assert lead.is_due()
    lead.move()
    assert stream.asked == ["b"]
    assert not lead.is_here
    assert lead.moves == 1


def test_a_stream_that_another_server_leads_is_left_alone() -> None:
    assert not lead_of(Stream("b", SOUND)).is_due()
    assert not lead_of(Stream("")).is_due()


def test_a_server_that_was_lost_or_is_behind_does_not_get_the_lead() -> None:
    unsound = (
        StreamReplica("b", current=True, active=HEARD_NS),
        StreamReplica("c", current=False),
        StreamReplica("d", current=True, offline=True),
    )
    assert not lead_of(Stream("a", *unsound)).is_due()


def test_a_server_that_was_lost_since_it_was_heard_of_does_not_get_the_lead() -> None:
    stream = Stream("a", SOUND)
    lead = lead_of(stream)
    assert lead.is_due()
    stream.now = StreamServers("a", [StreamReplica("b", current=True, active=HEARD_NS)])
    lead.move()
    assert stream.asked == []


def test_a_lead_that_could_not_be_moved_is_left_where_it_is_for_a_while() -> None:
    stream, clock = Stream("a", SOUND), Clock()
    lead = lead_of(stream, clock)
    stream.is_away = True
    lead.move()
    assert not lead.is_due()
    clock.now_s += AGAIN_S
    assert lead.is_due()


def test_servers_have_a_quorum_while_most_of_them_are_there() -> None:
    there, lost = StreamReplica("there", current=True), StreamReplica("lost", offline=True)
    silent = StreamReplica("silent", current=True, active=HEARD_NS)
    for replicas, has_quorum in (
        ([], True),
        ([there, there], True),
        ([there, lost], True),
        ([lost, lost], False),
        ([silent, lost], False),
        ([there, lost, silent, silent], False),
    ):
        assert StreamServers("first", replicas).has_quorum == has_quorum, replicas
