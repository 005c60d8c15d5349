"""Objects beside SlateDB's own: how one state of an object is told from another."""

from __future__ import annotations

import pytest

from millstream.objects.address import parse_address
from millstream.objects.folder import ObjectFolder, condition_of, tag_of


@pytest.mark.parametrize(
    ("facts", "condition"),
    [
        ({"e_tag": '"a"', "version": None}, {"e_tag": '"a"'}),
        ({"e_tag": '"a"'}, {"e_tag": '"a"'}),
        ({"e_tag": '"a"', "version": "17"}, {"e_tag": '"a"', "version": "17"}),
    ],
)
def test_a_condition_names_the_version_that_google_compares(
    facts: dict[str, str | None], condition: dict[str, str]
) -> None:
    assert condition_of(tag_of(facts)) == condition


@pytest.mark.requires("s3")
def test_an_object_is_replaced_only_in_the_state_that_was_seen() -> None:
    objects = ObjectFolder(parse_address("memory://"))
    first = objects.create("a", b"1")
    assert first is not None
    assert objects.create("a", b"2") is None
    found = objects.get("a")
    assert found == (b"1", first)
    second = objects.replace("a", b"2", first)
    assert second is not None
    assert objects.replace("a", b"3", first) is None
    assert objects.get("a") == (b"2", second)
