"""A file is applied to a store: what it creates, alters, refuses and deletes."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import Millstream, topology
from millstream.errors import Conflict, InvalidInput, OutcomeUnknown
from millstream.jobs.schedule import QUEUE as SCHEDULE_QUEUE
from millstream.server.auth.register import Registrar
from millstream.testing import SimulatedClock, memory_store
from millstream.threads.schedules import ScheduleStore
from millstream.topology import TopologyRefused
from millstream.topology.applying import parse_text
from millstream.topology.writing import toml_of

WHOLE: dict[str, Any] = {
    "logs": {
        "orders": {"partitions": 3, "retention": {"age": "7d"}, "metadata": {"team": "blue"}},
        "letters": {},
    },
    "queues": {"mail": {"sources": ["orders"], "lease": "1m", "dead_letter": "letters"}},
    "rooms": {"hall": {"ttl": "1h", "retained": ["rect"]}},
    "schedules": {"nightly": {"task": "shop:report", "every": "30 1 * * *"}},
    "tokens": {"billing": {"permissions": ["log:write:orders*"]}},
}


@pytest.fixture
def ms() -> Iterator[Millstream]:
    with memory_store(clock=SimulatedClock()) as store:
        yield store


def apply(ms: Millstream, **tables: Any) -> topology.Applied:
    return topology.apply(ms, tables)


def actions(applied: topology.Applied) -> list[tuple[str, str, str]]:
    return [(change.action, change.kind, change.name) for change in applied.plan.changes]


def refused(ms: Millstream, *, prune: bool = False, **tables: Any) -> list[str]:
    """Apply a file that must be refused; the store must stay as it was."""
    before = topology.dump(ms)
    with pytest.raises(TopologyRefused) as caught:
        topology.apply(ms, tables, prune=prune)
    assert topology.dump(ms) == before
    reasons: list[str] = caught.value.reasons
    return reasons


def test_everything_of_a_file_exists_after_one_commit(ms: Millstream) -> None:
    created = actions(topology.apply(ms, WHOLE))
    assert {action for action, _, _ in created} == {"create"}
    assert len(created) == 6
    orders = ms.partitioned_log("orders")
    info = orders.info()
    assert info is not None
    assert (info.partitions, info.retention.age_ms) == (3, 7 * 86_400_000)
    assert dict(orders.metadata)["team"] == "blue"
    assert ms.queue("mail").info().spec.lease == 60
    assert ms.room("hall").settings().retained == ("rect",)
    assert [each.name for each in ScheduleStore(ms.session).list()] == ["nightly"]
    assert [token.permissions for token in Registrar(ms).tokens()] == [["log:write:orders*"]]


def test_a_second_run_changes_nothing(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    again = topology.apply(ms, WHOLE)
    assert (again.plan.changes, again.secrets) == ([], {})


def test_a_dry_run_returns_the_plan_and_changes_nothing(ms: Millstream) -> None:
    plan = topology.apply(ms, WHOLE, dry_run=True).plan
    assert len(plan.changes) == 6
    assert plan == topology.plan(ms, WHOLE)
    assert not any(topology.dump(ms).values())


def test_each_setting_is_altered_with_its_value_before_and_after(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    applied = apply(
        ms,
        logs={"orders": {"partitions": 4, "metadata": {"team": "red"}}},
        queues={"mail": {"sources": ["orders"], "lease": "2m", "dead_letter": "letters"}},
        rooms={"hall": {"ttl": "2h", "retained": ["rect"]}},
        schedules={"nightly": {"task": "shop:report", "every": "5m"}},
        tokens={"billing": {"permissions": ["admin"]}},
    )
    assert {change.kind: change.settings for change in applied.plan.changes} == {
        "log": {
            "partitions": (3, 4),
            "retention": ({"age": "7d"}, None),
            "metadata.team": ("blue", "red"),
        },
        "queue": {"lease": ("1m", "2m")},
        "room": {"ttl": ("1h", "2h")},
        "schedule": {"every": ("30 1 * * *", "5m")},
        "token": {"permissions": (["log:write:orders*"], ["*:admin", "store:admin"])},
    }
    assert len(ms.partitioned_log("orders").parts()) == 4
    assert ScheduleStore(ms.session).get("nightly").every == 300


def test_settings_that_a_file_leaves_out_get_their_defaults(ms: Millstream) -> None:
    ms.create_queue("mail", lease=99, rate=5)
    ms.room("hall").specify(ttl=5)
    ms.log("orders").retain(count=5)
    apply(ms, queues={"mail": {"rate": 5.0}}, rooms={"hall": {}}, logs={"orders": {}})
    assert (ms.queue("mail").info().spec.lease, ms.queue("mail").info().spec.rate) == (30, 5)
    assert ms.room("hall").settings().ttl == 60
    assert not ms.log("orders").retention()


def test_a_log_keeps_metadata_that_the_file_does_not_name(ms: Millstream) -> None:
    ms.log("orders").metadata["owner"] = "ada"
    apply(ms, logs={"orders": {"metadata": {"team": "blue"}}})
    assert dict(ms.log("orders").metadata) == {"owner": "ada", "team": "blue"}


def test_a_queue_keeps_its_start_if_the_file_names_none(ms: Millstream) -> None:
    ms.log("orders").append_many([b"a", b"b", b"c"])
    ms.create_queue("mail", sources="orders", start=2)
    applied = apply(ms, queues={"mail": {"sources": ["orders"], "lease": "1m"}})
    assert applied.plan.changes[0].settings == {"lease": ("30s", "1m")}
    assert ms.queue("mail").info().spec.start == 2
    assert (
        "start is 2, asked for 'earliest'"
        in refused(ms, queues={"mail": {"sources": ["orders"], "start": "earliest"}})[0]
    )


def test_a_source_gets_partitions_while_its_queue_is_altered(ms: Millstream) -> None:
    ms.create_queue("mail", sources="orders")
    wanted = {"logs": {"orders": {"partitions": 2}}, "queues": {"mail": {"sources": ["orders"]}}}
    assert actions(topology.apply(ms, wanted)) == [("create", "log", "orders")]
    ms.create_queue("post", sources="bills")
    wanted = {
        "logs": {"bills": {"partitions": 2}},
        "queues": {"post": {"sources": ["bills"], "lease": "1m"}},
    }
    assert len(topology.apply(ms, wanted).plan.changes) == 2
    assert topology.apply(ms, wanted).plan.changes == []
    ms.log("bills", partitions=2).append(b"x", key="k")
    assert len(ms.queue("post").pop(9)) == 1


def test_an_altered_token_keeps_its_secret(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    (before,) = Registrar(ms).tokens()
    expires = "2030-01-01T00:00:00Z"
    apply(ms, tokens={"billing": {"permissions": ["store:read"], "expires": expires}})
    (after,) = Registrar(ms).tokens()
    assert (after.id, after.digest) == (before.id, before.digest)
    assert after.permissions == ["store:read"]
    assert topology.dump(ms)["tokens"]["billing"]["expires"].isoformat() == expires.replace(
        "Z", "+00:00"
    )


def test_the_secret_of_a_new_token_is_returned_once_and_kept_before_the_commit(
    ms: Millstream,
) -> None:
    kept: list[str] = []

    def keep(secrets: Any) -> None:
        assert Registrar(ms).tokens() == []
        kept.extend(secret.text for secret in secrets)

    applied = topology.apply(ms, WHOLE, keep_secrets=keep)
    assert [*applied.secrets.values()] == kept
    (token,) = Registrar(ms).tokens()
    assert kept[0].startswith(f"ms_{token.id}_")
    assert topology.apply(ms, WHOLE).secrets == {}


def test_changes_that_are_not_allowed_are_all_found_before_anything_changes(
    ms: Millstream,
) -> None:
    ms.log("parts", partitions=4).create()
    ms.log("plain").append(b"x")
    ms.create_queue("grouped", group_by="tenant")
    ms.queue("grouped").put(b"x", group="ada")
    ms.create_queue("early", start="earliest")
    reasons = refused(
        ms,
        logs={"new": {}, "parts": {"partitions": 2}, "plain": {"partitions": 2}},
        queues={
            "grouped": {"group_by": "other"},
            "early": {"start": "latest"},
            "dead": {"dead_letter": "parts"},
        },
        tokens={"old": {"permissions": ["admin"], "expires": "2001-01-01T00:00:00Z"}},
    )
    assert [reason.partition(":")[0] for reason in reasons] == [
        "log 'parts' has 4 partitions, and the file asks for 2",
        "log 'plain' has no partitions, and the file asks for 2",
        "queue 'grouped' cannot become what is asked for. group_by is 'tenant', asked for 'other'",
        "queue 'early' cannot become what is asked for. start is 'earliest', asked for 'latest'",
        "queue 'dead'",
        "token 'old' would have expired already; name a later time, or remove the token from the file",
    ]
    assert "partitions = 4" in refused(ms, logs={"parts": {}})[0]


def test_a_change_that_only_the_store_can_refuse_changes_nothing(ms: Millstream) -> None:
    wanted = {"logs": {"a": {}}, "queues": {"q": {"sources": ["a"], "start": 7}}}
    with pytest.raises(Exception, match="cannot start at offset 7"):
        topology.apply(ms, wanted)
    assert not any(topology.dump(ms).values())


def test_prune_deletes_only_in_tables_that_the_file_has(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    ms.log("other").append(b"x")
    wanted = {"logs": {"letters": {}}, "rooms": {}}
    plan = topology.plan(ms, wanted, prune=True)
    assert [(change.action, change.kind, change.name) for change in plan.changes] == [
        ("delete", "room", "hall"),
        ("delete", "log", "orders"),
        ("delete", "log", "other"),
    ]
    assert all(change.loses for change in plan.changes)
    topology.apply(ms, wanted, prune=True)
    assert topology.apply(ms, wanted, prune=True).plan.changes == []
    dumped = topology.dump(ms)
    assert (set(dumped["logs"]), set(dumped["rooms"])) == ({"letters"}, set())
    assert (set(dumped["queues"]), set(dumped["tokens"])) == ({"mail"}, {"billing"})


def test_prune_keeps_the_logs_that_a_queue_names(ms: Millstream) -> None:
    file: dict[str, Any] = {
        "logs": {},
        "queues": {"mail": {"changes": "moves", "dead_letter": "dead"}},
    }
    topology.apply(ms, file)
    ms.log("dead").append(b"letter")
    ms.queue("mail").put(b"a")
    assert topology.apply(ms, file, prune=True).plan.changes == []
    assert topology.plan(ms, {"logs": {}}, prune=True).changes == []
    assert topology.apply(ms, {"logs": {}}, prune=True).plan.changes == []
    assert len(ms.log("dead")) == 1
    assert set(topology.dump(ms)["logs"]) == {"dead", "moves"}
    topology.apply(ms, {"logs": {}, "queues": {}}, prune=True)
    assert not any(topology.dump(ms).values())


def test_prune_deletes_queues_schedules_and_tokens(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    wanted: dict[str, Any] = {"queues": {}, "schedules": {}, "tokens": {}}
    assert len(topology.apply(ms, wanted, prune=True).plan.changes) == 3
    dumped = topology.dump(ms)
    assert [dumped[table] for table in wanted] == [{}, {}, {}]
    assert ms.queue(SCHEDULE_QUEUE).exists()


def test_confirm_sees_the_plan_and_may_stop_it(ms: Millstream) -> None:
    def stop(plan: topology.TopologyPlan) -> None:
        raise KeyError(len(plan.changes))

    with pytest.raises(KeyError, match="6"):
        topology.apply(ms, WHOLE, confirm=stop)
    assert not any(topology.dump(ms).values())


def test_a_paused_schedule_that_is_altered_stays_paused(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    ScheduleStore(ms.session).pause("nightly")
    assert topology.apply(ms, WHOLE).plan.changes == []
    apply(ms, schedules={"nightly": {"task": "shop:other", "every": "30 1 * * *"}})
    info = ScheduleStore(ms.session).get("nightly")
    assert (info.task, info.paused) == ("shop:other", True)


def test_a_schedule_that_a_worker_fires_is_altered_too(ms: Millstream) -> None:
    ms.create_queue("jobs")
    apply(ms, schedules={"often": {"task": "a", "every": 60}})
    clock = ms.session.clock
    assert isinstance(clock, SimulatedClock)
    clock.advance(61)
    (claimed,) = ms.queue(SCHEDULE_QUEUE).claim(1)
    assert claimed.headers["schedule"] == "often"
    apply(ms, schedules={"often": {"task": "b", "every": 60}})
    assert [each.task for each in ScheduleStore(ms.session).list()] == ["b"]


def test_a_schedule_whose_worker_died_is_altered_too(ms: Millstream) -> None:
    ms.create_queue("jobs")
    apply(ms, schedules={"often": {"task": "a", "every": 60}})
    clock = ms.session.clock
    assert isinstance(clock, SimulatedClock)
    clock.advance(61)
    assert len(ms.queue(SCHEDULE_QUEUE).claim(1)) == 1
    clock.advance(61)
    apply(ms, schedules={"often": {"task": "b", "every": 60}})
    assert [each.task for each in ScheduleStore(ms.session).list()] == ["b"]


class Meddled:
    """A session in which another process changes the store before the first transaction."""

    def __init__(self, ms: Millstream, meddle: Any) -> None:
        self.limits, self.clock = ms.session.limits, ms.session.clock
        self._session, self._meddle = ms.session, meddle

    def execute(self, command: Any) -> Any:
        """Answer a command."""
        if type(command).__name__ == "Transact" and self._meddle is not None:
            meddle, self._meddle = self._meddle, None
            meddle(lambda: self._session.execute(command))
        return self._session.execute(command)

    def close(self) -> None:
        """Leave the store open."""


def test_a_store_that_changes_meanwhile_is_compared_again(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    wanted = {
        "queues": {"mail": {"sources": ["orders"], "rate": 7.0, "dead_letter": "letters"}},
        "tokens": {"new": {"permissions": ["store:read"]}},
    }

    def meddle(_commit: Any) -> None:
        ms.queue("mail").alter(lease=5)
        apply(ms, tokens={"other": {"permissions": ["store:read"]}})

    applied = topology.apply(Millstream(Meddled(ms, meddle)), wanted)
    assert set(applied.secrets) == {"new"}
    spec = ms.queue("mail").info().spec
    assert (spec.rate, spec.lease) == (7, 30)
    assert {token.name for token in Registrar(ms).tokens()} == {"billing", "new", "other"}


def test_an_answer_that_was_lost_is_looked_up(ms: Millstream) -> None:
    def lose(commit: Any) -> None:
        commit()
        raise OutcomeUnknown("the connection was lost")

    applied = topology.apply(Millstream(Meddled(ms, lose)), WHOLE)
    (token,) = Registrar(ms).tokens()
    assert applied.secrets["billing"].startswith(f"ms_{token.id}_")
    assert len(applied.plan.changes) == 6


def test_a_store_that_changes_all_the_time_is_given_up(ms: Millstream) -> None:
    class Contended(Meddled):
        def execute(self, command: Any) -> Any:
            if type(command).__name__ == "Transact":
                raise Conflict("changed meanwhile")
            return self._session.execute(command)

    with pytest.raises(Conflict, match="changed meanwhile"):
        topology.apply(Millstream(Contended(ms, None)), WHOLE)


def test_logs_and_queues_of_millstream_itself_are_left_alone(ms: Millstream) -> None:
    topology.apply(ms, WHOLE)
    ms.queue("mail").put(b"x")
    dumped = topology.dump(ms)
    assert (set(dumped["logs"]), set(dumped["queues"])) == ({"letters", "orders"}, {"mail"})
    assert topology.plan(ms, dumped, prune=True).changes == []


def test_a_file_is_read_by_its_path(ms: Millstream, tmp_path: Path) -> None:
    path = tmp_path / "topology.toml"
    path.write_text('[logs.orders]\nmetadata = { team = "blue" }\n', encoding="utf-8")
    topology.apply(ms, path)
    assert dict(ms.log("orders").metadata) == {"team": "blue"}


def test_the_file_in_the_documentation_is_applied_and_dumped_again(ms: Millstream) -> None:
    page = Path(__file__).parents[3].joinpath("docs", "TOPOLOGY.md").read_text(encoding="utf-8")
    text = page.partition("```toml\n")[2].partition("```")[0]
    wanted = parse_text(text, ms.session.clock.wall_ms(), file="docs/TOPOLOGY.md")
    assert len(topology.apply(ms, wanted).plan.changes) == 6
    dumped = tomllib.loads(toml_of(topology.dump(ms)))
    written = tomllib.loads(text)
    assert dumped["queues"]["mail"].pop("backoff")["waits"] == [1, 10, 60]
    assert written["queues"]["mail"].pop("backoff") == "1s,10s,1m"
    assert dumped == written


ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
PAID = {
    "type": "object",
    "properties": {"id": {"type": "number"}, "paid": {"type": ["boolean", "null"]}},
    "required": ["id"],
}


def test_a_schema_is_set_changed_property_by_property_and_kept_if_it_is_not_named(
    ms: Millstream,
) -> None:
    tables = {"logs": {"orders": {"schema": ORDER}}, "queues": {"mail": {"schema": ORDER}}}
    topology.apply(ms, tables)
    assert topology.apply(ms, tables).plan.changes == []
    with pytest.raises(InvalidInput, match="integer at"):
        ms.log("orders").append({"id": "one"})
    with pytest.raises(InvalidInput, match="integer at"):
        ms.queue("mail").put({"id": "one"})
    changed = apply(
        ms, logs={"orders": {"schema": PAID, "schema_mode": "warn"}}, queues={"mail": {}}
    )
    assert [change.settings for change in changed.plan.changes] == [
        {
            "schema.properties.id": ({"type": "integer"}, {"type": "number"}),
            "schema.properties.paid": (None, {"type": ["boolean", "null"]}),
            "schema_mode": ("enforce", "warn"),
        }
    ]
    assert [each.version for each in ms.log("orders").schemas()] == [1, 2]
    assert actions(apply(ms, logs={"orders": {}}, queues={"mail": {}})) == []
    assert topology.dump(ms)["logs"]["orders"] == {"schema": PAID, "schema_mode": "warn"}
    earlier = apply(ms, logs={"orders": {"schema": ORDER, "schema_mode": "warn"}})
    assert earlier.plan.changes == []


def test_a_schema_that_does_not_fit_the_one_of_the_store_is_refused(ms: Millstream) -> None:
    tables = {"logs": {"orders": {"schema": PAID}}, "queues": {"mail": {"schema": PAID}}}
    topology.apply(ms, tables)
    text = {"type": "object", "properties": {"id": {"type": "string"}}}
    reasons = refused(ms, logs={"orders": {"schema": text}}, queues={"mail": {"schema": text}})
    assert [reason.partition(":")[0] for reason in reasons] == ["log 'orders'", "queue 'mail'"]
    assert "$.id: number cannot become text" in reasons[0]


def test_a_schema_is_read_from_a_file_beside_the_topology(ms: Millstream, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(
        '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    )
    file = tmp_path / "topology.toml"
    file.write_text('[logs.orders]\nschema = "order.avsc"\n')
    topology.apply(ms, file)
    schema = ms.log("orders").schema()
    assert schema is not None
    assert schema.spark() == "`id` BIGINT NOT NULL"
    file.write_text('[logs.a]\nschema = "gone.json"\n[logs.b]\nschema_mode = "warn"\n')
    with pytest.raises(TopologyRefused) as caught:
        topology.apply(ms, file)
    reasons = caught.value.reasons
    assert "line 1: [logs.a]: schema = 'gone.json': No such file or directory" in reasons[0]
    assert "schema_mode needs a schema" in reasons[1]


def test_a_queue_keeps_the_entries_that_gateways_make(ms: Millstream) -> None:
    queues = {"mail": {"lease": "1m", "metadata": {"sqs": '{"tags":{"team":"blue"}}', "other": 1}}}
    assert actions(apply(ms, queues=queues)) == [("create", "queue", "mail")]
    assert topology.dump(ms)["queues"] == queues
    assert actions(apply(ms, queues=queues)) == []
    queues["mail"]["metadata"] = {"other": 2}
    (change,) = apply(ms, queues=queues).plan.changes
    assert change.settings == {"metadata.other": (1, 2)}
    entries = topology.dump(ms)["queues"]["mail"]["metadata"]
    assert entries == {"sqs": '{"tags":{"team":"blue"}}', "other": 2}
