"""What an address of object storage may set behind its `?`."""

from __future__ import annotations

import pytest

from millstream.engine.slate.options import SlateOptions, options_with
from millstream.errors import CannotOpen


def test_an_address_sets_options_over_those_of_the_caller() -> None:
    given = SlateOptions(pace_s=0.5, follow_s=3.0)
    query = "pace_s=0&cache_folder=/var/a%20b&cache_bytes_max=1000000"
    assert options_with(given, query, "s3://b/p") == SlateOptions(
        pace_s=0.0, follow_s=3.0, cache_folder="/var/a b", cache_bytes_max=1_000_000
    )
    assert options_with(given, "", "s3://b/p") == given


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("cache=/a", "cache_folder"),
        ("pace_s=soon", "number"),
        ("pace_s=-1", "at least 0"),
        ("pace_s=nan", "at least 0"),
        ("commit_timeout_s=inf", "at least 0"),
        ("cache_bytes_max=1.5", "number"),
        ("cache_folder=", "not empty"),
    ],
)
def test_a_slip_is_refused_with_what_was_expected(query: str, why: str) -> None:
    with pytest.raises(CannotOpen, match=why):
        options_with(SlateOptions(), query, f"s3://b/p?{query}")
