"""Metadata: a small mapping kept with a log, with compare and set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Limits, Log, Millstream
from millstream.errors import InvalidInput, MetadataConflict, TooLarge

Reopen = Callable[..., Millstream]


@pytest.fixture
def log(ms: Millstream) -> Log:
    return ms.log("x")


def test_it_is_a_mapping(log: Log) -> None:
    metadata = log.metadata
    metadata["owner"] = "me"
    metadata["n"] = 1
    metadata["n"] = 2

    assert dict(metadata) == {"owner": "me", "n": 2}
    assert (len(metadata), "n" in metadata, metadata.get("absent")) == (2, True, None)
    assert "'owner': 'me'" in repr(metadata)
    del metadata["n"]
    assert metadata.pop("owner") == "me"
    assert dict(metadata) == {}
    with pytest.raises(KeyError):
        metadata["owner"]
    with pytest.raises(KeyError):
        del metadata["owner"]


@pytest.mark.parametrize("value", ["x", 1, -1.5, True, None, [1, [2]], {"a": {"b": None}}, ""])
def test_any_json_value_is_kept(log: Log, reopen: Reopen, value: Any) -> None:
    log.metadata["k"] = value
    assert log.metadata["k"] == value

    again = reopen()
    assert again.log("x").metadata["k"] == value
    again.fold()
    assert reopen().log("x").metadata["k"] == value


def test_it_belongs_to_one_log_and_makes_it_exist(ms: Millstream) -> None:
    ms.log("a").metadata["k"] = 1

    assert dict(ms.log("b").metadata) == {}
    assert [info.name for info in ms.logs()] == ["a"]
    assert ms.log("a").append(b"x") == 0


def test_compare_and_set_changes_what_is_as_expected(log: Log) -> None:
    metadata = log.metadata
    metadata.compare_and_set("k", expect=None, value=1)
    metadata.compare_and_set("k", expect=1, value=[2])
    metadata.compare_and_set("k", expect=[2], value="three")

    for expected in (None, 1, [2], "four"):
        with pytest.raises(MetadataConflict) as refused:
            metadata.compare_and_set("k", expect=expected, value="other")
        assert (refused.value.key, refused.value.found) == ("k", "three")
    del metadata["k"]
    metadata.compare_and_set("k", expect=None, value="again")
    assert dict(metadata) == {"k": "again"}


def test_too_many_entries_are_refused(reopen: Reopen) -> None:
    metadata = reopen(Limits(metadata_entries_max=2)).log("x").metadata
    metadata["a"] = metadata["b"] = 1

    with pytest.raises(TooLarge):
        metadata["c"] = 1
    metadata["a"] = 2
    assert dict(metadata) == {"a": 2, "b": 1}


def test_too_many_bytes_are_refused(reopen: Reopen) -> None:
    metadata = reopen(Limits(metadata_bytes_max=100)).log("x").metadata
    metadata["a"] = "x" * 50

    with pytest.raises(TooLarge):
        metadata["b"] = "x" * 50
    assert dict(metadata) == {"a": "x" * 50}


def test_a_large_entry_can_be_replaced_and_deleted(reopen: Reopen) -> None:
    metadata = reopen(Limits(metadata_bytes_max=100)).log("x").metadata
    metadata["a"] = "x" * 90
    metadata["a"] = "y" * 90
    del metadata["a"]

    assert dict(metadata) == {}


def test_deleted_entries_make_room(reopen: Reopen) -> None:
    metadata = reopen(Limits(metadata_entries_max=2)).log("x").metadata
    for key in "abc":
        metadata[key] = 1
        del metadata[key]

    assert dict(metadata) == {}


def test_what_was_handed_in_or_out_can_be_changed_without_harm(log: Log) -> None:
    value = [1]
    log.metadata["k"] = value
    value.append(2)
    log.metadata["k"].append(3)

    assert log.metadata["k"] == [1]


@pytest.mark.parametrize("value", [object(), 2**70, "\ud800"])
def test_a_value_that_is_no_json_is_refused(log: Log, value: Any) -> None:
    with pytest.raises(InvalidInput):
        log.metadata["k"] = value


def test_a_clock_that_goes_back_does_not_hide_a_later_entry(
    log: Log, clock: Any, reopen: Reopen
) -> None:
    log.metadata["k"] = 1
    clock.jump(-3600)
    log.metadata["k"] = 2

    assert reopen().log("x").metadata["k"] == 2
