"""`/metrics`: it parses, and says what happened."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

from millstream.errors import MillstreamError
from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.log.commands import Append, GetBounds
from millstream.queue.commands import ClaimMessages
from millstream.rooms.backlog import OwnPlace
from millstream.rooms.commands import JoinRoom, SendToRoom, SweepRooms, TakeInstance
from millstream.rooms.holder import make_holder
from millstream.rooms.model import RoomMessage
from millstream.server.auth.access import ANYONE_HERE, NOBODY
from millstream.server.settings import Settings
from millstream.testing import Probe, SimulatedClock
from tests.unit.server.guarded import Guarded, guarded, in_loop

ONE = pack_single(b"x", key=None, headers=None, timestamp=None, limits=Limits())


async def scrape(at: Guarded) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels, in their order."""
    answer = await at.ask("GET", "/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_scrape_says_how_rooms_stand() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            ask = at.ms.session.execute
            taken = ask(TakeInstance("other", make_holder(clock)))
            ask(SendToRoom("hall", [RoomMessage("chat")] * 3))
            at.core.checkup.own_place = lambda: OwnPlace("own", {"hall": 1})
            ask(JoinRoom("hall", "other", taken.generation, "1", "client", "ada"))
            clock.advance(12)
            found = await scrape(at)
            assert found["millstream_room_sent_total", "hall"] == 4
            assert found["millstream_room_messages", "hall"] == 4
            assert found["millstream_room_unpassed_messages", "hall"] == 3
            assert found["millstream_room_oldest_seconds", "hall"] == 12
            assert found["millstream_room_users", "hall"] == 1
            assert found["millstream_room_connections", "hall"] == 1
            assert found["millstream_room_health", "hall"] == 1
            ask(SweepRooms())
            assert (await scrape(at))["millstream_room_expired_messages_total",] == 0
            clock.advance(49)
            ask(SweepRooms())
            found = await scrape(at)
            assert found["millstream_room_expired_messages_total",] == 4
            assert found["millstream_room_sweeps_total",] == 2

    in_loop(test)


def test_a_scrape_says_how_logs_and_queues_stand() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            at.ms.log("orders").append_many([b"1", b"2", b"3"])
            at.ms.log("orders").truncate(before=1)
            queue = at.ms.queue("mail", max_attempts=3)
            queue.put_many([b"a", b"b", b"c"])
            first, second = queue.claim(2, lease=10)
            queue.ack(first)
            queue.nack(second)
            clock.advance(7)
            found = await scrape(at)
            assert found["millstream_log_end_offset_total", "orders"] == 3
            assert found["millstream_log_records", "orders"] == 2
            assert found["millstream_log_bytes", "orders"] > 0
            states = {
                key[2]: value
                for key, value in found.items()
                if key[0] == "millstream_queue_messages"
            }
            assert states["done"] == 1
            assert states["available"] + states["delayed"] == 2
            assert states["in_flight"] == states["failed"] == 0
            assert found["millstream_queue_oldest_seconds", "mail"] == 7
            assert found["millstream_queue_placed_total", "mail"] == 3
            assert found["millstream_queue_claimed_total", "mail"] == 2
            assert found["millstream_queue_retried_total", "mail"] == 1
            assert found["millstream_queue_expired_total", "mail"] == 0
            assert found["millstream_queue_rate", "in", "mail"] > 0
            assert found["millstream_store_commits_total",] > 0
            assert found["millstream_store_unfolded_commits",] > 0

            queue.claim(1, lease=1)
            clock.advance(2)
            queue.claim(5)
            assert (await scrape(at))["millstream_queue_expired_total", "mail"] == 1

    in_loop(test)


def test_a_scrape_says_what_cursors_have_lost() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            orders, parts = at.ms.log("orders"), at.ms.log("parts", partitions=2)
            orders.append_many([b"x"] * 10)
            parts.append_many([b"x"] * 4, keys=[b"k"] * 4)
            slow = orders.cursor("slow")
            orders.cursor("fast").ack_up_to(9)
            parts.cursor("slow")
            orders.truncate(before=4)
            for _ in range(2):
                found = await scrape(at)
                assert found["millstream_cursor_lost", "slow", "orders"] == 4
                assert found["millstream_cursor_lost", "fast", "orders"] == 0
                slow.ack(slow.take(1))
            assert found["millstream_cursor_lag", "slow", "orders"] == 5
            assert found["millstream_cursor_lag", "fast", "orders"] == 1
            lags = [found["millstream_cursor_lag", "slow", f"parts-partition-{n}"] for n in (0, 1)]
            assert sum(lags) == 4

    in_loop(test)


def test_what_was_done_and_failed_is_counted_for_ever() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(), clock=clock) as at:
            queue = at.ms.queue("mail", max_attempts=1, done_retention=60, bucket_exponent=0)
            queue.put_many([b"a", b"b", b"c", b"d"])
            done, given_up, _ = queue.claim(3, lease=1)
            queue.ack(done)
            queue.ack(done)  # once more: it was done once
            queue.fail(given_up)
            clock.advance(2)  # the third runs out of time, at its last attempt
            assert queue.redrive() == 1
            queue.pop(1)
            queue.purge(state="failed")
            clock.advance(3_600)
            at.ms.fold()
            Probe(at.core.store).upkeep()
            found = await scrape(at)
            assert found["millstream_queue_messages", "mail", "done"] == 0  # forgotten
            assert found["millstream_queue_done_total", "mail"] == 2
            assert found["millstream_queue_failed_total", "mail"] == 2
            assert found["millstream_queue_expired_total", "mail"] == 1

    in_loop(test)


