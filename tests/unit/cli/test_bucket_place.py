"""The command line on object storage: an address of a bucket is a place like a file's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.cli import app

pytestmark = pytest.mark.requires("s3")


def run(*arguments: str, text: str | None = None) -> str:
    found = CliRunner().invoke(app, list(arguments), input=text)
    assert found.exit_code == 0, found.output
    return found.stdout


def test_commands_take_the_address_of_a_bucket(tmp_path: Path) -> None:
    place = ["--store", f"file://{tmp_path}/bucket"]
    run(*place, "append", "orders", "hello")
    assert "hello" in run(*place, "read", "orders")
    facts = json.loads(run(*place, "stats", "--json"))
    assert facts["engine"] == "slatedb"
    assert list(tmp_path.iterdir()) == [tmp_path / "bucket"]


def test_a_command_that_only_looks_makes_no_store(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["--store", f"file://{tmp_path}/none", "read", "orders"])
    assert found.exit_code == 2
    assert "there is no store" in found.output


def test_the_settings_file_may_name_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "millstream.toml").write_text(f'store = "file://{tmp_path}/bucket"\n')
    run("append", "orders", "hello")
    assert (tmp_path / "bucket").is_dir()


def test_a_store_is_copied_into_a_bucket_and_back(tmp_path: Path) -> None:
    file, back, bucket = tmp_path / "a.db", tmp_path / "b.db", f"file://{tmp_path}/bucket"
    run("--store", str(file), "append", "orders", "hello")
    first = json.loads(run("copy", str(file), bucket, "--json"))
    assert first["rows"] == first["written"] > 0
    assert json.loads(run("copy", str(file), bucket, "--json"))["written"] == 0
    run("copy", bucket, str(back))
    assert "hello" in run("--store", str(back), "read", "orders")


def test_stats_count_objects_and_requests(tmp_path: Path) -> None:
    place = ["--store", f"file://{tmp_path}/bucket"]
    run(*place, "append", "orders", "hello")
    assert json.loads(run(*place, "stats", "--json"))["staged_bytes"] == 0
    staged = tmp_path / "bucket" / "staging" / "job" / "0-1"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"block")
    facts = json.loads(run(*place, "stats", "--json"))
    assert facts["staged_bytes"] == 5
    assert facts["objects"] > 0
    assert facts["stored_bytes"] > 0
    assert facts["get_requests"] > 0
    assert facts["month_usd"] >= 0


def test_an_address_sets_options_of_its_store(tmp_path: Path) -> None:
    bucket = f"file://{tmp_path}/bucket"
    run("--store", f"{bucket}?cache_folder={tmp_path}/cache&pace_s=0", "append", "orders", "hello")
    assert "hello" in run("--store", f"{bucket}?follow_s=0", "read", "orders")
    assert json.loads(run("doctor", f"{bucket}?pace_s=0", "--json"))["healthy"]
    found = CliRunner().invoke(app, ["--store", f"{bucket}?cache=1", "read", "orders"])
    assert found.exit_code == 2
    assert "cache_folder" in found.output
