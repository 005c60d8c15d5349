"""The file of a topology: its mistakes with table, line and suggestion; and TOML as it is written."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidInput
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.spec import QueueSpec
from millstream.topology import TopologyRefused
from millstream.topology.applying import parse_text
from millstream.topology.document import SYNONYMS, parse
from millstream.topology.model import TABLES, WantedLog
from millstream.topology.toml_file import from_plain, lines_of, plain, value_text

NOW_MS = 1_700_000_000_000


def mistakes(text: str) -> list[str]:
    with pytest.raises(TopologyRefused) as caught:
        parse_text(text, NOW_MS, file="t.toml")
    reasons: list[str] = caught.value.reasons
    return reasons


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[queus.a]",
            "t.toml, line 1: [queus]: a topology has no table 'queus': did you mean 'queues'?",
        ),
        (
            "[queues.a]\nleese = 5",
            "line 2: [queues.a]: a queue has no setting 'leese': did you mean 'lease'?",
        ),
        (
            "[rooms.a]\nttll = 5",
            "line 2: [rooms.a]: a room has no setting 'ttll': did you mean 'ttl'?",
        ),
        ("[logs.a]\npartition = 5", "a log has no setting 'partition': did you mean 'partitions'?"),
        (
            "[logs.a]\nretention = { aeg = 5 }",
            "a retention has no setting 'aeg': did you mean 'age'?",
        ),
        ("[schedules.a]\ntaks = 'x'", "a schedule has no setting 'taks': did you mean 'task'?"),
        (
            "[tokens.a]\npermission = []",
            "a token has no setting 'permission': did you mean 'permissions'?",
        ),
        (
            "[queues.a.backoff]\nfrist = 5",
            "a backoff has no setting 'frist': did you mean 'first'?",
        ),
        ("[queues.a]\nxyz = 5", "a queue has no setting 'xyz'; it has sources, filter"),
        ("[backup]\nplace = 'x'", "write [backup] into millstream.toml"),
        ("logs = 5", "logs must be a table of names, such as [logs.NAME], not 5"),
        ("[logs]\na = 5", "'a' must be a table of settings, not 5"),
        (
            "[logs.a]\npartitions = 5000",
            "line 1: [logs.a]: partitions is from 1 to 1,024, not 5000",
        ),
        ("[logs.a]\nretention = 5", 'retention is an age such as "7d", a size such as "10GiB"'),
        ("[logs.a]\nretention = '1000'", "retention is an age such as"),
        ("[logs.a]\nretention = ['7d']", "retention is an age such as"),
        ("[logs.a]\nretention = { days = 7 }", "no setting 'days': did you mean 'age'?"),
        ("[queues.a]\nlog = 'orders'", "no setting 'log': did you mean 'sources'?"),
        ("[queues.a]\nvisibility_timeout = '1m'", "did you mean 'lease'?"),
        ("[queues.a]\ndlq = 'letters'", "did you mean 'dead_letter'?"),
        ("[schedules.a]\ntask = 'x'\ncron = '* * * * *'", "did you mean 'every'?"),
        ("[topics.a]", "no table 'topics': did you mean 'logs'?"),
        ("[serve]\nport = 1", "settings of the server: write it into millstream.toml"),
        ("[logs.a]\nretention = { age = 'soon' }", "a duration must look like 90s"),
        ("[logs.a]\nretention = { bytes = 'few' }", "a size must look like 500"),
        ("[logs.a]\nretention = { count = -1 }", "retention by count is a whole number from 0"),
        ("[logs.a]\nretention = { consumed = 1 }", "consumed is true or false, not 1"),
        ("[logs.a]\nmetadata = { a = { json = '{' } }", "metadata: '{' is no JSON"),
        ("[logs.a]\nmetadata = { 'millstream:partitions' = 5 }", "is the store's own"),
        ("[logs.'queue:mail']", "belongs to a queue, a room, a job, another log or the store"),
        ("[logs.a-partition-1]", "belongs to a queue, a room, a job, another log or the store"),
        ("[logs.'']", "a log name has 1 to 255 characters, not 0"),
        ("[queues.'jobs.schedules']", "is made by Millstream"),
        ("[queues.a]\nmax_attempts = 'five'", "max_attempts: expected `int`, got `str`: 'five'"),
        ("[queues.a]\nlease = 'soon'", "a duration must look like 90s"),
        ("[queues.a]\nfilter = 'a ='", "[queues.a]:"),
        ("[queues.a]\nrate = -1.0", "rate is from"),
        ("[queues.a]\nsources = ['x']\ndead_letter = 'x'", "is one of its own sources"),
        ("[rooms.a]\nmessage_bytes_max = '1TiB'", "message_bytes_max is from 1"),
        ("[schedules.a]\nevery = '5m'", "a schedule needs 'task'"),
        ("[schedules.a]\ntask = 'x'\nevery = '* *'", "'* *' is no cron expression"),
        ("[schedules.a]\ntask = 'x'\nevery = 1\ntz = 'Mars'", "'Mars' is no time zone"),
        ("[schedules.a]\ntask = 'x'\nevery = 1\nqueue = 5", "Expected `str`, got `int`"),
        ("[tokens.a]", "without a permission it could do nothing"),
        ("[tokens.a]\npermissions = ['all']", "a permission is NOUN:ACTION"),
        ("[tokens.a]\npermissions = 'admin'", "permissions are a list of texts, not 'admin'"),
        (
            "[tokens.a]\npermissions = ['admin']\nexpires = 2030-01-01",
            "expires is a time with a zone",
        ),
        ("[tokens.a]\npermissions = ['admin']\nexpires = 'soon'", "expires is a time with a zone"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(text: str, told: str) -> None:
    (reason,) = mistakes(text)
    assert told in reason
    assert reason.startswith("t.toml, line ")
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("short", "table"),
    [
        ("'7d'", "{ age = '7d' }"),
        ("'10GiB'", "{ bytes = '10GiB' }"),
        ("'500 B'", "{ bytes = 500 }"),
        ("'consumed'", "{ consumed = true }"),
    ],
)
def test_a_retention_with_one_rule_may_be_a_text(short: str, table: str) -> None:
    texts = [f"[logs.a]\nretention = {retention}" for retention in (short, table)]
    (first, wrong), (second, _) = (parse(tomllib.loads(text), 0) for text in texts)
    assert (first, wrong) == (second, [])


def test_a_backoff_may_be_a_list_of_durations() -> None:
    texts = [f"[queues.a]\nbackoff = {backoff}" for backoff in ("['1s', 10, '1m']", "'1s,10s,1m'")]
    (first, wrong), (second, _) = (parse(tomllib.loads(text), 0) for text in texts)
    assert (first, wrong) == (second, [])


def test_every_synonym_leads_to_a_known_name() -> None:
    known = {
        "table": TABLES,
        "log": WantedLog.__struct_fields__,
        "retention": ("age", "bytes", "count"),
        "queue": QueueSpec.__struct_fields__,
        "schedule": ("task", "every", "tz", "arguments"),
        "token": ("permissions",),
    }
    for noun, synonyms in SYNONYMS.items():
        assert set(synonyms.values()) <= set(known[noun])
        assert set(synonyms).isdisjoint(known[noun])


def test_all_mistakes_are_told_at_once() -> None:
    text = "[queues.a]\nleese = 1\nburts = 2\n[logs.b]\npartitions = -1\n[rooms.c]\ntick = 'x'\n"
    lines = [reason.split(": ")[0] for reason in mistakes(text)]
    assert lines == ["t.toml, line 2", "t.toml, line 3", "t.toml, line 4", "t.toml, line 6"]


@pytest.mark.parametrize("text", ["[queues", "{", '{"queues": 5, "queues"}', "[1]"])
def test_text_that_is_neither_toml_nor_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"t\.toml"):
        parse_text(text, NOW_MS, file="t.toml")


def test_a_document_in_json_means_the_same() -> None:
    toml = '[queues.a]\nlease = "1m"\n[tokens.b]\npermissions = ["admin"]\nexpires = 2030-01-01T00:00:00Z'
    json = msgspec.json.encode(tomllib.loads(toml)).decode()
    assert parse_text(json, NOW_MS, file="x") == parse_text(toml, NOW_MS, file="x")


@pytest.mark.parametrize(
    ("written", "backoff"),
    [
        ("'5s'", Backoff(kind="fixed", first=5.0, jitter=0.0)),
        ("5", Backoff(kind="fixed", first=5.0, jitter=0.0)),
        ("'1s,1m'", Backoff(kind="list", waits=(1.0, 60.0), jitter=0.0)),
        ("[1, 60]", Backoff(kind="list", waits=(1.0, 60.0), jitter=0.0)),
        ("'1s*3'", Backoff(first=1.0, factor=3.0)),
        ("{ factor = 3.0 }", Backoff(factor=3.0)),
    ],
)
def test_a_backoff_is_written_as_text_list_or_table(written: str, backoff: Backoff) -> None:
    queues = parse_text(f"[queues.a]\nbackoff = {written}", NOW_MS, file="x").queues
    assert queues is not None
    assert queues["a"].spec.backoff == backoff


def test_lines_of_tables_and_keys_are_found() -> None:
    text = '# a\n[logs."a.b"]  # c\nx = 1\n"y z" = 2\n[queues]\nm.lease = 3\n\n[[no]]\n'
    assert lines_of(text) == {
        ("logs", "a.b"): 2,
        ("logs", "a.b", "x"): 3,
        ("logs", "a.b", "y z"): 4,
        ("queues",): 5,
        ("queues", "m", "lease"): 6,
    }


@pytest.mark.parametrize(
    "value",
    [
        True,
        5,
        -2.5,
        1e300,
        'a"b\\c\n\t\r\x00\x7fé😀',
        [1, "a", [True]],
        {"a b": {"": [{}]}, "c": 1},
        datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    ],
)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    assert tomllib.loads(f"a = {value_text(value)}") == {"a": value}


@pytest.mark.parametrize(
    "value",
    [None, [None, {"a": None}], {"json": "x"}, {"json": None}, {"json": 1, "b": 2}, {"a": {}}],
)
def test_a_json_value_survives_toml(value: Any) -> None:
    assert from_plain(tomllib.loads(f"a = {value_text(plain(value))}")["a"]) == value


def test_toml_has_no_bytes() -> None:
    with pytest.raises(TypeError, match="TOML has no bytes"):
        value_text(b"")
