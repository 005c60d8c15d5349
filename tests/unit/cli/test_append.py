"""`millstream append`."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import millstream
from millstream.cli.input import line_batches
from millstream.errors import InvalidInput

STORE = "millstream.db"


def stored(log: str) -> list[millstream.Record]:
    with millstream.open(STORE) as ms:
        return list(ms.log(log).read())


def test_values_get_their_offsets(cli: Any) -> None:
    assert cli("append", "orders", "one") == "0\n"
    assert cli("append", "orders", "two", "three") == "1-2\n"
    assert [r.text for r in stored("orders")] == ["one", "two", "three"]


def test_lines_of_stdin_are_records_and_commits_are_batches(cli: Any) -> None:
    lines = b"".join(b"%d\n" % n for n in range(2_500))
    assert cli("append", "numbers", input=lines) == "0-999\n1000-1999\n2000-2499\n"
    assert [r.value for r in stored("numbers")] == lines.split()


def test_a_line_keeps_its_bytes_and_the_last_needs_no_end(cli: Any) -> None:
    cli("append", "bytes", input=b"\xff\x00\r\n\nlast")
    assert [r.value for r in stored("bytes")] == [b"\xff\x00\r", b"", b"last"]


def test_raw_stdin_is_one_record(cli: Any) -> None:
    cli("append", "files", "--raw", input=b"a\nb\n\x00")
    assert [r.value for r in stored("files")] == [b"a\nb\n\x00"]


def test_a_header_that_is_given_twice_keeps_both_values(cli: Any) -> None:
    flags = ("-H", "a=1", "-H", 'b:={"base64": "/w=="}', "-H", "a=2")
    cli("append", "a", "--raw", *flags, input=b"v")
    (record,) = stored("a")
    assert record.headers == [("a", 1), ("b", b"\xff"), ("a", 2)]
    shown = json.loads(cli("read", "a", "--json"))
    assert shown["headers"] == [["a", 1], ["b", {"base64": "/w=="}], ["a", 2]]


def test_a_null_value_is_a_tombstone(cli: Any) -> None:
    cli("append", "a", "-k", "ann", "--null", "-H", "n=1")
    cli("append", "a", "--raw", input=b"")
    cli("append", "a", "--json-lines", input=b"null")
    null, empty, json_null = stored("a")
    assert (null.value, null.key, null.headers) == (None, b"ann", {"n": 1})
    assert (empty.value, json_null.value, json_null.json()) == (b"", b"null", None)
    with pytest.raises(InvalidInput, match="tombstone"):
        null.json()
    shown = [json.loads(line) for line in cli("read", "a", "--json").splitlines()]
    assert [(one["value"], one["value_encoding"]) for one in shown] == [
        (None, "null"),
        ("", "text"),
        (None, "json"),
    ]
    assert "(null)" in cli("read", "a")
    assert cli("read", "a", "--values", "--limit", "1") == "\n"
    for wrong in (("v",), ("--raw",), ("--json-lines",)):
        cli("append", "a", "--null", *wrong, code=2)


def test_key_timestamp_and_typed_headers_are_stored(cli: Any) -> None:
    flags = ["n=1", "x=1.5", "yes=true", "none=null", 'text="5"', "plain=hello", "j:=-2"]
    headers = [part for flag in flags for part in ("-H", flag)]
    cli("append", "a", "v", "-k", "key", "--timestamp", "1970-01-01T00:00:01+00:00", *headers)
    (record,) = stored("a")
    assert (record.key, record.timestamp) == (b"key", 1000)
    found = {name: value for name, value in record.headers.items() if name != "content-type"}
    assert found == {
        "n": 1,
        "x": 1.5,
        "yes": True,
        "none": None,
        "text": "5",
        "plain": "hello",
        "j": -2,
    }
    assert type(found["yes"]) is bool


def test_json_lines_are_checked_and_marked(cli: Any) -> None:
    cli("append", "a", "--json-lines", input=b'{"a": 1}\n[2]\n')
    first, second = stored("a")
    assert first.value == b'{"a": 1}'
    assert (first.json(), second.json()) == ({"a": 1}, [2])
    assert first.headers["content-type"] == "application/json"


def test_a_line_that_is_not_json_is_named_and_what_is_before_its_batch_stays(cli: Any) -> None:
    told = cli.error("append", "a", "--json-lines", "--batch", "2", input=b"1\n2\n3\noops\n")
    assert "record 4 is not JSON" in told
    assert "2 before it are stored" in told
    assert [r.value for r in stored("a")] == [b"1", b"2"]


def test_json_answers_the_ranges_also_after_an_error(cli: Any) -> None:
    assert cli.json("append", "a", "x", "y") == {"log": "a", "count": 2, "ranges": [[0, 2]]}
    found = cli.json("append", "a", "--json-lines", "--batch", "1", input=b"1\noops\n", code=1)
    assert found == {"log": "a", "count": 1, "ranges": [[2, 3]]}


def test_an_unexpected_end_stores_nothing_and_says_what_to_do(cli: Any) -> None:
    cli("append", "a", "x")
    assert cli("append", "a", "y", "--expect-end", "1") == "1\n"
    assert "--expect-end 2" in cli.error("append", "a", "z", "--expect-end", "1")
    assert len(stored("a")) == 2


def test_expect_end_moves_on_with_each_batch(cli: Any) -> None:
    cli("append", "a", "--batch", "2", "--expect-end", "0", input=b"1\n2\n3\n4\n5\n")
    assert len(stored("a")) == 5


def test_a_repeat_under_a_producer_stores_nothing(cli: Any) -> None:
    arguments = ["append", "a", "--producer", "p", "--sequence", "7", "--batch", "2"]
    for _ in range(2):
        assert cli(*arguments, input=b"1\n2\n3\n") == "0-1\n2\n"
    assert [r.value for r in stored("a")] == [b"1", b"2", b"3"]
    assert "--sequence 9" in cli.error("append", "a", "x", "--producer", "p", "--sequence", "20")


@pytest.mark.parametrize(
    "arguments",
    [
        ["append"],
        ["append", "a", "x", "--raw"],
        ["append", "a", "x", "--producer", "p"],
        ["append", "a", "x", "-H", "nothing"],
        ["append", "a", "x", "-H", "n:=nothing"],
        ["append", "a", "x", "--timestamp", "noon"],
        ["append", "a", "x", "--batch", "0"],
    ],
)
def test_a_wrong_command_line_ends_with_2_and_stores_nothing(
    cli: Any, arguments: list[str]
) -> None:
    cli(*arguments, code=2)
    assert "Error" in cli.stderr
    assert not (cli.directory / STORE).exists() or stored("a") == []


def test_a_directory_that_is_missing_is_named(cli: Any) -> None:
    assert "nowhere" in cli.error("append", "a", "x", "-s", "nowhere/s.db", code=2)


def test_a_batch_is_full_after_so_many_lines_or_at_the_end() -> None:
    stream = io.BytesIO(b"1\n2\n3\n\n5")
    assert list(line_batches(stream, lines_max=2, steady=False)) == [
        [b"1", b"2"],
        [b"3", b""],
        [b"5"],
    ]


class SlowPipe(io.BytesIO):
    """Brings two lines at a time, and never has more waiting."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._chunks = [b"1\n2\n", b"3\n4\n", b""]

    def read1(self, size: int | None = -1) -> bytes:
        return self._chunks.pop(0)

    def fileno(self) -> int:
        return self._descriptor


@pytest.mark.parametrize(
    ("steady", "expected"),
    [(False, [[b"1", b"2"], [b"3", b"4"]]), (True, [[b"1", b"2", b"3"], [b"4"]])],
)
def test_a_slow_pipe_is_stored_as_it_arrives_unless_batches_must_be_steady(
    steady: bool, expected: list[list[bytes]]
) -> None:
    quiet, other_end = os.pipe()
    try:
        assert list(line_batches(SlowPipe(quiet), lines_max=3, steady=steady)) == expected
    finally:
        os.close(quiet)
        os.close(other_end)


def test_what_a_pipe_brings_is_durable_before_the_pipe_ends(
    cli: Any, program: Callable[..., subprocess.Popen[bytes]]
) -> None:
    with program("append", "live") as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"first\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"0\n"
        assert [r.value for r in stored("live")] == [b"first"]
        running.stdin.close()
        assert running.wait(60) == 0
