"""Headers of a record: a mapping of names to their last values, and all pairs in order."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given

from millstream import Headers
from millstream.errors import CorruptionError, InvalidInput
from millstream.format.header_cells import pack_headers
from millstream.header import NO_HEADERS
from millstream.limits import Limits
from tests.records import HEADER_PAIRS

REPEATED = [("a", 1), ("b", b"\xff"), ("a", "2")]


def test_a_repeated_name_has_all_its_values_and_the_last_one_counts() -> None:
    headers = Headers(REPEATED)
    assert headers["a"] == headers.get("a") == "2"
    assert headers.all("a") == [1, "2"]
    assert headers.all("z") == []
    assert headers.pairs() == REPEATED
    assert list(headers) == ["a", "b"]
    assert len(headers) == 2
    assert dict(headers) == {"a": "2", "b": b"\xff"}
    assert "a" in headers
    assert "z" not in headers
    assert headers.get("z", 7) == 7


def test_headers_are_equal_to_what_they_were_made_of() -> None:
    assert Headers(REPEATED) == REPEATED == Headers(tuple(REPEATED))
    assert Headers(REPEATED) != [*REPEATED, ("c", 1)]
    assert Headers(REPEATED) != dict(REPEATED)
    assert Headers([("a", 1), ("b", 2)]) == {"b": 2, "a": 1}
    assert Headers([("a", 1), ("b", 2)]) == {"b": 2, "a": 1}
    assert Headers({"a": 1}) == [("a", 1)]
    assert Headers() == {} == NO_HEADERS
    assert not Headers()
    assert not Headers(b"\x80")
    assert Headers({"a": None})
    assert Headers({"a": 1}) != 1


def test_they_are_a_mapping_that_cannot_be_changed() -> None:
    headers = Headers({"a": 1})
    assert isinstance(headers, Mapping)
    with pytest.raises(TypeError):
        headers["b"] = 2  # type: ignore[index]
    with pytest.raises(TypeError):
        hash(headers)
    with pytest.raises(AttributeError):
        headers.held = b""  # type: ignore[misc]


@pytest.mark.parametrize("given", [REPEATED, {"a": 1}, {}])
def test_they_can_be_copied_and_sent_to_other_processes(given: Any) -> None:
    headers = Headers(given)
    for same in (pickle.loads(pickle.dumps(headers)), copy.deepcopy(headers), copy.copy(headers)):
        assert same == headers
        assert same.pairs() == headers.pairs()


def test_a_replaced_header_stands_in_place_of_all_of_its_name() -> None:
    assert Headers(REPEATED).replaced("a", 9) == [("b", b"\xff"), ("a", 9)]
    assert Headers({"a": 1, "b": 2}).replaced("a", 9) == {"a": 9, "b": 2}
    assert Headers(REPEATED).replaced("c", 9) == [*REPEATED, ("c", 9)]


def test_a_filter_sees_the_last_value_and_no_bytes() -> None:
    assert Headers(REPEATED).visible() == {"a": "2", "b": None}
    assert Headers([("a", 1), ("a", b"x")]).visible() == {"a": None}


def test_json_has_an_object_or_pairs_and_bytes_as_base64() -> None:
    assert Headers({"a": 1, "b": b"\xff"}).shown() == {"a": 1, "b": {"base64": "/w=="}}
    shown = [["a", 1], ["b", {"base64": "/w=="}], ["a", "2"]]
    assert msgspec.to_builtins(Headers(REPEATED).shown(), builtin_types=[]) == [
        tuple(one) for one in shown
    ]


def test_what_is_no_header_is_refused() -> None:
    for wrong in ("ab", b"\xc1", [("a",)], [(1, 2)], ["ab"], 7):
        with pytest.raises((InvalidInput, CorruptionError)):
            Headers(wrong).pairs()  # type: ignore[arg-type]


def test_it_prints_as_what_makes_it_again() -> None:
    for one in (Headers(REPEATED), Headers({"a": 1}), Headers()):
        assert eval(repr(one), {"Headers": Headers}) == one


@given(HEADER_PAIRS)
def test_any_headers_come_back_from_their_packed_form(pairs: Any) -> None:
    packed = pack_headers(pairs, None, Limits())
    found = Headers(packed)
    assert found == pairs
    assert found.pairs() == pairs
    assert pack_headers(found, None, Limits()) == packed
