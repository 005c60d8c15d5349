"""`millstream export` and `millstream import`: options, output, and what they refuse."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import msgspec
import pytest

import millstream
from millstream import Item
from tests.unit.cli.conftest import Cli


@pytest.fixture
def store(cli: Cli) -> None:
    with millstream.open("millstream.db") as ms:
        items = [
            Item(
                {"n": n},
                key=f"k{n % 3}",
                headers={"kind": "sale" if n % 2 else "offer"},
                timestamp=n,
            )
            for n in range(10)
        ]
        ms.log("orders").append_many(items)
        ms.log("bytes").append(b"\xff\x00", key=b"\xfe", headers={"raw": b"\x01"}, timestamp=5)


def exported(cli: Cli, *arguments: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in cli("export", *arguments).splitlines()]


def test_a_line_has_the_fields_of_read_json(cli: Cli, store: None) -> None:
    line = exported(cli, "orders", "--from-offset", "-1")[0]
    assert line == {
        "log": "orders",
        "offset": 9,
        "timestamp": 9,
        "key": "k0",
        "headers": {"kind": "sale", "content-type": "application/json"},
        "value": {"n": 9},
        "value_encoding": "json",
    }
    shown = msgspec.json.decode(cli("read", "orders", "--last", "1", "--json"))
    assert line.items() <= shown.items()
    assert exported(cli, "bytes")[0] == {
        "log": "bytes",
        "offset": 0,
        "timestamp": 5,
        "key": "/g==",
        "headers": {"raw": {"base64": "AQ=="}},
        "value": "/wA=",
        "value_encoding": "base64",
        "key_encoding": "base64",
    }


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        ((), list(range(10))),
        (("--from-offset", "3", "--to-offset", "5"), [3, 4]),
        (("--where", "kind = 'sale'"), [1, 3, 5, 7, 9]),
        (("--since", "1970-01-01T00:00:00.004+00:00"), [4, 5, 6, 7, 8, 9]),
        (("--until", "1970-01-01T00:00:00.004+00:00", "--where", "_key = 'k0'"), [0, 3]),
        (("--since", "1h"), []),
    ],
)
def test_records_are_chosen(
    cli: Cli, store: None, arguments: tuple[str, ...], numbers: list[int]
) -> None:
    lines = exported(cli, "orders", *arguments)
    assert [line["offset"] for line in lines] == numbers
    assert f"{len(numbers)} records" in cli.stderr or len(numbers) == 1


def test_the_file_appears_complete_and_the_summary_is_json(cli: Cli, store: None) -> None:
    summary = cli.json("export", "orders", "bytes", "-o", "out.jsonl")
    assert summary["records"] == 11
    assert summary["logs"] == {"orders": 10, "bytes": 1}
    assert summary["bytes"] == Path("out.jsonl").stat().st_size
    assert "no log 'missing'" in cli.error("export", "missing", "-o", "out.jsonl")
    assert summary["bytes"] == Path("out.jsonl").stat().st_size
    assert sorted(path.name for path in Path().iterdir() if "partial" in path.name) == []


def test_csv_has_a_row_of_names(cli: Cli, store: None) -> None:
    rows = list(csv.DictReader(StringIO(cli("export", "bytes", "--format", "csv"))))
    assert rows[0]["value"] == "/wA="
    assert rows[0]["value_encoding"] == rows[0]["key_encoding"] == "base64"


@pytest.mark.parametrize(
    "name",
    [
        "out.jsonl",
        "out.csv",
        pytest.param("out.parquet", marks=pytest.mark.requires("arrow")),
    ],
)
def test_a_file_is_imported_once(cli: Cli, store: None, name: str) -> None:
    cli("export", "orders", "bytes", "-o", name)
    assert "11 records stored in 2 logs" in cli("import", name, "--store", "copy.db")
    assert cli("export", "*") == cli("export", "*", "--store", "copy.db")
    again = cli.json("import", name, "--store", "copy.db")
    assert (again["stored"], again["repeated"]) == (0, 11)


def test_standard_input_is_imported(cli: Cli, store: None) -> None:
    lines = '{"value": "a"}\n\n{"value": {"n": 1}, "timestamp": 7}\n{"value": null, "key": "k"}'
    for _ in range(2):
        cli("import", "-", "--log", "in", "--id", "one", input=lines)
    values = [msgspec.json.decode(line) for line in cli("read", "in", "--json").splitlines()]
    assert [(v["value"], v["value_encoding"]) for v in values] == [
        ("a", "text"),
        ({"n": 1}, "json"),
        (None, "null"),
    ]
    assert values[1]["timestamp"] == 7


def test_bad_lines_are_told_and_nothing_is_stored(cli: Cli) -> None:
    bad = [
        '{"value": 1}',
        '{"log": "a", "value": 1, "headrs": {}}',
        '{"log": "a", "value": "!", "value_encoding": "base64"}',
        '{"log": "a", "value": 1, "timestamp": -1}',
        '{"log": "queue:a", "value": 1}',
        '{"log": "a", "value": 1, "headers": {"h": [1]}}',
        '{"log": "a", "value": 1',
    ]
    Path("bad.jsonl").write_text("\n".join(['{"log": "a", "value": 1}', *bad]))
    message = cli.error("import", "bad.jsonl")
    assert "bad.jsonl: line 2: the record names no log" in message
    assert "line 3: Object contains unknown field `headrs`" in message
    assert "and 2 more bad lines; nothing was stored" in message
    assert cli("log", "list", "--json") == "[]\n"
    summary = cli.json("import", "bad.jsonl", "--skip-bad")
    assert (summary["stored"], summary["bad"]) == (1, 7)
    assert [row["row"] for row in summary["bad_rows"]] == [2, 3, 4, 5, 6]


def test_files_are_all_checked_before_any_is_stored(cli: Cli) -> None:
    Path("good.jsonl").write_text('{"log": "a", "value": 1}\n')
    Path("bad.jsonl").write_text("[]\n")
    assert "bad.jsonl: line 1" in cli.error("import", "good.jsonl", "bad.jsonl")
    assert cli("log", "list", "--json") == "[]\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("value,colour\n1,red\n", "'colour' is unknown"),
        ("log,key\na,b\n", "`value` is missing"),
        ("log,value\na,1,2\n", "line 2: the row has 3 cells"),
        ("log,value,timestamp\na,1,x\n", "the timestamp is a whole number"),
        ('log,value\na,"1\n', "not CSV"),
    ],
)
def test_wrong_csv_is_refused(cli: Cli, content: str, problem: str) -> None:
    Path("in.csv").write_text(content)
    assert problem in cli.error("import", "in.csv")


def test_wrong_arguments_are_refused(cli: Cli, store: None) -> None:
    Path("out.txt").write_text("")
    assert "names no format" in cli.error("export", "orders", "-o", "out.txt")
    assert "names no format" in cli.error("import", "out.txt")
    assert "no log matches" in cli.error("export", "none/*")
    assert "missing.jsonl" in cli.error("import", "missing.jsonl")
    assert "column 7" in cli.error("export", "orders", "--where", "kind =")
    text = cli.error("export", "orders", "-o", "none/out.csv", code=2)
    assert "none/out.csv: the directory none does not exist; create it first" in text
    Path("folder.csv").mkdir()
    for folder in (".", "folder.csv"):
        text = cli.error("export", "orders", "-o", folder, "--format", "csv", code=2)
        assert f"{folder} is a directory; name a file in it" in text
    Path("twice.csv").write_text("value,key,value\na,b,c\n")
    assert "'value' repeats" in cli.error("import", "twice.csv", "--log", "orders")


@pytest.mark.requires("arrow")
def test_a_file_that_is_not_parquet_is_refused(cli: Cli) -> None:
    Path("in.parquet").write_text("no")
    assert "not Parquet" in cli.error("import", "in.parquet")


def test_offsets_are_for_one_partition(cli: Cli) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("clicks", partitions=2).append_many([Item("a", key="a"), Item("b", key="b")])
    assert "clicks-partition-0" in cli.error("export", "clicks", "--from-offset", "0")
    lines = exported(cli, "clicks")
    assert {line["partitions"] for line in lines} == {2}
    assert len(lines) == 2


def test_an_export_into_a_closed_pipe_ends_quietly(
    cli: Cli, store: None, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("large").append_many([b"x" * 1_000] * 2_000)
    with program("export", "large") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0


def test_messages_of_another_queue_are_moved(cli: Cli) -> None:
    huey = pytest.importorskip("huey")
    app = huey.SqliteHuey("shop", filename="huey.db")

    @app.task()
    def send(to: str) -> None: ...

    send("ada")
    app.storage.close()
    command = ["import", "--from", "huey", "huey.db", "--queue", "mail", "--source-queue", "shop"]
    assert "1 message moved into queue mail" in cli(*command)
    assert cli.json(*command)["moved"] == 0
    assert cli.json("queue", "info", "mail")["available"] == 1
    assert "--from takes one address" in cli_usage(cli, *command, "--log", "a")
    assert "--from needs --queue" in cli_usage(cli, "import", "--from", "huey", "huey.db")
    assert "are for --from" in cli_usage(cli, "import", "a.jsonl", "--queue", "mail")


def cli_usage(cli: Cli, *arguments: str) -> str:
    """Run a command with wrong options, and return its error as one line."""
    cli(*arguments, code=2)
    return " ".join(cli.stderr.split())
