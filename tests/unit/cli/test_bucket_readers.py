"""Commands that only read a bucket, each beside a writer: none of them fences it.

Which process writes is told by the epoch in SlateDB's manifest: who opens a store to write takes the
next one. The writer appends behind each command, which a fenced one could not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream
from millstream import Millstream
from millstream.cli import app
from millstream.cli.names import completed
from millstream.engine.slate.fast_binding import bind
from millstream.engine.slate.options import SlateOptions
from millstream.engine.slate.reader import read_manifest
from millstream.errors import Fenced, OutcomeUnknown
from millstream.objects.address import open_objects, parse_address

pytestmark = pytest.mark.requires("s3")

READERS = [
    "stats",
    "doctor {bucket}",
    "top --once",
    "log list",
    "log info orders",
    "log tail orders --from 0 --limit 1",
    "log retention orders",
    "log cursors orders",
    "log metadata orders",
    "log owner orders",
    "read orders",
    "read orders --since 1h --json",
    "read orders --last 1",
    "queue list",
    "queue info jobs",
    "queue peek jobs",
    "queue message jobs 0",
    "queue attempts jobs 0",
    "queue records jobs",
    "queue redrive jobs --dry-run",
    "room list",
    "room listen hall --from earliest --limit 1",
    "room retained hall",
    "room settings hall",
    "token list",
    "copy {bucket} {folder}/copy.db",
    "sync {folder}/peer.db --create --push",
]


@dataclass
class Writer:
    """A process that writes a bucket, as others see it."""

    ms: Millstream
    bucket: str
    folder: Path

    def epoch(self) -> int:
        """How many times the store was opened to write."""
        binding, place = bind(), parse_address(self.bucket)
        objects = open_objects(binding.module, place)
        return int(read_manifest(binding, objects, place.prefix, self.bucket).writer_epoch)

    def run(self, line: str) -> str:
        """What a command prints."""
        words = [word.format(bucket=self.bucket, folder=self.folder) for word in line.split()]
        found = CliRunner().invoke(app, ["--store", f"{self.bucket}?follow_s=0", *words])
        assert found.exit_code == 0, f"{found.stdout}\n{found.stderr}\n{found.exception!r}"
        return found.stdout


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    bucket = f"file://{tmp_path}/bucket"
    with millstream.open(bucket, options=SlateOptions(pace_s=0)) as ms:
        ms.log("orders").append({"number": 1})
        jobs = ms.create_queue("jobs")
        jobs.put(b"work")
        jobs.fail(jobs.claim(1))
        ms.room("hall").send("note", {"text": "hello"})
        yield Writer(ms, bucket, tmp_path)


@pytest.mark.parametrize("line", READERS)
def test_a_command_that_reads_fences_no_writer(writer: Writer, line: str) -> None:
    before = writer.epoch()
    writer.run(line)
    assert writer.epoch() == before
    writer.ms.log("orders").append({"number": 2})


def test_a_pull_from_a_bucket_fences_no_writer(writer: Writer) -> None:
    before = writer.epoch()
    file = ["--store", str(writer.folder / "here.db")]
    found = CliRunner().invoke(app, [*file, "sync", writer.bucket, "--pull", "--create"])
    assert found.exit_code == 0, found.stderr
    again = CliRunner().invoke(app, [*file, "sync", writer.bucket, "--pull"])
    assert again.exit_code == 0, again.stderr
    assert writer.epoch() == before
    assert CliRunner().invoke(app, [*file, "read", "orders", "--values"]).stdout.strip()


def test_names_that_a_shell_completes_fence_no_writer(writer: Writer) -> None:
    before = writer.epoch()

    class Context:
        params = {"store": writer.bucket}  # noqa: RUF012

        def find_root(self) -> Context:
            return self

    assert completed(Millstream.logs)(Context(), "or") == ["orders"]  # type: ignore[arg-type]
    assert writer.epoch() == before


def test_a_command_that_writes_takes_the_turn(writer: Writer) -> None:
    before = writer.epoch()
    writer.run("append orders hello")
    assert writer.epoch() == before + 1
    with pytest.raises((Fenced, OutcomeUnknown)):  # it learns of it by this append
        writer.ms.log("orders").append({"number": 2})
    assert "hello" in writer.run("read orders")


def test_a_command_that_reads_before_it_writes_opens_the_store_to_write_once(
    writer: Writer,
) -> None:
    before = writer.epoch()
    writer.run("log truncate orders --before 1 --yes")
    writer.run("queue pause jobs")
    assert writer.epoch() == before + 2
    assert writer.run("read orders") == ""