def test_what_a_filter_cannot_tell_is_counted() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            queue = at.ms.queue("large", sources=["orders"], start="earliest", filter="amount > 10")
            orders = at.ms.log("orders")
            orders.append(b"no header")
            orders.append(b"text", headers={"amount": "11"})
            orders.append(b"small", headers={"amount": 1})
            orders.append(b"large", headers={"amount": 11})
            orders.append_many([b"unknown"] * 1_000, headers=[{"amount": None}] * 1_000)
            orders.append_many([b"small"] * 1_000, headers=[{"amount": 2}] * 1_000)
            assert [message.value for message in queue.claim(10)] == [b"large"]
            at.ms.fold()
            errors = (await scrape(at))["millstream_queue_filter_errors_total", "large"]
            assert errors == 1_001, "text is no number: that comparison is false, not unknown"
            assert not queue.claim(10)
            assert (await scrape(at))["millstream_queue_filter_errors_total", "large"] == errors

    in_loop(test)


def test_commands_are_timed_and_errors_counted() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            for _ in range(3):
                await at.core.execute(ANYONE_HERE, Append("orders", ONE))
            await at.core.execute(ANYONE_HERE, GetBounds("orders"))
            with pytest.raises(MillstreamError):
                await at.core.execute(NOBODY, GetBounds("orders"))
            with pytest.raises(MillstreamError):
                await at.core.execute(ANYONE_HERE, ClaimMessages("nothing", 1, None, "c", None, []))
            found = await scrape(at)
            assert found["millstream_command_seconds_count", "Append"] == 3
            assert found["millstream_command_seconds_count", "GetBounds"] == 1
            assert found["millstream_command_failures_total", "GetBounds", "Denied"] == 1
            assert found["millstream_command_failures_total", "ClaimMessages", "NotFound"] == 1

    in_loop(test)


def test_mutations_of_one_commit_are_one_group() -> None:
    async def test() -> None:
        import asyncio

        async with guarded(Settings()) as at:
            append = [at.core.execute(ANYONE_HERE, Append("orders", ONE)) for _ in range(10)]
            await asyncio.gather(*append)
            await at.core.execute(ANYONE_HERE, Append("orders", ONE))
            at.ms.log("orders").append(b"x")  # by whomever in this process
            found = await scrape(at)
            assert found["millstream_commit_group_operations_sum",] == 12
            assert found["millstream_commit_group_operations_count",] == 3
            assert found["millstream_commit_seconds_count",] == 3
            assert found["millstream_sync_seconds_count",] == 3
            assert found["millstream_sync_seconds_sum",] <= found["millstream_commit_seconds_sum",]

    in_loop(test)


def test_requests_sockets_bytes_and_refusals_are_counted() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            await at.ask("POST", "/echo", content=b"12345")
            await at.upgrade()
            await at.upgrade(headers={"origin": "https://evil.example"})
            await at.ask("GET", "/echo", bearer="no")
            await at.ask("GET", "/echo", headers={"host": "evil.example"})
            found = await scrape(at)
            assert found["millstream_received_bytes_total",] == 10
            assert found["millstream_sent_bytes_total",] > 5
            assert found["millstream_sockets",] == 0
            assert found["millstream_requests_open",] == 1  # this one
            assert found["millstream_http_requests_total", "200"] == 1
            assert found["millstream_http_requests_total", "101"] == 1
            for reason in ("WrongOrigin", "Unauthenticated", "WrongHost"):
                assert found["millstream_denied_requests_total", reason] == 1

    in_loop(test)


def test_only_the_largest_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.server.observe.metrics_by_name.NAMES_MAX", 2)

    async def test() -> None:
        async with guarded(Settings()) as at:
            for name, size in (("a", 10), ("b", 1_000), ("c", 100)):
                at.ms.log(name).append(b"x" * size)
            for name, count in (("p", 3), ("q", 1), ("r", 2)):
                at.ms.queue(name, max_attempts=2).put_many([b"x"] * count)
            found = await scrape(at)
            assert [key[1] for key in found if key[0] == "millstream_log_bytes"] == ["b", "c"]
            assert [key[1] for key in found if key[0] == "millstream_queue_paused"] == ["p", "r"]

    in_loop(test)


def test_names_of_any_kind_are_told_so_that_they_parse() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            name = 'a "b" \\ {c} ü'
            at.ms.log(name).append(b"x")
            assert (await scrape(at))["millstream_log_end_offset_total", name] == 1

    in_loop(test)


def test_open_metrics_are_given_to_who_asks_for_them() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            at.ms.queue("mail", max_attempts=3).put(b"x")
            head = {"accept": "application/openmetrics-text; version=1.0.0"}
            answer = await at.ask("GET", "/metrics", headers=head)
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            names = {family.name for family in open_metrics(answer.text)}
            assert {"millstream_build", "millstream_queue_messages"} <= names

    in_loop(test)


def test_two_servers_in_one_process_count_for_themselves() -> None:
    async def test() -> None:
        async with guarded(Settings()) as one, guarded(Settings()) as two:
            await one.core.execute(ANYONE_HERE, Append("orders", ONE))
            key: Any = ("millstream_command_seconds_count", "Append")
            assert (await scrape(one))[key] == 1
            assert key not in await scrape(two)

    in_loop(test)


def test_metrics_need_the_right_to_read_the_store() -> None:
    async def test() -> None:
        async with guarded() as at:
            for permission, status in (("log:admin", 403), ("store:read", 200)):
                token = at.token(permission, name=permission)
                assert (await at.ask("GET", "/metrics", bearer=token)).status_code == status
                at.let_tokens_age()

    in_loop(test)


def test_a_closed_store_is_told_as_a_problem() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            await at.core.close()
            answer = await at.ask("GET", "/metrics")
            assert answer.status_code == 503
            assert answer.json()["title"] == "Closed"

    in_loop(test)
